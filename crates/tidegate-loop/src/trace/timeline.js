"use strict";
// lanes: [name, place, outcome, steps, first, end]; records: [µs, time, tick, lane, who, what, mark];
// bars: [lane, kind, from, to, label]; arrows: [from, lane, to, lane]. "from", "to" and so on are numbers of records.
const { lanes, records, bars, arrows, dropped } = JSON.parse(document.getElementById("data").textContent);
const el = id => document.getElementById(id);
const view = el("view"), canvas = el("canvas"), space = el("space"), tip = el("tip"), pen = canvas.getContext("2d");
const BAR = 20, HEAD = 42, PAD = 14;
const last = Math.max(records.length - 1, 1), span = Math.max(records.at(-1)?.[0] - records[0]?.[0] || 0, 1e-3);
const origin = records[0]?.[0] ?? 0;
// Few lanes leave room for words below their bars.
const roomy = lanes.length <= 16, ROW = roomy ? 50 : 30, RISE = roomy ? 7 : 0;
const ticks = records.flatMap((r, i) => r[6] === "tick" ? [i] : []);
const barsOf = lanes.map(() => []);
for (const bar of bars) barsOf[bar[0]].push(bar);
for (const list of barsOf) list.sort((a, b) => a[2] - b[2]);
let byTime = false, showArrows = true, zoom = 1, chosen = 0, hovered = null, gutter = 120, colors = {}, said = {}, queued = false;

const plural = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
el("counts").textContent = `${el("counts").parentElement.textContent.trim() ? " · " : ""}${plural(lanes.length - 1, "task")}, ${plural(ticks.length, "tick")}, ${plural(records.length, "event")}${dropped ? `, ${dropped} older ones dropped` : ""}`;
if (!el("program").querySelector("pre").textContent.trim()) el("program").hidden = true;

const color = name => colors[name] ??= getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const room = () => Math.max(view.clientWidth - gutter - 2 * PAD, 50);
const whole = () => room() * zoom;
const at = i => byTime ? (records[i][0] - origin) / span : i / last;
// Where the view stands, looked up once a drawing: asking the page for it costs more than drawing a bar.
let wide = 1, right = 0, down = 0;
function look() { wide = whole(); right = view.scrollLeft; down = view.scrollTop; }
const x = i => gutter + PAD + at(i) * wide - right;
const y = lane => HEAD + lane * ROW + ROW / 2 - RISE - down;
// A short trace opens at a scale at which single events can be told apart, a long one as a whole.
const firstZoom = () => last > 300 ? 1 : Math.max(1, Math.min(last * 9 / room(), zoomMax()));
const zoomMax = () => Math.max(1, Math.min(last * 120 / room(), 15e6 / room()));
const seconds = us => us === 0 ? "0 s" : us < 1e3 ? `${+us.toPrecision(4)} µs` : us < 1e6 ? `${+(us / 1e3).toPrecision(6)} ms` : `${+(us / 1e6).toPrecision(9)} s`;

function layout() {
  pen.font = "600 13px system-ui, sans-serif";
  const widest = Math.max(...lanes.map(l => pen.measureText(l[0]).width));
  gutter = Math.min(Math.max(widest + 26, 60), view.clientWidth * (view.clientWidth < 600 ? .3 : .2));
  const height = HEAD + lanes.length * ROW + 8;
  space.style.width = gutter + 2 * PAD + whole() + "px";
  space.style.height = height + "px";
  const tall = Math.min(height, innerHeight * .68);
  const ratio = devicePixelRatio || 1, width = view.clientWidth;
  canvas.width = width * ratio; canvas.height = tall * ratio;
  canvas.style.width = width + "px"; canvas.style.height = tall + "px";
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  draw();
}
function later() { if (!queued) { queued = true; requestAnimationFrame(() => { queued = false; draw(); }); } }
function setZoom(to, around = gutter + room() / 2) {
  const before = (around - gutter - PAD + view.scrollLeft) / whole();
  zoom = Math.min(Math.max(to, 1), zoomMax());
  layout();
  view.scrollLeft = before * whole() - (around - gutter - PAD);
  later();
}

