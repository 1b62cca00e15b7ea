"""Job: what the handlers of blocking code get. All of them block, so BlockingJob is another name for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from awa_proto.binding import bind
from awa_proto.callbacks.token import CallbackToken
from awa_proto.driving.waiting import wait_for_callback
from awa_proto.handler import JobBase, JobOperations
from awa_proto.plan import Op

if TYPE_CHECKING:
    from awa_sync.client import Client  # noqa: F401  named in a base class below

A_co = TypeVar("A_co", covariant=True)
T = TypeVar("T")


class Job(JobBase[A_co, "Client"]):
    """What a handler gets, in its thread: the attempt, its args, and the client."""

    __slots__ = ()

    def perform(self, op: Op[T], /) -> T:
        """The result of an Op, as the client performs it."""
        return self._client.perform(op)

    flush_progress = bind(JobOperations.flush_progress)
    register_callback = bind(JobOperations.register_callback)

    def wait_for_callback(self, token: CallbackToken | str, /) -> Any:
        """Wait for a callback of this attempt, and return what it came with; several times in a row if need be.

        The job is waiting_external meanwhile and keeps its slot; its deadline stands still. `Client.resume_external` ends it.

        Args:
            token: What `register_callback` gave.

        Raises:
            CallbackNotFound: The callback was replaced, or used already.
            WaitCancelled: The job was cancelled, or the worker stops.
        """
        return wait_for_callback(self, token)


BlockingJob = Job
