"""What people do to single jobs that are here: cancel, retry, move. Each is one guarded write of the job's row.

The calls themselves are those of queue storage, for a job is looked for wherever it may be.
"""

from __future__ import annotations

from functools import lru_cache

from awa_proto.job import JobState
from awa_proto.outcome import DeadLetter
from awa_proto.plan import Plan, Row, Statement
from awa_proto.store import Cancelled
from awa_proto.store.canonical.close import RUNNING, ended, trace
from awa_proto.store.queue.close import CODES
from awa_proto.store.queue.home import available, taker
from awa_proto.store.queue.names import AFRESH, BODY, NO_LETTER, NO_OUTPUT, Names, body, with_key
from awa_proto.store.queue.selection import BATCH, GONE_ON, taken
from awa_proto.store.queue.unique import kept_out

_AVAILABLE, _WAITING = CODES[JobState.AVAILABLE], CODES[JobState.WAITING_EXTERNAL]
_FAILED, _CANCELLED = CODES[JobState.FAILED], CODES[JobState.CANCELLED]


@lru_cache
def _cancel_sql(n: Names) -> str:
    """$1 id, $2 a flush for the end of an attempt. What is returned is the state it was in. Whoever runs it is told."""
    merged = with_key("j.extra", "progress", "f.progress::text")
    return f"""
WITH locked AS MATERIALIZED (SELECT job_id FROM {n.s}.callbacks WHERE job_id = $1::bigint FOR UPDATE),
scheduled AS (DELETE FROM {n.s}.scheduled_jobs WHERE id = $1::bigint RETURNING *),
found AS MATERIALIZED (
  SELECT j.id, j.state, j.run_lease,
         (SELECT a.progress FROM {n.s}.attempts a WHERE a.job_id = j.id AND a.run_lease = j.run_lease) AS progress
  FROM {n.s}.jobs_hot j
  WHERE j.id = $1::bigint AND CASE WHEN j.state IN ({_AVAILABLE}, {RUNNING}, {_WAITING}) THEN true ELSE false END
    AND (SELECT count(*) FROM locked) >= 0
  FOR UPDATE OF j
),
hot AS (
  UPDATE {n.s}.jobs_hot j
  SET state = {_CANCELLED}, finalized_at = clock_timestamp(), deadline_at = NULL, instance = NULL,
      extra = CASE WHEN f.progress IS NULL THEN j.extra ELSE {merged} END,
      ended = CASE WHEN f.state = {RUNNING} THEN {ended("j.run_lease", "$2::bigint", "j.ended")} ELSE j.ended END
  FROM found f WHERE j.id = $1::bigint AND j.id = f.id
  RETURNING j.id, f.state, f.run_lease
),
forgotten AS (DELETE FROM {n.s}.attempts WHERE job_id IN (SELECT id FROM hot)),
forgotten_callbacks AS (DELETE FROM {n.s}.callbacks WHERE job_id IN (SELECT id FROM hot)),
moved AS (
  INSERT INTO {n.s}.jobs_hot (id, state, attempted_at, finalized_at, ended, {BODY})
  SELECT id, {_CANCELLED}, attempted_at, clock_timestamp(), ended, {BODY} FROM scheduled
  RETURNING id
)
SELECT state, CASE state WHEN {RUNNING} THEN {n.notify("'!' || id || ':' || run_lease")}::text END FROM hot
UNION ALL SELECT 0, NULL FROM moved"""


def cancelling(n: Names, id: int, flush: int) -> Plan[Cancelled]:
    """Cancel a job that was here a moment ago and had not ended. It has the caller's patience for locks."""
    rows = yield Statement("canonical.cancel", _cancel_sql(n), (id, flush))
    if not rows:
        return Cancelled.AGAIN
    return Cancelled.RUNNING if rows[0][0] == RUNNING else Cancelled.CANCELLED


@lru_cache
def _move_sql(n: Names) -> str:
    """$1 id, $2 queue or NULL, $3 priority or NULL. The sum keeps the planner from the index of what can be claimed."""
    change = (
        "SET queue = coalesce($2::text, queue), priority = coalesce($3::smallint, priority),"
        f" stripe = CASE WHEN $2::text IS NULL THEN stripe ELSE {n.stripe('$2::text', 'id')} END WHERE id = $1::bigint"
    )
    return f"""
WITH scheduled AS (UPDATE {n.s}.scheduled_jobs {change} RETURNING id),
hot AS (UPDATE {n.s}.jobs_hot {change} AND state + 0 = {_AVAILABLE} RETURNING queue)
SELECT NULL FROM scheduled
UNION ALL
SELECT CASE WHEN $2::text IS NOT NULL THEN {n.wake("queue")} END FROM hot"""


def moving(n: Names, id: int, queue: str | None, priority: int | None) -> Plan[Cancelled]:
    """Another queue or priority for a job that was here a moment ago and nobody had claimed."""
    rows = yield Statement("canonical.move", _move_sql(n), (id, queue, priority))
    return Cancelled.CANCELLED if rows else Cancelled.AGAIN


