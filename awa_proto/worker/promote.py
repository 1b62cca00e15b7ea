"""Deferred jobs become available at their moment.

Every worker promotes, so none waits for a leader, which only looks more often. The answer says when the next job is due, and
results of this worker that are to be retried say so themselves; what other processes defer comes by notification, or within
`EVERY`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from awa_proto.errors import DatabaseError
from awa_proto.store import Promoted
from awa_proto.worker.backoff import Backoff
from awa_proto.worker.context import Context
from awa_proto.worker.dispatch import Dispatcher
from awa_proto.worker.events import Lane
from awa_proto.worker.finalize import Finalizer
from awa_proto.worker.timers import Timer

EVERY: Final = 4.5
"""Longest time between two looks of the leader, in seconds; producers notify about a deferred job that is due sooner."""
FOLLOWING: Final = 20.0
"""The same of the others, who look all the same: the leader may be gone."""
UNANNOUNCED: Final = 0.5
"""The same while some queue is not announced as asleep, so that nobody notifies: then a statement more is nothing."""
BEFORE: Final = timedelta(seconds=10)
WHOLE_EVERY: Final = 60.0
"""A look begins so long before the latest moment it has promoted: below lie dead rows that a snapshot may keep. What came
in there nevertheless is found by a look at everything, once a minute."""
MOST: Final = 1000
"""Most jobs promoted by one statement."""
_AFTER_HINT: Final = 0.2
"""Seconds between two looks for which notifications are the only reason."""
_APART: Final = 0.01
"""Jobs due within so many seconds of one another are promoted together."""


class Promoter:
    """Looks for due jobs. is_idle: it has looked since it was last asked to, and nothing that is due is left."""

    __slots__ = (
        "_asked", "_backoff", "_context", "_dispatcher", "_finalizer", "_is_open", "_last", "_leads", "_looks_again",
        "_queues", "_sooner", "_takes_over", "_until", "_whole_at", "is_idle",
    )  # fmt: skip

    def __init__(
        self, context: Context, dispatcher: Dispatcher, finalizer: Finalizer, leads: Callable[[], bool]
    ) -> None:
        self._context = context
        self._leads = leads
        self._dispatcher = dispatcher
        self._queues = dispatcher.queues
        self._finalizer = finalizer
        self._backoff = Backoff(0.1, 10.0, context.random)
        self._is_open = False
        self._asked = False
        self._last = -math.inf
        self._sooner = math.inf
        self._looks_again = False
        self._takes_over = False
        self._until: datetime | None = None
        self._whole_at = -math.inf
        self.is_idle = False

    def open(self, now: float) -> None:
        """Registered: look."""
        self._is_open = True
        self.ask(now)

    def close(self) -> None:
        """Look no more."""
        self._is_open = False
        self._context.timers.cancel(Timer.PROMOTE)

    def settle(self, now: float) -> None:
        """Results that were written may be due sooner than what was known; and canonical storage may have something now."""
        if self._dispatcher.ring.canonical and not self._takes_over:
            self._takes_over = True
            self.look(now)
        due = self._finalizer.retry_due
        if due is not None:
            self._finalizer.retry_due = None
            self._look_at(now + (due - self._context.clock.at(now)).total_seconds(), now)

    def look(self, now: float, *, after_hint: bool = False) -> None:
        """Something may be due: look now; after a mere notification, soon."""
        self.is_idle = False
        self._looks_again = self._asked
        self._look_at(max(now, self._last + _AFTER_HINT) if after_hint else now, now)

    def ask(self, now: float) -> None:
        """The timer: promote."""
        if self._is_open and not self._asked:
            self._asked = True
            self._sooner = math.inf
            self._looks_again = False
            self._last = now
            since = None if self._until is None else self._until - BEFORE
            if since is not None and since > self._context.clock.at(now):  # the clock of the database was set back
                since = self._until = None
            if now - self._whole_at >= WHOLE_EVERY:
                self._whole_at = now
                since = None
            self._takes_over = self._dispatcher.ring.canonical
            canonical = tuple(self._queues) if self._takes_over else ()
            op = self._context.store.promote(MOST, since, canonical=canonical)
            self._context.lanes.run(Lane.MAINTENANCE, op, self._done, self._failed)

    def _look_at(self, at: float, now: float) -> None:
        if not self._is_open:
            return
        at = max(at, now, self._last + _APART)
        if self._asked:
            self._sooner = min(self._sooner, at)  # the statement under way may have looked before
            return
        set_to = self._context.timers.at(Timer.PROMOTE)
        if set_to is None or at < set_to:
            self._context.timers.set(Timer.PROMOTE, at)

    def _done(self, promoted: Promoted, now: float) -> None:
        self._asked = False
        self._backoff.reset()
        self._context.report.recovered("promote failed", "deferred jobs become available again")
        if promoted.until is not None and (self._until is None or promoted.until > self._until):
            self._until = promoted.until
        for name in promoted.queues:
            if name in self._queues:
                self._queues[name].wake(now)
        if not self._is_open:
            return
        announced = all(queue.asleep for queue in self._queues.values())
        longest = EVERY if self._leads() else FOLLOWING
        wait = (longest if announced else UNANNOUNCED) * (1 - 0.1 * self._context.random())
        if promoted.due_in is not None:
            wait = min(wait, max(promoted.due_in, 0.0))
        self.is_idle = wait > 0 and not self._looks_again and self._sooner > now
        at = now + (wait if promoted.count >= MOST else max(wait, _APART))
        self._context.timers.set(Timer.PROMOTE, min(at, max(self._sooner, now)))

    def _failed(self, error: DatabaseError, now: float) -> None:
        self._asked = False
        self._context.last_error = error
        if self._is_open:
            self._context.report.warn(now, "promote failed", "deferred jobs could not be promoted", error=str(error))
            self._context.timers.set(Timer.PROMOTE, now + self._backoff.next())
