"""Dead letters: failed jobs in a table of their own, until somebody retries or purges them.

They got there when an attempt failed for good on a worker that keeps dead letters, or because somebody moved a failed job.
A dead letter is in state failed, and reads show it so; what is done to failed jobs in bulk leaves it alone.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache

from awa_proto.errors import UniqueConflict
from awa_proto.job import DlqCursor, JobPage, JobRow, JobState
from awa_proto.outcome import DeadLetter
from awa_proto.plan import Op, Plan, Rows, Statement
from awa_proto.store import PROMOTE_HINT, Selection
from awa_proto.store.canonical import people as canonical
from awa_proto.store.canonical.close import trace
from awa_proto.store.queue.close import CODES
from awa_proto.store.queue.home import available, scheduled, taker
from awa_proto.store.queue.names import BODY, LETTER_AFRESH, NO_LETTER, NO_OUTPUT, Names, body
from awa_proto.store.queue.reads import COLUMNS, JOB, beside, job_row, listed
from awa_proto.store.queue.selection import GONE_ON, LOOKED, in_batches, taken, values, wanted
from awa_proto.store.queue.unique import kept_out, rival

_FAILED = CODES[JobState.FAILED]


# reads


@lru_cache
def list_sql(n: Names, by: str | None) -> str:
    """Newest first before ($1 dlq_at or NULL, $2 id), at most $3; $4 … conditions.

    by: a column whose condition is given, so that the index of that column is read.

    Rows of JOB. If it has not looked at all of them, the last row is a mark: the place to go on before, and no kind.
    """
    order = "r.dlq_at DESC, r.id DESC"
    equal = f"r.{by} = ${4 if by == 'kind' else 5}::text AND " if by else ""
    return f"""
WITH looked AS MATERIALIZED (
  SELECT * FROM (
    SELECT r.id, r.dlq_at, row_number() OVER (ORDER BY {order}) AS n, {wanted("r", 4, "reason")} AS wanted
    FROM {n.s}.dlq r
    WHERE {equal}(r.dlq_at, r.id) < (coalesce($1::timestamptz, 'infinity'), $2::bigint)
    ORDER BY {order} LIMIT {LOOKED}) l
  WHERE CASE WHEN n = {LOOKED} THEN true ELSE wanted END
  ORDER BY dlq_at DESC, id DESC LIMIT $3::int
)
SELECT {JOB} FROM (
  SELECT j.* FROM looked l CROSS JOIN LATERAL ({beside(n, "dlq", "r.id = l.id", "LIMIT 1")}) j WHERE l.wanted
  UNION ALL
  (SELECT l.id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, l.dlq_at,
          NULL, NULL, NULL
   FROM looked l
   WHERE EXISTS (SELECT FROM looked m WHERE m.n = {LOOKED}) OR (SELECT count(*) FROM looked) >= $3::int
   ORDER BY l.dlq_at, l.id LIMIT 1)
) j
ORDER BY dlq_at DESC, id DESC, kind NULLS LAST"""


_PAGE = 60
"""Most jobs a statement lists; the cost of a longer page passes jit_above_cost."""


def list_dlq(n: Names, which: Selection, limit: int, before: DlqCursor | None) -> Op[JobPage[DlqCursor]]:
    """Dead letters, newest first; a statement for each sixty, and for one more, which says whether there is a next page."""
    by = "queue" if which.queue is not None else "kind" if which.kind is not None else None
    name, sql = f"list_dlq{f'.{by}' if by else ''}", list_sql(n, by)
    conditions = values(which, "reason")

    def plan() -> Plan[JobPage[DlqCursor]]:
        found: list[JobRow] = []
        since, id = (None, 2**63 - 1) if before is None else before
        while True:
            page = min(_PAGE, limit + 1 - len(found))
            rows: Rows = yield Statement(name, sql, (since, id, page, *conditions))
            shown = [listed(row) for row in rows if row[1] is not None]
            found += shown
            if len(found) > limit:
                last = found[limit - 1]
                return JobPage(found[:limit], (at(last), last.id))
            if len(shown) == len(rows):
                return JobPage(found)
            id, since = rows[-1][0], rows[-1][16].astimezone(UTC)
            if len(shown) < page:
                return JobPage(found, (since, id))

    return Op("list_dlq", plan, safe_to_retry=True)


def at(job: JobRow) -> datetime:
    """When a dead letter became one."""
    assert job.dlq_at is not None
    return job.dlq_at


def dlq_depth(n: Names, queue: str | None) -> Op[int]:
    """How many dead letters there are, of one queue or of all."""
    only, params = ("", ()) if queue is None else (" WHERE queue = $1::text", (queue,))
    statement = Statement(
        f"dlq_depth{'.queue' if only else ''}", f"SELECT count(*)::bigint FROM {n.s}.dlq{only}", params
    )

    def plan() -> Plan[int]:
        rows = yield statement
        count: int = rows[0][0]
        return count

    return Op("dlq_depth", plan, safe_to_retry=True)


# back to work


@lru_cache
def _retry_sql(n: Names) -> str:
    """$1 id, $2 when it is due or NULL."""
    columns = f"""id, {BODY}, NULL::timestamptz AS attempted_at, NULL::timestamptz AS deadline_at,
       NULL::timestamptz AS finalized_at, {NO_LETTER}"""
    soon = f"run_at < now() + interval '{PROMOTE_HINT} s'"
    due, everything = "coalesce($2::timestamptz, now()) <= now()", f"id, {BODY}"
    again = body(attempt="0", extra=LETTER_AFRESH, run_at="coalesce($2::timestamptz, now())")
    state = f"CASE WHEN {due} THEN {CODES[JobState.AVAILABLE]} ELSE {CODES[JobState.SCHEDULED]} END"
    return f"""
