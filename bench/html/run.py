#!/usr/bin/env python3
"""The HTML of a large document: how large, how long it takes to write, how long until Chromium shows a page of it.

    python3 bench/html/run.py target/release/tidegate book.pdf [PAGE]

Explains the PDF with the provider local, then writes the outputs once more from the JSON (`rebuild`), which is timed. The time until
a page is shown is that from the start of the navigation to the page's own address until its picture is decoded and painted, in a
browser that has just been started: the median of five.
"""

import json
import os
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/browser"))
from chromium import Browser, Failed  # noqa: E402

BROWSERS = 5


def size(path):
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files), len(files)


def cpu():
    """Processor time of all processes that have ended, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def part_with(contents, page):
    """The address of the part that has the page, or of the document if it is one file."""
    for link, first, last in re.findall(r'href="([^"]+/pages-(\d+)-(\d+)\.html)"', contents.read_text()):
        if int(first) <= page <= int(last):
            return f"{contents.parent.as_uri()}/{link}#page-{page}"
    return f"{contents.as_uri()}#page-{page}"


# Two frames later the picture is on the screen. The browser's own clock starts with the navigation.
PAINTED = """(async () => {
    while (!document.querySelector(SELECTOR)) await new Promise(done => setTimeout(done, 5));
    const element = document.querySelector(SELECTOR);
    if (element.decode) await element.decode();
    await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
    return [performance.now(), element.getBoundingClientRect().top];
})()"""


def shown_after(scratch, url, selector):
    """Milliseconds from the start of the navigation until the element is on the screen, in a browser that has just been started."""
    browser = Browser(scratch)
    try:
        browser.look(1280)
        browser.go(url)
        end = time.monotonic() + 600
        while True:
            try:
                when, top = browser.run(PAINTED.replace("SELECTOR", json.dumps(selector)))
                break
            except Failed:
                # The script was begun in the empty page that was there before.
                assert time.monotonic() < end, url
        assert -100 <= top < 900, f"{selector} is not on the screen: {top}"
        browser.expect_no_problems(url)
        return when
    finally:
        browser.close()


def main():
    program, pdf = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    page = int(sys.argv[3]) if len(sys.argv) > 3 else 2_000
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as scratch:
        out = pathlib.Path(scratch) / "out"
        env = os.environ | {"XDG_DATA_HOME": scratch, "XDG_CONFIG_HOME": "/nonexistent"}

        def run(*words):
            begin, before = time.monotonic(), cpu()
            output = subprocess.run([program, *words], env=env, cwd=scratch, capture_output=True, text=True)
            assert output.returncode in (0, 1), output.stderr
            return f"{time.monotonic() - begin:.1f} s ({cpu() - before:.1f} s of processor time)", output.stdout

        explained, report = run("explain", str(pdf), "--out", str(out), "--progress", "none", "--json")
        written, _ = run("rebuild", str(out / f"{pdf.stem}.json"), "--pdf", str(pdf.parent))
        contents, folder = out / f"{pdf.stem}.html", out / f"{pdf.stem}-pages"
        (first, _), (rest, files) = size(contents), size(folder) if folder.exists() else (0, 0)
        pages = json.loads(report)["totals"]["pages"]
        warnings = sum(len(re.findall("could not be drawn", part.read_text())) for part in folder.rglob("*.html"))
        print(f"{pdf.name}: {pages} pages, PDF {pdf.stat().st_size / 1e6:.1f} MB; load {os.getloadavg()[0]:.1f}")
        print(f"HTML {(first + rest) / 1e6:.1f} MB in {files + 1} files; {warnings} pictures could not be drawn")
        print(f"explain and write {explained}; write again (rebuild) {written}")
        shown = [(f"page {page}", part_with(contents, page), f"#page-{page} img"), ("the contents", contents.as_uri(), "h1")]
        if folder.exists():
            search = next(folder.rglob("search.html")).as_uri() + "#q=function"
            shown.append(("the result of a search", search, "#found li"))
        for what, url, selector in shown:
            times = [shown_after(scratch, url, selector) for _ in range(BROWSERS)]
            print(f"{what} is shown after {statistics.median(times):.0f} ms ({min(times):.0f} to {max(times):.0f})")
        print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
