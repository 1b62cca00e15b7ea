"""What running attempts have kept for them before they end: rows of `attempts`, for the few that say something.

A row belongs to the newest attempt of its job that said something. Whatever ends an attempt carries the progress on and
deletes the row, in the same statement; a row left behind by a race matches no running attempt and is read by nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeAlias

from awa_proto.job import CANONICAL
from awa_proto.plan import Op, Plan, Statement
from awa_proto.store import Progress
from awa_proto.store.queue.names import Names


def free(n: Names, ids: str, *, patient: bool) -> tuple[str, str]:
    """SQL: a WITH, and a condition of a row `p`: that nobody holds what was recorded of its job. ids: SQL of their array."""
    if patient:
        return "", "true"
    held = f"""
WITH free AS MATERIALIZED (
  SELECT job_id FROM {n.s}.attempts WHERE job_id = ANY ({ids}) ORDER BY job_id FOR UPDATE SKIP LOCKED
)"""
    is_there = f"EXISTS (SELECT FROM {n.s}.attempts a WHERE a.job_id = p.job_id)"
    return held, f"(p.job_id IN (SELECT job_id FROM free) OR NOT {is_there})"


@lru_cache
def _sql(n: Names, s: int, *, patient: bool) -> str:
    """$1 claim ids, $2 leases, $3 indexes, $4 job ids, $5 progress."""
    held, is_free = free(n, "$4::bigint[]", patient=patient)
    return f"""{held}
INSERT INTO {n.s}.attempts AS a (job_id, run_lease, progress)
SELECT p.job_id, p.lease, p.progress::json
FROM unnest($1::bigint[], $2::bigint[], $3::smallint[], $4::bigint[], $5::text[]) p(claim_id, lease, idx, job_id, progress)
WHERE EXISTS (SELECT FROM {n.s}.claims_{s} c
              WHERE c.claim_id = p.claim_id AND c.lease = p.lease AND c.job_ids[p.idx + 1] = p.job_id)
  AND NOT EXISTS (SELECT FROM {n.s}.closures_{s} k WHERE k.claim_id = p.claim_id AND p.idx = ANY (k.idx))
  AND {is_free}
ORDER BY p.job_id
ON CONFLICT (job_id) DO UPDATE SET run_lease = excluded.run_lease, progress = excluded.progress
  WHERE a.run_lease <= excluded.run_lease
RETURNING job_id"""


Elsewhere: TypeAlias = Callable[[Names, Sequence[Progress], bool], Plan[list[int]]]


def record_progress(n: Names, records: Sequence[Progress], canonical: Elsewhere, *, patient: bool) -> Op[list[int]]:
    """Keep what running attempts say of themselves; a statement for each segment, fenced by attempt.

    canonical: the plan that does it for those of canonical storage. patient: wait for whoever is about to end one.
    """
    by_segment: dict[int, dict[int, Progress]] = {}
    for record in records:
        by_segment.setdefault(record.attempt.segment, {})[record.attempt.id] = record

    def plan() -> Plan[list[int]]:
        kept: list[int] = []
        for s, told in sorted(by_segment.items()):
            if s == CANONICAL:
                kept += yield from canonical(n, list(told.values()), patient)
                continue
            attempts = [record.attempt for record in told.values()]
            rows = yield Statement(
                f"progress.{'patient.' if patient else ''}{s}",
                _sql(n, s, patient=patient),
                (
                    [attempt.claim_id for attempt in attempts],
                    [attempt.run_lease for attempt in attempts],
                    [attempt.idx for attempt in attempts],
                    [attempt.id for attempt in attempts],
                    [record.progress for record in told.values()],
                ),
            )
            kept += [row[0] for row in rows]
        return kept

    return Op("record_progress", plan, safe_to_retry=True)
