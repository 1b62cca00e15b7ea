"""An engine and the model in memory, told the same things, give the same answers.

A state machine of Hypothesis runs random operations on both and compares: ids as they were paired at the enqueue, times as
far as both stores were told them, leases as identity. Which jobs a claim takes when it cannot take all is the engine's
choice within the rules (best lane first); the model is made to take the same ones, and the rules are checked.

AWA_MODEL_EXAMPLES: how many runs; 30 unless said otherwise.
"""

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule, run_state_machine_as_test
from typing_extensions import override

from awa_proto import extra as extras
from awa_proto.errors import UniqueConflict
from awa_proto.job import Attempt, JobRow, JobState
from awa_proto.outcome import Transition
from awa_proto.plan import Op
from awa_proto.schema import script
from awa_proto.store import Demand, Ended, JobFilter, NewJob, Selection, Unique, Verdict
from awa_proto.store.canonical.store import CanonicalStore
from awa_proto.store.memory import DEFERRED, MemoryStore
from awa_proto.store.queue import QueueStore, lists
from awa_proto.testing.conformance.kit import OUTCOMES
from awa_proto.unique import DEFAULT_STATES, keeps_out, mask
from tests.conformance.conftest import EMPTIED
from tests.conformance.session import BlockingSession, connect

pytestmark = pytest.mark.slow

T = TypeVar("T")
EXAMPLES = int(os.environ.get("AWA_MODEL_EXAMPLES", "30"))
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
FAR_OFF = datetime(2120, 1, 1, tzinfo=UTC)
QUEUES = st.sampled_from(["a", "b"])
PRIORITIES = st.integers(1, 4)
TIMES = st.one_of(
    st.none(),
    st.integers(0, 50).map(lambda days: LONG_AGO + timedelta(days=days)),
    st.integers(0, 50).map(lambda days: FAR_OFF + timedelta(days=days)),
)
EXTRAS = st.sampled_from([None, extras.encode(metadata={"m": 1}, tags=["t"]), extras.encode(deadline=90.0)])
WAITING_KEYS = st.builds(
    Unique,
    st.sampled_from([b"a" * 16, b"b" * 16, b"c" * 16]),
    st.just(mask({JobState.SCHEDULED, JobState.AVAILABLE, JobState.RETRYABLE})),
)
KEYS = st.one_of(
    st.none(),
    WAITING_KEYS,
    st.builds(
        Unique,
        st.sampled_from([b"a" * 16, b"b" * 16, b"c" * 16]),
        st.sampled_from([mask(DEFAULT_STATES), mask(set(JobState) - {JobState.CANCELLED}), mask({JobState.COMPLETED})]),
    ),
)
DUE = st.integers(0, 50).map(lambda days: LONG_AGO + timedelta(days=days))


