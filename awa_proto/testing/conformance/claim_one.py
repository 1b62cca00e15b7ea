"""Claim one: a job of a kind, or a named one, for somebody who works it alone; also inside a transaction."""

from __future__ import annotations

import json
from datetime import timedelta

from awa_proto import extra as extras
from awa_proto.job import Attempt, JobState
from awa_proto.store import Cancelled, JobFilter, NewJob, Verdict
from awa_proto.testing.conformance.kit import HOUR, DatabaseKit, Kit, RingKit, Session, end, now, together
from awa_proto.unique import Uniqueness, UniqueOpts


async def one(kit: Kit, **conditions: object) -> Attempt | None:
    """The attempt claimed, if there is one."""
    claimed = await kit.run(kit.store.claim_one(1, **conditions))  # type: ignore[arg-type]
    return None if claimed is None else claimed.attempts[0]


async def the_best_job_of_a_kind_is_taken_and_no_other(kit: Kit) -> None:
    """By priority, then by how long it is due, then by id."""
    await kit.enqueue(2, kind="other", priority=1)
    (second,) = await kit.enqueue(kind="k", queue="a")
    (third,) = await kit.enqueue(kind="k", queue="b")
    (first,) = await kit.enqueue(kind="k", priority=1)
    (last,) = await kit.enqueue(kind="k", priority=3, queue="a")
    taken = [await one(kit, kind="k") for _ in range(5)]
    assert [a and a.id for a in taken] == [first, second, third, last, None]
    assert len(await kit.claim()) == 2


async def it_tells_all_a_worker_needs(kit: Kit) -> None:
    """The attempt, its fence, and the job as it was enqueued; and every read sees it run."""
    extra = extras.encode(metadata={"a": 1}, tags=["t"], deadline=60.0)
    (row,) = await kit.insert(NewJob("kind", "q", '{"b":1,"a":1.0}', priority=3, max_attempts=7, extra=extra))
    worker = await kit.register("q")
    claimed = await kit.run(kit.store.claim_one(worker.instance))
    assert claimed is not None
    (a,) = claimed.attempts
    assert (a.id, a.queue, a.kind, a.priority, a.args) == (row.id, "q", "kind", 3, '{"b":1,"a":1.0}')
    assert (a.attempt, a.max_attempts, a.run_at, a.created_at, a.extra) == (1, 7, row.run_at, row.created_at, extra)
    assert claimed.version == worker.ring.version
    assert claimed.now >= worker.now
    job = await kit.job(row.id)
    assert (job.state, job.attempt, job.run_lease) == (JobState.RUNNING, 1, a.run_lease)
    assert job.attempted_at is not None
    assert job.deadline_at == job.attempted_at + timedelta(seconds=60)
    assert await kit.listed(state=JobState.RUNNING) == [row.id]
    assert (await kit.stat()).running == 1
    assert (await kit.stat()).available == 0


async def a_queue_and_an_id_are_conditions_too(kit: Kit) -> None:
    """All of them must hold."""
    first, second, third = await kit.enqueue(3)
    (elsewhere,) = await kit.enqueue(queue="r")
    assert await one(kit, id=second, queue="r") is None
    assert await one(kit, id=10**9) is None
    for id, conditions in ((elsewhere, {"queue": "r"}), (second, {"id": second}), (first, {}), (third, {})):
        a = await one(kit, **conditions)
        assert a is not None
        assert a.id == id
    assert await one(kit) is None
    assert await one(kit, id=second) is None


async def what_a_worker_claims_and_what_is_claimed_one_by_one_never_meet(kit: Kit) -> None:
    """Whatever the order: each job goes out once, and ends once."""
    ids = [*await kit.enqueue(6), *await kit.enqueue(6)]
    attempts = await kit.claim(2)
    for id in (ids[7], ids[3], ids[9]):
        a = await one(kit, id=id)
        assert a is not None
        attempts.append(a)
    attempts += await kit.claim(1)
    a = await one(kit)
    assert a is not None
    attempts += [a, *await kit.claim()]
    assert sorted(a.id for a in attempts) == ids
    assert await kit.finalize(*(end(a) for a in attempts)) == [Verdict.ACCEPTED] * 12
    assert await kit.finalize(*(end(a) for a in attempts)) == [Verdict.STALE] * 12
    assert await kit.states(ids) == [JobState.COMPLETED] * 12
    assert (await kit.stat()).completed == 12


