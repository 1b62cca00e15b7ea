"""How often a worker of a simulated world asks for what its handlers wait for."""

from __future__ import annotations

import math
from typing import Final

from awa_proto.testing.claims import check

LOOKS: Final = frozenset({"wait", "leave"})
"""The Ops that ask, and write, for handlers that wait."""


class Looks:
    """What a worker asks and writes for handlers that wait: no more than there is reason for, never at once after a failure.

    expected: how often a handler began or ceased to wait, or a notification came.
    """

    def __init__(self, poll: float) -> None:
        self._poll = poll
        self._sent = 0
        self._failures = 0
        self._op: int | None = None
        self._first: float | None = None
        self._held_until = -math.inf
        self.expected = 0

    def sent(self, op: int, clock: float) -> None:
        """One more, by the number of the Op."""
        check(clock >= self._held_until, "what handlers wait for is asked again at once though that failed")
        self._sent += 1
        self._op = op
        self._first = clock if self._first is None else self._first

    def failed(self, op: int, clock: float) -> None:
        """An Op failed, as the machine is told now; that may be one."""
        if op == self._op:
            self._failures += 1
            self._held_until = clock + 0.01

    def check(self, clock: float) -> None:
        """In all of its life, until now."""
        if self._first is not None:
            polls = 2 + (clock - self._first) / self._poll
            most = self.expected + 2 * self._failures + polls
            check(self._sent <= most, f"{self._sent} times was asked for what handlers wait for, {most} are allowed")
