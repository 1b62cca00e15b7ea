"""What callbacks bring in a test, where nobody outside uses them. `wait_for_callback` returns at once, by a worker's rules.

Only the newest callback of an attempt can be waited for, and what came with it is there once. What a test says instead of a
payload is raised, and leaves the callback as it was: it may be waited for again, or the job parked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from awa_proto.callbacks.operations import payload_json
from awa_proto.errors import ConfigurationError, ValidationError
from awa_proto.handler import JobBase
from awa_proto.worker.events import StartJob, WaitAsked, WaitLeft

Delivery: TypeAlias = str | Exception
"""JSON text of a payload, or what is raised instead."""


def deliveries(payloads: Iterable[object]) -> list[Delivery]:
    """What a test wants to be delivered. Raises ValidationError: one is no JSON or too much, as `resume_external` has it."""
    if isinstance(payloads, (str, bytes, Mapping)) or not isinstance(payloads, Iterable):
        raise ValidationError("deliver", f"a list of payloads is needed, not {type(payloads).__name__}")
    return [each if isinstance(each, Exception) else payload_json("deliver", each) for each in payloads]


class Deliveries:
    """What is delivered to the handler of one attempt."""

    def __init__(self, job: JobBase[Any, Any], start: StartJob, first: Iterable[Delivery] = ()) -> None:
        self._job = job
        self._start = start
        self._left = deque(first)

    def add(self, payloads: Iterable[object]) -> None:
        """What is delivered after all others."""
        self._left += deliveries(payloads)

    def carry(self, event: WaitAsked | WaitLeft) -> None:
        """What a worker would be told. Raises what is delivered as an exception, and ConfigurationError when nothing is."""
        if isinstance(event, WaitLeft):
            return
        recording = self._start.recordings.get((event.attempt.id, event.attempt.run_lease))
        if recording is None or recording.callback != event.callback_id:
            self._job.wait_over(None)
            return
        if not self._left:
            raise ConfigurationError(
                "nothing comes that could be waited for: let the test say job.deliver(payload) before, or"
                " work_one(..., deliver=[payload])"
            )
        came = self._left.popleft()
        if isinstance(came, Exception):
            raise came
        recording.callback = None
        self._job.wait_over(came)
