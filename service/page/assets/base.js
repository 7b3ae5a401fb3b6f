// Parts of every view of the page: calls of the server, elements, and how figures are written.
// Whatever comes from the server is written as text, never as markup.
export const EVERY = 5000;  // milliseconds between two looks, at least
export const ROWS = 100;    // of a list at once
export const state = {token: '', soon: false};  // token: kept here alone; soon: what is shown is about to change

export class Refused extends Error {
  constructor(status, code, message) { super(message); this.status = status; this.code = code; }
}

export async function ask(method, request = {}) {
  const headers = state.token ? {Authorization: 'Bearer ' + state.token} : {};
  const url = 'api/' + method + '?request=' + encodeURIComponent(JSON.stringify(request));
  const answer = await fetch(url, {headers, cache: 'no-store', credentials: 'omit'});
  const text = await answer.text();
  let body = {};
  try { body = JSON.parse(text); } catch { body = {message: text}; }
  if (!answer.ok) throw new Refused(answer.status, body.code || '', body.message || answer.statusText);
  return body;
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) if (value !== undefined) element.setAttribute(name, value);
  element.append(...children.flat().filter(child => child !== null && child !== undefined));
  return element;
}
export const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
export const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);

export const count = value => Number(value).toLocaleString('en-US');
export const share = value => (100 * value).toFixed(2) + ' %';
export function bytes(value) {
  let n = Number(value), unit = 0;
  for (; n >= 1024 && unit < 4; ++unit) n /= 1024;
  return (unit ? n.toFixed(1) : n) + [' B', ' KiB', ' MiB', ' GiB', ' TiB'][unit];
}
export const link = (parts, text) => el('a', {href: '#/' + parts.map(encodeURIComponent).join('/')}, text);
export const cell = (text, field, value) => el('td', {'data-field': field, 'data-value': value}, text);
export const held = (of, field, write = count) => cell(write(of[field]), field, of[field]);
export const facts = pairs =>
  el('dl', {}, pairs.map(([name, value]) => el('div', {}, el('dt', {}, name), el('dd', {}, value))));
export const table = (label, names, rows) => el('div', {class: 'wide'}, el('table', {'aria-label': label},
  el('thead', {}, el('tr', {}, names.map(name => el('th', {scope: 'col'}, name)))), el('tbody', {}, rows)));
export const why = error => el('p', {class: error.status === 409 ? 'quiet' : 'error'}, error.message);
