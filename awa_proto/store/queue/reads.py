"""Reads: what became of a job, found in the logs without an index beside those the writes need.

The current row. A row of `ready` stands for its job if it has no closure, or its closure is *completed*. In every other
case the statement that closed it has written the job elsewhere: to `deferred`, to `failed`, or to a newer row of `ready`.

The claim that took a row is the first turn of its lane whose cursor covers it. Covering is monotone in the turn, so it is
found by halving: about log2(claims of the lane) probes of the unique index.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import lru_cache

from awa_proto import extra as extras
from awa_proto.job import JobRow, JobState
from awa_proto.plan import Op, Plan, Row, Statement
from awa_proto.store import JobFilter, QueueStat
from awa_proto.store.queue.claim import claimed
from awa_proto.store.queue.close import CODES
from awa_proto.store.queue.names import SEGMENTS, Names, union
from awa_proto.store.queue.segments import unclaimed

_STATES = tuple(JobState)
_COMPLETED = CODES[JobState.COMPLETED]
_COUNTED = 10_000
"""Most available jobs of a lane that are counted: a count over a backlog of millions would stall whoever asks."""


def fate(n: Names, r: str) -> str:
    """SQL: joins `t`, the claim that took the ready row `r` (NULLs while nobody has), and `k`, the closure of its attempt."""
    lane = f"c.seg = {r}.seg AND c.queue = {r}.queue AND c.priority = {r}.priority AND c.stripe = {r}.stripe"
    order = "ORDER BY c.queue, c.priority, c.stripe, c.turn"
    return f"""
LEFT JOIN LATERAL (
  WITH RECURSIVE search(lo, hi) AS (
    SELECT 0::bigint, top.turn
    FROM (SELECT c.* FROM {n.s}.claims c WHERE {lane} {order} DESC LIMIT 1) top
    WHERE {claimed(r, "top")}
    UNION ALL
    SELECT CASE WHEN m.claimed THEN s.lo ELSE m.turn END, CASE WHEN m.claimed THEN m.turn ELSE s.hi END
    FROM search s CROSS JOIN LATERAL (
      SELECT c.turn, {claimed(r, "c")} AS claimed FROM {n.s}.claims c
      WHERE {lane} AND c.turn = (s.lo + s.hi) / 2 {order} LIMIT 1) m
    WHERE s.hi - s.lo > 1
  )
  SELECT c.claim_id, c.lease, c.claimed_at, c.deadline_at, (array_position(c.job_ids, {r}.id) - 1)::smallint AS idx
  FROM search s CROSS JOIN LATERAL (
    SELECT c.* FROM {n.s}.claims c WHERE {lane} AND c.turn = s.hi {order} LIMIT 1) c
  WHERE s.hi - s.lo = 1
) t ON true
LEFT JOIN LATERAL (
  SELECT k.outcome, k.closed_at FROM {n.s}.closures k
  WHERE k.seg = {r}.seg AND k.claim_id = t.claim_id AND t.idx = ANY (k.idx) ORDER BY k.claim_id, k.n LIMIT 1
) k ON true"""


_STATE = f"""CASE WHEN t.claim_id IS NULL THEN {CODES[JobState.AVAILABLE]} WHEN k.outcome IS NULL THEN {CODES[JobState.RUNNING]}
  ELSE k.outcome END"""

JOB = """id, kind, queue, args::text, state, priority, attempt, run_lease, max_attempts, run_at, created_at,
  attempted_at, deadline_at, finalized_at, extra::text"""
"""The columns `job_row` reads."""


def _logged(n: Names, where: str, rest: str) -> str:
    """Current rows of `ready`, with the columns of JOB."""
    return f"""
SELECT r.id, r.kind, r.queue, r.args, {_STATE} AS state, r.priority, r.attempt + (t.claim_id IS NOT NULL)::int AS attempt,
       coalesce(t.lease, r.run_lease) AS run_lease, r.max_attempts, r.run_at, r.created_at, t.claimed_at AS attempted_at,
       CASE WHEN k.outcome IS NULL THEN t.deadline_at END AS deadline_at, k.closed_at AS finalized_at, r.extra
