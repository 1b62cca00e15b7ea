"""The switch to queue storage: from then on it takes what clients of canonical storage enqueue as well.

Nothing waits for it and nothing fails for it. An insert that was under way leaves its jobs in canonical storage; those, and all
others that are there, are worked by the workers of both engines until none is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from awa_proto.job import JobState
from awa_proto.plan import Op, Plan, Statement
from awa_proto.store.queue.home import canonical_is_open
from awa_proto.store.queue.names import Names
from awa_proto.store.queue.stats import counting


@dataclass(frozen=True, slots=True)
class StorageStatus:
    """Which engine takes what, and what each holds.

    canonical_is_open: canonical storage takes what its clients enqueue. queue, canonical: how many jobs each holds by state,
    counted as by `queue_stats`. dead_letters: how many jobs are kept apart from both.
    """

    canonical_is_open: bool
    queue: Mapping[JobState, int]
    canonical: Mapping[JobState, int]
    dead_letters: int


def storage_status(schema: str) -> Op[StorageStatus]:
    """What the engines of a schema hold. Raises ValidationError when PostgreSQL cannot have such a name."""
    n = Names(schema)
    statement = Statement("storage.status", f"SELECT {canonical_is_open(n)}")

    def plan() -> Plan[StorageStatus]:
        rows = yield statement
        logs, canonical, letters, _ = yield from counting(n)
        return StorageStatus(rows[0][0], _by_state(logs), _by_state(canonical), sum(letters.values()))

    return Op("storage_status", plan, safe_to_retry=True)


def _by_state(found: Mapping[str, Mapping[str, float]]) -> dict[JobState, int]:
    return {state: sum(int(counts.get(state.value, 0)) for counts in found.values()) for state in JobState}


def switch_storage(schema: str) -> Op[bool]:
    """Let queue storage take all new jobs. Whether that is new; False when it was so already."""
    n = Names(schema)
    statement = Statement("storage.switch", f"SELECT setval({n.text('engine')}, 2) WHERE {canonical_is_open(n)}")

    def plan() -> Plan[bool]:
        rows = yield statement
        return bool(rows)

    return Op("switch_storage", plan, safe_to_retry=True)
