// The page of a server: views by the part of the address after '#', each drawn anew every few seconds while it is seen.
import {
  EVERY, ROWS, Refused, ask, bytes, cell, count, el, facts, held, link, share, state, table, why
} from './base.js';
import {showFleet} from './fleet.js';
import {showLayer} from './layer.js';
import {liveQuality, lookAtGate, lookAtMetrics} from './quality.js';

const SOON = 400;       // milliseconds until the next look, where something is about to change
const REST = 200;       // times what a look took, until the next: looking takes .5 % of the time, or LONGEST passes
const LONGEST = 60000;  // milliseconds between two looks, at most
const byId = id => document.getElementById(id);
const SOONS = 10;       // looks in a row after which it waits all the same
let turn = 0, timer = 0, paused = false, soons = 0;

async function showIndexes() {
  const server = await ask('GetServerInfo'), all = (await ask('ListIndexes')).indexes;
  all.forEach(lookAtGate);
  await lookAtMetrics();
  const limit = Number(server.memory_limit_bytes) ? ' of ' + bytes(server.memory_limit_bytes) : '';
  const names = ['index', 'layers', 'KV heads', 'sequences', 'codes', 'store', 'queries', 'exact layers'];
  return [el('h1', {}, 'Server'),
    facts([['version', server.version], ['backend', `${server.backend}, ${server.simd_target}`],
      ['memory', bytes(server.memory_bytes) + limit], ['sequences', count(server.num_sequences)],
      ['up', count(server.uptime_seconds) + ' s'], ['takes new families', server.draining ? 'no: it drains' : 'yes']]),
    el('h2', {}, 'Indexes'),
    all.length ? table('Indexes', names, all.slice(0, 10 * ROWS).map(info => el('tr', {'data-index': info.spec.name},
      el('td', {}, link(['index', info.spec.name], info.spec.name)), cell(info.spec.geometry.num_layers),
      cell(info.spec.geometry.num_kv_heads), held(info, 'num_sequences'), held(info, 'code_bytes', bytes),
      held(info, 'store_bytes', bytes), held(info, 'query_bytes', bytes), cell(info.gate.layers.length)))) :
      el('p', {}, 'There is no index yet.'),
    all.length > 10 * ROWS ? el('p', {}, `and ${count(all.length - 10 * ROWS)} more`) : null];
}

async function showIndex(name, after) {
  const info = (await ask('GetIndex', {name})).index, spec = info.spec;
  lookAtGate(info);
  const list = await ask('ListSequences', {index: name, page_size: ROWS, page_token: after});
  const metrics = await lookAtMetrics(), longest = sequence => Math.max(0, ...sequence.layer_tokens.map(Number));
  return [el('h1', {}, name),
    facts([['codec', spec.codec.name], ['profile', spec.codec.profile || 'none'],
      ['sequences', count(info.num_sequences)], ['codes', bytes(info.code_bytes)],
      ['store', bytes(info.store_bytes)], ['queries', bytes(info.query_bytes)],
      ['sink, local', `${count(spec.zones.sink)}, ${count(spec.zones.local)}`], ['top_k', count(spec.retrieval.top_k)],
      ['layers re-encoded', count(info.reencoded_layers)], ['tokens evicted', count(info.evicted_tokens)],
      ["gate's checks", count(info.gate.checks)], ['lost, their mean', share(info.gate.mean_lost)],
      ['layers that attend exactly', info.gate.layers.map(l => `${l.layer} (${share(l.lost)})`).join(', ') || 'none']]),
    ...liveQuality(name, metrics),
    el('h2', {}, 'Sequences'),
    list.sequences.length ? table('Sequences', ['sequence', 'tokens', 'codes', 'store', 'where'],
      list.sequences.map(s => el('tr', {'data-sequence': s.handle.id},
        el('td', {}, link(['index', name, 'seq', s.handle.id], s.handle.id)), cell(count(longest(s))),
        held(s, 'code_bytes', bytes), held(s, 'store_bytes', bytes), cell(s.on_disk ? 'disk' : 'memory')))) :
      el('p', {}, 'There is none.'),
    el('p', {}, after ? link(['index', name], 'First') : null, ' ',
      list.next_page_token ? link(['index', name, 'after', list.next_page_token], `Next ${ROWS}`) : null)];
}

