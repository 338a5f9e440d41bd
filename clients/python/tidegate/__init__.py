"""Task handlers and a client for tidegate.

Handlers, run by ``tidegate worker --mode process -- python3 -m tidegate worker MODULE``::

    from tidegate import task

    @task(name="add")
    def add(x, y):
        return x + y
"""

from __future__ import annotations

from ._app import App, Handler, default_app, task
from ._context import TaskInfo, current_task
from ._serve import NotAChild, serve
from .errors import Reject, Retry, SoftTimeLimit

__all__ = [
    "App",
    "Handler",
    "NotAChild",
    "Reject",
    "Retry",
    "SoftTimeLimit",
    "TaskInfo",
    "current_task",
    "default_app",
    "serve",
    "task",
]

__version__ = "0.1.0"
