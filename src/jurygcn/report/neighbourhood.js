// One node: its verdict, its neighbours, and the labels with most influence on its prediction.
const SPACE = 440;
const CENTRE = SPACE / 2;
const FEW = 8; // the most excluded labels to list
const RING = 20; // the most neighbours to draw

function details(row) {
  if (row >= data.details.count) return { pValues: null, drivers: null, links: [] };
  const indices = data.details.drivers ? data.details.drivers[row] : null;
  const drivers = indices && indices.map((index, k) => ({
    node: data.training.node[index], label: data.training.label[index], support: data.details.support[row][k],
  }));
  const known = data.details.links && data.details.links.rows[row];
  const links = known ? known.node.map((node, k) => ({
    node, direct: known.direct[k], through: known.through[k], without: known.without[k], support: known.direct[k] + known.through[k],
  })).sort((a, b) => Math.abs(b.support) - Math.abs(a.support)) : [];
  return { pValues: data.details.p_values ? data.details.p_values[row] : null, drivers, links };
}

// The class to show for a node: its label if it was trained on, else its prediction.
function standing(node) {
  const row = rowOf.get(node);
  const index = trainingIndexOf.get(node);
  const label = index !== undefined ? data.training.label[index] : null;
  const prediction = row !== undefined ? rows.prediction[row] : null;
  return { row, trained: index !== undefined, label, prediction, shown: label ?? prediction };
}

function describe(node) {
  const { trained, label, prediction } = standing(node);
  const say = (value) => (data.kind === 'classes' ? className(value) : number(value));
  const words = [nameOf(node)];
  if (prediction !== null) words.push(`predicted ${say(prediction)}`);
  if (trained) words.push(`training label ${say(label)}`);
  if (prediction === null && !trained) words.push('not on this page');
  return words.join(', ');
}

function spot(node, x, y, radius, extra = '') {
  const { row, trained, shown } = standing(node);
  const [back, ink] = colourOf(shown);
  const common = { class: 'shape', fill: back, stroke: 'var(--panel)', 'stroke-width': 2 };
  const shape = trained
    ? draw('rect', { ...common, x: x - radius, y: y - radius, width: 2 * radius, height: 2 * radius, rx: 3 })
    : draw('circle', { ...common, cx: x, cy: y, r: radius });
  const code = data.kind === 'classes' && shown !== null ? String(shown) : '';
  const text = draw('text', { x, y: y + radius * 0.36, 'text-anchor': 'middle', 'font-size': radius, 'font-weight': 650 }, code);
  text.style.fill = ink;
  const label = describe(node) + extra;
  const group = draw('g', { class: 'spot', 'aria-label': label }, draw('title', {}, label), shape, text);
  if (row !== undefined) {
    fill(group, { tabindex: '0', role: 'button', onclick: () => choose(node, true), onkeydown: (event) => {
      if (event.key === 'Enter' || event.key === ' ') { event.preventDefault(); choose(node, true); }
    } }, []);
  }
  return group;
}

function around(count, radius, turn = -Math.PI / 2) {
  return Array.from({ length: count }, (_, k) => {
    const angle = turn + (2 * Math.PI * k) / Math.max(1, count);
    return [CENTRE + radius * Math.cos(angle), CENTRE + radius * Math.sin(angle)];
  });
}

