"""A Celery worker with the tasks that the canvas needs, until it is ended. Arguments: the broker's address, the queue, Redis' address."""
import os
import sys

from celery import Celery

app = Celery(broker=sys.argv[1], backend=sys.argv[3])
app.conf.task_default_queue = sys.argv[2]


@app.task(name="add")
def add(x, y):
    return x + y


@app.task(name="total")
def total(numbers):
    return sum(numbers)


@app.task(name="same")
def same(value):
    return value


@app.task(name="fail")
def fail(message):
    raise ValueError(message)


os.dup2(2, 1)
quiet = ["-l", "CRITICAL", "--without-gossip", "--without-mingle", "--without-heartbeat"]
# A name of its own: two of one name confuse the broker.
app.worker_main(["worker", "-P", "solo", "-n", f"{sys.argv[2]}@peer", *quiet])
