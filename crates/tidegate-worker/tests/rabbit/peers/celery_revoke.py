"""Revokes tasks of several workers. Arguments: the broker's address, the queue, their node names; or an id that was revoked before."""
import json
import sys
import time
from uuid import uuid4

from celery import Celery
from celery.exceptions import TaskRevokedError

app = Celery(broker=sys.argv[1], backend="rpc://")
app.conf.task_default_queue = sys.argv[2]
nodes = sys.argv[3].split()
told = {}


def outcome(result):
    try:
        return result.get(timeout=60)
    except TaskRevokedError:
        return "revoked"


if not nodes:
    print(json.dumps({"again": outcome(app.send_task("add", (1, 2), task_id=sys.argv[4]))}))
    sys.exit()

# Ends with the last answer. A busy machine takes its time for it.
PATIENCE_S = 60
inspect = app.control.inspect(destination=nodes, timeout=PATIENCE_S, limit=len(nodes))


def active():
    return {task["id"] for tasks in (inspect.active() or {}).values() for task in tasks}


def until(reached):
    for _ in range(600):
        if reached():
            return
        time.sleep(0.1)
    raise SystemExit(f"it never came to that: {active()}")


def remembering(ids):
    """The workers that know of these revokes."""
    return [node for node, known in (inspect.revoked() or {}).items() if ids <= set(known)]


# One for each worker, and one that waits: in the broker or in one's hand.
running = [app.send_task("hold", (str(n),)) for n in range(len(nodes))]
until(lambda: active() == {task.id for task in running})
waiting = app.send_task("add", (1, 2))
# Before a worker has room for it.
app.control.revoke(waiting.id)
until(lambda: len(remembering({waiting.id})) == len(nodes))
heard = app.control.revoke(running[0].id, terminate=True, destination=nodes, reply=True, timeout=PATIENCE_S, limit=len(nodes))
told["heard"] = len(heard)
told["terminated"] = outcome(running[0])
told["waiting"] = outcome(waiting)
later, again = str(uuid4()), str(uuid4())
app.control.revoke([later, again])
until(lambda: len(remembering({later, again})) == len(nodes))
told["later"] = outcome(app.send_task("add", (1, 2), task_id=later))
told["spared"] = len(active() & {task.id for task in running[1:]})
told["remembered"] = len(remembering({later, again}))
told["again"] = again
print(json.dumps(told))
