"""The number of a flush, by which a store knows one that is sent again."""

from __future__ import annotations

from collections.abc import Callable


def flush_number(random: Callable[[], float]) -> int:
    """A number below 2**62, another one for each flush. random: floats in [0, 1)."""
    return int(random() * 2**31) << 31 | int(random() * 2**31)
