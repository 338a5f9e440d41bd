#!/usr/bin/env python3
"""Runs `tidegate batch` against strict servers and judges the runs: stated limits are used up without more than a few refusals,
unknown limits are found. Needs python3 alone.

    python3 bench/limits/run.py target/release/tidegate                  all cases, some 15 minutes
    python3 bench/limits/run.py target/release/tidegate --only stated    20 runs of a stated window, ten beside two busy loops
    python3 bench/limits/run.py target/release/tidegate --only unknown   5 runs of each unknown limit
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from strict_server import AtOnce, Calendar, Server, Sliding  # noqa: E402

BUSY = ["sh", "-c", "while :; do :; done"]

# Name, limit, requests, answer time.
UNKNOWN = [
    ("10 per second", lambda: Sliding(10, 1.0), 600, 0.05),
    ("600 per minute", lambda: Sliding(600, 60.0), 3000, 0.05),
    ("60 per calendar minute", lambda: Calendar(60, 60.0), 300, 0.05),
    ("20 at once", lambda: AtOnce(20), 2000, 0.2),
    ("20 at once, says so", lambda: AtOnce(20, says=True), 2000, 0.2),
]


def questions(count):
    for number in range(count):
        body = {"model": "m", "messages": [{"role": "user", "content": f"Question {number}"}]}
        yield json.dumps({"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}) + "\n"


async def run(binary, limit, requests, latency, options):
    """Sends the requests to a server of its own. Returns what became of them."""
    server = Server(limit, latency)
    port = await server.start()
    with tempfile.TemporaryDirectory() as folder:
        source, results = os.path.join(folder, "in.jsonl"), os.path.join(folder, "out.jsonl")
        with open(source, "w") as file:
            file.writelines(questions(requests))
        # Nothing is remembered from another run.
        environment = {**os.environ, "XDG_DATA_HOME": folder}
        process = await asyncio.create_subprocess_exec(
            binary, "batch", source, "-o", results, "--base-url", f"http://127.0.0.1:{port}/v1", "--progress", "none",
            *options, env=environment, stdout=subprocess.DEVNULL)
        code = await process.wait()
        with open(results) as file:
            lines = [json.loads(line) for line in file]
    await server.stop()
    answered = {line["custom_id"] for line in lines if line["error"] is None}
    ideal, took = server.ideal(requests), server.took()
    return {
        "took": took, "ideal": ideal, "share": ideal / took, "refused": server.refused, "lost": requests - len(answered),
        "paid_twice": server.served - len(answered), "code": code,
    }


def show(name, row):
    load = os.getloadavg()[0]
    print(f"{name:34} {row['took']:7.1f} s  ideal {row['ideal']:6.1f} s  share {row['share']:.3f}  refused {row['refused']:3}  "
          f"lost {row['lost']}  load {load:.1f}", flush=True)


async def stated(binary, runs):
    """600 per 6 s, stated; every second half of the runs beside two busy loops."""
    failed = []
    for number in range(runs):
        busy = number >= runs // 2
        hogs = [subprocess.Popen(BUSY) for _ in range(2 if busy else 0)]
        try:
            row = await run(binary, Sliding(600, 6.0), 3000, 0.05, ["--rpm", "600", "--minute", "6s"])
        finally:
            for hog in hogs:
                hog.kill()
                hog.wait()
        name = f"stated 600 per 6 s{', 2 busy loops' if busy else ''} #{number + 1}"
        show(name, row)
        if row["share"] < 0.97 or row["lost"] or row["code"]:
            failed.append(name)
    return failed


async def unknown(binary, runs):
    """Limits that are not stated: time, refusals and losses, as medians."""
    failed = []

    async def case(name, limit, requests, latency):
        rows = []
        for number in range(runs):
            rows.append(await run(binary, limit(), requests, latency, []))
            show(f"unknown {name} #{number + 1}", rows[-1])
        took = statistics.median(row["took"] / row["ideal"] for row in rows)
        refused = statistics.median(row["refused"] for row in rows)
        lost = sum(row["lost"] for row in rows)
        good = took <= 1.3 and refused <= max(0.05 * requests, 25) and lost == 0
        print(f"unknown {name}: {took:.2f} x ideal, {refused:g} refused, {lost} lost (median of {runs}): "
              f"{'ok' if good else 'FAILED'}", flush=True)
        if not good:
            failed.append(name)

    # They wait most of the time, so they do not disturb each other.
    await asyncio.gather(*(case(*row) for row in UNKNOWN))
    return failed


async def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("binary")
    arguments.add_argument("--only", choices=["stated", "unknown"])
    arguments.add_argument("--runs", type=int, help="runs instead of 20 and 5")
    arguments = arguments.parse_args()
    binary = os.path.abspath(arguments.binary)
    failed = []
    if arguments.only != "unknown":
        failed += await stated(binary, arguments.runs or 20)
    if arguments.only != "stated":
        failed += await unknown(binary, arguments.runs or 5)
    if failed:
        sys.exit("failed: " + ", ".join(failed))


asyncio.run(main())
