#!/usr/bin/env python3
"""Jobs in Chromium, as a person uses them, with the mouse, with the keyboard alone, and without JavaScript.

usage: jobs.py SCRATCH-DIRECTORY TIDEGATE SAMPLES [AXE-SCRIPT]

Starts the mock server and `tidegate serve`. Pictures stay in SCRATCH-DIRECTORY/jobs. With axe-core's script, every page is
checked for violations that are serious or critical.
"""

import json
import os
import shutil
import sys
import time
import zipfile

from chromium import PATIENCE, Browser, Failed
from looks import Looks
from servers import mock_server, serve, write_pdf

STATE = "document.querySelector('.job-head .st')?.textContent"
DRAFT = r"/^\/jobs\/\d+$/.test(location.pathname) && document.querySelector('[data-plan-sentence]')"
FAILED = "document.querySelector('[data-v=\"job.n.x\"]')?.textContent"
# What a browser notes when a server is killed.
LOST = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE", "ERR_SOCKET")
READOUT = "document.querySelector('[data-readout]').textContent"
BOOK_PAGES = 40
# A window that is remembered across restarts, and long enough for a busy machine to do something within it.
SLOW = ("--rpm", "6", "--minute", "30s")


def button(words):
    """The button of a job's head that begins with these words."""
    return f"[...document.querySelectorAll('.job-head button')].find(b => b.textContent.trim().startsWith({json.dumps(words)}))"


def fill(browser, selector, text):
    """Clicks a field and types, as a person does."""
    browser.click(selector)
    browser.run(f"document.querySelector({json.dumps(selector)}).select()")
    browser.type(text)


class Test:
    """What all parts share: the browser, the servers, the files."""

    def __init__(self, scratch, tidegate, samples, axe):
        self.scratch, self.tidegate, self.samples = scratch, tidegate, samples
        self.browser = Browser(scratch)
        self.looks = Looks(self.browser, os.path.join(scratch, "jobs"), axe)
        self.book = write_pdf(os.path.join(scratch, "book.pdf"), BOOK_PAGES)
        self.tides = os.path.join(samples, "tides.pdf")
        self.mock = self.server = None

    def sample(self, name):
        return os.path.join(self.samples, name)

    def start_mock(self, *options):
        """A mock server, at the address of the last one."""
        listen = self.mock.address if self.mock else "127.0.0.1:0"
        if self.mock:
            self.mock.kill()
        self.mock = mock_server(self.tidegate, self.scratch, *options, listen=listen)

    def start_server(self, *options, directory="served"):
        """A server, at the address of the last one, which is killed if it still runs."""
        listen = self.server.address if self.server else "127.0.0.1:0"
        if self.server:
            self.server.kill()
        self.server = serve(
            self.tidegate, self.scratch, "--dir", os.path.join(self.scratch, directory), "--provider", "openai", "--base-url",
            f"{self.mock.url}/v1", "--model", "any", "--retries", "0", "--price-in", "0.15", "--price-out", "0.6", *options,
            listen=listen)

    def open(self, path):
        self.browser.open(f"{self.server.url}{path}")

    def until_state(self, state):
        self.browser.until(f"{STATE} === {json.dumps(state)}", f"the job is {state}")

    def close(self):
        self.browser.close()
        for program in (self.server, self.mock):
            if program:
                program.kill()


def files_are_dropped_and_planned(test):
    browser = test.browser
    test.open("/jobs")
    test.looks.take("empty")
    browser.drop("form.drop", [test.book, test.tides])
    browser.until(DRAFT, "two dropped files become a draft with a plan")
    browser.until("document.querySelector('[data-v=\"draft.files\"]').textContent === '2 files, 44 pages'", "both files are read")
    sentence = "document.querySelector('[data-plan-sentence]')?.innerText"
    browser.until(f"{sentence}?.includes('44 pages')", "the plan of all pages")
    fill(browser, "#pages", "1-3")
    browser.until(f"{sentence}?.startsWith('6 pages')", "the plan follows the form")
    fill(browser, "#pages", "")
    browser.until(f"{sentence}?.startsWith('44 pages') && {sentence}.includes('bound by rpm')", "the plan names the limit that binds")
    fill(browser, "#page_concurrency", "30")
    browser.until("document.querySelector('[data-plan-out]').innerText.includes('at most')", "the plan says how many at once")
    test.looks.take("new")


