"""Back-off: how long to wait before something that failed is tried again."""

from __future__ import annotations

from collections.abc import Callable


class Backoff:
    """Delays that double from `first` to `most` seconds, shortened by up to a quarter so that workers spread out."""

    __slots__ = ("_first", "_most", "_random", "failures")

    def __init__(self, first: float, most: float, random: Callable[[], float]) -> None:
        self._first = first
        self._most = most
        self._random = random
        self.failures = 0

    def next(self) -> float:
        """Seconds to wait after one more failure."""
        delay = min(self._first * 2.0 ** min(self.failures, 32), self._most)
        self.failures += 1
        return delay * (1 - 0.25 * self._random())

    def reset(self) -> None:
        """It worked."""
        self.failures = 0
