"""What running attempts have kept for them before they end, in the table that queue storage uses for it as well."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from awa_proto.plan import Plan, Statement
from awa_proto.store import Progress
from awa_proto.store.canonical.close import RUNNING
from awa_proto.store.queue.attempts import free
from awa_proto.store.queue.names import Names


@lru_cache
def _sql(n: Names, *, patient: bool) -> str:
    """$1 job ids, $2 leases, $3 progress."""
    held, is_free = free(n, "$1::bigint[]", patient=patient)
    return f"""{held}
INSERT INTO {n.s}.attempts AS a (job_id, run_lease, progress)
SELECT p.job_id, p.lease, p.progress::json
FROM unnest($1::bigint[], $2::bigint[], $3::text[]) p(job_id, lease, progress)
WHERE EXISTS (SELECT FROM {n.s}.jobs_hot j WHERE j.id = p.job_id AND j.run_lease = p.lease AND j.state + 0 = {RUNNING})
  AND {is_free}
ORDER BY p.job_id
ON CONFLICT (job_id) DO UPDATE SET run_lease = excluded.run_lease, progress = excluded.progress
  WHERE a.run_lease <= excluded.run_lease
RETURNING job_id"""


def recording(n: Names, records: Sequence[Progress], patient: bool) -> Plan[list[int]]:
    """The plan: one statement, fenced by attempt."""
    told = {record.attempt.id: record for record in records}
    if not told:
        return []
    rows = yield Statement(
        f"canonical.progress{'.patient' if patient else ''}",
        _sql(n, patient=patient),
        (
            list(told),
            [record.attempt.run_lease for record in told.values()],
            [record.progress for record in told.values()],
        ),
    )
    return [row[0] for row in rows]