function box(left, top, width, height, radius, fill) {
  pen.fillStyle = fill; pen.beginPath(); pen.roundRect(left, top, width, height, Math.min(radius, width / 2)); pen.fill();
}
function words(text, left, top, width, fill) {
  if (width < 26) return;
  pen.fillStyle = fill;
  if (pen.measureText(text).width > width) {
    let n = text.length;
    while (n > 1 && pen.measureText(text.slice(0, n) + "…").width > width) n--;
    if (n < 3 || text.length < 14) return;
    text = text.slice(0, n).trimEnd() + "…";
  }
  pen.fillText(text, left, top);
}

function draw() {
  look();
  const width = view.clientWidth, height = parseFloat(canvas.style.height);
  pen.clearRect(0, 0, width, height);
  pen.textBaseline = "middle"; pen.textAlign = "left"; pen.lineWidth = 1;
  said = {};
  drawTicks(width, height);
  pen.save(); pen.beginPath(); pen.rect(gutter, HEAD, width - gutter, height - HEAD); pen.clip();
  const top = Math.max(0, Math.floor(view.scrollTop / ROW)), bottom = Math.min(lanes.length - 1, Math.ceil((view.scrollTop + height) / ROW));
  for (let lane = top; lane <= bottom; lane++) drawLane(lane, width);
  if (showArrows) drawArrows(width, height);
  for (let lane = top; lane <= bottom; lane++) drawEnds(lane, width);
  drawMarks(width, top, bottom);
  drawWords();
  drawChosen(height);
  pen.restore();
  drawNames(width, height, top, bottom);
}
function drawTicks(width, height) {
  pen.font = "12px system-ui, sans-serif";
  const shown = byTime ? times(width) : null;
  pen.fillStyle = color("band");
  if (!byTime) ticks.forEach((i, n) => {
    if (n % 2) return;
    const from = Math.max(x(i), gutter), to = Math.min(n + 1 < ticks.length ? x(ticks[n + 1]) : x(last), width);
    if (to > gutter && from < width) pen.fillRect(from, HEAD, to - from, height);
  });
  let free = gutter + 2;
  pen.strokeStyle = color("line");
  for (const [left, one, two] of shown ?? ticks.map(i => [x(i), `tick ${records[i][2]}`, records[i][1]])) {
    if (left < gutter - 1 || left > width) continue;
    const need = Math.max(pen.measureText(one).width, pen.measureText(two).width) + 10;
    const fits = left >= free - 2 && left + need <= width + 8;
    pen.globalAlpha = fits ? 1 : .45;
    pen.beginPath(); pen.moveTo(Math.round(left) + .5, fits ? 6 : HEAD); pen.lineTo(Math.round(left) + .5, height);
    if (fits || need < 3 * (left - free + need)) pen.stroke();
    pen.globalAlpha = 1;
    if (!fits) continue;
    pen.fillStyle = color("ink"); pen.fillText(one, left + 5, two ? 14 : 21);
    pen.fillStyle = color("soft"); pen.fillText(two, left + 5, 30);
    free = left + need;
  }
  pen.beginPath(); pen.moveTo(0, HEAD - .5); pen.lineTo(width, HEAD - .5); pen.stroke();
}
function times(width) {
  const rough = span * 90 / whole(), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(d => d * power).find(s => s >= rough);
  const from = Math.max(0, Math.floor(view.scrollLeft / whole() * span / step)), marks = [];
  for (let n = from; n * step <= span * 1.0001 && marks.length < 60; n++)
    marks.push([gutter + PAD + n * step / span * whole() - view.scrollLeft, seconds(+(origin + n * step).toPrecision(12)), ""]);
  return marks;
}
// Words below a bar. Those that would run into the ones before are joined to them, up to a point.
function below(text, left, lane, name) {
  const before = (said[lane] ??= []).at(-1), width = () => pen.measureText(text).width;
  if (before && left < before.end) {
    if (before.text.length > 60) return;
    text = `${before.text} · ${text}`; left = before.left; said[lane].pop();
  }
  if (text.length > 60) text = text.slice(0, 60) + "…";
  said[lane].push({ text, left, name, end: left + width() + 8 });
}
function drawWords() {
  pen.font = "12px system-ui, sans-serif";
  const edge = view.clientWidth - 6;
  for (const lane in said) for (const { text, left, name } of said[lane]) {
    if (left > edge) continue;
    pen.fillStyle = color(name); pen.fillText(text, Math.min(left, edge - pen.measureText(text).width), y(+lane) + BAR / 2 + 9);
  }
}
function drawLane(lane, width) {
  const middle = y(lane);
  pen.font = "12px system-ui, sans-serif";
  const list = barsOf[lane];
  // Bars are in order, so those left of the view are skipped by halves.
  let low = 0, high = list.length;
  while (low < high) { const mid = low + high >> 1; if (x(list[mid][3]) < gutter - 4) low = mid + 1; else high = mid; }
  // Steps may be thinner than a pixel: they are drawn over the waits beside them.
  for (const over of [false, true]) for (let n = Math.max(0, low - 3); n < list.length; n++) {
    const [, kind, from, to, label] = list[n];
    const left = x(from), end = Math.max(x(to), left + 2);
    if (left > width) break;
    if (end < gutter || kind === "tick" || over !== (kind !== "waiting" && kind !== "poll")) continue;
    const shown = Math.max(left, gutter) + 6, fits = Math.min(end, width) - shown - 5;
    if (kind === "waiting") {
      box(left, middle - 8, end - left, 16, 4, color("waiting"));
      words(label.replace("waits for ", ""), shown, middle + .5, fits, color("on-waiting"));
    } else if (kind === "ready") {
      box(left, middle - 4, end - left, 8, 2, color("ready"));
    } else if (kind === "running") {
      box(left, middle - BAR / 2, end - left, BAR, 4, color("running"));
    } else {
      box(left, middle - BAR / 2, end - left, BAR, 4, color(kind));
      if (pen.measureText(kind).width < fits - 14) words(kind, shown, middle + .5, fits, kind === "poll" ? color("on-poll") : color("on-running"));
      const waited = records[to][0] - records[from][0];
      if (roomy && kind === "poll" && waited > 0) below(`+${seconds(waited)}`, left, lane, "soft");
    }
  }
}
function drawEnds(lane, width) {
  const [, , outcome, , , end] = lanes[lane];
  if (end < 0 || !outcome) return;
  const center = x(end);
  if (center < gutter - 6 || center > width + 6) return;
  pen.beginPath(); pen.arc(center, y(lane), 5.5, 0, 7);
  pen.fillStyle = color(outcome === "completed" ? "good" : outcome === "cancelled" ? "gone" : "bad"); pen.fill();
  pen.strokeStyle = color("card"); pen.lineWidth = 1.5; pen.stroke(); pen.lineWidth = 1;
}
function drawMarks(width, top, bottom) {
  const dense = whole() / last < 2;
  pen.font = "12px system-ui, sans-serif";
  records.forEach((record, i) => {
    const lane = record[3], mark = record[6];
    if (lane < top || lane > bottom || (mark !== "note" && mark !== "cancel" && mark !== "set") || (dense && mark !== "cancel")) return;
    const center = x(i);
    if (center < gutter - 8 || center > width + 8) return;
    const middle = y(lane), size = mark === "note" ? 5 : 4;
    pen.fillStyle = color(mark === "note" ? "note" : mark === "cancel" ? "bad" : "callback");
    pen.beginPath(); pen.moveTo(center, middle - size); pen.lineTo(center + size, middle); pen.lineTo(center, middle + size); pen.lineTo(center - size, middle); pen.fill();
    pen.strokeStyle = color("card"); pen.stroke();
    if (roomy && mark === "note") below(record[5].replace(/^says: /, ""), center - size, lane, "note");
  });
}
function drawArrows(width, height) {
  const seen = [];
  const focus = records[(hovered ?? chosen)]?.[3];
  for (const arrow of arrows) {
    const [from, , to] = arrow;
    if (x(to) < gutter || x(from) > width) continue;
    seen.push(arrow);
  }
  // Too many to follow: only those of the lane that is looked at, or of the event.
  const event = hovered ?? chosen, ofLane = a => focus > 0 && (a[1] === focus || a[3] === focus), ofEvent = a => a[0] === event || a[2] === event;
  const few = [() => true, ofLane, ofEvent].map(wanted => seen.filter(wanted)).find(list => list.length <= 40) ?? [];
  for (const [from, fromLane, to, toLane] of few) {
    if (fromLane === toLane) continue;
    const x1 = x(from), y1 = y(fromLane), x2 = x(to), y2 = y(toLane);
    if (Math.max(y1, y2) < HEAD || Math.min(y1, y2) > height) continue;
    const mine = from === event || to === event;
    pen.strokeStyle = pen.fillStyle = color(mine ? "focus" : "arrow"); pen.lineWidth = mine ? 2 : 1.2;
    const way = y2 > y1 ? 1 : -1, tipY = y2 - way * (BAR / 2 + 1), startY = y1 + way * (BAR / 2), bend = Math.min(Math.abs(tipY - startY) * .6 + 4, 60);
    pen.beginPath(); pen.moveTo(x1, startY); pen.bezierCurveTo(x1, startY + way * bend, x2, tipY - way * bend, x2, tipY - way * 3); pen.stroke();
    pen.beginPath(); pen.moveTo(x2, tipY); pen.lineTo(x2 - 3.5, tipY - way * 6); pen.lineTo(x2 + 3.5, tipY - way * 6); pen.fill();
  }
  pen.lineWidth = 1;
}
function drawChosen(height) {
  if (!records.length) return;
  const i = chosen, middle = y(records[i][3]);
  pen.strokeStyle = color("focus"); pen.setLineDash([3, 3]);
  pen.beginPath(); pen.moveTo(x(i), HEAD); pen.lineTo(x(i), height); pen.stroke(); pen.setLineDash([]);
  pen.beginPath(); pen.arc(x(i), middle, 8, 0, 7);
  pen.strokeStyle = color("card"); pen.lineWidth = 5; pen.stroke();
  pen.strokeStyle = color("focus"); pen.lineWidth = 2; pen.stroke(); pen.lineWidth = 1;
}
function drawNames(width, height, top, bottom) {
  pen.fillStyle = color("card"); pen.fillRect(0, HEAD, gutter, height);
  pen.strokeStyle = color("line");
  pen.beginPath(); pen.moveTo(gutter - .5, 0); pen.lineTo(gutter - .5, height); pen.stroke();
  pen.save(); pen.beginPath(); pen.rect(0, HEAD, width, height - HEAD); pen.clip();
  for (let lane = top; lane <= bottom; lane++) {
    const line = Math.round(y(lane) + RISE + ROW / 2) + .5;
    pen.globalAlpha = .6; pen.beginPath(); pen.moveTo(0, line); pen.lineTo(width, line); pen.stroke(); pen.globalAlpha = 1;
    pen.font = `${lane === records[chosen]?.[3] ? 600 : 400} 13px system-ui, sans-serif`;
    words(lanes[lane][0], 12, y(lane), gutter - 18, color(lane ? "ink" : "soft"));
  }
  pen.restore();
  pen.fillStyle = color("card"); pen.fillRect(0, 0, gutter - 1, HEAD - 1);
}

