"""Retention: what has ended and lies in ordinary tables is deleted when it is old enough, in batches that commit by themselves.

Completed jobs are here only of canonical storage, and those that a callback completed: others go with their segment.
"""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

from awa_proto.job import JobState
from awa_proto.plan import Op, Plan, Rows, Statement
from awa_proto.store.queue.close import CODES
from awa_proto.store.queue.names import Names


class _Aged(NamedTuple):
    """Rows that go by age: of a table, by the moment in a column, those that a condition chooses."""

    table: str
    at: str
    which: str = "true"


_FAILED = _Aged("failed", "finalized_at")
_FAILED_ROWS = _Aged(
    "jobs_hot",
    "finalized_at",
    f"state NOT IN (1, 3) AND state IN ({CODES[JobState.FAILED]}, {CODES[JobState.CANCELLED]})",
)
_COMPLETED_ROWS = _Aged("jobs_hot", "finalized_at", "state = 3")
_COMPLETED_OUTSIDE = _Aged("waiting", "finalized_at", "state = 3")
_LETTERS = _Aged("dlq", "dlq_at")
_BATCH = 1000
"""Most rows a statement deletes."""


@lru_cache
def aged_sql(n: Names, aged: _Aged) -> str:
    """$1 seconds, $2 most rows, $3 the moment or NULL and $4 the id to begin after. Its row: how many; where the last was.

    By the index on (at, id), oldest first, and with their unique keys. Two that do it at once do not wait for each other,
    nor for who wants one of the keys: such a key is forgotten another time.
    """
    table, at, which = aged
    after = f"({at}, id) > (coalesce($3::timestamptz, '-infinity'), $4::bigint)"
    return f"""
WITH old AS MATERIALIZED (
  SELECT id, {at} AS at, decode(extra->'unique'->>0, 'hex') AS key FROM {n.s}.{table}
  WHERE {at} < statement_timestamp() - $1::float8 * interval '1 s' AND {after} AND {which}
  ORDER BY {at}, id LIMIT $2::int FOR UPDATE SKIP LOCKED
),
gone AS (DELETE FROM {n.s}.{table} WHERE id = ANY (ARRAY(SELECT id FROM old)) RETURNING id),
keys AS MATERIALIZED (
  SELECT u.key FROM (SELECT key, id FROM old WHERE key IS NOT NULL ORDER BY key) o
  CROSS JOIN LATERAL (
    SELECT * FROM {n.s}.unique_keys u WHERE u.key = o.key AND u.job_id = o.id LIMIT 1 FOR UPDATE SKIP LOCKED) u
),
freed AS (DELETE FROM {n.s}.unique_keys WHERE key = ANY (ARRAY(SELECT key FROM keys)))
SELECT (SELECT count(*) FROM gone)::int, max(at), (array_agg(id ORDER BY at DESC, id DESC))[1] FROM old"""


def prune_failed(n: Names, older_than: float, limit: int) -> Op[int]:
    """Failed and cancelled jobs that ended longer ago than that are gone for good."""
    return _pruning(n, "prune_failed", (_FAILED, _FAILED_ROWS), older_than, limit)


def prune_completed(n: Names, older_than: float, limit: int) -> Op[int]:
    """Completed jobs that are rows, of canonical storage or once parked, that ended longer ago than that are gone for good."""
    return _pruning(n, "prune_completed", (_COMPLETED_ROWS, _COMPLETED_OUTSIDE), older_than, limit)


def prune_dlq(n: Names, older_than: float, limit: int) -> Op[int]:
    """Dead letters that became so longer ago than that are gone for good."""
    return _pruning(n, "prune_dlq", (_LETTERS,), older_than, limit)


def _pruning(n: Names, name: str, tables: tuple[_Aged, ...], older_than: float, limit: int) -> Op[int]:
    """Each batch begins where the one before ended: below lie dead rows, which a snapshot somebody left open keeps there."""
    done = 0

    def plan() -> Plan[int]:
        nonlocal done
        for aged in tables:
            since: datetime | None = None
            id, more = -(2**63), True
            while more and done < limit:
                most = min(_BATCH, limit - done)
                rows: Rows = yield Statement(f"{name}.{aged.table}", aged_sql(n, aged), (older_than, most, since, id))
                count, since, id = rows[0]
                done += count
                more = count >= most
        return done

    return Op(name, plan, safe_to_retry=True)


@lru_cache
def left_over_sql(n: Names, table: str = "attempts") -> str:
    """$1 job id to begin after, $2 most rows looked at. Its row: how many are gone, the last one, whether there may be more.

    A row that was seen is younger than its claim, so a job that was not running then has ended that attempt.
    """
    runs = f"IN ({CODES[JobState.RUNNING]}, {CODES[JobState.WAITING_EXTERNAL]})"
    return f"""
WITH looked AS MATERIALIZED (
  SELECT job_id, run_lease, coalesce({n.s}.job_state(job_id) {runs}, false) AS runs FROM {n.s}.{table}
  WHERE job_id > $1::bigint ORDER BY job_id LIMIT $2::int
),
gone AS (
  DELETE FROM {n.s}.{table} a
  WHERE a.job_id = ANY (ARRAY(SELECT job_id FROM looked WHERE NOT runs))
    AND a.run_lease = (SELECT l.run_lease FROM looked l WHERE l.job_id = a.job_id)
  RETURNING a.job_id
)
SELECT (SELECT count(*) FROM gone)::int, max(job_id), count(*) >= $2::int FROM looked"""


def prune_attempts(n: Names, limit: int) -> Op[int]:
    """What attempts have recorded and registered that ended without taking it along, as a race may leave it, is gone."""
    done = 0

    def plan() -> Plan[int]:
        nonlocal done
        for table in ("attempts", "callbacks"):
            after, more = -(2**63), True
            while more and done < limit:
                rows: Rows = yield Statement(f"prune_attempts.{table}", left_over_sql(n, table), (after, _BATCH))
                count, last, more = rows[0]
                done += count
                after = after if last is None else last
        return done

    return Op("prune_attempts", plan, safe_to_retry=True)
