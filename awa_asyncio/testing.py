"""For tests of applications that use awa_asyncio: `from awa_asyncio.testing import AwaTestClient, HandlerJob`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Self, TypeVar, overload

from typing_extensions import Unpack, override

from awa_asyncio.client import Client
from awa_asyncio.connections import AnyConnection
from awa_asyncio.job import BlockingJob, Job
from awa_asyncio.tasks import Tasks
from awa_proto.blocking import BlockingClient
from awa_proto.driving.awaited import bind
from awa_proto.driving.ops import drive_awaited
from awa_proto.driving.otel import handler_call
from awa_proto.handler import JobBase
from awa_proto.job import JobRow
from awa_proto.operations import Operations
from awa_proto.outcome import Raised, Result, Returned
from awa_proto.plan import Op
from awa_proto.testing.client import AwaTestClientOperations, NoJob
from awa_proto.testing.handler_job import HandlerJobBase, JobFields, Memory, no_database
from awa_proto.testing.standing_in import AwaitedStandIn, Undone
from awa_proto.testing.work import Call, WorkOutcome, WorkResult, captured, captured_awaited
from awa_proto.worker.events import StartJob

__all__ = ["AwaTestClient", "BlockingHandlerJob", "HandlerJob", "NoJob", "WorkOutcome", "WorkResult"]

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)
T = TypeVar("T")


class HandlerJob(HandlerJobBase[A_co, Client], Job[A_co]):
    """What an `async def` handler gets, without a database: `await send_email(HandlerJob(SendEmail("a@b.c")))`.

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


class BlockingHandlerJob(HandlerJobBase[A_co, BlockingClient], BlockingJob[A_co]):
    """What a plain handler gets, without a database: `send_email(BlockingHandlerJob(SendEmail("a@b.c")))`; as HandlerJob.

    Args:
        args: As HandlerJob.
        tasks: As HandlerJob.
        client: Instead of one that keeps its jobs in memory.
        fields: As HandlerJob.

    Raises:
        ValidationError: As HandlerJob.
    """

    def __init__(
        self,
        args: A_co,
        *,
        tasks: Tasks | None = None,
        client: BlockingClient | None = None,
        **fields: Unpack[JobFields],
    ) -> None:
        memory = Memory(tasks)
        own = BlockingClient(memory.operations, memory.perform)
        super().__init__(args, client or own, None if client is not None else memory, tasks, fields)


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
    async def perform(self, op: Op[T], /) -> T:
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

    async def perform(self, op: Op[T], /) -> T:
        """The result of a call of a test, whose steps are Ops of the client and calls of handlers."""
        return await drive_awaited(op.start(), self._step)

    async def _step(self, step: Any) -> Any:
        return await (_call(step) if isinstance(step, Call) else self.client.perform(step))

    def _begin(self, start: StartJob) -> tuple[JobBase[Any, Any], Callable[[], Any]]:
        job = self.client._job_maker()(start)  # noqa: SLF001
        return job, handler_call(start, job)

    @overload
    async def work_one(
        self,
        jobs: type[A],
        handler: Callable[[Job[A]], Coroutine[Any, Any, Result]] | Callable[[BlockingJob[A]], Result],
        *,
        output: Any = None,
        queue: str | None = None,
        early: bool = False,
        deliver: Iterable[object] = (),
    ) -> WorkResult: ...
    @overload
    async def work_one(
        self,
        jobs: str | JobRow,
        handler: Callable[[Job[Any]], Coroutine[Any, Any, Result]] | Callable[[BlockingJob[Any]], Result] | None = None,
        *,
        output: Any = None,
        queue: str | None = None,
        early: bool = False,
        deliver: Iterable[object] = (),
    ) -> WorkResult: ...
    @overload
    async def work_one(
        self,
        jobs: type[Any],
        handler: None = None,
        *,
        output: Any = None,
        queue: str | None = None,
        early: bool = False,
        deliver: Iterable[object] = (),
    ) -> WorkResult: ...
    async def work_one(
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
            handler: Instead of the one that is registered; a coroutine function over a Job, or a plain one over a
                BlockingJob, which runs in a thread.
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
        return await self.perform(op)

    work_all = bind(AwaTestClientOperations.work_all)
    assert_enqueued = bind(AwaTestClientOperations.assert_enqueued)
    refute_enqueued = bind(AwaTestClientOperations.refute_enqueued)
    until = bind(AwaTestClientOperations.until)

    @asynccontextmanager
    async def rolled_back(self) -> AsyncIterator[Self]:
        """A transaction on a connection of the client, in which everything it does happens, and which is then rolled back.

        Whatever anybody does with the client in this `async with` (an insert, a `transaction()`, the handlers that are worked)
        is done in one transaction, a `transaction()` as a savepoint of it. Nothing remains, and nobody else sees anything of
        it. One thing after the other; there can be no worker in the block.
        """
        with suppress(Undone):
            async with self.client._database().transaction() as connection:  # noqa: SLF001
                with self._standing_in(AwaitedStandIn(connection.run, asyncio.Lock())):
                    yield self
                raise Undone

    @asynccontextmanager
    async def within(self, connection: AnyConnection, /) -> AsyncIterator[Self]:
        """The same in a transaction of yours: that of a connection you opened, and which you end.

        For tests whose own tables and jobs are to go together: whatever is done with the client in the block is done in the
        open transaction of this connection, on which the code under test works too.

        Args:
            connection: As `using=` takes it.

        Raises:
            ValidationError: It is no connection this package can use, or is in no transaction.
        """
        with self._standing_in(AwaitedStandIn(lambda op: self.client.perform(op.on(connection)), asyncio.Lock())):
            yield self

    @contextmanager
    def _standing_in(self, instead: AwaitedStandIn) -> Iterator[None]:
        before, self.client._standing_in = self.client._standing_in, instead  # noqa: SLF001
        try:
            yield
        finally:
            self.client._standing_in = before  # noqa: SLF001


async def _call(call: Call) -> Returned | Raised:
    """A handler or a hook: a coroutine function in a task of its own, a plain one in a thread."""
    if not call.is_async:
        return await asyncio.to_thread(captured, call.function)
    task = asyncio.get_running_loop().create_task(captured_awaited(call.function), name="awa job")
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:  # of the test; the handler goes with it
        task.cancel()
        await asyncio.wait({task})
        raise
    return Raised(asyncio.CancelledError()) if task.cancelled() else task.result()
