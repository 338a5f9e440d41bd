"""The tasks of Celery or dramatiq, for their workers and for produce.py alike. What they are told comes in BENCH_*.

A task appends the instant at which it ran to a file: its length says how many have run, its contents when.
"""

import os
import time

KIND = os.environ["BENCH_KIND"]
RABBIT = os.environ["BENCH_RABBIT"]
QUEUE = os.environ["BENCH_QUEUE"]
PAUSE = float(os.environ["BENCH_PAUSE"])
SEEN = os.open(os.environ["BENCH_SEEN"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def run(*args, **kwargs):
    os.write(SEEN, time.monotonic_ns().to_bytes(8, "little"))
    if PAUSE:
        time.sleep(PAUSE)


if KIND == "celery":
    from celery import Celery

    app = Celery("peer", broker=f"amqp://guest:guest@{RABBIT}//")
    app.conf.update(
        task_default_queue=QUEUE,
        task_acks_late=True,
        task_ignore_result=True,
        worker_prefetch_multiplier=32,
        worker_log_color=False,
        broker_connection_retry_on_startup=True,
    )
    nothing = app.task(run, name="nothing")

    def send():
        nothing.delay(1, 2, 3, name="a body of about a hundred bytes")

else:
    import dramatiq
    from dramatiq.brokers.rabbitmq import RabbitmqBroker

    dramatiq.set_broker(RabbitmqBroker(url=f"amqp://guest:guest@{RABBIT}/%2F"))
    nothing = dramatiq.actor(run, actor_name="nothing", queue_name=QUEUE)

    def send():
        nothing.send(1, 2, 3, name="a body of about a hundred bytes")
