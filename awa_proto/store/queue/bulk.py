"""Bulk: what people do to many jobs at once. Each call is a statement for every bounded batch, committed by itself.

What failed is an ordinary table. Jobs nobody has claimed lie in the logs: to drain a queue is to claim them and to end them
as cancelled in one statement. It takes the lanes' turns like any claim, so no worker gets one of them as well, and deletes
nothing from a log.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from awa_proto.errors import DatabaseError
from awa_proto.job import JobState
from awa_proto.plan import Op, Plan, Statement
from awa_proto.store import Selection
from awa_proto.store.canonical import people as canonical
from awa_proto.store.queue.close import CODES
from awa_proto.store.queue.dead_letters import back_sql
from awa_proto.store.queue.names import AFRESH, BODY, Names, body
from awa_proto.store.queue.segments import segments_used
from awa_proto.store.queue.selection import BATCH, GONE_ON, in_batches, taken, values, wanted

_CANCELLED = CODES[JobState.CANCELLED]
_LANE_BATCH = 500
"""Most jobs of one lane a statement drains."""
_MOST_LOSSES = 100
"""How often in a row another claimer may be faster with a lane, before the whole Op is tried again after a pause."""

_THAT_FAILED = f"CASE r.state WHEN {CODES[JobState.FAILED]} THEN {wanted('r', 3, 'failed_for')} ELSE false END"


_TABLES = ("failed", "jobs_hot")
"""Where failed jobs are: of queue storage, of canonical storage."""


@lru_cache
def _retry_failed_sql(n: Names, table: str) -> str:
    return back_sql(n, table, _THAT_FAILED, body(attempt="0", run_at="now()", extra=AFRESH))


def retry_failed(n: Names, which: Selection) -> Op[int]:
    """Failed jobs (dead letters and cancelled ones are none) run again, from attempt 0, now."""
    return _in_batches(n, "retry_failed", _retry_failed_sql, which)


@lru_cache
def _discard_failed_sql(n: Names, table: str) -> str:
    return f"""
WITH {taken(n, table, _THAT_FAILED)}
SELECT {GONE_ON}"""


def discard_failed(n: Names, which: Selection) -> Op[int]:
    """Failed jobs (dead letters and cancelled ones are none) are gone for good."""
    return _in_batches(n, "discard_failed", _discard_failed_sql, which)


def _in_batches(n: Names, name: str, sql: Callable[[Names, str], str], which: Selection) -> Op[int]:
    conditions = values(which, "failed_for")
    return in_batches(
        name,
        *(
            lambda after, most, table=table: Statement(
                f"{n.prefix}{name}.{table}", sql(n, table), (after, most, *conditions)
            )
            for table in _TABLES
        ),
        limit=which.limit,
    )


# drain a queue


@lru_cache
def _drain_deferred_sql(n: Names) -> str:
    """$1 after id, $2 most, $3 queue. A job that was moved to another queue while it was waited for is left alone."""
    return f"""
WITH {taken(n, "deferred", "CASE WHEN r.queue = $3::text THEN true ELSE false END", still="r.queue = $3::text")},
kept AS (
  INSERT INTO {n.s}.failed (id, state, attempted_at, finalized_at, {BODY})
  SELECT id, {_CANCELLED}, attempted_at, clock_timestamp(), {BODY} FROM gone ORDER BY id
)
SELECT {GONE_ON}"""


@lru_cache
def _drain_waiting_sql(n: Names) -> str:
    """$1 after id, $2 most, $3 queue. Parked jobs; the callbacks first, like whoever uses them."""
    mine = f"CASE WHEN r.state = {CODES[JobState.WAITING_EXTERNAL]} THEN r.queue = $3::text ELSE false END"
    still = (
        f"r.queue = $3::text AND r.state = {CODES[JobState.WAITING_EXTERNAL]} AND (SELECT count(*) FROM locked) >= 0"
    )
    found = taken(n, "waiting", mine, still=still).replace(
        "gone AS (",
        f"""
