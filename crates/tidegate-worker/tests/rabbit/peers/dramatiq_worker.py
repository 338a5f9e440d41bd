"""A dramatiq worker that notes what it runs, until it was so many. Arguments: the broker's address, the queue, how many."""
import json
import sys
import threading

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.middleware import CurrentMessage

broker = RabbitmqBroker(url=sys.argv[1].rstrip("/"))
broker.add_middleware(CurrentMessage())
dramatiq.set_broker(broker)
queue, count = sys.argv[2], int(sys.argv[3])
seen, enough = [], threading.Event()


@dramatiq.actor(actor_name="join", queue_name=queue)
def join(*args, **kwargs):
    message = CurrentMessage.get_current_message()
    seen.append([message.message_id, list(args), kwargs, message.options.get("retries", 0)])
    if len(seen) == count:
        enough.set()


worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=1)
worker.start()
enough.wait(60)
worker.stop()
broker.close()
print(json.dumps(seen))
