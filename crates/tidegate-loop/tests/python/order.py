"""Runs one of the examples on asyncio in virtual time and prints its order of events, a line each."""

import asyncio
import sys
from asyncio import tasks


class Task(tasks._PyTask):
    """asyncio's task in Python rather than C, so that its steps can be seen."""

    def __init__(self, coro, **kwargs):
        self._said = kwargs["name"]
        say("create", self._said)
        super().__init__(coro, **kwargs)

    def _Task__step(self, exc=None):
        say("step", self._said)
        super()._Task__step(exc)
        if not self.done():
            say("suspend", self._said)

    def _Future__schedule_callbacks(self):
        say("finish", self._said)
        super()._Future__schedule_callbacks()


class Loop(asyncio.SelectorEventLoop):
    def __init__(self):
        super().__init__()
        self._now = 0.0
        self._clock_resolution = 1e-9
        real_select = self._selector.select

        def select(timeout=None):
            if timeout:
                self._now += timeout
            return real_select(0)

        self._selector.select = select

    def time(self):
        return self._now

    def _process_events(self, events):
        super()._process_events(events)
        # The last thing before due timers are moved and the ready callbacks run. Every tick of these programs has some.
        say("tick", round(self._now * 1000))

    def call_soon(self, callback, *args, context=None):
        owner = getattr(callback, "__self__", None)
        if isinstance(owner, Task):
            say("wake", owner._said)
            return super().call_soon(callback, *args, context=context)
        say("queue")

        def called():
            say("callback")
            callback(*args)

        return super().call_soon(called, context=context)

    def call_at(self, when, callback, *args, context=None):
        def fired():
            say("timer")
            callback(*args)

        return super().call_at(when, fired, context=context)


quiet = False


def say(*words):
    if not quiet:
        sys.stdout.write(" ".join(str(word) for word in words) + "\n")


def show(*words):
    say("print", *words)


def spawn(coro, name):
    """asyncio.create_task, which before 3.13 tells the task its name only after it was made."""
    return Task(coro, loop=asyncio.get_running_loop(), name=name)


async def sleep():
    show("good night")
    await asyncio.sleep(1)
    show("good morning")


async def func():
    return 1


async def await_task():
    task = spawn(func(), "Task-func")
    show("Result:", await task)


async def await_coro():
    async def intermediate():
        return await spawn(func(), "Task-func")

    show("Result:", await intermediate())


async def await_future():
    async def set_after(future, value):
        show("Task Running ...")
        future.set_result(value)

    future = asyncio.get_running_loop().create_future()
    spawn(set_after(future, "... world"), "Task-set_after")
    show("hello ...")
    show(await future)


async def timeline():
    async def nap(number):
        show(number)
        await asyncio.sleep(number)
        return number

    naps = [spawn(nap(1), "n1"), spawn(nap(2), "n2")]
    done, _ = await asyncio.wait(naps)
    # asyncio returns a set, whose order is an accident.
    for task in sorted(done, key=naps.index):
        show("[result]", task.result())


def main(name):
    global quiet
    program = {
        "sleep": sleep,
        "await-task": await_task,
        "await-coro": await_coro,
        "await-future": await_future,
        "timeline": timeline,
    }[name]
    # Making the loop's self-pipe is none of the program's business.
    quiet = True
    loop = Loop()
    loop.set_task_factory(lambda loop, coro, **_: Task(coro, loop=loop, name="main"))
    quiet = False
    loop.run_until_complete(program())
    quiet = True
    loop.close()


main(sys.argv[1])
