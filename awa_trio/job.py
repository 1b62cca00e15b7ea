"""Job and BlockingJob: what the handlers of trio get."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import trio

from awa_proto.binding import bind as bind_blocking
from awa_proto.blocking import BlockingClient
from awa_proto.callbacks.token import CallbackId
from awa_proto.driving.awaited import bind
from awa_proto.driving.waiting import WaitingJob
from awa_proto.handler import JobBase, JobOperations, WaitEnd
from awa_proto.plan import Op
from awa_proto.worker.events import Reason

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

    async def wait_for_callback(self, token: CallbackId, /) -> Any:
        """Wait for a callback of this attempt, and return what it came with; several times in a row if need be.

        The job is waiting_external meanwhile and keeps its slot; its deadline stands still. `Client.resume_external` ends it.

        Args:
            token: What `register_callback` gave, or its id.

        Raises:
            CallbackNotFound: The callback was replaced, or used already.
            WaitCancelled: The job has ended, or the worker stops. A coroutine is cancelled then, unless it is shielded.
        """
        over, ends = trio.Event(), list[WaitEnd]()

        def told(end: WaitEnd) -> None:
            ends.append(end)
            over.set()

        asked = self.begin_wait(token, told)
        try:
            await over.wait()
        finally:
            self.end_wait(asked)
        # the event came before the cancellation did, which is what its handler is to see
        if isinstance(ends[0], Reason):
            await trio.lowlevel.checkpoint_if_cancelled()
        return self.waited(asked, ends[0])


class BlockingJob(WaitingJob[A_co, BlockingClient]):
    """What a plain handler gets, in its thread: the attempt, its args, and a client whose calls wait."""

    __slots__ = ()

    def perform(self, op: Op[T], /) -> T:
        """The result of an Op, as the client performs it."""
        return self._client.perform(op)

    flush_progress = bind_blocking(JobOperations.flush_progress)
    register_callback = bind_blocking(JobOperations.register_callback)
