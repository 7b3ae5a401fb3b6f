// The page of a server: views by the part of the address after '#', each drawn anew every few seconds while it is seen.
// Whatever comes from the server is written as text, never as markup.
const EVERY = 5000;     // milliseconds between two looks
const ROWS = 100;       // of a list at once
const KEPT = 360;       // points of a curve: half an hour
const BINS = 128;       // columns of the heat map
const byId = id => document.getElementById(id);
const history = new Map();  // by index: [{time, recall, mass, lost}]
const before = new Map();   // by index: what was counted at the look before
let turn = 0, timer = 0, paused = false, metricsRefused = '', token = '';  // token: kept here alone

// ---- The server ----

class Refused extends Error {
  constructor(status, code, message) { super(message); this.status = status; this.code = code; }
}

async function ask(method, request = {}) {
  const headers = token ? {Authorization: 'Bearer ' + token} : {};
  const url = 'api/' + method + '?request=' + encodeURIComponent(JSON.stringify(request));
  const answer = await fetch(url, {headers, cache: 'no-store', credentials: 'omit'});
  const text = await answer.text();
  let body = {};
  try { body = JSON.parse(text); } catch { body = {message: text}; }
  if (!answer.ok) throw new Refused(answer.status, body.code || '', body.message || answer.statusText);
  return body;
}

// ---- Elements ----

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) if (value !== undefined) element.setAttribute(name, value);
  element.append(...children.flat().filter(child => child !== null && child !== undefined));
  return element;
}
const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);

const count = value => Number(value).toLocaleString('en-US');
const share = value => (100 * value).toFixed(2) + ' %';
function bytes(value) {
  let n = Number(value), unit = 0;
  for (; n >= 1024 && unit < 4; ++unit) n /= 1024;
  return (unit ? n.toFixed(1) : n) + [' B', ' KiB', ' MiB', ' GiB', ' TiB'][unit];
}
const link = (parts, text) => el('a', {href: '#/' + parts.map(encodeURIComponent).join('/')}, text);
const cell = (text, field, value) => el('td', {'data-field': field, 'data-value': value}, text);
const held = (of, field, write = count) => cell(write(of[field]), field, of[field]);
const facts = pairs =>
  el('dl', {}, pairs.map(([name, value]) => el('div', {}, el('dt', {}, name), el('dd', {}, value))));
const table = (label, names, rows) => el('div', {class: 'wide'}, el('table', {'aria-label': label},
  el('thead', {}, el('tr', {}, names.map(name => el('th', {scope: 'col'}, name)))), el('tbody', {}, rows)));
const why = error => el('p', {class: error.status === 409 ? 'quiet' : 'error'}, error.message);

// ---- Curves ----

// Mean of what was counted since the look before; null where nothing was.
function between(index, key, sum, number) {
  const name = index + '/' + key, last = before.get(name);
  before.set(name, [sum, number]);
  return last && number > last[1] ? (sum - last[0]) / (number - last[1]) : null;
}

function remember(index, point) {
  const points = history.get(index) || [], now = Date.now(), last = points[points.length - 1];
  if (last && now - last.time < EVERY / 2) Object.assign(last, point);
  else points.push({time: now, recall: null, mass: null, lost: null, ...point});
  history.set(index, points.slice(-KEPT));
}

async function lookAtMetrics() {
  let metrics;
  try {
    metrics = await ask('GetMetrics');
    metricsRefused = metrics.counting ? '' : 'Nothing is counted: metrics.count is off.';
  } catch (error) {
    if (error.status !== 403) throw error;
    metricsRefused = 'Live quality needs the credential of an admin.';
    return null;
  }
  for (const index of metrics.indexes) {
    const sets = Number(index.quality_sets);
    remember(index.name, {recall: between(index.name, 'recall', index.quality_recall_sum, sets),
                          mass: between(index.name, 'mass', index.quality_attention_mass_sum, sets)});
  }
  return metrics;
}