FROM {n.s}.ready r{fate(n, "r")}
WHERE (k.outcome IS NULL OR k.outcome = {_COMPLETED}) AND {where}
{rest}"""


def _beside(n: Names, table: str, where: str, rest: str) -> str:
    """Rows of `deferred` or `failed`, with the columns of JOB."""
    return f"""
SELECT r.id, r.kind, r.queue, r.args, r.state, r.priority, r.attempt, r.run_lease, r.max_attempts, r.run_at, r.created_at,
       r.attempted_at, NULL::timestamptz AS deadline_at, r.finalized_at, r.extra
FROM {n.s}.{table} r
WHERE {where}
{rest}"""


def job_row(row: Row) -> JobRow:
    """A row of JOB as the row that users see."""
    body = extras.decode(row[14])
    return JobRow(
        id=row[0],
        kind=row[1],
        queue=row[2],
        args=json.loads(row[3]),
        state=_STATES[row[4]],
        priority=row[5],
        attempt=row[6],
        run_lease=row[7],
        max_attempts=row[8],
        run_at=_utc(row[9]),
        created_at=_utc(row[10]),
        attempted_at=row[11] and _utc(row[11]),
        deadline_at=row[12] and _utc(row[12]),
        finalized_at=row[13] and _utc(row[13]),
        errors=body.get("errors", []),
        metadata=body.get("metadata", {}),
        tags=body.get("tags", []),
    )


def _utc(at: datetime) -> datetime:
    return at if at.tzinfo is UTC else at.astimezone(UTC)


@lru_cache
def get_sql(n: Names) -> str:
    """$1 id."""
    mine = "r.id = $1::bigint"
    return f"""
SELECT {JOB} FROM (
  ({_beside(n, "deferred", mine, "")})
  UNION ALL
  ({_beside(n, "failed", mine, "")})
  UNION ALL
  ({_logged(n, mine, "ORDER BY r.run_lease DESC LIMIT 1")})
) j LIMIT 1"""


def get_job(n: Names, id: int) -> Op[JobRow | None]:
    """The job, or None."""

    def plan() -> Plan[JobRow | None]:
        rows = yield Statement("get_job", get_sql(n), (id,))
        return job_row(rows[0]) if rows else None

    return Op("get_job", plan, safe_to_retry=True)


_IN_LOGS = frozenset({JobState.AVAILABLE, JobState.RUNNING, JobState.COMPLETED})
_IN_DEFERRED = frozenset({JobState.SCHEDULED, JobState.RETRYABLE})
_IN_FAILED = frozenset({JobState.FAILED, JobState.CANCELLED})


@lru_cache
def list_sql(n: Names, state: JobState | None, kind: bool, queue: bool) -> str:
    """$1 before id, $2 limit, then kind and queue as far as they are asked for. States are literals: a bound one would
    defeat a partial index."""
    where = "r.id < $1::bigint"
    number = 3
    for column, asked in (("kind", kind), ("queue", queue)):
        if asked:
            where += f" AND r.{column} = ${number}::text"
            number += 1
    newest = "ORDER BY r.id DESC LIMIT $2::int"
    parts: list[str] = []
    if state is None or state in _IN_DEFERRED:
        parts.append(_beside(n, "deferred", where + (f" AND r.state = {CODES[state]}" if state else ""), newest))
    if state is None or state in _IN_FAILED:
        parts.append(_beside(n, "failed", where + (f" AND r.state = {CODES[state]}" if state else ""), newest))
    if state is None or state in _IN_LOGS:
        parts.append(_logged(n, where + (f" AND {_STATE} = {CODES[state]}" if state else ""), newest))
    if not parts:
        return f"SELECT {JOB} FROM ({_beside(n, 'failed', 'false AND ' + where + ' AND $2::int > 0', '')}) j"
    union_all = ")\nUNION ALL\n(".join(parts)
    return f"SELECT {JOB} FROM (\n({union_all})\n) j ORDER BY id DESC LIMIT $2::int"


def list_jobs(n: Names, f: JobFilter) -> Op[list[JobRow]]:
    """Jobs, newest id first."""
    statement = Statement(
        f"list_jobs.{f.state or 'all'}{'.kind' if f.kind is not None else ''}{'.queue' if f.queue is not None else ''}",
        list_sql(n, f.state, f.kind is not None, f.queue is not None),
        (
            2**63 - 1 if f.before_id is None else f.before_id,
            f.limit,
            *(() if f.kind is None else (f.kind,)),
            *(() if f.queue is None else (f.queue,)),
        ),
    )

    def plan() -> Plan[list[JobRow]]:
        rows = yield statement
        return [job_row(row) for row in rows]

    return Op("list_jobs", plan, safe_to_retry=True)


@lru_cache
def _stats_sql(n: Names, segments: tuple[int, ...]) -> str:
    """Counts by queue. Available jobs are counted over the spans no claim covers, capped; the rest comes from the logs."""

    def available(s: int) -> str:
        counted = "p.queue, count(*) AS jobs, min(r.run_at) AS oldest"
        return f"(SELECT * FROM ({unclaimed(n, s, counted, cap=_COUNTED)} GROUP BY p.queue) u)"

    return f"""