def a_killed_server_goes_on(test):
    """6 requests per window: the server is killed while some of the first 6 of 44 pages are in flight. (After 8 failures in a row a job stops.)"""
    browser = test.browser
    browser.follow("button[value=start]")
    browser.until("document.querySelectorAll('.cells i.d').length >= 2 && document.querySelector('.cells i.i')",
                  "some pages are done while others are in flight")
    test.mock.stand_still()
    browser.until("document.querySelector('.job-head .note.block')", "the note says what blocks the others")
    test.looks.take("job")
    test.looks.for_the_docs("job", 560)
    test.server.kill()
    browser.until("document.body.classList.contains('stale')", "the page says that it is stale")
    test.looks.take("stale")
    test.start_mock("--latency", "20ms", "--fail", "500=1")
    test.start_server(*SLOW)
    browser.until("!document.body.classList.contains('stale')", "the page has a connection again, by itself")
    browser.until(f"{FAILED} === '6'", "the job goes on by itself: 6 pages are answered with an error")
    test.start_mock("--latency", "20ms", "--seed", "3")
    browser.until(f"{STATE} === 'Blocked' && document.querySelector('.job-head [data-until]')", "the instant of the next admission")
    test.looks.take("blocked")
    browser.problems = [problem for problem in browser.problems if not any(word in problem for word in LOST)]
    browser.expect_no_problems("a killed server")
    print("kill -9: the page was stale, came back, and the job went on")


def a_limit_is_changed_live(test):
    browser = test.browser
    test.open("/limits")
    fill(browser, "[name='to-rpm']", "6000")
    answer = browser.until("document.querySelector('#answer .big')?.textContent.trim()", "the new finish time, before it is applied")
    test.looks.take("limits")
    browser.follow("#answer button.primary")
    browser.until("document.body.innerText.includes('of 6,000')", "the new amount")
    test.open("/jobs/1")
    browser.until(f"{STATE} === 'Done' && {FAILED} === '6' && document.querySelector('.reasons li')",
                  "38 pages are done; 6 are failed, with their reasons")
    test.looks.take("failed-pages")
    browser.tab_to(".cells")
    browser.press("End")
    browser.press("f")
    first = browser.run("[...document.querySelectorAll('.cells i')].findIndex(cell => cell.matches('.x')) + 1")
    browser.until(f"{READOUT} === 'book.pdf, page {first} · failed'", "the next failed cell, from the end again at the start")
    print(f"rpm 6 -> 6000: {answer!r}; the rest was sent at once")


def failed_pages_are_retried(test):
    browser = test.browser
    browser.until(button("Retry 6 failed"), "the button with its count")
    browser.run(f"{button('Retry 6 failed')}.click()")
    browser.until(f"{STATE} === 'Done' && {FAILED} === '0'", "no page is failed any more")
    test.looks.take("done")
    print("retry: 6 failed pages, none left")


def a_page_is_read_searched_and_asked_again(test):
    browser = test.browser
    test.open("/jobs/1/read/2/1")
    browser.until("document.querySelector('.paper img').complete && document.querySelector('.paper img').naturalWidth > 100", "the picture")
    test.looks.take("reader")
    test.looks.for_the_docs("reader", 520)
    browser.press("j")
    browser.until("location.pathname.endsWith('/read/2/2') && document.readyState === 'complete'", "the next page by its key")
    browser.press("k")
    browser.until("location.pathname.endsWith('/read/2/1') && document.readyState === 'complete'", "the previous page by its key")
    word = browser.run("document.querySelector('.prose').innerText.match(/[A-Za-z]{5,}/)[0]")
    fill(browser, "#rq", word)
    browser.press("Enter")
    browser.until("document.querySelector('.prose mark')", "a hit is marked")
    test.looks.take("search")
    # The answer comes before the page's first live value: it shows nevertheless.
    fill(browser, "#p2", "List the figures.")
    test.mock.stand_still()
    browser.block("*/live?*")
    browser.follow(".panel button.primary")
    if browser.run("document.querySelector('#vb-h')?.textContent") != "B":
        raise Failed("a page that is being asked about does not say so")
    test.mock.go_on()
    browser.until("fetch('/api/v1/jobs/1/files/2/pages/1').then(r => r.json()).then(page => page.versions.length === 2)",
                  "the second answer is stored")
    browser.block()
    browser.until("document.querySelector('#vb-h')?.textContent.includes('asked again')", "the second answer")
    browser.problems = [problem for problem in browser.problems if "ERR_BLOCKED_BY_CLIENT" not in problem]
    test.looks.take("compare")
    browser.follow("article[aria-labelledby=vb-h] button.primary")
    browser.until("document.querySelector('.quote, .prose')", "the chosen version")
    browser.expect_no_problems("the reader")
    print(f"reader: keys, search for {word!r}, asked again and chosen")