@lru_cache
def _retry_sql(n: Names, columns: str) -> str:
    """$1 id. It goes where new jobs go, and stays as it is if it does not get its unique key again."""
    over = f"id = $1::bigint AND CASE WHEN state IN ({_FAILED}, {_CANCELLED}) THEN true ELSE false END"
    again = body(attempt="0", run_at="now()", extra=AFRESH)
    return f"""
WITH {taker(n)}known AS MATERIALIZED (
  SELECT id, extra FROM {n.s}.jobs_hot WHERE {over}
),{kept_out(n, "known", str(_AVAILABLE))},
gone AS (DELETE FROM {n.s}.jobs_hot WHERE {over} AND NOT EXISTS (SELECT FROM kept_out) RETURNING *),\
{trace(n, "ended", "gone")}{available(n, "back", again, "gone", returning=f"id, {BODY}")}
SELECT {columns}, {n.wake("queue")} FROM (
  SELECT b.*, {_AVAILABLE} AS state, NULL::timestamptz AS attempted_at, NULL::timestamptz AS deadline_at,
         NULL::timestamptz AS finalized_at, {NO_LETTER}
  FROM back b) j"""


def retrying(n: Names, id: int, columns: str) -> Plan[Row | None]:
    """The columns of a failed or cancelled job that is here and now runs again, from attempt 0. None when there is none."""
    rows = yield Statement(f"{n.prefix}retry.hot", _retry_sql(n, columns), (id,))
    return rows[0] if rows else None


@lru_cache
def move_to_dlq_sql(n: Names, columns: str) -> str:
    """$1 id. A failed job that is here becomes a dead letter."""
    return f"""
WITH gone AS (
  DELETE FROM {n.s}.jobs_hot WHERE id = $1::bigint AND CASE state WHEN {_FAILED} THEN true ELSE false END RETURNING *
),{trace(n, "ended", "gone")}
kept AS (
  INSERT INTO {n.s}.dlq (id, state, attempted_at, finalized_at, {BODY}, dlq_reason)
  SELECT id, state, attempted_at, finalized_at, {BODY}, '{DeadLetter.MOVED}' FROM gone
  RETURNING *
)
SELECT {columns} FROM (SELECT *, NULL::timestamptz AS deadline_at, {NO_OUTPUT} FROM kept) j"""


@lru_cache
def _drain_scheduled_sql(n: Names) -> str:
    """$1 after id, $2 most, $3 queue. A job that was moved to another queue while it was waited for is left alone."""
    mine = "CASE WHEN r.queue = $3::text THEN true ELSE false END"
    return f"""
WITH {taken(n, "scheduled_jobs", mine, still="r.queue = $3::text")},
kept AS (
  INSERT INTO {n.s}.jobs_hot (id, state, attempted_at, finalized_at, ended, {BODY})
  SELECT id, {_CANCELLED}, attempted_at, clock_timestamp(), ended, {BODY} FROM gone ORDER BY id
)
SELECT {GONE_ON}"""


@lru_cache
def _drain_available_sql(n: Names) -> str:
    """$1 queue. In the order in which claims lock rows. Their run_lease rises, as if they had been claimed."""
    return f"""
WITH waiting AS MATERIALIZED (
  SELECT id FROM {n.s}.jobs_hot WHERE state = {_AVAILABLE} AND queue = $1::text
  ORDER BY stripe, priority, run_at, id LIMIT {BATCH} FOR UPDATE
),
gone AS (
  UPDATE {n.s}.jobs_hot
  SET state = {_CANCELLED}, finalized_at = clock_timestamp(),
      run_lease = greatest(run_lease + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
  WHERE id = ANY (ARRAY(SELECT id FROM waiting)) RETURNING id
)
SELECT (SELECT count(*) FROM gone)::int, EXISTS (SELECT FROM waiting)"""


@lru_cache
def _drain_waiting_sql(n: Names) -> str:
    """$1 queue. Those that are parked."""
    return f"""
WITH found AS MATERIALIZED (
  SELECT id FROM {n.s}.jobs_hot WHERE state = {_WAITING} AND state NOT IN (1, 3) AND queue = $1::text
  ORDER BY state, id LIMIT {BATCH}
),
locked AS MATERIALIZED (
  SELECT job_id FROM {n.s}.callbacks WHERE job_id = ANY (ARRAY(SELECT id FROM found)) ORDER BY job_id FOR UPDATE
),
gone AS (
  UPDATE {n.s}.jobs_hot SET state = {_CANCELLED}, finalized_at = clock_timestamp()
  WHERE id = ANY (ARRAY(SELECT id FROM found)) AND state = {_WAITING} AND (SELECT count(*) FROM locked) >= 0 RETURNING id
),
forgotten_callbacks AS (DELETE FROM {n.s}.callbacks WHERE job_id = ANY (ARRAY(SELECT id FROM gone)))
SELECT (SELECT count(*) FROM gone)::int, EXISTS (SELECT FROM found)"""


def draining(n: Names, queue: str) -> Plan[int]:
    """Cancel all jobs of a queue that are here and nobody has claimed. How many."""
    done, after, more = 0, -(2**63), True
    while more:
        rows = yield Statement("canonical.drain.scheduled", _drain_scheduled_sql(n), (after, BATCH, queue))
        count, last, more, *_ = rows[0]
        done += count
        after = after if last is None else last
    for name, sql in (("available", _drain_available_sql), ("waiting", _drain_waiting_sql)):
        more = True
        while more:
            rows = yield Statement(f"canonical.drain.{name}", sql(n), (queue,))
            count, more = rows[0]
            done += count
    return done
