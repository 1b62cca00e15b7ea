"""Job and BlockingJob: what the handlers of trio get."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from awa_proto.binding import bind as bind_blocking
from awa_proto.blocking import BlockingClient
from awa_proto.driving.awaited import bind
from awa_proto.handler import JobBase, JobOperations
from awa_proto.plan import Op

if TYPE_CHECKING:
    from awa_trio.client import Client  # noqa: F401  named in a base class below

A_co = TypeVar("A_co", covariant=True)
T = TypeVar("T")


class Job(JobBase[A_co, "Client"]):
    """What an `async def` handler gets: the attempt, its args, and the client."""

    __slots__ = ()

    async def perform(self, op: Op[T], /) -> T:
        """The result of an Op, as the client performs it."""
        return await self._client.perform(op)

    flush_progress = bind(JobOperations.flush_progress)
    register_callback = bind(JobOperations.register_callback)


class BlockingJob(JobBase[A_co, BlockingClient]):
    """What a plain handler gets, in its thread: the attempt, its args, and a client whose calls wait."""

    __slots__ = ()

    def perform(self, op: Op[T], /) -> T:
        """The result of an Op, as the client performs it."""
        return self._client.perform(op)

    flush_progress = bind_blocking(JobOperations.flush_progress)
    register_callback = bind_blocking(JobOperations.register_callback)
