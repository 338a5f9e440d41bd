"""A Celery producer whose results are in Redis. Arguments: the broker's address, the queue, Redis' address."""
import json
import sys

import redis
from celery import Celery, chain, chord, signature

app = Celery(broker=sys.argv[1], backend=sys.argv[3])
app.conf.task_default_queue = sys.argv[2]
kept = redis.Redis.from_url(sys.argv[3])
told = {}


def s(name, *args, **options):
    return signature(name, args=args, app=app, options=options)


# Everything that is told to those who listen.
heard = kept.pubsub(ignore_subscribe_messages=True)
heard.psubscribe("celery-task-meta-*")


def wait(result):
    """The result, and the states on the way there."""
    value, states = result.get(timeout=60), []
    while not states or states[-1] != "SUCCESS":
        message = heard.get_message(timeout=60)
        if message and message["channel"].decode().endswith(result.id):
            states.append(json.loads(message["data"])["status"])
    return value, states


def caught(result):
    """Without a look at those before it, which would be told in its place."""
    value = result.get(timeout=60, propagate=False)
    return [type(value).__name__, str(value)] if isinstance(value, Exception) else ["returned", value]


plain = app.send_task("add", (1, 2))
told["plain"] = wait(plain)
# Whoever asks later, and elsewhere.
again = Celery(broker=sys.argv[1], backend=sys.argv[3]).AsyncResult(plain.id)
told["again"] = [again.state, again.get(timeout=60)]
told["ttl"] = kept.ttl(f"celery-task-meta-{plain.id}")
told["long"] = chord([s("same", 10**30 + n) for n in range(3)], s("same")).apply_async().get(timeout=60) == [10**30, 10**30 + 1, 10**30 + 2]
failed = app.send_task("fail", ("no luck",))
told["failure"] = caught(failed)
told["failed"] = [failed.state, failed.traceback]
told["flaky"] = wait(app.send_task("flaky"))
told["unknown"] = caught(app.send_task("nosuch"))
told["expired"] = caught(app.send_task("add", (1, 1), countdown=0.6, expires=0.3))
told["limit"] = caught(app.send_task("forever", time_limit=0.3))
ignored = app.send_task("add", (1, 1), ignore_result=True)
told["broken chain"] = caught(chain(s("fail", "midway"), s("add", 5)).apply_async())
told["ignored"] = kept.exists(f"celery-task-meta-{ignored.id}")

# Those who are to be told that a chord failed are told with its id.
body = s("total", link_error=[s("note", "sorry")])
broken = chord([s("add", 1, 1), s("fail", "midway")], body).apply_async()
told["broken chord"] = caught(broken)
told["broken id"] = broken.id
inner = chord([s("fail", "within"), s("add", 1, 1)], s("total"))
told["broken chord in a chord"] = caught(chord([inner, s("add", 3, 3)], s("total")).apply_async())
# A part that is revoked before it runs.
member = s("add", 1, 1, countdown=0.6, expires=0.3)
told["expired part"] = caught(chord([member, s("add", 2, 2)], s("total")).apply_async())
told["notes"] = app.send_task("notes", (1,)).get(timeout=60)
left = kept.keys("celery-taskset-meta-*")
told["left"] = [key.decode() for key in left if not key.endswith(b".c")]
print(json.dumps(told))
