"""What the numbers in a program stand for, and what never waits: the oracle's side of `world.rs` and `actions.rs`."""

import asyncio
import contextvars
import sys

from virtual_loop import TICK, OrderedTasks, VirtualLoop

TASKS_MAX = 24
VARS = [contextvars.ContextVar("var0"), contextvars.ContextVar("var1", default=100)]
EAGER = sys.version_info >= (3, 12)


class Error(Exception):
    """The programs' own error."""

    def __init__(self, number):
        super().__init__(number)
        self.number = number


def name_of(exc):
    """The transcript's word for an exception."""
    if isinstance(exc, asyncio.CancelledError):
        return "Cancelled"
    if isinstance(exc, Error):
        return f"Error({exc.number})"
    if isinstance(exc, TimeoutError):
        return "Timeout"
    if isinstance(exc, BaseExceptionGroup):
        return "Group[" + ", ".join(map(name_of, exc.exceptions)) + "]"
    if isinstance(exc, asyncio.InvalidStateError):
        return "InvalidState"
    text = str(exc)
    for part, name in (
        ("cannot await on itself", "AwaitsItself"),
        ("Cannot change state of", "TooLate"),
        ("is shutting down", "GroupClosed"),
        ("is finished", "GroupClosed"),
        ("is empty", "EmptyWait"),
    ):
        if part in text:
            return name
    return repr(exc)


def state_of(future):
    """The transcript's words for the state of a task or a future."""
    if not future.done():
        return "pending"
    if future.cancelled():
        return "cancelled"
    exc = future.exception()
    return f"={future.result()}" if exc is None else f"!{name_of(exc)}"


def value_of(var):
    try:
        return var.get()
    except LookupError:
        return None


class Record:
    """A task of the program, numbered in the order of spawning."""

    def __init__(self, number):
        self.number = number
        self.who = f"T{number}"
        self.task = None
        self.value = None  # what the main task of a run returned
        self.claimed = False  # a statement uses what in tidegate is the one join handle


class Group:
    """An open group, the task that opened it, and the numbers of its children."""

    def __init__(self, parent, refined):
        self.parent = parent
        self.scope = asyncio.TaskGroup()
        self.scope._tasks = OrderedTasks(refined)
        self.children = []


