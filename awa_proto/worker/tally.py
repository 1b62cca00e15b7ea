"""Tally: what a worker has counted, by the names of the metrics, for whoever shows them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from typing_extensions import override

Labels: TypeAlias = tuple[tuple[str, str], ...]
"""Attributes of a metric and their values, by name."""

FAILED_OPS: Final = "awa.op.failed"
RETRIED_OPS: Final = "awa.op.retried"
RECONNECTED: Final = "awa.database.reconnected"
LISTEN_LOST: Final = "awa.listen.lost"
RESCUED: Final = "awa.rescue"
ADOPTED: Final = "awa.claim.adopted"
STALE: Final = "awa.result.stale"
HOOKS_DROPPED: Final = "awa.hook.dropped"
"""What happens between a worker, or a client, and its database."""


class Tally:
    """Counts that only rise, and sums of sizes beside them. Those of a client are written by all of its threads.

    counts: how often, by metric and attributes. sums: of the amounts that came with it, such as bytes.
    """

    __slots__ = ("counts", "sums")

    def __init__(self) -> None:
        # not a Counter, which is asked in Python for what is not there, and there another thread may come in between
        self.counts: defaultdict[tuple[str, Labels], int] = defaultdict(int)
        self.sums: defaultdict[tuple[str, Labels], int] = defaultdict(int)

    @override
    def __repr__(self) -> str:
        shown = (
            f"{metric}{{{', '.join(f'{name}={value}' for name, value in labels)}}}: {times}"
            for (metric, labels), times in sorted(self.counts.items())
        )
        return f"Tally({'; '.join(shown)})"

    def count(self, metric: str, attributes: Mapping[str, str], times: int = 1, amount: int = 0) -> None:
        """It happened so many times. amount: of what it is about, such as bytes."""
        key = metric, tuple(sorted(attributes.items()))
        self.counts[key] += times
        if amount:
            self.sums[key] += amount

    def total(self, metric: str, attributes: Mapping[str, str] = MappingProxyType({})) -> int:
        """How often it happened, over all attributes that are not named."""
        wanted = {*attributes.items()}
        return sum(
            times for (named, labels), times in list(self.counts.items()) if named == metric and wanted <= set(labels)
        )
