"""Rescue: the attempts that their worker will not end, and those of a worker that it does not know.

A claim is its worker's for as long as that beats, and for a while after the claim itself, which is as good a sign of life. What
is open is found from the marks of `sweep`, so that a look costs what is open, and what was claimed since they were moved on.
Finding ends nothing: an attempt is ended by a closure, as ever, whoever finds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from awa_proto.job import Attempt
from awa_proto.plan import Op, Plan, Row, Rows, Statement
from awa_proto.store import Place, Stranded, StrandedPage, WorkerInfo
from awa_proto.store.queue.names import FEW_CLOSURES, PROGRESSING, Names
from awa_proto.store.queue.sweep import open_claims

GONE_AFTER = "1 day"
"""How long a row of a worker that beats no more is kept, for people to see."""
_SEGMENTS = "SELECT seg, clock_timestamp() FROM {s}.segments WHERE state <> 'free' ORDER BY seg"


def beat(n: Names, instance: int, worker: WorkerInfo) -> Op[None]:
    """The worker lives. One that was forgotten meanwhile is there again."""

    def plan() -> Plan[None]:
        yield Statement(
            "beat",
            f"INSERT INTO {n.s}.instances (id, hostname, pid, version, queues)"
            " VALUES ($1::bigint, $2::text, $3::int, $4::text, $5::text[])"
            " ON CONFLICT (id) DO UPDATE SET heartbeat_at = clock_timestamp()",
            (instance, worker.hostname, worker.pid, worker.version, list(worker.queues)),
        )

    return Op("beat", plan, safe_to_retry=True)


def forgetting(n: Names) -> Plan[None]:
    """The plan: workers that have been silent for long are forgotten."""
    yield Statement(
        "instances.forget",
        f"DELETE FROM {n.s}.instances WHERE heartbeat_at < clock_timestamp() - interval '{GONE_AFTER}'",
    )


def _open(n: Names, s: int, claims: str, condition: str = "true") -> str:
    """SQL: the columns claim_id, i, lease, claimed_at, deadline_at, id, prior of the open attempts of relation `claims`.

    condition: may read the claim `w` and the index `i`.
    """
    return f"""
  SELECT w.claim_id, j.ord::int - 1 AS i, w.lease, w.claimed_at, w.deadline_at, j.id, coalesce(w.prior[j.ord], 0) AS prior,
         b.waited
  FROM {claims} w
  CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(x), '{{}}') AS idx
    FROM {n.s}.closures_{s} k CROSS JOIN LATERAL unnest(k.idx) x WHERE k.claim_id = w.claim_id AND {FEW_CLOSURES}) ended
  CROSS JOIN LATERAL unnest(w.job_ids) WITH ORDINALITY j(id, ord)
  LEFT JOIN LATERAL (
    SELECT b.state, b.waited FROM {n.s}.callbacks b WHERE b.job_id = j.id AND b.run_lease = w.lease ORDER BY b.job_id LIMIT 1) b
    ON true
  WHERE j.ord - 1 <> ALL (ended.idx) AND {condition}"""


def _rows(n: Names, s: int, attempts: str) -> str:
    """SQL: relation `attempts` (columns as of `_open`) as columns of an Attempt, then the time."""
    return f"""
SELECT {s}::smallint, w.claim_id, w.i::smallint, w.lease, r.id, r.queue, r.priority, r.kind, r.args::text, r.attempt + 1,
       r.max_attempts, r.run_at, r.created_at,
       CASE WHEN a.progress IS NULL THEN r.extra ELSE {PROGRESSING} END::text, clock_timestamp()
FROM {attempts} w{_ready(n, s)}
LEFT JOIN LATERAL (
  SELECT a.progress FROM {n.s}.attempts a WHERE a.job_id = r.id AND a.run_lease = w.lease ORDER BY a.job_id LIMIT 1) a ON true
