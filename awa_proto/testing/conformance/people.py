"""What people do to single jobs: cancel, retry, move. A job is where they put it, and nowhere else."""

from __future__ import annotations

from functools import partial

import anyio

from awa_proto.job import JobState
from awa_proto.store import Cancelled, NewJob, Verdict
from awa_proto.testing.conformance.kit import HOUR, OUTCOMES, DatabaseKit, Kit, RingKit, Session, end, now, together

WAITING = (JobState.AVAILABLE, JobState.SCHEDULED, JobState.RETRYABLE)
OVER = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)


async def cancel(kit: Kit, id: int) -> Cancelled:
    """Cancel, as often as it takes."""
    while (answer := await kit.run(kit.store.cancel(id))) is Cancelled.AGAIN:
        await anyio.sleep(0.001)
    return answer


async def move(kit: Kit, id: int, queue: str | None = None, priority: int | None = None) -> Cancelled:
    """Move, as often as it takes."""
    while (answer := await kit.run(kit.store.move(id, queue=queue, priority=priority))) is Cancelled.AGAIN:
        await anyio.sleep(0.001)
    return answer


async def a_job_nobody_runs_is_cancelled_where_it_waits(kit: Kit) -> None:
    """It is never handed out, and a second cancellation finds that it has ended."""
    for state in WAITING:
        id = await kit.job_in(state)
        assert await cancel(kit, id) is Cancelled.CANCELLED
        job = await kit.job(id)
        assert job.state is JobState.CANCELLED
        assert job.finalized_at is not None
        assert await cancel(kit, id) is Cancelled.ENDED
    await kit.run(kit.store.promote(100))
    assert await kit.claim() == []
    assert (await kit.stat()).cancelled == 3


async def cancelling_one_of_many_leaves_the_others_in_order(kit: Kit) -> None:
    """H2: it takes the lane's turn and leaves its cursor where it was."""
    ids = await kit.enqueue(6)
    assert [a.id for a in await kit.claim(1)] == ids[:1]
    for id in (ids[1], ids[4]):
        assert await cancel(kit, id) is Cancelled.CANCELLED
    assert [a.id for a in await kit.claim(2)] == ids[2:4]
    assert await cancel(kit, ids[5]) is Cancelled.CANCELLED
    assert await kit.claim() == []


async def cancelling_a_running_job_ends_its_attempt(kit: Kit) -> None:
    """What its handler says afterwards is stale, whatever it is."""
    for to in OUTCOMES:
        id = await kit.job_in(JobState.AVAILABLE)
        (attempt,) = await kit.claim()
        assert await cancel(kit, id) is Cancelled.RUNNING
        before = await kit.job(id)
        assert (before.state, before.attempt, before.run_lease) == (JobState.CANCELLED, 1, attempt.run_lease)
        assert await cancel(kit, id) is Cancelled.ENDED
        assert await kit.finalize(end(attempt, to)) == [Verdict.STALE]
        assert await kit.job(id) == before


async def what_has_ended_cannot_be_cancelled_or_moved(kit: Kit) -> None:
    """Nor what never was."""
    for state in OVER:
        id = await kit.job_in(state)
        before = await kit.job(id)
        assert await cancel(kit, id) is Cancelled.ENDED
        assert await move(kit, id, "other", 1) is Cancelled.ENDED
        assert await kit.job(id) == before
    for id in (0, -1, 10**9, 2**63 - 1):
        assert await cancel(kit, id) is Cancelled.NOT_FOUND
        assert await move(kit, id, "other") is Cancelled.NOT_FOUND


async def a_failed_or_cancelled_job_is_retried_from_attempt_0(kit: Kit) -> None:
    """Now, whatever its run_at was; its lease goes on rising."""
    for state in (JobState.FAILED, JobState.CANCELLED):
        id = await kit.job_in(state)
        lease = (await kit.job(id)).run_lease
        row = await kit.run(kit.store.retry(id))
        assert row is not None
        assert (row.id, row.state, row.attempt, row.run_lease) == (id, JobState.AVAILABLE, 0, lease)
        assert row.finalized_at is None
        assert row == await kit.job(id)
        assert await kit.run(kit.store.retry(id)) is None
        (attempt,) = await kit.claim()
        assert (attempt.id, attempt.attempt) == (id, 1)
        assert attempt.run_lease > lease
        await kit.close(attempt)


async def no_other_job_can_be_retried(kit: Kit) -> None:
    """None, and nothing changes."""
    for state in (*WAITING, JobState.COMPLETED, JobState.RUNNING):
        id = await kit.job_in(state, queue=state.value)
        before = await kit.job(id)
        assert await kit.run(kit.store.retry(id)) is None
        assert await kit.job(id) == before
    assert await kit.run(kit.store.retry(10**9)) is None