def results_are_downloaded(test):
    browser, place = test.browser, os.path.join(test.scratch, "downloads")
    os.makedirs(place, exist_ok=True)
    test.open("/jobs/1")
    browser.click("details.menu summary")
    archive = browser.download("details.menu a[href$='all.zip']", place)
    with zipfile.ZipFile(archive) as zipped:
        if zipped.testzip():
            raise Failed("the archive is damaged")
        names = sorted(zipped.namelist())
        zipped.extractall(place)
    wanted = {f"{stem}.{ending}" for stem in ("book", "tides") for ending in ("html", "md", "json")}
    found = {os.path.basename(name) for name in names}
    if not wanted <= found:
        raise Failed(f"the archive has {names}")
    print(f"downloads: {', '.join(names)}")
    return next(os.path.join(place, name) for name in names if os.path.basename(name) == "tides.json")


def a_pair_is_rebuilt(test, explanations):
    """A PDF with the JSON of an earlier run; nothing is sent, because there is nothing to send to."""
    browser = test.browser
    address = test.mock.address
    test.mock.kill()
    test.open("/jobs")
    browser.drop("form.drop", [test.tides, explanations])
    browser.until("document.querySelector('#f-what')", "the pair becomes a job that rebuilds")
    test.looks.take("rebuild")
    browser.follow("button[value=start]")
    test.until_state("Done")
    test.open("/jobs/2/read/1/1")
    browser.until("document.querySelector('.prose')?.innerText.length > 20", "the explanation beside its page")
    test.mock = mock_server(test.tidegate, test.scratch, "--latency", "20ms", listen=address)
    browser.expect_no_problems("rebuild")
    print("rebuild: a PDF and its JSON, without a server to ask")


def other_pages_look_well(test):
    browser = test.browser
    browser.open(f"{test.server.url}/jobs/new")
    test.looks.take("new-empty")
    browser.choose("#files", [test.sample("columns.pdf"), test.sample("marees.pdf")])
    browser.until(DRAFT, "a draft")
    for path, name in (("/jobs", "jobs"), ("/jobs?q=nothing-like-it", "jobs-none"), ("/jobs/1/delete", "delete"),
                       ("/loop", "loop"), ("/jobs/99", "not-found")):
        test.open(path)
        test.looks.take(name)
    # The page that is not found is an error of the network.
    browser.problems = [problem for problem in browser.problems if "404" not in problem]
    browser.expect_no_problems("other pages")


def the_keyboard_is_enough(test):
    browser = test.browser
    test.open("/jobs")
    browser.tab_to(".skip-link")
    browser.press("Enter")
    browser.choose_with_keys("input[type=file]", [test.book])
    browser.until(DRAFT, "files chosen by keyboard become a draft")
    browser.until("document.querySelector('[data-v=\"draft.files\"]').textContent === '1 file, 40 pages'", "the file is read")
    browser.tab_to("#pages")
    browser.type("1-30")
    browser.tab_to("#page_concurrency")
    browser.type("20")
    browser.until("document.querySelector('[data-plan-sentence]')?.innerText.startsWith('30 pages')", "the plan follows")
    test.mock.stand_still()
    browser.tab_to("button[value=start]")
    browser.press("Enter")
    browser.until("document.querySelectorAll('.cells i.i').length === 20", "20 pages are in flight")
    browser.press("p")
    test.until_state("Paused")
    browser.until("document.readyState === 'complete' && document.querySelector('.cells')", "the page of the paused job")
    test.looks.take("paused")
    browser.tab_to("a[href$='/cancel']")
    browser.press("Enter")
    browser.until("location.pathname.endsWith('/cancel') && document.readyState === 'complete'", "the question")
    test.looks.take("cancel")
    browser.until("document.activeElement?.textContent === 'Keep running'", "the focus is on the harmless answer")
    browser.press("Enter")
    browser.until(f"{STATE} === 'Paused' && document.readyState === 'complete'", "nothing was cancelled")
    test.mock.go_on()
    browser.press("p")
    test.until_state("Done")
    browser.until("document.readyState === 'complete' && document.querySelector('.cells')", "the page of the job that is done")
    browser.tab_to(".cells")
    browser.press("End")
    browser.until(f"{READOUT}.includes('page 30 · done')", "the last cell")
    browser.press("ArrowLeft", 3)
    browser.until(f"{READOUT}.includes('page 27')", "three cells to the left")
    browser.press("Enter")
    browser.until("location.pathname.includes('/read/')", "the reader")
    browser.expect_no_problems("keyboard")
    print(f"keyboard: chosen, planned, started, paused, kept, resumed, one page read")