class Machine(RuleBasedStateMachine):
    """The same operations on both."""

    dsn = ""
    engine = "queue"
    claimed = Bundle("claimed")

    def __init__(self) -> None:
        super().__init__()
        self._connection = connect(self.dsn)
        self._connection.execute(EMPTIED.encode())
        self._session = BlockingSession(self._connection)
        self._store = (QueueStore if self.engine == "queue" else CanonicalStore)(random=random.random)
        self._memory = MemoryStore(lambda: datetime.now(UTC), random.random)
        self._ids: dict[int, int] = {}  # of the engine -> of the model
        self._flush = 1 << 50

    @override
    def teardown(self) -> None:
        self._connection.close()

    # running

    def _real(self, op: Op[T]) -> T:
        return self._session.perform(op)

    def _model(self, op: Op[T]) -> T:
        plan = op.start()
        try:
            next(plan)
        except StopIteration as done:
            result: T = done.value
            return result
        raise AssertionError("the model has no statements")

    def _id(self, number: int) -> int | None:
        """The id in the engine of a job picked by number."""
        return list(self._ids)[number % len(self._ids)] if self._ids else None

    def _seen(self, row: JobRow | None, id: int | None = None) -> Any:
        """A row as far as both must agree. id: as the model calls the job."""
        if row is None:
            return None
        told = row.run_at if row.run_at.year in {2020, 2120} else None
        errors = [entry["error"] for entry in row.errors]
        marks = (row.attempted_at is None, row.deadline_at is None, row.finalized_at is None, row.run_lease == 0)
        return (
            self._ids[row.id] if id is None else row.id,
            row.kind,
            row.queue,
            row.args,
            row.state,
            row.priority,
            row.attempt,
            row.max_attempts,
            told,
            errors,
            row.metadata,
            row.tags,
            row.dlq_reason,
            row.dlq_at is None,
            row.unique_key,
            marks,
        )

    # enqueue

    @rule(
        jobs=st.lists(
            st.tuples(QUEUES, PRIORITIES, TIMES, EXTRAS, st.sampled_from(["k", "l"]), KEYS), min_size=1, max_size=6
        ),
        copied=st.booleans(),
        skip=st.booleans(),
    )
    def insert(self, jobs: list[Any], copied: bool, skip: bool) -> None:
        new = [
            NewJob(kind, queue, "{}", priority, 9, run_at, extra, None)
            if unique is None
            else NewJob(kind, queue, "{}", priority, 9, run_at, extras.with_unique(extra, *unique), None, unique)
            for queue, priority, run_at, extra, kind, unique in jobs
        ]
        if copied:
            before = max(self._ids, default=0)
            known = len(self._memory.rows)
            copies = self._both(lambda store: store.copy(new, skip=skip))
            if copies is None:
                return
            assert copies[0] == copies[1]
            made = self._memory.rows[known:]
            if all(job.unique is None for job in new):  # due ones are copied first, then the others
                made.sort(key=lambda row: row.state is JobState.SCHEDULED)
            rows = self._real(self._store.list_jobs(JobFilter(limit=1000)))
            reals = sorted(row.id for row in rows if row.id > before)
            self._ids |= {real: row.id for real, row in zip(reals, made, strict=True)}
        elif (both := self._both(lambda store: store.insert(new, skip=skip))) is not None:
            real, model = both
            self._ids |= {r.id: m.id for r, m in zip(real, model, strict=True)}
            assert [self._seen(r) for r in real] == [self._seen(m, m.id) for m in model]
            assert [r.existed for r in real] == [m.existed for m in model]

    @rule(target=claimed, unique=WAITING_KEYS, queue=QUEUES)
    def a_newer_job_while_one_runs(self, unique: Unique, queue: str) -> Any:
        """What random steps seldom come to: a job that keeps others out while it waits, claimed, and then another one."""
        self.insert([(queue, 1, LONG_AGO, None, "k", unique)], copied=False, skip=True)
        claimed = self.claim(queue, 8, 0.0, advance=False)
        self.insert([(queue, 4, None, None, "k", unique)], copied=False, skip=True)
        return claimed

    def _both(self, op: Callable[[Any], Op[Any]]) -> tuple[Any, Any] | None:
        """What both answer; None when both meet the same conflict."""
        answers: list[Any] = []
        for run, store in ((self._real, self._store), (self._model, self._memory)):
            try:
                answers.append(run(op(store)))
            except UniqueConflict as conflict:
                id = conflict.job_id
                answers.append((id if id is None or store is self._memory else self._ids[id], conflict.index))
                continue
            answers[-1] = [answers[-1]]
        real, model = answers
        if isinstance(real, tuple) or isinstance(model, tuple):
            assert real == model
            return None
        return real[0], model[0]

    @invariant()
    def of_jobs_with_one_key_one_is_in_its_states(self) -> None:
        """As far as a job comes into them with its key: nobody is asked at a claim or a completion."""
        found: dict[bytes, int] = {}
        for row in self._memory.rows:
            unique = extras.unique_of(row.extra_json)
            asked = row.state not in {JobState.RUNNING, JobState.COMPLETED}
            if unique is not None and asked and keeps_out(unique[1], row.state):
                assert found.setdefault(unique[0], row.id) == row.id

    # the worker

    @rule(
        target=claimed,
        queue=QUEUES,
        wanted=st.integers(1, 8),
        aging=st.sampled_from([0.0, 3600.0]),
        advance=st.booleans(),
    )
    def claim(self, queue: str, wanted: int, aging: float, advance: bool) -> Any:
        ring, settings = self._real(self._store.survey([queue]))
        assert settings == self._model(self._memory.survey([queue]))[1]
        got = self._real(self._store.claim(1, ring, [Demand(queue, wanted, aging=aging)], advance=advance))
        assert not got.again
        waiting = {job.id: job for job in self._memory.rows if job.state is JobState.AVAILABLE and job.queue == queue}
        paused = queue in settings and settings[queue].paused
        assert len(got.attempts) == (0 if paused else min(wanted, len(waiting)))
        chosen = {self._ids[a.id] for a in got.attempts}
        assert chosen <= set(waiting)
        if aging == 0.0 and chosen:
            left = [job.priority for id, job in waiting.items() if id not in chosen]
            assert max(waiting[id].priority for id in chosen) <= min(left, default=4)
        model = self._model_claims(queue, chosen)
        assert sorted(map(self._told, got.attempts)) == sorted(self._told(a, a.id) for a in model)
        pairs = {self._ids[a.id]: a for a in got.attempts}
        return multiple(*((pairs[m.id], m) for m in model))

    @rule(target=claimed, kind=st.none() | st.just("k"), queue=st.none() | QUEUES, early=st.booleans())
    def claim_one(self, kind: str | None, queue: str | None, early: bool) -> Any:
        got = self._real(self._store.claim_one(1, kind=kind, queue=queue, early=early))
        if got is None:
            assert self._model(self._memory.claim_one(1, kind=kind, queue=queue, early=early)) is None
            return multiple()
        (real,) = got.attempts
        here = [job for job in self._memory.rows if (kind or job.kind, queue or job.queue) == (job.kind, job.queue)]
        paused = {q for q, settings in self._memory._tables.settings.items() if settings.paused}
        now = datetime.now(UTC)
        due = [job for job in here if job.state in {JobState.AVAILABLE, *DEFERRED} and job.run_at <= now]
        left = [job.priority for job in due if job.queue not in paused]
        taken = self._memory._tables.jobs[self._ids[real.id]]
        assert (taken.run_at > now) == (not left)
        assert taken.priority <= min(left, default=4)
        only = self._model(self._memory.claim_one(1, id=taken.id, kind=kind, queue=queue, early=early))
        assert only is not None
        (model,) = only.attempts
        assert self._told(real) == self._told(model, model.id)
        return multiple((real, model))

    def _model_claims(self, queue: str, chosen: set[int]) -> list[Attempt]:
        """The model takes these very jobs."""
        if not chosen:
            return []
        every = self._memory._tables.available[queue]
        self._memory._tables.available[queue] = set(chosen)
        model = list(
            self._model(self._memory.claim(1, self._memory._tables.ring, [Demand(queue, len(chosen))])).attempts
        )
        self._memory._tables.available[queue] = every - chosen
        return model

    def _told(self, a: Attempt, id: int | None = None) -> Any:
        run_at = a.run_at if a.run_at.year == 2020 else LONG_AGO
        return (
            self._ids[a.id] if id is None else id,
            a.kind,
            a.queue,
            a.priority,
            a.args,
            a.attempt,
            run_at,
            a.extra or "",
        )

    @rule(
        bite=st.lists(st.tuples(claimed, st.sampled_from(OUTCOMES), DUE, st.booleans()), min_size=1, max_size=6),
        resend=st.booleans(),
    )
    def finalize(self, bite: list[tuple[tuple[Attempt, Attempt], JobState, datetime, bool]], resend: bool) -> None:
        """Fresh and stale ones, each once; sometimes sent again."""
        self._flush += 1
        unique = {real: (model, to, due, failed) for (real, model), to, due, failed in bite}
        alike = {
            extras.unique_of(real.extra) or real.id: real for real in unique
        }  # which of several goes first is open
        unique = {real: unique[real] for real in alike.values()}
        reals: list[Ended] = []
        models: list[Ended] = []
        at = datetime.now(UTC)
        for real, (model, to, due, failed) in unique.items():
            entry = {"error": f"no {self._flush}"} if failed and to is not JobState.COMPLETED else None
            back = to in {JobState.SCHEDULED, JobState.AVAILABLE}
            run_at = due if to in {JobState.SCHEDULED, JobState.RETRYABLE} else None
            for attempt, into in ((real, reals), (model, models)):
                into.append(Ended(attempt, Transition(to, attempt.attempt - back, at, run_at, entry)))
        verdicts = self._real(self._store.finalize(reals, self._flush))
        assert verdicts == self._model(self._memory.finalize(models, self._flush))
        assert Verdict.AGAIN not in verdicts
        if resend:
            assert self._real(self._store.finalize(reals[::-1], self._flush)) == verdicts[::-1]

    @rule(limit=st.integers(1, 5))
    def promote(self, limit: int) -> None:
        due = [job for job in self._memory.rows if job.state in {JobState.SCHEDULED, JobState.RETRYABLE}]
        real = self._real(self._store.promote(limit))
        rows = {job.id: job for job in due}
        moved = [id for id in rows if self._real(self._store.get_job(self._real_id(id))).state is JobState.AVAILABLE]  # type: ignore[union-attr]
        model = self._model(self._memory.promote(limit))
        assert (real.count, real.queues) == (model.count, model.queues)
        assert (real.due_in is None, real.due_in == 0) == (model.due_in is None, model.due_in == 0)
        now = {job.id for job in self._memory.rows if job.state is JobState.AVAILABLE}
        by_model = [id for id in rows if id in now]
        assert [rows[id].run_at for id in moved] == [rows[id].run_at for id in by_model] or moved == by_model
        assert moved == by_model, "jobs due at one time are promoted in the order of their ids"

    def _real_id(self, model: int) -> int:
        return next(real for real, id in self._ids.items() if id == model)

    # people

    @rule(number=st.integers(0, 999))
    def cancel(self, number: int) -> None:
        if (id := self._id(number)) is not None:
            assert self._real(self._store.cancel(id)) == self._model(self._memory.cancel(self._ids[id]))

    @rule(number=st.integers(0, 999))
    def retry(self, number: int) -> None:
        if (id := self._id(number)) is not None:
            model = self._ids[id]
            both = self._both(lambda store: store.retry(id if store is self._store else model))
            if both is not None:
                assert self._seen(both[0]) == self._seen(both[1], model)

    @rule(number=st.integers(0, 999), queue=st.none() | QUEUES, priority=st.none() | PRIORITIES)
    def move(self, number: int, queue: str | None, priority: int | None) -> None:
        if (id := self._id(number)) is not None:
            real = self._real(self._store.move(id, queue=queue, priority=priority))
            assert real == self._model(self._memory.move(self._ids[id], queue=queue, priority=priority))

    @rule(
        number=st.integers(0, 999),
        call=st.sampled_from(["move_to_dlq", "retry_from_dlq", "purge_dlq_job", "delete_job"]),
    )
    def one(self, number: int, call: str) -> None:
        if (id := self._id(number)) is not None:
            own = self._ids[id]
            both = self._both(lambda store: getattr(store, call)(id if store is self._store else own))
            if both is None:
                return
            real, model = both
            if isinstance(model, JobRow):
                real, model = self._seen(real), self._seen(model, model.id)
            assert real == model

    @rule(
        call=st.sampled_from(
            ["retry_failed", "discard_failed", "move_failed_to_dlq", "retry_all_from_dlq", "purge_dlq"]
        ),
        kind=st.none() | st.sampled_from(["k", "l"]),
        queue=st.none() | QUEUES,
        tag=st.none() | st.just("t"),
    )
    def many(self, call: str, kind: str | None, queue: str | None, tag: str | None) -> None:
        which = Selection(kind, queue, tag)
        assert self._real(getattr(self._store, call)(which)) == self._model(getattr(self._memory, call)(which))

    @rule(queue=QUEUES)
    def drain(self, queue: str) -> None:
        assert self._real(self._store.drain_queue(queue)) == self._model(self._memory.drain_queue(queue))

    @rule(queue=QUEUES)
    def pause(self, queue: str) -> None:
        self._real(self._store.pause_queue(queue, None))
        self._model(self._memory.pause_queue(queue, None))

    @rule(queue=QUEUES)
    def resume(self, queue: str) -> None:
        self._real(self._store.resume_queue(queue))
        self._model(self._memory.resume_queue(queue))

    @rule(most=st.integers(1, 4))
    def sweep(self, most: int) -> None:
        if isinstance(self._store, QueueStore):
            self._real(self._store.sweep(most))

    @rule()
    def rotate(self) -> None:
        if isinstance(self._store, QueueStore):
            self._real(self._store.open_next())
            self._real(self._store.publish())

    # reads

    @rule(number=st.integers(0, 999))
    def get_job(self, number: int) -> None:
        if (id := self._id(number)) is not None:
            model = self._ids[id]
            seen = self._seen(self._real(self._store.get_job(id)))
            assert seen == self._seen(self._model(self._memory.get_job(model)), model)

    @rule(
        state=st.none() | st.sampled_from(JobState),
        kind=st.none() | st.just("k"),
        queue=st.none() | QUEUES,
        tag=st.none() | st.just("t"),
        metadata=st.sampled_from([None, '{"m":1.0}', '{"m":2}', "{}"]),
        limit=st.sampled_from([1, 2, 3, 1000]),
    )
    def list_jobs(
        self,
        state: JobState | None,
        kind: str | None,
        queue: str | None,
        tag: str | None,
        metadata: str | None,
        limit: int,
    ) -> None:
        """Page by page, where a statement looks at very few rows."""
        wanted = JobFilter(state, kind, queue, tag, metadata, limit=limit)
        page = self._real(self._store.list_jobs(wanted))
        real = list(page)
        while page.next is not None:
            assert len(page) <= limit
            page = self._real(self._store.list_jobs(replace(wanted, before_id=page.next)))
            real += page
        assert [row.id for row in real] == sorted({row.id for row in real}, reverse=True)
        model = self._model(self._memory.list_jobs(replace(wanted, limit=1000)))
        key = lambda row: row[0]  # noqa: E731
        assert sorted(map(self._seen, real), key=key) == sorted((self._seen(m, m.id) for m in model), key=key)

    @rule(kind=st.none() | st.just("k"), queue=st.none() | QUEUES, tag=st.none() | st.just("t"))
    def list_dlq(self, kind: str | None, queue: str | None, tag: str | None) -> None:
        which = Selection(kind, queue, tag)
        real, model = (store.list_dlq(which, limit=1000) for store in (self._store, self._memory))
        key = lambda row: row[0]  # noqa: E731
        seen = sorted(map(self._seen, self._real(real)), key=key)
        assert seen == sorted((self._seen(m, m.id) for m in self._model(model)), key=key)

    @invariant()
    def stats(self) -> None:
        real, model = (
            [
                (
                    s.queue,
                    s.scheduled,
                    s.available,
                    s.running,
                    s.completed,
                    s.retryable,
                    s.failed,
                    s.cancelled,
                    s.dlq,
                    s.paused,
                )
                for s in stats
                if any((s.scheduled, s.available, s.running, s.completed, s.retryable, s.failed, s.cancelled, s.paused))
            ]
            for stats in (self._real(self._store.queue_stats()), self._model(self._memory.queue_stats()))
        )
        assert real == model


@pytest.fixture(scope="module")
def migrated(module_database: str) -> str:
    with psycopg.connect(module_database, autocommit=True) as connection:
        connection.execute(script().encode())
    return module_database


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lists whose statements look at very few rows."""
    cached = (lists.list_sql, lists._free_sql)
    for name, value in {"_FEW": 2, "_MANY": 4, "_MANY_DECODED": 3, "PAGE": 2, "_LEAST": 1, "_FREE": 1}.items():
        monkeypatch.setattr(lists, name, value)
    for each in cached:
        each.cache_clear()
    yield
    for each in cached:
        each.cache_clear()


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("name", ["queue", "canonical"])
def test_an_engine_answers_as_the_model_does(migrated: str, name: str) -> None:
    class OnThisServer(Machine):
        dsn = migrated
        engine = name

    run_state_machine_as_test(
        OnThisServer,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
            derandomize="AWA_MODEL_EXAMPLES" not in os.environ,
            database=None,
        ),
    )
