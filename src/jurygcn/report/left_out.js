// What left-out labels say: expected accuracy by class, confusion, calibration, suspicious labels.
function recallChart(found) {
  const { labels, recall, lower, upper } = found.classes;
  const [width, left, right] = [340, 118, 64];
  const shown = labels.map((_, c) => c).filter((c) => labels[c]);
  const height = 26 * shown.length + 22;
  const x = (value) => left + value * (width - left - right);
  const svg = draw('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': 'Expected accuracy by true class' });
  shown.forEach((c, k) => {
    const middle = 26 * k + 13;
    const words = `${className(c)}: ${percent(recall[c])} of ${whole(labels[c])} left-out labels, interval ${percent(lower[c])} to ${percent(upper[c])}`;
    svg.append(
      draw('text', { class: 'tick', x: left - 6, y: middle + 4, 'text-anchor': 'end' }, squeeze(className(c), 17), draw('title', {}, className(c))),
      draw('line', { class: 'grid', x1: x(0), x2: x(1), y1: middle, y2: middle }),
      draw('line', { class: 'span', x1: x(lower[c]), x2: x(upper[c]), y1: middle, y2: middle }, draw('title', {}, words)),
      draw('circle', { class: 'point', cx: x(recall[c]), cy: middle, r: 4.5 }, draw('title', {}, words)),
      draw('text', { class: 'tick', x: width - right + 6, y: middle + 4 }, `of ${whole(labels[c])}`),
    );
  });
  const base = height - 6;
  for (const at of [0, 0.5, 1]) svg.append(draw('text', { class: 'tick', x: x(at), y: base, 'text-anchor': 'middle' }, `${100 * at} %`));
  return figure('Expected accuracy by true class', `With ${percent(found.level).replace('.0', '')} intervals: few labels of a class leave much open.`, svg);
}

function confusionChart(found) {
  const { confusion } = found;
  const size = confusion.length;
  if (size > 15) return null;
  const largest = Math.max(1, ...confusion.flat());
  const cell = (value, own) => {
    const box = make('td', { class: own ? 'own' : null }, value ? String(value) : '');
    box.style.setProperty('--share', value / largest);
    return box;
  };
  const table = make('table', { class: 'confusion' },
    make('thead', {}, make('tr', {}, make('th', {}, 'label'), confusion.map((_, c) => make('th', { scope: 'col' }, swatch(c))))),
    make('tbody', {}, confusion.map((row, r) => make('tr', {}, make('th', { scope: 'row' }, swatch(r)), row.map((value, c) => cell(value, r === c))))));
  return figure('Which classes are confused', 'Rows: left-out labels. Columns: what jurors that did not see them predict.', make('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Table of confused classes' }, table));
}

function nodeLink(node) {
  return rowOf.has(node) ? make('button', { type: 'button', class: 'link', onclick: () => choose(node, true) }, nameOf(node)) : make('span', {}, nameOf(node));
}

function reasons(sentence, against, suggested) {
  const links = against.flatMap((node, k) => (k ? [', ', nodeLink(node)] : [nodeLink(node)]));
  const said = sentence ? [`${sentence}. `] : [];
  return links.length ? [...said, `Labels that speak for ${className(suggested)}: `, ...links] : said;
}

function suspiciousTable({ node, label, suggested, wrong, against, neighbours, more, words }) {
  const rowsShown = node.map((which, k) => make('tr', {},
    make('td', {}, nodeLink(which)), make('td', { 'data-name': 'label' }, classLabel(label[k])), make('td', { 'data-name': 'suggested' }, classLabel(suggested[k])),
    make('td', { class: 'number', 'data-name': 'wrong' }, percent(wrong[k])), make('td', { class: 'why' }, reasons(neighbours[k], against[k], suggested[k]))));
  const headings = [['Node'], ['Label'], ['Suggested'], ['Wrong', 'number'], ['Why']];
  const table = make('table', {}, make('thead', {}, make('tr', {}, headings.map(([text, kind]) => make('th', { scope: 'col', class: kind ?? null }, text)))), make('tbody', {}, rowsShown));
  return make('div', { class: 'panel', id: 'suspicious' }, make('h3', {}, 'Labels that may be wrong'), make('p', { class: 'quiet' }, words),
    node.length ? make('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Table of labels that may be wrong' }, table) : null,
    more ? make('p', { class: 'quiet' }, `${whole(more)} more are not shown.`) : null);
}

function startLeftOut() {
  const found = data.left_out;
  byId('left-out').hidden = !found;
  if (!found) return;
  byId('left-out-words').textContent = `${found.words} ${found.calibration}`;
  byId('left-out-charts').append(...[recallChart(found), confusionChart(found)].filter(Boolean));
  byId('left-out-charts').after(suspiciousTable(found.suspicious));
}
