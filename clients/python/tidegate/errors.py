"""What handlers raise, and what is raised in them."""

from __future__ import annotations

from typing import Optional


class SoftTimeLimit(Exception):
    """Raised in a handler that has run longer than its soft limit.

    Catch it to come to an end in order; the hard limit is next.
    """


class Retry(Exception):
    """Raise it to have the task run again later.

    ``after`` is in seconds; without it the worker's back-off decides.
    """

    def __init__(self, message: str = "the handler asks for another try", *, after: Optional[float] = None) -> None:
        super().__init__(message)
        self.after = after


class Reject(Exception):
    """Raise it when the task can never succeed: it is not tried again."""


class QueueError(Exception):
    """The queue cannot be used: another program's file, another version, a full disk. Nothing was stored."""


class ResultTimeout(TimeoutError):
    """A task has not ended in time. It may yet."""


class TaskFailed(Exception):
    """A task ended without a result."""

    def __init__(self, task_id: str, state: str, *, kind: str, message: str, traceback: Optional[str]) -> None:
        what = f": {kind}: {message}" if kind or message else ""
        super().__init__(f"task {task_id} {state}{what}")
        self.task_id = task_id
        #: ``failed``, ``revoked`` or ``expired``.
        self.state = state
        #: The type of the handler's error, such as ``ValueError``.
        self.kind = kind
        self.message = message
        #: Where it happened, in the handler.
        self.traceback = traceback
