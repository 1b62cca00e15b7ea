"""Contact: whether a database answers, as those who ask it find out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from awa_proto.errors import DatabaseError, Failure
from awa_proto.worker.tally import FAILED_OPS, RECONNECTED, RETRIED_OPS, Tally

_AWAY: Final = frozenset(
    {Failure.CONNECTION_LOST, Failure.OUTCOME_UNKNOWN, Failure.UNAVAILABLE, Failure.READ_ONLY, Failure.NOT_MIGRATED}
)
_FULL: Final = "53300"
"""The SQLSTATE of a server that has no connection left."""


class Contact:
    """What the newest answers say; of one connection, or of all of a client, whose threads may all tell it.

    error, error_at: the newest failure of any kind, and when. away_since: since when no answer is of use; None while they are.
    """

    __slots__ = ("away_since", "error", "error_at")

    def __init__(self) -> None:
        self.error: DatabaseError | None = None
        self.error_at = 0.0
        self.away_since: float | None = None

    def reached(self) -> bool:
        """Something was done. Whether that is a return: what came before could not be."""
        if self.away_since is None:
            return False
        self.away_since = None
        return True

    def failed(self, error: DatabaseError, now: float) -> None:
        """Something could not be done."""
        self.error_at, self.error = now, error
        if is_away(error) and self.away_since is None:
            self.away_since = now


def is_away(error: DatabaseError) -> bool:
    """Whether nothing can be done now, whatever is asked for; else only this one thing could not be."""
    return error.failure in _AWAY or error.sqlstate == _FULL


class Calls:
    """What the calls of a client find out: whether its database answers, and how often what failed. For all threads.

    clock: monotonic seconds.
    """

    __slots__ = ("clock", "contact", "tally")

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.contact = Contact()
        self.tally = Tally()

    def succeeded(self) -> None:
        """A call was carried out."""
        if self.contact.away_since is not None and self.contact.reached():
            self.tally.count(RECONNECTED, {})

    def failed(self, op: str, error: DatabaseError) -> None:
        """A call failed, or a try of one."""
        self.contact.failed(error, self.clock())
        self.tally.count(FAILED_OPS, {"awa.op": op, "awa.failure": error.failure})

    def retried(self, op: str) -> None:
        """A call that failed is tried again."""
        self.tally.count(RETRIED_OPS, {"awa.op": op})
