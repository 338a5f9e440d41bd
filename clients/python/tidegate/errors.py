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
