"""Every hot statement reads the logs by the indexes it was written for, however little the planner knows.

A million ready and a million deferred rows; statements prepared while the tables were empty and kept, on tables that were
never analysed, on analysed ones, and on ones truncated after that. Generic plans and custom ones. No scan of a whole log, no
sort over one, and no cost at which the plan would be compiled first (storage-review.md: H6, M10).
"""

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from psycopg.rows import TupleRow

from awa_proto.extra import with_unique
from awa_proto.job import Attempt, JobState
from awa_proto.outcome import DeadLetter, Transition
from awa_proto.plan import Statement
from awa_proto.schema import script
from awa_proto.schema.ring import MOST
from awa_proto.store import Demand, Ended, NewJob, Selection, Unique
from awa_proto.store.queue import QueueStore, bulk, claim, enqueue, lists, people, probe, prune, rescue, sweep, unique
from awa_proto.store.queue.names import Names
from awa_proto.unique import mask
from tests.conformance.session import connect

pytestmark = pytest.mark.slow

JIT_ABOVE_COST = 100_000
STORE = QueueStore(random=random.random)
NAMES = Names("awa")
NOW = datetime.now(UTC)
ATTEMPT = Attempt(0, 5, 0, 5, 50, "q1", 2, "k", "{}", 1, 25, NOW, NOW, None)

FILL = """
INSERT INTO awa.ready (seg, id, queue, priority, kind, args)
SELECT g % 2, g, 'q' || g % 3, 1 + g % 4, 'k', '{}' FROM generate_series(1, 1000000) g;
INSERT INTO awa.deferred
  (id, state, priority, stripe, attempt, max_attempts, run_lease, run_at, created_at, queue, kind, args)
SELECT 2000000 + g, g % 2 * 4, 2, 0, 1, 25, 0, now() + g * interval '1 s', now(), 'q', 'k', '{}'
FROM generate_series(1, 1000000) g;
INSERT INTO awa.failed
  (id, state, priority, stripe, attempt, max_attempts, run_lease, run_at, created_at, finalized_at, queue, kind, args)
SELECT 4000000 + g, 5 + g % 2, 2, 0, 1, 25, 0, now(), now(), now(), 'q', 'k', '{}' FROM generate_series(1, 100000) g;
INSERT INTO awa.dlq
  (id, state, priority, stripe, attempt, max_attempts, run_lease, run_at, created_at, finalized_at, queue, kind, args,
   dlq_reason)
SELECT 5000000 + g, 5, 2, 0, 1, 25, 0, now(), now(), now(), 'q', 'k', '{}', 'moved' FROM generate_series(1, 100000) g;
INSERT INTO awa.claims (seg, claim_id, queue, priority, stripe, turn, instance, lease, upto, pos_xid, pos_id, job_ids)
SELECT g % 2, g, 'q' || g % 3, 1 + g % 4, 0, g, 1, g, '3:3:', '0', 0, ARRAY[g] FROM generate_series(1, 20000) g;
INSERT INTO awa.closures (seg, outcome, n, claim_id, flush, idx)
SELECT g % 2, 3, 0, g, g, '{0}' FROM generate_series(1, 19000) g;
INSERT INTO awa.unique_keys (key, job_id, states)
SELECT decode(md5(g::text), 'hex'), g, 31 FROM generate_series(1, 300000) g ON CONFLICT DO NOTHING;
"""


def _first(op: Any) -> Statement:
    """What the plan of an Op asks first."""
    step = next(op.start())
    assert isinstance(step, Statement)
    return step


def _close(to: JobState, dead_letter: DeadLetter | None = None, attempt: Attempt = ATTEMPT, **more: Any) -> Statement:
    transition = Transition(to, 1, NOW, NOW, dead_letter=dead_letter)
    return _first(STORE.finalize([Ended(attempt, transition)._replace(**more)], 7))


UNIQUE = Unique(b"k" * 16, mask((JobState.RETRYABLE, JobState.SCHEDULED, JobState.AVAILABLE)))
KEYED = NewJob("k", "q", "{}", extra=with_unique(None, *UNIQUE), unique=UNIQUE)
RETURNING = ATTEMPT._replace(extra=KEYED.extra)


