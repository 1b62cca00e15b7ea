"""What the database says about the segments and the queues, read again so that a pause or a rotation is noticed.

Never on the path of a claim: at a new version of the ring, when a notification comes for a paused queue, and every few
seconds, on the maintenance lane.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from awa_proto.errors import DatabaseError
from awa_proto.store import QueueSettings, Ring
from awa_proto.worker.backoff import Backoff
from awa_proto.worker.context import Context
from awa_proto.worker.dispatch import Dispatcher
from awa_proto.worker.events import Lane
from awa_proto.worker.timers import Timer

EVERY: Final = 20.0
WHILE_PAUSED: Final = 5.0
"""Seconds until a resume is noticed whose notification was lost. A pause needs no notice: the claim itself heeds it."""
_APART: Final = 0.5


class Surveyor:
    """Keeps ring and settings fresh."""

    __slots__ = ("_asked", "_backoff", "_context", "_dispatcher", "_is_open", "_last", "_names")

    def __init__(self, context: Context, dispatcher: Dispatcher) -> None:
        self._context = context
        self._dispatcher = dispatcher
        self._names = tuple(dispatcher.queues)
        self._backoff = Backoff(0.1, EVERY, context.random)
        self._is_open = False
        self._asked = False
        self._last = 0.0

    def open(self, settings: Mapping[str, QueueSettings], now: float) -> None:
        """Begin with what registration said."""
        self._is_open = True
        self._learn(settings, now)

    def close(self) -> None:
        """Ask no more."""
        self._is_open = False
        self._context.timers.cancel(Timer.SURVEY)

    @property
    def is_asking(self) -> bool:
        """Whether an answer is under way."""
        return self._asked

    def settle(self, now: float) -> None:
        """Ask at once when a claim saw a newer ring."""
        if self._is_open and not self._asked and self._dispatcher.version > self._dispatcher.ring.version:
            self._ask_within(_APART, now)

    def woken(self, queue: str | None, now: float) -> None:
        """A notification for a paused queue: it may have been resumed."""
        if self._is_open and not self._asked:
            queues = self._dispatcher.queues
            if any(q.paused for q in queues.values()) if queue is None else queue in queues and queues[queue].paused:
                self._ask_within(_APART, now)

    def ask(self, now: float) -> None:
        """The timer: read them."""
        if self._is_open and not self._asked:
            self._asked = True
            self._last = now
            self._look(glance=not self._dispatcher.ring.canonical)

    def _look(self, *, glance: bool) -> None:
        """Read them. glance: and see whether canonical storage has ever been used; where it was, look into it."""

        def glanced(answer: tuple[Ring, Mapping[str, QueueSettings]], now: float) -> None:
            if answer[0].canonical and self._is_open:
                self._look(glance=False)
            else:
                self._done(answer, now)

        op = self._context.store.survey(self._names, glance=glance)
        self._context.lanes.run(Lane.MAINTENANCE, op, glanced if glance else self._done, self._failed)

    def _ask_within(self, apart: float, now: float) -> None:
        """Ask now, unless that was done a moment ago: then a moment after that."""
        timers = self._context.timers
        at = max(now, self._last + apart)
        set_to = timers.at(Timer.SURVEY)
        if at <= now:
            timers.cancel(Timer.SURVEY)
            self.ask(now)
        elif set_to is None or at < set_to:
            timers.set(Timer.SURVEY, at)

    def _done(self, answer: tuple[Ring, Mapping[str, QueueSettings]], now: float) -> None:
        self._asked = False
        self._backoff.reset()
        if self._is_open:
            ring, settings = answer
            if ring.version >= self._dispatcher.ring.version:
                is_new = ring.canonical and not self._dispatcher.ring.canonical
                self._dispatcher.ring = ring
                for queue in self._dispatcher.queues.values() if is_new else ():
                    queue.look(now)
            self._learn(settings, now)

    def _failed(self, error: DatabaseError, now: float) -> None:
        self._asked = False
        self._context.last_error = error
        if self._is_open:
            self._context.report.warn(
                now, "survey failed", "the settings of the queues could not be read", error=str(error)
            )
            self._context.timers.set(Timer.SURVEY, now + self._backoff.next())

    def _learn(self, settings: Mapping[str, QueueSettings], now: float) -> None:
        for name, queue in self._dispatcher.queues.items():
            queue.settle(settings.get(name, QueueSettings()), now)
        every = WHILE_PAUSED if any(queue.paused for queue in self._dispatcher.queues.values()) else EVERY
        self._context.timers.set(Timer.SURVEY, now + every * (1 + 0.1 * self._context.random()))