async def a_cancelled_schedule_that_is_retried_runs_now(kit: Kit) -> None:
    """A person who retries does not want to wait for its old time."""
    id = await kit.job_in(JobState.SCHEDULED)
    await cancel(kit, id)
    row = await kit.run(kit.store.retry(id))
    assert row is not None
    assert row.run_at < now() + HOUR / 2
    assert [a.id for a in await kit.claim()] == [id]


async def a_job_nobody_runs_can_be_moved(kit: Kit) -> None:
    """To another queue, another priority, or both; it goes to the end of its new lane and keeps its body."""
    for state in WAITING:
        id = await kit.job_in(state)
        before = await kit.job(id)
        assert await move(kit, id, priority=1) is Cancelled.CANCELLED
        assert await move(kit, id, queue=f"to {state}") is Cancelled.CANCELLED
        assert await move(kit, id, queue=f"at {state}", priority=3) is Cancelled.CANCELLED
        job = await kit.job(id)
        assert (job.queue, job.priority, job.state) == (f"at {state}", 3, state)
        assert (job.run_at, job.created_at, job.args) == (before.run_at, before.created_at, before.args)
    assert await kit.claim() == []
    (first,) = await kit.enqueue(queue="at available", priority=3)
    ids = [a.id for a in await kit.claim(queue="at available")]
    assert len(ids) == 2
    assert ids[1] == first


async def a_moved_job_is_handed_out_once_at_its_new_place(kit: Kit) -> None:
    """Those around it keep their order."""
    ids = await kit.enqueue(5)
    assert [a.id for a in await kit.claim(1)] == ids[:1]
    assert await move(kit, ids[2], "other") is Cancelled.CANCELLED
    assert await move(kit, ids[3], priority=1) is Cancelled.CANCELLED
    assert [a.id for a in await kit.claim()] == [ids[3], ids[1], ids[4]]
    assert [a.id for a in await kit.claim(queue="other")] == [ids[2]]
    assert await kit.claim() == []


async def a_running_job_cannot_be_moved(kit: Kit) -> None:
    """It stays where it runs."""
    id = await kit.job_in(JobState.RUNNING)
    assert await move(kit, id, "other") is Cancelled.RUNNING
    assert (await kit.job(id)).queue == "q"


async def a_claim_that_waited_for_a_move_sees_it(kit: RingKit) -> None:
    """H2: move takes the lane's turn, so a claim with an older cursor takes nothing and asks again."""
    ids = await kit.enqueue(2)
    taken: list[int] = []

    async def claim() -> None:
        taken.extend([a.id for a in await kit.claim()])

    async def commit(session: Session) -> None:
        await kit.until_waiting("transactionid")
        await session.sql("COMMIT")

    async with kit.session() as admin:
        await admin.sql("BEGIN")
        assert await admin.run(kit.store.move(ids[0], queue="other")) is Cancelled.CANCELLED
        await together(claim, partial(commit, admin))
    assert taken == ids[1:]
    assert [a.id for a in await kit.claim(queue="other")] == ids[:1]


async def what_people_do_in_a_transaction_that_rolls_back_has_not_happened(kit: DatabaseKit) -> None:
    """Also after they enqueued there themselves; and in one that commits, all of it has."""
    (id,) = await kit.enqueue()
    failed = await kit.job_in(JobState.FAILED, queue="f")
    for level in ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"):
        was = (await kit.job(failed)).state
        own = (await kit.insert(NewJob("k", "unused", "{}")))[0]
        for verdict in ("ROLLBACK", "COMMIT"):
            async with kit.session() as user:
                await user.sql(f"BEGIN ISOLATION LEVEL {level}")
                (own,) = await user.run(kit.store.insert([NewJob("k", level, "{}")]))
                assert await user.run(kit.store.cancel(own.id)) is Cancelled.CANCELLED
                assert await user.run(kit.store.retry(own.id)) is not None
                assert await user.run(kit.store.move(own.id, priority=1)) is Cancelled.CANCELLED
                assert await user.run(kit.store.cancel(id)) is Cancelled.CANCELLED
                assert await user.run(kit.store.retry(failed)) is not None
                await user.sql(verdict)
            if verdict == "ROLLBACK":
                assert await kit.states([id, failed]) == [JobState.AVAILABLE, was]
                assert await kit.run(kit.store.get_job(own.id)) is None
        assert await kit.states([id, failed, own.id]) == [JobState.CANCELLED, *[JobState.AVAILABLE] * 2]
        assert [a.id for a in await kit.claim(queue=level)] == [own.id]
        assert await kit.claim() == []
        await kit.run(kit.store.retry(id))
        await cancel(kit, failed)