class World:
    """The places of one program, its transcript, and the actions on them. Coroutines are the subclass's."""

    def __init__(self, program):
        self.bodies = program["bodies"]
        self.watched = program["watched"]
        places = program["places"]
        self.loop = VirtualLoop()
        self.log = []
        self.records = []
        self.tasks = [None] * places["tasks"]
        self.futures = [self.loop.create_future() for _ in range(places["futures"])]
        self.handles = [None] * places["handles"]
        self.marks = [None] * places["marks"]
        self.tokens = [None] * places["tokens"]
        self.contexts = [None] * places["contexts"]
        self.groups = [None] * places["groups"]
        self.shows_vars = program["shows_vars"]
        self.awaited = {}  # task number -> numbers of the tasks it waits for

    def write(self, who, what):
        turn = f".{self.loop.turn}" if self.watched else ""
        self.log.append(f"{self.loop.ticks()}{turn} {who} {what}")

    def vars(self):
        return f" vars {value_of(VARS[0])} {value_of(VARS[1])}" if self.shows_vars else ""

    def act(self, who, record, action):
        """Does one action; `record` is the task whose coroutine acts, None in callbacks."""
        if isinstance(action, str):
            getattr(self, action)(who, record)
            return
        ((name, argument),) = action.items()
        if isinstance(argument, dict):
            getattr(self, name)(who, **argument)
        elif isinstance(argument, list):
            getattr(self, name)(who, *argument)
        else:
            getattr(self, name)(who, argument)

    def Spawn(self, who, place, body, start):
        self.spawn(who, place, body, start)

    def spawn(self, who, place, body, start):
        if len(self.records) == TASKS_MAX:
            self.write(who, "spawn full")
            return
        context = None
        if isinstance(start, dict):
            context = self.contexts[start["Inside"]]  # None is the default: a copy of the current one
        record = Record(len(self.records))
        self.records.append(record)
        if place is not None:
            self.tasks[place] = record
        self.write(who, f"spawn {record.who}{' inside' if context is not None else ''}")
        coroutine = self.task_body(record, body)
        if start == "Eager" and EAGER:
            record.task = asyncio.Task(coroutine, loop=self.loop, eager_start=True)
        else:
            record.task = self.loop.create_task(coroutine, context=context)

    def GroupSpawn(self, who, group, place, body):
        group = self.groups[group]
        if group is None:
            self.write(who, "group spawn none")
            return
        if len(self.records) == TASKS_MAX:
            self.write(who, "spawn full")
            return
        record = Record(len(self.records))
        coroutine = self.task_body(record, body)
        try:
            record.task = group.scope.create_task(coroutine)
        except RuntimeError as exc:
            coroutine.close()
            self.write(who, f"group spawn {name_of(exc)}")
            return
        record.claimed = True  # a group's child has no claim: what it fails with is its group's
        self.records.append(record)
        self.tasks[place] = record
        self.awaited.setdefault(group.parent.number, []).append(record.number)
        group.children.append(record.number)
        self.write(who, f"group spawn {record.who}")

    def Cancel(self, who, place):
        record = self.tasks[place]
        if record is None or record.task is None:
            self.write(who, "cancel none")
        else:
            self.write(who, f"cancel {record.who} {record.task.cancel()}")

    def CancelSelf(self, who, record):
        if record is None:
            self.write(who, "cancel self none")
        else:
            self.write(who, f"cancel self {asyncio.current_task().cancel()}")

    def Uncancel(self, who, record):
        if record is None:
            self.write(who, "uncancel none")
        else:
            self.write(who, f"uncancel {asyncio.current_task().uncancel()}")

    def UncancelTask(self, who, place):
        record = self.tasks[place]
        if record is None or record.task is None:
            self.write(who, "uncancel none")
        else:
            self.write(who, f"uncancel {record.who} {record.task.uncancel()}")

    def ShowTask(self, who, place):
        record = self.tasks[place]
        if record is None or record.task is None:
            self.write(who, "show none")
        else:
            self.write(who, f"show {record.who} {state_of(record.task)} cancelling={record.task.cancelling()}")

    def NewFuture(self, who, place):
        self.futures[place] = self.loop.create_future()
        self.write(who, f"new F{place}")

    def SetResult(self, who, place, value):
        self.settle(who, place, "result", lambda: self.futures[place].set_result(value))

    def SetError(self, who, place, number):
        self.settle(who, place, "error", lambda: self.futures[place].set_exception(Error(number)))

    def settle(self, who, place, what, settle):
        try:
            settle()
            self.write(who, f"set {what} F{place} ok")
        except asyncio.InvalidStateError:
            self.write(who, f"set {what} F{place} InvalidState")

    def CancelFuture(self, who, place):
        self.write(who, f"cancel F{place} {self.futures[place].cancel()}")

    def ShowFuture(self, who, place):
        self.write(who, f"show F{place} {state_of(self.futures[place])}")

    def CallSoon(self, who, place, callback):
        self.handles[place] = self.loop.call_soon(self.on_call, callback)
        self.write(who, f"call_soon c{callback['label']}")

    def CallLater(self, who, place, delay, callback):
        self.timer(who, place, self.loop.call_later(delay * TICK, self.on_call, callback), callback)

    def CallAt(self, who, place, when, callback):
        self.timer(who, place, self.loop.call_at(when * TICK, self.on_call, callback), callback)

    def timer(self, who, place, handle, callback):
        self.handles[place] = handle
        self.write(who, f"timer c{callback['label']} at {round(handle.when() / TICK)}")

    def on_call(self, callback):
        who = f"c{callback['label']}"
        self.write(who, f"called{self.vars()}")
        for action in callback["actions"]:
            self.act(who, None, action)

    def CancelHandle(self, who, place):
        handle = self.handles[place]
        if handle is None:
            self.write(who, "cancel handle none")
        else:
            before = handle.cancelled()
            handle.cancel()
            self.write(who, f"cancel handle {before} {handle.cancelled()}")

    def OnTaskDone(self, who, mark, task, callback):
        record = self.tasks[task]
        if record is None or record.task is None:
            self.write(who, "on done none")
        else:
            self.on_done(who, mark, record.task, record.who, callback)

    def OnFutureDone(self, who, mark, future, callback):
        self.on_done(who, mark, self.futures[future], f"F{future}", callback)

    def on_done(self, who, mark, future, name, callback):
        def call(done):
            who = f"c{callback['label']}"
            self.write(who, f"done {name} {state_of(done)}{self.vars()}")
            for action in callback["actions"]:
                self.act(who, None, action)

        future.add_done_callback(call)
        self.marks[mark] = (future, call)
        self.write(who, f"on done {name} c{callback['label']}")

    def RemoveCallback(self, who, place):
        if self.marks[place] is None:
            self.write(who, "remove none")
        else:
            future, call = self.marks[place]
            self.write(who, f"remove {future.remove_done_callback(call)}")

    def SetVar(self, who, var, value, token):
        self.tokens[token] = (VARS[var], VARS[var].set(value))
        self.write(who, f"set var{var} {value}")

    def GetVar(self, who, var):
        self.write(who, f"get var{var} {value_of(VARS[var])}")

    def ResetVar(self, who, place):
        if self.tokens[place] is None:
            self.write(who, "reset none")
            return
        var, token = self.tokens[place]
        self.tokens[place] = None
        try:
            var.reset(token)
            self.write(who, f"reset {VARS.index(var)} ok")
        except ValueError:
            self.write(who, f"reset {VARS.index(var)} refused")

    def CopyContext(self, who, place):
        self.contexts[place] = contextvars.copy_context()
        self.write(who, "copy context")

    def Fail(self, who, number):
        self.write(who, f"fail {number}")
        raise Error(number)

    def Stop(self, who, record):
        self.write(who, "stop")
        self.loop.stop()

    def Interrupt(self, who, record):
        self.write(who, "interrupt")
        raise KeyboardInterrupt
