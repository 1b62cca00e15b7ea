"""Rotate: one segment takes new rows, and from time to time it is another one.

Exactly one segment is open (a partial unique index sees to it). Rotation seals it and opens a free one; new inserts learn
of it from the sequence `ring`, which is set after the rotation has committed. A row that an old transaction still puts into
a sealed segment is found there: see `probe.py`.
"""

from __future__ import annotations

from functools import lru_cache

from awa_proto.plan import Op, Plan, Statement
from awa_proto.store.queue.names import LOGS, Names
from awa_proto.store.upkeep import Rotation


@lru_cache
def sql(n: Names) -> str:
    """$1 seconds that completed jobs are kept or NULL, $2 bytes or NULL. Its row: the opened segment, whether it was time.

    It is time when what is open has something in it and is older than its share of the retention, or is as large as $2.
    """
    size = " + ".join(f"pg_total_relation_size({n.of_segment(log, 's.seg')})" for log in LOGS)
    used = " + ".join(f"pg_relation_size({n.of_segment(log, 's.seg')})" for log in LOGS)
    return f"""
WITH due AS MATERIALIZED (
  SELECT s.seg FROM {n.s}.segments s
  WHERE s.state = 'open'
    AND (s.opened_at <= clock_timestamp() - $1::float8 / greatest((SELECT count(*) FROM {n.s}.segments) - 2, 1) * interval '1 s'
         AND {used} > 0
         OR {size} >= $2::bigint)
),
next AS (
  SELECT seg FROM {n.s}.segments WHERE state = 'free' AND EXISTS (SELECT FROM due)
  ORDER BY sealed_at NULLS FIRST, seg LIMIT 1 FOR UPDATE SKIP LOCKED
),
old AS (   -- the partial unique index is checked row by row, the old one first
  UPDATE {n.s}.segments SET state = 'sealed', sealed_at = clock_timestamp()
  WHERE state = 'open' AND EXISTS (SELECT FROM next)
  RETURNING version
),
opened AS (
  UPDATE {n.s}.segments s SET state = 'open', quiet = false, opened_at = clock_timestamp(), version = old.version + 1
  FROM next, old WHERE s.seg = next.seg
  RETURNING s.seg
)
SELECT (SELECT seg FROM opened), EXISTS (SELECT FROM due) AND NOT EXISTS (SELECT FROM {n.s}.segments WHERE state = 'free')"""


def _publishing(n: Names) -> Statement:
    return Statement(
        "publish",
        f"SELECT setval({n.text('ring')}, version * 256 + seg) FROM {n.s}.segments"
        f" WHERE state = 'open' AND version * 256 + seg > {n.version}",
    )


def publish(n: Names) -> Op[None]:
    """Tell inserts which segment is open. To be run after a rotation has committed; running it again changes nothing."""

    def plan() -> Plan[None]:
        yield _publishing(n)

    return Op("publish", plan, safe_to_retry=True)


def open_next(n: Names) -> Op[int | None]:
    """Seal the open segment and open a free one, whatever is in it; None when none is free. `publish` is to follow."""

    def plan() -> Plan[int | None]:
        rows = yield Statement("rotate", sql(n), (None, 0))
        return rows[0][0] if rows else None

    return Op("open_next", plan)


def rotate(n: Names, retention: float | None, larger_than: int | None) -> Op[Rotation]:
    """Rotate when it is time, and publish, also what a leader that died has not; two statements that commit by themselves."""

    def plan() -> Plan[Rotation]:
        rows = yield Statement("rotate", sql(n), (retention, larger_than))
        yield _publishing(n)
        return Rotation(*rows[0])

    return Op("rotate", plan, safe_to_retry=True)
