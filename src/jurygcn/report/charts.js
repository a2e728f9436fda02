// The charts, as SVG.
const BOX = { width: 340, height: 220, left: 44, right: 12, top: 10, bottom: 38 };

function plane(label, xTicks, yTicks, xName, yName) {
  const { width, height, left, right, top, bottom } = BOX;
  const [x0, x1] = [xTicks[0].at, xTicks[xTicks.length - 1].at];
  const [y0, y1] = [yTicks[0].at, yTicks[yTicks.length - 1].at];
  const x = (value) => left + ((value - x0) / (x1 - x0 || 1)) * (width - left - right);
  const y = (value) => height - bottom - ((value - y0) / (y1 - y0 || 1)) * (height - top - bottom);
  const svg = draw('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': label });
  for (const { at, text } of yTicks) {
    svg.append(draw('line', { class: 'grid', x1: left, x2: width - right, y1: y(at), y2: y(at) }),
      draw('text', { class: 'tick', x: left - 5, y: y(at) + 4, 'text-anchor': 'end' }, text));
  }
  for (const { at, text } of xTicks) {
    svg.append(draw('text', { class: 'tick', x: x(at), y: height - bottom + 15, 'text-anchor': 'middle' }, text));
  }
  const middle = (top + height - bottom) / 2;
  svg.append(draw('line', { class: 'axis', x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }),
    draw('text', { class: 'name', x: (left + width - right) / 2, y: height - 5, 'text-anchor': 'middle' }, xName),
    draw('text', { class: 'name', x: 11, y: middle, 'text-anchor': 'middle', transform: `rotate(-90 11 ${middle})` }, yName));
  return { svg, x, y };
}

// About n round numbers from low to high, including the ends.
function ticks(low, high, n, text = (value) => String(Number(value.toPrecision(6)))) {
  const span = high - low || 1;
  const power = 10 ** Math.floor(Math.log10(span / n));
  const step = [1, 2, 5, 10].map((k) => k * power).find((s) => span / s <= n);
  const found = [];
  for (let k = Math.floor(low / step + 1e-9); k <= Math.ceil(high / step - 1e-9); k += 1) found.push({ at: k * step, text: text(k * step) });
  return found;
}

const percentTicks = (low, high, n) => ticks(low, high, n, (value) => `${Math.round(100 * value)}`);

function figure(title, words, svg, legend = null) {
  return make('figure', { class: 'panel' }, make('figcaption', {}, make('h3', {}, title), make('p', { class: 'quiet' }, words)), legend, svg);
}

function histogram() {
  const { edges, series, name, left_out: leftOut } = data.charts.scores;
  const names = Object.keys(series);
  const colours = { right: 'right', inside: 'right', wrong: 'wrong', outside: 'wrong', unknown: 'unknown' };
  const said = { unknown: 'not tested', right: 'right', wrong: 'wrong', inside: 'inside the interval', outside: 'outside the interval' };
  const totals = edges.slice(1).map((_, bar) => names.reduce((sum, key) => sum + series[key][bar], 0));
  const { svg, x, y } = plane(`Distribution of ${name} over nodes`, ticks(edges[0], edges[edges.length - 1], 5),
    ticks(0, Math.max(1, ...totals), 4), name, 'nodes');
  edges.slice(1).forEach((upper, bar) => {
    let base = 0;
    for (const key of names) {
      const count = series[key][bar];
      if (count) {
        svg.append(draw('rect', {
          class: `fill-${colours[key]}`, x: x(edges[bar]) + 0.75, width: Math.max(1, x(upper) - x(edges[bar]) - 1.5),
          y: y(base + count), height: y(base) - y(base + count),
        }, draw('title', {}, `${name} ${number(edges[bar])} to ${number(upper)}: ${whole(count)} ${said[key]}`)));
      }
      base += count;
    }
  });
  const total = (key) => whole(series[key].reduce((sum, count) => sum + count, 0));
  const legend = make('div', { class: 'legend' }, names.map((key) => make('span', {}, make('i', { class: colours[key] }), `${said[key]} (${total(key)})`)));
  const rest = leftOut ? ` ${whole(leftOut)} infinite values are left out.` : '';
  return figure('Distribution of scores', `High ${name} means uncertain, so errors should be on the right.${rest}`, svg, legend);
}

function sizes() {
  const counts = data.charts.sizes.counts;
  const last = counts.reduce((found, count, size) => (count ? size : found), 1);
  const every = Math.ceil((last + 1) / 12);
  const marks = [{ at: -0.5, text: '' }];
  for (let size = 0; size <= last; size += every) marks.push({ at: size, text: String(size) });
  marks.push({ at: last + 0.5, text: '' });
  const { svg, x, y } = plane('Number of labels in the sets', marks, ticks(0, Math.max(...counts), 4), 'labels in the set', 'nodes');
  counts.slice(0, last + 1).forEach((count, size) => svg.append(draw('rect', {
    class: 'fill-right', x: x(size - 0.4), width: x(size + 0.4) - x(size - 0.4), y: y(count), height: y(0) - y(count),
  }, draw('title', {}, `${whole(count)} nodes with ${size} labels`)), count && last < 12
    ? draw('text', { class: 'tick', x: x(size), y: Math.max(y(count) - 3, 10), 'text-anchor': 'middle' }, whole(count)) : ''));
  return figure('Set sizes', `Label sets at level ${data.alpha}. An empty set means that no class fits.`, svg);
}

