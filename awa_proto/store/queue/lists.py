"""Lists of jobs, newest id first, in pages that cost a bounded time whatever is asked for.

A statement looks at no more than so many rows of each table by id, and asks the logs what became of no more than a page of
them. Where it stops before the page is full, it leaves a mark: the id down to which it has seen everything. The first mark
from above ends what the rows say for sure; the next statement, or the user with the next call, goes on before it.

Each state has a statement of its own. Only those in the logs differ from a walk by id:

- *running* jobs are few, wherever they lie: they are what claims have and closures have not.
- *available* ones are few or newest, mostly: first the rows no claim covers are counted, up to a bound, lane by lane; if that
  are all, they are the list. Else there is a backlog, and a walk by id finds enough of it.
- *completed* ones lie below whatever is available, so rows that nobody has claimed are skipped before more is asked. Among
  those that are claimed some run: where these are in the way, they are listed first, and skipped too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from awa_proto.job import JobPage, JobRow, JobState
from awa_proto.plan import Op, Plan, Rows, Statement, Value
from awa_proto.store import JobFilter
from awa_proto.store.queue.claim import claimed
from awa_proto.store.queue.close import CODES
from awa_proto.store.queue.names import Names
from awa_proto.store.queue.reads import JOB, available, beside, listed, logged, running, running_ids
from awa_proto.store.queue.segments import segments_used, unclaimed
from awa_proto.store.queue.selection import wanted
from awa_proto.store.queue.sweep import open_claims

PAGE = 60
"""Most jobs a statement lists; the cost of a longer page passes jit_above_cost."""
_TABLES: dict[JobState | None, tuple[str, ...]] = {
    None: ("deferred", "failed", "dlq", "waiting", "jobs_hot", "scheduled_jobs"),
    JobState.SCHEDULED: ("deferred", "scheduled_jobs"),
    JobState.RETRYABLE: ("deferred", "scheduled_jobs"),
    JobState.FAILED: ("failed", "dlq", "jobs_hot"),
    JobState.CANCELLED: ("failed", "jobs_hot"),
    JobState.COMPLETED: ("waiting", "jobs_hot"),
    JobState.WAITING_EXTERNAL: ("waiting", "jobs_hot"),
}
"""The tables beside the logs that have jobs in a state; in any other they are in `jobs_hot`, that of canonical storage."""
_LOGGED = frozenset({None, JobState.AVAILABLE, JobState.COMPLETED})
"""The states that a walk through the logs finds."""
_FEW, _MANY, _MANY_DECODED = 300, 8_000, 3_000
"""Most rows of a table a statement looks at: first few; if that was not enough, once many, or less if JSON is decoded."""
_LEAST = 20
"""Least jobs a statement asks for."""
_FREE = 2000
"""Most jobs of a segment nobody has claimed, beyond which they are a backlog."""
_SKIPPED = 2000
"""Most jobs of a segment that run and are skipped at once."""


def _mark(source: str, filled: str) -> str:
    """SQL: the row that says down to which id a part has seen everything; none when there is nothing below.

    source: a relation with id and n, `n` being set in the row at which the bound of looking was reached.
    filled: whether the page of the part is full.
    """
    return f"""
  (SELECT min(id), NULL, NULL, NULL, bool_or(n IS NOT NULL)::int, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
          NULL, NULL, NULL, NULL, NULL
   FROM {source} HAVING bool_or(n IS NOT NULL) OR {filled})"""


_ABOVE_LOGS = " AND (r.id, 0) >= ((SELECT id FROM floor), 0)"
"""SQL: rows that the mark of the logs does not hide. As a row, since the planner takes it that a range of ids has few."""


def _walk(
    n: Names, table: str, condition: str, looks: int, columns: str = "", page: str = "LIMIT $2::int", within: str = ""
) -> str:
    """SQL of a CTE: rows of a table by id downwards before $1 that meet a condition (`wanted`), and the last one looked at."""
    keys = "id DESC"
    if table == "ready":  # has several rows of one job, of which only the newest can stand for it
        keys = "id DESC, run_lease DESC"
        condition = f"CASE WHEN lag(r.id) OVER w IS NOT DISTINCT FROM r.id THEN false ELSE {condition} END"
    by = f"ORDER BY r.{keys.replace(', ', ', r.')}"
    return f"""
  SELECT *, CASE number WHEN {looks} THEN number END AS n FROM (
    SELECT r.id{columns}, row_number() OVER w AS number, {condition} AS wanted
    FROM {n.s}.{table} r WHERE r.id < $1::bigint{within} WINDOW w AS ({by}) {by} LIMIT {looks}) l
  WHERE CASE number WHEN {looks} THEN true ELSE wanted END
  ORDER BY {keys} {page}"""


@lru_cache
def list_sql(n: Names, state: JobState | None, looks: int, logs: bool = True) -> str:
    """A walk by id: $1 before id, $2 most jobs, $3 … conditions, and of completed jobs the ids to be skipped.

    looks: most rows of each table that are looked at. logs: the logs are, too.

    Rows of JOB, with marks among them, which have no kind; the `state` of a mark is 1 when the bound of looking was reached.
    """
    conditions = wanted("r", 3, "metadata")
    ctes: list[str] = []
    parts: list[str] = []
    for table in _TABLES.get(state, ("jobs_hot",)):
        shown = "r.state"
        if table == "jobs_hot" and state in {JobState.RUNNING, JobState.WAITING_EXTERNAL}:
            shown = (
                f"WHEN r.state = {CODES[JobState.RUNNING]} AND EXISTS (SELECT FROM {n.s}.callbacks w WHERE w.state = 1"
                f" AND w.job_id = r.id AND w.run_lease = r.run_lease) THEN {CODES[JobState.WAITING_EXTERNAL]} ELSE r.state END"
            )
            shown = f"CASE {shown}"
        of = (
            conditions
            if state is None or table == "dlq"
            else f"CASE {shown} WHEN {CODES[state]} THEN {conditions} ELSE false END"
        )
        within = _ABOVE_LOGS if logs and state is None else ""
        ctes.append(f"in_{table} AS MATERIALIZED ({_walk(n, table, of, looks, within=within)}\n)")
        parts.append(f"""
  SELECT j.* FROM in_{table} l CROSS JOIN LATERAL ({beside(n, table, "r.id = l.id", "LIMIT 1")}) j WHERE l.wanted""")
        parts.append(_mark(f"in_{table}", "count(*) >= $2::int"))
    if logs and state in _LOGGED:
        added, part = _in_logs(n, state, conditions, looks)
        ctes = added + ctes
        parts += part
    return f"""
