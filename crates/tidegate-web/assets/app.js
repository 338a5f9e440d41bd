// What HTML cannot do alone: dialogs, menus, keys. Every page works without this file. live.js keeps values up to date.

import { connect } from "./live.js";

const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

connect(document.body.dataset.live ?? "");

// Dialogs: a button with data-dialog opens the dialog of that id; #id in the address does, too.
for (const button of $$("[data-dialog]")) {
  button.addEventListener("click", () => document.getElementById(button.dataset.dialog)?.showModal());
}
const asked = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
if (asked instanceof HTMLDialogElement) asked.showModal();

// Menus close on Escape and on a click elsewhere.
document.addEventListener("click", (event) => {
  for (const menu of $$("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  for (const menu of $$("details.menu[open]")) { menu.open = false; $("summary", menu).focus(); }
});

// A select with data-submit sends its form when it changes; without this file the form's own button does.
for (const select of $$("select[data-submit]")) {
  select.addEventListener("change", () => select.form.requestSubmit());
  for (const part of $$("[data-without-script]", select.form)) part.hidden = true;
}

// Keys: elements name theirs with data-key; never while typing.
document.addEventListener("keydown", (event) => {
  if (event.target.closest("input, textarea, select, [data-grid], dialog")) return;
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const key = { j: "ArrowRight", k: "ArrowLeft" }[event.key] ?? event.key;
  const target = $(`[data-key="${CSS.escape(key)}"]`);
  if (!target) return;
  event.preventDefault();
  if (target.matches("input")) { target.focus(); target.select(); } else target.click();
});

// Rows that scroll sideways show the current item in their middle.
for (const item of $$(".strip [aria-current], .nav [aria-current]")) {
  const row = item.closest("ul, nav");
  row.scrollLeft = item.offsetLeft - (row.clientWidth - item.offsetWidth) / 2;
}

// A GET form with data-preview="ID" answers while one types: the element of that id is taken from the page that the form leads to.
for (const form of $$("form[data-preview]")) {
  let timer = 0;
  let asked = 0;
  const show = async () => {
    const turn = (asked += 1);
    const query = new URLSearchParams(new FormData(form));
    const response = await fetch(`${form.getAttribute("action").split("#")[0]}?${query}`).catch(() => null);
    if (!response || turn !== asked) return;
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const answer = page.getElementById(form.dataset.preview);
    if (answer && turn === asked) document.getElementById(form.dataset.preview).replaceChildren(...answer.childNodes);
  };
  form.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(show, 150); });
  for (const part of $$("[data-without-script]", form)) part.hidden = true;
}
