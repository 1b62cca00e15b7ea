"""Adoption: jobs that a claim took although its answer was lost. They are this worker's, and nobody else would run them.

After a claim of unknown outcome the worker asks for claims of its own that it does not know. Such a claim may still be under
way in the server, so it asks again and again, less and less often, until none can be. It asks on the connection of its
claims, where no other claim is under way meanwhile: what is open then and unknown has no answer still to come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from awa_proto.errors import DatabaseError
from awa_proto.job import Attempt
from awa_proto.worker.backoff import Backoff
from awa_proto.worker.context import Context
from awa_proto.worker.dispatch import Dispatcher
from awa_proto.worker.events import Lane
from awa_proto.worker.finalize import Finalizer
from awa_proto.worker.running import Running
from awa_proto.worker.tally import ADOPTED
from awa_proto.worker.timers import Timer

IN_DOUBT: Final = 60.0
"""Seconds after which a claim without an answer is not under way any more: twice what a statement may take by default."""
_FIRST, _LONGEST = 0.25, 10.0
"""Seconds between two questions: from the one to the other, doubling."""


class Adopter:
    """Asks while there is a doubt."""

    __slots__ = (
        "_asked",
        "_backoff",
        "_context",
        "_dispatcher",
        "_finalizer",
        "_instance",
        "_running",
        "_since",
        "_until",
    )

    def __init__(self, context: Context, dispatcher: Dispatcher, finalizer: Finalizer, running: Running) -> None:
        self._context = context
        self._dispatcher = dispatcher
        self._finalizer = finalizer
        self._running = running
        self._backoff = Backoff(_FIRST, _LONGEST, context.random)
        self._instance = 0
        self._since = 0
        self._until: float | None = None
        self._asked = False

    def open(self, instance: int) -> None:
        """Registered."""
        self._instance = instance

    def close(self) -> None:
        """No more claims: what one took without an answer goes back, as far as that is known now."""
        if self._until is not None:
            self._context.timers.cancel(Timer.ADOPT)
            self._dispatcher.is_held = True

    def settle(self, now: float) -> None:
        """A claim was lost; or the connection is free for the question."""
        dispatcher = self._dispatcher
        if dispatcher.is_in_doubt:
            dispatcher.is_in_doubt = False
            if self._until is None:
                self._since = dispatcher.newest_claim
            self._until = now + IN_DOUBT
            self._backoff.reset()
            self._wait(now)
        if dispatcher.is_held and not self._asked and not self._context.lanes.is_busy(Lane.CLAIM):
            self._asked = True
            known = {attempt.claim_id for attempt in (*self._finalizer.attempts, *self._running.started)}
            known.update(attempt.claim_id for queue in dispatcher.queues.values() for attempt in queue.buffer)
            op = self._context.store.unknown(self._instance, sorted(known), self._since)
            self._context.lanes.run(Lane.CLAIM, op, self._found, self._failed)

    def ask(self) -> None:
        """The timer: ask as soon as no claim is under way."""
        self._dispatcher.is_held = True

    def _found(self, attempts: Sequence[Attempt], now: float) -> None:
        self._asked = self._dispatcher.is_held = False
        if attempts:
            self._context.tally.count(ADOPTED, {}, len(attempts))
            self._context.report.warn(
                now, "adopted", "jobs were claimed by a statement whose answer was lost; they run all the same",
                jobs=[attempt.id for attempt in attempts][:20],
            )  # fmt: skip
            self._dispatcher.adopt(attempts, now)
        if self._until is not None and now >= self._until:
            self._until = None
        self._wait(now)

    def _failed(self, error: DatabaseError, now: float) -> None:
        self._asked = self._dispatcher.is_held = False
        self._context.last_error = error
        if self._until is not None:
            self._until = max(self._until, now + _LONGEST)
        self._wait(now)

    def _wait(self, now: float) -> None:
        if self._until is not None and self._dispatcher.is_open:
            self._context.timers.set(Timer.ADOPT, now + self._backoff.next())