WITH {",".join(f"{chr(10)}{cte}" for cte in ctes)}
SELECT {JOB} FROM ({f"{chr(10)}  UNION ALL".join(parts)}
) j ORDER BY id DESC, kind NULLS LAST LIMIT $2::int + 1"""


def _in_logs(n: Names, state: JobState | None, conditions: str, looks: int) -> tuple[list[str], list[str]]:
    """CTEs and parts of the rows of `ready`. Whether one stands for its job is dear to say, so it is asked of a page of them.

    Whether anybody has claimed it is cheap: the newest claim of its lane says so, of which there are few.
    """
    key = "seg, queue, priority, stripe"
    fate = logged(
        n,
        "r.seg = l.seg AND r.id = l.id AND r.run_lease = l.run_lease"
        + (f" AND k.outcome = {CODES[JobState.COMPLETED]}" if state is JobState.COMPLETED else ""),
        "LIMIT 1",
    )
    if state is None:
        walk = _walk(n, "ready", conditions, looks, ", r.seg, r.run_lease")
        floor = "CASE WHEN bool_or(n IS NOT NULL) OR count(*) >= $2::int THEN min(id) ELSE 0 END"
        ctes = [f"in_logs AS MATERIALIZED ({walk}\n)", f"floor AS MATERIALIZED (SELECT {floor} AS id FROM in_logs)"]
        return ctes, [
            f"""
  SELECT j.* FROM in_logs l CROSS JOIN LATERAL ({fate}) j WHERE l.wanted""",
            _mark("in_logs", "count(*) >= $2::int"),
        ]
    walk = _walk(n, "ready", conditions, looks, f", r.run_lease, r.xid, r.{key.replace(', ', ', r.')}", "")
    is_claimed = f"CASE WHEN t.upto IS NULL THEN false ELSE {claimed('l', 't')} END"
    fits = (
        f"NOT {is_claimed}"
        if state is JobState.AVAILABLE
        else f"{is_claimed} AND l.id NOT IN (SELECT unnest($7::bigint[]))"
    )
    ctes = [
        f"in_logs AS MATERIALIZED ({walk}\n)",
        f"lanes AS MATERIALIZED (SELECT DISTINCT {key} FROM in_logs WHERE wanted)",
        f"""tops AS MATERIALIZED (
  SELECT l.*, c.seen, c.upto, c.pos_xid, c.pos_id FROM lanes l CROSS JOIN LATERAL (
    SELECT * FROM {n.s}.claims c WHERE c.seg = l.seg AND c.queue = l.queue AND c.priority = l.priority AND c.stripe = l.stripe
    ORDER BY c.queue, c.priority, c.stripe, c.turn DESC LIMIT 1) c
)""",
        f"""picked AS MATERIALIZED (
  SELECT l.seg, l.id, l.run_lease FROM in_logs l LEFT JOIN tops t USING ({key})
  WHERE l.wanted AND {fits} ORDER BY l.id DESC LIMIT $2::int
)""",
    ]
    body = available(n, "r.seg = l.seg AND r.id = l.id AND r.run_lease = l.run_lease", "LIMIT 1")
    return ctes, [
        f"""
  SELECT j.* FROM picked l CROSS JOIN LATERAL ({body if state is JobState.AVAILABLE else fate}) j""",
        _mark("(SELECT id, NULL::bigint AS n FROM picked) p", "count(*) >= $2::int"),
        _mark("(SELECT id, n FROM in_logs WHERE n IS NOT NULL) p", "false"),
    ]


@lru_cache(maxsize=256)
def _free_sql(n: Names, s: int) -> str:
    """Jobs of a segment nobody has claimed: $1 before id, $2 most jobs, $3 … conditions. With a mark if they are too many."""
    rows = unclaimed(n, s, f"r.id, r.run_lease, {wanted('r', 3, 'metadata')} AS wanted", cap=_FREE + 1)
    return f"""
