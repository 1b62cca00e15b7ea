"""Probe: look into every segment, whatever its state says, so that no row lies where nobody looks.

A transaction may commit rows into a segment long after it was sealed, and one with an old snapshot even after it was emptied.
Nothing is lost by that, since pruning carries on whatever nobody has claimed; but workers look only into segments that are
live, which is what a probe decides. In return they need not look into those that are only kept for their completed jobs.
"""

from __future__ import annotations

from functools import lru_cache

from awa_proto.plan import Op, Plan, Rows, Statement
from awa_proto.store.queue.names import Names
from awa_proto.store.queue.rotate import publish
from awa_proto.store.queue.segments import unclaimed
from awa_proto.store.upkeep import Probe


@lru_cache
def _segments_sql(n: Names) -> str:
    """Every segment that is not open, and whether an open or prepared transaction has put rows there."""
    return f"""
SELECT s.seg, s.state, s.quiet, l.relation IS NOT NULL
FROM {n.s}.segments s
LEFT JOIN (
  SELECT DISTINCT relation FROM pg_locks
  WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND pid IS DISTINCT FROM pg_backend_pid()
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
) l ON l.relation = {n.of_segment("ready", "s.seg")}
WHERE s.state <> 'open' ORDER BY s.seg"""


@lru_cache(maxsize=256)
def sealed_sql(n: Names, s: int) -> str:
    """Whether a sealed segment has something to claim."""
    return f"SELECT EXISTS ({unclaimed(n, s, '1', cap=1)})"


def _look(n: Names, s: int, state: str) -> Statement:
    """What is in a free segment may be claimed already, by a worker with an old list; its attempts have to be found too."""
    if state == "free":
        return Statement(f"probe.free.{s}", f"SELECT EXISTS (SELECT FROM {n.s}.ready_{s})")
    return Statement(f"probe.sealed.{s}", sealed_sql(n, s))


@lru_cache
def _mark_sql(n: Names) -> str:
    """$1 segments that have something, $2 segments that have not. Its rows: those that became live.

    Then the ring has a new version, so that workers read its segments again.
    """
    return f"""
WITH changed AS (
  UPDATE {n.s}.segments SET state = 'sealed', quiet = seg = ANY ($2::smallint[])
  WHERE (state = 'free' OR state = 'sealed' AND quiet) AND seg = ANY ($1::smallint[])
     OR state = 'sealed' AND NOT quiet AND seg = ANY ($2::smallint[])
  RETURNING seg, quiet
),
newer AS (
  UPDATE {n.s}.segments SET version = version + 1
  WHERE state = 'open' AND EXISTS (SELECT FROM changed WHERE NOT quiet)
)
SELECT seg FROM changed WHERE NOT quiet ORDER BY seg"""


def probe(n: Names) -> Op[Probe]:
    """Mark what is live and what is quiet. The statements commit by themselves; two that probe at once are both right."""

    def plan() -> Plan[Probe]:
        segments: Rows = yield Statement("probe.segments", _segments_sql(n))
        looks = tuple(_look(n, s, state) for s, state, _, _ in segments)
        found: list[Rows] = (yield looks) if looks else []
        live, quiet, changes = list[int](), list[int](), False
        for (s, state, was_quiet, inserting), rows in zip(segments, found, strict=True):
            is_live = rows[0][0] or (inserting and state == "sealed")
            if is_live or state == "sealed":
                (live if is_live else quiet).append(s)
                changes |= was_quiet is is_live or (is_live and state == "free")
        revived: Rows = (yield Statement("probe.mark", _mark_sql(n), (live, quiet))) if changes else []
        if revived:
            yield from publish(n).start()
        return Probe(len(live), tuple(row[0] for row in revived))

    return Op("probe", plan, safe_to_retry=True)
