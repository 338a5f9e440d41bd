"""`huey_flow.py PATH COUNT PAUSE WORKERS`: microseconds a task, from the first call until the last has run. Without workers one
loop publishes all and then runs all, which is what a single consumer does, less the contention for the file.
"""

import sys
import threading
import time

from huey import SqliteHuey

path, count, pause, workers = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
huey = SqliteHuey(filename=path, fsync=True, results=False)
done, all_done, lock = 0, threading.Event(), threading.Lock()


@huey.task()
def nothing(*args, **kwargs):
    global done
    if pause:
        time.sleep(pause)
    with lock:
        done += 1
        if done == count:
            all_done.set()


def publish():
    for _ in range(count):
        nothing(1, 2, 3, name="a body of about a hundred bytes")


if workers:
    consumer = huey.create_consumer(
        workers=workers, worker_type="thread", periodic=False, initial_delay=0.001, max_delay=0.01, check_worker_health=False
    )
    consumer.start()
began = time.perf_counter()
publish()
if workers:
    all_done.wait(120)
else:
    for _ in range(count):
        huey.execute(huey.dequeue())
if done < count:
    sys.exit(f"after two minutes {done} of {count} tasks have run")
print((time.perf_counter() - began) * 1e6 / count)
sys.stdout.flush()
# The consumer's threads would first wait for their next look.
import os

os._exit(0)