function curve(xs, ys, title, words, xName, yName, { low, diagonal, tips, counts = null }) {
  const left = diagonal ? low : 0;
  const { svg, x, y } = plane(`${title}. ${words}`, percentTicks(left, 1, 5), percentTicks(low, 1, 5), xName, yName);
  if (diagonal) svg.append(draw('line', { class: 'goal', x1: x(left), y1: y(left), x2: x(1), y2: y(1) }));
  svg.append(draw('polyline', { class: 'curve', points: xs.map((value, k) => `${x(value)},${y(ys[k])}`).join(' ') }));
  xs.forEach((value, k) => svg.append(draw('circle', { class: 'point', cx: x(value), cy: y(ys[k]), r: diagonal ? 4 : 2 }, draw('title', {}, tips(k)))));
  if (counts) {
    xs.forEach((value, k) => svg.append(draw('text', {
      class: 'tick caption', x: x(value), y: y(ys[k]) + (ys[k] > 0.85 ? 16 : -8), 'text-anchor': 'middle',
    }, whole(counts[k]))));
  }
  return figure(title, words, svg);
}

const roundDown = (values) => Math.max(0, Math.floor(10 * Math.min(...values) - 0.01) / 10);

function reliabilityChart() {
  const { confidence, accuracy, count, ece } = data.charts.reliability;
  return curve(confidence, accuracy, 'Reliability',
    `The model is calibrated on the dashed line and underconfident above it. Expected calibration error ${percent(ece)}. Beside the points: numbers of test nodes.`,
    'predicted probability, %', 'accuracy, %',
    { low: 0, diagonal: true, counts: count, tips: (k) => `${whole(count[k])} nodes: probability ${percent(confidence[k])}, accuracy ${percent(accuracy[k])}` });
}

function levelChart() {
  const { target, coverage, size, nodes } = data.charts.levels;
  return curve(target, coverage, 'Coverage of label sets', `Share of the sets of ${whole(nodes)} test nodes that contain the true label, by target coverage. Dashed: coverage equals the target.`,
    'target, %', 'coverage, %',
    { low: roundDown([...coverage, ...target]), diagonal: true, tips: (k) => `target ${percent(target[k])}, coverage ${percent(coverage[k])}, ${size[k]} labels on average` });
}

function riskChart() {
  const { kept, accuracy, nodes } = data.charts.risk;
  return curve(kept, accuracy, 'Selective accuracy', `Accuracy on the least uncertain of ${whole(nodes)} test nodes, if people decide the others.`,
    'nodes kept, %', 'accuracy, %',
    { low: roundDown(accuracy), diagonal: false, tips: (k) => `${whole(Math.round(kept[k] * nodes))} nodes (${percent(kept[k])}) kept: accuracy ${percent(accuracy[k])}` });
}

function groupChart(group) {
  const { left, right, width } = { ...BOX, left: 118, right: 92 };
  const height = 26 * group.group.length + 24;
  const x = (value) => left + value * (width - left - right);
  const asked = 1 - data.alpha;
  const svg = draw('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': `Coverage ${group.title}` });
  group.group.forEach((name, k) => {
    const top = 26 * k + 4;
    svg.append(
      draw('text', { class: 'tick', x: left - 6, y: top + 13, 'text-anchor': 'end' }, squeeze(name, 20), draw('title', {}, name)),
      draw('rect', { class: 'fill-right', x: left, y: top, height: 18, width: Math.max(1, x(group.coverage[k]) - left) },
        draw('title', {}, `${name}: ${percent(group.coverage[k])} of ${whole(group.nodes[k])} nodes`)),
      draw('text', { class: 'tick', x: width - right + 5, y: top + 13 }, `${percent(group.coverage[k])} of ${whole(group.nodes[k])}`),
    );
  });
  svg.append(draw('line', { class: 'goal', x1: x(asked), x2: x(asked), y1: 0, y2: height - 20 }),
    draw('text', { class: 'tick', x: x(asked), y: height - 6, 'text-anchor': 'middle' }, `target: ${percent(asked)}`));
  return figure(`Coverage ${group.title}`, 'The target holds on average over all nodes; groups may differ.', svg);
}

function startCharts() {
  const { charts } = data;
  const shown = [histogram()];
  if (charts.reliability) shown.push(reliabilityChart());
  if (charts.levels) shown.push(levelChart());
  if (charts.risk) shown.push(riskChart());
  if (charts.sizes) shown.push(sizes());
  shown.push(...charts.groups.map(groupChart));
  byId('charts').append(...shown);
}
