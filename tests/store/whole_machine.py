"""Everything that can be done to an engine and to the model but callbacks: the random steps that `machine.py` has not."""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, multiple, rule

from awa_proto.cron.job import CronTemplate, fire_of
from awa_proto.cron.operations import fire
from awa_proto.cron.schedule import Schedule
from awa_proto.job import JobRow, JobState
from awa_proto.store import NewJob, Selection, Unique
from awa_proto.store.memory import DEFERRED
from tests.store.machine import AGES, LONG_AGO, PRIORITIES, QUEUES, WAITING_KEYS, WORKERS, Machine, of_attempt, of_row

CRON = st.sampled_from(["coalesce", "catch_up"])
CLAIMED = Machine.claimed


class WholeMachine(Machine):
    """And all the rest."""

    def __init__(self) -> None:
        super().__init__()
        self._stale_fires: list[Any] = []

    @initialize()
    def declare(self) -> None:
        hourly = Schedule("0 * * * *")
        templates = [
            CronTemplate("coalesce", hourly, "coalesce", NewJob("k", "a", "{}", 1, 9), None),
            CronTemplate("catch_up", hourly, "catch_up", NewJob("k", "b", "{}", 2, 9), None),
        ]
        assert self._twins.agree(lambda store: store.put_cron(templates, declared=True)) == 2

    # enqueue

    @rule(target=CLAIMED, unique=WAITING_KEYS, queue=QUEUES)
    def a_newer_job_while_one_runs(self, unique: Unique, queue: str) -> Any:
        """What random steps seldom come to: a job that keeps others out while it waits, claimed, and then another one."""
        self.insert([(queue, 1, LONG_AGO, None, "k", unique)], copied=False, skip=True)
        claimed = self.claim(0, queue, 8, 0.0, None, advance=False)
        self.insert([(queue, 4, None, None, "k", unique)], copied=False, skip=True)
        return claimed

    # the workers

    @rule(target=CLAIMED, worker=WORKERS, kind=st.none() | st.just("k"), queue=st.none() | QUEUES, early=st.booleans())
    def claim_one(self, worker: int, kind: str | None, queue: str | None, early: bool) -> Any:
        twins = self._twins
        instance, of_model = twins.workers[worker]
        got = twins.real(twins.store.claim_one(instance, kind=kind, queue=queue, early=early))
        if got is None:
            assert twins.model(twins.memory.claim_one(of_model, kind=kind, queue=queue, early=early)) is None
            return multiple()
        (real,) = got.attempts
        here = [job for job in twins.memory.rows if (kind or job.kind, queue or job.queue) == (job.kind, job.queue)]
        due = [job for job in here if job.state in {JobState.AVAILABLE, *DEFERRED} and job.run_at <= twins.now]
        left = [job.priority for job in due if job.queue not in twins.paused()]
        taken = twins.memory._tables.jobs[twins.ids[real.id]]
        assert (taken.run_at > twins.now) == (not left)
        assert taken.priority <= min(left, default=4)
        only = twins.model(twins.memory.claim_one(of_model, id=taken.id, kind=kind, queue=queue, early=early))
        assert only is not None
        (model,) = only.attempts
        assert twins.told(real) == twins.told(model, model.id)
        return multiple((real, model))

    @rule(worker=WORKERS)
    def leave_and_come_again(self, worker: int) -> None:
        twins = self._twins
        twins.by_worker(worker, lambda store, instance: store.unregister(instance))
        twins.workers[worker] = twins.register()

    @rule(worker=WORKERS, known=st.lists(CLAIMED, max_size=3))
    def unknown(self, worker: int, known: list[Any]) -> None:
        twins = self._twins
        instance, of_model = twins.workers[worker]
        found = twins.real(twins.store.unknown(instance, sorted({real.claim_id for real, _ in known}), 0))
        claims = sorted({own.claim_id for _, own in known})
        model = twins.model(twins.memory.unknown(of_model, claims, 0))
        if all(real.segment >= 0 for real, _ in known):  # those of canonical storage are numbered otherwise
            assert sorted(map(twins.told, found), key=of_attempt) == sorted(
                (twins.told(a, a.id) for a in model), key=of_attempt
            )

    # the leader

    @rule(worker=WORKERS)
    def lead(self, worker: int) -> None:
        twins = self._twins
        real, model = twins.by_worker(worker, lambda store, instance: store.lead(instance, 15.0))
        names = dict(twins.workers)
        assert (real.is_mine, real.term) == (model.is_mine, model.term)
        assert real.expires_in == pytest.approx(model.expires_in)
        assert names.get(real.instance) == (model.instance if real.instance in names else None)

    @rule(worker=WORKERS)
    def resign(self, worker: int) -> None:
        self._twins.by_worker(worker, lambda store, instance: store.resign(instance))

    @rule(stale=st.booleans())
    def fire(self, stale: bool) -> None:
        """Of what a look found: now, or by a leader that looked long ago."""
        twins = self._twins
        listed = twins.both(lambda store: store.list_cron())
        assert listed is not None
        assert listed[0] == listed[1]
        at, model = listed[1]
        fires = [found for job in model if (found := fire_of(job, at)) is not None]
        fires, self._stale_fires = (self._stale_fires, fires) if stale else (fires, self._stale_fires)
        known = len(twins.memory.rows)
        twins.agree(lambda store: fire(store, fires))
        twins.pair(twins.memory.rows[known:], twins.ids)

    @rule(name=CRON, call=st.sampled_from(["pause", "resume", "edit"]))
    def change_cron(self, name: str, call: str) -> None:
        if call == "pause":
            self._twins.agree(lambda store: store.pause_cron(name, None))
        elif call == "resume":
            self._twins.agree(lambda store: store.resume_cron(name))
        else:
            self._twins.agree(lambda store: store.edit_cron(name, {"cron": "*/30 * * * *", "priority": 3}))

    @rule(call=st.sampled_from(["prune_failed", "prune_dlq", "prune_completed"]), age=AGES, limit=st.integers(1, 5))
    def retention(self, call: str, age: float, limit: int) -> None:
        twins = self._twins
        if call == "prune_completed" and twins.is_ring:  # there they go with their segment, but those that were parked
            count = twins.real(twins.store.prune_completed(age, limit))
            assert len(self._without_the_old(age)) == count
            return
        twins.agree(lambda store: getattr(store, call)(age, limit))

    @rule(most=st.integers(1, 4))
    def sweep(self, most: int) -> None:
        self._twins.real(self._twins.store.sweep(most))

    @rule()
    def probe(self) -> None:
        assert not self._twins.real(self._twins.store.probe()).revived

    @rule(limit=st.integers(1, 5))
    def forget_keys(self, limit: int) -> None:
        """Which keys are left changes nothing that anybody sees but what is looked at."""
        self._twins.real(self._twins.store.forget_keys(limit))
        self._twins.model(self._twins.memory.forget_keys(limit))

    # people

    @rule(number=st.integers(0, 999))
    def retry(self, number: int) -> None:
        if (id := self._twins.pick(number)) is not None:
            model = self._twins.ids[id]
            both = self._twins.both(lambda store: store.retry(id if store is self._twins.store else model))
            if both is not None:
                self._twins.same(*both)

    @rule(number=st.integers(0, 999), queue=st.none() | QUEUES, priority=st.none() | PRIORITIES)
    def move(self, number: int, queue: str | None, priority: int | None) -> None:
        if (id := self._twins.pick(number)) is not None:
            real = self._twins.real(self._twins.store.move(id, queue=queue, priority=priority))
            assert real == self._twins.model(
                self._twins.memory.move(self._twins.ids[id], queue=queue, priority=priority)
            )

    @rule(
        number=st.integers(0, 999),
        call=st.sampled_from(["move_to_dlq", "retry_from_dlq", "purge_dlq_job", "delete_job"]),
    )
    def one(self, number: int, call: str) -> None:
        if (id := self._twins.pick(number)) is not None:
            own = self._twins.ids[id]
            both = self._twins.both(lambda store: getattr(store, call)(id if store is self._twins.store else own))
            if both is None:
                return
            real, model = both
            if isinstance(model, JobRow):
                self._twins.same(real, model)
            else:
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
        assert self._twins.real(getattr(self._twins.store, call)(which)) == self._twins.model(
            getattr(self._twins.memory, call)(which)
        )

    @rule(queue=QUEUES)
    def pause(self, queue: str) -> None:
        self._twins.real(self._twins.store.pause_queue(queue, None))
        self._twins.model(self._twins.memory.pause_queue(queue, None))

    @rule(queue=QUEUES)
    def resume(self, queue: str) -> None:
        self._twins.real(self._twins.store.resume_queue(queue))
        self._twins.model(self._twins.memory.resume_queue(queue))

    # reads

    @rule(kind=st.none() | st.just("k"), queue=st.none() | QUEUES, tag=st.none() | st.just("t"))
    def list_dlq(self, kind: str | None, queue: str | None, tag: str | None) -> None:
        which = Selection(kind, queue, tag)
        real, model = (store.list_dlq(which, limit=1000) for store in (self._twins.store, self._twins.memory))
        seen = sorted(map(self._twins.seen, self._twins.real(real)), key=of_row)
        assert seen == sorted((self._twins.seen(m, m.id) for m in self._twins.model(model)), key=of_row)
