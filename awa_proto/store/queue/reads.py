"""Reads: what became of a job, found in the logs without an index beside those the writes need.

The current row. A row of `ready` stands for its job if it has no closure, or its closure is *completed*. In every other
case the statement that closed it has written the job elsewhere: to `deferred`, to `failed`, or to a newer row of `ready`.

The claim that took a row is the first turn of its lane whose cursor covers it. Covering is monotone in the turn, so it is
found by halving: about log2(claims of the lane) probes of the unique index.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC
from functools import lru_cache

from awa_proto import extra as extras
from awa_proto.job import JobRow, JobState
from awa_proto.plan import Op, Plan, Row, Rows, Statement
from awa_proto.store.queue.claim import claimed
from awa_proto.store.queue.close import CODES
from awa_proto.store.queue.names import FEW_CLOSURES, NO_LETTER, NO_OUTPUT, PROGRESSING, Names

_STATES = tuple(JobState)
_COMPLETED = CODES[JobState.COMPLETED]


def fate(n: Names, r: str) -> str:
    """SQL: joins `t`, the claim that took the ready row `r` (NULLs while nobody has), and `k`, the closure of its attempt."""
    lane = f"c.seg = {r}.seg AND c.queue = {r}.queue AND c.priority = {r}.priority AND c.stripe = {r}.stripe"
    order = "ORDER BY c.queue, c.priority, c.stripe, c.turn"
    return f"""
LEFT JOIN LATERAL (
  WITH RECURSIVE search(lo, hi) AS (
    SELECT 0::bigint, top.turn
    FROM (SELECT c.* FROM {n.s}.claims c WHERE {lane} {order} DESC LIMIT 1) top
    WHERE {claimed(r, "top")}
    UNION ALL
    SELECT CASE WHEN m.claimed THEN s.lo ELSE m.turn END, CASE WHEN m.claimed THEN m.turn ELSE s.hi END
    FROM search s CROSS JOIN LATERAL (
      SELECT c.turn, {claimed(r, "c")} AS claimed FROM {n.s}.claims c
      WHERE {lane} AND c.turn = (s.lo + s.hi) / 2 {order} LIMIT 1) m
    WHERE s.hi - s.lo > 1
  )
  SELECT c.claim_id, c.lease, c.claimed_at, c.deadline_at, (array_position(c.job_ids, {r}.id) - 1)::smallint AS idx
  FROM search s CROSS JOIN LATERAL (
    SELECT c.* FROM {n.s}.claims c WHERE {lane} AND c.turn = s.hi {order} LIMIT 1) c
  WHERE s.hi - s.lo = 1
) t ON true
LEFT JOIN LATERAL (
  SELECT k.outcome, k.closed_at, k.outputs -> (array_position(k.idx, t.idx) - 1) AS output FROM {n.s}.closures k
  WHERE k.seg = {r}.seg AND k.claim_id = t.claim_id AND t.idx = ANY (k.idx) AND {FEW_CLOSURES}
  ORDER BY k.claim_id, k.n LIMIT 1
) k ON true"""


_STATE = f"""CASE WHEN t.claim_id IS NULL THEN {CODES[JobState.AVAILABLE]} WHEN k.outcome IS NULL THEN {CODES[JobState.RUNNING]}
  ELSE k.outcome END"""

_CURRENT = f"CASE WHEN k.outcome IS NULL THEN true ELSE k.outcome = {_COMPLETED} END"
"""Open or completed. As a CASE, of which the planner expects every second row; an equality it takes for rare, so that a page
seems to need the whole log, passes jit_above_cost, and is compiled first: half a second."""

JOB = """id, kind, queue, args::text, state, priority, attempt, run_lease, max_attempts, run_at, created_at,
  attempted_at, deadline_at, finalized_at, extra::text, dlq_reason, dlq_at, output::text, callback_id::text,
  callback_timeout_at"""
"""The columns `job_row` reads."""
COLUMNS = 20
"""How many they are."""
_CALLED = """CASE WHEN w.state < 3 THEN w.callback_id END AS callback_id,
       CASE WHEN w.state < 3 THEN w.timeout_at END AS callback_timeout_at"""
_WAITED = "coalesce(w.waited, 0) * interval '1 s'"
_RUNNING = CODES[JobState.RUNNING]


def _callback(n: Names, id: str, lease: str, runs: str = "true") -> str:
    """SQL: join `w`, the callback of an attempt, if it has one."""
    return f"""
