"""Claim one job: the best one of a kind, or a named one, for somebody who works it alone.

A claim takes what comes next in a lane, and may only be the first write of its transaction, since the cursors of a lane are
snapshots, which never show the transaction itself. Here one job is taken out of its lane, as a cancellation does, by the
lane's next turn, and in the same statement it is put, claimed, into the lane beside it. Nobody else claims from that lane
and no snapshot is asked there: the rows are numbered by the turns that took them. So this is right inside a transaction
that has written, and may be rolled back with it; every read finds the job as it finds any other.

Workers have no use for it: it is a statement for each job.
"""

from __future__ import annotations

from functools import lru_cache

from awa_proto.errors import DatabaseError, Failure
from awa_proto.job import Attempt
from awa_proto.plan import Op, Plan, Statement
from awa_proto.store import Claimed
from awa_proto.store.queue.claim import claimed
from awa_proto.store.queue.names import ASIDE, BODY, Names, body, own_stripe

_MOST_ASKS = 10


@lru_cache
def _sql(n: Names) -> str:
    """$1 id or NULL, $2 kind or NULL, $3 queue or NULL, $4 whether jobs that are not due yet count, $5 instance.

    No row: there is none. A row without a segment: somebody moved it meanwhile.
    """
    wanted = f"""($1::bigint IS NULL OR r.id = $1::bigint) AND ($2::text IS NULL OR r.kind = $2::text)
      AND ($3::text IS NULL OR r.queue = $3::text)
      AND NOT EXISTS (SELECT FROM {n.s}.queues q WHERE q.queue = r.queue AND q.paused_at IS NOT NULL)"""
    lane = "c.queue = r.queue AND c.priority = r.priority"
    newest = "ORDER BY c.queue, c.priority, c.stripe, c.turn DESC LIMIT 1"
    aside = f"({own_stripe('stripe')} + {ASIDE})"
    return f"""
WITH free AS MATERIALIZED (   -- the best of those nobody has claimed; of those that are not due, the one that is due first
  SELECT * FROM (
    (SELECT r.seg, false AS deferred, r.id, {body(**{c: f"r.{c}" for c in BODY.split(", ")})},
            c.turn, c.seen, c.upto, c.pos_xid, c.pos_id
     FROM {n.s}.ready r LEFT JOIN LATERAL (
       SELECT c.* FROM {n.s}.claims c WHERE c.seg = r.seg AND {lane} AND c.stripe = r.stripe {newest}) c ON true
     WHERE {wanted} AND (c.turn IS NULL OR NOT {claimed("r", "c")})
     ORDER BY r.priority, r.run_at, r.id LIMIT 1)
    UNION ALL
    (SELECT {n.open_segment}, true, r.id, {BODY}, NULL, NULL, NULL, NULL, NULL
     FROM {n.s}.deferred r
     WHERE {wanted} AND (r.run_at <= statement_timestamp() OR $4::bool)
     ORDER BY greatest(r.run_at, statement_timestamp()), r.priority, r.run_at, r.id LIMIT 1)) r
  ORDER BY CASE WHEN deferred THEN greatest(r.run_at, statement_timestamp()) ELSE statement_timestamp() END,
           priority, run_at, id LIMIT 1
),
beside AS MATERIALIZED (
  SELECT r.*, coalesce(c.turn, 0) + 1 AS number FROM free r LEFT JOIN LATERAL (
    SELECT c.turn FROM {n.s}.claims c WHERE c.seg = r.seg AND {lane} AND c.stripe = {aside.replace("stripe", "r.stripe")}
    {newest}) c ON true
),
turn AS (
  INSERT INTO {n.s}.claims (seg, queue, priority, stripe, turn, instance, lease, seen, upto, pos_xid, pos_id, job_ids)
  SELECT seg, queue, priority, stripe, coalesce(turn, 0) + 1, 0, 0, seen, coalesce(upto, '1:1:'), coalesce(pos_xid, '0'),
         coalesce(pos_id, 0), '{{}}'
  FROM free WHERE NOT deferred
  ON CONFLICT DO NOTHING
  RETURNING queue
),
gone AS (
  DELETE FROM {n.s}.ready r USING free
  WHERE NOT free.deferred AND r.seg = free.seg AND r.id = free.id AND r.run_lease = free.run_lease AND EXISTS (SELECT FROM turn)
  RETURNING r.id
),
promoted AS (DELETE FROM {n.s}.deferred r USING free WHERE free.deferred AND r.id = free.id RETURNING r.id),
taken AS MATERIALIZED (SELECT * FROM beside WHERE id IN (SELECT id FROM gone UNION ALL SELECT id FROM promoted)),
moved AS (
  INSERT INTO {n.s}.ready (seg, xid, id, {BODY})
  SELECT seg, number::text::xid8, id, {body(stripe=aside)} FROM taken
),
claim AS (
  INSERT INTO {n.s}.claims (seg, queue, priority, stripe, turn, instance, lease, claimed_at, upto, pos_xid, pos_id,
                            job_ids, prior)
  SELECT seg, queue, priority, {aside}, number, $5::bigint,
         greatest(run_lease + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint), clock_timestamp(),
         format('%1$s:%1$s:', number + 1)::pg_snapshot, '0', 0, ARRAY[id], CASE WHEN run_lease > 0 THEN ARRAY[run_lease] END
  FROM taken
  RETURNING claim_id, lease
)
SELECT t.seg, claim.claim_id, 0, claim.lease, f.id, f.queue, f.priority, f.kind, f.args::text, f.attempt + 1, f.max_attempts,
       f.run_at, f.created_at, f.extra::text, {n.version}, clock_timestamp()
FROM free f LEFT JOIN taken t ON true LEFT JOIN claim ON true"""


def claim_one(
    n: Names, instance: int, id: int | None, kind: str | None, queue: str | None, early: bool
) -> Op[Claimed | None]:
    """Take the best job of these, due ones first; None when there is none."""
    statement = Statement("claim_one", _sql(n), (id, kind, queue, early, instance))

    def plan() -> Plan[Claimed | None]:
        for _ in range(_MOST_ASKS):
            try:
                rows = yield statement
            except DatabaseError as error:
                if error.failure is not Failure.UNIQUE_VIOLATION:
                    raise
                break  # somebody took the turn beside: nothing of this was done
            if not rows:
                return None
            *attempt, version, now = rows[0]
            if attempt[0] is not None:
                return Claimed([Attempt._make(attempt)], version, now)
        raise DatabaseError("others kept taking the job that was to be claimed", "40001")

    return Op("claim_one", plan)
