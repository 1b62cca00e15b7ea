"""An engine and the model in memory, told the same things: the random steps that all of `test_store_model.py` takes.

Two workers, a leader, producers and people do random things to both. Every answer is compared, and after every step every row
of every job: ids as they were paired at the enqueue, leases as identity, all else, times included, exactly. Which jobs a claim
takes when it cannot take all is the engine's choice within the rules (best lane first); the model is made to take the same
ones, and the rules are checked.
"""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    rule,
)
from typing_extensions import override

from awa_proto import extra as extras
from awa_proto.events import RescueReason
from awa_proto.job import Attempt, JobState
from awa_proto.outcome import DeadLetter, Transition, conclude
from awa_proto.store import Demand, Ended, JobFilter, NewJob, Progress, Unique, Verdict, WorkerInfo
from awa_proto.store.memory import MemoryJob
from awa_proto.store.queue import QueueStore
from awa_proto.testing.conformance.kit import OUTCOMES
from awa_proto.unique import DEFAULT_STATES, keeps_out, mask
from tests.store.twins import START, Twins

LONG_AGO = START - timedelta(days=1000)
QUEUES = st.sampled_from(["a", "b"])
PRIORITIES = st.integers(1, 4)
TIMES = st.one_of(
    st.none(),
    st.integers(0, 50).map(lambda days: LONG_AGO + timedelta(days=days)),
    st.integers(0, 50).map(lambda n: START + timedelta(seconds=3 * n * n)),
)
EXTRAS = st.sampled_from([None, extras.encode(metadata={"m": 1}, tags=["t"]), extras.encode(deadline=5.0)])
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
WORKERS = st.integers(0, 1)
AGES = st.sampled_from([20.0, 3600.0, 80_000.0])
SAID = st.tuples(st.sampled_from([None, '{"percent":7}']), st.sampled_from([None, "[1.0]"]), st.booleans())
"""Progress, an output, and whether a failed job goes to the dead letters."""
FOLLOWS = st.sampled_from(
    [(), (), (NewJob("k", "a", '{"follows":1}', 2, 2),), (NewJob("l", "b", "{}", 3, 2), NewJob("l", "a", "{}", 4, 2))]
)


def of_attempt(told: Any) -> Any:
    return told[0]


def of_row(seen: Any) -> Any:
    return seen["id"]


