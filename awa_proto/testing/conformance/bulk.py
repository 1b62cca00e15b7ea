"""What people do to many jobs at once: failed ones retried or discarded, a queue drained; and a job deleted."""

from __future__ import annotations

from functools import partial

import anyio
import anyio.lowlevel

from awa_proto import extra as extras
from awa_proto.job import JobState
from awa_proto.store import Cancelled, Demand, NewJob, Selection
from awa_proto.testing.conformance.dead_letters import failed, letters
from awa_proto.testing.conformance.kit import HOUR, DatabaseKit, Kit, RingKit, end, jobs, now, together
from awa_proto.testing.conformance.people import OVER, WAITING, cancel
from awa_proto.testing.conformance.reads import agree

EVERY = Selection()


async def failed_jobs_run_again_in_bulk(kit: Kit) -> None:
    """From attempt 0, errors kept; by kind, queue, tag and age."""
    a = await failed(kit, 3, kind="a", extra=extras.encode(tags=["x"]))
    b = await failed(kit, 2, kind="b")
    other = await failed(kit, 1, kind="b", queue="r")
    errors = (await kit.job(a[0])).errors
    assert await kit.run(kit.store.retry_failed(Selection(kind="b", tag="x"))) == 0
    assert await kit.run(kit.store.retry_failed(Selection(older_than=3600.0))) == 0
    assert await kit.run(kit.store.retry_failed(Selection(kind="a", tag="x", limit=2))) == 2
    job = await kit.job(a[0])
    assert (job.state, job.attempt, job.errors, job.finalized_at) == (JobState.AVAILABLE, 0, errors, None)
    assert await kit.states([a[2], b[0], other[0]]) == [JobState.FAILED] * 3
    assert await kit.run(kit.store.retry_failed(Selection(queue="q", older_than=0.0))) == 3
    await agree(kit, a + b + other)
    assert [attempt.id for attempt in await kit.claim()] == a + b


async def failed_jobs_are_discarded_in_bulk(kit: Kit) -> None:
    """And are gone."""
    a, b = await failed(kit, 3, kind="a"), await failed(kit, 2, kind="b", queue="r")
    assert await kit.run(kit.store.discard_failed(Selection(kind="a", limit=1))) == 1
    assert await kit.run(kit.store.get_job(a[0])) is None
    assert await kit.run(kit.store.discard_failed(Selection(queue="r"))) == 2
    await agree(kit, a[1:])
    assert await kit.run(kit.store.discard_failed(EVERY)) == 2
    assert await kit.run(kit.store.get_job(b[0])) is None
    await agree(kit, [])


async def what_was_cancelled_and_dead_letters_have_not_just_failed(kit: Kit) -> None:
    """Bulk calls for failed jobs leave them alone."""
    cancelled = await kit.job_in(JobState.CANCELLED)
    (letter,) = await letters(kit)
    assert await kit.run(kit.store.retry_failed(EVERY)) == 0
    assert await kit.run(kit.store.discard_failed(EVERY)) == 0
    assert await kit.states([cancelled, letter]) == [JobState.CANCELLED, JobState.FAILED]


async def draining_a_queue_cancels_all_that_wait_in_it(kit: Kit) -> None:
    """Of every priority and stripe, due or not, paused or not; running ones go on, and so do other queues."""
    running = await kit.job_in(JobState.RUNNING)
    kept = [running, *[await kit.job_in(state) for state in OVER], *await kit.enqueue(2, queue="r")]
    waiting = [await kit.job_in(JobState.RETRYABLE)]
    await kit.run(kit.store.set_stripes("q", 2))
    waiting += [*await kit.enqueue(2, run_at=now() + HOUR)]
    waiting += [row.id for n in range(8) for row in await kit.insert(NewJob("k", "q", "{}", 1 + n % 4, ordering=n))]
    before = {id: await kit.job(id) for id in kept}
    await kit.run(kit.store.pause_queue("q", None))
    assert await kit.run(kit.store.drain_queue("q")) == len(waiting)
    assert await kit.run(kit.store.drain_queue("q")) == 0
    assert await kit.run(kit.store.drain_queue("empty")) == 0
    assert await kit.states(waiting) == [JobState.CANCELLED] * len(waiting)
    assert {id: await kit.job(id) for id in kept} == before
    await agree(kit, kept + waiting)
    await kit.run(kit.store.resume_queue("q"))
    for stripe in (0, 1):
        assert await kit.claim(stripe=stripe) == []


async def a_drained_job_keeps_its_attempts_and_can_be_retried(kit: Kit) -> None:
    """More than once; a new job of the queue is claimed as if nothing had been."""
    (id,) = await kit.enqueue(extra=extras.encode(metadata={"m": 1.0}))
    for _ in range(3):
        assert await kit.run(kit.store.drain_queue("q")) == 1
        job = await kit.job(id)
        assert (job.state, job.attempt, job.attempted_at, job.metadata) == (JobState.CANCELLED, 0, None, {"m": 1.0})
        assert job.finalized_at is not None
        assert await kit.run(kit.store.retry(id)) is not None
    (new,) = await kit.enqueue()
    attempts = await kit.claim()
    assert [attempt.id for attempt in attempts] == [id, new]
    assert attempts[0].attempt == 1
    await kit.close(attempts[0], JobState.RETRYABLE, error="no")
    await kit.run(kit.store.promote(1))
    assert await kit.run(kit.store.drain_queue("q")) == 1
    job = await kit.job(id)
    assert (job.state, job.attempt, len(job.errors)) == (JobState.CANCELLED, 1, 1)


