#!/usr/bin/env python3
"""The web page in Chromium: Limits and Loop in light, dark and at phone width; live, stale, and without scripts.

usage: web.py SCRATCH-DIRECTORY DASHBOARD-EXAMPLE [AXE-SCRIPT]

Pictures stay in SCRATCH-DIRECTORY/web. With axe-core's script, every page is checked for violations that are serious or critical.
"""

import json
import os
import signal
import socket
import subprocess
import sys

from chromium import Browser, Failed
from looks import Looks

PAGES = ("limits", "loop")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(program, port):
    server = subprocess.Popen([program, f"127.0.0.1:{port}"], stdout=subprocess.PIPE, text=True)
    server.url = server.stdout.readline().strip()
    return server


def stop(server):
    server.kill()
    server.wait()


def every_look(browser, url, looks):
    for page in PAGES:
        browser.open(f"{url}{page}")
        browser.until("document.querySelector('[data-clock]').textContent !== ''", "the clock")
        looks.take(page)
        browser.expect_no_problems(page)


def values_move(browser, url):
    browser.look(1440)
    browser.open(f"{url}limits")
    figures = "document.querySelector('[data-h=\"limits.0.figures.1\"] dd:nth-of-type(2)').textContent"
    before = browser.run(figures)
    browser.until(f"{figures} !== {json.dumps(before)}", "the total moves without a reload")
    print(f"live: the total moved from {before} to {browser.run(figures)}")


def a_change_is_tried_then_applied(browser, url):
    browser.open(f"{url}limits")
    browser.run("{ const field = document.querySelector('[name=\"to-rpm\"]'); field.value = '310'; "
                "field.dispatchEvent(new Event('input', { bubbles: true })); }")
    said = browser.until("document.querySelector('#answer .big')?.textContent.trim()", "the answer")
    browser.click("#answer button.primary")
    browser.wait_for_load()
    browser.until("document.querySelector('[data-h=\"limits.0.now.1\"]')?.textContent.includes('of 310')", "the new amount")
    browser.expect_no_problems("change a limit")
    print(f"what if: {said!r}; applied")


def a_trace_is_recorded_and_opened(browser, url, looks):
    browser.open(f"{url}loop")
    browser.run("document.getElementById('ticks').value = '100'")
    browser.click("form[action='/loop/traces'] button")
    browser.wait_for_load()
    browser.until("document.querySelector('a[href=\"/loop/traces/1\"]') !== null", "the trace")
    browser.open(f"{url}loop/traces/1")
    counts = browser.until("document.getElementById('counts').textContent", "the timeline's counts")
    browser.until("matchMedia('(min-width: 1px)').matches && document.querySelector('canvas').width > 300", "the timeline")
    looks.take("timeline")
    browser.expect_no_problems("timeline")
    print(f"timeline:{counts}")


def a_silent_server_makes_the_page_stale(browser, server, url, pictures):
    browser.open(f"{url}limits")
    browser.until("document.querySelectorAll('[data-until]').length > 0", "a countdown")
    server.send_signal(signal.SIGSTOP)
    try:
        browser.until("document.body.classList.contains('stale')", "stale")
        if browser.run("document.querySelector('.stale-note').hidden"):
            raise Failed("a stale page does not say so")
        browser.picture(f"{pictures}/limits-stale.png")
    finally:
        server.send_signal(signal.SIGCONT)
    browser.until("!document.body.classList.contains('stale')", "live again")
    browser.until("document.querySelector('.stale-note').hidden", "the notice goes")
    print("stale: after five seconds of silence; live again afterwards")


def a_restarted_server_is_found_again(browser, server, program, port, url):
    browser.open(f"{url}loop")
    pid = f"document.querySelector('.head .sub').textContent.includes('pid {server.pid}')"
    browser.until(pid, "the first process")
    stop(server)
    browser.until("document.body.classList.contains('stale')", "stale")
    server = start(program, port)
    browser.until("!document.body.classList.contains('stale')", "reconnected")
    # A lost connection is an error of the network, and the only one here.
    browser.problems = [problem for problem in browser.problems if "ERR_CONNECTION" not in problem and "ERR_INCOMPLETE" not in problem]
    browser.expect_no_problems("reconnect")
    print("restart: the page reconnects by itself")
    return server


def without_scripts(browser, url):
    browser.scripts(False)
    browser.open(f"{url}limits")
    if "reload the page" not in browser.html():
        raise Failed("without scripts the page does not say that it does not update by itself")
    browser.click("button[value='dark']")
    browser.wait_for_load()
    theme = browser.attribute("html", "data-theme")
    if theme != "dark":
        raise Failed(f"the colours chosen without scripts are {theme!r}")
    browser.click(".effect button")
    browser.wait_for_load()
    if "Change a number" not in browser.html():
        raise Failed("the form of limits does not answer without scripts")
    browser.scripts(True)
    print("without scripts: pages, colours and the form of limits work")


def main():
    scratch, program = sys.argv[1:3]
    pictures = os.path.join(scratch, "web")
    port = free_port()
    server = start(program, port)
    browser = Browser(scratch)
    try:
        url = server.url
        looks = Looks(browser, pictures, sys.argv[3] if len(sys.argv) > 3 else None)
        every_look(browser, url, looks)
        values_move(browser, url)
        a_change_is_tried_then_applied(browser, url)
        a_trace_is_recorded_and_opened(browser, url, looks)
        a_silent_server_makes_the_page_stale(browser, server, url, pictures)
        without_scripts(browser, url)
        server = a_restarted_server_is_found_again(browser, server, program, port, url)
    except Failed as failure:
        browser.picture(f"{pictures}/failed.png")
        sys.exit(f"web: {failure}; {pictures}/failed.png shows the page")
    finally:
        browser.close()
        stop(server)


if __name__ == "__main__":
    main()
