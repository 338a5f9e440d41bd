"""Tasks for a worker, from Python: into the queue's file, without a server between."""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
import uuid
from datetime import datetime, timedelta
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Union

from ._app import NAME_ATTRIBUTE
from ._queue_file import BODY_BYTES_MAX, Envelope, QueueFile
from .errors import QueueError, ResultTimeout, TaskFailed

Seconds = Union[int, float, timedelta]
When = Union[datetime, Seconds]

#: Where the broker's URL is taken from if none is given.
BROKER_VARIABLE = "TIDEGATE_BROKER"

_POLL_MIN, _POLL_MAX = 0.0005, 0.05
_NAME_BYTES_MAX = 255


class Client:
    """Puts tasks into a queue and reads their results.

    ``broker_url`` is ``sqlite:PATH``, or a path; by default what ``TIDEGATE_BROKER`` says, or the file that the
    ``tidegate`` command uses by itself. Tasks whose JSON is longer than ``max_body`` bytes are refused; who raises it
    raises ``--max-body`` of the workers too. May be used by several threads, and after a fork.
    """

    def __init__(self, broker_url: Optional[str] = None, *, max_body: int = BODY_BYTES_MAX) -> None:
        self.path = _path_of(broker_url)
        self.max_body = max_body
        self._lock = threading.Lock()
        self._file: Optional[QueueFile] = None
        #: Of before a fork: SQLite must not close in a child what its parent has open.
        self._inherited: List[QueueFile] = []
        self._pid = 0

    def enqueue(
        self,
        task: Union[str, Callable[..., Any]],
        *args: Any,
        queue: str = "default",
        countdown: Optional[Seconds] = None,
        eta: Optional[datetime] = None,
        priority: int = 0,
        expires: Optional[When] = None,
        unique: Optional[str] = None,
        unique_for: Seconds = 3600,
        soft_limit: Optional[Seconds] = None,
        hard_limit: Optional[Seconds] = None,
        task_id: Optional[str] = None,
        **kwargs: Any,
    ) -> str:
        """Stores a task and returns its id; when this returns, it is on the disk.

        task: a handler's name, or a function that was registered with ``@task``.
        countdown, eta: not before so many seconds from now, or that time.
        priority: 0 to 9, higher first.
        expires: not after that time, or so many seconds from now.
        unique: a key; while a task with the same key waits or runs (at most ``unique_for`` seconds), no other is
            stored, and that one's id is returned.

        Tasks whose own arguments have one of these names go through :meth:`enqueue_many`.
        """
        spec: Dict[str, Any] = {
            "task": task,
            "args": args,
            "kwargs": kwargs,
            "queue": queue,
            "countdown": countdown,
            "eta": eta,
            "priority": priority,
            "expires": expires,
            "unique": unique,
            "unique_for": unique_for,
            "soft_limit": soft_limit,
            "hard_limit": hard_limit,
            "id": task_id,
        }
        return self.enqueue_many([spec])[0]

    def enqueue_many(self, tasks: Iterable[Mapping[str, Any]]) -> List[str]:
        """Stores all of them in one transaction, or none. Each is a mapping with ``task`` and, as far as they are
        needed, ``args``, ``kwargs``, ``id`` and the options of :meth:`enqueue`."""
        batch = [_envelope(spec, _now_ms(), self.max_body) for spec in tasks]
        if not batch:
            return []
        with self._lock:
            return self._opened().publish(batch)

    def result(self, task_id: str, timeout: Optional[float] = None) -> Any:
        """Waits for a task's end and returns what its handler returned.

        Raises TaskFailed if it failed, was revoked or has expired, ResultTimeout after ``timeout`` seconds (0: at once).
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = _POLL_MIN
        while True:
            with self._lock:
                found = self._opened().result(task_id)
            if found is not None and found[0] != "retrying":
                return _unpack(task_id, *found)
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise ResultTimeout(f"task {task_id} has not ended within {timeout} s")
            time.sleep(pause if left is None else min(pause, left))
            pause = min(pause * 2, _POLL_MAX)

    def revoke(self, task_id: str) -> None:
        """Drops a task that waits; ends one that runs."""
        with self._lock:
            self._opened().revoke(task_id)

    def close(self) -> None:
        """Closes the file. It is opened again when it is needed."""
        with self._lock:
            if self._file is not None and self._pid == os.getpid():
                self._file.close()
                self._file = None

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _opened(self) -> QueueFile:
        if self._file is not None and self._pid != os.getpid():
            self._inherited.append(self._file)
            self._file = None
        if self._file is None:
            self._file = QueueFile(self.path, _now_ms)
            self._pid = os.getpid()
        return self._file


def _path_of(broker_url: Optional[str]) -> str:
    url = broker_url or os.environ.get(BROKER_VARIABLE) or _default_path()
    scheme, colon, rest = url.partition(":")
    if not colon or "/" in scheme:
        return url
    if scheme != "sqlite" or not rest:
        raise QueueError(f"this client takes sqlite:PATH, not {url!r}; for other brokers use `tidegate enqueue`")
    return rest[2:] if rest.startswith("//") else rest


def _default_path() -> str:
    data = os.environ.get("XDG_DATA_HOME", "")
    if not os.path.isabs(data):
        data = os.path.join(os.path.expanduser("~"), ".local", "share")
    directory = os.path.join(data, "tidegate")
    os.makedirs(directory, exist_ok=True)
    return os.path.join(directory, "queue.db")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _envelope(spec: Mapping[str, Any], now: int, max_body: int) -> Envelope:
    unknown = set(spec) - _MEMBERS
    if unknown:
        raise ValueError(f"a task has no {', '.join(sorted(unknown))}; it may have {', '.join(sorted(_MEMBERS))}")
    task = spec["task"]
    name = task if isinstance(task, str) else getattr(task, NAME_ATTRIBUTE, None)
    if not name:
        raise ValueError(f"{task!r} is neither a handler's name nor registered with @task")
    task_id = spec.get("id") or _new_id(now)
    queue = spec.get("queue") or "default"
    for what, text in (("task id", task_id), ("queue name", queue)):
        if not text.isprintable() or not 1 <= len(text.encode()) <= _NAME_BYTES_MAX:
            raise ValueError(f"the {what} {text!r} cannot be used: 1 to {_NAME_BYTES_MAX} bytes without control characters")
    priority = spec.get("priority") or 0
    if type(priority) is not int or not 0 <= priority <= 9:
        raise ValueError(f"priority {priority!r} is not an integer from 0 to 9 (higher first)")
    body: Dict[str, Any] = {"task": name}
    for member, value in (("args", list(spec.get("args") or ())), ("kwargs", dict(spec.get("kwargs") or {}))):
        if value:
            body[member] = value
    for member in ("soft_limit", "hard_limit"):
        if spec.get(member) is not None:
            body[member] = _seconds(member, spec[member])
    content = json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
    if len(content) > max_body:
        raise ValueError(
            f"the task takes {len(content)} bytes, above the limit of {max_body}; "
            "pass large data by reference (a file, a URL), or raise max_body"
        )
    eta = _when("eta", spec.get("eta"), now)
    if spec.get("countdown") is not None:
        if eta is not None:
            raise ValueError("a task has a countdown or an eta, not both")
        eta = now + int(_seconds("countdown", spec["countdown"]) * 1e3)
    unique = spec.get("unique")
    hold = None if unique is None else int(_seconds("unique_for", spec.get("unique_for") or 3600) * 1e3)
    return Envelope(task_id, queue, priority, eta, _when("expires", spec.get("expires"), now), unique, hold, content)


_MEMBERS = frozenset(
    "task args kwargs id queue countdown eta priority expires unique unique_for soft_limit hard_limit".split()
)


def _seconds(what: str, value: Seconds) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if not 0 <= seconds < 1e11:
        raise ValueError(f"{what} must be seconds from 0 on, not {value!r}")
    return seconds


def _when(what: str, value: Optional[When], now: int) -> Optional[int]:
    if value is None:
        return None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"{what} needs a time zone: datetime.now(timezone.utc), for example")
        return int(value.timestamp() * 1e3)
    return now + int(_seconds(what, value) * 1e3)


def _new_id(now: int) -> str:
    """A UUID of version 7: later ones sort behind earlier ones."""
    number = (now & (1 << 48) - 1) << 80 | 7 << 76 | secrets.randbits(12) << 64 | 2 << 62 | secrets.randbits(62)
    return str(uuid.UUID(int=number))


def _unpack(task_id: str, state: str, value: Optional[str], error: Optional[str]) -> Any:
    if state == "succeeded":
        return None if value is None else json.loads(value)
    details = json.loads(error) if error else {}
    raise TaskFailed(
        task_id,
        state,
        kind=details.get("kind", ""),
        message=details.get("message", ""),
        traceback=details.get("traceback"),
    )