def _demands(*queues: str) -> list[Demand]:
    return [Demand(queue, 50) for queue in queues]


def _claim(segments: tuple[int, ...]) -> Statement:
    return Statement(
        f"claim.{segments}",
        claim.sql(NAMES, segments),
        (["q1", "q2", "none"], [0, 0, 0], [50, 50, 50], [60.0, 60.0, 0.0], [None, None, None], 1, False, [False] * 3),
    )


CLAIM = {"ready_lane", "claims_lane"}
CLOSE = {"claims_claim", "closures_claim"}
BESIDE = {"deferred_pkey", "failed_pkey", "dlq_pkey", "waiting_pkey", "jobs_hot_pkey", "scheduled_jobs_pkey"}
FATE = {"ready_job", "claims_lane", "closures_claim", "deleted_pkey"}
HOT: dict[str, tuple[Statement, set[str]]] = {
    "insert one": (_first(STORE.insert([NewJob("k", "q", "{}")])), set()),
    "insert many": (_first(STORE.insert([NewJob("k", "q", "{}")] * 3)), set()),
    "insert mixed": (_first(STORE.insert([NewJob("k", "q", "{}"), NewJob("l", "r", "{}", 1)])), set()),
    "insert deferred": (_first(STORE.insert([NewJob("k", "q", "{}", run_at=NOW)] * 3)), set()),
    "insert one with a key": (_first(STORE.insert([KEYED])), set()),
    "insert many with keys": (_first(STORE.insert([KEYED, NewJob("k", "q", "{}")])), set()),
    "win keys for a copy": (Statement("keys", enqueue._won_ids_sql(NAMES), ([UNIQUE.key], [1])), set()),
    **{
        f"close as {to} with a key": (_close(to, attempt=RETURNING), CLOSE | {"ready_job", "failed_pkey"})
        for to in (JobState.RETRYABLE, JobState.AVAILABLE)
    },
    "close with unique follow-ups": (_close(JobState.COMPLETED, follow_ups=(KEYED,)), CLOSE),
    "close as retryable with unique follow-ups": (
        _close(JobState.RETRYABLE, attempt=RETURNING, follow_ups=(KEYED,)),
        CLOSE | {"ready_job", "failed_pkey"},
    ),
    "who has a key": (_first(STORE.holder(b"k")), {"unique_keys_pkey"}),
    "forget keys": (_first(STORE.forget_keys(1000)), {"unique_keys_pkey"}),
    "who keeps a failed job out": (
        Statement("rival", unique._rival_sql(NAMES, ("failed", "dlq")), (50,)),
        {"failed_pkey", "dlq_pkey", "unique_keys_pkey"},
    ),
    "claim from one segment": (_claim((0,)), CLAIM),
    "claim from two segments": (_claim((0, 1)), CLAIM),
    "claim from the largest ring": (_claim(tuple(range(MOST))), CLAIM),
    **{f"close as {to}": (_close(to), CLOSE | {"ready_job"}) for to in (JobState.RETRYABLE, JobState.SCHEDULED)},
    **{f"close as {to}": (_close(to), CLOSE | {"ready_job"}) for to in (JobState.FAILED, JobState.AVAILABLE)},
    "close as completed": (_close(JobState.COMPLETED), CLOSE),
    "close with an output": (_close(JobState.COMPLETED, output="1"), CLOSE),
    "close with follow-ups": (_close(JobState.COMPLETED, follow_ups=(NewJob("k", "q", "{}"),)), CLOSE),
    "close with progress": (
        _close(JobState.RETRYABLE, flushed=True),
        CLOSE | {"ready_job", "attempts_pkey", "callbacks_pkey"},
    ),
    "close as a dead letter": (_close(JobState.FAILED, DeadLetter.TERMINAL), CLOSE | {"ready_job"}),
    "promote": (_first(STORE.promote(500)), {"deferred_due", "deferred_pkey"}),
    "promote from a moment on": (_first(STORE.promote(500, NOW)), {"deferred_due", "deferred_pkey"}),
    "get_job": (_first(STORE.get_job(50)), FATE | BESIDE | {"attempts_pkey", "callbacks_pkey"}),
    "cancel what is deferred": (_first(STORE.cancel(50)), {"deferred_pkey"}),
    "move what is deferred": (_first(STORE.move(50, queue="q")), {"deferred_pkey"}),
    "retry": (_first(STORE.retry(50)), {"failed_pkey", "dlq_pkey"}),
    "locate": (Statement("locate", people._locate_sql(NAMES), (50,)), FATE | BESIDE),
    "cancel what is available": (
        Statement("take", people._take_sql(NAMES, 0, people._into_failed(NAMES)), (50,)),
        {"ready_job", "claims_lane"},
    ),
    "move what is available": (
        Statement("move", people._take_sql(NAMES, 0, people._into_lane(NAMES)), (50, "q", None)),
        {"ready_job", "claims_lane"},
    ),
}
WALKED = (None, JobState.AVAILABLE, JobState.COMPLETED, JobState.SCHEDULED, JobState.FAILED)
NO_CONDITIONS = (None, None, None, None)
LISTS: dict[str, tuple[Statement, set[str]]] = {
    f"list {state or 'all'}, {looks}": (
        Statement(
            "list",
            lists.list_sql(NAMES, state, looks),
            (2**62, lists.PAGE, *NO_CONDITIONS, *([list(range(1000))] if state is JobState.COMPLETED else [])),
        ),
        set(),
    )
    for state in WALKED
    for looks in (lists._FEW, lists._MANY)
}
IN_ONE_SEGMENT = (2**62, 1001, *NO_CONDITIONS)
PEOPLE: dict[str, tuple[Statement, set[str]]] = {
    "list free": (Statement("free", lists._free_sql(NAMES, 0), IN_ONE_SEGMENT), set()),
    "list running": (Statement("running", lists._running_sql(NAMES, 0), IN_ONE_SEGMENT), set()),
    "list running ids": (Statement("running_ids", lists._running_ids_sql(NAMES, 0), (2**62,)), set()),
    "list_dlq": (_first(STORE.list_dlq(Selection(), limit=1000)), set()),
    "list_dlq of a queue": (_first(STORE.list_dlq(Selection(queue="q"), limit=1000)), set()),
    "probe a sealed segment": (Statement("probe", probe.sealed_sql(NAMES, 0)), set()),
    "may it be pruned": (Statement("check", prune.check_sql(NAMES, 0), (1.0,)), set()),
    "what would be carried": (Statement("backlog", prune.backlog_sql(NAMES, 0)), set()),
    "carry": (Statement("carry", prune.carry_sql(NAMES, 0)), set()),
    "sweep": (Statement("sweep", sweep.sweep_sql(NAMES, 0), (5000,)), set()),
    "find stale": (Statement("stale", rescue.find_sql(NAMES, 0, overdue=False), (30.0, 0, -1, 500)), set()),
    "find overdue": (Statement("overdue", rescue.find_sql(NAMES, 0, overdue=True), (2.0, 0, -1, 500)), set()),
    "unknown": (Statement("unknown", rescue._unknown_sql(NAMES, 0), (1, 19000, [19001])), set()),
    "drain": (Statement("drain", bulk._drain_sql(NAMES, 0), ("q1", 2, 0, 1)), set()),
    "drain deferred": (_first(STORE.drain_queue("q")), set()),
    **{
        call.__name__: (_first(call(Selection(kind="k"))), set())
        for call in (STORE.retry_failed, STORE.discard_failed, STORE.move_failed_to_dlq, STORE.retry_all_from_dlq)
    },
    "prune_failed": (_first(STORE.prune_failed(1.0, 1000)), set()),
    "prune_attempts": (_first(STORE.prune_attempts(1000)), set()),
    "prune_dlq": (_first(STORE.prune_dlq(1.0, 1000)), set()),
}
"""What people ask for and a leader does now and then: it may sort what it has gathered."""
UNCOMPILED = {"what would be carried", "carry"}
"""Their transaction has turned JIT off."""