ORDER BY w.claim_id, w.i"""


def _ready(n: Names, s: int) -> str:
    return f"""
  CROSS JOIN LATERAL (
    SELECT * FROM {n.s}.ready_{s} r WHERE r.id = w.id AND r.run_lease = w.prior ORDER BY r.id, r.run_lease LIMIT 1) r"""


@lru_cache(maxsize=256)
def find_sql(n: Names, s: int, *, overdue: bool) -> str:
    """$1 seconds, $2 claim id and $3 index to begin after, $4 most attempts. In the order of these two.

    Seconds since the worker of a claim has given a sign of life; of the overdue ones since the deadline: the job's own, else
    that of the claim.
    """
    lately = "clock_timestamp() - $1::float8 * interval '1 s'"
    silent = f"""
  WHERE CASE WHEN c.claimed_at >= {lately} THEN false ELSE NOT EXISTS (
    SELECT FROM {n.s}.instances i WHERE i.id = c.instance AND i.heartbeat_at >= {lately}) END"""
    late = f"""
  {_ready(n, s)}
  WHERE CASE WHEN coalesce(w.claimed_at + (r.extra->>'deadline')::float8 * interval '1 s', w.deadline_at)
                  + coalesce(w.waited, 0) * interval '1 s' < {lately}
             THEN true ELSE false END"""
    after = (
        "CASE WHEN (w.claim_id, j.ord - 1) > ($2::bigint, $3::int) THEN true ELSE false END"
        " AND b.state IS DISTINCT FROM 1"  # a handler that waits has all the time of its callback
    )
    return f"""
WITH RECURSIVE {open_claims(n, s)},
owned AS MATERIALIZED (
  SELECT c.*
  FROM open o CROSS JOIN LATERAL (
    SELECT c.claim_id, c.lease, c.instance, c.claimed_at, c.deadline_at, c.job_ids, c.prior
    FROM {n.s}.claims_{s} c WHERE c.claim_id = o.claim_id ORDER BY c.claim_id LIMIT 1) c{"" if overdue else silent}
),
attempt AS MATERIALIZED ({_open(n, s, "owned", after)}
),
page AS MATERIALIZED (   -- the page is chosen before the bodies are read
  SELECT w.* FROM attempt w{late if overdue else ""}
  ORDER BY w.claim_id, w.i LIMIT $4::int
){_rows(n, s, "page")}"""


def _finding(
    n: Names, name: str, seconds: float, limit: int, after: Place | None, *, overdue: bool
) -> Plan[StrandedPage]:
    """The plan of a page: of the segment that `after` lies in and, as long as there is room, of those that follow."""
    found: list[Stranded] = []
    from_segment, claim_id, idx = after or (0, 0, -1)
    used: Rows = yield Statement("rescue.segments", _SEGMENTS.format(s=n.s))
    for s, _ in used:
        if s < from_segment:
            continue
        begin = (claim_id, idx) if s == from_segment else (0, -1)
        rows: Rows = yield Statement(
            f"{name}.{s}",
            find_sql(n, s, overdue=overdue),
            (seconds, *begin, limit - len(found)),
        )
        found += [stranded(row) for row in rows]
        if len(found) >= limit:
            last = found[-1].attempt
            return StrandedPage(found, (s, last.claim_id, last.idx))
    return StrandedPage(found, None)


def stranded(row: Row) -> Stranded:
    """A row of such a statement."""
    return Stranded(Attempt._make(row[:14]), row[14])


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
        "find_overdue",
        lambda: _finding(n, "rescue.overdue", late, limit, after, overdue=True),
        safe_to_retry=True,
    )


@lru_cache(maxsize=256)
def _unknown_sql(n: Names, s: int) -> str:
    """$1 instance, $2 claim id to begin after, $3 claim ids that are known."""
    return f"""
WITH own AS MATERIALIZED (
  SELECT c.claim_id, c.lease, c.claimed_at, c.deadline_at, c.job_ids, c.prior FROM {n.s}.claims_{s} c
  WHERE c.claim_id > $2::bigint AND c.claim_id < $2::bigint + {2**48} AND c.instance = $1::bigint
    AND CASE WHEN c.claim_id = ANY ($3::bigint[]) THEN false ELSE true END
  ORDER BY c.claim_id LIMIT 1000
),
attempt AS MATERIALIZED ({_open(n, s, "own")}
){_rows(n, s, "attempt")}"""


def unknown(n: Names, instance: int, known: Sequence[int], since: int) -> Op[list[Attempt]]:
    """Open attempts of claims of a worker after the claim `since`, but those it knows."""

    def plan() -> Plan[list[Attempt]]:
        found: list[Attempt] = []
        used = yield Statement("rescue.segments", _SEGMENTS.format(s=n.s))
        for s, _ in used:
            rows = yield Statement(f"unknown.{s}", _unknown_sql(n, s), (instance, since, list(known)))
            found += [stranded(row).attempt for row in rows]
        return found

    return Op("unknown", plan, safe_to_retry=True)
