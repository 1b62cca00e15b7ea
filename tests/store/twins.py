"""An engine on a server and the model in memory, side by side: at one virtual time, told the same, compared row by row.

The server's clock is ours: in the schema `virtual`, which its sessions look into before pg_catalog, `now()` and its like say
what the session was told last. So leases end, workers fall silent and retention passes within a test of milliseconds, and both
say the same times to the microsecond.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import psycopg
from psycopg.rows import TupleRow

from awa_proto import extra as extras
from awa_proto.errors import UniqueConflict
from awa_proto.job import Attempt, JobRow, JobState
from awa_proto.plan import Op
from awa_proto.schema import migrate
from awa_proto.store import JobFilter, WorkerInfo
from awa_proto.store.canonical.store import CanonicalStore
from awa_proto.store.memory import MemoryStore
from awa_proto.store.queue import QueueStore, lists
from tests.conformance.conftest import EMPTIED
from tests.conformance.session import BlockingSession

T = TypeVar("T")

START = datetime(2026, 1, 1, 12, 20, tzinfo=UTC)
OPTIONS = "-c jit=off -c search_path=virtual,pg_catalog -c virtual.now=2026-01-01T12:20:00Z"
_CLOCKS = """
CREATE SCHEMA virtual;
""" + "".join(
    f"""
CREATE FUNCTION virtual.{name}() RETURNS timestamptz LANGUAGE sql {kind}
AS $$ SELECT pg_catalog.current_setting('virtual.now')::timestamptz $$;
"""
    for name, kind in (
        ("now", "STABLE"), ("statement_timestamp", "STABLE"), ("transaction_timestamp", "STABLE"),
        ("clock_timestamp", "VOLATILE"),
    )
)  # fmt: skip
NARROW = {"_FEW": 2, "_MANY": 4, "_MANY_DECODED": 3, "PAGE": 2, "_LEAST": 1, "_FREE": 1}
"""Bounds of the statements of lists by which each looks at very few rows."""


def connected(dsn: str) -> psycopg.Connection[TupleRow]:
    """A connection by our clock."""
    return psycopg.connect(dsn, autocommit=True, options=OPTIONS, cursor_factory=psycopg.RawCursor)


def migrated(dsn: str) -> None:
    """A new schema whose tables go by our clock too."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_CLOCKS.encode())
    with connected(dsn) as connection:
        BlockingSession(connection).perform_atomically(migrate())