class Prepared:
    """Statements prepared once on one connection; their plans are asked for again and again."""

    def __init__(
        self, connection: psycopg.Connection[TupleRow], statements: dict[str, tuple[Statement, set[str]]]
    ) -> None:
        self._connection = connection
        self._names = {name: f"s{number}" for number, name in enumerate(statements)}
        self._statements = statements
        connection.execute(b"SET plan_cache_mode = force_generic_plan")
        for name, (statement, _) in statements.items():
            connection.execute(f"PREPARE {self._names[name]} AS {statement.sql}".encode())
            self.generic(name)

    def generic(self, name: str) -> dict[str, Any]:
        """The plan that is kept, whatever the parameters are."""
        nulls = ", ".join(["NULL"] * len(self._statements[name][0].params))
        return _plan(self._connection, f"EXECUTE {self._names[name]}{f' ({nulls})' if nulls else ''}", None)

    def custom(self, name: str) -> dict[str, Any]:
        """The plan for these very parameters."""
        statement, _ = self._statements[name]
        return _plan(self._connection, statement.sql, statement.params)


def _plan(connection: psycopg.Connection[TupleRow], sql: str, params: Any) -> dict[str, Any]:
    row = connection.execute(f"EXPLAIN (FORMAT JSON) {sql}".encode(), params).fetchone()
    assert row is not None
    plan: dict[str, Any] = row[0][0]["Plan"]
    return plan


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)


