"""Claim: take the best jobs of every queue of a worker, in one statement.

A lane (segment, queue, priority, stripe) is read in stretches. A stretch is what one snapshot sees and an earlier one did
not; inside it rows go in (xid, id) order. The cursor is therefore (seen, upto, position): everything visible in `seen` is
claimed, and of what is visible in `upto` everything up to the position. A transaction that commits late is simply part of
a later stretch, so no row is skipped whatever order transactions commit in.

The unique index on (lane, turn) is the arbiter at every isolation level: two claimers that read the same cursor insert the
same turn, and one of them takes nothing. Position, snapshots and rows must come from one statement; never split it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from awa_proto.errors import DatabaseError, Failure
from awa_proto.job import Attempt
from awa_proto.plan import Op, Plan, Rows, Statement
from awa_proto.store import Claimed, Demand, Ring
from awa_proto.store.queue.names import Names, union

_FUTURE = "lies in the future, rebase first"

LIMIT = 1000
"""Most jobs a claim takes from one queue. A constant outside of LIMIT n, so that the cost the planner sees does not grow with
the backlog: past jit_above_cost every claim would be compiled first."""


def claimed(r: str, c: str) -> str:
    """SQL: whether row `r` is taken as of the claim `c` of its lane. Monotone in the turn of `c`."""
    return (
        f"(pg_visible_in_snapshot({r}.xid, coalesce({c}.seen, {c}.upto))"
        f" OR ({c}.seen IS NOT NULL AND pg_visible_in_snapshot({r}.xid, {c}.upto)"
        f" AND ({r}.xid, {r}.id) <= ({c}.pos_xid, {c}.pos_id)))"
    )


def _cursor(n: Names, s: int) -> str:
    """The newest claim of a lane, if there is one."""
    return f"""
  (SELECT c.turn, c.seen, c.upto, c.pos_xid, c.pos_id FROM {n.s}.claims_{s} c
   WHERE g.seg = {s} AND c.queue = a.queue AND c.priority = p AND c.stripe = a.stripe
   ORDER BY c.queue, c.priority, c.stripe, c.turn DESC LIMIT 1)"""


def _rows(n: Names, s: int, lane: str, columns: str, limit: str, stripe: str | None = None) -> str:
    """Rows of a span `h` of `lane` in order; the one-time filter on the segment keeps other tables unread."""
    return f"""
(SELECT {columns} FROM {n.s}.ready_{s} r
 WHERE {lane}.seg = {s} AND r.queue = {lane}.queue AND r.priority = {lane}.priority AND r.stripe = {stripe or f"{lane}.stripe"}
   AND (r.xid, r.id) > (h.lo_xid, h.lo_id) AND r.xid <= h.hi_xid
   AND (h.filter IS NULL OR pg_visible_in_snapshot(r.xid, h.filter))
 ORDER BY r.queue, r.priority, r.stripe, r.xid, r.id LIMIT {limit})"""


def _insert(n: Names, s: int) -> str:
    return f"""claim_{s} AS (
  INSERT INTO {n.s}.claims_{s} (seg, queue, priority, stripe, turn, instance, lease, deadline_at,
                                seen, upto, pos_xid, pos_id, job_ids, prior)
  SELECT {s}, c.queue, c.priority, c.stripe, c.turn + 1, $6::bigint, coalesce(b.lease, 0),
         now() + c.deadline * interval '1 s',
         CASE WHEN NOT e.exhausted THEN CASE b.stretch WHEN 1 THEN c.seen ELSE c.upto END END,
         CASE WHEN NOT e.exhausted AND b.stretch = 1 THEN c.upto ELSE c.now END,
         CASE WHEN e.exhausted THEN '0' ELSE b.xid END,
         CASE WHEN e.exhausted THEN 0 ELSE b.id END,
         coalesce(b.job_ids, '{{}}'), b.prior
  FROM cursors c
  LEFT JOIN batch b USING (seg, queue, priority, stripe)
  LEFT JOIN taken t ON t.queue = c.queue AND t.stripe = c.stripe
  CROSS JOIN LATERAL (SELECT t.n IS NULL OR t.n < c.n OR b.last < t.last AS exhausted) e
  WHERE c.seg = {s} AND (b.n > 0 OR ($7::bool AND t.n IS NULL))
  ORDER BY c.queue, c.priority, c.stripe
  ON CONFLICT (queue, priority, stripe, turn) DO NOTHING   -- another claimer took this turn: claim nothing, ask again
  RETURNING seg, claim_id, lease, queue, priority, stripe
)"""


@lru_cache(maxsize=256)
def sql(n: Names, segments: tuple[int, ...]) -> str:
    """$1 queues, $2 stripes, $3 wanted, $4 aging seconds, $5 deadline seconds or NULL, $6 instance, $7 advance, $8 insist.

    The first write of its transaction, committed alone; it sets synchronous_commit off for itself, since a claim that a
    crash forgets is as good as none. It fills the wanted number from the lanes in the order effective priority, segment
    (oldest first), age, priority.

    It has few nodes on purpose: of an idle claim's time a third goes into setting up the plan.

    Rows are Attempts. Three kinds of rows come beside them, all without a segment: one with the version of the ring and
    the time; one per queue whose turn somebody else took ("ask again soon", not "empty").
    """
    ages = ", ".join(f"({s}::smallint, {age})" for age, s in enumerate(segments))
    return f"""
