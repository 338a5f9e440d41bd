"""Acts out generated programs on CPython's own asyncio and writes down what happens.

One JSON program a line in, one JSON answer a line out: {"log": [...], "refined": {...}}.
"""

import asyncio
import contextvars
import gc
import json
import logging
import sys

from virtual_loop import TICK, Itself
from world import Error, Group, Record, World, name_of, state_of

CANCEL_ALL_TASKS = asyncio.runners._cancel_all_tasks
IDLE_TICKS = 1 << 20  # a timer this far out fires only when nothing else is left to do
ROUNDS_MAX = 32


class Frame:
    """One activation of a body: whose it is, and the scopes open around the statement being run."""

    def __init__(self, record):
        self.record = record
        self.timeouts = []
        self.caught = []


class Run(World):
    """One program on one loop."""

    def __init__(self, program):
        super().__init__(program)
        self.let_finish = program["ending"] == "LetRestFinish"
        self.runs = {"CloseRunner": (0,), "RunTwice": (0, 1)}.get(program["ending"])
        self.loop.set_exception_handler(self.on_report)

    def run(self):
        if self.runs is not None:
            return self.run_in_runner()
        self.spawn("loop", None, 0, "Queued")
        main = self.records[0].task
        main.add_done_callback(lambda _: self.loop.stop())
        self.run_until_idle()
        self.write("loop", f"main {state_of(main)}")
        if self.let_finish:
            self.run_until_idle()
        for _ in range(ROUNDS_MAX):
            left = [record for record in self.records if not record.task.done()]
            for record in left:
                self.write("loop", f"cancel {record.who} {record.task.cancel()}")
            self.run_until_idle()
            if all(record.task.done() for record in self.records):
                break
        self.write_final()
        self.loop.close()
        return self.log

    def write_final(self):
        for record in self.records:
            if record.task is not None:  # the main task of a run that was left before its first step
                state = state_of(record.task)
                if state == "cancelled" and record.value is not None:
                    # run-keeps-value: what main returned with a request pending is dropped; tidegate keeps it.
                    self.loop.refined.met("run-keeps-value")
                    state = f"={record.value}"
                count = f" cancelling={record.task.cancelling()}"
                if self.loop.is_closed() and state in ("pending", "cancelled"):
                    # closed-loop: such a task stays pending; tidegate cancels it with the loop, and the time-outs in it
                    # take their requests back.
                    if state == "pending":
                        self.loop.refined.met("closed-loop")
                    state, count = "cancelled", ""
                self.write("loop", f"final {record.who} {state}{count}")
        for number, future in enumerate(self.futures):
            self.write("loop", f"final F{number} {state_of(future)}")

    def run_in_runner(self):
        runner = asyncio.Runner(loop_factory=lambda: self.loop)
        for body in self.runs:
            is_over = self.run_main(runner, body)
            self.tokens = [None] * len(self.tokens)
            if not is_over and self.shows_vars:
                break
        self.stop_when_idle()
        asyncio.runners._cancel_all_tasks = self.cancel_all_tasks
        try:
            runner.close()
        except KeyboardInterrupt:
            self.closed("interrupted")
        except RuntimeError:
            self.closed("stopped")
        else:
            self.closed("ok")
            self.write_final()
        finally:
            asyncio.runners._cancel_all_tasks = CANCEL_ALL_TASKS
        return self.log

    def closed(self, how):
        # tidegate's runner leaves out turns in which there is nothing to do.
        self.watched = False
        self.write("loop", f"close {how}")

    def run_main(self, runner, body):
        """Runs a body as the main task of a runner; whether it has ended."""
        idle = self.stop_when_idle()
        record = Record(len(self.records))
        record.claimed = True
        self.records.append(record)
        try:
            outcome = f"={runner.run(self.main_body(record, body))}"
        except KeyboardInterrupt:
            outcome = "interrupted"
        except asyncio.CancelledError:
            # run-keeps-value, counted in `write_final`.
            outcome = "!Cancelled" if record.value is None else f"={record.value}"
        except RuntimeError as exc:
            outcome = "stopped" if "stopped before" in str(exc) else f"!{name_of(exc)}"
        except BaseException as exc:
            outcome = f"!{name_of(exc)}"
        idle.cancel()
        self.write("loop", f"run {record.who} {outcome}")
        return outcome not in ("interrupted", "stopped")

    async def main_body(self, record, body):
        record.task = asyncio.current_task()
        record.value = await self.task_body(record, body)
        return record.value

    def cancel_all_tasks(self, loop):
        """runner-cancel-order: a runner cancels what is left in the order of a set of addresses; tidegate in the order of
        spawning."""
        every = asyncio.runners.tasks.all_tasks
        left = every(loop)
        ordered = [record.task for record in self.records if record.task in left]
        ordered += [task for task in left if task not in ordered]
        if len(left) > 1:
            self.loop.refined.met("runner-cancel-order")
        asyncio.runners.tasks.all_tasks = lambda loop: ordered
        try:
            CANCEL_ALL_TASKS(loop)
        finally:
            asyncio.runners.tasks.all_tasks = every

    def stop_when_idle(self):
        when = (self.loop.ticks() // IDLE_TICKS + 1) * IDLE_TICKS
        return self.loop.call_at(when * TICK, self.on_idle)

    def run_until_idle(self):
        """Until the loop is stopped, or until only the timer that does so is left."""
        idle = self.stop_when_idle()
        self.loop.run_forever()
        idle.cancel()

    def on_idle(self):
        self.write("loop", "idle")
        self.loop.stop()

    def on_report(self, loop, context):
        # What the collector finds (exceptions that were never fetched) comes at no defined time and is left out.
        if "handle" in context:
            self.write("loop", f"report {name_of(context['exception'])}")

    # --- coroutines

    async def task_body(self, record, body):
        self.write(record.who, f"starts{self.vars()}")
        try:
            value = await self.body(record, body)
        except BaseException as exc:
            self.write(record.who, f"ends !{name_of(exc)}")
            raise
        self.write(record.who, f"ends ={value}")
        return value

    async def body(self, record, number):
        value = await self.block(Frame(record), self.bodies[number])
        return 0 if value is None else value

    async def block(self, frame, stmts):
        """Runs statements; None at the end of the block, the value when one of them returned."""
        for stmt in stmts:
            if stmt == "Yield":
                await self.leaf(frame, "yield", asyncio.sleep(0))
            elif stmt == "AwaitSelf":
                await self.await_self(frame)
            elif stmt == "Reraise":
                if frame.caught:
                    raise frame.caught[-1]
            else:
                ((name, argument),) = stmt.items()
                value = await getattr(self, "do_" + name)(frame, argument)
                if value is not None:
                    return value
        return None

    async def leaf(self, frame, text, awaitable, show=lambda value: "ok"):
        who = frame.record.who
        try:
            value = await awaitable
        except BaseException as exc:
            self.write(who, f"{text} !{name_of(exc)}")
            raise
        self.write(who, f"{text} {show(value)}")
        return value

    async def await_self(self, frame):
        record = frame.record
        if record.claimed or record.task is None:
            self.write(record.who, "await self none")
            return
        record.claimed = True
        try:
            await self.leaf(frame, "await self", Itself(self.loop.refined))
        finally:
            record.claimed = False

    async def do_Do(self, frame, action):
        self.act(frame.record.who, frame.record, action)

    async def do_Sleep(self, frame, ticks):
        await self.leaf(frame, f"sleep {ticks}", asyncio.sleep(ticks * TICK))

    async def do_AwaitFuture(self, frame, place):
        await self.leaf(frame, f"await F{place}", self.futures[place], lambda value: f"={value}")

    async def do_Call(self, frame, body):
        await self.leaf(frame, f"call {body}", self.body(frame.record, body), lambda value: f"={value}")

    async def do_Raise(self, frame, number):
        raise Error(number)

    async def do_Return(self, frame, value):
        return value

    # --- waiting for tasks

    def reachable(self, place, frame, claim=False):
        """The first task, from that place on, that may be waited for: one that waits for the asker itself, over any
        number of others, may not, because a circle could never be cancelled. To `claim` it, it must be unclaimed."""
        for offset in range(len(self.tasks)):
            record = self.tasks[(place + offset) % len(self.tasks)]
            if record is None or record.task is None or self.waits_for(record, frame.record.number):
                continue
            if claim and record.claimed:
                continue
            record.claimed = record.claimed or claim
            return record
        return None

    def waits_for(self, record, wanted):
        seen, front = set(), [record.number]
        while front:
            number = front.pop()
            if number == wanted:
                return True
            if number not in seen:
                seen.add(number)
                front.extend(self.awaited.get(number, ()))
        return False

    def several(self, places, frame, claim):
        found = []
        for place in places:
            record = self.reachable(place, frame, claim)
            if record is not None and record not in found:
                found.append(record)
        return found

    async def waiting(self, frame, records, awaitable):
        mine = self.awaited.setdefault(frame.record.number, [])
        mine.extend(record.number for record in records)
        try:
            return await awaitable
        finally:
            for record in records:
                mine.remove(record.number)

    async def do_AwaitTask(self, frame, place):
        record = self.reachable(place, frame)
        if record is None:
            self.write(frame.record.who, "await none")
            return
        waiting = self.waiting(frame, [record], record.task)
        await self.leaf(frame, f"await {record.who}", waiting, lambda value: f"={value}")

    async def do_Join(self, frame, place):
        if not await self.claiming(frame, place, "join", lambda task: task):
            await self.do_AwaitTask(frame, place)

    async def do_Shield(self, frame, place):
        if not await self.claiming(frame, place, "shield", asyncio.shield):
            self.write(frame.record.who, "shield none")

    async def claiming(self, frame, place, what, awaitable):
        """Waits through the claim, and gives it back while it is good for something; False if there is none."""
        record = self.reachable(place, frame, claim=True)
        if record is None:
            return False
        waiting = self.waiting(frame, [record], awaitable(record.task))
        try:
            await self.leaf(frame, f"{what} {record.who}", waiting, lambda value: f"={value}")
        finally:
            record.claimed = record.task.done()
        return True

    async def do_WaitFor(self, frame, argument):
        record, limit = self.reachable(argument["task"], frame, claim=True), argument["limit"]
        if record is None:
            self.write(frame.record.who, "wait_for none")
            return
        waiting = self.waiting(frame, [record], asyncio.wait_for(record.task, limit * TICK))
        await self.leaf(frame, f"wait_for {record.who} {limit}", waiting, lambda value: f"={value}")

    async def do_Wait(self, frame, argument):
        records = self.several(argument["tasks"], frame, claim=False)
        if argument["tasks"] and not records:
            self.write(frame.record.who, "wait none")
            return
        mode = {
            "FirstCompleted": asyncio.FIRST_COMPLETED,
            "FirstException": asyncio.FIRST_EXCEPTION,
            "All": asyncio.ALL_COMPLETED,
        }[argument["mode"]]
        limit = argument["limit"]
        timeout = None if limit is None else limit * TICK
        tasks = [record.task for record in records]

        def show(value):
            done, pending = ([r.who for r in records if r.task in part] for part in value)
            return f"done {' '.join(done)} pending {' '.join(pending)}"

        waiting = self.waiting(frame, records, asyncio.wait(tasks, timeout=timeout, return_when=mode))
        await self.leaf(frame, f"wait {argument['mode']}", waiting, show)

    async def do_Gather(self, frame, argument):
        records = self.several(argument["tasks"], frame, claim=True)
        gathering = asyncio.gather(*(r.task for r in records), return_exceptions=argument["keep_errors"])

        def show(values):
            return " ".join(f"!{name_of(v)}" if isinstance(v, BaseException) else f"={v}" for v in values)

        await self.leaf(frame, f"gather {len(records)}", self.waiting(frame, records, gathering), show)

    async def do_AsCompleted(self, frame, argument):
        records = self.several(argument["tasks"], frame, claim=True)
        await self.leaf(frame, f"as_completed {len(records)}", self.as_completed(frame, records, argument["take"]))

    async def as_completed(self, frame, records, take):
        iterator = iter(asyncio.as_completed([record.task for record in records]))
        for taken in range(min(take, len(records))):
            upcoming = next(iterator)
            if taken == 0:
                self.order_done(records)
            await self.leaf(frame, "next", self.waiting(frame, records, upcoming), lambda value: f"={value}")

    def order_done(self, records):
        """as-completed-done-order: tasks done beforehand come in the order of a set of addresses; tidegate's is that
        of the arguments."""
        done = [record.task for record in records if record.task.done()]
        if len(done) > 1:
            self.loop.refined.met("as-completed-done-order")
            queued = [self.loop._ready.pop() for _ in done]
            queued.sort(key=lambda handle: done.index(handle._args[0]))
            self.loop._ready.extend(queued)

    # --- scopes

    def deadline(self, limit):
        if limit == "Never":
            return None
        ((name, ticks),) = limit.items()
        return ticks * TICK + (self.loop.time() if name == "In" else 0)

    async def do_Timeout(self, frame, argument):
        who = frame.record.who
        self.write(who, "timeout enter")
        scope = asyncio.timeout_at(self.deadline(argument["limit"]))
        movable = argument["movable"]
        try:
            async with scope:
                frame.timeouts.append(scope if movable else None)
                try:
                    value = await self.block(frame, argument["body"])
                finally:
                    frame.timeouts.pop()
        except BaseException as exc:
            self.write(who, f"timeout exit !{name_of(exc)}" + (f" expired={scope.expired()}" if movable else ""))
            raise
        self.write(who, "timeout exit ok" + (f" expired={scope.expired()}" if movable else ""))
        return value

    async def do_Reschedule(self, frame, limit):
        if not frame.timeouts or frame.timeouts[-1] is None:
            self.write(frame.record.who, "reschedule none")
            return
        try:
            frame.timeouts[-1].reschedule(self.deadline(limit))
            self.write(frame.record.who, "reschedule ok")
        except RuntimeError as exc:
            self.write(frame.record.who, f"reschedule {name_of(exc)}")

    async def do_Group(self, frame, argument):
        who = frame.record.who
        self.write(who, "group enter")
        group = Group(frame.record, self.loop.refined)
        self.groups[argument["place"]] = group
        try:
            async with group.scope:
                value = await self.block(frame, argument["body"])
        except BaseException as exc:
            self.write(who, f"group exit !{name_of(exc)}")
            raise
        finally:
            for number in group.children:
                self.awaited[frame.record.number].remove(number)
        self.write(who, "group exit ok")
        return value

    async def do_Try(self, frame, argument):
        value = None
        try:
            try:
                value = await self.block(frame, argument["body"])
            except BaseException as exc:
                handler = next((h for h in argument["handlers"] if catches(h["catches"], exc)), None)
                if handler is None:
                    raise
                self.write(frame.record.who, f"caught {name_of(exc)}")
                frame.caught.append(exc)
                try:
                    value = await self.block(frame, handler["body"])
                finally:
                    frame.caught.pop()
        finally:
            if argument["finally"] is not None:
                self.write(frame.record.who, "finally")
                last = await self.block(frame, argument["finally"])
                if last is not None:
                    return last  # a return in `finally` wins over what came before, errors included
        return value


def catches(kind, exc):
    return isinstance(
        exc,
        {
            "Cancelled": asyncio.CancelledError,
            "Timeout": TimeoutError,
            "Error": Error,
            "Group": BaseExceptionGroup,
            "Exception": Exception,
            "Everything": BaseException,
        }[kind],
    )


def main():
    logging.disable(logging.CRITICAL)
    # Coroutines that a runner left behind when it ended early fail when they are collected, without a loop.
    sys.unraisablehook = lambda _: None
    # Collecting in the middle of a program would cost time and, for a coroutine left behind, run its clean-up there.
    gc.disable()
    for number, line in enumerate(sys.stdin):
        run = Run(json.loads(line))
        log = contextvars.Context().run(run.run)
        print(json.dumps({"log": log, "refined": run.loop.refined.count}), flush=True)
        del run
        if number % 200 == 199:
            gc.collect()


if __name__ == "__main__":
    main()
