#!/usr/bin/env python3
"""The JSON API against its own OpenAPI document: schemathesis sends what the document allows, and what it forbids.

usage: api.py SCRATCH-DIRECTORY SCHEMATHESIS SECONDS TIDEGATE DASHBOARD-EXAMPLE SAMPLES

No answer may be a 5xx, have a status that the document does not name, or a body that is not of its schema; what the document
forbids must be refused. Event streams are not part of the document. Reports stay in SCRATCH-DIRECTORY.
"""

import json
import os
import shutil
import subprocess
import sys
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../browser"))
from chromium import Failed  # noqa: E402
from servers import Program, serve  # noqa: E402

# A body may be valid by its schema and refused for what it says, such as an upstream that there is not.
LEFT_OUT = ("positive_data_acceptance",)
# Jobs are not deleted, or there would be nothing to ask about.
SERVED = ("--exclude-method", "DELETE")


def call(url, method="GET", body=None, kind="application/json"):
    request = urllib.request.Request(url, data=body, method=method, headers={"content-type": kind} if body else {})
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def upload(server, path):
    """Makes a draft of a file."""
    with open(path, "rb") as file:
        content = file.read()
    head = b'--edge\r\nContent-Disposition: form-data; name="files"; filename="tides.pdf"\r\n\r\n'
    return call(f"{server.url}/api/v1/jobs", "POST", head + content + b"\r\n--edge--\r\n", "multipart/form-data; boundary=edge")


def check(schemathesis, server, name, seconds, scratch, *options):
    report = os.path.join(scratch, f"schemathesis-{name}.txt")
    argv = [schemathesis, "run", f"{server.url}/api/v1/openapi.json", "--checks", "all", "--exclude-checks", ",".join(LEFT_OUT),
            "--phases", "coverage,fuzzing", "--max-time", str(seconds), "--request-timeout", "60", "--warnings", "off",
            "--no-shrink", *options]
    # Without a directory of its own it would leave files in the source tree.
    with open(report, "wb") as file:
        code = subprocess.run(argv, stdout=file, stderr=subprocess.STDOUT, cwd=scratch, check=False).returncode
    text = open(report, encoding="utf-8").read()
    if code != 0:
        raise Failed(f"{name}: {text[max(0, text.find('= FAILURES')):][:6000]}\nThe whole report: {report}")
    document = call(f"{server.url}/api/v1/openapi.json")
    print(f"{name}: {len(document['paths'])} paths,", next((line for line in text.splitlines() if "generated" in line), "").strip())


def main():
    scratch, schemathesis, seconds, tidegate, dashboard, samples = sys.argv[1:]
    directory = os.path.join(scratch, "api")
    shutil.rmtree(directory, ignore_errors=True)
    try:
        with serve(tidegate, scratch, "--dir", directory) as server:
            # Something to ask about: a job that is done, and a draft.
            for _ in range(2):
                upload(server, os.path.join(samples, "tides.pdf"))
            call(f"{server.url}/api/v1/jobs/1/start", "POST")
            check(schemathesis, server, "serve", int(seconds) * 2 // 3, scratch, *SERVED)
        with Program(dashboard, "127.0.0.1:0", log=os.path.join(scratch, "dashboard.log")) as server:
            check(schemathesis, server, "dashboard", int(seconds) // 3, scratch)
    except Failed as failure:
        sys.exit(f"api: {failure}")


if __name__ == "__main__":
    main()
