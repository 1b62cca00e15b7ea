"""Hot statements of canonical storage read their tables by the indexes they were written for; see test_golden_plans.py."""

import random
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from awa_proto.job import Attempt, JobState
from awa_proto.outcome import DeadLetter, Transition
from awa_proto.plan import Statement
from awa_proto.schema import script
from awa_proto.store import Demand, Ended, NewJob, Ring
from awa_proto.store.canonical import people, rescue
from awa_proto.store.canonical.store import CanonicalStore
from awa_proto.store.queue import QueueStore, lists, takeover
from awa_proto.store.queue.names import Names
from awa_proto.store.queue.reads import JOB
from tests.conformance.session import connect
from tests.store.test_golden_plans import JIT_ABOVE_COST, NOW, READS, Prepared, _below, _first, _nodes

pytestmark = pytest.mark.slow

STORE = CanonicalStore(random=random.random)
NAMES = Names("awa", canonical=True)
ATTEMPT = Attempt(-1, 50, 0, 50, 5, "q1", 2, "k", "{}", 1, 25, NOW, NOW, None)
FILL = """
INSERT INTO awa.jobs_hot (id, state, queue, priority, kind, args, run_lease, finalized_at, run_at)
SELECT g, CASE WHEN g > 400000 THEN 1 WHEN g % 1000 = 0 THEN 2 WHEN g % 100 = 0 THEN 5 ELSE 3 END, 'q' || g % 3, 1 + g % 4, 'k',
       '{}', 50, now(), now() - g * interval '1 ms'
FROM generate_series(1, 1000000) g;
INSERT INTO awa.scheduled_jobs
  (id, state, priority, stripe, attempt, max_attempts, run_lease, run_at, created_at, queue, kind, args)
SELECT 2000000 + g, g % 2 * 4, 2, 0, 1, 25, 0, now() + g * interval '1 s', now(), 'q' || g % 3, 'k', '{}'
FROM generate_series(1, 1000000) g;
"""


def _first_of(plan: Any) -> Statement:
    """What a plan asks first."""
    step = next(plan)
    assert isinstance(step, Statement)
    return step


def _close(to: JobState, dead: DeadLetter | None = None, *, flushed: bool = False) -> Statement:
    return _first(STORE.finalize([Ended(ATTEMPT, Transition(to, 1, NOW, NOW, dead_letter=dead), flushed=flushed)], 7))


