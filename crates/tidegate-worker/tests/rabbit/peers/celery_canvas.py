"""A Celery producer whose results are in Redis draws everything its canvas has. Arguments: the broker's address, the queue, Redis'
address, and optionally the canvases to leave out, with commas between."""
import json
import re
import sys

from celery import Celery, chain, chord, group, signature
from celery.exceptions import TimeoutError

app = Celery(broker=sys.argv[1], backend=sys.argv[3])
app.conf.task_default_queue = sys.argv[2]


def s(name, *args, **more):
    return signature(name, args=args, app=app, **more)


def outcome(canvas):
    """What who waits gets; ids are different every time."""
    # Or else whoever looks first at a member that failed would be told of that one.
    try:
        value = canvas.apply_async().get(timeout=60, propagate=False)
    except TimeoutError as error:
        value = error
    if not isinstance(value, Exception):
        return value
    return [type(value).__name__, re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "ID", str(value))]


add, fail, same, total = (lambda *args, name=name: s(name, *args) for name in ("add", "fail", "same", "total"))
told = {
    "chord": chord([add(n, n) for n in (1, 2, 3)], total()),
    "chord of one": chord([add(1, 2)], same()),
    "chord in a chain": chain(add(1, 2), group(add(10), add(20)), total(), add(100)),
    "two steps behind a chord": chain(add(1, 2), group(add(10), add(20)), total(), add(100), add(1000)),
    "body in a chain is a chain": chain(add(1, 2), chord([add(10), add(20)], chain(total(), add(100), add(1000)))),
    "two chords in a chain": chain(add(1, 2), group(add(10), add(20)), total(), group(add(1), add(2)), same()),
    "group first": chain(group(add(1, 2), add(3, 4)), same()),
    "group last": chain(group(add(1, 2), add(3, 4)), total(), group(add(1), add(2))),
    "chains in a chord": chord([chain(add(n, 0), add(10)) for n in (1, 2, 3)], same()),
    "group in a chord": chord([group(add(1, 1), add(2, 2)), add(3, 3)], same()),
    "chain to a group in a chord": chord([chain(add(1, 1), group(add(10), add(20))), add(3, 3)], same()),
    "chord in a chord": chord([chord([add(1, 1), add(2, 2)], total()), add(3, 3)], same()),
    "body is a chain": chord([add(1, 1), add(2, 2)], chain(total(), add(100), add(1000))),
    "body is a group": chord([add(1, 1), add(2, 2)], group(same(), total())),
    "body takes nothing": chord([add(1, 1), add(2, 2)], s("add", 5, 6, immutable=True)),
    "broken chord": chord([add(1, 1), fail("midway")], total()),
    "broken chain in a chord": chord([add(1, 1), chain(fail("early"), add(5), add(6))], total()),
    "broken chord in a chain": chain(add(1, 2), group(add(10), s("fail", "late", immutable=True)), total(), add(100)),
    "broken body": chord([add(1, 1), add(2, 2)], s("fail", "at the end", immutable=True)),
}
left_out = sys.argv[4].split(",") if len(sys.argv) > 4 else []
print(json.dumps({name: outcome(canvas) for name, canvas in told.items() if name not in left_out}))
