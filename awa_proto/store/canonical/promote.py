"""Promotion: rows of `scheduled_jobs` that are due move to `jobs_hot`, once, whoever promotes."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache

from awa_proto.plan import Op, Plan, Statement
from awa_proto.store import Promoted
from awa_proto.store.canonical.persistent import persistently
from awa_proto.store.queue.names import BODY, Names
from awa_proto.store.queue.promote import promoted, promotion


@lru_cache
def _sql(n: Names) -> str:
    """$1 most jobs, $2 the earliest moment looked at, or NULL."""
    return promotion(
        n,
        "scheduled_jobs",
        f"""INSERT INTO {n.s}.jobs_hot (id, state, ended, {BODY})
  SELECT id, 1, ended, {BODY} FROM gone ORDER BY run_at, id""",
    )


def promote(n: Names, limit: int, since: datetime | None) -> Op[Promoted]:
    """Make due jobs available, at most `limit`, looking only at what is due at `since` or later."""

    def plan() -> Plan[Promoted]:
        rows = yield from persistently(Statement("canonical.promote", _sql(n), (limit, since)))
        return promoted(rows[0], limit)

    return Op("promote", plan, safe_to_retry=True)
