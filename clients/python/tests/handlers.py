"""Handlers for the tests of the child."""

import asyncio
import os
import sys
import time

from tidegate import App, Reject, Retry, SoftTimeLimit, current_task, task

other = App()


@other.task(name="other")
def in_another_app():
    return "other"


@task(name="add")
def add(x, y=0):
    return x + y


@task
def unnamed():
    return "by its own name"


@task(name="info")
def info():
    current = current_task()
    return [current.id, current.name, current.retries]


@task(name="fail")
def fail():
    inner()


def inner():
    raise ValueError("deep inside")


@task(name="retry")
def retry():
    try:
        inner()
    except ValueError as error:
        raise Retry("again", after=1.5) from error


@task(name="reject")
def reject():
    raise Reject("never")


@task(name="limited_retries", retries=1)
def limited_retries():
    inner()


@task(name="exit")
def exit_handler():
    sys.exit("a handler's exit is no exit")


@task(name="at_work")
def at_work(catch=True):
    """Says that it is at work, and waits to be interrupted."""
    try:
        print("at work", flush=True)
        time.sleep(600)
    except SoftTimeLimit:
        if not catch:
            raise
        return "caught"


@task(name="async_at_work")
async def async_at_work(catch=True):
    try:
        print("at work", flush=True)
        await asyncio.sleep(600)
    except SoftTimeLimit:
        if not catch:
            raise
        await asyncio.sleep(0)
        return ["caught", asyncio.current_task().cancelling() if hasattr(asyncio.Task, "cancelling") else 0]


@task(name="async_cancelled")
async def async_cancelled():
    raise asyncio.CancelledError


@task(name="async_loop")
async def async_loop():
    return id(asyncio.get_running_loop())


@task(name="own_limit", soft_limit=0.02)
def own_limit():
    time.sleep(600)


@task(name="until_told")
def until_told(fifo):
    """Ends when somebody opens the pipe for writing."""
    print("at work", flush=True)
    open(fifo).close()
    return "told"


@task(name="with_finally")
def with_finally():
    try:
        print("at work", flush=True)
        time.sleep(600)
    finally:
        print("cleaned up", flush=True)


@task(name="not_json")
def not_json():
    return {1, 2}


@task(name="large")
def large(size):
    return "x" * size


@task(name="fork")
def fork():
    os.fork()
    return "one"


@task(name="say")
def say():
    print("out")
    print("err", file=sys.stderr)
    import logging

    logging.getLogger("mine").warning("logged")
