"""For tests of applications that use awa_sync: `from awa_sync.testing import AwaTestClient, HandlerJob`."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self, TypeVar, overload

from typing_extensions import Unpack, override

from awa_proto.binding import bind
from awa_proto.driving.ops import drive
from awa_proto.driving.otel import handler_call
from awa_proto.handler import JobBase
from awa_proto.job import JobRow
from awa_proto.operations import Operations
from awa_proto.outcome import Result
from awa_proto.plan import Op
from awa_proto.testing.client import AwaTestClientOperations, NoJob
from awa_proto.testing.handler_job import HandlerJobBase, JobFields, Memory, no_database
from awa_proto.testing.standing_in import StandIn, Undone
from awa_proto.testing.work import Call, WorkOutcome, WorkResult, captured
from awa_proto.worker.events import StartJob
from awa_sync.client import Client
from awa_sync.connections import AnyConnection
from awa_sync.job import Job
from awa_sync.tasks import Tasks

__all__ = ["AwaTestClient", "BlockingHandlerJob", "HandlerJob", "NoJob", "WorkOutcome", "WorkResult"]

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)
T = TypeVar("T")


class HandlerJob(HandlerJobBase[A_co, Client], Job[A_co]):
    """What a handler gets, without a database: `send_email(HandlerJob(SendEmail("a@b.c")))`.

    It records as a real job does, with the same conversions, limits and errors: `output`, `staged`, `progress`, `flushed`.
    `cancel()` sets `is_cancelled()`. What the handler enqueues with `job.client` is in `enqueued`.

    Args:
        args: What the job is told; the handler gets it as JSON brings it back, as in a worker.
        tasks: Tasks, or a client, whose registrations count: the queue of a kind, its declared output.
        client: Instead of one that keeps its jobs in memory.
        fields: Those of JobFields: `id`, `attempt`, `queue`, `metadata`, `errors`, `output` and so on.

    Raises:
        ValidationError: What an insert would refuse, naming the field and its limit.
    """

    def __init__(
        self, args: A_co, *, tasks: Tasks | None = None, client: Client | None = None, **fields: Unpack[JobFields]
    ) -> None:
        tasks = tasks or client
        memory = None if client is not None else Memory(tasks)
        super().__init__(args, client or _MemoryClient(memory), memory, tasks, fields)


BlockingHandlerJob = HandlerJob


class _MemoryClient(Client):
    """A client whose jobs are in memory."""

    def __init__(self, memory: Memory | None) -> None:
        super().__init__()
        self._memory = memory or Memory()

    @property
    @override
    def operations(self) -> Operations[Any]:
        return self._memory.operations

    @override
    def perform(self, op: Op[T], /) -> T:
        return self._memory.perform(op)

    @override
    def _database(self) -> Any:
        raise no_database()


class AwaTestClient:
    """Works the jobs of a client in a test, one by one, and looks at what is enqueued.

    Args:
        client: The client, whose registrations count and whose database it is.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.operations = AwaTestClientOperations(
            client._application,  # noqa: SLF001  of its own package
            self._begin,
            time.monotonic,
        )

    def perform(self, op: Op[T], /) -> T:
        """The result of a call of a test, whose steps are Ops of the client and calls of handlers."""
        return drive(op.start(), self._step)

    def _step(self, step: Any) -> Any:
        if isinstance(step, Call):
            return contextvars.copy_context().run(captured, step.function)
        return self.client.perform(step)

    def _begin(self, start: StartJob) -> tuple[JobBase[Any, Any], Callable[[], Any]]:
        job = self.client._job_maker()(start)  # noqa: SLF001
        return job, handler_call(start, job)

    @overload
    def work_one(
        self,
        jobs: type[A],
        handler: Callable[[Job[A]], Result],
        *,
        output: Any = None,
        queue: str | None = None,
        early: bool = False,
        deliver: Iterable[object] = (),
    ) -> WorkResult: ...
    @overload
    def work_one(
        self,
        jobs: str | JobRow,
        handler: Callable[[Job[Any]], Result] | None = None,
        *,
        output: Any = None,
        queue: str | None = None,
        early: bool = False,
        deliver: Iterable[object] = (),
    ) -> WorkResult: ...
    @overload
    def work_one(
        self,
        jobs: type[Any],
        handler: None = None,
        *,
        output: Any = None,
        queue: str | None = None,
        early: bool = False,
        deliver: Iterable[object] = (),
    ) -> WorkResult: ...
    def work_one(
        self,
        jobs: type[Any] | str | JobRow,
        handler: Callable[[Any], Any] | None = None,
        *,
        output: Any = None,
        queue: str | None = None,
        early: bool = False,
        deliver: Iterable[object] = (),
    ) -> WorkResult:
        """Work one job now, as a worker would, and say what became of it: claim, handler, result, follow-ups, hooks.

        Handlers and hooks have ended when it returns. A deadline ends no handler here, and `is_cancelled()` stays false.

        Args:
            jobs: The class of the args of the job, or its kind, or a job that is to be this one. Of several the best one is
                worked: by priority, then by how long it is due.
            handler: Instead of the one that is registered; a function over a Job, which runs in the thread of the test.
            output: The type the handler records as its output, as `task` says it.
            queue: Only a job of this queue.
            early: Also one that is not due yet, for example a retry; those that are due go first.
            deliver: What callbacks bring: each `wait_for_callback` of the handler returns the next of these at once. An
                exception is raised there instead, such as a `TimeoutError` for a limit of the handler's own.

        Raises:
            NoJob: There is none. An AssertionError, whose message says what there is.
            ValidationError: An argument is wrong; nothing was done.
            DatabaseError: The database does not answer, or refuses what it should not.
        """
        op = self.operations.work_one(jobs, handler, output=output, queue=queue, early=early, deliver=deliver)
        return self.perform(op)

    work_all = bind(AwaTestClientOperations.work_all)
    assert_enqueued = bind(AwaTestClientOperations.assert_enqueued)
    refute_enqueued = bind(AwaTestClientOperations.refute_enqueued)
    until = bind(AwaTestClientOperations.until)

    @contextmanager
    def rolled_back(self) -> Iterator[Self]:
        """A transaction on a connection of the client, in which everything it does happens, and which is then rolled back.

        Whatever anybody does with the client in this `with` (an insert, a `transaction()`, the handlers that are worked)
        is done in one transaction, a `transaction()` as a savepoint of it. Nothing remains, and nobody else sees anything of
        it. One thing after the other; there can be no worker in the block.
        """
        with suppress(Undone), self.client._database().transaction() as connection:  # noqa: SLF001
            with self._standing_in(StandIn(connection.run, threading.Lock())):
                yield self
            raise Undone

    @contextmanager
    def within(self, connection: AnyConnection, /) -> Iterator[Self]:
        """The same in a transaction of yours: that of a connection you opened, and which you end.

        For tests whose own tables and jobs are to go together: whatever is done with the client in the block is done in the
        open transaction of this connection, on which the code under test works too.

        Args:
            connection: As `using=` takes it.

        Raises:
            ValidationError: It is no connection this package can use, or is in no transaction.
        """
        with self._standing_in(StandIn(lambda op: self.client.perform(op.on(connection)), threading.Lock())):
            yield self

    @contextmanager
    def _standing_in(self, instead: StandIn) -> Iterator[None]:
        before, self.client._standing_in = self.client._standing_in, instead  # noqa: SLF001
        try:
            yield
        finally:
            self.client._standing_in = before  # noqa: SLF001