KEYS = {"jobs_hot_pkey", "scheduled_jobs_pkey"}
CLOSE = {"jobs_hot_pkey", "scheduled_jobs_pkey", "canonical_left_job"}
OPEN = ("find ", "unknown")
"""Names of statements that may sort what runs, of which there is little."""
RUNNING = {"jobs_hot_state", "attempts_pkey", "callbacks_pkey", "instances_pkey"}
HOT: dict[str, tuple[Statement, set[str]]] = {
    "insert one": (_first(STORE.insert([NewJob("k", "q", "{}")])), set()),
    "insert deferred": (_first(STORE.insert([NewJob("k", "q", "{}", run_at=NOW)] * 3)), set()),
    "claim": (
        _first(STORE.claim(1, Ring(0), [Demand("q1", 50), Demand("q2", 50), Demand("none", 50, aging=0.0)])),
        {"jobs_hot_claim", "jobs_hot_pkey"},
    ),
    **{
        f"close as {to}": (_close(to), CLOSE)
        for to in (
            JobState.COMPLETED,
            JobState.FAILED,
            JobState.CANCELLED,
            JobState.AVAILABLE,
            JobState.SCHEDULED,
            JobState.RETRYABLE,
        )
    },
    "close as a dead letter": (_close(JobState.FAILED, DeadLetter.TERMINAL), CLOSE | {"canonical_left_old"}),
    "park": (_close(JobState.WAITING_EXTERNAL), CLOSE | {"callbacks_pkey"}),
    "rescue": (_close(JobState.RETRYABLE, flushed=True), CLOSE | {"callbacks_pkey", "attempts_pkey"}),
    "promote": (_first(STORE.promote(500)), {"scheduled_jobs_due", "scheduled_jobs_pkey"}),
    "promote from a moment on": (_first(STORE.promote(500, NOW)), {"scheduled_jobs_due", "scheduled_jobs_pkey"}),
    "find stale": (Statement("stale", rescue.find_sql(NAMES, overdue=False), (30.0, 0, 500)), RUNNING),
    "find overdue": (
        Statement("overdue", rescue.find_sql(NAMES, overdue=True), (2.0, 0, 500)),
        RUNNING - {"instances_pkey"},
    ),
    "unknown": (Statement("unknown", rescue._unknown_sql(NAMES), (1, [50])), RUNNING - {"instances_pkey"}),
    "whether there is anything to take over": (
        _first(QueueStore(random=random.random).survey(["q1", "none"])),
        {"jobs_hot_pkey", "scheduled_jobs_pkey", "jobs_hot_claim", "scheduled_jobs_queue"},
    ),
    "take over what is not due": (
        Statement("takeover", takeover._sql(Names("awa")), (["q1", "none"], 500)),
        {"scheduled_jobs_queue", "scheduled_jobs_pkey", "canonical_left_old"},
    ),
    "cancel": (_first_of(people.cancelling(NAMES, 50, 7)), KEYS | {"attempts_pkey", "callbacks_pkey"}),
    "move": (_first_of(people.moving(NAMES, 50, "q", None)), KEYS),
    "retry": (_first_of(people.retrying(NAMES, 50, JOB)), {"jobs_hot_pkey", "canonical_left_old"}),
    "take back": (_first_of(people.retrying(Names("awa"), 50, JOB)), {"jobs_hot_pkey", "canonical_left_old"}),
}
LISTS: dict[str, tuple[Statement, set[str]]] = {
    f"list {state or 'all'}, {looks}": (
        Statement(
            "list", lists.list_sql(NAMES, state, looks, state is None), (2**62, lists.PAGE, None, None, None, None)
        ),
        set(),
    )
    for state in (None, JobState.AVAILABLE, JobState.COMPLETED, JobState.RUNNING, JobState.SCHEDULED, JobState.FAILED)
    for looks in (lists._FEW, lists._MANY)
}
BIG = {"jobs_hot", "scheduled_jobs"}


def _index(node: dict[str, Any]) -> str:
    """The index a node reads by; one that is asked for a state and ids is as good as the primary key."""
    name: str = node.get("Index Name", "")
    return "jobs_hot_pkey" if name == "jobs_hot_state" and " id = " in node["Index Cond"].replace("(", " ") else name


def _by(node: dict[str, Any], keys: set[str]) -> bool:
    """Whether a node reads by one of the indexes, itself or through a bitmap."""
    return any(_index(below) in keys for below in _nodes(node))


def complaints(name: str, plan: dict[str, Any], indexes: set[str]) -> Iterator[str]:
    """Only the intended indexes, no sort over a table but of what keys or a LIMIT chose, nothing that would be compiled."""
    used: set[str] = set()
    for node in _nodes(plan):
        used.add(_index(node))
        relation = node.get("Relation Name", "")
        by_key = any(_index(below) in (KEYS | RUNNING if name.startswith(OPEN) else KEYS) for below in _nodes(node))
        if (
            relation in BIG
            and node["Node Type"] not in READS
            and not (node["Node Type"] == "Bitmap Heap Scan" and by_key)
        ):
            yield f"{name}: {node['Node Type']} of {relation}"
        if node["Node Type"] == "Sort":
            keys = KEYS | RUNNING if name.startswith(OPEN) else KEYS
            read = {below.get("Relation Name", "") for below in _below(node) if not _by(below, keys)}
            if read & BIG:
                yield f"{name}: sorts {read & BIG}"
    if indexes and used - {"", "queues_pkey"} != indexes:
        yield f"{name}: reads by {used}, not {indexes}"
    if plan["Total Cost"] >= JIT_ABOVE_COST:
        yield f"{name}: costs {plan['Total Cost']}"


