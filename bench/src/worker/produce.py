"""`produce.py COUNT`: microseconds a task from the first publish until the last has begun, behind one that warms up.
`produce.py COUNT latency`: the median of milliseconds from a publish to its start, one at a time, everybody idle before.
"""

import os
import statistics
import sys
import time

from peer_app import send

SEEN = os.environ["BENCH_SEEN"]


def wait_for(count):
    give_up = time.monotonic() + 120
    while os.path.getsize(SEEN) < 8 * count:
        time.sleep(0.001)
        if time.monotonic() > give_up:
            sys.exit(f"after two minutes {os.path.getsize(SEEN) // 8} of {count} tasks have run")


count = int(sys.argv[1])
send()
wait_for(1)
if sys.argv[2:] == ["latency"]:
    sent = []
    for n in range(count):
        time.sleep(0.02)
        sent.append(time.monotonic_ns())
        send()
        wait_for(n + 2)
    with open(SEEN, "rb") as seen:
        seen.seek(8)
        ran = [int.from_bytes(seen.read(8), "little") for _ in sent]
    print(statistics.median(to - begin for begin, to in zip(sent, ran)) / 1e6)
else:
    began = time.monotonic_ns()
    for _ in range(count):
        send()
    wait_for(count + 1)
    with open(SEEN, "rb") as seen:
        data = seen.read()
    last = max(int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8))
    print((last - began) / 1e3 / count)
