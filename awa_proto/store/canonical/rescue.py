"""Rescue: the running rows whose worker is silent, or whose deadline has passed. Finding ends nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from awa_proto.job import CANONICAL, Attempt
from awa_proto.plan import Op, Plan, Rows, Statement
from awa_proto.store import Place, StrandedPage
from awa_proto.store.canonical.close import RUNNING
from awa_proto.store.queue.names import PROGRESSING, Names
from awa_proto.store.queue.rescue import forgetting, stranded


def _attempts(n: Names, condition: str) -> str:
    """SQL: running attempts, as columns of an Attempt, then the time. In the order of ids."""
    return f"""
SELECT {CANONICAL}::smallint, r.run_lease, 0::smallint, r.run_lease, r.id, r.queue, r.priority, r.kind, r.args::text, r.attempt,
       r.max_attempts, r.run_at, r.created_at,
       CASE WHEN a.progress IS NULL THEN r.extra ELSE {PROGRESSING} END::text, clock_timestamp()
FROM {n.s}.jobs_hot r
LEFT JOIN LATERAL (
  SELECT a.progress FROM {n.s}.attempts a WHERE a.job_id = r.id AND a.run_lease = r.run_lease ORDER BY a.job_id LIMIT 1) a
  ON true
LEFT JOIN LATERAL (
  SELECT b.state, b.waited FROM {n.s}.callbacks b
  WHERE b.job_id = r.id AND b.run_lease = r.run_lease ORDER BY b.job_id LIMIT 1) b
  ON true
WHERE r.state = {RUNNING} AND {condition}
ORDER BY r.state, r.id"""


@lru_cache
def find_sql(n: Names, *, overdue: bool) -> str:
    """$1 seconds without a sign of life, or since the deadline; $2 id to begin after, $3 most attempts."""
    lately = "clock_timestamp() - $1::float8 * interval '1 s'"
    late = f"r.deadline_at + coalesce(b.waited, 0) * interval '1 s' < {lately}"
    silent = f"""r.attempted_at < {lately} AND NOT EXISTS (
    SELECT FROM {n.s}.instances i WHERE i.id = r.instance AND i.heartbeat_at >= {lately})"""
    waits = "b.state IS NOT DISTINCT FROM 1"
    return _attempts(n, f"r.id > $2::bigint AND NOT ({waits}) AND {late if overdue else silent}") + " LIMIT $3::int"


def _finding(
    n: Names, name: str, seconds: float, limit: int, after: Place | None, *, overdue: bool
) -> Plan[StrandedPage]:
    params = (seconds, after[1] if after else 0, limit)
    rows: Rows = yield Statement(f"canonical.{name}", find_sql(n, overdue=overdue), params)
    found = [stranded(row) for row in rows]
    return StrandedPage(found, (CANONICAL, found[-1].attempt.id, 0) if len(found) >= limit else None)


def find_stale(n: Names, silent: float, limit: int, after: Place | None) -> Op[StrandedPage]:
    """Attempts whose worker is silent. The first page forgets workers that are gone for long."""

    def plan() -> Plan[StrandedPage]:
        if after is None:
            yield from forgetting(n)
        return (yield from _finding(n, "rescue.stale", silent, limit, after, overdue=False))

    return Op("find_stale", plan, safe_to_retry=True)


def find_overdue(n: Names, late: float, limit: int, after: Place | None) -> Op[StrandedPage]:
    """Attempts beyond their deadline."""
    return Op(
        "find_overdue", lambda: _finding(n, "rescue.overdue", late, limit, after, overdue=True), safe_to_retry=True
    )


@lru_cache
def _unknown_sql(n: Names) -> str:
    """$1 instance, $2 the leases that are known."""
    return _attempts(n, "r.instance = $1::bigint AND r.run_lease <> ALL ($2::bigint[])")


def unknown(n: Names, instance: int, known: Sequence[int]) -> Op[list[Attempt]]:
    """Running attempts of a worker, but those of leases it knows."""

    def plan() -> Plan[list[Attempt]]:
        rows = yield Statement("canonical.unknown", _unknown_sql(n), (instance, list(known)))
        return [stranded(row).attempt for row in rows]

    return Op("unknown", plan, safe_to_retry=True)