function lookAtGate(info) {
  const checks = Number(info.gate.checks);
  remember(info.spec.name, {lost: between(info.spec.name, 'lost', info.gate.mean_lost * checks, checks)});
}

function curve(label, index, key, low, high) {
  const points = history.get(index) || [], values = points.map(p => p[key]).filter(v => v !== null);
  const top = high ?? Math.max(.01, ...values), x = i => 300 * i / Math.max(1, points.length - 1);
  const y = v => 78 - 76 * (v - low) / (top - low);
  const box = svg('svg', {viewBox: '0 0 300 80', height: 80, preserveAspectRatio: 'none', role: 'img',
                          'aria-label': label, 'data-points': values.length});
  let run = [];
  const draw = () => {
    if (run.length === 1) run.push([run[0][0] + 2, run[0][1]]);  // a point alone is a dash
    if (run.length) box.append(svg('polyline', {class: 'curve', points: run.join(' ')}));
    run = [];
  };
  points.forEach((p, i) => p[key] === null ? draw() : run.push([x(i), y(p[key])]));
  draw();
  const last = values.length ? share(values[values.length - 1]) : 'nothing yet';
  const range = el('span', {class: 'quiet'}, ` of ${share(low)} to ${share(top)}`);
  return el('div', {}, el('div', {}, label + ': ', el('b', {}, last), range), box);
}

function liveQuality(index, metrics) {
  const one = metrics?.indexes.find(m => m.name === index), sets = Number(one?.quality_sets || 0);
  const note = metricsRefused || (sets ? '' : 'No answer is sampled yet: quality.sample says which share is.');
  return [el('h2', {}, 'Live quality, since this page was opened'),
          el('div', {class: 'charts'}, curve('Recall', index, 'recall', 0, 1),
             curve('Attention mass', index, 'mass', 0, 1), curve("Lost, as the gate's checks find", index, 'lost', 0)),
          sets ? el('p', {}, `Since the server began: recall ${share(one.quality_recall_sum / sets)}, attention mass ` +
             `${share(one.quality_attention_mass_sum / sets)} over ${count(sets)} sets.`) : null,
          note ? el('p', {class: 'quiet'}, note) : null];
}

// ---- Views ----

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

// Tokens of a head by zone, as a bar.
function zones(head) {
  const all = Math.max(1, Number(head.num_retained)), begin = Number(head.zone_begin), end = Number(head.zone_end);
  const part = (kind, from, to) =>
    svg('rect', {class: kind, x: 100 * from / all, width: 100 * (to - from) / all, height: 10});
  return svg('svg', {class: 'bar', viewBox: '0 0 100 10', preserveAspectRatio: 'none', role: 'img',
    'aria-label': `sink ${begin}, zone ${end - begin}, after it ${all - end}`},
    part('sink', 0, begin), part('found', begin, end), part('local', end, all));
}

function headsTable(heads, spec) {
  const window = Number(spec.codec.centre_window) || 64;
  const buffer = Number(spec.zones.local) + Number(spec.zones.update_buffer);
  const bits = n => (8 * n / spec.geometry.head_dim).toFixed(2), zone = (head, field) =>
    el('span', {'data-field': field, 'data-value': head[field]}, count(head[field]));
  const names = ['KV head', 'tokens', 'retained', 'zone', 'zones', 'windows', 'after the zone', 'segments',
                 'bits, scanned', 'bits, candidates', 'bytes a key', 'codes', 'store', 'predicted loss'];
  return table('Heads', names, heads.map((head, h) => el('tr', {'data-kv-head': h}, el('td', {}, 'head ' + h),
    held(head, 'num_tokens'), held(head, 'num_retained'),
    el('td', {}, zone(head, 'zone_begin'), ' to ', zone(head, 'zone_end')), el('td', {}, zones(head)),
    cell(count((head.zone_end - head.zone_begin) / window)),
    cell(`${count(head.num_retained - head.zone_end)} of ${count(buffer)}`), held(head, 'num_segments'),
    held(head, 'coarse_bytes', bits), held(head, 'fine_bytes', bits),
    held(head, 'bytes_per_key', value => value.toFixed(1)), held(head, 'code_bytes', bytes),
    held(head, 'store_bytes', bytes),
    head.predicted_loss === undefined ? cell('–') : held(head, 'predicted_loss', share))));
}