function describe(i) {
  const [, time, tick, lane, who, what] = records[i];
  const [name, place] = lanes[lane];
  return { head: `${who} ${what}`, more: `event ${i + 1} of ${records.length} · ${time} · ${tick ? `tick ${tick}` : "before the first tick"}${lane && place ? ` · ${name} was spawned at ${place}` : ""}` };
}
function choose(i, scroll = true) {
  if (!records.length) return;
  chosen = Math.min(Math.max(i, 0), records.length - 1);
  look();
  const { head, more } = describe(chosen);
  el("now").innerHTML = "<strong></strong><small></small>";
  el("now").firstChild.textContent = head; el("now").lastChild.textContent = more;
  if (scroll) {
    const left = x(chosen), lane = records[chosen][3], top = y(lane), height = parseFloat(canvas.style.height);
    if (left < gutter + 20 || left > view.clientWidth - 30) view.scrollLeft += left - gutter - room() / 2;
    if (top < HEAD + ROW / 2 - RISE) view.scrollTop += top - HEAD - ROW / 2;
    if (top > height - ROW / 2) view.scrollTop += top - height + ROW;
  }
  document.querySelector("tr[aria-selected=true]")?.setAttribute("aria-selected", "false");
  const row = document.querySelector(`tr[data-i="${chosen}"]`);
  row?.setAttribute("aria-selected", "true");
  later();
}
function nearest(event) {
  look();
  const bounds = canvas.getBoundingClientRect(), px = event.clientX - bounds.left, py = event.clientY - bounds.top;
  if (px < gutter || py < HEAD) return null;
  const lane = Math.floor((py - HEAD + view.scrollTop) / ROW);
  if (lane >= lanes.length) return null;
  let best = null, gap = 18;
  const guess = byTime ? null : Math.round((px - gutter - PAD + view.scrollLeft) / whole() * last);
  const from = byTime ? 0 : Math.max(0, guess - 40), to = byTime ? last : Math.min(last, guess + 40);
  for (let i = from; i <= to && i < records.length; i++) if (records[i][3] === lane && Math.abs(x(i) - px) < gap) { gap = Math.abs(x(i) - px); best = i; }
  const bar = barsOf[lane].find(b => b[1] !== "tick" && x(b[2]) - 1 <= px && px <= Math.max(x(b[3]), x(b[2]) + 2) + 1);
  return best === null && !bar ? null : { i: best ?? bar[2], bar };
}
function showTip(event) {
  const found = nearest(event);
  tip.hidden = !found;
  hovered = found ? found.i : null;
  canvas.style.cursor = found ? "pointer" : "default";
  later();
  if (!found) return;
  const { head, more } = describe(found.i);
  tip.innerHTML = "<b></b><span></span>";
  tip.firstChild.textContent = head;
  tip.lastChild.textContent = found.bar ? `${lanes[found.bar[0]][0]} ${found.bar[4]} · ${records[found.bar[2]][1]} to ${records[found.bar[3]][1]}` : more;
  tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
  tip.style.top = (event.clientY + 18 + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 10 : event.clientY + 18) + "px";
}
function neighbour(step) {
  const lane = records[chosen][3] + step;
  if (lane < 0 || lane >= lanes.length) return;
  for (let far = 0; far <= last; far++) for (const i of [chosen + far, chosen - far]) if (records[i]?.[3] === lane) return choose(i);
  if (lane + step >= 0) choose(chosen);
}
function table() {
  const word = el("find").value.trim().toLowerCase();
  let html = "", found = 0, tick = null;
  const safe = text => String(text).replace(/[&<>"]/g, c => `&#${c.charCodeAt(0)};`);
  records.forEach(([, time, number, lane, who, what], i) => {
    if (word && !`${who} ${what} ${lanes[lane][0]} tick ${number}`.toLowerCase().includes(word)) return;
    html += `<tr data-i="${i}" aria-selected="${i === chosen}"${tick !== null && tick !== number ? " class=newtick" : ""}><td>${i + 1}<td>${safe(time)}<td>${number || ""}<td>${safe(who)}<td>${safe(what)}</tr>`;
    found++; tick = number;
  });
  el("rows").innerHTML = html;
  el("found").textContent = plural(found, "event");
}

view.addEventListener("scroll", later, { passive: true });
view.addEventListener("pointermove", event => { if (event.pointerType === "mouse") showTip(event); });
view.addEventListener("pointerleave", () => { tip.hidden = true; hovered = null; later(); });
view.addEventListener("click", event => { const found = nearest(event); if (found) choose(found.i, false); });
view.addEventListener("wheel", event => { if (event.ctrlKey || event.metaKey) { event.preventDefault(); setZoom(zoom * Math.exp(-event.deltaY / 300), event.clientX - canvas.getBoundingClientRect().left); } }, { passive: false });
view.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || !records.length) return;
  const act = { ArrowRight: () => choose(chosen + 1), ArrowLeft: () => choose(chosen - 1), ArrowDown: () => neighbour(1), ArrowUp: () => neighbour(-1), Home: () => choose(0), End: () => choose(last), "+": () => setZoom(zoom * 1.5), "=": () => setZoom(zoom * 1.5), "-": () => setZoom(zoom / 1.5), 0: () => setZoom(1) }[event.key];
  if (act) { event.preventDefault(); act(); }
});
el("in").onclick = () => setZoom(zoom * 1.5);
el("out").onclick = () => setZoom(zoom / 1.5);
el("fit").onclick = () => setZoom(1);
el("prev").onclick = () => choose(chosen - 1);
el("next").onclick = () => choose(chosen + 1);
function axis(time) { byTime = time; el("time").setAttribute("aria-pressed", time); el("order").setAttribute("aria-pressed", !time); zoom = time ? 1 : firstZoom(); layout(); choose(chosen); }
el("time").onclick = () => axis(true);
el("order").onclick = () => axis(false);
el("arrows").onclick = () => { showArrows = !showArrows; el("arrows").setAttribute("aria-pressed", showArrows); later(); };
el("events").addEventListener("toggle", () => { if (el("events").open && !el("rows").firstChild) table(); });
el("find").oninput = table;
el("rows").onclick = event => { const row = event.target.closest("tr"); if (row) choose(+row.dataset.i); };
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { colors = {}; draw(); });
new ResizeObserver(layout).observe(view);
layout();
zoom = firstZoom();
layout();
choose(0);
// A short trace is read as a whole.
if (records.length <= 300) el("program").open = el("events").open = true;
