"""Retention: what ended long ago is deleted with all that belongs to it, and nothing else is."""

from __future__ import annotations

from awa_proto.job import JobState
from awa_proto.store import Progress
from awa_proto.testing.conformance.kit import HOUR, OUTCOMES, DatabaseKit, Kit, RingKit, RowKit, end, jobs, now
from awa_proto.testing.conformance.reads import agree
from awa_proto.testing.conformance.unique import key, unique


async def the_oldest_failed_and_cancelled_jobs_go_first(kit: Kit) -> None:
    """So many at a time, and none that is too young; all others stay, dead letters too."""
    ids = await kit.enqueue(9)
    attempts = {a.id: a for a in await kit.claim()}
    order = [ids[2], ids[0], ids[1], ids[3]]
    for number, id in enumerate(order):
        await kit.close(attempts[id], (JobState.FAILED, JobState.CANCELLED)[number % 2])
    letter, completed, running, retryable, cancelled = ids[4:]
    await kit.close(attempts[letter], JobState.FAILED)
    await kit.run(kit.store.move_to_dlq(letter))
    await kit.close(attempts[completed])
    await kit.close(attempts[retryable], JobState.RETRYABLE, due=now() + HOUR)
    await kit.run(kit.store.cancel(cancelled))
    assert await kit.run(kit.store.prune_failed(3600.0, 100)) == 0
    assert await kit.run(kit.store.prune_failed(0.0, 3)) == 3
    await agree(kit, [order[3], letter, completed, running, retryable, cancelled])
    assert await kit.run(kit.store.prune_failed(0.0, 100)) == 2
    await agree(kit, [letter, completed, running, retryable])


async def retention_goes_on_until_all_is_done_that_it_may(kit: Kit) -> None:
    """More than a batch, up to the limit."""
    await kit.run(kit.store.copy(jobs(2300, queue="q")))
    for attempts in (await kit.claim(1000), await kit.claim(1000), await kit.claim(1000)):
        await kit.finalize(*(end(a, JobState.FAILED) for a in attempts))
    assert await kit.run(kit.store.prune_failed(0.0, 2200)) == 2200
    assert await kit.run(kit.store.prune_failed(0.0, 2200)) == 100
    assert await kit.run(kit.store.prune_failed(0.0, 2200)) == 0


async def completed_rows_of_canonical_storage_go_by_age(kit: RowKit) -> None:
    """And nothing else that is in their table; what is younger stays."""
    waiting, *done = await kit.enqueue(6)
    attempts = {attempt.id: attempt for attempt in await kit.claim()}
    running, failed, *done = done
    await kit.close(attempts[failed], JobState.FAILED)
    await kit.close(attempts[waiting], JobState.RETRYABLE, due=now() + HOUR)
    await kit.finalize(*(end(attempts[id]) for id in done))
    assert await kit.run(kit.store.prune_completed(3600.0, 100)) == 0
    assert await kit.run(kit.store.prune_completed(0.0, 2)) == 2
    assert await kit.run(kit.store.prune_completed(0.0, 2)) == 1
    assert await kit.run(kit.store.prune_completed(0.0, 2)) == 0
    states = [await kit.run(kit.store.get_job(id)) for id in (waiting, running, failed, *done)]
    assert [job and job.state for job in states] == [
        JobState.RETRYABLE, JobState.RUNNING, JobState.FAILED, None, None, None,
    ]  # fmt: skip


async def what_goes_takes_its_unique_key_along(kit: DatabaseKit) -> None:
    """Of failed jobs and of dead letters; not a key that another job has by now, and whoever wants one is not waited for."""
    for prune, dead in ((kit.store.prune_failed, False), (kit.store.prune_dlq, True)):
        names = [f"{name}{dead}" for name in ("own", "passed on", "wanted")]
        rows = await kit.insert(*(unique(name) for name in names))
        for attempt in await kit.claim():
            await kit.close(attempt, JobState.FAILED)
            if dead:
                await kit.run(kit.store.move_to_dlq(attempt.id))
        (newer,) = await kit.insert(unique(names[1]))
        async with kit.session() as user:
            await user.sql("BEGIN ISOLATION LEVEL READ COMMITTED")
            (wanting,) = await user.run(kit.store.insert([unique(names[2])]))
            assert await kit.run(prune(0.0, 100)) == 3
            await user.sql("COMMIT")
        assert [await kit.run(kit.store.get_job(row.id)) for row in rows] == [None] * 3
        holders = [await kit.run(kit.store.holder(key(name))) for name in names]
        assert holders == [None, newer.id, wanting.id]
        await kit.claim()


async def a_job_somebody_is_retrying_is_left_alone(kit: DatabaseKit) -> None:
    """Its row is locked; nobody waits."""
    first = await kit.job_in(JobState.FAILED, queue="a")
    other = await kit.job_in(JobState.CANCELLED, queue="b")
    async with kit.session() as user:
        await user.sql("BEGIN")
        assert await user.run(kit.store.retry(first)) is not None
        assert await kit.run(kit.store.prune_failed(0.0, 100)) == 1
        await user.sql("COMMIT")
    assert await kit.states([first]) == [JobState.AVAILABLE]
    assert await kit.run(kit.store.get_job(other)) is None


async def what_ended_attempts_have_recorded_is_not_kept(kit: RingKit) -> None:
    """A row that a race has left behind; of running attempts it stays."""
    ids = await kit.enqueue(8)
    attempts = await kit.claim()
    await kit.run(kit.store.record_progress([Progress(a, '{"at": 1}') for a in attempts]))
    kept = await kit.sql("SELECT job_id, run_lease, progress::text FROM awa.attempts ORDER BY job_id")
    assert await kit.run(kit.store.prune_attempts(100)) == 0
    await kit.finalize(
        *(end(a, to, due=now() + HOUR)._replace(flushed=True) for a, to in zip(attempts, OUTCOMES, strict=False))
    )
    for job_id, lease, progress in kept[:6]:
        await kit.sql(f"INSERT INTO awa.attempts VALUES ({job_id}, {lease}, '{progress}')")
    await kit.sql("INSERT INTO awa.attempts VALUES (999999, 1, '{}')")
    assert await kit.run(kit.store.prune_attempts(100)) == 7
    assert await kit.sql("SELECT job_id FROM awa.attempts ORDER BY job_id") == [(id,) for id in ids[6:]]
    assert [(await kit.job(id)).progress for id in ids[6:]] == [{"at": 1}] * 2
