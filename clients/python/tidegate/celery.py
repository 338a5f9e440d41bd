"""The tasks of a Celery application, as handlers. Celery itself is not imported here.

Each task's function is called on its own, without Celery's request, signals and hooks; docs/from-celery.md lists what is not done.
"""

from __future__ import annotations

from typing import Any, Optional

from ._app import App, default_app

#: Celery's own tasks that work without its worker: what ``map``, ``starmap``, ``chunks`` and ``replace`` send, and what
#: ``celery beat`` sends daily. The others are placeholders of the canvas.
_INTERNAL = frozenset(
    ("celery.accumulate", "celery.backend_cleanup", "celery.chunks", "celery.map", "celery.starmap")
)


def register(celery_app: Any, app: Optional[App] = None) -> None:
    """Registers every task of a Celery application under its name.

    app: where handlers are registered; by default where :func:`tidegate.task` registers them.
    """
    app = default_app if app is None else app
    for name, celery_task in sorted(celery_app.tasks.items()):
        if not name.startswith("celery.") or name in _INTERNAL:
            app.task(name=name)(celery_task.run)
