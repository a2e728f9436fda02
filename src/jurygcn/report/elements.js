// The data of the page, and functions that create elements. User text becomes a text node or an attribute, never HTML.
const data = JSON.parse(document.getElementById('report-data').textContent);
const rows = data.rows;
const COUNT = rows.node.length;
// Okabe and Ito's colours, each with a readable text colour
const PALETTE = [
  ['#0072B2', '#fff'], ['#E69F00', '#000'], ['#009E73', '#000'], ['#CC79A7', '#000'],
  ['#56B4E9', '#000'], ['#D55E00', '#000'], ['#F0E442', '#000'], ['#7a7a7a', '#fff'],
];
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

// A class as its number on its colour.
function swatch(c) {
  const [back, ink] = colourOf(c);
  const box = make('span', { class: 'swatch', title: className(c) }, String(c));
  box.style.background = back;
  box.style.color = ink;
  return box;
}

function classLabel(c) {
  if (c === null || c === undefined) return make('span', { class: 'quiet' }, '–');
  if (data.classes[c] === String(c)) return swatch(c);
  return make('span', { class: 'class', title: className(c) }, swatch(c), make('span', {}, className(c)));
}

// --- nodes: their rows, and their positions among the training nodes ---------------------------------------------

const rowOf = new Map(rows.node.map((node, row) => [node, row]));
const trainingIndexOf = new Map(data.training.node.map((node, index) => [node, index]));

function nameOf(node) {
  const row = rowOf.get(node);
  if (rows.name && row !== undefined) return rows.name[row];
  if (data.training.name.length && trainingIndexOf.has(node)) return data.training.name[trainingIndexOf.get(node)];
  return String(node);
}

const neighboursOf = (() => {
  let lists = null; // built at first use
  return (node) => {
    if (lists === null) {
      lists = new Map();
      const pairs = data.edges.pairs;
      const add = (a, b) => { if (lists.has(a)) lists.get(a).push(b); else lists.set(a, [b]); };
      for (let k = 0; k < pairs.length; k += 2) { add(pairs[k], pairs[k + 1]); add(pairs[k + 1], pairs[k]); }
    }
    return lists.get(node) ?? [];
  };
})();

const isWrong = (row) => data.kind === 'classes' && rows.truth[row] !== null && rows.truth[row] !== rows.prediction[row];
