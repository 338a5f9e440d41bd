"""asyncio's BaseEventLoop under virtual time, and with an order where CPython leaves it to chance."""

import asyncio
import heapq

TICK = 1 / 512  # exact in a float and in nanoseconds


class Refined:
    """Where CPython's order is left to chance and tidegate's is defined: the oracle takes tidegate's, and counts."""

    def __init__(self):
        self.count = dict.fromkeys(
            (
                "equal-deadlines",
                "group-cancel-order",
                "as-completed-done-order",
                "self-await",
                "runner-cancel-order",
                "run-keeps-value",
                "closed-loop",
            ),
            0,
        )

    def met(self, which):
        self.count[which] += 1


class StableTimer(asyncio.TimerHandle):
    """equal-deadlines: a heap of equal deadlines has no stable order; the sequence number gives it one."""

    __slots__ = ("_sequence",)

    def __lt__(self, other):
        if self._when == other._when:
            self._loop.refined.met("equal-deadlines")
            return self._sequence < other._sequence
        return self._when < other._when


class OrderedTasks(dict):
    """group-cancel-order: a group keeps its tasks in a set, whose order is that of addresses; this keeps it in the
    order they were spawned."""

    def __init__(self, refined):
        super().__init__()
        self.refined = refined

    def add(self, task):
        self[task] = None

    def discard(self, task):
        self.pop(task, None)

    def __iter__(self):
        if len(self) > 1:
            self.refined.met("group-cancel-order")
        return super().__iter__()


class Itself:
    """self-await: a task that awaits itself is refused. CPython says so one turn later, and leaves a flag behind that
    makes it refuse everybody else who awaits that task; tidegate says so at once, and that is all."""

    def __init__(self, refined):
        refined.met("self-await")

    def __await__(self):
        raise RuntimeError("Task cannot await on itself")
        yield


class VirtualLoop(asyncio.BaseEventLoop):
    def __init__(self):
        super().__init__()
        self.refined = Refined()
        self._now = 0.0
        self.turn = -1  # turns since the clock last moved
        self._clock_resolution = TICK / 8
        self._selector = self
        self._sequence = 0

    def time(self):
        return self._now

    def select(self, timeout):
        self._now += timeout
        self.turn = 0 if timeout > 0 else self.turn + 1
        return ()

    def _process_events(self, events):
        pass

    def call_at(self, when, callback, *args, context=None):
        timer = StableTimer(when, callback, args, self, context)
        timer._sequence = self._sequence
        self._sequence += 1
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True
        return timer

    def ticks(self):
        return round(self._now / TICK)
