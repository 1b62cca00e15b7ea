"""Selection: which rows of a table a list or a bulk call means, and how a table is walked for them in bounded pieces.

Whatever the conditions are, a statement looks at no more than LOOKED rows, in the order of an index, and says where it has
stopped. So a condition that nothing meets costs a bounded time as well, and the next statement goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from awa_proto.job import JobState
from awa_proto.plan import Op, Plan, Statement, Value
from awa_proto.store import Selection
from awa_proto.store.queue.close import CODES
from awa_proto.store.queue.names import Names
from awa_proto.store.queue.unique import kept_out

LOOKED = 20_000
"""Most rows of a table a statement looks at."""
_FIRST = -(2**63)
BATCH = 1000
"""Most jobs a statement of a bulk call changes."""

More: TypeAlias = Literal["reason", "failed_for", "dead_for", "metadata"]


def wanted(r: str, first: int, *more: More) -> str:
    """SQL: whether row `r` meets the conditions ${first} kind, queue, tag, and then those of `more`; NULL is no condition.

    A CASE, of which the planner expects every second row: of an equality it would think that a page needs the whole table,
    and compile the statement first, or read by another index than the one whose order is wanted.
    """
    age = "statement_timestamp() - {} * interval '1 s'"
    tests = {
        "kind": lambda p: f"{r}.kind = {p}::text",
        "queue": lambda p: f"{r}.queue = {p}::text",
        "tag": lambda p: (
            f"CASE WHEN {r}.extra IS NULL THEN false ELSE jsonb_exists(({r}.extra->'tags')::jsonb, {p}::text) END"
        ),
        "metadata": lambda p: (
            f"CASE WHEN {r}.extra IS NULL THEN false"
            f" ELSE coalesce(({r}.extra->'metadata')::jsonb @> {p}::text::jsonb, false) END"
        ),
        "reason": lambda p: f"{r}.dlq_reason = {p}::text",
        "failed_for": lambda p: f"{r}.finalized_at < {age.format(f'{p}::float8')}",
        "dead_for": lambda p: f"{r}.dlq_at < {age.format(f'{p}::float8')}",
    }
    types = {"failed_for": "float8", "dead_for": "float8"}
    parts = []
    for number, name in enumerate(("kind", "queue", "tag", *more), first):
        given = f"${number}::{types.get(name, 'text')} IS NULL"
        parts.append(f"({given} OR {tests[name](f'${number}')})")
    return f"CASE WHEN {' AND '.join(parts)} THEN true ELSE false END"


def values(which: Selection, *more: More) -> tuple[Value, ...]:
    """The parameters of `wanted`."""
    said: dict[More, Value] = {"reason": which.reason, "failed_for": which.older_than, "dead_for": which.older_than}
    return (which.kind, which.queue, which.tag, *(said[name] for name in more))


def taken(n: Names, table: str, condition: str, *, keyed: bool = False, still: str = "true") -> str:
    """SQL: CTEs `looked` and `gone`: rows of a table after $1 by id that meet the condition, at most $2, are deleted.

    `gone` has the rows; the order of ids is the order in which they are locked. keyed: they become available, and those that
    do not get their unique keys again stay. still: what must hold of a row `r` that was changed while it was waited for;
    rows of `failed` and `dlq` are not.
    """
    asked = f"""
asked AS MATERIALIZED (
  SELECT r.id, r.extra FROM looked l CROSS JOIN LATERAL (SELECT * FROM {n.s}.{table} r WHERE r.id = l.id LIMIT 1) r
  WHERE l.wanted
),{kept_out(n, "asked", str(CODES[JobState.AVAILABLE]))},"""
    going = f"looked WHERE wanted{' AND id NOT IN (SELECT id FROM kept_out)' if keyed else ''}"
    return f"""
looked AS MATERIALIZED (
  SELECT id, n, wanted FROM (
    SELECT r.id, row_number() OVER (ORDER BY r.id) AS n, {condition} AS wanted
    FROM {n.s}.{table} r WHERE r.id > $1::bigint ORDER BY r.id LIMIT {LOOKED}) l
  WHERE CASE WHEN n = {LOOKED} THEN true ELSE wanted END   -- the last one says where to go on
  LIMIT $2::int
),{asked if keyed else ""}
gone AS (
  DELETE FROM {n.s}.{table} r WHERE r.id = ANY (ARRAY(SELECT id FROM {going})) AND {still} RETURNING r.*
)"""


GONE_ON = f"""(SELECT count(*) FROM gone)::int, (SELECT max(id) FROM looked),
       (SELECT count(*) >= $2::int OR coalesce(bool_or(n = {LOOKED}), false) FROM looked)"""
"""SQL: what `in_batches` wants to hear of `taken`."""


def in_batches(name: str, *statements: Callable[[int, int], Statement], limit: int | None) -> Op[int]:
    """A bulk call: statements until nothing is left or `limit` jobs were changed; the result is how many were.

    statements: for each table one, made of the id to begin after and the most jobs to change. Its row: how many it has
    changed, the id up to which it has looked, whether there may be more.

    Each one commits by itself. When the Op is run again after an error it goes on where it was, with its count.
    """
    done, table, after = 0, 0, _FIRST

    def plan() -> Plan[int]:
        nonlocal done, table, after
        while table < len(statements) and (limit is None or done < limit):
            most = BATCH if limit is None else min(BATCH, limit - done)
            rows = yield statements[table](after, most)
            count, last, more, *_ = rows[0]
            done += count
            table, after = (table, last) if more else (table + 1, _FIRST)
        return done

    return Op(name, plan, safe_to_retry=True)
