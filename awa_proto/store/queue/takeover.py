"""The way over: what canonical storage still holds is worked by the workers of queue storage as well.

A worker is told with its survey whether there is anything of its queues; while there is not, nothing of this is run. Otherwise

- a claim takes of each queue half from canonical storage, which is older, and half from the logs, so that neither waits for
  the other; what one of them cannot fill the other may. Who wants a single job begins with either of them, by chance;
- attempts that came from there end there, by `canonical/close.py`, which moves over whatever goes on;
- what is not due moves over as it is, when a worker promotes;
- who looks for what dead workers have left looks there as well.

None of this needs the switch, nor waits for it: workers of both engines may work side by side, since each row is locked by one.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Final

from awa_proto.errors import DatabaseError, Failure
from awa_proto.job import CANONICAL, Attempt
from awa_proto.plan import Op, Plan, Statement
from awa_proto.store import PROMOTE_HINT, Claimed, Demand, Place, Promoted, Ring, StrandedPage
from awa_proto.store.canonical import claim as canonical
from awa_proto.store.canonical.close import trace
from awa_proto.store.canonical.persistent import persistently
from awa_proto.store.queue import claim as logs
from awa_proto.store.queue import promote as deferred
from awa_proto.store.queue.names import BODY, Names

_HALF: Final = 0.5
_PASSING: Final = frozenset({Failure.BUSY, Failure.TRANSIENT, Failure.REFUSED, Failure.TIMED_OUT, Failure.RESTORED})
"""Failures of a statement that leave the connection, and what the statements before it have claimed."""


def claim(n: Names, instance: int, ring: Ring, demands: Sequence[Demand], advance: bool, chance: float) -> Op[Claimed]:
    """A claim over both engines: two statements, or three, each of which commits by itself. chance: in [0, 1).

    When a later one fails, what the first has claimed is not lost: it is the result, and the queues are asked again soon.
    """

    def plan() -> Plan[Claimed]:
        share = [dataclasses.replace(d, wanted=(d.wanted + (chance < _HALF)) // 2) for d in demands]
        rows = yield from canonical.claiming(n, instance, share)
        found = list(rows.attempts)
        try:
            claimed = yield from logs.claim(n, instance, ring, _less(demands, found), advance).start()
            found += claimed.attempts
            again = rows.again | claimed.again
            if more := _unfilled(demands, share, found, rows.attempts):
                rest = yield from canonical.claiming(n, instance, more)
                found += rest.attempts
                again |= rest.again
        except DatabaseError as error:
            if not found or error.failure not in _PASSING:
                raise
            return Claimed(found, ring.version, rows.now, frozenset((d.queue, d.stripe) for d in demands))
        return Claimed(found, claimed.version, claimed.now, again)

    return Op("claim", plan)


def _less(demands: Sequence[Demand], attempts: Sequence[Attempt]) -> list[Demand]:
    """What is wanted beyond these attempts."""
    got = Counter(a.queue for a in attempts)
    left: list[Demand] = []
    for d in demands:
        taken = min(d.wanted, got[d.queue])
        got[d.queue] -= taken
        left.append(dataclasses.replace(d, wanted=d.wanted - taken))
    return left


def _unfilled(
    demands: Sequence[Demand], share: Sequence[Demand], found: Sequence[Attempt], rows: Sequence[Attempt]
) -> list[Demand]:
    """What is wanted still of queues that gave all they were asked for in `share`, of which `rows` came."""
    missed = {d.queue for d in _less(share, rows) if d.wanted}
    return [d for d in _less(demands, found) if d.wanted and d.queue not in missed]


# what a worker has left


def stranded(
    find: Callable[[int, Place | None], Op[StrandedPage]],
    there: Callable[[int, Place | None], Op[StrandedPage]],
    limit: int,
    after: Place | None,
) -> Op[StrandedPage]:
    """A page of what `find` finds in the logs (limit, place to begin after) and then, as long as there is room, of `there`."""
    op = find(limit, after)

    def plan() -> Plan[StrandedPage]:
        if after is not None and after[0] == CANONICAL:
            return (yield from there(limit, after).start())
        page = yield from op.start()
        if page.after is not None:
            return page
        if len(page.stranded) >= limit:
            return page._replace(after=(CANONICAL, 0, 0))
        rest = yield from there(limit - len(page.stranded), (CANONICAL, 0, 0)).start()
        return rest._replace(stranded=[*page.stranded, *rest.stranded])

    return dataclasses.replace(op, start=plan)


def unknown(here: Op[list[Attempt]], there: Op[list[Attempt]]) -> Op[list[Attempt]]:
    """What a worker does not know of its own claims, of both engines."""

    def plan() -> Plan[list[Attempt]]:
        found = yield from here.start()
        return found + (yield from there.start())

    return dataclasses.replace(here, start=plan)


# what is not due

MOST: Final = 1000
"""Most jobs of a queue that a statement takes over. A constant outside of LIMIT n keeps the cost the planner sees small."""


@lru_cache
def _sql(n: Names) -> str:
    """$1 queues, $2 most jobs of each, MOST at most. Those that are due become available, all others are deferred as they were.

    Its row: how many moved, how many became available, in which queues, the latest moment one of those was due.
    """
    soon = f"run_at < now() + interval '{PROMOTE_HINT} s'"
    return f"""
WITH due AS MATERIALIZED (
  SELECT s.id FROM unnest($1::text[]) q CROSS JOIN LATERAL (SELECT * FROM (
    SELECT s.id FROM {n.s}.scheduled_jobs s WHERE s.queue = q ORDER BY s.queue, s.run_at, s.id
    LIMIT $2::int FOR UPDATE SKIP LOCKED) s LIMIT {MOST}) s
),
gone AS (   -- a join could become a scan of all
  DELETE FROM {n.s}.scheduled_jobs s WHERE s.id = ANY (ARRAY(SELECT id FROM due)) RETURNING s.*
),{trace(n, "ended", "gone")}
moved AS (
  INSERT INTO {n.s}.ready (seg, id, {BODY})
  SELECT (SELECT {n.open_segment}), id, {BODY} FROM gone WHERE run_at <= statement_timestamp() ORDER BY run_at, id
  RETURNING queue, run_at
),
later AS (
  INSERT INTO {n.s}.deferred (id, state, attempted_at, finalized_at, {BODY})
  SELECT id, state, attempted_at, finalized_at, {BODY} FROM gone WHERE run_at > statement_timestamp() ORDER BY id
  RETURNING queue, run_at
),
woken AS (
  SELECT queue, max(run_at) AS until, {n.wake("queue")} AS told FROM moved GROUP BY queue
)
SELECT (SELECT count(*) FROM gone)::int, (SELECT count(*) FROM moved)::int, coalesce(array_agg(queue), '{{}}'), max(until),
       count(told), (SELECT count({n.wake("queue", "''")}) FROM (SELECT DISTINCT queue FROM later WHERE {soon}) q)
FROM woken"""


def promote(n: Names, limit: int, since: datetime | None, queues: Sequence[str]) -> Op[Promoted]:
    """Take over what canonical storage has of these queues that is not due, and promote."""

    def plan() -> Plan[Promoted]:
        rows = yield from persistently(Statement("takeover", _sql(n), (list(queues), limit)))
        moved, count, told, until, *_ = rows[0]
        promoted = yield from deferred.promote(n, limit, since).start()
        return Promoted(
            promoted.count + count,
            promoted.queues | frozenset(told),
            0.0 if moved >= min(limit, MOST) else promoted.due_in,
            max(filter(None, (promoted.until, until)), default=None),
        )

    return Op("promote", plan, safe_to_retry=True)
