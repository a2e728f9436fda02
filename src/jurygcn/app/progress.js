// Progress: counts, the curve of estimated accuracy, answers worth a second look.
function accuracyChart(points) {
  const last = points.at(-1);
  const words = 'Each label is predicted by a juror that has not seen it. Band: 90 % interval. The labelled nodes were chosen because they are '
    + 'informative. They are no random sample, so the accuracy on the whole graph can differ.';
  const title = last ? `Estimated accuracy: ${percent(last.accuracy)} after ${whole(last.labels)} labels` : 'Estimated accuracy';
  if (points.length < 2) return figure(title, last ? words : 'The curve begins with the first answers that the model has learned.', '');
  const { svg, x, y } = plane(`${title}. ${words}`, ticks(0, last.labels, 5), percentTicks(0, 1, 5), 'labels', 'accuracy of left-out labels, %');
  const along = (get) => points.map((point) => `${x(point.labels)},${y(get(point))}`);
  svg.append(draw('polygon', { class: 'band', points: [...along((p) => p.upper), ...along((p) => p.lower).reverse()].join(' ') }),
    draw('polyline', { class: 'curve', points: along((p) => p.accuracy).join(' ') }));
  for (const p of points) {
    svg.append(draw('circle', { class: 'point', cx: x(p.labels), cy: y(p.accuracy), r: 2.5 },
      draw('title', {}, `${whole(p.labels)} labels: ${percent(p.accuracy)} (${percent(p.lower)} to ${percent(p.upper)})`)));
  }
  return figure(title, words, svg);
}

function againList(entries) {
  if (!entries.length) return make('p', { class: 'quiet' }, 'Nothing so far.');
  return make('ul', {}, entries.map((entry) => {
    const why = entry.why === 'disagreement'
      ? `disagreement: ${Object.entries(entry.said).map(([who, c]) => `${who} says ${className(c)}`).join(', ')}`
      : `labelled ${className(entry.label)}; without this label the model says ${className(entry.suggested)} (${className(entry.label)}: ${percent(entry.chance)})`;
    return make('li', {}, make('button', { type: 'button', class: 'link', 'data-node': entry.node, onclick: () => look(entry.node) }, entry.name), make('div', { class: 'quiet' }, why));
  }));
}

function countList(state) {
  const most = Math.max(1, ...state.per_class);
  const bars = state.per_class.map((count, c) => make('li', {}, make('span', { class: 'who' }, swatch(c), make('span', {}, breakable(className(c)))),
    meter(0, count / most, colourOf(c)[0]), make('span', { class: 'value' }, whole(count))));
  const people = Object.entries(state.annotators).map(([name, { label, unknown, skip }]) => make('li', {},
    `${name}: ${whole(label)} labels, ${whole(unknown)} don’t know, ${whole(skip)} skipped`));
  const given = state.given ? [make('li', {}, `from a file: ${whole(state.given)} labels`)] : [];
  return [make('ul', { class: 'measures' }, bars), make('h3', {}, 'People'), make('ul', {}, [...people, ...given])];
}

// Redraws only what has changed, so that the focus stays where it is.
const drawn = {};
function once(id, value, build) {
  const text = JSON.stringify(value);
  if (drawn[id] === text) return;
  drawn[id] = text;
  byId(id).replaceChildren(...[build(value)].flat());
}

function showState(state) {
  if (!state.ready) return;
  byId('progress').hidden = false;
  byId('overview').hidden = false;
  byId('bar').max = state.nodes;
  byId('bar').value = state.labels;
  const training = state.training ? ', the model is learning' : '';
  byId('done').textContent = `${whole(state.labels)} of ${whole(state.nodes)} nodes have a label; ${whole(state.mine.label)} ${state.mine.label === 1 ? 'answer' : 'answers'} by you${training}`;
  byId('undo').disabled = state.mine.label + state.mine.unknown + state.mine.skip === 0;
  if (state.note) alarm(state.note);
  once('curve', state.curve, accuracyChart);
  once('again', state.again, againList);
  once('counts', { per_class: state.per_class, annotators: state.annotators, given: state.given }, countList);
}