WITH free AS MATERIALIZED (SELECT * FROM ({rows}) u LIMIT {_FREE + 1})
SELECT {JOB} FROM (
  SELECT j.* FROM (
    SELECT * FROM free WHERE wanted AND id < $1::bigint ORDER BY id DESC LIMIT $2::int) l
  CROSS JOIN LATERAL ({available(n, "r.id = l.id AND r.run_lease = l.run_lease", "LIMIT 1", f"ready_{s}")}) j
  UNION ALL
  {_mark("(SELECT NULL::bigint AS id, NULL::bigint AS n FROM free) f", f"count(*) > {_FREE}")}
) j"""


@lru_cache(maxsize=256)
def _running_sql(n: Names, s: int) -> str:
    """Jobs of a segment that run: $1 before id, $2 most jobs, $3 … conditions. Handlers that wait are another list."""
    where = f"r.id < $1::bigint AND {wanted('r', 3, 'metadata')} AND w.state IS DISTINCT FROM 1"
    return f"""
WITH RECURSIVE {open_claims(n, s)}
SELECT {JOB} FROM ({running(n, s, where, "ORDER BY r.id DESC LIMIT $2::int")}) j"""


@lru_cache(maxsize=256)
def _running_ids_sql(n: Names, s: int) -> str:
    """The newest jobs of a segment that run, handlers that wait among them: $1 before id."""
    return f"""
WITH RECURSIVE {open_claims(n, s)}
{running_ids(n, s, "j.id < $1::bigint", f"ORDER BY j.id DESC LIMIT {_SKIPPED}")}"""


@lru_cache(maxsize=64)
def _waited_for_sql(n: Names, s: int) -> str:
    """Jobs of a segment whose handlers wait: $1 before id, $2 most jobs, $3 … conditions."""
    where = f"r.id < $1::bigint AND {wanted('r', 3, 'metadata')} AND w.state = 1"
    opened = f"""
open AS MATERIALIZED (
  SELECT DISTINCT c.claim_id FROM {n.s}.callbacks c WHERE c.state = 1 AND c.job_id < $1::bigint AND c.seg = {s})"""
    return f"""
