'use strict';
(() => {
  const find = (selector, within = document) => within.querySelector(selector);
  const ranges = text => (text || '').split(' ').filter(Boolean).map(range => {
    const [first, last = first] = range.split('-').map(Number);
    return [first, last];
  });
  const range = (text, page) => ranges(text).find(([first, last]) => first <= page && page <= last);
  // pages: those that there are; parts: the pages of each part, empty if all are in this file; base: where the parts are.
  const { pages, parts, base } = document.body.dataset;
  const address = page => {
    const part = range(parts, page);
    return (part ? `${base}pages-${part[0]}-${part[1]}.html` : '') + `#page-${page}`;
  };
  for (const hidden of document.querySelectorAll('form[hidden]')) hidden.hidden = false;

  const close = () => document.querySelectorAll('figure.large').forEach(figure => figure.classList.remove('large'));
  addEventListener('click', event => {
    const zoom = event.target.closest('.zoom');
    if (!zoom || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const figure = zoom.parentElement, isLarge = figure.classList.contains('large');
    close();
    figure.classList.toggle('large', !isLarge);
    if (!isLarge) zoom.focus();
  });
  addEventListener('keydown', event => { if (event.key === 'Escape') close(); });
  addEventListener('focusout', event => {
    const figure = event.target.closest('figure.large');
    if (figure && event.relatedTarget && !figure.contains(event.relatedTarget)) close();
  });

  const goto = find('form.goto');
  if (goto) {
    const field = find('input', goto);
    field.addEventListener('input', () => field.setCustomValidity(''));
    goto.addEventListener('submit', event => {
      event.preventDefault();
      if (range(pages, field.valueAsNumber)) {
        close();
        location.href = address(field.valueAsNumber);
      } else {
        field.setCustomValidity('This page is not among the explained ones.');
        field.reportValidity();
      }
    });
  }

  const search = find('form.search'), found = find('#found');
  if (!search) return;
  const query = find('input', search);
  let texts;
  // [page, text] of each page: those of the whole document, or those in this file.
  const read = () => {
    const all = find('#texts');
    if (all) return JSON.parse(all.textContent);
    return [...document.querySelectorAll('section[id]')].map(section =>
      [Number(section.id.slice('page-'.length)), find('.said', section)?.textContent ?? '']);
  };
  const element = (name, content, attributes = {}) => {
    const made = Object.assign(document.createElement(name), attributes);
    made.append(...[content].flat());
    return made;
  };
  const excerpt = (text, lower, words) => {
    const phrase = lower.indexOf(words.join(' '));
    const first = phrase >= 0 ? phrase : Math.min(...words.map(word => lower.indexOf(word)));
    const start = first > 70 ? Math.min(first, text.indexOf(' ', first - 70) + 1 || first) : 0, shown = text.slice(start, first + 170);
    const shownLower = shown.toLowerCase(), pieces = [start ? '… ' : ''];
    for (let at = 0; at < shown.length;) {
      const hits = words.map(word => [shownLower.indexOf(word, at), word.length]).filter(([place]) => place >= 0);
      const [place, length] = hits.sort((a, b) => a[0] - b[0] || b[1] - a[1])[0] ?? [shown.length, 0];
      pieces.push(shown.slice(at, place));
      if (length) pieces.push(element('mark', shown.slice(place, place + length)));
      at = place + length;
    }
    if (start + shown.length < text.length) pieces.push(' …');
    return pieces;
  };
  const show = (hits, words, from, list) => {
    for (const [page, text, lower] of hits.slice(from, from + 50)) {
      const link = element('a', `Page ${page}`, { href: address(page) });
      list.append(element('li', [link, element('p', excerpt(text, lower, words), { dir: 'auto' })]));
    }
    const left = hits.length - from - 50;
    if (left <= 0) return;
    const more = element('button', `Show more (${left} left)`, { type: 'button' });
    more.addEventListener('click', () => { more.remove(); show(hits, words, from + 50, list); });
    list.after(more);
  };
  const run = text => {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    found.replaceChildren();
    found.hidden = !words.length;
    if (!words.length) return;
    texts ??= read();
    // Pages that have the words side by side come first.
    const phrases = [], others = [];
    for (const [page, pageText] of texts) {
      const lower = pageText.toLowerCase();
      if (!words.every(word => lower.includes(word))) continue;
      (lower.includes(words.join(' ')) ? phrases : others).push([page, pageText, lower]);
    }
    const hits = phrases.concat(others);
    const count = hits.length === 1 ? '1 page has' : `${hits.length} pages have`;
    const end = element('button', 'Close', { type: 'button' });
    end.addEventListener('click', () => { found.hidden = true; query.value = ''; });
    found.append(element('h2', `${count} “${text}”`));
    if (!find('#texts')) found.append(end);
    const list = found.appendChild(element('ol', []));
    show(hits, words, 0, list);
    found.scrollIntoView();
  };
  const here = () => decodeURIComponent(location.hash.replace(/^#q=/, ''));
  search.addEventListener('submit', event => {
    event.preventDefault();
    const hash = `#q=${encodeURIComponent(query.value.trim())}`;
    if (!found) location.href = `${base}search.html${hash}`;
    else if (find('#texts')) location.hash = hash;
    else run(query.value.trim());
  });
  if (found && find('#texts')) {
    const follow = () => { query.value = here(); run(query.value); };
    addEventListener('hashchange', follow);
    if (location.hash.startsWith('#q=')) follow(); else query.focus();
  }
})();
