// The table of nodes, with search, filter, sorting and pages.
const PAGE = 20;
const view = { order: [...rows.node.keys()], page: 0, key: null, down: true, words: '', filter: 'all', chosen: null };

const FILTERS = data.kind === 'classes'
  ? {
    all: ['All nodes', () => true],
    wrong: ['Wrong predictions', isWrong],
    open: ['More than one label', (row) => rows.size[row] > 1],
    decided: ['One label', (row) => rows.size[row] === 1],
    empty: ['No label fits', (row) => rows.size[row] === 0],
    trained: ['Trained on', (row) => rows.trained[row] === 1],
  }
  : { all: ['All nodes', () => true], trained: ['Trained on', (row) => rows.trained[row] === 1] };

const haystack = (() => {
  const made = new Array(COUNT); // a row's text in lower case, built at first use
  return (row) => {
    if (made[row] === undefined) {
      const words = [String(rows.node[row]), rows.name ? rows.name[row] : ''];
      if (data.kind === 'classes') words.push(className(rows.prediction[row]), className(rows.truth[row]));
      made[row] = words.join('\n').toLowerCase();
    }
    return made[row];
  };
})();

function sortValue(key, row) {
  if (key === 'node') return rows.name ? rows.name[row] : rows.node[row];
  if (key === 'set') return rows.size[row];
  if (data.kind === 'classes' && (key === 'prediction' || key === 'truth')) {
    return rows[key][row] === null ? null : className(rows[key][row]);
  }
  return rows[key][row];
}

// Sorts text with the numbers in it by value; unknown values come last.
const collator = new Intl.Collator('en', { numeric: true });
function compare(a, b, down) {
  if (a === null || b === null) return (a === null) - (b === null);
  const order = typeof a === 'string' ? collator.compare(a, b) : a - b;
  return down ? -order : order;
}

function arrange() {
  const words = view.words.toLowerCase().split(/\s+/).filter(Boolean);
  const keep = FILTERS[view.filter][1];
  view.order = [...rows.node.keys()].filter((row) => keep(row) && words.every((word) => haystack(row).includes(word)));
  if (view.key !== null) {
    const values = new Map(view.order.map((row) => [row, sortValue(view.key, row)]));
    view.order.sort((a, b) => compare(values.get(a), values.get(b), view.down) || a - b);
  }
  view.page = 0;
  showTable();
}

function cell(column, row) {
  const value = rows[column.key][row];
  if (column.kind === 'node') {
    const name = nameOf(rows.node[row]);
    const title = rows.name ? `${name} (node ${rows.node[row]})` : `Node ${name}`;
    return make('button', { type: 'button', class: 'link', title, onclick: () => choose(rows.node[row], true) }, name);
  }
  if (column.kind === 'class') {
    const wrong = column.key === 'truth' && isWrong(row);
    return make('span', {}, classLabel(value), wrong ? make('span', { class: 'mark', title: 'Wrong prediction' }, '✗') : null);
  }
  if (column.kind === 'set') {
    const labels = rows.sets[value];
    if (!labels.length) return make('span', { class: 'quiet' }, 'none');
    const shown = labels.slice(0, 8).map(swatch);
    const more = labels.length > 8 ? make('span', { class: 'quiet' }, `+${labels.length - 8}`) : null;
    const lacks = labels.includes(rows.prediction[row]) ? null
      : make('span', { class: 'mark', title: 'The set lacks the model’s own prediction; see the notes' }, '!');
    return make('span', { class: 'set', title: labels.map(className).join(', ') }, shown, more, lacks);
  }
  if (column.kind === 'share') return share(value);
  if (column.kind === 'number') return column.key === 'truth' && value === null ? '–' : number(value);
  if (column.kind === 'flag') return value ? 'yes' : '';
  return String(value);
}

const isNumeric = (column) => ['share', 'number', 'count'].includes(column.kind);
const styleOf = (column) => (column.kind === 'node' ? 'node' : isNumeric(column) ? 'number' : null);

function showHeadings() {
  byId('headings').replaceChildren(...data.columns.map((column) => {
    const sorted = view.key === column.key;
    const button = make('button', { type: 'button', title: column.help, 'data-key': column.key }, column.title,
      make('span', { class: 'order', 'aria-hidden': 'true' }, sorted ? (view.down ? ' ↓' : ' ↑') : ''));
    button.addEventListener('click', () => {
      view.down = sorted ? !view.down : isNumeric(column) || column.kind === 'set' || column.kind === 'flag';
      view.key = column.key;
      arrange();
      showHeadings();
      byId('headings').querySelector(`[data-key="${column.key}"]`).focus();
    });
    const state = sorted ? (view.down ? 'descending' : 'ascending') : 'none';
    return make('th', { scope: 'col', class: styleOf(column), 'aria-sort': state }, button);
  }));
}

function showTable() {
  const first = view.page * PAGE;
  const visible = view.order.slice(first, first + PAGE);
  const body = visible.map((row) => make('tr', { 'data-node': rows.node[row], class: rows.node[row] === view.chosen ? 'chosen' : null },
    data.columns.map((column) => make('td', { class: styleOf(column) }, cell(column, row)))));
  const nothing = make('tr', {}, make('td', { class: 'none', colspan: data.columns.length }, 'No node matches.'));
  byId('rows').replaceChildren(...(body.length ? body : [nothing]));
  const total = view.order.length;
  byId('shown').textContent = total ? `${whole(first + 1)}–${whole(first + visible.length)} of ${whole(total)}` : '0 nodes';
  byId('previous').disabled = view.page === 0;
  byId('next').disabled = first + PAGE >= total;
  showClipped();
}

function startTable() {
  const named = data.classes.some((name, c) => name !== String(c));
  if (named) byId('classes').append(...data.classes.map((_, c) => classLabel(c)));
  for (const [key, [title]] of Object.entries(FILTERS)) byId('filter').append(make('option', { value: key }, title));
  byId('search').addEventListener('input', (event) => { view.words = event.target.value; arrange(); });
  byId('filter').addEventListener('change', (event) => { view.filter = event.target.value; arrange(); });
  byId('previous').addEventListener('click', () => { view.page -= 1; showTable(); });
  byId('next').addEventListener('click', () => { view.page += 1; showTable(); });
  showHeadings();
  arrange();
  for (const [where, what] of [[window, 'resize'], [byId('table'), 'scroll']]) where.addEventListener(what, showClipped);
  showClipped();
}

// Says that the table goes on to the right, as long as it does.
function showClipped() {
  const table = byId('table');
  const clipped = table.scrollWidth - table.clientWidth - table.scrollLeft > 4;
  table.parentElement.classList.toggle('clipped', clipped);
  byId('clipped').hidden = table.scrollWidth - table.clientWidth <= 4;
}
