#!/usr/bin/env python3
"""What a change of a large grid costs in the browser, in milliseconds of script per frame: the 95th of 100 frames.

usage: grid.py SCRATCH-DIRECTORY ADDRESS-OF-A-JOB CELLS

The page is the server's; in place of its stream of events stands one that this program feeds, 150 changed cells at a time.
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../../tests/browser"))
from chromium import Browser, Failed  # noqa: E402

# Stands in for the stream, and takes the time of every callback of a frame.
STAND_IN = """
window.EventSource = class extends EventTarget {
  constructor() { super(); this.readyState = 1; window.feed = this; }
  close() {}
};
EventSource.CLOSED = 2;
window.frames95 = [];
const ask = window.requestAnimationFrame.bind(window);
window.requestAnimationFrame = (callback) => ask((now) => {
  const began = performance.now();
  callback(now);
  window.frames95.push(performance.now() - began);
});
"""

FEED = """
(async () => {
  const letters = "wbidkxs";
  const count = document.querySelector('[data-grid]').children.length;
  let changes = 0;
  const observer = new MutationObserver((records) => { changes += records.length; });
  observer.observe(document.querySelector('[data-grid]'), { subtree: true, attributes: true });
  window.frames95.length = 0;
  for (let round = 0; round < 100; round += 1) {
    const changed = Array.from({ length: 150 }, (_, at) => [(round * 6151 + at * 67) % count, letters[(round + at) % 7]]);
    const patch = { cells: { "job.pages": changed }, text: { "job.n.d": String(round) } };
    const done = new Promise((resolve) => document.addEventListener("tidegate:patch", resolve, { once: true }));
    window.feed.dispatchEvent(new MessageEvent("patch", { data: JSON.stringify(patch), lastEventId: "x." + round }));
    await done;
    await new Promise((resolve) => setTimeout(resolve));
  }
  const sorted = window.frames95.toSorted((a, b) => a - b);
  return { count, changes, frames: sorted.length, p95: sorted[Math.floor(sorted.length * 0.95)] };
})()
"""


def main():
    scratch, url, cells = sys.argv[1:]
    browser = Browser(scratch)
    try:
        browser.before_pages(STAND_IN)
        browser.open(url)
        browser.until("window.feed !== undefined", "the page asks for events")
        found = browser.run(FEED)
        if found["count"] != int(cells) or found["changes"] < 5_000 or found["frames"] < 100:
            raise Failed(f"not what was to be measured: {found}")
        print(found["p95"])
    except Failed as failure:
        print(failure)
        sys.exit(1)
    finally:
        browser.close()


if __name__ == "__main__":
    main()