def without_scripts_pages_are_forms(test):
    browser = test.browser
    browser.scripts(False)
    test.open("/jobs/new")
    browser.choose("input[type=file]", [test.sample("columns.pdf")])
    browser.follow("form.drop button")
    until_html(test, "1 file, 1 page", "the draft")
    job = browser.attribute("#job", "action").split("/")[2]
    fill_without_script(browser, "#name", "no scripts")
    browser.follow("button[value=plan]")
    expect_html(browser, "at most", "the plan, by its button")
    expect_html(browser, 'value="no scripts"', "what was typed")
    browser.follow("button[value=start]")
    until_html(test, "</i>Done</span></span> since", "the job, after a reload", f"/jobs/{job}")
    for width, name in ((1440, "light"), (390, "phone")):
        browser.look(width)
        browser.picture(f"{test.looks.pictures}/no-scripts-{name}.png")
    browser.look(1440)
    test.open(f"/jobs/{job}?file=1#page-table")
    expect_html(browser, "Pages as a table", "the table beside the grid")
    browser.follow("#page-table tbody a")
    expect_html(browser, 'class="prose"', "the explanation in the reader")
    fill_without_script(browser, "#rq", "the")
    browser.press("Enter")
    browser.wait_for_load()
    expect_html(browser, "<mark>", "hits of a search")
    test.open(f"/jobs/{job}")
    browser.click("details.menu summary")
    archive = browser.download("details.menu a[href$='md.zip']", os.path.join(test.scratch, "downloads"))
    with zipfile.ZipFile(archive) as zipped:
        if not any(name.endswith("columns.md") for name in zipped.namelist()):
            raise Failed(f"the archive has {zipped.namelist()}")
    test.open(f"/jobs/{job}")
    browser.follow("a[href$='/delete']")
    browser.follow("button.danger")
    if f'href="/jobs/{job}"' in browser.html():
        raise Failed("the deleted job is still listed")
    browser.scripts(True)
    print("without scripts: uploaded, planned, started, read, searched, downloaded, deleted")


def expect_html(browser, words, what):
    if words not in browser.html():
        raise Failed(f"{what}: there is no {words!r}")


def until_html(test, words, what, path=None):
    """Reloads until the words are there, as a person without scripts has to."""
    browser, until = test.browser, time.monotonic() + PATIENCE
    while words not in browser.html():
        if time.monotonic() > until:
            raise Failed(f"{what}: there is no {words!r} after {PATIENCE} s")
        test.open(path or browser.attribute("#job", "action").removesuffix("/start"))


def fill_without_script(browser, selector, text):
    """Clicks three times, which selects what is in the field, and types."""
    browser.click(selector, times=3)
    browser.type(text)


def a_token_is_asked_for(test):
    browser = test.browser
    token = os.path.join(test.scratch, "page.token")
    with open(token, "w", encoding="utf-8") as file:
        file.write("a-token-of-the-browser-test\n")
    os.chmod(token, 0o600)
    browser.open("about:blank")
    test.server.kill()
    test.server = serve(test.tidegate, test.scratch, "--dir", os.path.join(test.scratch, "token"), "--token-file", token,
                        "--read-only")
    test.open("/jobs")
    test.looks.take("sign-in")
    fill(browser, "#token", "a-token-of-the-browser-test")
    browser.press("Enter")
    browser.until("location.pathname === '/jobs' && document.querySelector('nav')", "signed in")
    test.looks.take("read-only")
    if browser.run("document.querySelector('form.drop') !== null"):
        raise Failed("a read-only page takes files")
    print("token: asked for, taken; read-only: no forms")


def main():
    scratch, tidegate, samples, *axe = sys.argv[1:]
    for name in ("served", "token", "downloads"):
        shutil.rmtree(os.path.join(scratch, name), ignore_errors=True)
    test = Test(scratch, tidegate, samples, axe[0] if axe else None)
    try:
        # Some answers come soon, some late.
        test.start_mock("--latency", "lognormal:2s,1.5", "--seed", "3")
        test.start_server(*SLOW)
        files_are_dropped_and_planned(test)
        a_killed_server_goes_on(test)
        a_limit_is_changed_live(test)
        failed_pages_are_retried(test)
        a_page_is_read_searched_and_asked_again(test)
        explanations = results_are_downloaded(test)
        a_pair_is_rebuilt(test, explanations)
        other_pages_look_well(test)
        test.browser.open("about:blank")
        test.start_server("--rpm", "6000")
        the_keyboard_is_enough(test)
        without_scripts_pages_are_forms(test)
        a_token_is_asked_for(test)
        print("jobs: ok")
    except Failed as failure:
        test.browser.picture(f"{test.looks.pictures}/failed.png")
        sys.exit(f"jobs: {failure}; {test.looks.pictures}/failed.png shows the page")
    finally:
        test.close()


if __name__ == "__main__":
    main()
