"""Tasks of several priorities, in a queue as Celery makes it with task_queue_max_priority. Arguments: the broker's address, the queue,
`send` or `look`."""
import json
import sys

from celery import Celery

app = Celery(broker=sys.argv[1], backend="rpc://")
app.conf.task_default_queue = sys.argv[2]
app.conf.task_queue_max_priority = 10
SENT = [0, 5, 1, 9, 3, 5, 7, 0]
if sys.argv[3] == "send":
    for at, priority in enumerate(SENT):
        app.send_task("note", (priority, at), priority=priority)
    print("{}")
else:
    # It comes last: all others are noted before it runs.
    notes = app.send_task("notes", (len(SENT),), priority=0).get(timeout=60)
    assert [at for priority, at in notes if priority == 5] == [1, 5], notes
    assert [at for priority, at in notes if priority == 0] == [0, 7], notes
    print(json.dumps({"order": [priority for priority, _ in notes]}))
