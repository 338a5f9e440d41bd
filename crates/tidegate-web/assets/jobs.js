// Jobs: uploads with progress, the grid of pages, the plan while it is typed, the reader. Every page works without this file.

const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

// --- Uploads: files are dropped or chosen, sent at once, and counted while they go.
for (const form of $$("form[data-upload]")) {
  const input = $('input[type="file"]', form);
  const status = $("[data-upload-status]", form);
  const button = $("button", form);
  // The label is the button; the one that sends is for browsers without scripts.
  input.classList.add("vh");
  input.required = false;
  $("label", form).className = "btn primary";
  button.hidden = true;
  input.addEventListener("change", () => { if (input.files.length) send(form, status, input.files); });
  form.addEventListener("dragover", (event) => { event.preventDefault(); form.classList.add("over"); });
  form.addEventListener("dragleave", () => form.classList.remove("over"));
  form.addEventListener("drop", (event) => {
    event.preventDefault();
    form.classList.remove("over");
    if (event.dataTransfer.files.length) send(form, status, event.dataTransfer.files);
  });
}
// A file dropped beside the zone must not replace the page.
for (const name of ["dragover", "drop"]) {
  document.addEventListener(name, (event) => { if (event.dataTransfer?.types.includes("Files")) event.preventDefault(); });
}

// While files are sent, the page must stay.
let uploads = 0;
function send(form, status, files) {
  const body = new FormData();
  for (const file of files) body.append("files", file, file.name);
  const request = new XMLHttpRequest();
  request.open("POST", form.dataset.upload);
  request.responseType = "json";
  const say = (text, isBad = false) => { status.textContent = text; status.classList.toggle("bad", isBad); };
  const fail = (text) => { uploads -= 1; say(text, true); };
  const many = files.length === 1 ? files[0].name : `${files.length} files`;
  request.upload.addEventListener("progress", ({ loaded, total }) => {
    say(total ? `Uploading ${many}: ${Math.floor((loaded / total) * 100)} %` : `Uploading ${many}`);
  });
  request.addEventListener("load", () => {
    if (request.status === 200) location.assign(`/jobs/${request.response.id}`);
    else fail(request.response?.error?.message ?? `The upload failed (${request.status}).`);
  });
  request.addEventListener("error", () => fail("The connection was lost. Choose the files again."));
  uploads += 1;
  say(`Uploading ${many}`);
  request.send(body);
}

// --- What live values cannot change (buttons, forms, lists) follows from this text: when it is not what the page was written
// with, the page is loaded again, but not while something is typed or uploaded, nor while a link or a form leads elsewhere.
let key = $('[data-v="page.key"]')?.textContent;
let leftAt = 0;
addEventListener("beforeunload", () => { leftAt = Date.now(); });
document.addEventListener("tidegate:patch", ({ detail }) => {
  const now = detail.text?.["page.key"];
  if (now === undefined || now === key) return;
  key = now;
  reload();
});
function reload() {
  const typing = document.activeElement?.matches("input:not([type=file]), textarea, select");
  // A link to a file leaves no page: after a while it counts no more.
  const leaving = Date.now() - leftAt < 5000;
  if (typing || leaving || uploads > 0 || $("details.menu[open]")) { setTimeout(reload, 1000); return; }
  location.reload();
}

// --- The plan follows the form: asked for 150 ms after the last change; the old one stays until the new one is there.
const planned = $("form[data-plan]");
if (planned) {
  const out = $("[data-plan-out]", planned);
  const short = $("[data-plan-short]");
  for (const button of $$("[data-without-script]", planned)) button.hidden = true;
  let timer = 0;
  let asked = 0;
  const shorten = () => { if (short && out) short.textContent = $("[data-plan-sentence]", out)?.innerText.replace("\n", " · ") ?? ""; };
  const plan = async () => {
    const turn = ++asked;
    const query = new URLSearchParams(new FormData(planned));
    query.delete("name");
    try {
      const response = await fetch(`${planned.dataset.plan}?${query}`);
      const text = await response.text();
      if (turn === asked && response.ok) { out.innerHTML = text; shorten(); }
    } catch { /* the page says that it has no connection */ }
  };
  const soon = () => { clearTimeout(timer); timer = setTimeout(plan, 150); };
  if (out) {
    shorten();
    // Fields stand outside of the form and name it.
    for (const field of planned.elements) field.addEventListener("input", soon);
    document.addEventListener("tidegate:patch", ({ detail }) => {
      if (Object.keys(detail.text ?? {}).some((name) => name.startsWith("draft."))) soon();
    });
  }
}

// --- The grid: one tab stop; arrows move a cursor, the readout says what it is on, Enter reads.
const words = { w: "waiting", b: "blocked", i: "in flight", d: "done", k: "cached", x: "failed", s: "skipped" };
for (const grid of $$(".cells[data-grid]")) {
  const cells = grid.children;
  const readout = $("[data-readout]", grid.parentElement);
  const keys = $("[data-keys]", grid.parentElement);
  if (keys) keys.hidden = false;
  let at = -1;
  const where = (index) => {
    let first = index;
    while (first > 0 && !cells[first].dataset.p) first -= 1;
    const page = Number(cells[first].dataset.p) + index - first;
    while (first > 0 && !cells[first].dataset.n) first -= 1;
    return { file: cells[first].dataset.f, number: cells[first].dataset.n, page };
  };
  const show = (index) => {
    const { file, page } = where(index);
    readout.textContent = `${file}, ${grid.dataset.called} ${page} · ${words[cells[index].classList[1]] ?? ""}`;
  };
  const move = (index) => {
    if (!cells.length) return;
    cells[at]?.classList.remove("cur");
    at = Math.max(0, Math.min(cells.length - 1, index));
    cells[at].classList.add("cur");
    show(at);
  };
  const read = (index) => {
    const { number, page } = where(index);
    location.assign(`${grid.dataset.read}/${number}/${page}`);
  };
  const perRow = () => {
    const top = cells[0].offsetTop;
    let count = 1;
    while (count < cells.length && cells[count].offsetTop === top) count += 1;
    return count;
  };
  const nextFailed = () => {
    for (let step = 1; step <= cells.length; step += 1) {
      const index = (at + step + cells.length) % cells.length;
      if (cells[index].classList[1] === "x") return index;
    }
    return at;
  };
  grid.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    switch (event.key) {
      case "ArrowRight": move(at + 1); break;
      case "ArrowLeft": move(at - 1); break;
      case "ArrowDown": move(at + perRow()); break;
      case "ArrowUp": move(at - perRow()); break;
      case "Home": move(0); break;
      case "End": move(cells.length - 1); break;
      case "f": case "F": move(nextFailed()); break;
      case "Enter": if (at >= 0) read(at); break;
      default: return;
    }
    event.preventDefault();
  });
  grid.addEventListener("focus", () => { if (at < 0 && grid.matches(":focus-visible")) move(0); });
  const index = (target) => (target.parentElement === grid ? Array.prototype.indexOf.call(cells, target) : -1);
  grid.addEventListener("click", (event) => { const i = index(event.target); if (i >= 0) { move(i); read(i); } });
  grid.addEventListener("pointerover", (event) => { const i = index(event.target); if (i >= 0) show(i); });
}

// --- The reader: the next page's picture is there before it is asked for.
const next = $("[data-prefetch]");
if (next) new Image().src = next.dataset.prefetch;