WITH {taker(n)}known AS MATERIALIZED (
  SELECT id, extra FROM {n.s}.dlq WHERE id = $1::bigint
),{kept_out(n, "known", state)},
gone AS (DELETE FROM {n.s}.dlq WHERE id = $1::bigint AND NOT EXISTS (SELECT FROM kept_out) RETURNING *),\
{available(n, "back", again, "gone", where=due, returning=everything)},\
{scheduled(n, "later", again, "gone", where=f"NOT {due}", returning=everything)}
SELECT {JOB},
       CASE state WHEN {CODES[JobState.AVAILABLE]} THEN {n.wake("queue")}
                  ELSE CASE WHEN {soon} THEN {n.wake("queue", "''")} END END
FROM (
  SELECT {CODES[JobState.AVAILABLE]} AS state, {columns} FROM back
  UNION ALL
  SELECT {CODES[JobState.SCHEDULED]}, {columns} FROM later) j"""


def retry_from_dlq(n: Names, id: int, run_at: datetime | None) -> Op[JobRow | None]:
    """A dead letter runs again, from attempt 0, now or when it is due. None when it is none."""

    def plan() -> Plan[JobRow | None]:
        rows = yield Statement(f"{n.prefix}retry_from_dlq", _retry_sql(n), (id, run_at))
        if rows:
            return job_row(rows[0][:COLUMNS])
        if (other := (yield from rival(n, id, "dlq"))) is not None:
            raise UniqueConflict(other)
        return None

    return Op("retry_from_dlq", plan)


def back_sql(n: Names, table: str, condition: str, changed: str) -> str:
    """Jobs of a table become available, all that get their unique keys again: see `taken`. changed: their body then."""
    in_order = "(SELECT * FROM gone ORDER BY id) gone"
    traces = trace(n, "ended", "gone") if table == "jobs_hot" else ""
    return f"""
