"""A child of the worker: takes tasks from its socket, one at a time, and answers each before it begins the next."""

from __future__ import annotations

import inspect
import logging
import os
import signal
import socket
import sys
import traceback
from types import FrameType
from typing import TYPE_CHECKING, Any, Dict, List, NoReturn, Optional

from . import _context
from ._app import App, Handler, default_app
from ._context import TaskInfo
from ._wire import VERSION, FrameTooLong, Message, Wire
from .errors import Reject, Retry, SoftTimeLimit

if TYPE_CHECKING:
    # Loaded when it is needed: it is a large part of a child's start.
    import asyncio

    from ._async import Interruptible

SOCKET_VARIABLE = "TIDEGATE_SOCKET"

_log = logging.getLogger("tidegate")


class NotAChild(RuntimeError):
    """This process was not started by a worker."""


def serve(app: Optional[App] = None, *, log_level: int = logging.INFO) -> None:
    """Runs tasks until the worker closes the socket.

    Must be called in the main thread, because that is where signals arrive.
    """
    number = os.environ.pop(SOCKET_VARIABLE, None)
    if number is None:
        raise NotAChild(
            f"{SOCKET_VARIABLE} is not set: this is started by a worker, "
            "for example `tidegate worker --mode process -- python3 -m tidegate worker MODULE`"
        )
    sock = socket.socket(fileno=int(number))
    # Programs that handlers start must not keep it open.
    sock.set_inheritable(False)
    _context.log_to_stderr(log_level)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(line_buffering=True)
    try:
        _Server(default_app if app is None else app, Wire(sock)).run()
    except (BrokenPipeError, ConnectionResetError):
        # The worker is gone, so there is nothing to report to.
        _log.warning("the worker has closed the socket")


class _Terminated(SystemExit):
    """The worker's SIGTERM; not a handler's own sys.exit()."""


def _terminate(signum: int, frame: Optional[FrameType]) -> NoReturn:
    """An exception instead of a sudden end, so that `finally` blocks run; the worker waits for them up to its grace."""
    raise _Terminated(128 + signum)