function picture(node, neighbours, drivers, links, onLink) {
  const svg = draw('svg', { viewBox: `0 0 ${SPACE} ${SPACE}`, role: 'group', 'aria-label': `Neighbourhood of ${nameOf(node)}` });
  const near = neighbours.slice(0, RING);
  const far = drivers.filter((driver) => !near.includes(driver.node) && driver.node !== node);
  const place = new Map([[node, [CENTRE, CENTRE]]]);
  around(near.length, 105).forEach((at, k) => place.set(near[k], at));
  around(far.length, 192, -Math.PI / 2 + Math.PI / Math.max(1, far.length)).forEach((at, k) => place.set(far[k].node, at));
  const line = (a, b, attributes) => {
    const [[x1, y1], [x2, y2]] = [place.get(a), place.get(b)];
    return draw('line', { x1, y1, x2, y2, ...attributes });
  };
  const seen = new Set(near);
  for (const a of near) for (const b of neighboursOf(a)) if (a < b && seen.has(b)) svg.append(line(a, b, { class: 'link' }));
  const linkTo = new Map(links.map((link) => [link.node, link]));
  const strongest = Math.max(1e-12, ...links.map((link) => Math.abs(link.support)));
  for (const a of near) {
    const link = linkTo.get(a);
    if (!link) { svg.append(line(node, a, { class: 'own' })); continue; }
    const width = 1.5 + (6 * Math.abs(link.support)) / strongest;
    const label = `Edge to ${nameOf(a)}, support ${signed(link.support)}`;
    const visible = line(node, a, { class: link.support >= 0 ? 'own-for' : 'own-against', 'stroke-width': width });
    const wide = line(node, a, { class: 'hit', 'stroke-width': 16 });
    svg.append(draw('g', { class: 'edge-choice', tabindex: '0', role: 'button', 'aria-label': label, 'data-link': a, onclick: () => onLink(link), onkeydown: (event) => {
      if (event.key === 'Enter' || event.key === ' ') { event.preventDefault(); onLink(link); }
    } }, draw('title', {}, label), wide, visible));
  }
  const most = Math.max(1e-12, ...drivers.map((driver) => Math.abs(driver.support)));
  for (const { node: other, support } of drivers) {
    if (other === node || !place.has(other)) continue;
    const width = 1 + (5 * Math.abs(support)) / most;
    svg.append(line(node, other, { class: support >= 0 ? 'for' : 'against', 'stroke-width': width, 'stroke-opacity': 0.75 }));
  }
  const supportOf = new Map(drivers.map((driver) => [driver.node, driver.support]));
  for (const [other, [x, y]] of place) {
    if (other === node) continue;
    const support = supportOf.get(other);
    svg.append(spot(other, x, y, near.includes(other) ? (near.length > 14 ? 12 : 15) : 14, support === undefined ? '' : `, support ${signed(support)}`));
    if (near.length <= 12 || support !== undefined) {
      svg.append(draw('text', { x, y: y + 25, 'text-anchor': 'middle', 'font-size': 10, class: 'tick caption' }, squeeze(nameOf(other), 13)));
    }
  }
  svg.append(draw('circle', { cx: CENTRE, cy: CENTRE, r: 27, fill: 'none', stroke: 'var(--ink)', 'stroke-width': 2.5 }), spot(node, CENTRE, CENTRE, 22));
  return svg;
}

const signed = (value) => `${value < 0 ? '−' : '+'}${Math.abs(value).toPrecision(2)}`;

function meter(from, to, colour, middle = false) {
  const bar = make('span');
  Object.assign(bar.style, { left: `${100 * from}%`, width: `${100 * (to - from)}%`, background: colour });
  return make('span', { class: 'meter', 'aria-hidden': 'true' }, bar, middle ? make('span', { class: 'middle' }) : null);
}

