// Live values: one stream of events per page, whose patches are applied once per frame.
//
// A patch is {text, html, attrs, cells, grids}: by key, the text of [data-v], the content of [data-h] (written and escaped by
// the server), attributes of [data-a], changed cells of [data-grid] as [index, letter], and all letters of a grid.
// Elements with data-until (milliseconds since 1970) count down by the server's clock, [data-clock] shows that clock.

const STALE_AFTER = 5000;
const RETRY_FIRST = 1000;
const RETRY_LAST = 15000;

const all = (selector) => document.querySelectorAll(selector);
const quoted = (key) => CSS.escape(key);
// Scripts of other pages may follow a patch: addEventListener("tidegate:patch", …) on document; detail is the patch.
const announce = (patch) => document.dispatchEvent(new CustomEvent("tidegate:patch", { detail: patch }));

let source = null;
let topics = "";
let lastId = "";
let lastEvent = Date.now();
let retry = RETRY_FIRST;
let retryTimer = 0;
let offset = 0; // the server's clock minus ours
let isStale = false;
let queued = [];

export function connect(names) {
  if (!names || !window.EventSource) return;
  topics = names;
  open();
  setInterval(tick, 250);
  // A hidden page gives its connection back: browsers allow six per server.
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => { if (event.persisted) open(); });
}

function open() {
  if (source) return;
  clearTimeout(retryTimer);
  lastEvent = Date.now();
  const query = new URLSearchParams({ on: topics });
  if (lastId) query.set("last", lastId);
  source = new EventSource(`/live?${query}`);
  source.addEventListener("patch", (event) => { heard(event); queue(JSON.parse(event.data)); });
  source.addEventListener("whole", heard);
  source.addEventListener("beat", (event) => { heard(event); offset = Number(event.data) - Date.now(); });
  source.addEventListener("error", () => {
    // After a lost connection the browser tries again by itself; after a refusal it does not.
    if (source?.readyState !== EventSource.CLOSED) return;
    close();
    retryTimer = setTimeout(open, retry);
    retry = Math.min(retry * 2, RETRY_LAST);
  });
}

function close() {
  source?.close();
  source = null;
}

function heard(event) {
  lastEvent = Date.now();
  retry = RETRY_FIRST;
  if (event.lastEventId) lastId = event.lastEventId;
  if (isStale) setStale(false);
}

function queue(patch) {
  if (queued.push(patch) === 1) requestAnimationFrame(() => {
    const patches = queued;
    queued = [];
    for (const one of patches) apply(one);
  });
}

function apply({ text = {}, html = {}, attrs = {}, cells = {}, grids = {} }) {
  for (const [key, value] of Object.entries(text)) {
    for (const element of all(`[data-v="${quoted(key)}"]`)) element.textContent = value;
  }
  for (const [key, value] of Object.entries(html)) {
    for (const element of all(`[data-h="${quoted(key)}"]`)) element.innerHTML = value;
  }
  for (const [key, values] of Object.entries(attrs)) {
    for (const element of all(`[data-a="${quoted(key)}"]`)) {
      for (const [name, value] of Object.entries(values)) {
        if (value === "") element.removeAttribute(name); else element.setAttribute(name, value);
      }
    }
  }
  for (const [key, changed] of Object.entries(cells)) {
    for (const grid of all(`[data-grid="${quoted(key)}"]`)) {
      for (const [index, letter] of changed) setCell(grid.children[index], letter);
    }
  }
  for (const [key, letters] of Object.entries(grids)) {
    for (const grid of all(`[data-grid="${quoted(key)}"]`)) {
      // Another number of cells has other labels, too: the page is loaded anew.
      if (grid.children.length !== letters.length) { location.reload(); return; }
      for (let i = 0; i < letters.length; i += 1) setCell(grid.children[i], letters[i]);
    }
  }
  announce({ text, html, attrs, cells, grids });
}

function setCell(cell, letter) {
  if (cell && !cell.classList.contains(letter)) {
    const [, before] = cell.classList;
    cell.classList.replace(before, letter);
  }
}

function tick() {
  const now = Date.now();
  if (!document.hidden && !isStale && now - lastEvent > STALE_AFTER) setStale(true);
  if (isStale) return;
  const there = now + offset;
  for (const element of all("[data-until]")) element.textContent = countdown(Number(element.dataset.until) - there);
  for (const element of all("[data-clock]")) {
    const shown = clock(there);
    if (element.textContent !== shown) element.textContent = shown;
  }
}

const two = (number) => String(number).padStart(2, "0");
// The server writes times in its zone; the difference to UTC is on <html>.
const zone = Number(document.documentElement.dataset.utcOffset ?? 0) * 1000;
function clock(at) {
  const time = new Date(at + zone);
  return `${two(time.getUTCHours())}:${two(time.getUTCMinutes())}:${two(time.getUTCSeconds())}`;
}

export function countdown(millis) {
  const seconds = Math.max(0, millis / 1000);
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${two(Math.floor(seconds % 60))} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${two(Math.floor(seconds / 60) % 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${two(Math.floor(seconds / 3600) % 24)} h`;
}

// Without a connection values stay, greyed, and nothing can be sent.
function setStale(stale) {
  isStale = stale;
  document.body.classList.toggle("stale", stale);
  for (const note of all(".stale-note")) note.hidden = !stale;
  if (stale) {
    const since = clock(lastEvent + offset);
    for (const element of all("[data-stale-since]")) element.textContent = ` since ${since}`;
  }
  for (const button of all('form[method="post"] button:not([name="theme"]), button[data-dialog]')) {
    if (stale && !button.disabled) { button.disabled = true; button.dataset.stale = ""; }
    if (!stale && "stale" in button.dataset) { button.disabled = false; delete button.dataset.stale; }
  }
}
