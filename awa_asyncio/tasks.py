"""Tasks: handlers by the kind of their jobs, typed for the Job of this package."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar, overload

from awa_asyncio.job import BlockingJob, Job
from awa_proto.cron.registration import RegistersPeriodic
from awa_proto.events import JobEvent
from awa_proto.followup import RegistersFollowUps
from awa_proto.outcome import Result
from awa_proto.registry import Registry

A = TypeVar("A")
R = TypeVar("R", bound=Result)
N = TypeVar("N", bound=None)


class RegisterTask(Protocol[A]):
    """A decorator for a handler of jobs with args of type A. It returns the handler as it is."""

    @overload
    def __call__(
        self, handler: Callable[[Job[A]], Coroutine[Any, Any, R]], /
    ) -> Callable[[Job[A]], Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, handler: Callable[[BlockingJob[A]], R], /) -> Callable[[BlockingJob[A]], R]: ...


class RegisterHook(Protocol[A]):
    """A decorator for a hook over events of jobs with args of type A. It returns the hook as it is."""

    @overload
    def __call__(
        self, hook: Callable[[JobEvent[A]], Coroutine[Any, Any, N]], /
    ) -> Callable[[JobEvent[A]], Coroutine[Any, Any, N]]: ...
    @overload
    def __call__(self, hook: Callable[[JobEvent[A]], N], /) -> Callable[[JobEvent[A]], N]: ...


class Tasks(RegistersFollowUps, RegistersPeriodic):
    """The tasks, hooks, follow-ups and cron jobs of one module, without a client: `Client(dsn, tasks=[tasks])` takes them.

    What is added after that counts too.
    """

    def __init__(self) -> None:
        self.registry = Registry()

    @overload
    def task(
        self, args_type: type[A], /, *, kind: str | None = None, queue: str | None = None, output: Any = None
    ) -> RegisterTask[A]: ...
    @overload
    def task(self, /, *, kind: str, queue: str | None = None, output: Any = None) -> RegisterTask[dict[str, Any]]: ...
    def task(
        self,
        args_type: type[Any] | None = None,
        /,
        *,
        kind: str | None = None,
        queue: str | None = None,
        output: Any = None,
    ) -> RegisterTask[Any]:
        """Register the handler of a kind of jobs, as a decorator.

        The handler is called with one argument, the job. An `async def` handler gets a Job; a plain one runs in a
        thread and gets a BlockingJob. It returns None, Completed, RetryAfter, Snooze or Cancel; any exception is an
        error that is retried, TerminalError one that is not.

        Args:
            args_type: The class of the args; without it they are a dict, and `kind` is needed.
            kind: Instead of the one of the class: its `kind: ClassVar[str]`, or its name in snake case. Clients that know
                this task enqueue the class as this kind; a process without it has to say `kind=` itself.
            queue: Where jobs of this kind go when an insert names no queue.
            output: The type its handlers record as their output; `job.set_output` refuses instances of another class.

        Raises:
            ValidationError: The kind has a handler already, or the handler cannot be called with a job.
        """
        return self.registry.task(args_type, kind=kind, queue=queue, output=output)

    @overload
    def on_event(self, jobs: type[A], /, *, kind: str | None = None) -> RegisterHook[A]: ...
    @overload
    def on_event(self, jobs: str, /) -> RegisterHook[dict[str, Any]]: ...
    def on_event(self, jobs: type[Any] | str, /, *, kind: str | None = None) -> RegisterHook[Any]:
        """Register a hook, as a decorator: it is told of what happens to jobs, after the fact.

        The hook is called with one argument, the event. It is an `async def` function, or a plain one, which runs in a
        thread. What it returns is ignored, what it raises is logged. Several hooks of one kind are called one after the
        other, as they were registered. Best effort: an event is lost with the process, or when hooks are too slow. A hook
        observes what this client's workers do and what is done through this client, nothing else.

        Args:
            jobs: The class of their args, which is then the type of `event.args`; or a kind, then those are a dict.
            kind: With a class, the only kind; by default those that tasks of the class are registered for, or its own.

        Raises:
            ValidationError: The hook cannot be called with an event.
        """
        return self.registry.on_event(jobs, kind=kind)