def _below(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The nodes whose whole output a node has to read."""
    for child in node.get("Plans", ()):
        if child["Node Type"] not in {"Limit", "ModifyTable"} and child.get("Parent Relationship") != "InitPlan":
            yield child
            yield from _below(child)


def _base(name: str) -> str:
    """`ready_lane` of `ready_3_lane`, `ready` of `ready_3`."""
    return "_".join(part for part in name.split("_") if not part.isdigit())


ANALYZED = b"ANALYZE awa.deferred, awa.failed, awa.dlq, awa.unique_keys, " + b", ".join(
    b"awa.%s_%d" % (log, segment) for log in (b"ready", b"claims", b"closures") for segment in (0, 1)
)
LOGS = {"ready", "claims", "closures"}
BIG = LOGS | {"deferred", "failed", "dlq", "unique_keys"}
READS = {"Index Scan", "Index Only Scan", "Tid Scan", "ModifyTable"}
KEYS = {"closures_claim", "ready_job", "deferred_pkey", "failed_pkey", "dlq_pkey", "unique_keys_pkey"}
"""A bitmap over one of these reads the rows of one claim or of named jobs: a handful, whatever the table holds."""


def complaints(name: str, plan: dict[str, Any], indexes: set[str], *, may_sort: bool = False) -> Iterator[str]:
    """Only the intended indexes, no sort over a log, nothing that would be compiled."""
    used: set[str] = set()
    for node in _nodes(plan):
        used.add(_base(node.get("Index Name", "")))
        relation = _base(node.get("Relation Name", ""))
        keys = KEYS | {"claims_lane", "claims_claim"} if may_sort else KEYS
        by_key = any(_base(below.get("Index Name", "")) in keys for below in _nodes(node))
        if (
            relation in BIG
            and node["Node Type"] not in READS
            and not (node["Node Type"] == "Bitmap Heap Scan" and by_key)
        ):
            yield f"{name}: {node['Node Type']} of {node['Relation Name']}"
        if node["Node Type"] == "Sort" and not may_sort:
            read = {_base(below.get("Relation Name", "")) for below in _below(node)}
            if read & BIG - {"closures"}:
                yield f"{name}: sorts {read & BIG}"
    if indexes and used - {"", "queues_pkey"} != indexes:
        yield f"{name}: reads by {used}, not {indexes}"
    if plan["Total Cost"] >= JIT_ABOVE_COST and name.partition(",")[0] not in UNCOMPILED:
        yield f"{name}: costs {plan['Total Cost']}"


@pytest.fixture(scope="module")
def million(module_database: str) -> Iterator[tuple[str, Prepared]]:
    """A full database, and statements that were prepared while it was empty."""
    with connect(module_database) as connection:
        connection.execute(script(segments=MOST).encode())
        for table in ("deferred", "failed", "dlq", "unique_keys"):
            connection.execute(f"ALTER TABLE awa.{table} SET (autovacuum_enabled = off)".encode())
        prepared = Prepared(connection, HOT)
        connection.execute(b"SELECT awa.unique_blocks(1, 31::smallint)")
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
def test_plans_are_right_on_a_million_rows_nobody_analysed(million: tuple[str, Prepared]) -> None:
    """All but lists of failed jobs and dead letters: ordinary tables, which autovacuum analyses."""
    of_failed = {name for name in LISTS if name.startswith("list failed")}
    people = PEOPLE.keys() - {"list_dlq of a queue"}
    lists = LISTS.keys() - of_failed
    assert not _wrong(million[0], HOT | {name: (PEOPLE | LISTS)[name] for name in people | lists})


@pytest.mark.timeout(180)
def test_plans_are_right_after_an_analyse_and_after_a_truncation(million: tuple[str, Prepared]) -> None:
    dsn, kept = million
    with connect(dsn) as connection:
        connection.execute(ANALYZED)
    assert not _wrong(dsn, HOT | LISTS | PEOPLE)
    assert not [each for name, (_, indexes) in HOT.items() for each in complaints(name, kept.generic(name), indexes)]
    with connect(dsn) as connection:
        connection.execute(b"TRUNCATE awa.ready, awa.claims, awa.closures")
    assert not _wrong(dsn, HOT)


@pytest.mark.timeout(180)
def test_whether_a_key_is_taken_costs_a_few_pages_wherever_its_job_is(million: tuple[str, Prepared]) -> None:
    """By plans that a session made while everything was empty, and by new ones; before and after an analyse."""
    dsn, kept = million
    with connect(dsn) as fresh:
        for connection in (kept._connection, fresh):
            assert (
                max(_pages(connection, id) for id in (7, 1_000_000, 2_000_001, 3_000_000, 4_000_001, 9_000_000)) < 400
            )
        fresh.execute(ANALYZED)
        for connection in (kept._connection, fresh):
            assert (
                max(_pages(connection, id) for id in (7, 1_000_000, 2_000_001, 3_000_000, 4_000_001, 9_000_000)) < 400
            )


def _pages(connection: psycopg.Connection[TupleRow], id: int) -> int:
    """How many pages it reads to learn whether a job keeps others out; not of the catalog, which the first time reads."""
    question = f"SELECT awa.unique_blocks({id}, 31::smallint)".encode()
    connection.execute(question)
    row = connection.execute(b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + question).fetchone()
    assert row is not None
    plan: dict[str, int] = row[0][0]["Plan"]
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


def _wrong(dsn: str, statements: dict[str, tuple[Statement, set[str]]]) -> list[str]:
    """What is wrong with plans made now: custom ones, and of hot statements generic ones."""
    found: list[str] = []
    with connect(dsn) as connection:
        fresh = Prepared(connection, statements)
        for name, (_, indexes) in statements.items():
            found += complaints(f"{name}, custom", fresh.custom(name), indexes, may_sort=name in PEOPLE)
            if name in HOT:
                found += complaints(f"{name}, generic", fresh.generic(name), indexes)
    return found


@pytest.mark.timeout(180)
def test_a_plan_made_after_an_analyse_of_empty_segments_is_right_once_it_is_made_anew(
    million: tuple[str, Prepared],
) -> None:
    """M10: ANALYZE of a whole database (after an upgrade, by a nightly job) reaches the free segments of the ring too.

    A plan made then scans the log when it is full; a claim that took long has the worker run `replan`.
    """
    dsn, _ = million
    names = ("claim from one segment", "claim from two segments")
    with connect(dsn) as connection:
        connection.execute(b"TRUNCATE awa.ready, awa.claims, awa.closures")
        connection.execute(b"ANALYZE awa.ready, awa.claims, awa.closures")
        prepared = Prepared(connection, {name: HOT[name] for name in names})
        assert [each for name in names for each in complaints(name, prepared.generic(name), HOT[name][1])]
        for statement in FILL.split(";\n"):
            if any(f"INTO awa.{log} " in statement for log in LOGS):
                connection.execute(statement.encode())
        ((replan,),) = [list(replanning())]
        connection.execute(replan.sql.encode())
        assert not [each for name in names for each in complaints(name, prepared.generic(name), HOT[name][1])]


def replanning() -> Iterator[Statement]:
    yield _first(STORE.replan())
