// Live quality of an index, over the time that the page is open.
import {EVERY, ask, count, el, share, svg} from './base.js';

const KEPT = 360;           // points of a curve: half an hour
const history = new Map();  // by index: [{time, recall, mass, lost}]
const before = new Map();   // by index: what was counted at the look before
let metricsRefused = '';

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

export async function lookAtMetrics() {
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

export function lookAtGate(info) {
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

export function liveQuality(index, metrics) {
  const one = metrics?.indexes.find(m => m.name === index), sets = Number(one?.quality_sets || 0);
  const note = metricsRefused || (sets ? '' : 'No answer is sampled yet: quality.sample says which share is.');
  return [el('h2', {}, 'Live quality, since this page was opened'),
          el('div', {class: 'charts'}, curve('Recall', index, 'recall', 0, 1),
             curve('Attention mass', index, 'mass', 0, 1), curve("Lost, as the gate's checks find", index, 'lost', 0)),
          sets ? el('p', {}, `Since the server began: recall ${share(one.quality_recall_sum / sets)}, attention mass ` +
             `${share(one.quality_attention_mass_sum / sets)} over ${count(sets)} sets.`) : null,
          note ? el('p', {class: 'quiet'}, note) : null];
}