// One row a set, one column so many positions; the stronger the colour, the more of what the set found lies there.
function heatMap(step, head) {
  const tokens = Math.max(1, Number(step.num_tokens)), size = Math.ceil(tokens / BINS), height = 14, left = 70;
  const width = 5 * BINS, x = position => left + width * position / (size * BINS);
  const whole = height * step.sets.length;
  const box = svg('svg', {viewBox: `0 0 ${left + width + 4} ${whole + 18}`, role: 'img', id: 'heat', 'data-bin': size,
    'aria-label': 'What each head found, by position; the table below has its shares'});
  const shade = (kind, from, to) =>
    svg('rect', {class: kind + ' shade', x: x(from), width: Math.max(0, x(to) - x(from)), height: whole});
  // Zones are places among what is retained: positions while nothing was evicted.
  if (head.num_retained === head.num_tokens) {
    box.append(shade('sink', 0, head.zone_begin), shade('local', head.zone_end, tokens));
  }
  step.sets.forEach((set, row) => {
    const bins = new Map();
    set.positions.forEach((position, i) => {
      const bin = bins.get(Math.floor(position / size)) || [0, 0];
      bins.set(Math.floor(position / size), [bin[0] + 1, bin[1] + set.weights[i]]);
    });
    const group = svg('g', {'data-kv-head': set.kv_head, 'data-q-head': set.q_head},
                      svg('text', {x: 2, y: height * row + 11}, name(set)));
    const most = Math.max(1e-9, ...[...bins.values()].map(bin => bin[1]));
    for (const [bin, [found, weight]] of bins) {
      const strength = .2 + .8 * Math.sqrt(weight / most);
      const place = {x: x(bin * size), y: height * row + 1, width: 5, height: height - 2};
      const last = Math.min(tokens, (bin + 1) * size) - 1;
      const says = `${found} found from ${count(bin * size)} to ${count(last)}: ${share(weight)} of the attention`;
      group.append(svg('rect', {...place, class: 'found', opacity: strength.toFixed(2), 'data-position': bin * size,
                                'data-found': found}, svg('title', {}, says)));
    }
    box.append(group);
  });
  box.append(svg('text', {x: left, y: whole + 13}, '0'),
             svg('text', {x: left + width, y: whole + 13, 'text-anchor': 'end'}, count(tokens)));
  return el('div', {class: 'wide'}, box);
}
const name = set => `${set.kv_head}, query ${set.q_head}`;
const LEGEND = [['sink', 'sink'], ['local', 'local'], ['found', 'found'], ['tail', 'tail: the zone’s other keys']];
const legend = () => el('div', {class: 'legend'},
  LEGEND.map(([kind, text]) => el('span', {}, el('i', {class: kind}), text)));

function masses(step) {
  const names = ['KV head', 'attention', 'sink', 'local', 'found', 'tail', 'found keys', 'recall'];
  return table('Attention by set', names, step.sets.map(set => {
    let from = 0;
    const bar = svg('svg', {class: 'bar', viewBox: '0 0 1 1', preserveAspectRatio: 'none', 'aria-hidden': 'true'});
    for (const [kind] of LEGEND) {
      bar.append(svg('rect', {class: kind, x: from, width: set[kind], height: 1}));
      from += set[kind];
    }
    return el('tr', {'data-set': set.kv_head + ',' + set.q_head}, el('td', {}, name(set)), el('td', {}, bar),
      LEGEND.map(([kind]) => held(set, kind, share)),
      cell(count(set.positions.length), 'positions', set.positions.length), held(set, 'recall', share));
  }));
}

