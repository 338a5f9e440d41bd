"""A real Flower beside the worker, asked over HTTP. Arguments: the broker's address, the queue, the worker's node name."""
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

from celery import Celery

address, queue, node = sys.argv[1:4]
with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
line = [sys.executable, "-m", "celery", "-b", address, "flower", f"--port={port}", "--address=127.0.0.1"]
flower = subprocess.Popen(line, env={**os.environ, "FLOWER_UNAUTHENTICATED_API": "true"}, stderr=subprocess.PIPE, text=True)


def ask(path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        return json.load(answer)


def until(path, found):
    """What Flower says once it says what is waited for."""
    for _ in range(300):
        assert flower.poll() is None, flower.stderr.read()
        try:
            said = ask(path)
            if found(said):
                return said
        except (urllib.error.URLError, ConnectionError):
            pass
        time.sleep(0.1)
    raise SystemExit(f"Flower never said it at {path}; it ends with {said}")


try:
    told = {"worker": until("/api/workers?refresh=1", lambda said: said.get(node, {}).get("stats"))[node]}
    app = Celery(broker=address, backend="rpc://")
    app.conf.task_default_queue = queue
    # Flower has asked for events by now, or will in a moment.
    while not app.control.inspect(destination=[node], timeout=10).conf()[node]["worker_send_task_events"]:
        time.sleep(0.1)
    done, failed = app.send_task("add", (3, 4)), app.send_task("fail", ("no luck",))
    states = {done.id: "SUCCESS", failed.id: "FAILURE"}
    tasks = until("/api/tasks", lambda said: all(said.get(id, {}).get("state") == state for id, state in states.items()))
    told["done"], told["failed"] = tasks[done.id], tasks[failed.id]
    told["status"] = ask("/api/workers?status=1")[node]
    print(json.dumps(told))
finally:
    flower.terminate()
    flower.wait()
