"""Claim: the best jobs of every queue of a worker become its own, in one statement.

Whoever locks a row first has it; claimers skip what another one has locked, so they never wait for each other. A claim
locks as many rows of each priority as are wanted, since only then the best of all are known, and lets go of the rest when it
commits. Another claimer that found rows locked and got too few is told *again*, for they may be free in a moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from awa_proto.job import CANONICAL, Attempt, JobState
from awa_proto.plan import Op, Plan, Rows, Statement
from awa_proto.store import Claimed, Demand
from awa_proto.store.canonical.persistent import persistently
from awa_proto.store.queue.close import CODES
from awa_proto.store.queue.names import Names

LIMIT = 1000
"""Most jobs a claim takes from one queue. A constant outside of LIMIT n keeps the cost that the planner sees small."""
_AVAILABLE, _RUNNING = CODES[JobState.AVAILABLE], CODES[JobState.RUNNING]


@lru_cache
def sql(n: Names) -> str:
    """$1 queues, $2 stripes, $3 wanted, $4 aging seconds, $5 deadline seconds or NULL, $6 instance, $7 insist.

    Jobs come in the order effective priority, run_at, id, which within a priority is that of the index. Rows are Attempts,
    whose claim_id is the lease, which all of a claim share. Beside them come, without a segment, one with the time, and one
    per queue where others had locked what was wanted. A claim that insists takes that for empty: somebody's transaction may
    hold those rows for long.

    synchronous_commit is off for its transaction, since a claim that a crash forgets is as good as none.
    """
    waiting = f"FROM {n.s}.jobs_hot j WHERE j.state = {_AVAILABLE} AND j.queue = a.queue AND j.stripe = a.stripe"
    return f"""
WITH asked AS MATERIALIZED (
  SELECT w.queue, w.stripe, least(w.n, {LIMIT}) AS n, w.aging, w.deadline, w.insist,
         set_config('synchronous_commit', 'off', true) AS asynchronous
  FROM unnest($1::text[], $2::smallint[], $3::int[], $4::float8[], $5::float8[], $7::bool[])
       w(queue, stripe, n, aging, deadline, insist)
  WHERE w.n > 0 AND NOT EXISTS (SELECT FROM {n.s}.queues q WHERE q.queue = w.queue AND q.paused_at IS NOT NULL)
),
best AS MATERIALIZED (
  SELECT a.queue, a.stripe, j.*
  FROM asked a CROSS JOIN LATERAL (SELECT * FROM (
    SELECT j.id, j.run_lease, j.run_at,
           greatest(1, j.priority - CASE WHEN a.aging > 0
             THEN floor(extract(epoch FROM now() - j.run_at) / a.aging) ELSE 0 END) AS effective
    FROM generate_series(1, 4) p CROSS JOIN LATERAL (SELECT * FROM (
      SELECT j.id, j.run_lease, j.run_at, j.priority {waiting} AND j.priority = p
      ORDER BY j.run_at, j.id LIMIT a.n FOR UPDATE SKIP LOCKED) j LIMIT {LIMIT}) j
    ORDER BY effective, j.run_at, j.id LIMIT a.n) j LIMIT {LIMIT}) j
),
fence AS MATERIALIZED (   -- a clock, because every counter can be handed out twice after a crash
  SELECT greatest(max(run_lease) + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS lease FROM best
),
taken AS (
  UPDATE {n.s}.jobs_hot j
  SET state = {_RUNNING}, attempt = j.attempt + 1, run_lease = (SELECT lease FROM fence), instance = $6::bigint,
      attempted_at = now(), finalized_at = NULL,
      deadline_at = now() + interval '1 s' * coalesce((j.extra->>'deadline')::float8, (
        SELECT a.deadline FROM asked a WHERE a.queue = j.queue AND a.stripe = j.stripe))
  WHERE j.id = ANY (ARRAY(SELECT id FROM best))   -- a join could become a scan of all; they are locked, so still available
  RETURNING j.*
)
SELECT seg, claim_id, 0, lease, id, queue, priority, kind, args::text, attempt, max_attempts, run_at, created_at, extra::text
FROM (
  SELECT {CANONICAL}::smallint AS seg, t.run_lease AS claim_id, t.run_lease AS lease, t.id, t.queue, t.priority, t.kind, t.args,
         t.attempt, t.max_attempts, t.run_at, t.created_at, t.extra, b.effective
  FROM taken t JOIN best b USING (id)
  UNION ALL
  SELECT NULL, NULL, a.stripe, NULL, a.queue, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM asked a
  WHERE NOT a.insist AND (SELECT count(*) FROM best b WHERE b.queue = a.queue AND b.stripe = a.stripe)
                       < (SELECT count(*) FROM (SELECT FROM (SELECT {waiting}
                                                    ORDER BY j.priority, j.run_at, j.id LIMIT a.n) j LIMIT {LIMIT}) j)
  UNION ALL
  SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, clock_timestamp(), NULL, NULL
) x
ORDER BY queue, effective, run_at, id"""


def claiming(n: Names, instance: int, demands: Sequence[Demand]) -> Plan[Claimed]:
    """The plan of a claim."""
    rows: Rows = yield from persistently(
        Statement(
            "canonical.claim",
            sql(n),
            (
                [d.queue for d in demands],
                [d.stripe for d in demands],
                [d.wanted for d in demands],
                [d.aging for d in demands],
                [d.deadline for d in demands],
                instance,
                [d.insist for d in demands],
            ),
        )
    )
    attempts = [Attempt._make(row) for row in rows if row[0] is not None]
    marks = [row for row in rows if row[0] is None]
    (now,) = [row[12] for row in marks if row[5] is None]
    return Claimed(attempts, 0, now, frozenset((row[5], row[3]) for row in marks if row[5] is not None))


def claim(n: Names, instance: int, demands: Sequence[Demand]) -> Op[Claimed]:
    """Take jobs."""
    return Op("claim", lambda: claiming(n, instance, demands))
