"""A dramatiq producer as people write them. Arguments: the broker's address, the queue."""
import json
import sys

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

broker = RabbitmqBroker(url=sys.argv[1].rstrip("/"), confirm_delivery=True)
dramatiq.set_broker(broker)
queue = sys.argv[2]


def actor(name):
    def unused(*args):
        raise NotImplementedError("runs elsewhere")
    return dramatiq.actor(unused, actor_name=name, queue_name=queue)


add, note, flaky, fail, forever = map(actor, ["add", "note", "flaky", "fail", "forever"])

note.send("plain")
note.send_with_options(args=("delayed",), delay=400)
note.send_with_options(args=("too old",), delay=600, max_age=300)
(add.message(1, 2) | add.message(3) | note.message("pipeline")).run()
(add.message(4, 5) | note.message_with_options(args=("ignored",), pipe_ignore=True, delay=300)).run()
flaky.send_with_options(max_retries=5, min_backoff=50, max_backoff=100)
failed = fail.send_with_options(args=("no luck",), max_retries=1, min_backoff=50, max_backoff=50)
slow = forever.send_with_options(time_limit=200, max_retries=0)
print(json.dumps({"failed": failed.message_id, "slow": slow.message_id}))
