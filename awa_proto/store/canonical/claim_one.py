"""Claim one job: the best one of a kind, or a named one, for somebody who works it alone; no row is waited for."""

from __future__ import annotations

from functools import lru_cache

from awa_proto.job import CANONICAL, Attempt
from awa_proto.plan import Plan, Statement
from awa_proto.store import Claimed
from awa_proto.store.canonical.close import RUNNING
from awa_proto.store.queue.names import BODY, Names, body


@lru_cache
def _sql(n: Names) -> str:
    """$1 id or NULL, $2 kind or NULL, $3 queue or NULL, $4 whether jobs that are not due yet count, $5 instance.

    No row: there is none. A job that is due comes before all others, of which the one that is due first comes first.
    """
    wanted = f"""($1::bigint IS NULL OR r.id = $1::bigint) AND ($2::text IS NULL OR r.kind = $2::text)
    AND ($3::text IS NULL OR r.queue = $3::text)
    AND NOT EXISTS (SELECT FROM {n.s}.queues q WHERE q.queue = r.queue AND q.paused_at IS NOT NULL)"""
    now = "statement_timestamp()"
    lease = "greatest(r.run_lease + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)"
    deadline = f"{now} + (r.extra->>'deadline')::float8 * interval '1 s'"
    running = f"{RUNNING}, $5::bigint, {now}, {deadline}"
    attempt = "id, run_lease, queue, priority, kind, args, attempt, max_attempts, run_at, created_at, extra"
    return f"""
WITH hot AS MATERIALIZED (
  SELECT r.id, {now} AS due, r.priority, r.run_at FROM {n.s}.jobs_hot r WHERE r.state = 1 AND {wanted}
  ORDER BY r.priority, r.run_at, r.id LIMIT 1 FOR UPDATE SKIP LOCKED
),
later AS MATERIALIZED (
  SELECT r.id, greatest(r.run_at, {now}) AS due, r.priority, r.run_at FROM {n.s}.scheduled_jobs r
  WHERE {wanted} AND (r.run_at <= {now} OR $4::bool)
  ORDER BY greatest(r.run_at, {now}), r.priority, r.run_at, r.id LIMIT 1 FOR UPDATE SKIP LOCKED
),
best AS MATERIALIZED (
  SELECT id FROM (SELECT * FROM hot UNION ALL SELECT * FROM later) r ORDER BY due, priority, run_at, id LIMIT 1
),
taken AS (
  UPDATE {n.s}.jobs_hot r
  SET attempt = r.attempt + 1, run_lease = {lease}, (state, instance, attempted_at, deadline_at) = ROW({running})
  WHERE r.id = ANY (ARRAY(SELECT id FROM best))
  RETURNING {attempt}
),
gone AS (DELETE FROM {n.s}.scheduled_jobs r WHERE r.id = ANY (ARRAY(SELECT id FROM best)) RETURNING r.*),
promoted AS (
  INSERT INTO {n.s}.jobs_hot (id, ended, {BODY}, state, instance, attempted_at, deadline_at)
  SELECT id, ended, {body(attempt="attempt + 1", run_lease=lease)}, {running} FROM gone r
  RETURNING {attempt}
)
SELECT {CANONICAL}::smallint, run_lease, 0, run_lease, id, queue, priority, kind, args::text, attempt, max_attempts, run_at,
       created_at, extra::text, clock_timestamp()
FROM (SELECT * FROM taken UNION ALL SELECT * FROM promoted) t"""


def claiming_one(
    n: Names, instance: int, id: int | None, kind: str | None, queue: str | None, early: bool
) -> Plan[Claimed | None]:
    """Take the best job of these, due ones first; None when there is none."""
    rows = yield Statement("canonical.claim_one", _sql(n), (id, kind, queue, early, instance))
    if not rows:
        return None
    *attempt, now = rows[0]
    return Claimed([Attempt._make(attempt)], 0, now)
