"""Close: end attempts, each exactly once, in batches.

However an attempt ends, one step ends it: a closure `(claim_id, n)` is inserted, `n` being the number of closures seen,
listing the indexes not ended before. `ON CONFLICT DO NOTHING` makes it the arbiter at every isolation level: a loser has
written nothing and is told *again*. What the outcome does besides (a row of `deferred`, of `failed`, of `ready`) hangs on
RETURNING of that insert, in the same statement, for the accepted indexes only.

Lock order in every statement: segments ascending, closures by claim_id, then the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import lru_cache

from awa_proto.job import JobState
from awa_proto.plan import Op, Plan, Rows, Statement, Value
from awa_proto.store import Ended, Verdict
from awa_proto.store.queue.names import BODY, Names

CODES = {state: code for code, state in enumerate(JobState)}
"""The number a state has in the database: its place in JobState."""


class _Into(Enum):
    """Where the job goes."""

    NOWHERE = "closures"
    DEFERRED = "deferred"
    FAILED = "failed"
    READY = "ready"


_TARGET = {
    JobState.COMPLETED: _Into.NOWHERE,
    JobState.SCHEDULED: _Into.DEFERRED,
    JobState.RETRYABLE: _Into.DEFERRED,
    JobState.FAILED: _Into.FAILED,
    JobState.CANCELLED: _Into.FAILED,
    JobState.AVAILABLE: _Into.READY,
}


def _ended_jobs(n: Names, s: int) -> str:
    """The bodies of the attempts that were accepted now, beside what the caller says of each.

    The run_lease of the ready row is the one before this claim, `prior`; a lateral in index order finds it, since a join
    could become a scan of the whole table, planned while it was empty.
    """
    return f"""
accepted AS MATERIALIZED (
  SELECT j.run_at AS due, j.attempt AS count, j.at, j.extra AS now_extra, k.lease, k.claimed_at, r.*
  FROM fresh f
  CROSS JOIN LATERAL unnest(f.idx) i
  JOIN known k ON k.claim_id = f.claim_id
  JOIN unnest($6::bigint[], $7::smallint[], $8::smallint[], $9::timestamptz[], $10::timestamptz[], $11::text[])
       j(claim_id, idx, attempt, run_at, at, extra) ON j.claim_id = f.claim_id AND j.idx = i
  CROSS JOIN LATERAL (
    SELECT * FROM {n.s}.ready_{s} r
    WHERE r.id = k.job_ids[i + 1] AND r.run_lease = coalesce(k.prior[i + 1], 0)
    ORDER BY r.id, r.run_lease LIMIT 1) r
),"""


_BODY_OF_R = (
    "priority, stripe, count, max_attempts, lease, {run_at}, created_at, queue, kind, args,"
    " coalesce(now_extra::json, extra)"
)


def _side(n: Names, s: int, into: _Into) -> str:
    """The CTEs of what the outcome does besides closing; `fresh` has what was accepted."""
    match into:
        case _Into.NOWHERE:
            return ""
        case _Into.DEFERRED:
            return f"""{_ended_jobs(n, s)}
moved AS (
  INSERT INTO {n.s}.deferred (id, state, attempted_at, finalized_at, {BODY})
  SELECT id, $5::smallint, claimed_at, CASE $5::smallint WHEN {CODES[JobState.RETRYABLE]} THEN at END,
         {_BODY_OF_R.format(run_at="due")}
  FROM accepted ORDER BY id
),"""
        case _Into.FAILED:
            return f"""{_ended_jobs(n, s)}
moved AS (
  INSERT INTO {n.s}.failed (id, state, attempted_at, finalized_at, {BODY})
  SELECT id, $5::smallint, claimed_at, at, {_BODY_OF_R.format(run_at="run_at")} FROM accepted ORDER BY id
),"""
        case _Into.READY:
            return f"""{_ended_jobs(n, s)}
moved AS (
  INSERT INTO {n.s}.ready (seg, id, {BODY})
  SELECT {n.open_segment}, id, {_BODY_OF_R.format(run_at="run_at")} FROM accepted ORDER BY id
  RETURNING queue
),"""


@lru_cache(maxsize=256)
def sql(n: Names, s: int, into: _Into, patient: bool = False) -> str:
    """patient: wait for locks as long as the transaction does. Else 200 ms, which would stay set in a caller's transaction.

    $1 claim ids, $2 their leases, $3 the indexes that end, one array literal per claim, $4 flush, $5 the new state.

    Except for completions also, per attempt: $6 claim id, $7 index, $8 the job's attempt count, $9 when it is due again,
    $10 when it ended, $11 its new extra or NULL to keep what it had. Each claim at most once per call.

    Returns a row per claim that exists: the indexes ended by this flush (now, or when it was sent before), and whether a
    concurrent closer was faster, in which case nothing was written for that claim. An index that is in neither is stale.
    """
    woken = (
        f", (SELECT count(w) FROM (SELECT {n.wake('queue')} FROM (SELECT DISTINCT queue FROM moved) q) w(w))"
        if into is _Into.READY
        else ""
    )
    return f"""