class Machine(RuleBasedStateMachine):
    """The same operations on both."""

    dsn = ""
    engine = "queue"
    claimed = Bundle("claimed")

    def __init__(self) -> None:
        super().__init__()
        self._twins = Twins(self.dsn, self.engine)
        self._flush = 1 << 50

    @override
    def teardown(self) -> None:
        self._twins.close()

    @rule(seconds=st.sampled_from([1.0, 4.0, 10.0, 31.0, 600.0, 3600.0, 90_000.0]))
    def time_passes(self, seconds: float) -> None:
        self._twins.pass_time(seconds)

    @invariant()
    def every_job_is_the_same_on_both(self) -> None:
        self._twins.agree_on_rows()
        self._twins.pass_time(0.0)

    # enqueue

    @rule(
        jobs=st.lists(
            st.tuples(QUEUES, PRIORITIES, TIMES, EXTRAS, st.sampled_from(["k", "l"]), KEYS), min_size=1, max_size=6
        ),
        copied=st.booleans(),
        skip=st.booleans(),
    )
    def insert(self, jobs: list[Any], copied: bool, skip: bool) -> None:
        twins = self._twins
        new = [
            NewJob(kind, queue, "{}", priority, 2, run_at, extra, None)
            if unique is None
            else NewJob(kind, queue, "{}", priority, 2, run_at, extras.with_unique(extra, *unique), None, unique)
            for queue, priority, run_at, extra, kind, unique in jobs
        ]
        if copied:
            known = len(twins.memory.rows)
            if twins.agree(lambda store: store.copy(new, skip=skip)) is None:
                return
            made = twins.memory.rows[known:]
            if all(job.unique is None for job in new):  # due ones are copied first, then the others
                made.sort(key=lambda row: row.state is JobState.SCHEDULED)
            twins.pair(made, twins.ids)
        elif (both := twins.both(lambda store: store.insert(new, skip=skip))) is not None:
            real, model = both
            twins.ids |= {r.id: m.id for r, m in zip(real, model, strict=True)}
            for r, m in zip(real, model, strict=True):
                twins.same(r, m)
            assert [r.existed for r in real] == [m.existed for m in model]

    @invariant()
    def of_jobs_with_one_key_one_is_in_its_states(self) -> None:
        """As far as a job comes into them with its key: nobody is asked at a claim or a completion."""
        found: dict[bytes, int] = {}
        for row in self._twins.memory.rows:
            unique = extras.unique_of(row.extra_json)
            asked = row.state not in {JobState.RUNNING, JobState.COMPLETED}
            if unique is not None and asked and keeps_out(unique[1], row.state):
                assert found.setdefault(unique[0], row.id) == row.id

    # the workers

    @rule(
        target=claimed,
        worker=WORKERS,
        queue=QUEUES,
        wanted=st.integers(1, 8),
        aging=st.sampled_from([0.0, 3600.0]),
        deadline=st.sampled_from([None, 20.0]),
        advance=st.booleans(),
    )
    def claim(self, worker: int, queue: str, wanted: int, aging: float, deadline: float | None, advance: bool) -> Any:
        twins = self._twins
        ring, settings = twins.real(twins.store.survey([queue]))
        assert settings == twins.model(twins.memory.survey([queue]))[1]
        instance, of_model = twins.workers[worker]
        demand = Demand(queue, wanted, aging=aging, deadline=deadline)
        got = twins.real(twins.store.claim(instance, ring, [demand], advance=advance))
        assert not got.again
        waiting = twins.waiting(queue)
        assert len(got.attempts) == (0 if queue in twins.paused() else min(wanted, len(waiting)))
        chosen = {twins.ids[a.id] for a in got.attempts}
        assert chosen <= set(waiting)
        if aging == 0.0 and chosen:
            left = [job.priority for id, job in waiting.items() if id not in chosen]
            assert max(waiting[id].priority for id in chosen) <= min(left, default=4)
        model: list[Attempt] = []
        if chosen:  # the model takes these very jobs
            tables = twins.memory._tables
            every = tables.available[queue]
            tables.available[queue] = set(chosen)
            model += twins.model(twins.memory.claim(of_model, tables.ring, [demand])).attempts
            tables.available[queue] = every - chosen
        pairs = {twins.ids[a.id]: a for a in got.attempts}
        assert {twins.ids[a.id]: twins.told(a) for a in got.attempts} == {a.id: twins.told(a, a.id) for a in model}
        return multiple(*((pairs[m.id], m) for m in model))

    @rule(
        bite=st.lists(
            st.tuples(claimed, st.sampled_from(OUTCOMES), DUE, st.booleans(), SAID, FOLLOWS), min_size=1, max_size=6
        ),
        resend=st.booleans(),
    )
    def finalize(self, bite: list[Any], resend: bool) -> None:
        """Fresh and stale ones, each once; sometimes sent again."""
        unique = {real: (model, *how) for (real, model), *how in bite}
        alike = {extras.unique_of(real.extra) or real.id: real for real in unique}  # which of several is first is open
        ended: list[tuple[Ended, Ended]] = []
        for real in alike.values():
            model, to, due, failed, (progress, output, dead), follows = unique[real]
            entry = {"error": f"no {self._flush}"} if failed and to is not JobState.COMPLETED else None
            back = to in {JobState.SCHEDULED, JobState.AVAILABLE}
            run_at = due if to in {JobState.SCHEDULED, JobState.RETRYABLE} else None
            letter = DeadLetter.TERMINAL if dead and to is JobState.FAILED else None
            ended.append(
                tuple(  # type: ignore[arg-type]
                    Ended(
                        attempt,
                        Transition(to, attempt.attempt - back, self._twins.now, run_at, entry, dead_letter=letter),
                        progress if to is not JobState.COMPLETED else None,
                        output if to is JobState.COMPLETED and self._twins.store.keeps_outputs else None,
                        follows if to is not JobState.AVAILABLE else (),
                        flushed=True,
                    )
                    for attempt in (real, model)
                )
            )
        self._written(ended, resend)

    def _written(self, ended: list[tuple[Ended, Ended]], resend: bool) -> None:
        twins = self._twins
        self._flush += 1
        known = len(twins.memory.rows)
        reals, models = [real for real, _ in ended], [model for _, model in ended]
        verdicts = twins.real(twins.store.finalize(reals, self._flush))
        assert verdicts == twins.model(twins.memory.finalize(models, self._flush))
        assert Verdict.AGAIN not in verdicts
        twins.pair(twins.memory.rows[known:], twins.ids)
        if resend:
            assert twins.real(twins.store.finalize(reals[::-1], self._flush)) == verdicts[::-1]

    @rule(records=st.lists(claimed, max_size=3, unique=True), percent=st.integers(0, 100))
    def record_progress(self, records: list[Any], percent: int) -> None:
        twins, said = self._twins, f'{{"percent":{percent}}}'
        kept = twins.real(twins.store.record_progress([Progress(real, said) for real, _ in records]))
        model = twins.model(twins.memory.record_progress([Progress(own, said) for _, own in records]))
        assert {twins.ids[id] for id in kept} == set(model)

    @rule(worker=WORKERS)
    def beat(self, worker: int) -> None:
        info = WorkerInfo(("a", "b"), hostname="twin", pid=1)
        self._twins.by_worker(worker, lambda store, instance: store.beat(instance, info))

    # the leader

    @rule(limit=st.integers(1, 5))
    def promote(self, limit: int) -> None:
        twins = self._twins
        real = twins.real(twins.store.promote(limit))
        model = twins.model(twins.memory.promote(limit))
        assert (real.count, real.queues, real.until) == (model.count, model.queues, model.until)
        assert real.due_in == pytest.approx(model.due_in)

    @rule(
        reason=st.sampled_from([RescueReason.STALE_HEARTBEAT, RescueReason.DEADLINE_EXCEEDED]), page=st.integers(1, 4)
    )
    def rescue(self, reason: RescueReason, page: int) -> None:
        """Page by page, as its duty does."""
        twins = self._twins

        def pages(run: Any, store: Any) -> list[Any]:
            found: list[Any] = []
            after = None
            while True:
                if reason is RescueReason.STALE_HEARTBEAT:
                    got = run(store.find_stale(30.0, page, after))
                else:
                    got = run(store.find_overdue(1.5, page, after))
                assert len(got.stranded) <= page
                found += got.stranded
                after = got.after
                if after is None:
                    return found

        real = {twins.ids[each.attempt.id]: each for each in pages(twins.real, twins.store)}
        model = {each.attempt.id: each for each in pages(twins.model, twins.memory)}
        assert {id: twins.told(each.attempt) for id, each in real.items()} == {
            id: twins.told(each.attempt, id) for id, each in model.items()
        }
        unique = {extras.unique_of(each.attempt.extra) or id: id for id, each in model.items()}
        ended = [
            tuple(
                Ended(
                    each.attempt,
                    conclude(each.attempt, reason, each.at, lambda: 0.5, dead_letters=id % 2 == 0),
                    flushed=True,
                )
                for each in (real[id], model[id])
            )
            for id in unique.values()
        ]
        if ended:
            self._written(ended, resend=False)  # type: ignore[arg-type]

    @rule()
    def rotate(self) -> None:
        store = self._twins.store
        if isinstance(store, QueueStore):
            self._twins.real(store.open_next())
            self._twins.real(store.publish())

    @rule(age=AGES)
    def rotate_and_prune(self, age: float) -> None:
        """A segment goes, and with it completed jobs that are old enough; nothing else."""
        twins = self._twins
        twins.real(twins.store.rotate(age))
        twins.real(twins.store.prune(age))
        self._without_the_old(age)

    def _without_the_old(self, age: float) -> list[MemoryJob]:
        """The completed jobs that the engine deleted, old ones, which the model then does too."""
        twins = self._twins
        left = {twins.ids[row.id] for row in twins.rows()}
        gone = [job for id, job in twins.memory._tables.jobs.items() if id not in left]
        for job in gone:
            assert twins.is_ring
            assert job.state is JobState.COMPLETED
            assert job.finalized_at is not None
            assert twins.now - job.finalized_at >= timedelta(seconds=age)
        twins.memory._forget(gone)
        return gone

    # people

    @rule(number=st.integers(0, 999))
    def cancel(self, number: int) -> None:
        if (id := self._twins.pick(number)) is not None:
            assert self._twins.real(self._twins.store.cancel(id)) == self._twins.model(
                self._twins.memory.cancel(self._twins.ids[id])
            )

    @rule(queue=QUEUES)
    def drain(self, queue: str) -> None:
        assert self._twins.real(self._twins.store.drain_queue(queue)) == self._twins.model(
            self._twins.memory.drain_queue(queue)
        )

    # reads

    @rule(number=st.integers(0, 999))
    def get_job(self, number: int) -> None:
        if (id := self._twins.pick(number)) is not None:
            model = self._twins.ids[id]
            self._twins.same(
                self._twins.real(self._twins.store.get_job(id)), self._twins.model(self._twins.memory.get_job(model))
            )

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
        page = self._twins.real(self._twins.store.list_jobs(wanted))
        real = list(page)
        while page.next is not None:
            assert len(page) <= limit
            page = self._twins.real(self._twins.store.list_jobs(replace(wanted, before_id=page.next)))
            real += page
        assert [row.id for row in real] == sorted({row.id for row in real}, reverse=True)
        model = self._twins.model(self._twins.memory.list_jobs(replace(wanted, limit=1000)))
        assert sorted(map(self._twins.seen, real), key=of_row) == sorted(
            (self._twins.seen(m, m.id) for m in model), key=of_row
        )

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
                    s.waiting_external,
                    s.dlq,
                    s.paused,
                )
                for s in stats
                if any((s.scheduled, s.available, s.running, s.completed, s.retryable, s.failed, s.cancelled))
                or s.waiting_external
                or s.paused
            ]
            for stats in (
                self._twins.real(self._twins.store.queue_stats()),
                self._twins.model(self._twins.memory.queue_stats()),
            )
        )
        assert real == model
