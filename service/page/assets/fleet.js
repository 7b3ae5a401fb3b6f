// The servers of a fleet, and the families that have moved between them.
// A server's page lies on the loopback of its own machine: of another machine's no link is made.
import {ROWS, ask, bytes, cell, count, el, facts, held, link, state, table} from './base.js';

const HEALTH = {SERVER_HEALTH_UNSPECIFIED: 'not asked', SERVER_HEALTH_SERVING: 'serving',
  SERVER_HEALTH_DRAINING: 'draining', SERVER_HEALTH_NOT_SERVING: 'not serving',
  SERVER_HEALTH_UNREACHABLE: 'unreachable'};
const KNOWN_BY = {KNOWN_BY_ITSELF: 'itself', KNOWN_BY_FILE: 'fleet.file', KNOWN_BY_FAMILY: 'a family that moved there'};
const PAGE = /^http:\/\/(127(\.\d{1,3}){3}|localhost|\[::1\]):\d{1,5}\/page\/$/;
const LOOPBACK = /^(unix:|\/|127(\.\d{1,3}){3}:|localhost:|\[::1\]:)/;
const STALE = 6;  // seconds
let pages = new Map();  // of servers, by their names

function pageOf(server) {
  const page = server.info?.page || '';
  return PAGE.test(page) && LOOPBACK.test(server.address) ? page : '';
}

function serverRow(server) {
  const asked = server.known_by === 'KNOWN_BY_FILE' && server.health === 'SERVER_HEALTH_UNSPECIFIED' && !server.error;
  const page = pageOf(server), info = server.info, name = server.name || 'this server';
  const health = asked ? 'being asked' : HEALTH[server.health] || server.health;
  const limit = info && Number(info.memory_limit_bytes) ? ' of ' + bytes(info.memory_limit_bytes) : '';
  const told = field => info ? held(info, field) : cell('–');
  const itself = server.itself ? el('span', {class: 'quiet'}, ' (this page)') : null;
  return el('tr', {'data-server': server.name, 'data-health': server.health},
    el('td', {}, page && !server.itself ? el('a', {href: page + '#/'}, name) : name, itself),
    el('td', {class: 'health ' + health.replace(' ', '-')}, health),
    told('num_sequences'), info ? cell(bytes(info.memory_bytes) + limit, 'memory_bytes', info.memory_bytes) : cell('–'),
    cell(info ? info.version : '–'), cell(count(server.families), 'families', server.families),
    cell(server.state || '–'), cell(KNOWN_BY[server.known_by] || server.known_by),
    el('td', {class: 'address'}, server.address, server.error ? el('div', {class: 'error'}, server.error) : null,
       info?.page && !page ? el('div', {class: 'quiet'}, 'its page, on its own machine: ' + info.page) : null));
}

async function showServers(after) {
  const list = await ask('ListServers', {page_size: ROWS, page_token: after});
  const names = ['server', 'health', 'sequences', 'memory', 'version', 'families moved there', 'the file says',
                 'known by', 'address'];
  // The look has the server ask those that nobody has looked at for a while.
  state.soon = list.servers.some(s => s.known_by === 'KNOWN_BY_FILE' && !s.itself &&
    (s.age_seconds > STALE || (s.health === 'SERVER_HEALTH_UNSPECIFIED' && !s.error)));
  pages = new Map(list.servers.map(s => [s.name, pageOf(s)]));
  const here = list.servers.length, of = Number(list.num_servers);
  return [facts([['fleet', list.fleet || 'no fleet.file'], ['servers', count(of)],
      ...Object.entries(HEALTH).slice(1).map(([health, text]) =>
        [here < of ? text + ', of these ' + here : text,
         count(list.servers.filter(s => s.health === health).length)])]),
    list.file_error ? el('p', {class: 'error'}, list.file_error) : null,
    el('h2', {}, 'Servers'), table('Servers', names, list.servers.map(serverRow)),
    el('p', {}, after ? link(['fleet'], 'First') : null, ' ',
      list.next_page_token ? link(['fleet', 'after', list.next_page_token], `Next ${ROWS}`) : null)];
}

export async function showFleet(after) {
  let servers;
  pages = new Map();
  try {
    servers = await showServers(after);
  } catch (error) {
    if (error.status !== 403) throw error;
    servers = [el('p', {class: 'quiet'}, error.message)];
  }
  const rows = [];
  for (const info of (await ask('ListIndexes')).indexes.slice(0, ROWS)) {
    for (const family of (await ask('ListFamilyStates', {index: info.spec.name})).families.slice(0, ROWS)) {
      const page = pages.get(family.node), there = '#/index/' + encodeURIComponent(info.spec.name);
      rows.push(el('tr', {'data-family': family.family}, el('td', {}, `${info.spec.name}/${family.family}`),
        cell(family.state.replace('FAMILY_STATE_', '').toLowerCase()),
        el('td', {}, page ? el('a', {href: page + there}, family.node) : family.node || 'here'),
        cell(family.address || '–'), cell(family.generation)));
    }
  }
  return [el('h1', {}, 'Fleet'), ...servers,
    el('h2', {}, 'Families that have moved, or are about to'),
    rows.length ? table('Families', ['family', 'state', 'server', 'address', 'generation'], rows) :
      el('p', {}, 'There is none: every family is served where it was made.'),
    el('p', {class: 'quiet'}, 'Servers of fleet.file are asked while this is seen, once in two seconds at most. Others ' +
       'are known by families that moved there, and are not asked.')];
}
