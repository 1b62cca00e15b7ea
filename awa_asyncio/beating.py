"""The lane of a heartbeat: on an event loop of its own, which runs in the heartbeat's thread while there is something to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from awa_proto.plan import Op

if TYPE_CHECKING:
    from awa_asyncio.db import Database

T = TypeVar("T")


class PrivateLane:
    """A blocking lane for one thread, which also makes it. database: makes the one it belongs to."""

    def __init__(self, database: Callable[[], Database]) -> None:
        self._runner = asyncio.Runner()
        self._lane = database().lane("heartbeat")

    def run(self, op: Op[T]) -> T:
        """The result of an Op, run exactly once. Raises DatabaseError."""
        return self._runner.run(self._lane.run(op))

    def close(self) -> None:
        """Close the connection and the event loop."""
        with self._runner as runner:
            runner.run(self._lane.close())