WITH snap AS MATERIALIZED (
  SELECT pg_current_snapshot() AS now, set_config('synchronous_commit', 'off', true) AS asynchronous,
         set_config('lock_timeout', '100ms', true) AS patience   -- somebody's open transaction may hold the turn of a lane
),
asked AS MATERIALIZED (
  SELECT w.queue, w.stripe, w.aging, w.deadline,
         CASE WHEN pg_current_xact_id_if_assigned() IS NULL THEN least(w.n, {LIMIT})
              ELSE ('a claim must be the first write of its transaction, queue ' || w.queue)::int END AS n,
         CASE WHEN w.insist THEN true   -- the lock only spares work: the turn decides
              ELSE pg_try_advisory_xact_lock(hashtextextended(w.queue || '#' || w.stripe, {n.seed("claim")})) END AS mine
  FROM unnest($1::text[], $2::smallint[], $3::int[], $4::float8[], $5::float8[], $8::bool[])
       w(queue, stripe, n, aging, deadline, insist)
  WHERE w.n > 0 AND NOT EXISTS (SELECT FROM {n.s}.queues q WHERE q.queue = w.queue AND q.paused_at IS NOT NULL)
),
cursors AS MATERIALIZED (
  SELECT g.seg, a.queue, p::smallint AS priority, a.stripe, a.n, a.aging, a.deadline, g.age,
         coalesce(c.turn, 0) AS turn, c.seen, coalesce(c.upto, '1:1:') AS upto,
         coalesce(c.pos_xid, '0') AS pos_xid, coalesce(c.pos_id, 0) AS pos_id, snap.now
  FROM snap CROSS JOIN asked a CROSS JOIN generate_series(1, 4) p CROSS JOIN (VALUES {ages}) g(seg, age)
  LEFT JOIN LATERAL ({union(lambda s: _cursor(n, s), segments, "    ")}) c ON true
  WHERE a.mine
    AND CASE WHEN pg_snapshot_xmax(c.upto) > pg_snapshot_xmax(snap.now)      -- a dump of a cluster with higher numbers
             THEN ('the cursor of queue ' || a.queue || ' {_FUTURE}')::bool ELSE true END
),
lanes AS MATERIALIZED (   -- lanes that have something, with the spans where unclaimed rows can be
  SELECT c.seg, c.queue, c.priority, c.stripe, c.age, l.*, head.ord AS first, head.run_at,
         greatest(1, c.priority - CASE WHEN c.aging > 0
           THEN floor(extract(epoch FROM now() - head.run_at) / c.aging) ELSE 0 END) AS effective
  FROM cursors c CROSS JOIN LATERAL (   -- aggregates over a sorted subquery: one sort, instead of one each
    SELECT array_agg(stretch) AS stretch, array_agg(lo_xid) AS lo_xid, array_agg(lo_id) AS lo_id,
           array_agg(hi_xid) AS hi_xid, array_agg(filter) AS filter
    FROM (
      SELECT t.stretch, greatest(h.lo_xid, t.pos_xid) AS lo_xid,
             CASE WHEN t.pos_xid >= h.lo_xid THEN t.pos_id ELSE 0 END AS lo_id, h.hi_xid, h.filter
      FROM (VALUES (1, c.seen, c.upto, c.pos_xid, c.pos_id),                            -- 1: the rest of seen … upto
                   (2, c.upto, c.now, '0', 0)) t(stretch, lo, hi, pos_xid, pos_id)      -- 2: upto … now
      CROSS JOIN LATERAL (   -- late transactions one by one, then everything newer
        SELECT x AS lo_xid, x AS hi_xid, NULL::pg_snapshot AS filter FROM pg_snapshot_xip(t.lo) x
        WHERE x >= t.pos_xid AND pg_visible_in_snapshot(x, t.hi)
        UNION ALL
        SELECT pg_snapshot_xmax(t.lo), pg_snapshot_xmax(t.hi), CASE t.stretch WHEN 1 THEN t.hi END) h
      WHERE t.lo IS NOT NULL
      ORDER BY t.stretch, h.hi_xid) s) l
  CROSS JOIN LATERAL (
    SELECT h.ord, r.run_at
    FROM unnest(l.stretch, l.lo_xid, l.lo_id, l.hi_xid, l.filter)
         WITH ORDINALITY h(stretch, lo_xid, lo_id, hi_xid, filter, ord)
    CROSS JOIN LATERAL (
{union(lambda s: _rows(n, s, "c", "r.run_at", "1"), segments, "      ")}) r
    ORDER BY h.ord LIMIT 1) head
),
queues AS MATERIALIZED (   -- all spans of a queue in the order they are read, the best lane first
  SELECT a.queue, a.stripe, a.n, s.* FROM asked a CROSS JOIN LATERAL (
    SELECT array_agg(seg) AS seg, array_agg(priority) AS priority, array_agg(stretch) AS stretch, array_agg(lo_xid) AS lo_xid,
           array_agg(lo_id) AS lo_id, array_agg(hi_xid) AS hi_xid, array_agg(filter) AS filter
    FROM (
      SELECT l.seg, l.priority, h.*
      FROM lanes l CROSS JOIN LATERAL unnest(l.stretch, l.lo_xid, l.lo_id, l.hi_xid, l.filter)
           WITH ORDINALITY h(stretch, lo_xid, lo_id, hi_xid, filter, ord)
      WHERE l.queue = a.queue AND l.stripe = a.stripe AND h.ord >= l.first
      ORDER BY l.effective, l.age, l.run_at, l.priority, h.ord) l) s
),
picked AS MATERIALIZED (
  SELECT p.*,
         (row_number() OVER (PARTITION BY p.seg, p.queue, p.priority, p.stripe ORDER BY p.ord, p.xid, p.id))::int - 1 AS idx
  FROM queues q CROSS JOIN LATERAL (SELECT p.* FROM (
    SELECT h.stretch, h.ord, r.*
    FROM (SELECT q.queue, q.stripe AS part, h.*
          FROM unnest(q.seg, q.priority, q.stretch, q.lo_xid, q.lo_id, q.hi_xid, q.filter)
               WITH ORDINALITY h(seg, priority, stretch, lo_xid, lo_id, hi_xid, filter, ord)) h
    CROSS JOIN LATERAL (SELECT r.* FROM (
{union(lambda s: _rows(n, s, "h", "r.*", "q.n", stripe="h.part"), segments, "      ")}) r LIMIT {LIMIT}) r
    ORDER BY h.ord, r.xid, r.id LIMIT q.n) p LIMIT {LIMIT}) p
),
batch AS MATERIALIZED (
  SELECT seg, queue, priority, stripe, max(ord) AS last, count(*) AS n, array_agg(id) AS job_ids,
         CASE WHEN max(run_lease) > 0 THEN array_agg(run_lease) END AS prior,
         greatest(max(run_lease) + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS lease,
         (array_agg(stretch))[count(*)] AS stretch, (array_agg(xid))[count(*)] AS xid, (array_agg(id))[count(*)] AS id
  FROM (SELECT * FROM picked ORDER BY seg, queue, priority, stripe, idx) p GROUP BY seg, queue, priority, stripe
),
taken AS MATERIALIZED (SELECT queue, stripe, sum(n) AS n, max(last) AS last FROM batch GROUP BY queue, stripe),
{", ".join(_insert(n, s) for s in segments)},
claim AS NOT MATERIALIZED (
{union(lambda s: f"SELECT * FROM claim_{s}", segments)}
)
SELECT seg, claim_id, idx, lease, id, queue, priority, kind, args::text, attempt, max_attempts, run_at, created_at, extra::text
FROM (
  SELECT p.ord, p.seg, claim.claim_id, p.idx, claim.lease, p.id, p.queue, p.priority, p.kind, p.args, p.attempt + 1 AS attempt,
         p.max_attempts, p.run_at, p.created_at, p.extra
  FROM claim JOIN picked p USING (seg, queue, priority, stripe)
  UNION ALL
  SELECT NULL, NULL, NULL, a.stripe, NULL, NULL, a.queue, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM asked a
  WHERE NOT a.mine OR EXISTS (
    SELECT FROM batch b WHERE b.queue = a.queue AND b.stripe = a.stripe AND NOT EXISTS (
      SELECT FROM claim c WHERE c.seg = b.seg AND c.queue = b.queue AND c.priority = b.priority AND c.stripe = b.stripe))
  UNION ALL
  SELECT NULL, NULL, {n.version}, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, clock_timestamp(), NULL, NULL FROM snap
) x
ORDER BY queue, ord, idx"""


def claim(n: Names, instance: int, ring: Ring, demands: Sequence[Demand], advance: bool) -> Op[Claimed]:
    """Take jobs. The Op must run alone: the statement refuses a transaction that has written."""
    statement = Statement(
        f"claim.{'.'.join(map(str, ring.segments))}",
        sql(n, ring.segments),
        (
            [d.queue for d in demands],
            [d.stripe for d in demands],
            [d.wanted for d in demands],
            [d.aging for d in demands],
            [d.deadline for d in demands],
            instance,
            advance,
            [d.insist for d in demands],
        ),
    )

    def plan() -> Plan[Claimed]:
        try:
            rows: Rows = yield statement
        except DatabaseError as error:
            if _FUTURE in str(error):
                error.failure = Failure.RESTORED
            raise
        attempts = [Attempt._make(row) for row in rows if row[0] is not None]
        marks = rows if len(attempts) != len(rows) else []
        version, now, again = 0, None, set[tuple[str, int]]()
        for row in marks:
            if row[0] is not None:
                continue
            if row[5] is None:
                version, now = row[1], row[11]
            else:
                again.add((row[5], row[2]))
        assert now is not None, "a claim always tells the time"
        return Claimed(attempts, version, now, frozenset(again))

    return Op("claim", plan)