function labelList(row, pValues) {
  const inside = rows.sets[rows.set[row]];
  const item = (c) => make('li', {},
    make('span', { class: 'who', title: className(c) }, swatch(c), make('span', {}, className(c) === String(c) ? '' : className(c))),
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

function driverList(drivers) {
  const title = make('h4', {}, 'Labels with most influence');
  if (drivers === null) return [title, make('p', { class: 'quiet' }, 'Not available for this node; see the notes at the top of the page.')];
  const most = Math.max(1e-12, ...drivers.map((driver) => Math.abs(driver.support)));
  const items = drivers.map(({ node, label, support }) => {
    const half = Math.abs(support) / most / 2;
    const bar = support >= 0 ? meter(0.5, 0.5 + half, 'var(--right)', true) : meter(0.5 - half, 0.5, 'var(--target)', true);
    return make('li', {}, make('span', { class: 'who' }, data.kind === 'classes' ? swatch(label) : null, nodeLink(node)), bar,
      make('span', { class: 'value' }, signed(support)));
  });
  const what = data.kind === 'classes' ? 'the probability of the predicted class' : 'the prediction';
  return [title, make('p', { class: 'quiet' }, `How much ${what} drops when the label is left out. Plus supports the prediction, minus opposes it.`),
    make('ul', { class: 'measures drivers' }, items)];
}

// The edges of the node by influence; choosing one says what would be predicted without it.
function linkList(node, links, said) {
  if (!links.length) return [];
  const most = Math.max(1e-12, ...links.map((link) => Math.abs(link.support)));
  const items = links.map((link) => {
    const half = Math.abs(link.support) / most / 2;
    const bar = link.support >= 0 ? meter(0.5, 0.5 + half, 'var(--right)', true) : meter(0.5 - half, 0.5, 'var(--target)', true);
    const open = make('button', { type: 'button', class: 'link', onclick: () => said(link) }, nameOf(link.node));
    return make('li', {}, make('span', { class: 'who' }, data.kind === 'classes' ? swatch(standing(link.node).shown) : null, open), bar,
      make('span', { class: 'value' }, signed(link.support)));
  });
  return [make('h4', {}, 'Edges with most influence'),
    make('p', { class: 'quiet' }, 'Choose an edge, here or in the picture, to see what would happen without it.'),
    make('ul', { class: 'measures' }, items), make('p', { class: 'without', id: 'without', role: 'status' })];
}

function withoutLink(node, link) {
  const row = rowOf.get(node);
  const before = rows.prediction[row];
  const part = (value, how) => `${value ? signed(-value) : 'nothing'} ${how}`;
  const parts = `${part(link.direct, 'by message passing')}, ${part(link.through, 'through training')}`;
  if (data.kind !== 'classes') return `Without the edge to ${nameOf(link.node)} the prediction would change by ${signed(-link.support)}: ${parts}.`;
  const now = link.without === before ? `would still be ${className(before)}` : `would change to ${className(link.without)}`;
  return `Without the edge to ${nameOf(link.node)} the prediction ${now}. The probability of ${className(before)} would change by ${signed(-link.support)}: ${parts}.`;
}

function sayWithout(node, link) {
  byId('without').textContent = withoutLink(node, link);
  for (const group of document.querySelectorAll('[data-link]')) group.classList.toggle('chosen', group.getAttribute('data-link') === String(link.node));
}

function nodeLink(node) {
  const name = nameOf(node);
  if (!rowOf.has(node)) return make('span', {}, name);
  return make('button', { type: 'button', class: 'link', title: describe(node), onclick: () => choose(node, true) }, name);
}

function facts(row) {
  const known = new Set(['node', 'set', 'trained']);
  const entries = data.columns.filter((column) => !known.has(column.key)).map((column) => make('div', {},
    make('dt', { title: column.help }, column.title), make('dd', {}, cell(column, row))));
  return make('dl', { class: 'facts' }, entries);
}

function neighbourList(node, neighbours, degree) {
  const title = make('h4', {}, `Neighbours (${whole(degree)})`);
  if (!neighbours.length) {
    return [title, make('p', { class: 'quiet' }, degree ? 'Not available for this node: the graph has too many edges for one page.' : 'None.')];
  }
  const chips = neighbours.slice(0, 40).filter((other) => rowOf.has(other)).map((other) => make('button', { type: 'button', title: describe(other), onclick: () => choose(other, true) },
    data.kind === 'classes' ? swatch(standing(other).shown) : null, make('span', {}, nameOf(other))));
  const drawn = Math.min(RING, neighbours.length);
  const rest = degree > drawn ? make('p', { class: 'quiet' }, `${drawn} of ${whole(degree)} are drawn.`) : null;
  return [title, rest, make('div', { class: 'chips' }, chips)];
}

function key(drivers, links) {
  const sample = (child) => draw('svg', { viewBox: '0 0 26 12', 'aria-hidden': 'true' }, child);
  const line = (name) => draw('line', { x1: 0, x2: 26, y1: 6, y2: 6, class: name, 'stroke-width': 3 });
  const box = draw('rect', { x: 7, y: 0, width: 12, height: 12, rx: 2, fill: NO_COLOUR[0] });
  const parts = [[draw('circle', { cx: 13, cy: 6, r: 6, fill: NO_COLOUR[0] }), 'judged'], [box, 'trained on'], [line('own'), 'edge']];
  if (links.length) parts.push([line('own-for'), 'edge that supports'], [line('own-against'), 'edge that opposes']);
  if (drivers) parts.push([line('for'), 'label that supports'], [line('against'), 'label that opposes']);
  const what = data.kind === 'classes' ? make('span', {}, 'Number and colour: class') : null;
  return make('div', { class: 'key' }, what, parts.map(([child, words]) => make('span', {}, sample(child), words)));
}

function showNode(node) {
  const row = rowOf.get(node);
  const { pValues, drivers, links } = details(row);
  const said = (link) => sayWithout(node, link);
  const classOf = (other) => standing(other).shown ?? Infinity;
  const neighbours = [...neighboursOf(node)].sort((a, b) => classOf(a) - classOf(b) || a - b);
  const name = nameOf(node);
  byId('node').replaceChildren(...[
    make('h3', { id: 'node-title' }, rows.name && name !== String(node) ? `${name} (node ${node})` : `Node ${name}`),
    rows.trained[row] ? make('p', { class: 'quiet' }, 'The model was trained on this node’s label. The juror that left it out does not vote on it.') : null,
    facts(row),
    picture(node, neighbours, drivers ?? [], links, said),
    key(drivers, links),
    ...linkList(node, links, said),
    ...(data.kind === 'classes' ? labelList(row, pValues) : []),
    ...driverList(drivers),
    ...neighbourList(node, neighbours, rows.degree[row]),
  ].filter((part) => part !== null));
}
