"""Whoever uses a callback reads by its id, and so costs the same beside a million jobs that wait as beside none."""

from collections.abc import Iterator
from typing import Any

import pytest

from awa_proto.job import PARKED, JobState
from awa_proto.outcome import DeadLetter, Outcome, Transition
from awa_proto.plan import Statement
from awa_proto.schema import script
from awa_proto.store import Called, Ended, Waits
from awa_proto.store.queue import callbacks, close, parked, people
from awa_proto.store.queue.names import Names
from tests.conformance.session import connect
from tests.store.test_golden_plans import ATTEMPT, JIT_ABOVE_COST, NOW, Prepared, _close, _nodes

NAMES = Names("awa")
ID = "00000000-0000-4000-8000-000000000001"
WAITING = ATTEMPT._replace(segment=PARKED)
READS = {"Index Scan", "Index Only Scan", "Tid Scan", "Bitmap Heap Scan", "Bitmap Index Scan", "ModifyTable"}
FILL = """
INSERT INTO awa.callbacks (job_id, run_lease, callback_id, state, seg, claim_id, idx, timeout_at, queue)
SELECT i, 1, gen_random_uuid(), CASE WHEN i % 1000 = 0 THEN 1 ELSE 2 END, 0, 1, 0, now() + i * interval '1 s', 'q'
FROM generate_series(1, 1000000) i;
INSERT INTO awa.waiting (id, state, priority, stripe, attempt, max_attempts, run_lease, run_at, created_at, finalized_at, queue,
                         kind, args)
SELECT i, CASE WHEN i % 1000 = 0 THEN 3 ELSE 7 END, 2, 0, 1, 25, 1, now(), now(), now(), 'q', 'k', '{}'
FROM generate_series(1, 1000000) i
"""


def _ends(to: JobState, dead_letter: DeadLetter | None = None, *, due: bool = False) -> Statement:
    transition = Transition(to, 1, NOW, NOW, outcome=Outcome.COMPLETED, dead_letter=dead_letter)
    ended = Ended(WAITING, transition, called=Called(ID, (Waits.PARKED,), due))
    return parked.statement(NAMES, [ended], 7, outside=not due)


STATEMENTS: dict[str, tuple[Statement, set[str]]] = {
    "register": (
        Statement("register", callbacks.register_sql(NAMES, 0), (1, 1, 1, 0, "q", 1.0, None, ID)),
        set(),
    ),
    "find": (Statement("find", callbacks.find_sql(NAMES), (ID,)), set()),
    "find the attempt": (Statement("open", callbacks.open_sql(NAMES, 0), ([1], [1], [0])), set()),
    "resume": (Statement("resume", callbacks.resume_sql(NAMES), (ID, "1")), set()),
    "heartbeat": (Statement("heartbeat", callbacks.heartbeat_sql(NAMES), (ID, 1.0)), set()),
    "wait": (Statement("wait", callbacks.wait_sql(NAMES), ([1], [1], [ID], [0.0])), set()),
    "leave": (Statement("leave", callbacks.leave_sql(NAMES), ([1], [1], [ID], [0.0])), set()),
    "expired": (Statement("expired", callbacks.expired_sql(NAMES), (500,)), set()),
    "the next to expire": (Statement("next", callbacks._next_sql(NAMES)), set()),
    "complete": (_ends(JobState.COMPLETED), set()),
    "fail": (_ends(JobState.FAILED), set()),
    "bury": (_ends(JobState.FAILED, DeadLetter.TERMINAL), set()),
    "again": (_ends(JobState.AVAILABLE), set()),
    "rescue": (_ends(JobState.RETRYABLE, due=True), set()),
    "park": (_close(JobState.WAITING_EXTERNAL), set()),
    "rescue of what runs": (_close(JobState.RETRYABLE, flushed=True), set()),
    "cancel": (Statement("cancel", people._cancel_waiting_sql(NAMES), (1,)), set()),
}
BIG = {"callbacks", "waiting"}


