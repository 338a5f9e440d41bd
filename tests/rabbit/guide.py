#!/usr/bin/env python3
"""Runs a page of the guide as it stands: guide.py PAGE BROKER-ADDRESS REDIS-ADDRESS, in a directory of its own.

A comment before a block says what it is: `file NAME` is written, `start` is a command that goes on until the page ends, `run` must
succeed, `until` is run until it does. The text block behind a command is what its output must contain, line by line in order.
"""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

page, broker, redis = sys.argv[1:4]
text = open(page, encoding="utf-8").read().replace("amqp://localhost", broker).replace("redis://localhost", redis)
BLOCK = re.compile(r"<!-- guide: (.+?) -->\n```\w+\n(.*?)```\n(?:\n```text\n(.*?)```)?", re.S)
PATIENCE_S = 60


def fits(expected, output):
    lines = iter(output.splitlines())
    return all(any(wanted in line for line in lines) for wanted in expected.splitlines())


def run(command, expected):
    """What went wrong; nothing if nothing did."""
    done = subprocess.run(["bash", "-euc", command], capture_output=True, text=True, timeout=PATIENCE_S)
    if done.returncode == 0 and fits(expected, done.stdout):
        return ""
    return f"{command}exit {done.returncode}\n{done.stdout}{done.stderr}\nexpected:\n{expected}"


def main():
    started = []
    directory = tempfile.mkdtemp()
    os.chdir(directory)
    steps = 0
    try:
        for what, body, expected in BLOCK.findall(text):
            steps += 1
            verb, _, name = what.partition(" ")
            wrong = ""
            if verb == "file":
                open(name, "w", encoding="utf-8").write(body)
            elif verb == "start":
                log = open(f"log-{len(started)}.txt", "w", encoding="utf-8")
                started.append(subprocess.Popen(["bash", "-euc", f"exec {body}"], stdout=log, stderr=log))
            elif verb == "run":
                wrong = run(body, expected)
            else:
                deadline = time.monotonic() + PATIENCE_S
                while (wrong := run(body, expected)) and time.monotonic() < deadline:
                    time.sleep(0.2)
            if wrong:
                logs = "".join(open(f"log-{n}.txt", encoding="utf-8").read() for n in range(len(started)))
                sys.exit(f"{page}, block {steps}: {wrong}\n{logs}")
    finally:
        for process in started:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE_S)
        shutil.rmtree(directory)
    print(f"{page}: {steps} blocks as they stand")


main()
