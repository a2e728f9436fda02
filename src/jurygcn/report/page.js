// The page: headline numbers, diagnostics, the chosen node, light and dark theme.
function choose(node, move = false) {
  if (!rowOf.has(node)) return;
  view.chosen = node;
  for (const row of byId('rows').querySelectorAll('tr')) row.classList.toggle('chosen', row.dataset.node === String(node));
  showNode(node);
  if (!move) return;
  history.replaceState(null, '', `#node=${node}`);
  const panel = byId('node');
  panel.scrollTop = 0;
  panel.focus({ preventScroll: true });
  if (panel.getBoundingClientRect().top > window.innerHeight * 0.7 || panel.getBoundingClientRect().top < 0) panel.scrollIntoView({ block: 'start' });
}

function startHeadline() {
  byId('caution').hidden = !data.caution;
  byId('caution').textContent = data.caution;
  byId('notes').textContent = data.notes.join(' ');
  byId('headline').append(...data.headline.map(({ what, value, note }) => make('div', { class: 'tile' },
    make('div', { class: 'what' }, what), make('div', { class: 'value' }, value), make('div', { class: 'note' }, note))));
  byId('footer').textContent = `Written by jurygcn ${data.version}. This file is self-contained and makes no requests.`;
}

function startCheckup() {
  const words = { good: 'good', care: 'needs attention', unknown: 'not measured' };
  byId('checkup').append(...data.checkup.map(({ title, state, said, advice }) => make('div', { class: 'panel' },
    make('h3', {}, title, make('span', { class: `state ${state}` }, words[state])),
    said.map((sentence) => make('p', {}, sentence)),
    advice.length ? make('ul', {}, advice.map((sentence) => make('li', {}, sentence))) : null)));
}

function fromAddress() {
  const match = /^#node=(\d+)$/.exec(location.hash);
  if (match) choose(Number(match[1]));
}

startTheme();
startHeadline();
startTable();
startCharts();
startLeftOut();
startCheckup();
choose(rows.node[0]);
fromAddress();
window.addEventListener('hashchange', fromAddress);
