"""The switch to queue storage, and what people see of both engines on the way: each job once, by clients of either."""

from __future__ import annotations

from collections import Counter

from awa_proto.job import CANONICAL, JobState
from awa_proto.plan import Op, Plan
from awa_proto.store import Cancelled, Selection, Unique
from awa_proto.store.canonical.switch import storage_status
from awa_proto.testing.conformance.dead_letters import failed
from awa_proto.testing.conformance.endings import HELD, bringing, follows
from awa_proto.testing.conformance.kit import HOUR, RingKit, end, jobs, now
from awa_proto.testing.conformance.takeover import ACCEPTED, WAITING, rows, switch, where


async def after_the_switch_clients_of_canonical_storage_enqueue_into_queue_storage(kit: RingKit) -> None:
    """One by one, in batches, by copy, scheduled and unique ones; nothing fails, and every client finds every job."""
    there = rows(kit)
    before = [*await there.enqueue(2), *await there.enqueue(1, run_at=now() + HOUR)]
    assert await switch(kit)
    assert not await switch(kit)
    after = [*await there.enqueue(1), *await there.enqueue(3), *await there.enqueue(2, run_at=now() + HOUR)]
    unique = jobs(1, unique=Unique(b"k" * 16, HELD))
    after += [row.id for row in await there.insert(*unique)]
    assert await kit.run(there.store.copy([*jobs(2), *jobs(1, run_at=now() + HOUR)])) == 3
    (again,) = await kit.run(there.store.insert(unique, skip=True))
    assert (again.id, again.existed) == (after[-1], True)
    listed = await kit.listed()
    assert set(listed) > {*before, *after}
    assert await there.listed() == listed
    assert [await where(kit, id) for id in before] == ["jobs_hot", "jobs_hot", "scheduled_jobs"]
    assert Counter([await where(kit, id) for id in listed if id not in before]) == {"ready": 7, "deferred": 3}
    assert [await kit.job(id) for id in listed] == [await there.job(id) for id in listed]


async def a_transaction_that_began_before_the_switch_obeys_it(kit: RingKit) -> None:
    """At every isolation level; what it had enqueued before runs as well."""
    there = rows(kit)
    for level in ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"):
        await kit.sql(f"SELECT setval('{kit.schema}.engine', 1)")
        async with kit.session() as user:
            await user.sql(f"BEGIN ISOLATION LEVEL {level}")
            (early,) = await user.run(there.store.insert(jobs(1)))
            await switch(kit)
            (late,) = await user.run(there.store.insert(jobs(1)))
            assert await kit.claim() == []
            await user.sql("COMMIT")
        assert [await where(kit, row.id) for row in (early, late)] == ["jobs_hot", "ready"]
        assert sorted(a.id for a in await kit.claim()) == [early.id, late.id]


async def workers_of_canonical_storage_go_on_after_the_switch(kit: RingKit) -> None:
    """With what it holds: retries stay there until somebody takes them over; their follow-ups are new jobs."""
    there = rows(kit)
    await there.enqueue(2)
    one, two = await there.claim()
    await switch(kit)
    assert await there.finalize(end(one, JobState.RETRYABLE), bringing(two, follow_ups=follows())) == [ACCEPTED] * 2
    assert (await kit.run(there.store.promote(10))).count == 1
    assert [(a.id, a.segment) for a in await there.claim()] == [(one.id, CANONICAL)]
    (follow,) = await kit.claim(queue="follow")
    assert follow.segment == 0


async def people_of_either_engine_find_a_job_wherever_it_is(kit: RingKit) -> None:
    """Cancel, move, retry, dead letters and deletion, by a client of one on jobs of the other."""
    there = rows(kit)
    for mine, other in ((kit, there), (there, kit)):
        for state in WAITING:
            id = await mine.job_in(state)
            assert await mine.job(id) == await other.job(id)
            assert await kit.run(other.store.move(id, queue="other", priority=1)) is Cancelled.CANCELLED
            assert await kit.run(other.store.cancel(id)) is Cancelled.CANCELLED
            assert await kit.run(other.store.cancel(id)) is Cancelled.ENDED
            assert await kit.run(other.store.retry(id)) is not None
            claimed = await kit.claim(queue="other")
            assert [a.id for a in claimed] == [id], (mine, state, claimed, id)
            assert await kit.run(mine.store.move(id, queue="q")) is Cancelled.RUNNING
            assert await kit.run(other.store.cancel(id)) is Cancelled.RUNNING
        failed = await mine.job_in(JobState.FAILED)
        assert await kit.run(other.store.move_to_dlq(failed)) is not None
        assert await kit.run(other.store.retry_from_dlq(failed)) is not None
        (attempt,) = await kit.claim()
        assert attempt.id == failed
        await kit.close(attempt)
        assert await kit.run(other.store.delete_job(failed))
        assert await kit.run(mine.store.get_job(failed)) is None
        await mine.enqueue(3, queue="drained")
        assert await kit.run(other.store.drain_queue("drained")) == 3
        assert await kit.run(other.store.cancel(10**9)) is Cancelled.NOT_FOUND


