"""Close: an attempt ends once, and the job is what the accepted ending says."""

from __future__ import annotations

import dataclasses
import itertools

from awa_proto import extra as extras
from awa_proto.job import JobState
from awa_proto.store import Ended, Verdict
from awa_proto.testing.conformance.kit import HOUR, OUTCOMES, Kit, end, jobs, metadata, now

ACCEPTED, STALE = Verdict.ACCEPTED, Verdict.STALE


async def every_outcome_leaves_the_job_in_its_state(kit: Kit) -> None:
    """The matrix of semantics.md as far as a store sees it."""
    for to in OUTCOMES:
        (id,) = await kit.enqueue()
        (attempt,) = await kit.claim()
        due = now() + HOUR
        before = await kit.job(id)
        ended = end(attempt, to, due=due, error="why" if to in {JobState.RETRYABLE, JobState.FAILED} else None)
        assert await kit.finalize(ended) == [ACCEPTED]
        job = await kit.job(id)
        assert job.state is to
        assert job.run_lease == attempt.run_lease
        assert job.attempt == (0 if to in {JobState.SCHEDULED, JobState.AVAILABLE} else 1)
        assert job.deadline_at is None
        assert job.created_at == before.created_at
        assert (job.run_at == due) is (to in {JobState.SCHEDULED, JobState.RETRYABLE})
        assert [entry["error"] for entry in job.errors] == (["why"] if ended.transition.entry else [])
        finalized = to in {JobState.COMPLETED, JobState.RETRYABLE, JobState.FAILED, JobState.CANCELLED}
        assert (job.finalized_at is not None) is finalized
        if to is JobState.AVAILABLE:
            (again,) = await kit.claim()
            assert (again.id, again.attempt) == (id, 1)
            assert again.run_lease > attempt.run_lease
        else:
            assert job.attempted_at == before.attempted_at
        assert await kit.claim() == []


async def a_batch_ends_each_attempt_its_own_way(kit: Kit) -> None:
    """Over several lanes and claims, verdicts in the order given."""
    ids = [id for priority in (1, 2, 3) for id in await kit.enqueue(8, priority=priority)]
    attempts = [a for _ in range(3) for a in await kit.claim(8)]
    assert {a.id for a in attempts} == set(ids)
    ends = [end(a, OUTCOMES[(a.id * 7 + n) % 6], due=now() + HOUR) for n, a in enumerate(attempts)]
    ends.reverse()
    assert await kit.finalize(*ends) == [ACCEPTED] * 24
    assert [(await kit.job(e.attempt.id)).state for e in ends] == [e.transition.to for e in ends]


async def the_same_flush_may_be_sent_again(kit: Kit) -> None:
    """An answer that was lost is asked for again; what was written stays as it was."""
    for to in OUTCOMES:
        await kit.enqueue(3)
        attempts = await kit.claim()
        flush = kit.flush
        ends = [end(a, to, due=now() + HOUR, error="once") for a in attempts]
        assert await kit.finalize(*ends[:2], flush=flush) == [ACCEPTED] * 2
        before = [await kit.job(a.id) for a in attempts[:2]]
        assert await kit.finalize(*ends, flush=flush) == [ACCEPTED] * 3
        assert await kit.finalize(*ends, flush=flush) == [ACCEPTED] * 3
        assert [await kit.job(a.id) for a in attempts[:2]] == before
        assert await kit.finalize(*ends) == [STALE] * 3
        for attempt in await kit.claim():
            await kit.close(attempt)


async def of_two_endings_the_first_counts_for_every_pair_of_outcomes(kit: Kit) -> None:
    """The second is stale, writes nothing, and the job's row is what the accepted one says."""
    for first, second in itertools.product(OUTCOMES, OUTCOMES):
        (id,) = await kit.enqueue()
        (attempt,) = await kit.claim()
        assert await kit.finalize(end(attempt, first, due=now() + HOUR, error="first")) == [ACCEPTED]
        before = await kit.job(id)
        assert await kit.finalize(end(attempt, second, due=now() + 2 * HOUR, error="second")) == [STALE]
        assert await kit.job(id) == before
        assert before.state is first
        for released in await kit.claim():
            await kit.close(released)


async def overlapping_flushes_share_a_claim_without_a_rest(kit: Kit) -> None:
    """Each index is accepted by exactly one of them, and a resend of either is answered as before."""
    await kit.enqueue(6)
    attempts = await kit.claim()
    one, two = kit.flush, kit.flush
    ends = [end(a) for a in attempts]
    assert await kit.finalize(*ends[:4], flush=one) == [ACCEPTED] * 4
    assert await kit.finalize(*ends[2:], flush=two) == [STALE] * 2 + [ACCEPTED] * 2
    assert await kit.finalize(*ends, flush=one) == [ACCEPTED] * 4 + [STALE] * 2
    assert await kit.finalize(*ends, flush=two) == [STALE] * 4 + [ACCEPTED] * 2


async def a_wrong_fence_is_stale(kit: Kit) -> None:
    """The job is not enough, nor where its attempt is kept: the lease tells."""
    await kit.enqueue(1)
    (attempt,) = await kit.claim()
    for to in OUTCOMES:
        for wrong in (-1, 1):
            assert await kit.finalize(end(attempt._replace(run_lease=attempt.run_lease + wrong), to)) == [STALE]
    await kit.close(attempt)
    (stat,) = [await kit.stat()]
    assert (stat.running, stat.completed, stat.available) == (0, 1, 0)


