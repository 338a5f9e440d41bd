#!/usr/bin/env python3
"""Jobs in Chromium, as a person uses them: choose files, see the plan, start, watch, retry, read, search, compare, download.

usage: jobs.py SCRATCH-DIRECTORY TIDEGATE PDF…

Starts the mock server and `tidegate serve`. Pictures stay in SCRATCH-DIRECTORY/jobs.
"""

import json
import os
import signal
import subprocess
import sys
import urllib.request

from chromium import Browser, Failed

LOOKS = (("light", 1440, False), ("dark", 1440, True), ("phone", 390, False))


def start(words, **options):
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, **options)
    process.link = process.stdout.readline().split()[0].rstrip("/")
    return process


def serve(tidegate, directory, mock, listen):
    return start([tidegate, "serve", "--dir", directory, "--listen", listen, "--provider", "openai", "--base-url", mock,
                  "--model", "any", "--rpm", "60", "--minute", "10s", "--retries", "0", "--price-in", "0.15",
                  "--price-out", "0.6"])


def look(browser, pictures, name):
    for look_name, width, dark in LOOKS:
        browser.look(width, dark=dark)
        wide = browser.run("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        browser.picture(f"{pictures}/{name}-{look_name}.png")
        if wide > 0:
            raise Failed(f"{name} is {wide} pixels too wide at {width}")
    browser.look(1440)


def choose(browser, selector, files):
    browser._call("DOM.setFileInputFiles", {"nodeId": browser._node(selector), "files": files})


def until(browser, script, what, seconds=20):
    """Waits until the expression is true; an element counts as true."""
    browser.until(f"!!({script})", what, seconds)


def main():
    scratch, tidegate, *pdfs = sys.argv[1:]
    pictures = os.path.join(scratch, "jobs")
    os.makedirs(pictures, exist_ok=True)
    directory = os.path.join(scratch, "serve")
    mock = start([tidegate, "provider", "--listen", "127.0.0.1:0", "--latency", "400ms", "--fail", "500=0.15", "--seed", "3"])
    mock_url = mock.link if mock.link.endswith("/v1") else f"{mock.link}/v1"
    server = serve(tidegate, directory, mock_url, "127.0.0.1:0")
    url, browser = server.link, None
    try:
        browser = Browser(scratch)
        browser.open(f"{url}/jobs")
        look(browser, pictures, "empty")
        choose(browser, "#files", pdfs)
        until(browser, "location.pathname.match(/^\\/jobs\\/\\d+$/) && document.querySelector('[data-plan-sentence]')", "the plan of the draft")
        until(browser, "!document.querySelector('[data-v=\"draft.files\"]').textContent.includes('being read')", "the files are read")
        sentence = "document.querySelector('[data-plan-sentence]').textContent"
        before = browser.run(sentence)
        browser.run("(() => { const f = document.querySelector('#pages'); f.value = '1-2'; f.dispatchEvent(new Event('input', {bubbles: true})); })()")
        until(browser, f"{sentence} !== {json.dumps(before)}", "the plan follows the form")
        browser.run("(() => { const f = document.querySelector('#pages'); f.value = ''; f.dispatchEvent(new Event('input', {bubbles: true})); })()")
        until(browser, f"{sentence}.startsWith({json.dumps(before.split('about')[0])})", "the plan follows the form again")
        look(browser, pictures, "new")

        browser.click("button[value=start]")
        until(browser, "document.querySelector('.cells i.i, .cells i.d')", "pages are in flight")
        look(browser, pictures, "job")
        # Killed in the middle: the page goes stale, the server comes back, the job goes on, the page follows.
        server.send_signal(signal.SIGKILL)
        server.wait()
        until(browser, "document.body.classList.contains('stale')", "the page is stale", 30)
        server = serve(tidegate, directory, mock_url, url.removeprefix("http://"))
        until(browser, "!document.body.classList.contains('stale')", "the page has a connection again", 60)
        until(browser, "document.querySelector('.job-head .st').textContent === 'Blocked'", "a limit blocks", 60)
        look(browser, pictures, "blocked")
        until(browser, "document.querySelector('.job-head .st').textContent === 'Done'", "the job is done", 120)
        until(browser, "[...document.querySelectorAll('.job-head button')].some(b => b.textContent.startsWith('Retry'))", "failed pages can be retried")
        look(browser, pictures, "done")
        for _ in range(12):
            if browser.run("document.querySelector('[data-v=\"job.n.x\"]').textContent") == "0":
                break
            browser.run("[...document.querySelectorAll('.job-head button')].find(b => b.textContent.startsWith('Retry')).click()")
            until(browser, "document.querySelector('.job-head .st').textContent !== 'Done'", "it is retried")
            until(browser, "document.querySelector('.job-head .st').textContent === 'Done'", "the retry is done", 120)
        else:
            raise Failed("pages still fail")

        browser.open(f"{url}/jobs/1/read/1/1")
        until(browser, "document.querySelector('.paper img').complete && document.querySelector('.paper img').naturalWidth > 100", "the picture")
        look(browser, pictures, "reader")
        browser.run("document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'j', bubbles: true}))")
        until(browser, "location.pathname.endsWith('/read/1/2')", "the next page by its key")
        browser.open(f"{url}/jobs/1/read/1/1?q=the")
        until(browser, "document.querySelector('.prose mark')", "a hit is marked")
        look(browser, pictures, "search")
        browser.run("document.querySelector('#p2').value = 'List the figures.'")
        browser.run("document.querySelector('#p2').form.requestSubmit()")
        until(browser, "document.querySelector('#vb-h')?.textContent.includes('asked again')", "the second answer", 60)
        look(browser, pictures, "compare")
        with urllib.request.urlopen(f"{url}/jobs/1/download/all.zip") as response:
            if not response.read().startswith(b"PK"):
                raise Failed("no archive")
        browser.open(f"{url}/jobs")
        look(browser, pictures, "jobs")
        known = ("net::ERR_CONNECTION_REFUSED", "net::ERR_INCOMPLETE_CHUNKED_ENCODING", "net::ERR_CONNECTION_RESET", "net::ERR_EMPTY_RESPONSE")
        browser.problems = [problem for problem in browser.problems if not any(word in problem for word in known)]
        browser.expect_no_problems("jobs")

        # Without scripts: the plan is a button, actions are forms, the grid has a table.
        browser.scripts(False)
        browser.open(f"{url}/jobs/1?file=1#page-table")
        if "Pages as a table" not in browser.html():
            raise Failed("no table without scripts")
        browser.picture(f"{pictures}/no-scripts.png")
        print("jobs: ok")
    finally:
        if browser:
            browser.close()
        for process in (server, mock):
            process.kill()
            process.wait()


if __name__ == "__main__":
    try:
        main()
    except Failed as failure:
        sys.exit(f"jobs: {failure}")
