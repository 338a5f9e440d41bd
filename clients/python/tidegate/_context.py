"""Which task is running; and log lines that say so."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from typing import Optional


@dataclass(frozen=True)
class TaskInfo:
    """The task that is running."""

    id: str
    name: str
    #: How often it was tried before.
    retries: int


_current: Optional[TaskInfo] = None


def current_task() -> Optional[TaskInfo]:
    """The task that runs in this process; None between two of them."""
    return _current


def set_current(task: Optional[TaskInfo]) -> None:
    global _current
    _current = task


class _TaskId(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        record.task_id = "-" if _current is None else _current.id
        return True


def log_to_stderr(level: int = logging.INFO) -> None:
    """Lines with the task's id to standard error, which the worker collects.

    Programs that have set up logging themselves are left alone.
    """
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_TaskId())
    handler.setFormatter(logging.Formatter("%(levelname)s [%(task_id)s] %(name)s: %(message)s"))
    root.addHandler(handler)
    root.setLevel(level)
