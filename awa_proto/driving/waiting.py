"""How a thread waits for a callback: it stands still until the worker's loop says how that ended."""

from __future__ import annotations

from queue import SimpleQueue
from typing import Any

from awa_proto.callbacks.token import CallbackToken
from awa_proto.handler import JobBase, WaitEnd


def wait_for_callback(job: JobBase[Any, Any], token: CallbackToken | str) -> Any:
    """What the callback came with. Raises CallbackNotFound or WaitCancelled."""
    ends: SimpleQueue[WaitEnd] = SimpleQueue()
    asked = job.begin_wait(token, ends.put)
    try:
        return job.waited(asked, ends.get())
    finally:
        job.end_wait(asked)