LEFT JOIN LATERAL (
  SELECT * FROM {n.s}.callbacks w WHERE {runs} AND w.job_id = {id} AND w.run_lease = {lease}
  ORDER BY w.job_id LIMIT 1) w ON true"""


def logged(n: Names, where: str, rest: str, *, whole: bool = False) -> str:
    """Current rows of `ready`, with the columns of JOB. whole: also the output, and the progress of an attempt that runs."""
    output = "nullif(k.output::text, 'null')::json" if whole else "NULL::json"
    letter = f"NULL::text AS dlq_reason, NULL::timestamptz AS dlq_at, {output} AS output, {_CALLED}"
    extra = "CASE WHEN a.progress IS NULL THEN r.extra ELSE " + PROGRESSING + " END AS extra" if whole else "r.extra"
    recorded = f"LEFT JOIN {n.s}.attempts a ON k.outcome IS NULL AND a.job_id = r.id AND a.run_lease = t.lease"
    return f"""
SELECT r.id, r.kind, r.queue, r.args, CASE WHEN w.state = 1 THEN {CODES[JobState.WAITING_EXTERNAL]} ELSE {_STATE} END AS state,
       r.priority, r.attempt + (t.claim_id IS NOT NULL)::int AS attempt, coalesce(t.lease, r.run_lease) AS run_lease,
       r.max_attempts, r.run_at, r.created_at, t.claimed_at AS attempted_at,
       CASE WHEN k.outcome IS NULL AND w.state IS DISTINCT FROM 1 THEN
         coalesce(t.claimed_at + (r.extra->>'deadline')::float8 * interval '1 s', t.deadline_at) + {_WAITED} END AS deadline_at,
       k.closed_at AS finalized_at, {extra}, {letter}
FROM {n.s}.ready r{fate(n, "r")}{_callback(n, "r.id", "t.lease", "k.outcome IS NULL")}
{recorded if whole else ""}
WHERE {_CURRENT} AND {undeleted(n, "r")} AND {where}
{rest}"""


def undeleted(n: Names, r: str) -> str:
    """SQL: nobody has deleted the job of row `r`. A CASE again, since an anti-join is taken for a rare thing."""
    return f"CASE WHEN EXISTS (SELECT FROM {n.s}.deleted x WHERE x.id = {r}.id) THEN false ELSE true END"


def running(n: Names, s: int, where: str, rest: str) -> str:
    """Rows of a segment whose attempts have no closure, from the claims in the CTE `open`; see `sweep.py`."""
    return f"""
SELECT r.id, r.kind, r.queue, r.args,
       CASE WHEN w.state = 1 THEN {CODES[JobState.WAITING_EXTERNAL]} ELSE {_RUNNING} END AS state, r.priority,
       r.attempt + 1 AS attempt, c.lease AS run_lease, r.max_attempts, r.run_at, r.created_at,
       c.claimed_at AS attempted_at, CASE WHEN w.state IS DISTINCT FROM 1 THEN
         coalesce(c.claimed_at + (r.extra->>'deadline')::float8 * interval '1 s', c.deadline_at) + {_WAITED} END AS deadline_at,
       NULL::timestamptz AS finalized_at, r.extra, NULL::text AS dlq_reason, NULL::timestamptz AS dlq_at, NULL::json AS output,
       {_CALLED}
{_open_jobs(n, s)}
CROSS JOIN LATERAL (
  SELECT * FROM {n.s}.ready_{s} r
  WHERE r.id = j.id AND r.run_lease = coalesce(j.prior, 0) ORDER BY r.id, r.run_lease LIMIT 1) r
{_callback(n, "r.id", "c.lease")}
WHERE {_IS_OPEN} AND {where}
{rest}"""


def running_ids(n: Names, s: int, where: str, rest: str) -> str:
    """The ids `j.id` of the same jobs."""
    return f"""
SELECT j.id
{_open_jobs(n, s)}
WHERE {_IS_OPEN} AND {where}
{rest}"""


def _open_jobs(n: Names, s: int) -> str:
    """SQL: the jobs `j` of the claims `c` in the CTE `open`, and what of a claim is closed."""
    return f"""FROM open o
CROSS JOIN LATERAL (SELECT * FROM {n.s}.claims_{s} c WHERE c.claim_id = o.claim_id ORDER BY c.claim_id LIMIT 1) c
CROSS JOIN LATERAL (
  SELECT coalesce(array_agg(i), '{{}}') AS closed
  FROM {n.s}.closures_{s} k CROSS JOIN LATERAL unnest(k.idx) i
  WHERE k.claim_id = c.claim_id AND {FEW_CLOSURES}) k
CROSS JOIN LATERAL unnest(c.job_ids, c.prior) WITH ORDINALITY j(id, prior, ord)"""


_IS_OPEN = "(j.ord - 1)::smallint <> ALL (k.closed)"


def available(n: Names, where: str, rest: str, table: str = "ready") -> str:
    """Rows of `ready` that nobody has claimed, as the caller knows."""
    return f"""