async def however_it_ends_a_worker_may_have_it_next(kit: Kit) -> None:
    """It comes back to where it was: to its queue, its priority and its stripe."""
    await kit.run(kit.store.set_stripes("q", 8))
    for to in (JobState.AVAILABLE, JobState.RETRYABLE, JobState.SCHEDULED, JobState.FAILED, JobState.CANCELLED):
        (row,) = await kit.insert(NewJob("k", "q", "{}", ordering=5))
        a = await one(kit)
        assert a is not None
        await kit.close(a, to)
        await kit.run(kit.store.promote(10))
        if to in {JobState.FAILED, JobState.CANCELLED}:
            await kit.run(kit.store.retry(row.id))
        again = await kit.claim(stripe=5)
        assert [b.id for b in again] == [row.id], to
        assert again[0].run_lease > a.run_lease
        await kit.close(again[0])
    attempts: set[tuple[int, int]] = set()
    (row,) = await kit.insert(NewJob("k", "q", "{}", ordering=5))
    for _ in range(5):
        a = await one(kit)
        assert a is not None
        attempts.add((a.id, a.run_lease))
        await kit.close(a, JobState.AVAILABLE)
    assert len(attempts) == 5
    assert [b.id for b in await kit.claim(stripe=5)] == [row.id]


async def what_is_not_due_is_taken_only_when_that_is_wished_and_last(kit: Kit) -> None:
    """Whoever tests a retry does not wait for it."""
    later, sooner = [(await kit.enqueue(run_at=now() + HOUR * n))[0] for n in (2, 1)]
    assert await one(kit) is None
    (due,) = await kit.enqueue(priority=4)
    taken = [await one(kit, early=True) for _ in range(4)]
    assert [a and a.id for a in taken] == [due, sooner, later, None]
    for a in taken[:3]:
        assert a is not None
        await kit.close(a, JobState.RETRYABLE, due=now() + HOUR, error="x")
    a = await one(kit, id=later, early=True)
    assert a is not None
    assert a.attempt == 2
    assert extras.decode(a.extra)["errors"] == [{"error": "x", "attempt": 1}]
    assert (await kit.job(later)).state is JobState.RUNNING


async def what_has_become_due_needs_no_promotion(kit: Kit) -> None:
    """It is taken from where it waits."""
    (id,) = await kit.enqueue()
    (a,) = await kit.claim()
    await kit.close(a, JobState.RETRYABLE)
    taken = await one(kit)
    assert taken is not None
    assert (taken.id, taken.attempt) == (id, 2)
    await kit.close(taken)
    assert (await kit.job(id)).state is JobState.COMPLETED


async def a_paused_queue_gives_nothing_one_by_one(kit: Kit) -> None:
    """As to a worker."""
    await kit.enqueue()
    await kit.run(kit.store.pause_queue("q", "kit"))
    assert await one(kit) is None
    await kit.run(kit.store.resume_queue("q"))
    assert await one(kit) is not None


async def it_can_be_cancelled_like_any_running_job(kit: Kit) -> None:
    """Its own end is stale then."""
    (id,) = await kit.enqueue()
    a = await one(kit)
    assert a is not None
    assert await kit.run(kit.store.cancel(id)) is Cancelled.RUNNING
    assert await kit.finalize(end(a)) == [Verdict.STALE]
    assert await kit.run(kit.store.retry(id)) is not None
    assert [b.id for b in await kit.claim()] == [id]


async def it_keeps_its_unique_key(kit: Kit) -> None:
    """While it runs there is no second one."""
    unique = Uniqueness.of(UniqueOpts())
    own = unique.of_job("k", "q", "{}", now())
    new = NewJob("k", "q", "{}", extra=extras.with_unique(None, *own), unique=own)
    (row,) = await kit.insert(new)
    assert await one(kit) is not None
    (again,) = await kit.run(kit.store.insert([new], skip=True))
    assert (again.id, again.state) == (row.id, JobState.RUNNING)