WITH available AS MATERIALIZED (
  SELECT queue, sum(jobs)::int AS jobs, min(oldest) AS oldest FROM (
{union(available, segments, "    ")}) u GROUP BY queue
),
handed_out AS MATERIALIZED (SELECT queue, sum(cardinality(job_ids))::bigint AS jobs FROM {n.s}.claims GROUP BY queue),
ended AS MATERIALIZED (
  SELECT c.queue, sum(k.jobs)::bigint AS jobs, sum(k.completed)::bigint AS completed
  FROM (SELECT seg, claim_id, sum(cardinality(idx)) AS jobs, sum(cardinality(idx)) FILTER (WHERE outcome = {_COMPLETED}) AS completed
        FROM {n.s}.closures GROUP BY seg, claim_id) k
  JOIN {n.s}.claims c USING (seg, claim_id) GROUP BY c.queue
),
later AS MATERIALIZED (SELECT queue, count(*) FILTER (WHERE state = 0) AS scheduled, count(*) FILTER (WHERE state = 4) AS retryable
                       FROM {n.s}.deferred GROUP BY queue),
over AS MATERIALIZED (SELECT queue, count(*) FILTER (WHERE state = 5) AS failed, count(*) FILTER (WHERE state = 6) AS cancelled
                      FROM {n.s}.failed GROUP BY queue)
SELECT q.queue, coalesce(later.scheduled, 0), coalesce(available.jobs, 0), coalesce(handed_out.jobs, 0) - coalesce(ended.jobs, 0),
       coalesce(ended.completed, 0), coalesce(later.retryable, 0), coalesce(over.failed, 0), coalesce(over.cancelled, 0),
       greatest(0, coalesce(extract(epoch FROM clock_timestamp() - available.oldest), 0))::float8,
       s.paused_at IS NOT NULL, coalesce(s.stripes, 1)
FROM (SELECT queue FROM available UNION SELECT queue FROM handed_out UNION SELECT queue FROM later UNION SELECT queue FROM over
      UNION SELECT queue FROM {n.s}.queues) q
LEFT JOIN available USING (queue) LEFT JOIN handed_out USING (queue) LEFT JOIN ended USING (queue)
LEFT JOIN later USING (queue) LEFT JOIN over USING (queue) LEFT JOIN {n.s}.queues s USING (queue)
ORDER BY q.queue"""


def queue_stats(n: Names) -> Op[list[QueueStat]]:
    """How many jobs each queue holds."""

    def plan() -> Plan[list[QueueStat]]:
        rows = yield Statement("queue_stats", _stats_sql(n, tuple(range(SEGMENTS))))
        return [_stat(row) for row in rows]

    return Op("queue_stats", plan, safe_to_retry=True)


def _stat(row: Row) -> QueueStat:
    queue, scheduled, available, running, completed, retryable, failed, cancelled, lag, paused, stripes = row
    return QueueStat(
        queue=queue,
        scheduled=scheduled,
        available=available,
        running=running,
        completed=completed,
        retryable=retryable,
        failed=failed,
        cancelled=cancelled,
        lag=lag,
        paused=paused,
        stripes=stripes,
    )
