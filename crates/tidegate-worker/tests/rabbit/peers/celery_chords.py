"""Many chords at once. Arguments: the broker's address, the queue, Redis' address, how many. What their bodies returned."""
import json
import sys

import redis
from celery import Celery, chord, signature

app = Celery(broker=sys.argv[1], backend=sys.argv[3])
app.conf.task_default_queue = sys.argv[2]


def s(name, *args):
    return signature(name, args=args, app=app)


sent = [chord([s("square", n + at) for n in range(10)], s("total")).apply_async() for at in range(int(sys.argv[4]))]
sums = [result.get(timeout=240) for result in sent]
left = redis.Redis.from_url(sys.argv[3]).keys("celery-taskset-meta-*")
print(json.dumps([sums, [key.decode() for key in left if not key.endswith(b".c")]]))
