// The charts, as SVG.
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
