"""A Celery worker that notes what it runs, until it was so many. Arguments: the broker's address, the queue, how many."""
import json
import os
import signal
import sys
import threading

from celery import Celery

app = Celery(broker=sys.argv[1])
app.conf.task_default_queue = sys.argv[2]
count, seen = int(sys.argv[3]), []


@app.task(name="join", bind=True)
def join(self, *args, **kwargs):
    seen.append([self.request.id, list(args), kwargs, list(self.request.timelimit)])
    if len(seen) == count:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()


out = os.dup(1)
os.dup2(2, 1)
try:
    quiet = ["-l", "ERROR", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    app.worker_main(["worker", "-P", "solo", "-n", f"{sys.argv[2]}@peer", *quiet])
except SystemExit:
    pass
os.write(out, json.dumps(seen).encode())
