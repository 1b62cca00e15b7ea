"""The rate limit of a queue: a token bucket (as in RFC 2697), one token for a job that is started.

Tokens are taken for what a claim asks and given back for what it did not bring, so between any two moments at most
burst + rate · seconds jobs are claimed.
"""

from __future__ import annotations

import math

_ROUNDING = 1e-6
"""A token this close to whole is whole. The difference stays in the account, so rounding never adds up."""
_BATCH = 0.005
"""Seconds' worth of tokens that are waited for at high rates, so that 10,000 a second are not 10,000 claims."""


class TokenBucket:
    """Starts full: `burst` tokens, then `rate` a second up to `burst`."""

    __slots__ = ("_batch", "_burst", "_rate", "_tokens", "_updated")

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = float(burst)
        self._updated = -math.inf
        self._batch = max(1, min(int(rate * _BATCH), burst))

    def available(self, now: float) -> int:
        """Whole tokens at `now`."""
        self._refill(now)
        return max(0, math.floor(self._tokens + 2 * _ROUNDING))

    def take(self, count: int) -> None:
        """Take tokens out, no more than are available."""
        self._tokens -= count

    def give_back(self, count: int) -> None:
        """Put back tokens that were not used."""
        self._tokens = min(self._tokens + count, self._burst)

    def ready_at(self, now: float, wanted: int) -> float:
        """When there are tokens worth a claim; `now` or earlier when there are already."""
        self._refill(now)
        missing = min(wanted, self._batch) - self._tokens
        if missing <= _ROUNDING:
            return now
        return max(now + missing / self._rate, math.nextafter(now, math.inf))

    def _refill(self, now: float) -> None:
        if now > self._updated:
            if self._updated != -math.inf:
                self._tokens = min(self._tokens + (now - self._updated) * self._rate, self._burst)
            self._updated = now
