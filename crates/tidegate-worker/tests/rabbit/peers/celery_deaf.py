"""Looks for two workers' mailboxes of remote control. Arguments: the broker's address, the queue of the one that has none, its node
name, the node name of the one that has one."""
import json
import sys

from amqp.exceptions import NotFound, ResourceLocked
from celery import Celery

address, queue, deaf, listening = sys.argv[1:5]
app = Celery(broker=address, backend="rpc://")
app.conf.task_default_queue = queue


def mailbox(node):
    with app.connection() as connection:
        try:
            connection.channel().queue_declare(f"{node}.celery.pidbox", passive=True)
        except NotFound:
            return "missing"
        except ResourceLocked:
            return "another connection's"
    return "found"


told = {"sum": app.send_task("add", (1, 2)).get(timeout=60)}
# It was started later: when it answers, the other one would have had its mailbox.
told["ping"] = app.control.ping(destination=[deaf, listening], timeout=30, limit=1)
told["deaf"], told["listening"] = mailbox(deaf), mailbox(listening)
print(json.dumps(told))
