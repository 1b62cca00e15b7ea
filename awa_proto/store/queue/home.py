"""Home: where jobs are written that nobody has yet: new ones, follow-ups, what returns from the dead letters.

Statements of queue storage write them to `ready` and `deferred`. Those of canonical storage write them to its own tables while
it takes new jobs, from then on to those of queue storage, too. Which of the two is decided once in a statement, when it
runs, by a sequence: no snapshot hides it, so that also a transaction that began before the switch obeys it.
"""

from __future__ import annotations

from awa_proto.store.queue.names import BODY, Names, body

NEW = body(
    attempt="0",
    run_lease="0",
    run_at="coalesce(run_at, now())",
    created_at="now()",
    args="args::json",
    extra="extra::json",
)
"""SQL: the body of a job as it comes with the parameters of an enqueue."""


def canonical_is_open(n: Names) -> str:
    """SQL: whether canonical storage takes new jobs, as it is now."""
    return f"(pg_sequence_last_value({n.text('engine')}) = 1)"


def taker(n: Names) -> str:
    """SQL: the CTE, with a comma, that `available` and `scheduled` need before them in a statement."""
    return f"\ntaker AS MATERIALIZED (SELECT {canonical_is_open(n)} AS canonical)," if n.canonical else ""


def available(n: Names, name: str, select: str, source: str, *, where: str = "true", returning: str = "id") -> str:
    """SQL: CTE `name`: jobs of `source`, whose columns BODY are `select`, become available. Its columns: `returning`."""

    def insert(into: str, values: str, where: str) -> str:
        return f"""(
  INSERT INTO {n.s}.{into}, id, {BODY})
  SELECT {values}, id, {select} FROM {source} WHERE {where}
  RETURNING {returning}
)"""

    if not n.canonical:
        return f"\n{name} AS {insert('ready (seg', f'(SELECT {n.open_segment})', where)}"
    hot = insert("jobs_hot (state", "1", f"(SELECT canonical FROM taker) AND {where}")
    ready = insert("ready (seg", f"(SELECT {n.open_segment})", f"NOT (SELECT canonical FROM taker) AND {where}")
    both = f"(SELECT * FROM {name}_hot UNION ALL SELECT * FROM {name}_ready)"
    return f"\n{name}_hot AS {hot},\n{name}_ready AS {ready},\n{name} AS {both}"


def scheduled(n: Names, name: str, select: str, source: str, *, where: str = "true", returning: str = "id") -> str:
    """SQL: the same for jobs that are not due."""

    def insert(table: str, where: str) -> str:
        return f"""(
  INSERT INTO {n.s}.{table} (id, state, {BODY})
  SELECT id, 0, {select} FROM {source} WHERE {where}
  RETURNING {returning}
)"""

    if not n.canonical:
        return f"\n{name} AS {insert('deferred', where)}"
    own = insert("scheduled_jobs", f"(SELECT canonical FROM taker) AND {where}")
    other = insert("deferred", f"NOT (SELECT canonical FROM taker) AND {where}")
    both = f"(SELECT * FROM {name}_own UNION ALL SELECT * FROM {name}_other)"
    return f"\n{name}_own AS {own},\n{name}_other AS {other},\n{name} AS {both}"
