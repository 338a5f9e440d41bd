"""Handlers by name."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import Any, Callable, Dict, Iterator, Optional, Tuple, Type, TypeVar, Union, overload

F = TypeVar("F", bound=Callable[..., Any])

#: Where a function keeps the name it was registered by.
NAME_ATTRIBUTE = "__tidegate_name__"


@dataclass(frozen=True)
class Handler:
    """A function and how it is to be run."""

    name: str
    function: Callable[..., Any]
    is_async: bool
    retries: Optional[int]
    retry_on: Tuple[Type[BaseException], ...]
    retry_after: Optional[float]
    soft_limit: Optional[float]


class App:
    """A set of handlers.

    Most programs need none of their own: the module's :func:`task` puts
    handlers into one that is there already.
    """

    def __init__(self) -> None:
        self._handlers: Dict[str, Handler] = {}

    @overload
    def task(self, function: F) -> F: ...

    @overload
    def task(
        self,
        function: None = None,
        *,
        name: Optional[str] = None,
        retries: Optional[int] = None,
        retry_on: Union[Type[BaseException], Tuple[Type[BaseException], ...]] = Exception,
        retry_after: Optional[float] = None,
        soft_limit: Optional[float] = None,
    ) -> Callable[[F], F]: ...

    def task(
        self,
        function: Optional[F] = None,
        *,
        name: Optional[str] = None,
        retries: Optional[int] = None,
        retry_on: Union[Type[BaseException], Tuple[Type[BaseException], ...]] = Exception,
        retry_after: Optional[float] = None,
        soft_limit: Optional[float] = None,
    ) -> Union[F, Callable[[F], F]]:
        """Registers a function, ``async`` or not, and gives it back as it is.

        name: by default ``module.function``.
        retries: so often, and for errors in ``retry_on`` only, is the task
            tried again (and no more often than the worker's policy allows).
            Without it the policy alone decides.
        retry_after: seconds between tries; without it the worker's back-off decides.
        soft_limit: seconds after which :class:`SoftTimeLimit` is raised in
            the function, unless the worker or the task sets one.
        """

        def register(function: F) -> F:
            full_name = name or f"{function.__module__}.{function.__qualname__}"
            if full_name in self._handlers:
                raise ValueError(f"there is a handler named {full_name!r} already; give this one another name")
            if soft_limit is not None and soft_limit <= 0:
                raise ValueError(f"the soft limit of {full_name!r} must be above 0, not {soft_limit}")
            self._handlers[full_name] = Handler(
                name=full_name,
                function=function,
                is_async=iscoroutinefunction(function),
                retries=retries,
                retry_on=retry_on if isinstance(retry_on, tuple) else (retry_on,),
                retry_after=retry_after,
                soft_limit=soft_limit,
            )
            try:
                setattr(function, NAME_ATTRIBUTE, full_name)
            except (AttributeError, TypeError):
                # A bound method or a function of C takes no attributes: a client names such a handler by its text.
                pass
            return function

        return register if function is None else register(function)

    def get(self, name: str) -> Optional[Handler]:
        """The handler of that name."""
        return self._handlers.get(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._handlers)

    def __len__(self) -> int:
        return len(self._handlers)


#: The default app: handlers that are registered without an app.
default_app = App()

#: Registers a function with the default app; see :meth:`App.task`.
task = default_app.task
