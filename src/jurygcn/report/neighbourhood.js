// One node: its verdict, its neighbours, and the labels with most influence on its prediction.

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
    make('p', { class: 'quiet' }, 'Choose an edge, here or in the picture, to see what would happen without it. The part through training is an estimate.'),
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
    key(drivers, undefined, links),
    ...linkList(node, links, said),
    ...(data.kind === 'classes' ? labelList(rows.sets[rows.set[row]], pValues) : []),
    ...driverList(drivers),
    ...neighbourList(node, neighbours, rows.degree[row]),
  ].filter((part) => part !== null));
}
