// Functions that create elements. User text becomes a text node or an attribute, never HTML.
// The page defines `data` with `kind` ("classes" or "target"), the names of the `classes`, and the number of the `first` class (0).
// Okabe and Ito's colours, each with a readable text colour
const PALETTE = [
  ['#0072B2', '#fff'], ['#E69F00', '#000'], ['#009E73', '#000'], ['#CC79A7', '#000'],
  ['#56B4E9', '#000'], ['#D55E00', '#000'], ['#F0E442', '#000'], ['#7a7a7a', '#fff'],
];
const FEW = 8; // the most excluded labels to list
const NO_COLOUR = ['#b4bcc6', '#000'];

const byId = (id) => document.getElementById(id);

function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null));
  return element;
}

function share(value) { return value === null || value === undefined ? '–' : value.toFixed(3); }
function number(value) {
  if (value === null || value === undefined) return '∞';
  const size = Math.abs(value);
  return size >= 1e-3 && size < 1e4 ? value.toPrecision(4) : String(Number(value.toPrecision(4)));
}
function percent(value) { return `${(100 * value).toFixed(1)} %`; }
function whole(value) { return value.toLocaleString('en'); }
// Names differ mostly at their ends, so the middle is cut.
function squeeze(text, length) {
  const first = Math.max(2, Math.floor(length / 3));
  return text.length > length ? `${text.slice(0, first)}…${text.slice(first + 1 - length)}` : text;
}

const colourOf = (c) => (c === null || c === undefined || data.kind !== 'classes' ? NO_COLOUR : PALETTE[c % PALETTE.length]);
const className = (c) => (c === null || c === undefined ? 'not known' : data.classes[c] ?? String(c));

// A name that may be broken after its separators.
const breakable = (name) => name.split(/(?<=[_/.-])/).flatMap((part) => [make('wbr'), part]);
const codeOf = (c) => String(c + (data.first ?? 0));

// A class as its number on its colour.
function swatch(c) {
  const [back, ink] = colourOf(c);
  const box = make('span', { class: 'swatch', title: className(c) }, codeOf(c));
  box.style.background = back;
  box.style.color = ink;
  return box;
}

function classLabel(c) {
  if (c === null || c === undefined) return make('span', { class: 'quiet' }, '–');
  if (data.classes[c] === String(c)) return swatch(c);
  return make('span', { class: 'class', title: className(c) }, swatch(c), make('span', {}, breakable(className(c))));
}

function meter(from, to, colour, middle = false) {
  const bar = make('span');
  Object.assign(bar.style, { left: `${100 * from}%`, width: `${100 * (to - from)}%`, background: colour });
  return make('span', { class: 'meter', 'aria-hidden': 'true' }, bar, middle ? make('span', { class: 'middle' }) : null);
}

// The classes inside and outside a label set, with bars of their p-values.
function labelList(inside, pValues) {
  const item = (c) => make('li', {},
    make('span', { class: 'who', title: className(c) }, swatch(c), make('span', {}, className(c) === String(c) ? '' : breakable(className(c)))),
    pValues ? meter(0, pValues[c], colourOf(c)[0]) : make('span'), make('span', { class: 'value' }, pValues ? share(pValues[c]) : ''));
  const ordered = (classes) => (pValues ? [...classes].sort((a, b) => pValues[b] - pValues[a]) : classes);
  const list = (classes) => make('ul', { class: 'measures' }, classes.map(item));
  const parts = [make('h4', {}, pValues ? 'Possible labels, by p-value' : 'Possible labels')];
  parts.push(inside.length ? list(ordered(inside)) : make('p', { class: 'quiet' }, 'None: no class fits this node.'));
  const others = ordered(data.classes.map((_, c) => c).filter((c) => !inside.includes(c)));
  if (pValues && others.length) parts.push(make('h4', {}, 'Excluded labels'), list(others.slice(0, FEW)));
  if (pValues && others.length > FEW) parts.push(make('p', { class: 'quiet' }, `and ${others.length - FEW} more`));
  return parts;
}