WITH {opened}
SELECT {JOB} FROM ({running(n, s, where, "ORDER BY r.id DESC LIMIT $2::int")}) j"""


_IN_SEGMENTS = {JobState.RUNNING, JobState.AVAILABLE, JobState.WAITING_EXTERNAL}


def list_jobs(n: Names, f: JobFilter) -> Op[JobPage[int]]:
    """A page of jobs, the newest id first."""
    conditions: tuple[Value, ...] = (f.kind, f.queue, f.tag, f.metadata)
    start = 2**63 - 1 if f.before_id is None else f.before_id

    def plan() -> Plan[JobPage[int]]:
        if f.state is not None and f.state in _IN_SEGMENTS:
            found = yield from _by_segment(n, f.state, (start, f.limit + 1, *conditions))
            if found is not None:
                rest = yield from _walked(n, f.state, start, f.limit, conditions, logs=False)
                return _merged(found, rest, f.limit)
        return (yield from _walked(n, f.state, start, f.limit, conditions))

    return Op("list_jobs", plan, safe_to_retry=True)


def _merged(found: list[JobRow], rest: JobPage[int], limit: int) -> JobPage[int]:
    """One page of jobs of the logs, which are all or more than fit, and of a page of others."""
    newest = {job.id: job for job in sorted((*found, *rest), key=lambda job: job.run_lease)}
    known = sorted((id for id in newest if rest.next is None or id >= rest.next), reverse=True)
    page = JobPage([newest[id] for id in known[:limit]], rest.next)
    if len(known) > limit:
        page.next = known[limit - 1]
    return page


def _by_segment(n: Names, state: JobState, params: tuple[Value, ...]) -> Plan[list[JobRow] | None]:
    """The jobs of all segments; None when a segment has too many to say."""
    name, sql = {
        JobState.RUNNING: ("running", _running_sql),
        JobState.WAITING_EXTERNAL: ("waited_for", _waited_for_sql),
    }.get(state, ("free", _free_sql))
    rows = yield from _of_segments(n, name, sql, params)
    return None if any(row[1] is None for row in rows) else [listed(row) for row in rows]


def _of_segments(n: Names, name: str, sql: Callable[[Names, int], str], params: tuple[Value, ...]) -> Plan[Rows]:
    """The rows of all segments; a statement each, since as one they would be compiled."""
    used = yield segments_used(n)
    answers: list[Rows] = yield tuple(Statement(f"list_jobs.{name}.{s}", sql(n, s), params) for s, _ in used)
    return [row for rows in answers for row in rows]


def _walked(
    n: Names, state: JobState | None, start: int, limit: int, conditions: tuple[Value, ...], *, logs: bool = True
) -> Plan[JobPage[int]]:
    found: list[JobRow] = []
    before, looks = start, _FEW
    skipped: list[int] | None = None
    many = _MANY if conditions[2:] == (None, None) else _MANY_DECODED
    for _ in range(2 * (limit // PAGE + 2)):
        page = min(PAGE, max(_LEAST, (limit + 1 - len(found)) * 9 // 8))  # some of those it meets are elsewhere
        rows: Rows = yield Statement(
            f"list_jobs.{state or 'all'}.{looks}{'' if logs else '.beside'}",
            list_sql(n, state, looks, logs),
            (before, page, *conditions, *([skipped or []] if state is JobState.COMPLETED else [])),
        )
        mark = next((at for at, row in enumerate(rows) if row[1] is None), None)
        shown = [listed(row) for row in rows[: page if mark is None else mark]]
        found += shown
        if len(found) > limit:
            return JobPage(found[:limit], found[limit - 1].id)
        if mark is None and len(rows) <= page:
            return JobPage(found)
        before = shown[-1].id if mark is None else rows[mark][0]
        is_bound = mark is not None and rows[mark][4]
        if is_bound and looks == many:
            break
        if is_bound:
            looks = many
        elif shown and shown[0].id - shown[-1].id < _FEW:  # beyond what was in the way
            looks = _FEW
        if state is JobState.COMPLETED and skipped is None and (is_bound or len(shown) < page // 2):
            running = yield from _of_segments(n, "running_ids", _running_ids_sql, (before,))
            skipped = [row[0] for row in running]
    return JobPage(found, before)
