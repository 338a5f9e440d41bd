#!/usr/bin/env python3
"""The commands of docs/serve.md and docs/dashboard.md that call the JSON API, run in their order as they stand there.

usage: guide.py SCRATCH-DIRECTORY TIDEGATE SAMPLES

Only the port differs, because 7433 may be in use. curl fails where the answer is an error.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile

DOCS = os.path.join(os.path.dirname(__file__), "../../docs")
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../browser"))
from chromium import Failed  # noqa: E402
from servers import mock_server, serve, write_pdf  # noqa: E402

TOKEN = "a-token-for-the-guide"
PRINTED = "http://127.0.0.1:7433"


def commands(page):
    """The curl commands of a page, and the option that it adds where there is a token."""
    with open(os.path.join(DOCS, page), encoding="utf-8") as file:
        text = file.read()
    found = re.findall(r"^curl .*$", text, re.M)
    option = re.search(r"With a token, add `([^`]+)`", text)
    if not found or not option or any(PRINTED not in line for line in found):
        raise Failed(f"{page} has no commands, or they call another server")
    return found, option.group(1)


def run(page, lines, url, place):
    """Runs commands in `place`; returns what each printed."""
    with open(os.path.join(place, ".curlrc"), "w", encoding="utf-8") as file:
        file.write("fail-with-body\nshow-error\n")
    printed = []
    for line in lines:
        ran = subprocess.run(["bash", "-c", line.replace(PRINTED, url)], cwd=place, capture_output=True, text=True, check=False,
                             env={**os.environ, "CURL_HOME": place, "TOKEN": TOKEN})
        if ran.returncode != 0:
            raise Failed(f"{page}: {line}: {ran.stderr.strip()} {ran.stdout.strip()}")
        print(f"{line}: {len(ran.stdout)} bytes")
        printed.append(ran.stdout)
    return printed


def jobs(tidegate, scratch, place):
    lines, option = commands("serve.md")
    with serve(tidegate, scratch, "--dir", os.path.join(place, "jobs")) as server:
        printed = run("serve.md", lines, server.url, place)
        answers = [json.loads(text) for text in printed if text]
        if answers[0]["state"] != "draft" or answers[-1]["state"] not in ("running", "done"):
            raise Failed(f"serve.md: the job was {answers[0]['state']}, and is {answers[-1]['state']} after its start")
        with zipfile.ZipFile(os.path.join(place, "tides.zip")) as archive:
            if archive.testzip() or not any(name.endswith("tides.html") for name in archive.namelist()):
                raise Failed(f"serve.md: the archive has {archive.namelist()}")
    token = os.path.join(place, "page.token")
    with open(token, "w", encoding="utf-8") as file:
        file.write(TOKEN)
    os.chmod(token, 0o600)
    with serve(tidegate, scratch, "--dir", os.path.join(place, "jobs"), "--token-file", token) as server:
        run("serve.md", [f"curl -s {option} {PRINTED}/api/v1/jobs/1"], server.url, place)
        try:
            run("serve.md", [f"curl -s {PRINTED}/api/v1/jobs/1"], server.url, place)
        except Failed as failed:
            if "401" not in str(failed):
                raise
        else:
            raise Failed("serve.md: without the token the server answers as well")


def dashboard(tidegate, scratch, place):
    """The commands beside a run that lasts: a few requests per minute. A limit that is raised lets it end."""
    lines, _ = commands("dashboard.md")
    papers = write_pdf(os.path.join(place, "papers.pdf"), 40)
    with mock_server(tidegate, scratch) as mock:
        words = [tidegate, "explain", papers, "--out", os.path.join(place, "out"), "--provider", "openai", "--base-url",
                 f"{mock.url}/v1", "--model", "any", "--rpm", "6", "--json", "--progress", "none", "--dashboard=127.0.0.1:0"]
        run_with_dashboard(words, lines, place)


def run_with_dashboard(words, lines, place):
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = next((line for line in process.stderr if "dashboard: " in line), "")
        if not line:
            raise Failed("dashboard.md: the run prints no link")
        url = line.split()[-1].rstrip("/")
        printed = run("dashboard.md", lines, url, place)
        upstream = json.loads(printed[0])["upstreams"][0]
        allowed = {limit["name"]: limit["allowed"] for limit in upstream["limits"]}
        if allowed.get("rpm") != 6 or "paths" not in json.loads(printed[-1]):
            raise Failed(f"dashboard.md: the limits are {allowed}")
        change = f"curl -s -H 'content-type: application/json' {PRINTED}/api/v1/limits -d '%s'"
        wanted = {"upstream": upstream["name"], "allowed": {"rpm": 6000}, "dry_run": True}
        tried = json.loads(run("dashboard.md", [change % json.dumps(wanted)], url, place)[0])
        if not tried["seconds_left"] < tried["seconds_left_before"]:
            raise Failed(f"dashboard.md: a higher limit changes nothing: {tried}")
        run("dashboard.md", [change % json.dumps({**wanted, "dry_run": False})], url, place)
        # 40 pages at 6 per minute would take more than six minutes.
        report, errors = process.communicate(timeout=180)
        if process.returncode != 0 or json.loads(report)["totals"]["done"] != 40:
            raise Failed(f"dashboard.md: the run ended with {process.returncode}: {report[:400]} {errors[-400:]}")
        print(f"dashboard.md: rpm 6 -> 6000 while it ran: {tried['seconds_left_before']:.0f} s before, {tried['seconds_left']:.0f} s after")
    finally:
        process.kill()
        process.wait()


def main():
    scratch, tidegate, samples = sys.argv[1:]
    place = os.path.join(scratch, "guide")
    shutil.rmtree(place, ignore_errors=True)
    os.makedirs(place)
    shutil.copy(os.path.join(samples, "tides.pdf"), place)
    try:
        jobs(tidegate, scratch, place)
        dashboard(tidegate, scratch, place)
    except Failed as failure:
        sys.exit(f"guide: {failure}")


if __name__ == "__main__":
    main()
