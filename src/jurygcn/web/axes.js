// Axes, ticks and curves of charts, as SVG.
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
