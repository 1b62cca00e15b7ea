"""Sweep: how far down the claims of a lane all is over, so that who looks for open attempts need not look there again.

A mark says of a lane: all attempts of its claims up to a turn have ended, except in the claims it names. Turns are given out
in commit order and what has ended stays ended, so a mark never becomes wrong, whoever wrote it and how long ago; without one
everything is looked at. What costs with the age of a segment becomes a matter of what is open, and of what came since.
"""

from __future__ import annotations

from functools import lru_cache

from awa_proto.plan import Op, Plan, Statement
from awa_proto.store.queue.names import FEW_CLOSURES, Names
from awa_proto.store.queue.segments import segments_used

_AHEAD = 2**48
"""Turns no lane ever has beyond a mark."""


def open_claims(n: Names, s: int, most: str = str(_AHEAD)) -> str:
    """SQL: CTEs up to `looked`, the claims of a segment that may be open, and `open`, those that are (claim_id).

    `looked` says when the last attempt of a claim ended, `marks` the same of all that lies below a mark (closed_at).

    most: SQL of how many claims of a lane are looked at beyond its mark, the first ones; by default all.
    To be put after WITH RECURSIVE.
    """
    lane = "queue, priority, stripe"
    return f"""
lane({lane}) AS (
  (SELECT {lane} FROM {n.s}.claims_{s} c ORDER BY {lane} LIMIT 1)
  UNION ALL
  SELECT next.* FROM lane l CROSS JOIN LATERAL (
    SELECT {lane} FROM {n.s}.claims_{s} c WHERE (c.queue, c.priority, c.stripe) > (l.queue, l.priority, l.stripe)
    ORDER BY c.queue, c.priority, c.stripe LIMIT 1) next
),
marks AS MATERIALIZED (
  SELECT l.*, coalesce(w.turn, 0) AS turn, coalesce(w.open, '{{}}') AS open, w.closed_at
  FROM lane l LEFT JOIN LATERAL (
    SELECT * FROM {n.s}.sweeps w
    WHERE w.seg = {s} AND w.queue = l.queue AND w.priority = l.priority AND w.stripe = l.stripe LIMIT 1) w ON true
),
maybe AS MATERIALIZED (
  SELECT m.*, c.turn AS of, c.claim_id, cardinality(c.job_ids) AS jobs
  FROM marks m CROSS JOIN LATERAL (
    SELECT c.turn, c.claim_id, c.job_ids FROM {n.s}.claims_{s} c
    WHERE c.queue = m.queue AND c.priority = m.priority AND c.stripe = m.stripe AND c.turn > m.turn
      AND c.turn < m.turn + {_AHEAD}   -- from a range the planner takes it that they are few
    ORDER BY c.queue, c.priority, c.stripe, c.turn LIMIT {most}) c
  UNION ALL
  SELECT m.*, c.turn, c.claim_id, cardinality(c.job_ids)
  FROM marks m CROSS JOIN LATERAL unnest(m.open) o(id) CROSS JOIN LATERAL (
    SELECT * FROM {n.s}.claims_{s} c WHERE c.claim_id = o.id ORDER BY c.claim_id LIMIT 1) c
),
looked AS MATERIALIZED (
  SELECT m.queue, m.priority, m.stripe, m.turn, m.of, m.claim_id, m.jobs, k.ended,
         greatest(m.closed_at, k.closed_at) AS closed_at
  FROM maybe m CROSS JOIN LATERAL (
    SELECT coalesce(sum(cardinality(k.idx)), 0) AS ended, max(k.closed_at) AS closed_at
    FROM {n.s}.closures_{s} k WHERE k.claim_id = m.claim_id AND {FEW_CLOSURES}) k
),
open AS MATERIALIZED (SELECT * FROM looked WHERE CASE WHEN ended < jobs THEN true ELSE false END)"""


@lru_cache(maxsize=256)
def sweep_sql(n: Names, s: int) -> str:
    """$1 most claims of a lane. Its row: how many claims beyond the marks were looked at, whether a lane may have more."""
    lane = "queue, priority, stripe"
    return f"""
WITH RECURSIVE {open_claims(n, s, "$1::int")},
said AS (
  SELECT l.queue, l.priority, l.stripe, greatest(max(l.turn), max(l.of)) AS turn,
         count(*) FILTER (WHERE l.of > l.turn) AS looked, max(l.closed_at) AS closed_at,
         coalesce(array_agg(l.claim_id ORDER BY l.claim_id) FILTER (WHERE o.claim_id IS NOT NULL), '{{}}') AS open
  FROM looked l LEFT JOIN open o USING (claim_id) GROUP BY l.queue, l.priority, l.stripe
),
kept AS (
  INSERT INTO {n.s}.sweeps AS w (seg, {lane}, turn, open, closed_at)
  SELECT {s}, {lane}, turn, open, closed_at FROM said ORDER BY {lane}
  ON CONFLICT (seg, {lane}) DO UPDATE
  SET turn = excluded.turn, open = excluded.open, closed_at = greatest(w.closed_at, excluded.closed_at)
  WHERE w.turn < excluded.turn OR (w.turn = excluded.turn AND w.open <> excluded.open)
)
SELECT coalesce(sum(looked), 0)::bigint, coalesce(bool_or(looked >= $1::int), false) FROM said"""


def sweep(n: Names, most: int) -> Op[int]:
    """Move the marks of all lanes on, a statement for each segment and so many claims of a lane. How many were beyond them.

    Two that sweep at once are both right. A mark that moves is one row updated, so once in some seconds is often enough.
    """

    def plan() -> Plan[int]:
        seen = 0
        used = yield segments_used(n)
        for s, _ in used:
            more = True
            while more:
                rows = yield Statement(f"sweep.{s}", sweep_sql(n, s), (most,))
                looked, more = rows[0]
                seen += looked
        return seen

    return Op("sweep", plan, safe_to_retry=True)
