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
    """Which attempt ends when. Attempts that are over leave the heap late, but never outnumber the others for long."""

    __slots__ = ("_attempts", "_heap")

    def __init__(self) -> None:
        self._attempts: dict[Fence, Attempt] = {}
        self._heap: list[tuple[float, Fence]] = []

    def __len__(self) -> int:
        return len(self._attempts)

    def add(self, attempt: Attempt, at: float) -> None:
        """The attempt ends at `at` unless it is over before."""
        fence = (attempt.id, attempt.run_lease)
        self._attempts[fence] = attempt
        heapq.heappush(self._heap, (at, fence))

    def forget(self, attempt: Attempt) -> None:
        """The attempt is over."""
        self._attempts.pop((attempt.id, attempt.run_lease), None)
        if len(self._heap) > 2 * len(self._attempts) + 64:
            self._heap = [entry for entry in self._heap if entry[1] in self._attempts]
            heapq.heapify(self._heap)

    def take_due(self, now: float) -> list[Attempt]:
        """The attempts whose deadline is reached, which are thereby forgotten."""
        due: list[Attempt] = []
        while self._heap and (self._heap[0][0] <= now or self._heap[0][1] not in self._attempts):
            attempt = self._attempts.pop(heapq.heappop(self._heap)[1], None)
            if attempt is not None:
                due.append(attempt)
        return due

    def next(self) -> float | None:
        """When the next one may be due."""
        while self._heap and self._heap[0][1] not in self._attempts:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None