async def a_long_queue_is_drained_to_its_end(kit: RingKit) -> None:
    """Batch by batch, over all segments; what was claimed before is not touched."""
    ids = await kit.enqueue(30)
    taken = [attempt.id for attempt in await kit.claim(20)]
    await kit.rotate()
    await kit.run(kit.store.copy(jobs(1200)))
    await kit.run(kit.store.copy(jobs(1100, run_at=now() + HOUR)))
    assert await kit.run(kit.store.drain_queue("q")) == 10 + 1200 + 1100
    assert await kit.states(ids) == [JobState.RUNNING if id in taken else JobState.CANCELLED for id in ids]
    assert await kit.claim() == []
    stat = await kit.stat()
    assert (stat.running, stat.cancelled, stat.available, stat.scheduled) == (20, 2310, 0, 0)


async def a_job_whose_transaction_commits_after_a_drain_is_not_lost(kit: DatabaseKit) -> None:
    """It was not there yet; the next claim has it."""
    async with kit.session() as user:
        await user.sql("BEGIN")
        (late,) = await user.run(kit.store.insert(jobs(1)))
        early = await kit.enqueue(3)
        assert await kit.run(kit.store.drain_queue("q")) == 3
        after = await kit.enqueue(1)
        await user.sql("COMMIT")
    assert sorted(attempt.id for attempt in await kit.claim()) == [late.id, *after]
    assert await kit.states(early) == [JobState.CANCELLED] * 3


async def a_job_is_drained_or_claimed_and_never_both(kit: DatabaseKit) -> None:
    """Whoever takes the lane's turn has the job; claimers and those who drain ask again until nothing is left."""
    ids = await kit.enqueue(400)
    taken: list[int] = []
    drained: list[int] = []

    async def claim() -> None:
        while True:
            claimed = await kit.ask(Demand("q", 7, insist=True))
            taken.extend(attempt.id for attempt in claimed.attempts)
            if not claimed.attempts and not claimed.again:
                return
            await anyio.lowlevel.checkpoint()

    async def drain() -> None:
        while not taken:
            await anyio.sleep(0.001)
        drained.append(await kit.run(kit.store.drain_queue("q")))

    await together(claim, claim, drain, drain)
    states = await kit.states(ids)
    assert len(taken) == len(set(taken))
    assert sum(drained) + len(taken) == 400
    assert [id for id, state in zip(ids, states, strict=True) if state is JobState.RUNNING] == sorted(taken)
    assert states.count(JobState.CANCELLED) == sum(drained)


async def a_job_that_has_ended_can_be_deleted(kit: Kit) -> None:
    """Then no read has it, and nobody can do anything to it; others can be not deleted."""
    (letter,) = await letters(kit, queue="l")
    ended = [await kit.job_in(state, queue=f"{state} {n}") for n in range(2) for state in OVER] + [letter]
    alive = [await kit.job_in(state, queue=state.value) for state in (*WAITING, JobState.RUNNING)]
    before = [await kit.job(id) for id in alive]
    for id in alive:
        assert not await kit.run(kit.store.delete_job(id))
    assert not await kit.run(kit.store.delete_job(10**9))
    gone = [*ended[:3], letter]
    for id in gone:
        assert await kit.run(kit.store.delete_job(id))
        assert not await kit.run(kit.store.delete_job(id))
        assert await kit.run(kit.store.get_job(id)) is None
        assert await cancel(kit, id) is Cancelled.NOT_FOUND
        assert await kit.run(kit.store.retry(id)) is None
    assert [await kit.job(id) for id in alive] == before
    await agree(kit, [*ended[3:6], *alive])


async def a_completed_job_is_deleted_among_others_of_its_claim(kit: Kit) -> None:
    """They stay, and their attempts end as before."""
    ids = await kit.enqueue(4)
    attempts = await kit.claim()
    await kit.finalize(end(attempts[0]), end(attempts[1]))
    assert await kit.run(kit.store.delete_job(ids[0]))
    await agree(kit, ids[1:])
    await kit.close(attempts[2])
    await kit.close(attempts[3], JobState.RETRYABLE)
    await agree(kit, ids[1:])


async def a_deletion_is_undone_by_a_rollback(kit: DatabaseKit) -> None:
    """As everything else of the transaction."""
    ids = [await kit.job_in(state, queue=state.value) for state in OVER]
    async with kit.session() as user:
        await user.sql("BEGIN")
        for id in ids:
            assert await user.run(kit.store.delete_job(id))
        await user.sql("ROLLBACK")
    await agree(kit, ids)


async def two_that_delete_a_job_at_once_agree_on_one(kit: DatabaseKit) -> None:
    """Of each state that is over."""
    ids = [await kit.job_in(state, queue=state.value) for state in OVER]
    answers: list[bool] = []

    async def delete(id: int) -> None:
        answers.append(await kit.run(kit.store.delete_job(id)))

    await together(*(partial(delete, id) for id in ids * 3))
    assert sorted(answers) == [False] * 6 + [True] * 3
    await agree(kit, [])
