"""For tests of applications that use awa_trio: `from awa_trio.testing import HandlerJob`."""

from __future__ import annotations

from typing import Any, TypeVar

from typing_extensions import Unpack, override

from awa_proto.blocking import BlockingClient
from awa_proto.operations import Operations
from awa_proto.plan import Op
from awa_proto.testing.handler_job import HandlerJobBase, JobFields, Memory, no_database
from awa_trio.client import Client
from awa_trio.job import BlockingJob, Job
from awa_trio.tasks import Tasks

__all__ = ["BlockingHandlerJob", "HandlerJob"]

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
