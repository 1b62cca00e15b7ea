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

    attempts: those that have a deadline and are not over. The others leave the heap late, but are never many more.
    """

    __slots__ = ("_heap", "attempts")

    def __init__(self) -> None:
        self.attempts: dict[Fence, Attempt] = {}
        self._heap: list[tuple[float, Fence]] = []

    def add(self, attempt: Attempt, at: float) -> None:
        """The attempt ends at `at` unless it is over before."""
        fence = (attempt.id, attempt.run_lease)
        self.attempts[fence] = attempt
        heapq.heappush(self._heap, (at, fence))

    def forget(self, attempt: Attempt) -> None:
        """The attempt is over."""
        self.attempts.pop((attempt.id, attempt.run_lease), None)
        if len(self._heap) > 2 * len(self.attempts) + 64:
            self._heap = [entry for entry in self._heap if entry[1] in self.attempts]
            heapq.heapify(self._heap)

    def take(self, attempt: Attempt) -> float | None:
        """When the deadline of an attempt is, which is thereby forgotten; None when it has none."""
        fence = (attempt.id, attempt.run_lease)
        if fence not in self.attempts:
            return None
        at = next(at for at, other in self._heap if other == fence)
        self._heap = [entry for entry in self._heap if entry[1] != fence]
        heapq.heapify(self._heap)
        self.forget(attempt)
        return at

    def take_due(self, now: float) -> list[Attempt]:
        """The attempts whose deadline is reached, which are thereby forgotten."""
        due: list[Attempt] = []
        while self._heap and (self._heap[0][0] <= now or self._heap[0][1] not in self.attempts):
            attempt = self.attempts.pop(heapq.heappop(self._heap)[1], None)
            if attempt is not None:
                due.append(attempt)
        return due

    def next(self) -> float | None:
        """When the next one may be due."""
        while self._heap and self._heap[0][1] not in self.attempts:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None