async function showSequence(index, id) {
  const sequence = (await ask('GetSequence', {handle: {index, id}})).sequence;
  return [el('h1', {}, id),
    facts([['generation', sequence.handle.generation], ['codes', bytes(sequence.code_bytes)],
      ['store', bytes(sequence.store_bytes)], ['where', sequence.on_disk ? 'disk' : 'memory']]),
    el('h2', {}, 'Layers'),
    table('Layers', ['layer', 'tokens'], sequence.layer_tokens.map((tokens, layer) => el('tr', {},
      el('td', {}, link(['index', index, 'seq', id, 'layer', layer], 'layer ' + layer)), cell(count(tokens)))))];
}

function askForToken(error) {
  const field = el('input', {type: 'password', id: 'token', autocomplete: 'off'}), form = el('form', {},
    el('label', {for: 'token'}, 'Token of your credential '), field, ' ', el('button', {type: 'submit'}, 'Show'));
  form.addEventListener('submit', event => { event.preventDefault(); state.token = field.value.trim(); look(); });
  return [el('h1', {}, 'Who are you?'), why(error), form,
          el('p', {class: 'quiet'}, 'It stays in this tab until the page is loaded anew.')];
}

function view(parts) {
  const [kind, index, what, id, layers, layer] = parts;
  if (parts.length === 0) return showIndexes();
  if (kind === 'fleet' && parts.length === 1) return showFleet('');
  if (kind === 'fleet' && index === 'after' && parts.length === 3) return showFleet(what);
  if (kind === 'index' && parts.length === 2) return showIndex(index, '');
  if (kind === 'index' && what === 'after' && parts.length === 4) return showIndex(index, id);
  if (kind === 'index' && what === 'seq' && parts.length === 4) return showSequence(index, id);
  if (kind === 'index' && what === 'seq' && layers === 'layer' && parts.length === 6) {
    return showLayer(index, id, layer);
  }
  throw new Refused(404, '', 'There is no such view.');
}

function place() {
  try {
    return location.hash.replace(/^#\/?/, '').split('/').filter(Boolean).map(decodeURIComponent);
  } catch { return ['?']; }
}

function showPath(parts) {
  const steps = [];
  for (let n = 2; n <= parts.length; n += 2) steps.push(' / ', link(parts.slice(0, n), parts[n - 1]));
  byId('path').replaceChildren(...(parts[0] === 'index' ? steps : []));
  document.title = ['Seine', ...parts.filter((_, i) => i % 2)].join(' · ');
}

async function look() {
  const mine = ++turn, parts = place(), began = performance.now(), main = byId('main');
  clearTimeout(timer);
  state.soon = false;
  showPath(parts);
  // A look that fails is as dear: a server that is too busy to answer is asked less often, too.
  const rest = () => Math.min(Math.max(EVERY, REST * (performance.now() - began)), LONGEST);
  let content = null, said = '', wait = EVERY;
  try {
    content = await view(parts);
    const took = performance.now() - began;
    soons = state.soon ? soons + 1 : 0;
    wait = state.soon && soons < SOONS ? SOON : rest();
    said = `Read in ${Math.round(took)} ms; again in ${Math.ceil(wait / 1000)} s`;
  } catch (error) {
    wait = rest();
    said = error.message;
    if (error.status !== 401) content = [el('h1', {}, 'Nothing to show'), why(error)];
    else if (!byId('token')) content = askForToken(error);  // else it is being typed
  }
  if (mine !== turn) return;
  if (content) {
    const focused = main.contains(document.activeElement) ? document.activeElement.getAttribute('href') : null;
    main.replaceChildren(...content.flat(3).filter(Boolean));
    if (focused) main.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus({preventScroll: true});
    byId('token')?.focus();
  }
  byId('state').textContent = said;
  main.dataset.drawn = location.hash;
  // A page that nobody sees asks for nothing.
  if (!paused) timer = setTimeout(() => document.hidden || look(), wait);
}

function pause() {
  paused = !paused;
  byId('pause').setAttribute('aria-pressed', paused);
  byId('pause').textContent = paused ? 'Go on' : 'Pause';
  if (paused) clearTimeout(timer); else look();
}

addEventListener('hashchange', () => { scrollTo(0, 0); look(); });
document.addEventListener('visibilitychange', () => { if (!document.hidden && !paused) look(); });
byId('pause').addEventListener('click', pause);
addEventListener('keydown', event => {
  if (event.target instanceof HTMLInputElement || event.ctrlKey || event.altKey || event.metaKey) return;
  const parts = place();
  if (event.key === 'h') location.hash = '#/';
  else if (event.key === 'u') location.hash = '#/' + parts.slice(0, -2).map(encodeURIComponent).join('/');
  else if (event.key === 'p') pause();
  else if (event.key === 'ArrowLeft') byId('previous')?.click();
  else if (event.key === 'ArrowRight') byId('next')?.click();
});
look();
