#!/usr/bin/env python3
"""Opens the HTML outputs of explain in Chromium, from the disk: pictures, search, going to a page, enlarging by keyboard, and that
the policy of each file lets its own script, style and pictures work and nothing else."""

import json
import os
import pathlib
import subprocess
import sys
import time

from chromium import Browser, Failed

PAGES = 230


def pdf(pages):
    """A PDF with so many pages of text."""
    objects = ["<</Type/Catalog/Pages 2 0 R>>", "", "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"]
    kids = []
    for page in range(1, pages + 1):
        text = f"BT /F1 14 Tf 50 700 Td (Page {page}: the tide table of harbour number {page} is kept by its master.) Tj ET"
        objects.append(f"<</Length {len(text)}>>stream\n{text}\nendstream")
        resources = "/MediaBox[0 0 612 792]/Resources<</Font<</F1 3 0 R>>>>"
        objects.append(f"<</Type/Page/Parent 2 0 R{resources}/Contents {len(objects)} 0 R>>")
        kids.append(f"{len(objects)} 0 R")
    objects[1] = f"<</Type/Pages/Count {pages}/Kids[{' '.join(kids)}]>>"
    out, places = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        places.append(len(out))
        out += f"{number} 0 obj{content}endobj\n".encode()
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    end = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}trailer<</Size {len(objects) + 1}/Root 1 0 R>>\n"
    return out + f"{end}startxref\n{len(out)}\n%%EOF\n".encode()


def check(what, holds):
    if not holds:
        raise Failed(what)
    print(what)


def zoom_by_keyboard(browser, page):
    zoom = f"document.querySelector('#page-{page} .zoom')"
    large = f"document.querySelector('#page-{page} figure').classList.contains('large')"
    browser.run(f"{zoom}.focus()")
    browser.press("Enter")
    check("Enter enlarges a picture", browser.run(large))
    browser.press("Escape")
    check("Escape closes it, and the focus stays", not browser.run(large) and browser.run(f"document.activeElement === {zoom}"))


def submit(browser, form, text):
    browser.run(f"document.querySelector('form.{form} input').value = {json.dumps(text)}")
    browser.run(f"document.querySelector('form.{form}').requestSubmit()")


def arrive(browser, script, what):
    """Waits while the browser is on its way from one file to the next, where no script can be run."""

    def is_true():
        try:
            return browser.run(f"document.readyState === 'complete' && ({script})")
        except Failed:
            return False

    end = time.monotonic() + 60
    while not is_true():
        if time.monotonic() > end:
            raise Failed(f"{what}: {browser.problems}")
        time.sleep(0.02)
    print(what)


def is_decoded(page):
    picture = f"document.querySelector('#page-{page} img')"
    return f"{picture}.complete && {picture}.naturalWidth > 0"


def main():
    scratch = pathlib.Path(sys.argv[1]).resolve()
    program = os.environ["TIDEGATE_PROGRAM_DIR"] + "/tidegate"
    folder = scratch / "a folder, 100 %"
    folder.mkdir()
    for name, pages in (("large #1.pdf", PAGES), ("small.pdf", 3)):
        (folder / name).write_bytes(pdf(pages))
    env = os.environ | {"XDG_DATA_HOME": str(scratch / "data"), "XDG_CONFIG_HOME": "/nonexistent"}
    words = [program, "explain", str(folder), "--out", str(folder), "--picture-px", "300", "--progress", "none"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env=env)

    browser = Browser(scratch)
    try:
        browser.look(1280)
        large(browser, folder)
        small(browser, folder)
        for page in ("index", "large #1", "small", "large #1-pages/1/pages-101-200", "large #1-pages/1/search"):
            every_look(browser, (folder / f"{page}.html").as_uri())
    finally:
        browser.close()


def large(browser, folder):
    browser.open((folder / "index.html").as_uri())
    browser.run("document.querySelector('.documents a').click()")
    arrive(browser, "document.querySelectorAll('.parts a').length === 3", "the run's page leads to the document and its parts")
    submit(browser, "goto", "154")
    at_page = "location.pathname.endsWith('/pages-101-200.html') && location.hash === '#page-154'"
    arrive(browser, f"{at_page} && {is_decoded(154)}", "the field leads to a page in its part, and its picture is shown")
    top = browser.run("document.querySelector('#page-154').getBoundingClientRect().top")
    check("the page is at the top", 0 <= top < 200)
    # Those at the top may be loaded before the browser goes to the page.
    check("pictures far away are not loaded", not browser.run(is_decoded(127)))
    check("the style is used", browser.run("getComputedStyle(document.querySelector('nav')).position") == "sticky")
    zoom_by_keyboard(browser, 154)
    browser.run("document.querySelector('a[rel=next]').click()")
    arrive(browser, "location.pathname.endsWith('/pages-201-230.html')", "a link leads to the next part")
    submit(browser, "goto", "999")
    check("a page that there is not is refused", not browser.run("document.querySelector('form.goto input').validity.valid"))
    submit(browser, "search", "number 77")
    # Pages beside it may quote it.
    hit = "[...document.querySelectorAll('#found li')].find(item => item.firstChild.textContent === 'Page 77')"
    found = f"location.pathname.endsWith('/search.html') && {hit}?.textContent.includes('number 77')"
    arrive(browser, found, "the search finds the words of another part")
    browser.run(f"{hit}.firstChild.click()")
    arrive(browser, "location.pathname.endsWith('/pages-1-100.html') && location.hash === '#page-77'", "a result leads to its page")
    browser.expect_no_problems("a large document")

    browser.scripts(False)
    browser.open((folder / "large #1.html").as_uri())
    browser.click(".parts li:nth-child(2) a")
    browser.wait_for_load()
    browser.click("nav ol li:nth-child(30) a")
    check("without scripts links lead to a part", '<section id="page-130"' in browser.html())
    browser.scripts(True)


def small(browser, folder):
    browser.open((folder / "small.html").as_uri())
    arrive(browser, is_decoded(1), "a picture in the file is shown")
    zoom_by_keyboard(browser, 1)
    submit(browser, "search", "harbour number 2")
    results = "[...document.querySelectorAll('#found a')].some(link => link.textContent === 'Page 2')"
    check("one file is searched in itself", browser.run(results))
    submit(browser, "goto", "3")
    arrive(browser, "location.hash === '#page-3'", "the field leads to a page")
    headings = "document.querySelectorAll('section h2').length === 3 && document.documentElement.lang === 'en'"
    check("every page has a heading, and the document a language", browser.run(headings))
    browser.expect_no_problems("a small document")
    # Should anything of a document ever become a script, it does not run.
    browser.run(
        "(() => { const script = document.createElement('script'); script.textContent = 'window.ran = true';"
        " document.body.append(script); })()"
    )
    check("no other script runs", browser.run("window.ran === undefined"))


def every_look(browser, url):
    for width, dark in ((1280, False), (1280, True), (390, False)):
        browser.look(width, dark=dark)
        browser.open(url)
        wide = browser.run("document.scrollingElement.scrollWidth - innerWidth")
        check(f"{url.rsplit('/', 1)[1]} is no wider than {width} px", wide <= 0)


if __name__ == "__main__":
    main()