class _Server:
    def __init__(self, app: App, wire: Wire) -> None:
        self._app = app
        self._wire = wire
        self._pid = os.getpid()
        #: The run whose handler is at work: only then does a signal interrupt.
        self._running: Optional[int] = None
        #: A signal came in between: there may be something about the next run.
        self._interrupted = False
        self._loop: Optional["asyncio.AbstractEventLoop"] = None
        #: The handler at work, if it is a coroutine.
        self._coroutine: Optional["Interruptible"] = None
        self._task: Optional["asyncio.Task[Any]"] = None

    def run(self) -> None:
        signal.signal(signal.SIGUSR1, self._on_interrupt)
        signal.signal(signal.SIGALRM, self._on_alarm)
        signal.signal(signal.SIGTERM, _terminate)
        os.register_at_fork(after_in_child=self._wire.close)
        hello = self._wire.receive()
        if hello is None:
            return
        if hello.get("type") != "hello" or hello.get("version") != VERSION:
            raise RuntimeError(f"the worker speaks another protocol than version {VERSION}: {hello}")
        self._wire.max_frame = hello["max_frame"]
        self._wire.send(
            {
                "type": "ready",
                "version": VERSION,
                "handlers": sorted(self._app),
                "name": f"python {sys.version.split()[0]}, tidegate module",
                "interrupt": True,
            }
        )
        while True:
            order = self._wire.receive()
            if order is None:
                break
            if order["type"] == "run":
                self._answer(order["run"], self._run(order))
        if self._loop is not None:
            self._loop.close()

    def _answer(self, run: int, answer: Message) -> None:
        if os.getpid() != self._pid:
            # A fork in a handler came back from it: there is only one who answers.
            os._exit(0)
        sys.stdout.flush()
        sys.stderr.flush()
        answer["run"] = run
        try:
            self._wire.send(answer)
        except FrameTooLong as error:
            self._wire.send(_failed(run, "ResultTooLarge", f"the result is too large: {error}; hand it over by reference"))
        except (TypeError, ValueError, RecursionError) as error:
            self._wire.send(_failed(run, type(error).__name__, f"the result cannot be written as JSON: {error}"))

    def _run(self, order: Message) -> Message:
        handler = self._app.get(order["task"])
        if handler is None:
            return {"type": "rejected", "reason": f"no handler is named {order['task']!r}"}
        info = TaskInfo(order["id"], order["task"], order.get("retries", 0))
        _context.set_current(info)
        own_limit = handler.soft_limit if order.get("soft_ms") is None else None
        # The outer one also gets what a signal raises while the inner one ends.
        try:
            try:
                if own_limit is not None:
                    signal.setitimer(signal.ITIMER_REAL, own_limit)
                self._running = order["run"]
                if self._interrupted:
                    self._look()
                value = self._call(handler, order["args"], order["kwargs"])
                self._running = None
                return {"type": "done", "value": value}
            finally:
                self._running = None
                if own_limit is not None:
                    signal.setitimer(signal.ITIMER_REAL, 0)
        except SoftTimeLimit:
            self._running = None
            return {"type": "soft-limit", "limit_ms": order.get("soft_ms") if own_limit is None else own_limit * 1e3}
        except Retry as error:
            after = None if error.after is None else max(error.after, 0.0) * 1e3
            return {**_error("retry", error.__cause__ or error, str(error)), "after_ms": after}
        except Reject as error:
            return {"type": "rejected", "reason": str(error)}
        except TypeError as error:
            misfit = _misfit(handler, order)
            return misfit or self._failure(handler, info, error)
        except (_Terminated, KeyboardInterrupt):
            raise
        except BaseException as error:
            # A cancelled coroutine and sys.exit() are the handler's, too.
            return self._failure(handler, info, error)
        finally:
            _context.set_current(None)

    def _failure(self, handler: Handler, info: TaskInfo, error: BaseException) -> Message:
        if handler.retries is None:
            return _error("failed", error)
        if isinstance(error, handler.retry_on) and info.retries < handler.retries:
            after = None if handler.retry_after is None else handler.retry_after * 1e3
            return {**_error("retry", error), "after_ms": after}
        return {**_error("failed", error), "final": True}

    def _call(self, handler: Handler, args: List[Any], kwargs: Dict[str, Any]) -> Any:
        if not handler.is_async:
            return handler.function(*args, **kwargs)
        import asyncio

        from ._async import Interruptible

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        self._coroutine = Interruptible(handler.function(*args, **kwargs))
        self._task = self._loop.create_task(self._coroutine)
        try:
            return self._loop.run_until_complete(self._task)
        finally:
            self._coroutine = self._task = None

    def _on_interrupt(self, signum: int, frame: Optional[FrameType]) -> None:
        """The worker has something to say while a handler is at work."""
        if os.getpid() != self._pid:
            return
        if self._running is None:
            self._interrupted = True
        else:
            self._look()

    def _look(self) -> None:
        """Sees to what the worker has said beside tasks."""
        self._interrupted = False
        softly = False
        messages = self._wire.look()
        for message in [message for message in messages if message["type"] != "run"]:
            if message["type"] == "soft" and self._running is not None and message["run"] > self._running:
                # For one that waits here: looked at again when its turn has come.
                self._interrupted = True
                continue
            messages.remove(message)
            if message["type"] == "soft":
                softly = softly or message["run"] == self._running
            elif message["type"] == "recall":
                self._recall(message["run"])
        if softly:
            self._soft_limit()

    def _on_alarm(self, signum: int, frame: Optional[FrameType]) -> None:
        if self._running is not None and os.getpid() == self._pid:
            self._soft_limit()

    def _soft_limit(self) -> None:
        if self._task is None or self._coroutine is None:
            raise SoftTimeLimit("the soft time limit is over")
        if self._loop is not None:
            # Into the coroutine, not into the event loop's own code; and the loop may be asleep.
            self._loop.call_soon_threadsafe(self._coroutine.interrupt, self._task)

    def _recall(self, run: int) -> None:
        """Gives back a run that waits here."""
        for message in self._wire.look():
            if message["type"] == "run" and message["run"] == run:
                self._wire.look().remove(message)
                self._wire.send({"type": "returned", "run": run})
                return


def _failed(run: int, kind: str, message: str) -> Message:
    return {"type": "failed", "run": run, "error": {"kind": kind, "message": message}}


def _error(kind: str, error: BaseException, message: Optional[str] = None) -> Message:
    # The first frames are this module's own.
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__") == __name__ and trace.tb_next is not None:
        trace = trace.tb_next
    text = "".join(traceback.format_exception(type(error), error, trace))
    return {
        "type": kind,
        "error": {
            "kind": type(error).__name__,
            "message": str(error) if message is None else message,
            "traceback": text,
        },
    }


def _misfit(handler: Handler, order: Message) -> Optional[Message]:
    """A TypeError that comes from the call itself and not from inside."""
    try:
        inspect.signature(handler.function).bind(*order["args"], **order["kwargs"])
    except TypeError as misfit:
        return {"type": "rejected", "reason": f"the arguments do not fit {handler.name}: {misfit}"}
    except ValueError:
        # It has no signature to compare with.
        pass
    return None
