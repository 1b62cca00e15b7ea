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

    attempts: those that have a deadline and are not over, whether it stands still or not. The others leave the heap late, but
    are never many more.
    """

    __slots__ = ("_heap", "_still", "_stood", "attempts")

    def __init__(self) -> None:
        self.attempts: dict[Fence, Attempt] = {}
        self._still: dict[Fence, tuple[float, float]] = {}
        self._stood: dict[Fence, float] = {}
        self._heap: list[tuple[float, Fence]] = []

    def add(self, attempt: Attempt, at: float) -> None:
        """The attempt ends at `at` unless it is over before."""
        fence = (attempt.id, attempt.run_lease)
        self.attempts[fence] = attempt
        heapq.heappush(self._heap, (at, fence))

    def forget(self, attempt: Attempt) -> None:
        """The attempt is over."""
        fence = (attempt.id, attempt.run_lease)
        self.attempts.pop(fence, None)
        self._still.pop(fence, None)
        self._stood.pop(fence, None)
        if len(self._heap) > 2 * len(self.attempts) + 64:
            self._heap = [entry for entry in self._heap if entry[1] in self.attempts]
            heapq.heapify(self._heap)

    def stop(self, attempt: Attempt, now: float) -> None:
        """The deadline of an attempt stands still from now on, if it has one."""
        fence = (attempt.id, attempt.run_lease)
        if fence in self.attempts and fence not in self._still:
            at = next(at for at, other in self._heap if other == fence)
            self._heap = [entry for entry in self._heap if entry[1] != fence]
            heapq.heapify(self._heap)
            self._still[fence] = now, at - now

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
        while self._heap and (self._heap[0][0] <= now or self._heap[0][1] not in self.attempts):
            fence = heapq.heappop(self._heap)[1]
            attempt = self.attempts.pop(fence, None)
            if attempt is not None:
                self._stood.pop(fence, None)
                due.append(attempt)
        return due

    def next(self) -> float | None:
        """When the next one may be due."""
        while self._heap and self._heap[0][1] not in self.attempts:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None
