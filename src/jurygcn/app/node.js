// The node to label: texts, features, neighbourhood, the model's view.
const shown = { page: null, hints: true, near: new Map(), links: new Map() };

const nameOf = (node) => shown.near.get(node)?.name ?? String(node);
const neighboursOf = (node) => shown.links.get(node) ?? [];
function choose() { /* neighbours cannot be chosen here */ }

function standing(node) {
  const { label = null, prediction = null } = shown.near.get(node) ?? {};
  const guess = shown.hints ? prediction : null;
  return { row: undefined, trained: label !== null, label, prediction: guess, shown: label ?? guess };
}

function describe(node) {
  const { label, prediction } = standing(node);
  const words = [nameOf(node)];
  if (label !== null) words.push(`labelled ${className(label)}`);
  if (prediction !== null) words.push(`predicted ${className(prediction)}`);
  return words.join(', ');
}

function textEntry({ column, kind, text, place }, node) {
  let value = text;
  if (kind === 'link') value = make('a', { href: text, target: '_blank', rel: 'noopener noreferrer nofollow' }, text);
  if (kind === 'image') value = make('img', { src: `picture/${node}/${place}`, alt: `${column}: ${text}` });
  return [make('dt', {}, column), make('dd', {}, value)];
}

function showTask(page) {
  const { node, name, reason, texts, features, before, revise } = page;
  byId('task').dataset.node = node;
  byId('task-title').textContent = name === String(node) ? `Node ${name}` : name;
  byId('why').textContent = revise ? '' : `Chosen because ${reason}.`;
  byId('why').hidden = Boolean(revise);
  byId('mode').hidden = !revise;
  byId('mode').textContent = revise ? 'A second look: an answer here replaces your earlier one.' : '';
  byId('back').hidden = !revise;
  byId('texts').replaceChildren(...(texts.length ? [make('dl', {}, texts.flatMap((entry) => textEntry(entry, node)))] : []));
  byId('features').replaceChildren(...(features.length ? [make('h3', {}, 'Most unusual features'),
    make('dl', {}, features.map((f) => make('div', {}, make('dt', {}, f.name), make('dd', {}, number(f.value)))))] : []));
  byId('comment').value = before?.comment ?? '';
  for (const button of byId('choices').children) button.classList.toggle('before', before?.label === Number(button.dataset.label));
  for (const kind of ['unknown', 'skip']) byId(kind).classList.toggle('before', before?.kind === kind);
  byId('task').classList.remove('new');
  void byId('task').offsetWidth; // restarts the animation
  byId('task').classList.add('new');
}

function showNeighbourhood({ node, near, edges, degree }) {
  shown.near = new Map(near.map((entry) => [entry.node, entry]));
  const others = near.map((entry) => entry.node).filter((other) => other !== node);
  const classOf = (other) => standing(other).shown ?? Infinity;
  others.sort((a, b) => classOf(a) - classOf(b) || a - b);
  shown.links = new Map();
  for (const [a, b] of edges) shown.links.set(a, [...(shown.links.get(a) ?? []), b]);
  const count = degree > others.length ? `${others.length} of ${whole(degree)} neighbours are drawn.` : null;
  byId('neighbourhood').replaceChildren(...[
    degree ? picture(node, others, []) : make('p', { class: 'quiet' }, 'This node has no neighbours.'),
    degree ? key(null, [shown.hints ? 'predicted' : 'not labelled', 'labelled']) : null,
    count ? make('p', { class: 'quiet' }, count) : null,
  ].filter((part) => part !== null));
}

function showVerdict(verdict) {
  const place = byId('verdict');
  place.hidden = !shown.hints;
  if (verdict === null) {
    place.replaceChildren(make('p', { class: 'quiet' }, 'There is no model yet: it comes after the first answers.'));
    return;
  }
  place.replaceChildren(
    make('p', {}, 'The model predicts ', classLabel(verdict.prediction), ` with probability ${percent(verdict.probability)}, from ${whole(verdict.labels)} labels.`),
    ...labelList(verdict.set, verdict.p_values),
    make('p', { class: 'quiet' }, 'The set aims at 90 % coverage. Nodes are chosen actively, so nothing is promised.'));
}

function showWork(yes) {
  for (const id of ['task', 'node']) byId(id).hidden = !yes;
}

function showPage(page) {
  shown.page = page;
  showWork(page !== null);
  if (page === null) {
    byId('wait').hidden = false;
    byId('wait').textContent = 'No node is left for you. Thank you. Undo takes back your last answer; take the labels along below.';
    return;
  }
  byId('wait').hidden = true;
  showTask(page);
  showNeighbourhood(page);
  showVerdict(page.verdict);
}
