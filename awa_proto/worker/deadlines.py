"""The deadlines of the attempts in this worker's hands. Few jobs have one; the others cost nothing here."""

from __future__ import annotations

import heapq
from typing import TypeAlias

from awa_proto.extra import decode
from awa_proto.job import Attempt

Fence: TypeAlias = tuple[int, int]
"""(id, run_lease): one attempt among all."""


def limit(attempt: Attempt, default: float | None) -> float | None:
    """Seconds the attempt may take: its own deadline, else the queue's."""
    if attempt.extra is not None and '"deadline"' in attempt.extra:
        own = decode(attempt.extra).get("deadline")
        if isinstance(own, (int, float)):
            return float(own)
    return default


class Deadlines:
    """Which attempt ends when.

    attempts: those that have a deadline and are not over, whether it stands still or not. What was put into the heap and does
    not hold any more, since the attempt is over or its deadline stood still, leaves it late, but is never much more.
    """

    __slots__ = ("_at", "_heap", "_still", "_stood", "attempts")

    def __init__(self) -> None:
        self.attempts: dict[Fence, Attempt] = {}
        self._at: dict[Fence, float] = {}
        self._still: dict[Fence, tuple[float, float]] = {}
        self._stood: dict[Fence, float] = {}
        self._heap: list[tuple[float, Fence]] = []

    def add(self, attempt: Attempt, at: float) -> None:
        """The attempt ends at `at` unless it is over before."""
        fence = (attempt.id, attempt.run_lease)
        self.attempts[fence] = attempt
        self._at[fence] = at
        heapq.heappush(self._heap, (at, fence))

    def forget(self, attempt: Attempt) -> None:
        """The attempt is over."""
        fence = (attempt.id, attempt.run_lease)
        if self.attempts.pop(fence, None) is not None:
            self._at.pop(fence, None)
            self._still.pop(fence, None)
            self._stood.pop(fence, None)
            self._tidy()

    def stop(self, attempt: Attempt, now: float) -> None:
        """The deadline of an attempt stands still from now on, if it has one."""
        fence = (attempt.id, attempt.run_lease)
        at = self._at.pop(fence, None)
        if at is not None:
            self._still[fence] = now, at - now
            self._tidy()

    def go_on(self, attempt: Attempt, now: float) -> bool:
        """It has what was left of it. Whether there is one that stood still."""
        fence = (attempt.id, attempt.run_lease)
        if fence not in self._still:
            return False
        since, left = self._still.pop(fence)
        self._stood[fence] = self._stood.get(fence, 0.0) + now - since
        self.add(attempt, now + left)
        return True

    def stood(self, attempt: Attempt, now: float) -> float:
        """Seconds that it has stood still until now, all together; 0 when there is none."""
        fence = (attempt.id, attempt.run_lease)
        since = self._still[fence][0] if fence in self._still else now
        return self._stood.get(fence, 0.0) + now - since

    def take_due(self, now: float) -> list[Attempt]:
        """The attempts whose deadline is reached, which are thereby forgotten."""
        due: list[Attempt] = []
        while (at := self.next()) is not None and at <= now:
            fence = heapq.heappop(self._heap)[1]
            del self._at[fence]
            self._stood.pop(fence, None)
            due.append(self.attempts.pop(fence))
        return due

    def next(self) -> float | None:
        """When the next one may be due."""
        while self._heap and not self._holds(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def _holds(self, entry: tuple[float, Fence]) -> bool:
        return self._at.get(entry[1]) == entry[0]

    def _tidy(self) -> None:
        if len(self._heap) > 2 * len(self._at) + 64:
            self._heap = [entry for entry in self._heap if self._holds(entry)]
            heapq.heapify(self._heap)