WITH {taker(n)}{taken(n, table, condition, keyed=True)},{traces}{available(n, "back", changed, in_order, returning="queue")}
SELECT {GONE_ON}, (SELECT count({n.wake("queue")}) FROM (SELECT DISTINCT queue FROM back) q)"""


@lru_cache
def _retry_all_sql(n: Names) -> str:
    again = body(attempt="0", extra=LETTER_AFRESH, run_at="now()")
    return back_sql(n, "dlq", wanted("r", 3, "reason", "dead_for"), again)


def retry_all_from_dlq(n: Names, which: Selection) -> Op[int]:
    """Dead letters run again, from attempt 0, now."""
    conditions, sql = values(which, "reason", "dead_for"), _retry_all_sql(n)
    return in_batches(
        "retry_all_from_dlq",
        lambda after, most: Statement(f"{n.prefix}retry_all_from_dlq", sql, (after, most, *conditions)),
        limit=which.limit,
    )


# in


def _kept(n: Names) -> str:
    """CTE: what `gone` has of `failed` becomes dead letters."""
    return f"""
kept AS (
  INSERT INTO {n.s}.dlq (id, state, attempted_at, finalized_at, {BODY}, dlq_reason)
  SELECT id, state, attempted_at, finalized_at, {BODY}, '{DeadLetter.MOVED}' FROM gone ORDER BY id
  RETURNING *
)"""


@lru_cache
def _move_sql(n: Names) -> str:
    return f"""
WITH gone AS (DELETE FROM {n.s}.failed WHERE id = $1::bigint AND state = {_FAILED} RETURNING *),{_kept(n)}
SELECT {JOB} FROM (SELECT *, NULL::timestamptz AS deadline_at, {NO_OUTPUT} FROM kept) j"""


def move_to_dlq(n: Names, id: int) -> Op[JobRow | None]:
    """A failed job becomes a dead letter. None when it is none, or was cancelled."""

    def plan() -> Plan[JobRow | None]:
        rows = yield Statement("move_to_dlq", _move_sql(n), (id,))
        if not rows:
            rows = yield Statement("canonical.move_to_dlq", canonical.move_to_dlq_sql(n, JOB), (id,))
        return job_row(rows[0]) if rows else None

    return Op("move_to_dlq", plan)


@lru_cache
def _move_all_sql(n: Names, table: str) -> str:
    condition = f"CASE r.state WHEN {_FAILED} THEN {wanted('r', 3, 'failed_for')} ELSE false END"
    traces = trace(n, "ended", "gone") if table == "jobs_hot" else ""
    return f"""
WITH {taken(n, table, condition)},{traces}{_kept(n)}
SELECT {GONE_ON}"""


def move_failed_to_dlq(n: Names, which: Selection) -> Op[int]:
    """Failed jobs become dead letters."""
    conditions = values(which, "failed_for")
    return in_batches(
        "move_failed_to_dlq",
        *(
            lambda after, most, table=table: Statement(
                f"move_failed_to_dlq.{table}", _move_all_sql(n, table), (after, most, *conditions)
            )
            for table in ("failed", "jobs_hot")
        ),
        limit=which.limit,
    )


# out


def purge_dlq_job(n: Names, id: int) -> Op[bool]:
    """A dead letter is gone for good. False when it is none."""
    statement = Statement("purge_dlq_job", f"DELETE FROM {n.s}.dlq WHERE id = $1::bigint RETURNING id", (id,))

    def plan() -> Plan[bool]:
        rows = yield statement
        return bool(rows)

    return Op("purge_dlq_job", plan, safe_to_retry=True)


@lru_cache
def _purge_sql(n: Names) -> str:
    return f"""
WITH {taken(n, "dlq", wanted("r", 3, "reason", "dead_for"))}
SELECT {GONE_ON}"""


def purge_dlq(n: Names, which: Selection) -> Op[int]:
    """Dead letters are gone for good."""
    conditions, sql = values(which, "reason", "dead_for"), _purge_sql(n)
    return in_batches(
        "purge_dlq", lambda after, most: Statement("purge_dlq", sql, (after, most, *conditions)), limit=which.limit
    )