WITH wanted AS MATERIALIZED (
  SELECT claim_id, lease, idx::smallint[] AS idx{"" if patient else ", set_config('lock_timeout', '200ms', true)"}
  FROM unnest($1::bigint[], $2::bigint[], $3::text[]) w(claim_id, lease, idx)
),
known AS MATERIALIZED (
  SELECT w.claim_id, w.lease, w.idx, c.job_ids, c.prior, c.claimed_at, ended.idx AS ended, ended.mine, ended.next
  FROM wanted w
  CROSS JOIN LATERAL (
    SELECT c.job_ids, c.prior, c.claimed_at FROM {n.s}.claims_{s} c
    WHERE c.claim_id = w.claim_id AND c.lease = w.lease ORDER BY c.claim_id LIMIT 1) c
  CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(i), '{{}}') AS idx, coalesce(array_agg(i) FILTER (WHERE k.flush = $4::bigint), '{{}}') AS mine,
           coalesce(max(k.n) + 1, 0) AS next
    FROM (SELECT * FROM {n.s}.closures_{s} k WHERE k.claim_id = w.claim_id ORDER BY k.claim_id, k.n LIMIT 32768) k
    CROSS JOIN LATERAL unnest(k.idx) i) ended
),
open AS MATERIALIZED (
  SELECT claim_id, next, ARRAY(
    SELECT DISTINCT i FROM unnest(idx) i WHERE i <> ALL (ended) AND i BETWEEN 0 AND cardinality(job_ids) - 1 ORDER BY i) AS idx
  FROM known
),
fresh AS (
  INSERT INTO {n.s}.closures_{s} (seg, claim_id, n, flush, idx, outcome)
  SELECT {s}, claim_id, next, $4::bigint, idx, $5::smallint FROM open WHERE cardinality(idx) > 0 ORDER BY claim_id
  ON CONFLICT (claim_id, n) DO NOTHING
  RETURNING claim_id, idx
),{_side(n, s, into)}
verdict AS MATERIALIZED (
  SELECT k.claim_id, coalesce(f.idx, '{{}}') || ARRAY(SELECT i FROM unnest(k.idx) i WHERE i = ANY (k.mine)) AS ended,
         f.claim_id IS NULL AND cardinality(o.idx) > 0 AS again
  FROM known k JOIN open o USING (claim_id) LEFT JOIN fresh f USING (claim_id)
)
SELECT claim_id, ended, again{woken} FROM verdict"""


def statement(
    n: Names, s: int, to: JobState, ended: Sequence[Ended], flush: int, *, patient: bool = False
) -> Statement:
    """One statement: attempts of one segment that go to one state."""
    into = _TARGET[to]
    by_claim: dict[int, tuple[int, list[int]]] = {}
    for e in ended:
        a = e.attempt
        by_claim.setdefault(a.claim_id, (a.run_lease, []))[1].append(a.idx)
    claims = sorted(by_claim)
    params: tuple[Value, ...] = (
        claims,
        [by_claim[c][0] for c in claims],
        ["{" + ",".join(map(str, by_claim[c][1])) + "}" for c in claims],
        flush,
        CODES[to],
    )
    if into is not _Into.NOWHERE:
        ended = list({(e.attempt.claim_id, e.attempt.idx): e for e in ended}.values())
        params += (
            [e.attempt.claim_id for e in ended],
            [e.attempt.idx for e in ended],
            [e.transition.attempt for e in ended],
            [e.transition.run_at for e in ended],
            [e.transition.at for e in ended],
            [e.extra for e in ended],
        )
    return Statement(f"close.{into.value}.{s}{'.patient' if patient else ''}", sql(n, s, into, patient), params)


def finalize(n: Names, ended: Sequence[Ended], flush: int) -> Op[list[Verdict]]:
    """End attempts. Groups by segment and new state; each group is a statement that commits by itself."""
    groups: dict[tuple[int, JobState], list[int]] = {}
    for position, e in enumerate(ended):
        groups.setdefault((e.attempt.segment, e.transition.to), []).append(position)

    def plan() -> Plan[list[Verdict]]:
        verdicts = [Verdict.STALE] * len(ended)
        for (s, to), positions in sorted(groups.items(), key=_order):
            rows: Rows = yield statement(n, s, to, [ended[p] for p in positions], flush)
            answers = {row[0]: (frozenset(row[1]), row[2]) for row in rows}
            for p in positions:
                attempt = ended[p].attempt
                answer = answers.get(attempt.claim_id)
                if answer is not None:
                    if attempt.idx in answer[0]:
                        verdicts[p] = Verdict.ACCEPTED
                    elif answer[1]:
                        verdicts[p] = Verdict.AGAIN
        return verdicts

    return Op("finalize", plan, safe_to_retry=True)


def _order(group: tuple[tuple[int, JobState], list[int]]) -> tuple[int, int]:
    """Segments ascending, then outcomes: the lock order of every finalize."""
    (segment, to), _ = group
    return segment, CODES[to]
