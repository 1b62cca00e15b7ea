"""The timers of a worker: one named table, so that a driver has exactly one deadline to wait for.

A component sets its own timer by name and is called when it is due. Setting it again moves it.
"""

from __future__ import annotations

from enum import IntEnum, unique


@unique
class Timer(IntEnum):
    """What can be waited for, in the order in which things due at the same moment are done."""

    STOP = 0
    """A stage of the stop is over: grace, the time after cancelling, the last results, the farewell."""
    DEADLINE = 1
    """The next attempt reaches its deadline."""
    FLUSH = 2
    """A failed flush is sent again."""
    REGISTER = 3
    """Registration is tried again."""
    BUFFER = 4
    """Jobs claimed ahead have waited too long."""
    CLAIM = 5
    """A queue is asked: a poll, a turn lost to another worker, a token of its rate limit, the end of a back-off."""
    PROMOTE = 6
    """Deferred jobs become due."""
    SURVEY = 7
    """The settings of the queues are read again."""
    LISTEN = 8
    """The listening connection is probed, or opened again."""
    LEAD = 9
    """The lease of the leader is renewed, or asked for."""
    UPKEEP = 10
    """A duty of the leader is due."""
    DECLARE = 11
    """What the code says of itself is looked at again."""
    ADOPT = 12
    """It is asked what a claim took whose answer was lost."""
    WAIT = 13
    """It is asked whether callbacks have come that handlers wait for."""


class Timers:
    """When each timer is due, on the monotonic clock that is handed in."""

    __slots__ = ("_at",)

    def __init__(self) -> None:
        self._at: dict[Timer, float] = {}

    def set(self, timer: Timer, at: float) -> None:
        """Due at `at`, whatever it was before."""
        self._at[timer] = at

    def cancel(self, timer: Timer) -> None:
        """Not due any more."""
        self._at.pop(timer, None)

    def at(self, timer: Timer) -> float | None:
        """When it is due."""
        return self._at.get(timer)

    def clear(self) -> None:
        """Nothing is due any more."""
        self._at.clear()

    def take_due(self, now: float) -> list[Timer]:
        """The timers that are due, which are thereby cancelled."""
        due = sorted(timer for timer, at in self._at.items() if at <= now)
        for timer in due:
            del self._at[timer]
        return due

    def next(self) -> float | None:
        """When the first one is due."""
        return min(self._at.values(), default=None)
