"""A Celery producer as people write them; what it saw goes to standard output. Arguments: the broker's address, the queue."""
import json
import sys

from celery import Celery, chain, chord, group, signature
from celery.exceptions import TaskRevokedError, TimeLimitExceeded

app = Celery(broker=sys.argv[1], backend="rpc://")
app.conf.task_default_queue = sys.argv[2]
told = {}


def s(name, *args, immutable=False, **options):
    return signature(name, args=args, app=app, immutable=immutable, options=options)


def wait(result):
    """The result, and the states on the way there."""
    states = []
    value = result.get(timeout=60, on_message=lambda message: states.append(message["status"]))
    return value, states


def caught(result):
    try:
        return ["returned", result.get(timeout=60)]
    except Exception as error:
        return [type(error).__module__ + "." + type(error).__name__, str(error)]


# Results and failures.
told["plain"] = wait(app.send_task("add", (1, 2)))
told["keywords"] = app.send_task("echo", (1,), {"x": {"y": [None, 1.5]}}).get(timeout=60)
told["long"] = chain(s("same", 10**30 + 1), s("same"), s("echo", -(2**200))).apply_async().get(timeout=60) == [10**30 + 1, -(2**200)]
told["countdown"] = app.send_task("add", (3, 4), countdown=0.3, priority=5).get(timeout=60)
failed = app.send_task("fail", ("no luck",))
told["failure"] = caught(failed)
told["traceback"] = failed.traceback
told["state"] = failed.state
told["unknown"] = caught(app.send_task("nosuch"))
told["ignored"] = app.send_task("add", (1, 1), ignore_result=True).get(timeout=60)

# Retries, limits, expiry.
told["flaky"] = wait(app.send_task("flaky"))
told["retries"] = app.send_task("flaky", retries=1).get(timeout=60)
told["limit"] = caught(app.send_task("forever", time_limit=0.3))
told["soft limit"] = caught(app.send_task("forever", soft_time_limit=0.3, time_limit=30))
told["expired"] = caught(app.send_task("add", (1, 1), countdown=0.6, expires=0.3))

# Canvas.
told["chain"] = chain(s("add", 10, 20), s("add", 5), s("add", 1)).apply_async().get(timeout=60)
told["broken chain"] = caught(chain(s("fail", "midway"), s("add", 5), s("add", 1)).apply_async())
told["group"] = group(s("add", n, n) for n in range(5)).apply_async().get(timeout=60)
told["fan out"] = chain(s("add", 1, 2), group(s("add", 10), s("add", 20))).apply_async().get(timeout=60)
told["group of chains"] = group(chain(s("add", n, 1), s("add", 100)) for n in range(3)).apply_async().get(timeout=60)
linked = app.send_task("add", (2, 3), link=[s("note", "linked"), s("note", "still", immutable=True)])
told["linked"] = linked.get(timeout=60)
told["children"] = len(linked.children)
nested = app.send_task("add", (5, 5), link=chain(s("add", 7), s("note", "chained")))
told["nested"] = nested.get(timeout=60)
errored = app.send_task("fail", ("linked",), link_error=s("note", "sorry"))
told["errored"] = caught(errored)
told["errored id"] = errored.id
try:
    chord([s("add", 1, 1), s("add", 2, 2)], s("note", "chord")).apply_async()
    told["chord"] = "sent"
except NotImplementedError as error:
    told["chord"] = str(error)[:60]
told["notes"] = app.send_task("notes", (4,)).get(timeout=60)
print(json.dumps(told))
