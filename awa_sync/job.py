"""Job: what the handlers of blocking code get. All of them block, so BlockingJob is another name for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from awa_proto.binding import bind
from awa_proto.driving.waiting import WaitingJob
from awa_proto.handler import JobOperations
from awa_proto.plan import Op

if TYPE_CHECKING:
    from awa_sync.client import Client  # noqa: F401  named in a base class below

A_co = TypeVar("A_co", covariant=True)
T = TypeVar("T")


class Job(WaitingJob[A_co, "Client"]):
    """What a handler gets, in its thread: the attempt, its args, and the client."""

    __slots__ = ()

    def perform(self, op: Op[T], /) -> T:
        """The result of an Op, as the client performs it."""
        return self._client.perform(op)

    flush_progress = bind(JobOperations.flush_progress)
    register_callback = bind(JobOperations.register_callback)


BlockingJob = Job
