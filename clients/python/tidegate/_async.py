"""Coroutines that a soft time limit can be raised in."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Coroutine, Generator, Optional, Type, Union

from .errors import SoftTimeLimit


class Interruptible(Coroutine[Any, Any, Any]):
    """Wraps a coroutine. After :meth:`interrupt` the cancellation of its task arrives in it as SoftTimeLimit."""

    def __init__(self, inner: Coroutine[Any, Any, Any]) -> None:
        self._inner = inner
        self._pending = False

    def send(self, value: Any) -> Any:
        return self._inner.send(value)

    def throw(
        self,
        kind: Union[Type[BaseException], BaseException],
        value: Union[BaseException, object] = None,
        traceback: Optional[TracebackType] = None,
    ) -> Any:
        error = kind if isinstance(kind, BaseException) else value if isinstance(value, BaseException) else kind()
        if self._pending and isinstance(error, asyncio.CancelledError):
            self._pending = False
            error = SoftTimeLimit("the soft time limit is over")
        return self._inner.throw(error)

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._inner.__await__()

    def interrupt(self, task: asyncio.Task[Any]) -> None:
        self._pending = True
        task.cancel()
        uncancel = getattr(task, "uncancel", None)
        if uncancel is not None:
            # Not a cancellation of the caller: `uncancel` keeps the frames above from taking it for one.
            task.get_loop().call_soon(uncancel)
