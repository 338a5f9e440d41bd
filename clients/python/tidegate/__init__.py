"""Task handlers and a client for tidegate.

Handlers, run by ``tidegate worker --mode process -- python3 -m tidegate worker MODULE``::

    from tidegate import task

    @task(name="add")
    def add(x, y):
        return x + y

Tasks for them::

    from tidegate import Client

    client = Client("sqlite:queue.db")
    print(client.result(client.enqueue("add", 1, 2)))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._app import App, Handler, default_app, task
from ._context import TaskInfo, current_task
from ._serve import NotAChild, serve
from .errors import QueueError, Reject, ResultTimeout, Retry, SoftTimeLimit, TaskFailed

if TYPE_CHECKING:
    from .client import Client

__all__ = [
    "App",
    "Client",
    "Handler",
    "NotAChild",
    "QueueError",
    "Reject",
    "ResultTimeout",
    "Retry",
    "SoftTimeLimit",
    "TaskFailed",
    "TaskInfo",
    "current_task",
    "default_app",
    "serve",
    "task",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # SQLite is loaded when it is needed: children that only run tasks start sooner.
    if name == "Client":
        from .client import Client

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
