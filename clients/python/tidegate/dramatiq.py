"""The actors of a dramatiq broker, as handlers. dramatiq itself is not imported here.

Each actor's function is called on its own, without dramatiq's middleware; docs/from-dramatiq.md lists what is not done.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

from ._app import App, default_app


def register(broker: Any, app: Optional[App] = None) -> None:
    """Registers every actor of a dramatiq broker under its name.

    app: where handlers are registered; by default where :func:`tidegate.task` registers them.
    """
    app = default_app if app is None else app
    for name, actor in sorted(broker.actors.items()):
        app.task(name=name)(_function(actor))


def _function(actor: Any) -> Callable[..., Any]:
    # dramatiq replaces a coroutine function by one that needs the event loop of its own workers. What other decorators have
    # wrapped stays wrapped: only dramatiq's function has the globals of that module.
    own = getattr(actor.fn, "__globals__", {}).get("__name__") == "dramatiq.asyncio"
    function: Callable[..., Any] = getattr(actor.fn, "__wrapped__", actor.fn) if own else actor.fn
    return function
