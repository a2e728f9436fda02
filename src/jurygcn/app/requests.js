// The data of the page, and requests to the server. Every request names the annotator and this tab.
const data = { kind: 'classes', classes: [], first: 1, ...JSON.parse(byId('page-data').textContent) };
const me = { annotator: '', tab: '' };

class Refusal extends Error {
  constructor(status, words) { super(words); this.status = status; }
}

// A random key; crypto.randomUUID does not exist on pages that other machines load without encryption.
function randomKey() {
  return [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, '0')).join('');
}

function remembered(store, name) {
  try { return store.getItem(name) ?? ''; } catch { return ''; } // storage may be disabled
}

function remember(store, name, value) {
  try { store.setItem(name, value); } catch { /* then it is asked again */ }
}

async function ask(path, body = null) {
  const options = { cache: 'no-store', credentials: 'omit' };
  if (body) Object.assign(options, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify({ ...me, ...body }) });
  const address = body ? path : `${path}?${new URLSearchParams(me)}`;
  const reply = await fetch(address, options);
  const isJson = (reply.headers.get('Content-Type') ?? '').startsWith('application/json');
  const found = isJson ? await reply.json() : { error: await reply.text() };
  if (!reply.ok) throw new Refusal(reply.status, found.error);
  return found;
}

const wait = (milliseconds) => new Promise((resolve) => { setTimeout(resolve, milliseconds); });

// Repeats a request until the server answers. It carries its own key, so a repetition changes nothing.
async function askUntilAnswered(path, body) {
  for (let pause = 300; ; pause = Math.min(3000, 2 * pause)) {
    try {
      const found = await ask(path, body);
      alarm('');
      return found;
    } catch (error) {
      if (error instanceof Refusal) throw error;
      alarm('Not saved yet: the server does not answer. This page tries again until it does.');
      await wait(pause);
    }
  }
}

function alarm(words) {
  byId('alarm').textContent = words;
  byId('alarm').hidden = !words;
}

function say(words) { byId('status').textContent = words; }
