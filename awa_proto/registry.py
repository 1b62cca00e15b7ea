"""Registry: the tasks, hooks and follow-ups of one application, without a database.

`Tasks` and `Client` of each package hold one; their decorators are typed for the package's own Job and end here.
A registry that another one includes stays connected to it, so a module that is imported later still counts.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

from awa_proto.args import build, decoder, kind_of
from awa_proto.cron.registration import Periodic
from awa_proto.errors import ValidationError
from awa_proto.extra import compact
from awa_proto.followup import FollowUp, Registered
from awa_proto.hooks import Hook
from awa_proto.options import name
from awa_proto.outcome import Outcome
from awa_proto.output import descriptor as output_descriptor
from awa_proto.task import Task

H = TypeVar("H", bound=Callable[..., Any])
T = TypeVar("T")


class Registry:
    """Tasks by their kind, each kind with one handler; and hooks and follow-ups, each kind with as many as there are.

    takes_coroutines: whether a handler or a hook may be a coroutine function; not where nothing could await it.
    """

    def __init__(self, *, takes_coroutines: bool = True) -> None:
        self._takes_coroutines = takes_coroutines
        self._tasks: dict[str, Task] = {}
        self._follow_ups: list[FollowUp] = []
        self._follow_ups_by_kind: dict[str, Mapping[Outcome, tuple[FollowUp, ...]]] = {}
        self._hooks: list[Hook] = []
        self._hooks_by_kind: dict[str, tuple[Hook, ...]] = {}
        self._periodic: dict[str, Periodic] = {}
        self._included_by: list[Registry] = []

    def empty(self) -> Registry:
        """Another one by the same rules, in which nothing is registered."""
        return Registry(takes_coroutines=self._takes_coroutines)

    @property
    def tasks(self) -> Mapping[str, Task]:
        """The registered tasks by their kind, as they are now and as they become."""
        return MappingProxyType(self._tasks)

    @property
    def hooks(self) -> Mapping[str, tuple[Hook, ...]]:
        """The hooks of each kind in the order they were registered, as they are now and as they become.

        A hook for a class is a hook of every kind that a task of the class is registered for, else of the class's own kind.
        """
        return MappingProxyType(self._hooks_by_kind)

    @property
    def follow_ups(self) -> Registered:
        """The registered follow-ups by kind and outcome, as they are now and as they become; kinds as those of hooks."""
        return MappingProxyType(self._follow_ups_by_kind)

    @property
    def periodic(self) -> Mapping[str, Periodic]:
        """The cron jobs by their name, as they are now and as they become."""
        return MappingProxyType(self._periodic)

    @property
    def descriptors(self) -> dict[str, dict[str, Any]]:
        """What is to be known of each kind by people who see its jobs.

        `{kind: {"args": {"name": …}, "queue": …, "output": {"name": …, "schema": …}}}`

        Each only where the task says so; an output with a JSON Schema where pydantic can produce it.
        """
        found: dict[str, dict[str, Any]] = {}
        for kind, task in self._tasks.items():
            said = found[kind] = {}
            if task.args_type is not None:
                said["args"] = {"name": task.args_type.__name__}
            if task.queue is not None:
                said["queue"] = task.queue
            if task.output_type is not None:
                said["output"] = output_descriptor(task.output_type)
        return found

    def described(self) -> dict[str, str]:
        """The same as JSON text by kind."""
        return {kind: compact(said) for kind, said in self.descriptors.items()}

    def add_follow_up(self, follow_up: FollowUp) -> None:
        """Register a follow-up here, and in every registry that includes this one; the same one counts once."""
        if follow_up not in self._follow_ups:
            self._follow_ups.append(follow_up)
            self._sort()
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
        self._sort()
        for registry in self._included_by:
            registry.add(task)

    def add_hook(self, hook: Hook) -> None:
        """Register a hook here, and in every registry that includes this one; the same hook counts once.

        Raises ValidationError when it cannot be called with an event.
        """
        self.check_hook(hook)
        for registry in self._included_by:
            registry.check_hook(hook)
        if hook not in self._hooks:
            self._hooks.append(hook)
            self._sort()
        for registry in self._included_by:
            registry.add_hook(hook)

    def add_periodic(self, periodic: Periodic) -> None:
        """Register a cron job here, and in every registry that includes this one; the same one counts once.

        Raises ValidationError when there is another one of that name.
        """
        for registry in (self, *self._included_by):
            registry.check_periodic(periodic)
        self._periodic[periodic.name] = periodic
        for registry in self._included_by:
            registry.add_periodic(periodic)

    def include(self, other: Registry) -> None:
        """Take over the tasks and hooks of another registry, those it has and those it will get. Raises as `add`."""
        for task in other.tasks.values():
            self.check(task)
        for hook in other._hooks:
            self.check_hook(hook)
        for periodic in other.periodic.values():
            self.check_periodic(periodic)
        for task in other.tasks.values():
            self.add(task)
        for follow_up in other._follow_ups:
            self.add_follow_up(follow_up)
        for hook in other._hooks:
            self.add_hook(hook)
        for periodic in other.periodic.values():
            self.add_periodic(periodic)
        other.inform(self)

    def inform(self, registry: Registry) -> None:
        """Hand every later task and hook to that registry too."""
        self._included_by.append(registry)

    def prepare(self) -> None:
        """Build what reads args for all tasks and hooks, so that a type pydantic cannot read is found before a claim.

        Raises SerializationError.
        """
        read = [each.args_type for each in self._tasks.values()]
        read += [each.args_type for each in self._hooks]
        read += [each.args_type for each in self._follow_ups]
        for args_type in read:
            build(args_type)

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

    def on_event(self, jobs: type[Any] | str, /, *, kind: str | None = None) -> Callable[[H], H]:
        """The decorator that registers a hook; see `on_event` of each package."""
        only: str | None = None
        args_type: type[Any] | None = None
        decode: Callable[[str], Any] = _plain
        if isinstance(jobs, str):
            if kind is not None:
                raise ValidationError("kind", "it is given twice")
            only = name("kind", jobs)
        elif not isinstance(jobs, type):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValidationError("jobs", f"neither a class nor a kind: {_called(jobs)}")
        elif jobs is dict:
            raise ValidationError("jobs", "a dict has no kind; without a class write on_event(kind)")
        else:
            name("kind", kind_of(jobs))
            only, args_type, decode = None if kind is None else name("kind", kind), jobs, decoder(jobs)

        def register(function: H) -> H:
            self.add_hook(Hook(only, args_type, function, decode, _is_coroutine_function(function), _called(function)))
            return function

        return register

    def check(self, task: Task) -> None:
        """Raise ValidationError when the task cannot be registered here."""
        before = self._tasks.get(task.kind)
        if before is not None and before is not task:
            raise ValidationError("kind", f"{task.kind!r} has a handler already: {_called(before.handler)}")
        self._check_function("handler", task.handler, "the job", is_async=task.is_async)

    def check_periodic(self, periodic: Periodic) -> None:
        """Raise ValidationError when the cron job cannot be registered here."""
        before = self._periodic.get(periodic.name)
        if before is not None and before is not periodic:
            raise ValidationError("name", f"there is a cron job {periodic.name!r} already")

    def check_hook(self, hook: Hook) -> None:
        """Raise ValidationError when the hook cannot be registered here."""
        self._check_function("hook", hook.function, "the event", is_async=hook.is_async)

    def _check_function(self, field: str, function: Callable[..., Any], argument: str, *, is_async: bool) -> None:
        if not callable(function):
            raise ValidationError(field, f"{_called(function)} cannot be called")
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            raise ValidationError(field, f"{_called(function)} is a generator function, whose body would never run")
        if is_async and not self._takes_coroutines:
            raise ValidationError(field, f"{_called(function)} is a coroutine function, which nothing here awaits")
        try:
            signature = inspect.signature(function)
        except (ValueError, TypeError):
            return  # a builtin that does not say, or an object that says something odd
        try:
            signature.bind(None)
        except TypeError as error:
            message = f"{_called(function)}{signature} cannot be called with {argument} alone: {error}"
            raise ValidationError(field, message) from None

    def _sort(self) -> None:
        """Which hooks and follow-ups belong to which kinds; anew, as a task may be registered after them for their class.

        Kind by kind in place, since others read it meanwhile.
        """
        hooks: dict[str, tuple[Hook, ...]] = {}
        for hook in self._hooks:
            for kind in self._kinds_of(hook):
                task = self._tasks.get(kind)
                fits = hook.args_type is None or (task is not None and task.args_type is hook.args_type)
                hooks[kind] = (*hooks.get(kind, ()), replace(hook, fits=fits))
        _become(self._hooks_by_kind, hooks)
        follow_ups: dict[str, Mapping[Outcome, tuple[FollowUp, ...]]] = {}
        for each in self._follow_ups:
            for kind in self._kinds_of(each):
                before = follow_ups.get(kind, {})
                follow_ups[kind] = {**before, each.outcome: (*before.get(each.outcome, ()), each)}
        _become(self._follow_ups_by_kind, follow_ups)

    def _kinds_of(self, of_jobs: Hook | FollowUp) -> list[str]:
        if of_jobs.kind is not None:
            return [of_jobs.kind]
        args_type = of_jobs.args_type
        assert args_type is not None
        return [kind for kind, task in self._tasks.items() if task.args_type is args_type] or [kind_of(args_type)]


def _become(sorted_: dict[str, T], found: Mapping[str, T]) -> None:
    sorted_.update(found)
    for kind in sorted_.keys() - found.keys():
        del sorted_[kind]


def _plain(args: str) -> Any:
    """Args as JSON says them, whatever they are: a hook that is registered for a kind hears of every job of it."""
    return json.loads(args)


def _is_coroutine_function(handler: object) -> bool:
    by_call = getattr(handler, "__call__", None)  # noqa: B004  the method of an object, to look at
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(by_call)


def _called(handler: object) -> str:
    """Where a function is written; of what has no name, the type."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    module, qualname = getattr(handler, "__module__", None), getattr(handler, "__qualname__", None)
    return f"{module}.{qualname}" if isinstance(qualname, str) else f"a value of type {type(handler).__qualname__}"
