"""Registry: the tasks of one application, without a database.

`Tasks` and `Client` of each package hold one; their `task` decorator is typed for the package's own Job and ends here.
A registry that another one includes stays connected to it, so a module that is imported later still counts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from awa_proto.args import build, decoder, kind_of
from awa_proto.errors import ValidationError
from awa_proto.followup import FollowUp, Registered
from awa_proto.options import kind_among, name
from awa_proto.outcome import Outcome
from awa_proto.task import Task

H = TypeVar("H", bound=Callable[..., Any])


class Registry:
    """Tasks by their kind: each kind has one handler.

    takes_coroutines: whether a handler may be a coroutine function; not where nothing could await it.
    """

    def __init__(self, *, takes_coroutines: bool = True) -> None:
        self._takes_coroutines = takes_coroutines
        self._tasks: dict[str, Task] = {}
        self._follow_ups: dict[str, dict[Outcome, tuple[FollowUp, ...]]] = {}
        self._included_by: list[Registry] = []

    @property
    def tasks(self) -> Mapping[str, Task]:
        """The registered tasks by their kind, as they are now and as they become."""
        return MappingProxyType(self._tasks)

    @property
    def follow_ups(self) -> Registered:
        """The registered follow-ups by kind and outcome, as they are now and as they become."""
        return MappingProxyType(self._follow_ups)

    def kind_for(self, args_type: type[Any]) -> str:
        """What a class is registered for here, when that is one kind; else the kind of the class itself.

        Raises ValidationError for what is no class, and for a class with tasks of several kinds.
        """
        if not isinstance(args_type, type):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValidationError("args_type", f"a class or a kind is needed, not {type(args_type).__name__}")
        return kind_among(args_type, self._tasks)

    def add_follow_up(self, follow_up: FollowUp) -> None:
        """Register a follow-up here, and in every registry that includes this one."""
        of_kind = self._follow_ups.setdefault(follow_up.kind, {})
        of_kind[follow_up.outcome] = (*of_kind.get(follow_up.outcome, ()), follow_up)
        for registry in self._included_by:
            registry.add_follow_up(follow_up)

    def add(self, task: Task) -> None:
        """Register a task here, and in every registry that includes this one.

        Raises ValidationError when its kind has a handler already, or the handler cannot be called with a job.
        """
        self.check(task)
        for registry in self._included_by:
            registry.check(task)
        self._tasks[task.kind] = task
        for registry in self._included_by:
            registry.add(task)

    def include(self, other: Registry) -> None:
        """Take over the tasks of another registry, those it has and those it will get. Raises as `add`."""
        for task in other.tasks.values():
            self.check(task)
        for task in other.tasks.values():
            self.add(task)
        for of_kind in other.follow_ups.values():
            for follow_ups in of_kind.values():
                for each in follow_ups:
                    self.add_follow_up(each)
        other.inform(self)

    def inform(self, registry: Registry) -> None:
        """Hand every later task to that registry too."""
        self._included_by.append(registry)

    def prepare(self) -> None:
        """Build what reads the args of all tasks, so that a type pydantic cannot read is found before a job is claimed.

        Raises SerializationError.
        """
        for task in self._tasks.values():
            build(task.args_type)

    def task(
        self, args_type: type[Any] | None, /, *, kind: str | None = None, queue: str | None = None, output: Any = None
    ) -> Callable[[H], H]:
        """The decorator that registers a handler; see `task` of each package."""
        if args_type is not None and not isinstance(args_type, type):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValidationError("args_type", f"no class: {_called(args_type)}; without one write task(kind=…)")
        if kind is None:
            if args_type in (None, dict):
                raise ValidationError("kind", "it must be given where there is no class to derive it from")
            kind = kind_of(args_type)
        named = name("kind", kind)
        served = None if queue is None else name("queue", queue)

        def register(handler: H) -> H:
            self.add(
                Task(named, handler, decoder(args_type), _is_coroutine_function(handler), served, args_type, output)
            )
            return handler

        return register

    def check(self, task: Task) -> None:
        """Raise ValidationError when the task cannot be registered here."""
        before = self._tasks.get(task.kind)
        if before is not None and before is not task:
            raise ValidationError("kind", f"{task.kind!r} has a handler already: {_called(before.handler)}")
        handler = task.handler
        if not callable(handler):
            raise ValidationError("handler", f"{_called(handler)} cannot be called")
        if inspect.isasyncgenfunction(handler) or inspect.isgeneratorfunction(handler):
            raise ValidationError("handler", f"{_called(handler)} is a generator function, whose body would never run")
        if task.is_async and not self._takes_coroutines:
            raise ValidationError("handler", f"{_called(handler)} is a coroutine function, which nothing here awaits")
        try:
            signature = inspect.signature(handler)
        except (ValueError, TypeError):
            return  # a builtin that does not say, or an object that says something odd
        try:
            signature.bind(None)
        except TypeError as error:
            message = f"{_called(handler)}{signature} cannot be called with the job alone: {error}"
            raise ValidationError("handler", message) from None


def _is_coroutine_function(handler: object) -> bool:
    by_call = getattr(handler, "__call__", None)  # noqa: B004  the method of an object, to look at
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(by_call)


def _called(handler: object) -> str:
    """Where a handler is written; of what has no name, the type."""
    module, qualname = getattr(handler, "__module__", None), getattr(handler, "__qualname__", None)
    return f"{module}.{qualname}" if isinstance(qualname, str) else f"a value of type {type(handler).__qualname__}"