@pytest.fixture(scope="module")
def million(module_database: str) -> Iterator[tuple[str, Prepared]]:
    """A full database, and statements that were prepared while it was empty."""
    with connect(module_database) as connection:
        connection.execute(script().encode())
        for table in BIG:
            connection.execute(f"ALTER TABLE awa.{table} SET (autovacuum_enabled = off)".encode())
        prepared = Prepared(connection, HOT | LISTS)
        for statement in FILL.split(";\n"):
            if statement.strip():
                connection.execute(statement.encode())
        yield module_database, prepared


@pytest.mark.timeout(180)
def test_a_plan_made_while_everything_was_empty_is_right_when_it_is_full(million: tuple[str, Prepared]) -> None:
    _, prepared = million
    wrong = [each for name, (_, indexes) in HOT.items() for each in complaints(name, prepared.generic(name), indexes)]
    assert not wrong


@pytest.mark.timeout(180)
def test_plans_are_right_on_a_million_rows_whether_they_were_analysed_or_not(million: tuple[str, Prepared]) -> None:
    wrong = _wrong(million[0], HOT)
    assert not wrong
    with connect(million[0]) as connection:
        connection.execute(b"ANALYZE awa.jobs_hot, awa.scheduled_jobs")
    wrong = _wrong(million[0], HOT | LISTS)
    assert not wrong


def test_jobs_that_are_parked_by_one_flush_are_looked_up_each_by_itself(million: tuple[str, Prepared]) -> None:
    """By the plan that is kept, for which the planner takes the arrays for ten rows: nothing is gone through for each."""
    ids = range(1000, 400001, 1000)
    parks = [
        Ended(
            ATTEMPT._replace(id=id),
            Transition(JobState.WAITING_EXTERNAL, 1, NOW, callback=str(UUID(int=id))),
            flushed=True,
        )
        for id in ids
    ]
    statement = _first(STORE.finalize(parks, 7))
    with connect(million[0]) as connection:
        connection.execute(b"SET plan_cache_mode = force_generic_plan")
        connection.execute(f"PREPARE park AS {statement.sql}".encode())
        connection.execute(b"BEGIN")
        for id in ids:
            connection.execute(
                b"INSERT INTO awa.callbacks (job_id, run_lease, callback_id, seg, claim_id, idx, timeout_at, queue)"
                b" VALUES ($1, 50, $2, -1, 50, 0, now(), 'q')",
                (id, UUID(int=id)),
            )
        given = ", ".join(map(_literal, statement.params))
        explain = f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) EXECUTE park ({given})"
        ((explained,),) = connection.execute(explain.encode()).fetchall()
        ((parked,),) = connection.execute(b"SELECT count(*) FROM awa.jobs_hot WHERE state = 7").fetchall()
        connection.execute(b"ROLLBACK")
    assert parked == len(ids)
    through_all = [node.get("Join Filter") for node in _nodes(explained[0]["Plan"]) if node.get("Join Type") == "Semi"]
    assert not through_all


def _literal(value: Any) -> str:
    """A parameter, as EXECUTE takes it."""
    if isinstance(value, list):
        return f"""'{{{",".join("NULL" if each is None else str(each) for each in value)}}}'"""
    return str(value)


def _wrong(dsn: str, statements: dict[str, tuple[Statement, set[str]]]) -> list[str]:
    """What is wrong with plans made now: custom ones, and of hot statements generic ones."""
    found: list[str] = []
    with connect(dsn) as connection:
        fresh = Prepared(connection, statements)
        for name, (_, indexes) in statements.items():
            found += complaints(f"{name}, custom", fresh.custom(name), indexes)
            if name in HOT:
                found += complaints(f"{name}, generic", fresh.generic(name), indexes)
    return found
