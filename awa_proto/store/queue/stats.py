"""Counts: how many jobs each queue holds, by state, in queue storage and in canonical storage.

What may be large is counted up to a bound, or by summing up what the logs say of whole claims and flushes.
"""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from itertools import chain
from typing import Any, TypeAlias

from awa_proto.job import JobState
from awa_proto.plan import Op, Plan, Rows, Statement
from awa_proto.store import QueueStat
from awa_proto.store.queue.close import CODES
from awa_proto.store.queue.names import Names
from awa_proto.store.queue.segments import segments_used, unclaimed

_STATES = tuple(JobState)
_COMPLETED = CODES[JobState.COMPLETED]
_COUNTED = 10_000
"""Most available jobs of a lane that are counted: a count over a backlog of millions would stall whoever asks."""


@lru_cache
def _counts_sql(n: Names, s: int) -> str:
    """Counts by queue of one segment: available (over the spans no claim covers, capped), oldest, claimed, ended, completed."""
    counted = unclaimed(n, s, "p.queue, count(*) AS jobs, min(r.run_at) AS oldest", cap=_COUNTED)
    return f"""
WITH available AS MATERIALIZED (SELECT * FROM ({counted} GROUP BY p.queue) u),
claimed AS MATERIALIZED (
  SELECT c.queue, sum(cardinality(c.job_ids)) AS jobs, sum(k.jobs) AS ended, sum(k.completed) AS completed
  FROM {n.s}.claims_{s} c LEFT JOIN (
    SELECT claim_id, sum(cardinality(idx)) AS jobs, sum(cardinality(idx)) FILTER (WHERE outcome = {_COMPLETED}) AS completed
    FROM {n.s}.closures_{s} GROUP BY claim_id) k USING (claim_id)
  GROUP BY c.queue
)
SELECT queue, coalesce(a.jobs, 0)::bigint, a.oldest, coalesce(c.jobs, 0)::bigint, coalesce(c.ended, 0)::bigint,
       coalesce(c.completed, 0)::bigint
FROM available a FULL JOIN claimed c USING (queue)"""


def _counts_beside_sql(n: Names) -> str:
    return f"""
SELECT queue, state, count(*) FROM (
  SELECT queue, state FROM {n.s}.deferred UNION ALL SELECT queue, state FROM {n.s}.failed
  UNION ALL SELECT queue, state FROM {n.s}.waiting) j
GROUP BY queue, state"""


def _counts_canonical_sql(n: Names) -> str:
    """Of available and of completed jobs the oldest and the newest ones are counted, up to a bound each."""
    available, completed = CODES[JobState.AVAILABLE], CODES[JobState.COMPLETED]
    return f"""
SELECT queue, state, count(*), CASE state WHEN {available} THEN min(run_at) END FROM (
  (SELECT queue, state, run_at FROM {n.s}.jobs_hot WHERE state = {available} ORDER BY id LIMIT {10 * _COUNTED})
  UNION ALL
  (SELECT queue, state, run_at FROM {n.s}.jobs_hot WHERE state = {completed} ORDER BY id DESC LIMIT {10 * _COUNTED})
  UNION ALL
  SELECT queue, state, run_at FROM {n.s}.jobs_hot WHERE state NOT IN ({available}, {completed})
  UNION ALL
  SELECT queue, state, run_at FROM {n.s}.scheduled_jobs
) j
GROUP BY queue, state"""


Counts: TypeAlias = "dict[str, dict[str, Any]]"
"""Fields of QueueStat by queue."""


def counting(n: Names) -> Plan[tuple[Counts, Counts, dict[str, int], Rows]]:
    """What queue storage holds, and what canonical storage; dead letters by queue; what is said of each queue.

    One statement per segment in use: planned as one they cost a compilation.
    """
    used = yield segments_used(n)
    beside, rows, letters, deleted, said, waits, *parts = yield (
        Statement("stats.beside", _counts_beside_sql(n)),
        Statement("stats.canonical", _counts_canonical_sql(n)),
        Statement("stats.dlq", f"SELECT queue, count(*) FROM {n.s}.dlq GROUP BY queue"),
        Statement("stats.deleted", f"SELECT queue, count(*) FROM {n.s}.deleted GROUP BY queue"),
        Statement("stats.queues", f"SELECT queue, paused_at IS NOT NULL, stripes FROM {n.s}.queues"),
        Statement("stats.waits", f"SELECT queue, seg < 0, count(*) FROM {n.s}.callbacks WHERE state = 1 GROUP BY 1, 2"),
        *(Statement(f"stats.{s}", _counts_sql(n, s)) for s, _ in used),
    )
    logs: Counts = {}
    canonical: Counts = {}

    def count(found: Counts, queue: str, name: str, jobs: int, oldest: datetime | None = None) -> None:
        stat = found.setdefault(queue, {})
        stat[name] = stat.get(name, 0) + jobs
        if oldest is not None:
            stat["lag"] = max(stat.get("lag", 0.0), (used[0][1] - oldest).total_seconds())

    for queue, available, oldest, claimed_jobs, ended, completed in chain.from_iterable(parts):
        count(logs, queue, "available", available, oldest)
        count(logs, queue, "running", claimed_jobs - ended)
        count(logs, queue, "completed", completed)
    for queue, state, jobs in beside:
        count(logs, queue, _STATES[state].value, jobs)
    for queue, state, jobs, oldest in rows:
        count(canonical, queue, _STATES[state].value, jobs, oldest)
    for queue, is_canonical, jobs in waits:  # their attempts run, and their handlers wait
        count(canonical if is_canonical else logs, queue, "running", -jobs)
        count(canonical if is_canonical else logs, queue, "waiting_external", jobs)
    for queue, jobs in deleted:
        if queue in logs:
            count(logs, queue, "completed", -jobs)
    return logs, canonical, dict(letters), said


def queue_stats(n: Names) -> Op[list[QueueStat]]:
    """How many jobs each queue holds, in both engines; its dead letters count as failed jobs."""

    def plan() -> Plan[list[QueueStat]]:
        found, canonical, letters, said = yield from counting(n)
        for queue, counts in canonical.items():
            stat = found.setdefault(queue, {})
            lag = max(stat.get("lag", 0.0), counts.pop("lag", 0.0))
            stat |= {name: stat.get(name, 0) + jobs for name, jobs in counts.items()} | {"lag": lag}
        for queue, jobs in letters.items():
            stat = found.setdefault(queue, {})
            stat |= {"dlq": jobs, "failed": stat.get("failed", 0) + jobs}
        for queue, paused, stripes in said:
            found.setdefault(queue, {}).update(paused=paused, stripes=stripes)
        return [QueueStat(queue, **found[queue]) for queue in sorted(found)]

    return Op("queue_stats", plan, safe_to_retry=True)
