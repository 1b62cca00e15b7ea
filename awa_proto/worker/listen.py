"""The listening connection: opened, announced on, probed, and opened again when it is lost.

A producer notifies only while some worker has announced that it sleeps, so a busy system sends no notifications at all.
Which queues are announced follows from the queues themselves (`ServedQueue.asleep`); this machine makes it so:

state   | what happens                    | next
--------|---------------------------------|---------------------------------------------------------------
CLOSED  | the back-off is over            | OPENING: the first Op on the lane opens the connection
OPENING | done                            | OPEN: every queue is looked at once, since hints may be lost
OPEN    | others sleep than are announced | announce or withdraw; then newly announced queues are looked at once more,
        |                                 | since a job may have been committed before the announcement was
OPEN    | nothing for 15 seconds          | the same said again: a probe, so that a half-open connection is found
OPENING | done by another server process  | TRYING: somebody is between, who may not keep a session for this connection
        | than the one that was connected |
TRYING  | the echo is heard               | OPEN: a session it is
TRYING  | it is not, for 2 seconds        | DEAF: the queues are polled, and that is said once; nothing is announced
DEAF    | nothing for a minute            | OPENING, to try again
any     | an Op failed, or ListenLost     | CLOSED, with back-off; the queues are polled, and that is said once
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from awa_proto.errors import DatabaseError
from awa_proto.plan import Op
from awa_proto.worker.backoff import Backoff
from awa_proto.worker.context import Context
from awa_proto.worker.events import Lane
from awa_proto.worker.served import ServedQueue
from awa_proto.worker.tally import LISTEN_LOST
from awa_proto.worker.timers import Timer

PROBE_EVERY: Final = 15.0
ECHO_WITHIN: Final = 2.0
"""Seconds a notification may take that is sent on another connection."""
DEAF_FOR: Final = 60.0
"""Seconds until it is tried again."""
_NO_SESSION: Final = "a pooler is between that keeps no session for LISTEN (transaction mode)"


class Line(StrEnum):
    """How the listening connection is."""

    CLOSED = "closed"
    OPENING = "opening"
    OPEN = "open"
    TRYING = "trying"
    DEAF = "deaf"


class Listener:
    """Keeps the connection, and what is announced on it. line: how it is. error: why it was closed last."""

    __slots__ = (
        "_announced",
        "_backoff",
        "_context",
        "_echo",
        "_is_busy",
        "_is_direct",
        "_is_open",
        "_is_said",
        "_pid",
        "_queues",
        "_saying",
        "error",
        "line",
    )  # fmt: skip

    def __init__(self, context: Context, queues: Mapping[str, ServedQueue]) -> None:
        self._context = context
        self._queues = queues
        self._backoff = Backoff(0.1, 10.0, context.random)
        self._is_open = False
        self._is_busy = False
        self._is_said = False
        self._announced: frozenset[str] = frozenset()
        self._saying: frozenset[str] = frozenset()
        self.line = Line.CLOSED
        self.error: DatabaseError | None = None
        self._pid = 0
        self._is_direct = False
        self._echo = ""

    def open(self) -> None:
        """Registered: connect."""
        self._is_open = True
        self._open_line()

    def close(self) -> None:
        """Say nothing more. Announcements end with the connection."""
        self._is_open = False
        self._context.timers.cancel(Timer.LISTEN)

    def settle(self) -> None:
        """Announce the queues that sleep, if others are announced."""
        if self.line is not Line.OPEN or self._is_busy or not self._is_open:
            return
        asleep = frozenset(name for name, queue in self._queues.items() if queue.asleep)
        if asleep != self._announced:
            self._say(asleep)

    def tick(self, now: float) -> None:
        """The timer: probe, or open, or nothing was heard."""
        if self._is_open and not self._is_busy:
            if self.line is Line.TRYING:
                self._deaf(now)
            else:
                self._open_line()

    def opened(self, pid: int) -> None:
        """A connection was opened, to the server process of this number, as it is told."""
        self._pid = pid

    def hears(self, payload: str, now: float) -> bool:
        """Whether a notification is the echo that is waited for, which then proves that others arrive too."""
        if payload != self._echo:
            return False
        if self.line is Line.TRYING:
            self._opened(now)
        return True

    def _open_line(self) -> None:
        if self.line in {Line.CLOSED, Line.DEAF}:
            self.line = Line.OPENING
        if not self._is_direct and self.line is Line.OPENING:
            self._say(frozenset())  # what is announced where there is no session stays with whoever is there next
            return
        self._say(frozenset(name for name, queue in self._queues.items() if queue.asleep))

    def lost(self, error: DatabaseError, now: float) -> None:
        """The connection broke by itself. An Op that is under way on it is waited for before another is sent."""
        if self.line is not Line.CLOSED:
            self._closed(error, now)

    def _say(self, asleep: frozenset[str]) -> None:
        self._saying = asleep
        self._is_busy = True
        self._context.timers.cancel(Timer.LISTEN)
        store = self._context.store
        op: Op[Any] = store.announce(sorted(asleep), sorted(self._announced)) if asleep else store.withdraw()
        self._context.lanes.run(Lane.LISTEN, op, self._done, self._failed)

    def _done(self, pid: int | None, now: float) -> None:
        self._is_busy = False
        if not self._is_open:
            return
        if self.line is Line.CLOSED:  # the connection was lost while the answer was on its way
            self._context.timers.set(Timer.LISTEN, now + self._backoff.next())
            return
        if self.line is Line.OPENING:
            if not self._saying:  # else it was said already that it is direct
                self._is_direct = pid is None or not self._pid or pid == self._pid
            if not self._is_direct:
                self._try(now)
                return
            self._opened(now)
        for name in self._saying - self._announced:
            self._queues[name].look(now)
        self._announced = self._saying
        self._context.timers.set(Timer.LISTEN, now + PROBE_EVERY)

    def _opened(self, now: float) -> None:
        self.line = Line.OPEN
        self._backoff.reset()
        self._is_said = False
        self._context.report.recovered("listen failed", "notifications arrive again")
        for queue in self._queues.values():
            queue.look(now)
        self._context.timers.set(Timer.LISTEN, now + PROBE_EVERY)

    def _try(self, now: float) -> None:
        """Let a notification be sent on another connection, while nothing runs on this one."""
        self.line = Line.TRYING
        self._echo = f"?{self._pid}:{int(self._context.random() * 2**53)}"
        self._context.timers.set(Timer.LISTEN, now + ECHO_WITHIN)
        self._context.lanes.run(Lane.MAINTENANCE, self._context.store.echo(self._echo), _sent, _unsent)

    def _deaf(self, now: float) -> None:
        self.line = Line.DEAF
        self.error = DatabaseError(_NO_SESSION, sent=False)
        if not self._is_said:
            self._is_said = self._context.report.warn(
                now, "listen failed", "no notifications arrive; the queues are polled", error=_NO_SESSION
            )
        self._context.timers.set(Timer.LISTEN, now + DEAF_FOR * (1 + 0.1 * self._context.random()))

    def _failed(self, error: DatabaseError, now: float) -> None:
        self._is_busy = False
        if self._is_open:
            self._closed(error, now)

    def _closed(self, error: DatabaseError, now: float) -> None:
        self.line = Line.CLOSED
        self._announced = self._saying = frozenset()
        self._context.last_error = self.error = error
        self._context.tally.count(LISTEN_LOST, {})
        if not self._is_open:
            return
        if not self._is_said:
            self._is_said = self._context.report.warn(
                now, "listen failed", "no notifications arrive; the queues are polled", error=str(error)
            )
        if not self._is_busy:
            self._context.timers.set(Timer.LISTEN, now + self._backoff.next())


def _sent(_: None, _now: float) -> None:
    """Whether it arrives is another matter."""


def _unsent(_: DatabaseError, _now: float) -> None:
    """Then nothing is heard, and it is tried again."""
