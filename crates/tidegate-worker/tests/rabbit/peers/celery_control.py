"""Celery's own tools look at a worker and tell it things. Arguments: the broker's address, the queue, the worker's node name."""
import json
import subprocess
import sys
import threading

from celery import Celery
from celery.exceptions import TaskRevokedError

address, queue, node = sys.argv[1:4]
app = Celery(broker=address, backend="rpc://")
app.conf.task_default_queue = queue
told = {}


def command(*arguments):
    """Celery's command line."""
    line = [sys.executable, "-m", "celery", "-b", address, *arguments]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# Events of everybody, heard from the beginning.
heard, want = [], threading.Condition()


def hear(event):
    with want:
        heard.append(event)
        want.notify_all()


def listen():
    with app.connection() as connection:
        app.events.Receiver(connection, handlers={"*": hear}).capture(limit=None, timeout=None, wakeup=False)


threading.Thread(target=listen, daemon=True).start()


def event(kind, uuid=None):
    """Waits for an event of that task, or else of the worker itself. Other tests have workers as well."""
    def found():
        return [e for e in heard if e["type"] == kind and (e.get("uuid") == uuid if uuid else e["hostname"] == node)]
    with want:
        assert want.wait_for(found, 30), f"{kind} of {uuid} is missing among {[(e['type'], e.get('uuid')) for e in heard]}"
        return found()[0]


told["heartbeat"] = event("worker-heartbeat")
inspect = app.control.inspect(destination=[node], timeout=10)
told["ping"] = inspect.ping()
told["enabled"] = app.control.enable_events(destination=[node], reply=True, timeout=10)

# What runs, what waits, what is known.
running = app.send_task("hold", ("first",))
event("task-started", running.id)
waiting = app.send_task("hold", ("second",))
event("task-received", waiting.id)
delayed = app.send_task("add", (1, 2), countdown=3600)
told["active"] = inspect.active()
told["reserved"] = inspect.reserved()
told["scheduled"] = inspect.scheduled()
told["registered"] = inspect.registered()
told["queues"] = [q["name"] for q in inspect.active_queues()[node]]
told["stats"] = inspect.stats()
told["query"] = {id: state for id, (state, _) in inspect.query_task(running.id, waiting.id, "nosuch")[node].items()}
told["conf"] = inspect.conf()
told["command line"] = command("inspect", "ping", "-d", node, "--timeout", "10")
told["unknown"] = app.control.broadcast("rate_limit", {"task_name": "add", "rate_limit": "1/s"}, [node], reply=True, timeout=10)


def outcome(result):
    try:
        return ["returned", result.get(timeout=60)]
    except TaskRevokedError as error:
        return ["revoked", str(error)]


# One that waits is revoked, one that runs is spared, then ended.
told["revoke"] = app.control.revoke(waiting.id, destination=[node], reply=True, timeout=10)
app.control.revoke(running.id, destination=[node], reply=True, timeout=10)
told["spared"] = [task["id"] == running.id for task in inspect.active()[node]]
told["terminate"] = app.control.revoke(running.id, terminate=True, destination=[node], reply=True, timeout=10)
told["running"] = outcome(running)
told["waiting"] = outcome(waiting)
event("task-revoked", running.id)
later = "11111111-2222-3333-4444-555555555555"
app.control.revoke(later, destination=[node], reply=True, timeout=10)
told["later"] = outcome(app.send_task("add", (1, 2), task_id=later))
event("task-revoked", later)
told["revoked"] = {waiting.id, running.id, later} <= set(inspect.revoked()[node])

# Events of a whole life.
done = app.send_task("add", (3, 4), shadow="add for Ada")
told["done"] = done.get(timeout=60)
told["succeeded"] = event("task-succeeded", done.id)
told["received"] = event("task-received", done.id)
failed = app.send_task("fail", ("no luck",))
told["failed"] = event("task-failed", failed.id)
flaky = app.send_task("flaky")
told["flaky"] = flaky.get(timeout=60)
told["retried"] = event("task-retried", flaky.id)

# The end.
print(json.dumps(told), flush=True)
command("control", "shutdown", "-d", node, "--timeout", "10")
event("worker-offline")