async def people_change_many_jobs_of_both_engines_at_once(kit: RingKit) -> None:
    """Failed ones retried, discarded, or kept as dead letters, by clients of either; the count is that of both."""
    there = rows(kit)
    for asked in (kit, there):
        retried, gone, letters = [
            [*await failed(kit, 2, kind=kind), *await failed(there, 3, kind=kind)] for kind in ("a", "b", "c")
        ]
        assert await kit.run(asked.store.retry_failed(Selection(kind="a"))) == 5
        assert await kit.run(asked.store.discard_failed(Selection(kind="b"))) == 5
        assert await kit.run(asked.store.move_failed_to_dlq(Selection(kind="c"))) == 5
        assert await kit.run(asked.store.dlq_depth()) == 5
        attempts = await kit.claim()
        assert sorted(a.id for a in attempts) == retried
        await kit.finalize(*(end(a) for a in attempts))
        assert [await kit.run(asked.store.get_job(id)) for id in gone] == [None] * 5
        assert await kit.states(letters) == [JobState.FAILED] * 5
        assert await kit.run(asked.store.purge_dlq(Selection())) == 5
        for id in retried:
            assert await kit.run(asked.store.delete_job(id))


async def a_queue_is_drained_of_what_moves_over_meanwhile(kit: RingKit) -> None:
    """Whichever of its statements a promotion comes after."""
    there = rows(kit)
    for place in range(4):
        ids = await there.enqueue(2, run_at=now() + HOUR)
        drain, promote = kit.store.drain_queue("q"), kit.store.promote(10, canonical=["q"])

        def plan(drain: Op[int] = drain, promote: Op[object] = promote, place: int = place) -> Plan[int]:
            steps, answer, asked = drain.start(), None, 0
            while True:
                if asked == place:
                    yield from promote.start()
                asked += 1
                try:
                    step = next(steps) if answer is None else steps.send(answer)
                except StopIteration as done:
                    count: int = done.value
                    return count
                answer = yield step

        assert await kit.run(Op("drain_queue", plan)) == 2
        assert await kit.states(ids) == [JobState.CANCELLED] * 2


async def a_key_keeps_others_out_wherever_its_job_is(kit: RingKit) -> None:
    """Also while the job moves over."""
    there = rows(kit)
    unique = Unique(b"w" * 16, HELD)
    (row,) = await there.insert(*jobs(1, unique=unique))

    async def is_held() -> None:
        for each in (kit, there):
            (found,) = await kit.run(each.store.insert(jobs(1, unique=unique), skip=True))
            assert (found.id, found.existed) == (row.id, True)

    await is_held()
    (attempt,) = await kit.claim()
    await is_held()
    await kit.close(attempt, JobState.RETRYABLE)
    assert await where(kit, row.id) == "deferred"
    await is_held()
    await kit.run(kit.store.promote(10))
    (attempt,) = await kit.claim()
    await kit.close(attempt, JobState.FAILED)
    (free,) = await kit.insert(*jobs(1, unique=unique))
    assert free.id > row.id


async def the_status_tells_what_each_engine_holds(kit: RingKit) -> None:
    """By state, and whether canonical storage takes new jobs."""
    there = rows(kit)
    await kit.enqueue(2)
    for state in (JobState.SCHEDULED, JobState.FAILED, JobState.RUNNING):
        await there.job_in(state)
    dead = await kit.job_in(JobState.FAILED, queue="f")
    await kit.run(kit.store.move_to_dlq(dead))
    status = await kit.run(storage_status(kit.schema))
    assert status.canonical_is_open
    assert {state: n for state, n in status.queue.items() if n} == {JobState.AVAILABLE: 2}
    assert {state: n for state, n in status.canonical.items() if n} == {
        JobState.SCHEDULED: 1,
        JobState.FAILED: 1,
        JobState.RUNNING: 1,
    }
    assert status.dead_letters == 1
    await switch(kit)
    assert not (await kit.run(storage_status(kit.schema))).canonical_is_open


async def claim_one_finds_a_job_of_either_engine(kit: RingKit) -> None:
    """For whoever works one job alone; it ends where it was."""
    there = rows(kit)
    for mine, other in ((kit, there), (there, kit)):
        (id,) = await mine.enqueue(kind="one")
        claimed = await kit.run(other.store.claim_one(1, kind="one"))
        assert claimed is not None
        assert [a.id for a in claimed.attempts] == [id]
        await other.close(claimed.attempts[0])
        assert await kit.run(other.store.claim_one(1, kind="one")) is None