locked AS MATERIALIZED (
  SELECT job_id FROM {n.s}.callbacks WHERE job_id = ANY (ARRAY(SELECT id FROM looked WHERE wanted)) ORDER BY job_id FOR UPDATE
),
gone AS (""",
    )
    return f"""
WITH {found},
used AS (DELETE FROM {n.s}.callbacks WHERE job_id = ANY (ARRAY(SELECT id FROM gone))),
kept AS (
  INSERT INTO {n.s}.failed (id, state, attempted_at, finalized_at, {BODY})
  SELECT id, {_CANCELLED}, attempted_at, clock_timestamp(), {BODY} FROM gone ORDER BY id
)
SELECT {GONE_ON}"""


def _lanes_sql(n: Names, s: int) -> str:
    """$1 queue. The lanes it has in a segment, as (priority, stripe)."""
    return f"""
WITH RECURSIVE lane(priority, stripe) AS (
  (SELECT priority, stripe FROM {n.s}.ready_{s} r WHERE r.queue = $1::text ORDER BY r.queue, r.priority, r.stripe LIMIT 1)
  UNION ALL
  SELECT next.* FROM lane l CROSS JOIN LATERAL (
    SELECT priority, stripe FROM {n.s}.ready_{s} r
    WHERE r.queue = $1::text AND (r.queue, r.priority, r.stripe) > ($1::text, l.priority, l.stripe)
    ORDER BY r.queue, r.priority, r.stripe LIMIT 1) next
)
SELECT priority, stripe FROM lane"""


@lru_cache(maxsize=256)
def _drain_sql(n: Names, s: int) -> str:
    """$1 queue, $2 priority, $3 stripe, $4 flush. Ends the next jobs of a lane of a segment as cancelled; see `claim.py`.

    Its row: how many; whether somebody else took the turn; whether there may be more.

    Their run_lease is that of the claim, since the rows they had stay in the log: a job that comes back has another one.
    """
    lane = "c.queue = l.queue AND c.priority = l.priority AND c.stripe = l.stripe"
    is_full = f"b.n = {_LANE_BATCH}"
    return f"""
WITH snap AS MATERIALIZED (
  SELECT l.*, CASE WHEN pg_current_xact_id_if_assigned() IS NULL THEN pg_current_snapshot()
                   ELSE ('draining must be the first write of its transaction, queue ' || l.queue)::pg_snapshot END AS now
  FROM unnest(ARRAY[$1::text], ARRAY[$2::smallint], ARRAY[$3::smallint]) l(queue, priority, stripe) LIMIT 1
),
lane AS MATERIALIZED (
  SELECT l.*, coalesce(c.turn, 0) AS turn, c.seen, coalesce(c.upto, '1:1:') AS upto, coalesce(c.pos_xid, '0') AS pos_xid,
         coalesce(c.pos_id, 0) AS pos_id, 0::bigint AS least, 9223372036854775807 AS most
  FROM snap l LEFT JOIN LATERAL (
    SELECT * FROM {n.s}.claims_{s} c WHERE {lane} ORDER BY c.queue, c.priority, c.stripe, c.turn DESC LIMIT 1) c ON true
),
picked AS MATERIALIZED (
  SELECT p.*, (row_number() OVER (ORDER BY p.stretch, p.hi_xid, p.xid, p.id))::int - 1 AS idx
  FROM lane l CROSS JOIN LATERAL (
    SELECT h.stretch, h.hi_xid, r.*
    FROM (   -- the spans where unclaimed rows can be: the rest of seen … upto, then upto … now
      SELECT t.stretch, greatest(h.lo_xid, t.pos_xid) AS lo_xid, h.hi_xid, h.filter,
             CASE WHEN t.pos_xid >= h.lo_xid THEN t.pos_id ELSE 0 END AS lo_id
      FROM (VALUES (1, l.seen, l.upto, l.pos_xid, l.pos_id), (2, l.upto, l.now, '0', 0)) t(stretch, lo, hi, pos_xid, pos_id)
      CROSS JOIN LATERAL (
        SELECT x AS lo_xid, x AS hi_xid, NULL::pg_snapshot AS filter FROM pg_snapshot_xip(t.lo) x
        WHERE x >= t.pos_xid AND pg_visible_in_snapshot(x, t.hi)
        UNION ALL
        SELECT pg_snapshot_xmax(t.lo), pg_snapshot_xmax(t.hi), CASE t.stretch WHEN 1 THEN t.hi END) h
      WHERE t.lo IS NOT NULL) h
    CROSS JOIN LATERAL (
      SELECT * FROM {n.s}.ready_{s} r
      WHERE r.queue = l.queue AND r.priority = l.priority AND r.stripe = l.stripe
        AND (r.xid, r.id) > (h.lo_xid, h.lo_id) AND r.xid <= h.hi_xid
        AND (h.filter IS NULL OR pg_visible_in_snapshot(r.xid, h.filter))
        AND r.id >= l.least AND r.id <= l.most   -- from a range the planner takes it that a span has few rows, and sorts none
      ORDER BY r.queue, r.priority, r.stripe, r.xid, r.id LIMIT {_LANE_BATCH}) r
    ORDER BY h.stretch, h.hi_xid, r.xid, r.id LIMIT {_LANE_BATCH}) p
),
batch AS MATERIALIZED (
  SELECT count(*)::int AS n, array_agg(id) AS job_ids, CASE WHEN max(run_lease) > 0 THEN array_agg(run_lease) END AS prior,
         greatest(max(run_lease) + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS lease,
         (array_agg(stretch))[count(*)] AS stretch, (array_agg(xid))[count(*)] AS xid, (array_agg(id))[count(*)] AS id
  FROM (SELECT * FROM picked ORDER BY idx) p
),
turn AS (
  INSERT INTO {n.s}.claims_{s} (seg, queue, priority, stripe, turn, instance, lease, seen, upto, pos_xid, pos_id,
                                job_ids, prior)
  SELECT {s}, l.queue, l.priority, l.stripe, l.turn + 1, 0, b.lease,
         CASE WHEN {is_full} THEN CASE b.stretch WHEN 1 THEN l.seen ELSE l.upto END END,
         CASE WHEN {is_full} AND b.stretch = 1 THEN l.upto ELSE l.now END,
         CASE WHEN {is_full} THEN b.xid ELSE '0' END, CASE WHEN {is_full} THEN b.id ELSE 0 END, b.job_ids, b.prior
  FROM lane l CROSS JOIN batch b WHERE b.n > 0
  ON CONFLICT (queue, priority, stripe, turn) DO NOTHING
  RETURNING claim_id, lease, job_ids
),
closed AS (
  INSERT INTO {n.s}.closures_{s} (seg, claim_id, n, flush, idx, outcome)
  SELECT {s}, claim_id, 0, $4::bigint,
         ARRAY(SELECT (i - 1)::smallint FROM unnest(t.job_ids) WITH ORDINALITY j(id, i) ORDER BY i), {_CANCELLED}
  FROM turn t
),
kept AS (
  INSERT INTO {n.s}.failed (id, state, finalized_at, {BODY})
  SELECT id, {_CANCELLED}, clock_timestamp(), {body(run_lease="t.lease")} FROM picked CROSS JOIN turn t ORDER BY id
  RETURNING id
)
SELECT (SELECT count(*) FROM kept)::int, b.n > 0 AND NOT EXISTS (SELECT FROM turn), {is_full} FROM batch b"""


def drain_queue(n: Names, queue: str, flush: int) -> Op[int]:
    """Cancel all jobs of a queue that nobody works on: in canonical storage, then parked and deferred ones, then in the logs.

    Jobs move in that order and never back, so that none slips through.

    A lane is done when it was found empty. When the Op is run again after an error it goes on, with its count.
    """
    done = 0

    def plan() -> Plan[int]:
        nonlocal done
        done += yield from canonical.draining(n, queue)
        for name, sql in (("waiting", _drain_waiting_sql), ("deferred", _drain_deferred_sql)):
            after, more = -(2**63), True
            while more:
                rows = yield Statement(f"drain.{name}", sql(n), (after, BATCH, queue))
                count, last, more, *_ = rows[0]
                done += count
                after = after if last is None else last
        used = yield segments_used(n)
        for s, _ in used:
            for priority, stripe in (yield Statement(f"lanes.{s}", _lanes_sql(n, s), (queue,))):
                more, losses = True, 0
                while more:
                    rows = yield Statement(f"drain.{s}", _drain_sql(n, s), (queue, priority, stripe, flush))
                    count, is_lost, more = rows[0]
                    done += count
                    losses = losses + 1 if is_lost else 0
                    if losses > _MOST_LOSSES:
                        raise DatabaseError(f"queue {queue!r} is claimed faster than it is drained", "40001")
                    more = more or is_lost
        return done

    return Op("drain_queue", plan, safe_to_retry=True)
