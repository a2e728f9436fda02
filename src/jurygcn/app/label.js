// The page: who labels, answers by button and by key.
const POLL = 3000; // milliseconds between looks at the progress
let saving = false;

async function during(work) {
  if (saving) return;
  saving = true;
  document.body.classList.add('saving');
  try {
    await work();
  } catch (error) {
    if (!(error instanceof Refusal)) alarm('The server does not answer. Is it still running?');
    else if (error.status === 409) { alarm(error.message); await showNext(); }
    else if (error.status === 404) alarm('The server was started again. Open the address that it printed; what this page shows is not saved.');
    else alarm(`Not saved: ${error.message}`);
  } finally {
    saving = false;
    document.body.classList.remove('saving');
  }
}

function showReply({ page, state }) {
  showState(state);
  showPage(page);
}

async function showNext() { showReply(await ask('api/next', {})); }

function answer(kind, label = null) {
  return during(async () => {
    if (!shown.page) return;
    const { node, name, revise = false } = shown.page;
    shown.page.request ??= randomKey();
    const body = { node, kind, label, comment: byId('comment').value, request: shown.page.request, revise };
    const found = await askUntilAnswered('api/answer', body);
    alarm('');
    showReply(found);
    const what = { label: className(label), unknown: 'not known', skip: 'skipped' }[kind];
    say(`${name}: ${what}. ${found.page ? `Next: ${found.page.name}.` : 'No node is left.'}`);
  });
}

function undo() {
  return during(async () => {
    const found = await ask('api/undo', {});
    alarm('');
    showReply(found);
    say(`Undone: ${found.page.name}.`);
  });
}

function look(node) {
  return during(async () => {
    showReply(await ask('api/look', { node }));
    byId('task-title').focus();
  });
}

function toggleHints() {
  shown.hints = !shown.hints;
  remember(localStorage, 'jurygcn-hints', shown.hints ? '' : 'hidden');
  showHints();
  if (shown.page) { showNeighbourhood(shown.page); showVerdict(shown.page.verdict); }
}

function showHints() {
  byId('hints').replaceChildren(shown.hints ? 'Hide the model' : 'Show the model', make('kbd', {}, 'H'));
  byId('hints').setAttribute('aria-pressed', String(shown.hints));
}

function startChoices() {
  const many = data.classes.length > 9;
  byId('find').hidden = !many;
  byId('choices').replaceChildren(...data.classes.map((name, c) => make('button', { type: 'button', 'data-label': c, onclick: () => answer('label', c) },
    swatch(c), make('span', {}, breakable(name)))));
}

function filterChoices() {
  const words = byId('filter').value.toLowerCase();
  for (const button of byId('choices').children) button.hidden = !data.classes[Number(button.dataset.label)].toLowerCase().includes(words);
}

function onKey(event) {
  const typing = event.target instanceof HTMLInputElement || event.target instanceof HTMLTextAreaElement;
  if (event.key === 'Escape' && typing) { event.target.blur(); return; }
  if (event.target === byId('comment') && event.key === 'Enter' && !event.shiftKey) { event.preventDefault(); event.target.blur(); return; }
  if (event.target === byId('filter') && event.key === 'Enter') {
    const first = [...byId('choices').children].find((button) => !button.hidden);
    if (first && byId('filter').value) { byId('filter').value = ''; filterChoices(); byId('filter').blur(); answer('label', Number(first.dataset.label)); }
    return;
  }
  if (typing || event.repeat || event.ctrlKey || event.metaKey || event.altKey || !me.annotator) return;
  const digit = /^[1-9]$/.test(event.key) ? Number(event.key) : 0;
  const actions = {
    0: () => answer('unknown'), s: () => answer('skip'), u: undo, h: toggleHints, c: () => byId('comment').focus(),
    '/': () => byId('filter').focus(), escape: () => { if (shown.page?.revise) during(showNext); },
  };
  const act = digit ? (digit <= data.classes.length ? () => answer('label', digit - 1) : null) : actions[event.key.toLowerCase()];
  if (!act) return;
  event.preventDefault();
  act();
}

function showGraph(graph) {
  if (data.classes.length) return;
  data.classes = graph.classes.map((name, c) => (name === String(c) ? `class ${name}` : name)); // keys count from 1
  document.title = `Label ${graph.name}`;
  byId('title').textContent = `Label ${graph.name}`;
  if (graph.notes.length) byId('footer').prepend(...graph.notes.map((note) => make('p', {}, `${note}.`)));
  startChoices();
}

async function begin() {
  byId('who').hidden = true;
  byId('me').hidden = false;
  byId('me').textContent = me.annotator;
  byId('me').title = 'Change the name';
  for (;;) {
    try {
      const { state, graph } = await ask('api/state');
      if (state.ready) { showGraph(graph); break; }
      byId('wait').hidden = false;
      byId('wait').textContent = `${state.stage} …`;
    } catch (error) {
      alarm(error instanceof Refusal ? error.message : 'The server does not answer. Is it still running?');
    }
    await wait(400);
  }
  alarm('');
  await during(showNext);
}

function askName() {
  byId('who').hidden = false;
  showWork(false);
  byId('wait').hidden = true;
  byId('name').value = me.annotator || remembered(localStorage, 'jurygcn-annotator') || data.annotator;
  byId('name').select();
  byId('name').focus();
}

async function poll() {
  for (;;) {
    await wait(POLL);
    if (!me.annotator || saving || document.hidden) continue;
    try { showState((await ask('api/state')).state); } catch { /* the next answer says so */ }
  }
}

function start() {
  startTheme();
  me.tab = remembered(sessionStorage, 'jurygcn-tab') || randomKey();
  remember(sessionStorage, 'jurygcn-tab', me.tab);
  shown.hints = remembered(localStorage, 'jurygcn-hints') !== 'hidden';
  showHints();
  byId('footer').append(make('p', {}, `jurygcn ${data.version}. Answers are saved on the machine that runs it, as soon as the next node is shown.`));
  byId('who').addEventListener('submit', (event) => {
    event.preventDefault();
    me.annotator = byId('name').value.trim();
    if (!me.annotator) return;
    remember(localStorage, 'jurygcn-annotator', me.annotator);
    remember(sessionStorage, 'jurygcn-annotator', me.annotator);
    byId('name').blur();
    begin();
  });
  byId('me').addEventListener('click', askName);
  byId('unknown').addEventListener('click', () => answer('unknown'));
  byId('skip').addEventListener('click', () => answer('skip'));
  byId('undo').addEventListener('click', undo);
  byId('back').addEventListener('click', () => during(showNext));
  byId('hints').addEventListener('click', toggleHints);
  byId('filter').addEventListener('input', filterChoices);
  document.addEventListener('keydown', onKey);
  me.annotator = remembered(sessionStorage, 'jurygcn-annotator') || data.annotator;
  if (me.annotator) begin(); else askName();
  poll();
}

start();