async function showLayer(index, id, text) {
  const layer = Number(text), handle = {index, id};
  const sequence = (await ask('GetSequence', {handle})).sequence;
  const spec = (await ask('GetIndex', {name: index})).index.spec;
  const to = (n, text, name) => {
    if (n < 0 || n >= spec.geometry.num_layers) return null;
    const way = link(['index', index, 'seq', id, 'layer', n], text);
    way.id = name;
    return way;
  };
  const around = el('p', {}, to(layer - 1, `← layer ${layer - 1}`, 'previous'), ' ',
                    to(layer + 1, `layer ${layer + 1} →`, 'next'));
  const title = el('h1', {}, `${id}, layer ${layer}`);
  if (sequence.on_disk) {
    return [title, around, el('p', {}, 'It is on disk; its next call brings it back. This page makes none.')];
  }
  const heads = [];
  for (let h = 0; h < spec.geometry.num_kv_heads; ++h) {
    heads.push(await ask('DescribeHead', {handle, layer, kv_head: h}));
  }
  const {codec, coarse, centre, profile} = heads[0];
  const kind = `${codec}, coarse ${coarse}, centre ${centre}` + (profile ? `, profile ${profile}` : '');
  const parts = [title, around, el('h2', {}, 'Heads'), el('p', {class: 'quiet'}, kind), headsTable(heads, spec)];
  parts.push(el('h2', {}, 'What the last step finds'));
  try {
    const step = await ask('DescribeStep', {handle, layer});
    const of = `asked from position ${count(step.position)}, of ${count(step.num_tokens)} tokens held now`;
    parts.push(el('p', {}, `The latest step that is kept, ${of}.`), step.sets.length ?
      [heatMap(step, heads[0]), legend(), masses(step)] :
      el('p', {}, 'Every head is dense: there is nothing to search.'));
  } catch (error) {
    if (error.status !== 409) throw error;
    parts.push(why(error));
  }
  return parts.flat();
}

async function showFleet() {
  const server = await ask('GetServerInfo'), rows = [];
  for (const info of (await ask('ListIndexes')).indexes.slice(0, ROWS)) {
    for (const family of (await ask('ListFamilyStates', {index: info.spec.name})).families.slice(0, ROWS)) {
      rows.push(el('tr', {'data-family': family.family}, el('td', {}, `${info.spec.name}/${family.family}`),
        cell(family.state.replace('FAMILY_STATE_', '').toLowerCase()), cell(family.node || 'here'),
        cell(family.address || '–'), cell(family.generation)));
    }
  }
  return [el('h1', {}, 'Fleet'),
    facts([['this server', server.instance], ['takes new families', server.draining ? 'no: it drains' : 'yes'],
      ['memory', bytes(server.memory_bytes)], ['sequences', count(server.num_sequences)]]),
    el('h2', {}, 'Families that have moved, or are about to'),
    rows.length ? table('Families', ['family', 'state', 'server', 'address', 'generation'], rows) :
      el('p', {}, 'There is none: every family is served where it was made.'),
    el('p', {class: 'quiet'}, 'A server knows the others by the families that moved there. ' +
       'The command seine --fleet FILE fleet status asks them all.')];
}

function askForToken(error) {
  const field = el('input', {type: 'password', id: 'token', autocomplete: 'off'}), form = el('form', {},
    el('label', {for: 'token'}, 'Token of your credential '), field, ' ', el('button', {type: 'submit'}, 'Show'));
  form.addEventListener('submit', event => { event.preventDefault(); token = field.value.trim(); look(); });
  return [el('h1', {}, 'Who are you?'), why(error), form,
          el('p', {class: 'quiet'}, 'It stays in this tab until the page is loaded anew.')];
}

// ---- Ways ----

function view(parts) {
  const [kind, index, what, id, layers, layer] = parts;
  if (parts.length === 0) return showIndexes();
  if (kind === 'fleet' && parts.length === 1) return showFleet();
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
  showPath(parts);
  let content = null, said = '';
  try {
    content = await view(parts);
    said = `Read in ${Math.round(performance.now() - began)} ms`;
  } catch (error) {
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
  if (!paused) timer = setTimeout(() => document.hidden || look(), EVERY);  // a page that nobody sees asks for nothing
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
