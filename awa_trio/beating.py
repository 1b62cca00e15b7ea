"""The lane of a heartbeat: each of its Ops is a `trio.run` of its own in the heartbeat's thread, on one connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import trio

from awa_proto.plan import Op

if TYPE_CHECKING:
    from awa_trio.db.psycopg import Database

T = TypeVar("T")


class PrivateLane:
    """A blocking lane for one thread. database: makes the one it belongs to."""

    def __init__(self, database: Callable[[], Database]) -> None:
        self._lane = database().lane("heartbeat")

    def run(self, op: Op[T]) -> T:
        """The result of an Op, run exactly once. Raises DatabaseError."""
        return trio.run(self._lane.run, op)

    def close(self) -> None:
        """Close the connection."""
        trio.run(self._lane.close)
