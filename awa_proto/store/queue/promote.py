"""Promotion: deferred jobs that are due become available.

Several workers may promote at once: SKIP LOCKED gives each its own rows. The answer says when the next job is due, so a
worker sleeps exactly until then.
"""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache

from awa_proto.plan import Op, Plan, Row, Statement
from awa_proto.store import Promoted
from awa_proto.store.queue.names import BODY, Names


@lru_cache
def _sql(n: Names) -> str:
    """$1 most jobs, $2 the earliest moment looked at, or NULL."""
    return promotion(
        n,
        "deferred",
        f"""INSERT INTO {n.s}.ready (seg, id, {BODY})
  SELECT {n.open_segment}, id, {BODY} FROM gone ORDER BY run_at, id""",
    )


def promotion(n: Names, table: str, insert: str) -> str:
    """SQL: rows of a table of deferred jobs that are due move to where `insert` puts them.

    Below the moment up to which jobs were promoted lie their dead index entries, which a snapshot somebody left open keeps
    there. A bound that changed within the statement (clock_timestamp) could not be looked up in the index.
    """
    return f"""
WITH due AS MATERIALIZED (
  SELECT id FROM {n.s}.{table}
  WHERE run_at <= statement_timestamp() AND run_at >= coalesce($2::timestamptz, '-infinity')
  ORDER BY run_at, id LIMIT $1::int FOR UPDATE SKIP LOCKED
),
gone AS (
  DELETE FROM {n.s}.{table} d WHERE d.id = ANY (ARRAY(SELECT id FROM due)) RETURNING d.*   -- a join could become a scan of all
),
moved AS (
  {insert}
  RETURNING queue, run_at
),
woken AS (SELECT queue, count(*) AS jobs, max(run_at) AS until FROM moved GROUP BY queue)
SELECT coalesce(sum(jobs), 0)::int, coalesce(array_agg(queue), '{{}}'), count({n.wake("queue")}),
       extract(epoch FROM (
         SELECT min(run_at) FROM {n.s}.{table} d WHERE run_at > statement_timestamp()) - clock_timestamp())::float8,
       max(until)
FROM woken"""


def promoted(row: Row, limit: int) -> Promoted:
    """What the row of a promotion says."""
    count, queues, _, due_in, until = row
    if count >= limit:
        due_in = 0.0
    return Promoted(count, frozenset(queues), None if due_in is None else max(0.0, due_in), until)


def promote(n: Names, limit: int, since: datetime | None) -> Op[Promoted]:
    """Make due deferred jobs available, at most `limit`, looking only at what is due at `since` or later."""
    statement = Statement("promote", _sql(n), (limit, since))

    def plan() -> Plan[Promoted]:
        rows = yield statement
        return promoted(rows[0], limit)

    return Op("promote", plan, safe_to_retry=True)
