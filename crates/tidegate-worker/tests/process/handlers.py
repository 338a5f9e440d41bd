"""Handlers for the tests of the process mode: good ones, and some that misbehave."""

import asyncio
import logging
import os
import signal
import sys
import threading
import time

from tidegate import Reject, Retry, SoftTimeLimit, current_task, task


@task(name="add")
def add(x, y=0):
    return x + y


@task(name="noop")
def noop():
    return None


@task(name="echo")
def echo(*args, **kwargs):
    return {"args": args, "kwargs": kwargs}


@task(name="pid")
def pid():
    return os.getpid()


@task(name="async_add")
async def async_add(x, y):
    await asyncio.sleep(0)
    return x + y


@task(name="fail")
def fail(message):
    raise ValueError(message)


@task(name="retry")
def retry(after=None):
    raise Retry("not yet", after=after)


@task(name="reject")
def reject():
    raise Reject("never")


@task(name="three_tries", retries=2, retry_after=1.5, retry_on=KeyError)
def three_tries():
    return {}["nothing"]


@task(name="say")
def say(text):
    print(text)
    print(text + " (error)", file=sys.stderr)
    logging.getLogger("handlers").info("logged %s", text)
    return current_task().id


@task(name="soft")
def soft(catch):
    try:
        time.sleep(600)
    except SoftTimeLimit:
        if catch:
            return "caught"
        raise


@task(name="async_soft")
async def async_soft(catch):
    try:
        await asyncio.sleep(600)
    except SoftTimeLimit:
        if catch:
            await asyncio.sleep(0)
            return "caught"
        raise


@task(name="own_soft", soft_limit=0.05)
def own_soft():
    time.sleep(600)


@task(name="sleep")
def sleep(seconds=600, fifo=None):
    note(fifo)
    time.sleep(seconds)


@task(name="until_told")
def until_told(fifo, go):
    """Works until `go` is opened for writing."""
    note(fifo)
    open(go).close()
    return "told"


@task(name="stubborn")
def stubborn(fifo=None):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note(fifo)
    while True:
        time.sleep(600)


@task(name="grandchild")
def grandchild(fifo):
    """Leaves a process behind that would sleep for ever."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
        os._exit(0)
    note(fifo, child)
    time.sleep(600)


@task(name="fork_and_return")
def fork_and_return():
    """Both the child and its copy come back from here."""
    os.fork()
    return "one answer"


@task(name="die")
def die(how):
    print("these are my last words", file=sys.stderr, flush=True)
    if how == "exit":
        os._exit(7)
    os.kill(os.getpid(), getattr(signal, how))
    time.sleep(600)


@task(name="sys_exit")
def sys_exit():
    sys.exit(3)


@task(name="grow")
def grow(size):
    keep.append(bytearray(os.urandom(1) * size))
    return os.getpid()


@task(name="large")
def large(size):
    return "x" * size


@task(name="not_json")
def not_json():
    return object()


@task(name="not_a_number")
def not_a_number():
    return float("nan")


@task(name="deep")
def deep(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value


@task(name="thread")
def thread():
    """A thread that goes on does not keep the answer."""
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    return "done"


def note(fifo, number=None):
    """Says through a pipe that the handler is at work, and in which process."""
    if fifo is not None:
        with open(fifo, "w") as file:
            file.write(f"{number or os.getpid()}\n")


keep = []
