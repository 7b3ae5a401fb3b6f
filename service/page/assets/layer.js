// A layer of a sequence: its heads, and what the last step finds.
import {ask, bytes, cell, count, el, held, link, share, svg, table, why} from './base.js';

const BINS = 128;  // columns of the heat map

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

export async function showLayer(index, id, text) {
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