def complaints(name: str, plan: dict[str, Any]) -> Iterator[str]:
    """Of the tables that are large nothing but an index is read, and nothing would be compiled."""
    for node in _nodes(plan):
        if node.get("Relation Name") in BIG and node["Node Type"] not in READS:
            yield f"{name}: {node['Node Type']} of {node['Relation Name']}"
    if plan["Total Cost"] >= JIT_ABOVE_COST:
        yield f"{name}: costs {plan['Total Cost']}"


@pytest.fixture(scope="module")
def million(module_database: str) -> Iterator[tuple[str, Prepared]]:
    """A full database, and statements that were prepared while it was empty."""
    with connect(module_database) as connection:
        connection.execute(script().encode())
        prepared = Prepared(connection, STATEMENTS)
        for statement in FILL.split(";\n"):
            connection.execute(statement.encode())
        yield module_database, prepared


def _of_running(to: JobState) -> Statement:
    ended = Ended(ATTEMPT, Transition(to, 1, NOW, NOW), called=Called(ID, (Waits.REGISTERED, Waits.IN_HANDLER)))
    return close.statement(NAMES, 0, to, [ended], 7, outside=True)


ONE_BY_ONE = {
    **{name: STATEMENTS[name][0] for name in ("register", "find", "resume", "complete", "fail", "again")},
    **{f"{to} while it runs": _of_running(to) for to in (JobState.COMPLETED, JobState.FAILED, JobState.AVAILABLE)},
}
"""What is said of one callback, a call each, and finds nothing here."""


@pytest.mark.timeout(180)
def test_a_callback_is_found_by_its_id_among_a_million_whenever_the_plan_was_made(
    million: tuple[str, Prepared],
) -> None:
    dsn, prepared = million
    assert [each for name in STATEMENTS for each in complaints(name, prepared.generic(name))] == []
    with connect(dsn) as connection:
        for analyse in (b"SELECT 1", b"ANALYZE awa.callbacks, awa.waiting"):
            connection.execute(analyse)
            now = Prepared(connection, STATEMENTS)
            assert [each for name in STATEMENTS for each in complaints(name, now.custom(name))] == []
            assert [each for name in STATEMENTS for each in complaints(name, now.generic(name))] == []
            connection.execute(b"DEALLOCATE ALL")


def test_who_uses_one_callback_after_the_other_has_its_statements_planned_once(million: tuple[str, Prepared]) -> None:
    for name, statement in ONE_BY_ONE.items():
        with connect(million[0]) as connection:
            connection.prepare_threshold = 0
            for _ in range(8):  # of which PostgreSQL plans five anew, to see what it would save
                connection.execute(statement.sql.encode(), statement.params)
            connection.prepare_threshold = None
            found = connection.execute(b"SELECT generic_plans FROM pg_prepared_statements").fetchall()
            assert found == [(3,)], name


@pytest.mark.parametrize("name", ["wait", "leave"])
def test_what_a_thousand_handlers_wait_for_is_looked_up_each_by_itself(
    million: tuple[str, Prepared], name: str
) -> None:
    """By the plan that is kept, for which the planner takes the arrays for ten rows: no join of each with each."""
    statement, _ = STATEMENTS[name]
    with connect(million[0]) as connection:
        connection.execute(b"SET plan_cache_mode = force_generic_plan")
        connection.execute(f"PREPARE said AS {statement.sql}".encode())
        found = connection.execute(b"SELECT job_id, callback_id::text FROM awa.callbacks WHERE state = 1").fetchall()
        assert len(found) == 1000
        ids, callback_ids = zip(*found, strict=True)
        for waited in (0.0, 5.0):  # nothing is to be written, and all of it
            given = [list(ids), [1] * 1000, list(callback_ids), [waited] * 1000]
            arrays = ", ".join(f"""'{{{",".join(map(str, each))}}}'""" for each in given)
            connection.execute(b"BEGIN")
            explain = f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) EXECUTE said ({arrays})"
            ((explained,),) = connection.execute(explain.encode()).fetchall()
            connection.execute(b"ROLLBACK")
            in_vain = [node.get("Rows Removed by Join Filter", 0) for node in _nodes(explained[0]["Plan"])]
            assert sum(in_vain) < 10_000, waited