class Twins:
    """Both. ids, callbacks: of jobs, and of theirs, of the engine -> of the model. workers: two, by their numbers in each."""

    def __init__(self, dsn: str, engine: str) -> None:
        self._connection = connected(dsn)
        self._connection.execute(EMPTIED.encode())
        self._session = BlockingSession(self._connection)
        self.now = START
        self.is_ring = engine == "queue"
        self.store = (QueueStore if self.is_ring else CanonicalStore)(random=random.random)
        self.memory = MemoryStore(lambda: self.now, random.random)
        self.ids: dict[int, int] = {}
        self.callbacks: dict[str, str] = {}
        self.pass_time(0.0)
        self.workers = [self.register(), self.register()]

    def close(self) -> None:
        self._connection.close()

    # time

    def pass_time(self, seconds: float) -> None:
        """And a little more, so that no two steps happen at once."""
        self.now += timedelta(seconds=seconds, milliseconds=1)
        self._connection.execute("SELECT set_config('virtual.now', $1, false)", (self.now.isoformat(),))

    # running

    def real(self, op: Op[T]) -> T:
        """What the engine answers."""
        return self._session.perform_atomically(op) if op.atomic else self._session.perform(op)

    def model(self, op: Op[T]) -> T:
        """What the model answers."""
        plan = op.start()
        try:
            next(plan)
        except StopIteration as done:
            result: T = done.value
            return result
        raise AssertionError("the model has no statements")

    def both(self, op: Callable[[Any], Op[Any]]) -> tuple[Any, Any] | None:
        """What both answer; None when both meet the same conflict."""
        answers: list[Any] = []
        for run, store in ((self.real, self.store), (self.model, self.memory)):
            try:
                answers.append([run(op(store))])
            except UniqueConflict as conflict:
                id = conflict.job_id
                answers.append((id if id is None or store is self.memory else self.ids[id], conflict.index))
        real, model = answers
        if isinstance(real, tuple) or isinstance(model, tuple):
            assert real == model
            return None
        return real[0], model[0]

    def agree(self, op: Callable[[Any], Op[Any]]) -> Any:
        """What both answer, which is the same."""
        both = self.both(op)
        if both is None:
            return None
        assert both[0] == both[1]
        return both[1]

    def on_job(self, id: int, call: Callable[[Any, int], Op[Any]]) -> tuple[Any, Any] | None:
        """What both answer of one job, by its number in the engine."""
        return self.both(lambda store: call(store, id if store is self.store else self.ids[id]))

    # workers

    def register(self) -> tuple[int, int]:
        """Another worker."""
        info = WorkerInfo(("a", "b"), hostname="twin", pid=1)
        real, model = self.both(lambda store: store.register(info)) or (None, None)
        assert real is not None
        assert model is not None
        assert (real.queues, real.now) == (model.queues, model.now)
        return real.instance, model.instance

    def by_worker(self, number: int, op: Callable[[Any, int], Op[Any]]) -> tuple[Any, Any]:
        """What both answer one of the workers."""
        real, model = self.workers[number]
        both = self.both(lambda store: op(store, real if store is self.store else model))
        assert both is not None
        return both

    # jobs

    def pick(self, number: int) -> int | None:
        """The id in the engine of a job picked by number."""
        return list(self.ids)[number % len(self.ids)] if self.ids else None

    def real_id(self, model: int) -> int:
        return next(real for real, id in self.ids.items() if id == model)

    def pair(self, made: Sequence[JobRow], known: Iterable[int]) -> None:
        """Jobs that the engine has and had not before, with those that the model has made: in the order of their ids."""
        before = set(known)
        reals = [row.id for row in self.rows() if row.id not in before]
        self.ids |= {real: row.id for real, row in zip(sorted(reals), made, strict=True)}

    def rows(self) -> list[JobRow]:
        """Every job of the engine, newest id first, by the statements that users send."""
        narrow = {name: getattr(lists, name) for name in NARROW}
        for name in NARROW:
            setattr(lists, name, 1000)
        try:
            page = self.real(self.store.list_jobs(JobFilter(limit=1000)))
        finally:
            for name, value in narrow.items():
                setattr(lists, name, value)
        assert page.next is None
        return list(page)

    def agree_on_rows(self) -> None:
        """Every job is the same on both, in everything."""
        real = sorted(self.rows(), key=lambda row: self.ids[row.id])
        model = list(self.model(self.memory.list_jobs(JobFilter(limit=1000))))[::-1]
        assert [self.ids[row.id] for row in real] == [row.id for row in model]
        for ours, theirs in zip(real, model, strict=True):
            self.same(ours, theirs)

    def same(self, real: JobRow | None, model: JobRow | None) -> None:
        """A row of the engine is as one of the model."""
        if real is None or model is None:
            assert real is None
            assert model is None
            return
        ours, theirs = self.seen(real), self.seen(model, model.id)
        differ = {name: (ours[name], theirs[name]) for name in ours if ours[name] != theirs[name]}
        assert not differ, f"job {model.id} is {model.state}; the engine and the model say: {differ}"

    def seen(self, row: JobRow | None, id: int | None = None) -> Any:
        """A row as both must agree on it; leases are numbered as each likes. id: as the model calls the job."""
        if row is None:
            return None
        return {
            "id": self.ids[row.id] if id is None else id,
            "kind": row.kind, "queue": row.queue, "args": row.args, "state": row.state, "priority": row.priority,
            "attempt": row.attempt, "max_attempts": row.max_attempts, "run_at": row.run_at, "created_at": row.created_at,
            "attempted_at": row.attempted_at, "deadline_at": row.deadline_at, "finalized_at": row.finalized_at,
            "errors": row.errors, "metadata": row.metadata, "tags": row.tags, "progress": row.progress,
            "dlq_reason": row.dlq_reason, "dlq_at": row.dlq_at, "unique_key": row.unique_key,
            "was_claimed": row.run_lease > 0, "output": row.output_json,
            "callback": self.callbacks.get(row.callback_id or "", row.callback_id),
            "callback_timeout_at": row.callback_timeout_at,
        }  # fmt: skip

    def told(self, a: Attempt, id: int | None = None) -> Any:
        """An attempt as both must agree on it."""
        number = self.ids[a.id] if id is None else id
        extra = extras.decode(a.extra)
        return (number, a.kind, a.queue, a.priority, a.args, a.attempt, a.max_attempts, a.run_at, a.created_at, extra)

    def paused(self) -> set[str]:
        return {queue for queue, settings in self.memory._tables.settings.items() if settings.paused}

    def waiting(self, queue: str) -> dict[int, JobRow]:
        """The available jobs of a queue, by their ids in the model."""
        return {job.id: job for job in self.memory.rows if job.state is JobState.AVAILABLE and job.queue == queue}
