// The neighbourhood of a node as a picture. The page defines nameOf, neighboursOf, choose, describe and
// standing(node): { row, trained, label, prediction, shown }; a node without a row cannot be chosen.
const SPACE = 440;
const CENTRE = SPACE / 2;
const RING = 20; // the most neighbours to draw

function spot(node, x, y, radius, extra = '') {
  const { row, trained, shown } = standing(node);
  const [back, ink] = colourOf(shown);
  const common = { class: 'shape', fill: back, stroke: 'var(--panel)', 'stroke-width': 2 };
  const shape = trained
    ? draw('rect', { ...common, x: x - radius, y: y - radius, width: 2 * radius, height: 2 * radius, rx: 3 })
    : draw('circle', { ...common, cx: x, cy: y, r: radius });
  const code = data.kind === 'classes' && shown !== null ? codeOf(shown) : '';
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

function picture(node, neighbours, drivers, links = [], onLink = null) {
  const near = neighbours.slice(0, RING);
  const far = drivers.filter((driver) => !near.includes(driver.node) && driver.node !== node);
  const margin = far.length ? 0 : 72; // without an outer ring
  const box = [margin, margin, SPACE - 2 * margin, SPACE - 2 * margin].join(' ');
  const svg = draw('svg', { viewBox: box, role: 'group', 'aria-label': `Neighbourhood of ${nameOf(node)}` });
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

function signed(value) {
  const size = Math.abs(value);
  if (size === 0) return '0';
  // small numbers would be wider than their column
  return `${value < 0 ? '−' : '+'}${size < 1e-3 ? size.toExponential(0) : size.toPrecision(size < 1e-2 ? 1 : 2)}`;
}

function key(drivers, [circle, square] = ['judged', 'trained on'], links = []) {
  const sample = (child) => draw('svg', { viewBox: '0 0 26 12', 'aria-hidden': 'true' }, child);
  const line = (name) => draw('line', { x1: 0, x2: 26, y1: 6, y2: 6, class: name, 'stroke-width': 3 });
  const box = draw('rect', { x: 7, y: 0, width: 12, height: 12, rx: 2, fill: NO_COLOUR[0] });
  const parts = [[draw('circle', { cx: 13, cy: 6, r: 6, fill: NO_COLOUR[0] }), circle], [box, square], [line('own'), 'edge']];
  if (links.length) parts.push([line('own-for'), 'edge that supports'], [line('own-against'), 'edge that opposes']);
  if (drivers) parts.push([line('for'), 'label that supports'], [line('against'), 'label that opposes']);
  const what = data.kind === 'classes' ? make('span', {}, 'Number and colour: class') : null;
  return make('div', { class: 'key' }, what, parts.map(([child, words]) => make('span', {}, sample(child), words)));
}
