"""Tasks: handlers by the kind of their jobs, typed for the Job of this package."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar, overload

from awa_asyncio.job import BlockingJob, Job
from awa_proto.followup import RegistersFollowUps
from awa_proto.outcome import Result
from awa_proto.registry import Registry

A = TypeVar("A")
R = TypeVar("R", bound=Result)


class RegisterTask(Protocol[A]):
    """A decorator for a handler of jobs with args of type A. It returns the handler as it is."""

    @overload
    def __call__(
        self, handler: Callable[[Job[A]], Coroutine[Any, Any, R]], /
    ) -> Callable[[Job[A]], Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, handler: Callable[[BlockingJob[A]], R], /) -> Callable[[BlockingJob[A]], R]: ...


class Tasks(RegistersFollowUps):
    """The tasks of one module or application, without a client: `Client(dsn, tasks=[tasks])` takes them.

    Tasks that are added after that count too.
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
