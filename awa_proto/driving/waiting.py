"""How a thread waits for a callback: it stands still until the worker's loop says how that ended."""

from __future__ import annotations

from queue import SimpleQueue
from typing import Any, TypeVar

from awa_proto.callbacks.token import CallbackId
from awa_proto.handler import JobBase, WaitEnd

A_co = TypeVar("A_co", covariant=True)
C_co = TypeVar("C_co", covariant=True)


class WaitingJob(JobBase[A_co, C_co]):
    """A job whose handler runs in a thread."""

    __slots__ = ()

    def wait_for_callback(self, token: CallbackId, /) -> Any:
        """Wait for a callback of this attempt, and return what it came with; several times in a row if need be.

        The job is waiting_external meanwhile and keeps its slot; its deadline stands still. `Client.resume_external` ends it.

        Args:
            token: What `register_callback` gave, or its id.

        Raises:
            CallbackNotFound: The callback was replaced, or used already.
            WaitCancelled: The job has ended, or the worker stops. A coroutine is cancelled then, unless it is shielded.
        """
        ends: SimpleQueue[WaitEnd] = SimpleQueue()
        asked = self.begin_wait(token, ends.put)
        try:
            return self.waited(asked, ends.get())
        finally:
            self.end_wait(asked)
