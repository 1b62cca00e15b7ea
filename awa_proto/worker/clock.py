"""Database time inside the machine: the last answer that carried it, and the monotonic time since.

Due times, error entries and events of an attempt all carry this instant, so that they agree with one another and with
what a statement would say, whatever the wall clock of this host shows.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_UNKNOWN = datetime.fromtimestamp(0, UTC)


class DatabaseClock:
    """Translates the monotonic clock into database time."""

    __slots__ = ("_answer", "_at", "_now", "_received")

    def __init__(self) -> None:
        self._answer = _UNKNOWN
        self._received = 0.0
        self._now = 0.0
        self._at = _UNKNOWN

    def learn(self, answer: datetime, now: float) -> None:
        """An answer that arrived at `now` said this was the time."""
        self._answer = self._at = answer
        self._received = self._now = now

    def at(self, now: float) -> datetime:
        """Database time at `now`; the same object when asked for the same moment again."""
        if now != self._now:
            self._now = now
            self._at = self._answer + timedelta(seconds=now - self._received)
        return self._at
