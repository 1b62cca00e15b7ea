"""Segments: what of a segment nobody has claimed, exactly. Probing, pruning and the counts stand on it.

Which segment takes new rows is in `rotate.py`; how a segment becomes empty in `prune.py`.
"""

from __future__ import annotations

from awa_proto.plan import Statement
from awa_proto.store.queue.names import Names


def segments_used(n: Names) -> Statement:
    """The segments that may have rows, and the database's clock, in each row."""
    return Statement("segments.used", f"SELECT seg, clock_timestamp() FROM {n.s}.segments WHERE state <> 'free'")


def unclaimed(n: Names, s: int, columns: str, queue: str | None = None, cap: int | None = None) -> str:
    """SQL: rows of the segment no claim has taken, exactly, in O(lanes + rows returned): the spans of every lane.

    queue: SQL of a queue name, to look at its lanes only. cap: most rows a span gives.
    """
    only = f"r.queue = {queue} AND " if queue else ""
    lanes = "queue, priority, stripe"
    return f"""
WITH RECURSIVE lane({lanes}) AS (
  (SELECT {lanes} FROM {n.s}.ready_{s} r WHERE {only}true ORDER BY {lanes} LIMIT 1)
  UNION ALL
  SELECT next.* FROM lane l CROSS JOIN LATERAL (
    SELECT {lanes} FROM {n.s}.ready_{s} r
    WHERE {only}(r.queue, r.priority, r.stripe) > (l.queue, l.priority, l.stripe)
    ORDER BY r.queue, r.priority, r.stripe LIMIT 1) next
),
cursors AS MATERIALIZED (
  SELECT l.*, c.seen, coalesce(c.upto, '1:1:') AS upto, coalesce(c.pos_xid, '0') AS pos_xid, coalesce(c.pos_id, 0) AS pos_id
  FROM lane l LEFT JOIN LATERAL (
    SELECT * FROM {n.s}.claims_{s} c WHERE c.queue = l.queue AND c.priority = l.priority AND c.stripe = l.stripe
    ORDER BY c.queue, c.priority, c.stripe, c.turn DESC LIMIT 1) c ON true
),
spans AS MATERIALIZED (SELECT *, 0::bigint AS least, 9223372036854775807 AS most FROM (
  SELECT {lanes}, x AS lo, x AS hi, pos_xid, pos_id, upto AS filter
  FROM cursors CROSS JOIN LATERAL pg_snapshot_xip(seen) x WHERE seen IS NOT NULL AND x >= pos_xid
  UNION ALL
  SELECT {lanes}, pg_snapshot_xmax(seen), pg_snapshot_xmax(upto), pos_xid, pos_id, upto FROM cursors WHERE seen IS NOT NULL
  UNION ALL
  SELECT {lanes}, x, x, '0', 0, NULL FROM cursors CROSS JOIN LATERAL pg_snapshot_xip(upto) x
  UNION ALL
  SELECT {lanes}, pg_snapshot_xmax(upto), NULL, '0', 0, NULL FROM cursors) s
)
SELECT {columns} FROM spans p CROSS JOIN LATERAL (
  SELECT * FROM {n.s}.ready_{s} r
  WHERE r.queue = p.queue AND r.priority = p.priority AND r.stripe = p.stripe
    AND (r.xid, r.id) > (greatest(p.lo, p.pos_xid), CASE WHEN p.pos_xid >= p.lo THEN p.pos_id ELSE 0 END)   -- one bound:
    AND r.xid <= coalesce(p.hi, '18446744073709551615')   -- of two, the index begins at the wrong one
    AND r.id >= p.least AND r.id <= p.most   -- from a range the planner takes it that a span has few rows, and sorts none
    AND (p.filter IS NULL OR pg_visible_in_snapshot(r.xid, p.filter))
  ORDER BY r.queue, r.priority, r.stripe, r.xid, r.id {f"LIMIT {cap}" if cap else ""}) r"""