async def many_at_the_same_time_never_take_the_same_job(kit: Kit) -> None:
    """Nor does a worker beside them."""
    ids = await kit.enqueue(12)
    taken: list[int] = []

    async def singly() -> None:
        while (a := await one(kit)) is not None:
            taken.append(a.id)

    async def as_a_worker() -> None:
        while attempts := await kit.claim(1):
            taken.extend(a.id for a in attempts)

    await together(singly, singly, as_a_worker)
    assert sorted(taken) == ids


async def _worked(kit: DatabaseKit, session: Session, kind: str, to: JobState = JobState.COMPLETED) -> int:
    """Claim one job of a kind and end it, in the transaction of a session."""
    claimed = await session.run(kit.store.claim_one(1, kind=kind, early=True))
    assert claimed is not None
    (a,) = claimed.attempts
    assert await session.run(kit.store.finalize([end(a, to)], kit.flush)) == [Verdict.ACCEPTED]
    return a.id


async def a_transaction_takes_what_it_enqueued_itself_and_reads_it(kit: DatabaseKit) -> None:
    """Beside jobs of others in the same lane, in any order, with every read in between; and commits."""
    for isolation in ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"):
        before = await kit.enqueue(2, kind="before", queue=isolation)
        (a,) = await kit.claim(1, queue=isolation)
        async with kit.session() as session:
            await session.sql(f"BEGIN ISOLATION LEVEL {isolation}")
            new = [NewJob(kind, isolation, json.dumps({})) for kind in "abcab"]
            rows = await session.run(kit.store.insert(new))
            beside = await kit.enqueue(
                1, kind="beside", queue=isolation
            )  # a transaction that is newer and commits first
            assert await _worked(kit, session, "c") == rows[2].id
            assert await _worked(kit, session, "b") == rows[1].id
            assert await _worked(kit, session, "b", JobState.RETRYABLE) == rows[4].id
            assert await _worked(kit, session, "b") == rows[4].id
            states = {}
            for row in rows:
                job = await session.run(kit.store.get_job(row.id))
                assert job is not None
                states[job.id] = job.state
            done, ready = JobState.COMPLETED, JobState.AVAILABLE
            assert list(states.values()) == [ready, done, done, ready, done]
            listed = await session.run(kit.store.list_jobs(JobFilter(queue=isolation, state=ready)))
            assert {rows[0].id, rows[3].id} <= {job.id for job in listed} <= {rows[0].id, rows[3].id, *before, *beside}
            stats = await session.run(kit.store.queue_stats())
            assert [s.completed for s in stats if s.queue == isolation] == [3]
            await session.sql("COMMIT")
        assert await kit.states([row.id for row in rows]) == [ready, done, done, ready, done]
        left = [b.id for b in await kit.claim(queue=isolation)]
        assert sorted(left) == sorted([before[1], *beside, rows[0].id, rows[3].id])
        await kit.close(a)


async def a_rollback_leaves_nothing_of_it(kit: DatabaseKit) -> None:
    """Neither of what the transaction enqueued and worked, nor of what it took of others: that is there as before."""
    (theirs,) = await kit.enqueue(kind="theirs")
    (later,) = await kit.enqueue(kind="later", run_at=now() + HOUR)
    async with kit.session() as session:
        await session.sql("BEGIN")
        (mine,) = await session.run(kit.store.insert([NewJob("mine", "q", "{}")]))
        for kind in ("mine", "theirs", "later"):
            await _worked(kit, session, kind)
        await session.sql("ROLLBACK")
    assert await kit.run(kit.store.get_job(mine.id)) is None
    assert await kit.states([theirs, later]) == [JobState.AVAILABLE, JobState.SCHEDULED]
    assert [a.id for a in await kit.claim()] == [theirs]
    stat = await kit.stat()
    assert (stat.completed, stat.scheduled, stat.running) == (0, 1, 1)


async def after_a_rotation_it_finds_the_jobs_of_older_segments(kit: RingKit) -> None:
    """And ends them there."""
    old = await kit.enqueue(2)
    await kit.rotate()
    new = await kit.enqueue(2)
    for id in (new[1], old[1]):
        a = await one(kit, id=id)
        assert a is not None
        await kit.close(a)
    assert [a.id for a in await kit.claim()] == [old[0], new[0]]