SELECT r.id, r.kind, r.queue, r.args, {CODES[JobState.AVAILABLE]} AS state, r.priority, r.attempt, r.run_lease, r.max_attempts,
       r.run_at, r.created_at, NULL::timestamptz AS attempted_at, NULL::timestamptz AS deadline_at,
       NULL::timestamptz AS finalized_at, r.extra, {NO_LETTER}
FROM {n.s}.{table} r
WHERE {where}
{rest}"""


def beside(n: Names, table: str, where: str, rest: str, *, whole: bool = False) -> str:
    """Rows of a table that has one for each job, as `deferred` has, with the columns of JOB.

    whole: also the progress of an attempt that runs.
    """
    extra = "r.extra"
    if whole and table == "jobs_hot":
        extra = "CASE WHEN a.progress IS NULL THEN r.extra ELSE " + PROGRESSING + " END AS extra"
    running = f"r.state = {CODES[JobState.RUNNING]} AND a.job_id = r.id AND a.run_lease = r.run_lease"
    recorded = f"LEFT JOIN {n.s}.attempts a ON {running}"
    deadline, state, letter, called = "NULL::timestamptz AS deadline_at", "r.state", NO_LETTER, ""
    if table == "dlq":
        letter = f"r.dlq_reason, r.dlq_at, {NO_OUTPUT}"
    elif table in {"waiting", "jobs_hot"}:
        output = "r.output" if table == "waiting" and whole else "NULL::json AS output"
        letter = f"NULL::text AS dlq_reason, NULL::timestamptz AS dlq_at, {output}, {_CALLED}"
        called = _callback(n, "r.id", "r.run_lease", f"r.state IN ({_RUNNING}, {CODES[JobState.WAITING_EXTERNAL]})")
    if table == "jobs_hot":
        deadline = f"CASE WHEN w.state IS DISTINCT FROM 1 THEN r.deadline_at + {_WAITED} END AS deadline_at"
        state = f"CASE WHEN w.state = 1 THEN {CODES[JobState.WAITING_EXTERNAL]} ELSE r.state END AS state"
    return f"""
SELECT r.id, r.kind, r.queue, r.args, {state}, r.priority, r.attempt, r.run_lease, r.max_attempts, r.run_at, r.created_at,
       r.attempted_at, {deadline}, r.finalized_at, {extra}, {letter}
FROM {n.s}.{table} r{called}
{recorded if whole and table == "jobs_hot" else ""}
WHERE {where}
{rest}"""


def job_row(row: Row) -> JobRow:
    """A row of JOB as the row that users see."""
    id, kind, queue, args, state, priority, attempt, run_lease, max_attempts, *times = row[:14]
    extra, reason, dlq_at, output, callback_id, timeout_at = row[14:]
    run_at, created_at, attempted_at, deadline_at, finalized_at, dlq_at, timeout_at = (
        at and at.astimezone(UTC) for at in (*times, dlq_at, timeout_at)
    )
    return JobRow(
        id,
        kind,
        queue,
        args,
        _STATES[state],
        priority,
        attempt,
        run_lease,
        max_attempts,
        run_at,
        created_at,
        attempted_at,
        deadline_at,
        finalized_at,
        extra,
        output,
        reason,
        dlq_at,
        callback_id,
        timeout_at,
    )


def listed(row: Row) -> JobRow:
    """The same in a list, where the outputs of failed attempts are left out."""
    job = job_row(row)
    job.extra_json = extras.without_outputs(job.extra_json)
    return job


@lru_cache
def get_sql(n: Names) -> str:
    """$1 id."""
    mine = "r.id = $1::bigint"
    return f"""
SELECT {JOB} FROM (
  ({beside(n, "deferred", mine, "")})
  UNION ALL
  ({beside(n, "failed", mine, "")})
  UNION ALL
  ({beside(n, "dlq", mine, "")})
  UNION ALL
  ({beside(n, "waiting", mine, "", whole=True)})
  UNION ALL
  ({logged(n, mine, "ORDER BY r.id DESC, r.run_lease DESC LIMIT 1", whole=True)})
  UNION ALL
  ({beside(n, "jobs_hot", mine, "", whole=True)})
  UNION ALL
  ({beside(n, "scheduled_jobs", mine, "")})
) j LIMIT 1"""


def get_job(n: Names, id: int) -> Op[JobRow | None]:
    """The job, or None."""

    def plan() -> Plan[JobRow | None]:
        rows = yield Statement("get_job", get_sql(n), (id,))
        return job_row(rows[0]) if rows else None

    return Op("get_job", plan, safe_to_retry=True)


def get_jobs(n: Names, ids: Sequence[int]) -> Plan[dict[int, JobRow]]:
    """Those of these jobs that are there, by id, for what has to look at a few."""
    found: list[Rows] = yield tuple(Statement("get_job", get_sql(n), (id,)) for id in ids)
    return {id: job_row(rows[0]) for id, rows in zip(ids, found, strict=True) if rows}