async def an_attempt_listed_twice_in_a_flush_ends_once(kit: Kit) -> None:
    """A careless caller does not upset the counts."""
    for to in OUTCOMES:
        (id,) = await kit.enqueue()
        (attempt,) = await kit.claim()
        ended = end(attempt, to, due=now() + HOUR)
        assert await kit.finalize(ended, ended) == [ACCEPTED] * 2
        assert (await kit.job(id)).state is to
        stat = await kit.stat()
        assert (stat.running, stat.available) == (0, to is JobState.AVAILABLE)
        for released in await kit.claim():
            await kit.close(released)


async def nothing_to_end_is_nothing_done(kit: Kit) -> None:
    """An empty flush is allowed."""
    assert await kit.finalize() == []


async def a_job_keeps_its_body_through_every_way_it_can_go(kit: Kit) -> None:
    """claim, retry, promote, claim, snooze, promote, claim, release, claim, cancel, retry, claim, fail, retry, move, claim.

    The attempt count, the lease, metadata, tags, deadline, args and errors are right at every step.
    """
    extra = extras.encode(metadata={"keep": "ü"}, tags=["a", "b"], deadline=900.0)
    (row,) = await kit.insert(*jobs(1, extra=extra, priority=3, max_attempts=9))
    lease = 0
    errors: list[str] = []

    async def claim(number: int, queue: str = "q") -> Ended:
        nonlocal lease
        (a,) = await kit.claim(queue=queue)
        assert (a.id, a.attempt, a.args, a.max_attempts, a.created_at) == (row.id, number, '{"n":0}', 9, row.created_at)
        assert a.run_lease > lease
        assert metadata(a.extra) == {"keep": "ü"}
        body = extras.decode(a.extra)
        assert (body["tags"], body["deadline"]) == (["a", "b"], 900.0)
        assert [entry["error"] for entry in body.get("errors", [])] == errors
        lease = a.run_lease
        return end(a)

    async def check(state: JobState, attempt: int) -> None:
        job = await kit.job(row.id)
        assert (job.state, job.attempt, job.run_lease) == (state, attempt, lease)
        assert (job.metadata, job.tags, job.priority, job.max_attempts) == ({"keep": "ü"}, ["a", "b"], 3, 9)
        assert (job.kind, job.args, job.created_at) == (row.kind, row.args, row.created_at)
        assert [entry["error"] for entry in job.errors] == errors

    await kit.close((await claim(1)).attempt, JobState.RETRYABLE, error="one")
    errors.append("one")
    await check(JobState.RETRYABLE, 1)
    assert (await kit.run(kit.store.promote(9))).count == 1
    await check(JobState.AVAILABLE, 1)
    await kit.close((await claim(2)).attempt, JobState.SCHEDULED)
    await check(JobState.SCHEDULED, 1)
    assert (await kit.run(kit.store.promote(9))).count == 1
    await kit.close((await claim(2)).attempt, JobState.AVAILABLE)
    await check(JobState.AVAILABLE, 1)
    await claim(2)
    await check(JobState.RUNNING, 2)
    await kit.run(kit.store.cancel(row.id))
    await check(JobState.CANCELLED, 2)
    again = await kit.run(kit.store.retry(row.id))
    assert again == await kit.job(row.id)
    await check(JobState.AVAILABLE, 0)
    await kit.close((await claim(1)).attempt, JobState.FAILED, error="two")
    errors.append("two")
    await check(JobState.FAILED, 1)
    await kit.run(kit.store.retry(row.id))
    await kit.run(kit.store.cancel(row.id))
    await check(JobState.CANCELLED, 0)
    await kit.run(kit.store.retry(row.id))
    await kit.run(kit.store.move(row.id, queue="other"))
    await check(JobState.AVAILABLE, 0)
    await kit.close((await claim(1, "other")).attempt)
    await check(JobState.COMPLETED, 1)


async def errors_are_kept_first_and_latest(kit: Kit) -> None:
    """A job retried for months does not grow: at most 50 entries, the first one stays."""
    (id,) = await kit.enqueue(max_attempts=1000)
    for number in range(1, 61):
        (attempt,) = await kit.claim()
        assert attempt.attempt == number
        await kit.close(attempt, JobState.RETRYABLE, error=f"{number}")
        assert (await kit.run(kit.store.promote(9))).count == 1
    errors = [entry["error"] for entry in (await kit.job(id)).errors]
    assert errors == ["1", *(f"{n}" for n in range(12, 61))]


async def an_ending_says_when_it_happened(kit: Kit) -> None:
    """Rows, events and entries carry one instant: that of the transition, for what is retried or failed."""
    for to in (JobState.RETRYABLE, JobState.FAILED, JobState.CANCELLED):
        await kit.enqueue()
        (attempt,) = await kit.claim()
        ended = end(attempt, to, due=now() + HOUR)
        at = ended.transition.at - HOUR
        ended = Ended(attempt, dataclasses.replace(ended.transition, at=at))
        assert await kit.finalize(ended) == [ACCEPTED]
        assert (await kit.job(attempt.id)).finalized_at == at
