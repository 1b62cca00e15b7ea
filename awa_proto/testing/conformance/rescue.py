"""Rescue: what a silent worker held is found, page by page, and ended like any attempt, by one closer."""

# ruff: noqa: D103  # a scenario is named as a sentence

from __future__ import annotations

from awa_proto.events import RescueReason
from awa_proto.extra import encode, with_unique
from awa_proto.job import Attempt, JobState
from awa_proto.outcome import conclude
from awa_proto.plan import Op
from awa_proto.store import Demand, Ended, NewJob, Place, Progress, Stranded, StrandedPage, Unique, Verdict, WorkerInfo
from awa_proto.testing.conformance.kit import DatabaseKit, Kit, RingKit, end, jobs
from awa_proto.unique import mask

LONG, NOW = 3600.0, 0.0
"""Seconds of silence: nobody in a test is silent for so long, and everybody is for none."""
WORKER = WorkerInfo(("q",), hostname="kit", pid=1)


def rescued(stranded: Stranded, reason: RescueReason = RescueReason.STALE_HEARTBEAT) -> Ended:
    """How rescue ends an attempt."""
    transition = conclude(stranded.attempt, reason, stranded.at, lambda: 0.0)
    return Ended(stranded.attempt, transition, flushed=True)


async def pages(kit: Kit, limit: int) -> list[list[Attempt]]:
    """Every page of what is stale at once."""
    found: list[list[Attempt]] = []
    after: Place | None = None
    while True:
        page = await kit.run(kit.store.find_stale(NOW, limit, after))
        found.append([stranded.attempt for stranded in page.stranded])
        if page.after is None:
            return found
        after = page.after


async def found(kit: Kit, op: Op[StrandedPage]) -> set[int]:
    """The jobs of one page."""
    page = await kit.run(op)
    return {stranded.attempt.id for stranded in page.stranded}


async def an_attempt_is_found_as_its_claim_gave_it_and_only_while_it_runs(kit: Kit) -> None:
    await kit.enqueue(6, extra=encode(metadata={"m": 1}))
    attempts = await kit.claim(5)
    await kit.close(attempts[0])
    await kit.close(attempts[1], JobState.RETRYABLE)
    await kit.close(attempts[2], JobState.AVAILABLE)
    page = await kit.run(kit.store.find_stale(NOW, 100))
    assert [stranded.attempt for stranded in page.stranded] == attempts[3:]
    assert page.after is None
    assert await found(kit, kit.store.find_stale(LONG, 100)) == set()


async def pages_go_on_after_the_last_attempt_whatever_ends_meanwhile(kit: Kit) -> None:
    await kit.enqueue(7)
    attempts = [a for n in (3, 1, 3) for a in await kit.claim(n)]
    whole = await pages(kit, 2)
    assert [a.id for page in whole for a in page] == [a.id for a in attempts]
    assert [len(page) for page in whole] == [2, 2, 2, 1]
    first = await kit.run(kit.store.find_stale(NOW, 2))
    await kit.finalize(*(rescued(stranded) for stranded in first.stranded))
    second = await kit.run(kit.store.find_stale(NOW, 100, first.after))
    assert [stranded.attempt for stranded in second.stranded] == attempts[2:]


async def a_rescued_attempt_keeps_its_progress_and_a_late_result_is_stale(kit: Kit) -> None:
    (id,) = await kit.enqueue(extra=encode(tags=["t"]))
    (attempt,) = await kit.claim()
    await kit.run(kit.store.record_progress([Progress(attempt, '{"percent":40}')]))
    page = await kit.run(kit.store.find_stale(NOW, 10))
    assert await kit.finalize(rescued(page.stranded[0])) == [Verdict.ACCEPTED]
    assert await kit.finalize(end(attempt)) == [Verdict.STALE]
    job = await kit.job(id)
    assert (job.state, job.attempt, job.progress, job.tags) == (JobState.RETRYABLE, 1, {"percent": 40}, ["t"])
    assert [entry["error"] for entry in job.errors] == ["rescued: heartbeat stale, its worker is presumed dead"]
    assert await found(kit, kit.store.find_stale(NOW, 10)) == set()


async def an_attempt_that_ended_after_it_was_found_is_not_rescued(kit: Kit) -> None:
    (id,) = await kit.enqueue()
    (attempt,) = await kit.claim()
    page = await kit.run(kit.store.find_stale(NOW, 10))
    await kit.close(attempt)
    assert await kit.finalize(rescued(page.stranded[0])) == [Verdict.STALE]
    assert (await kit.job(id)).state is JobState.COMPLETED


async def a_poison_job_ends_by_its_max_attempts(kit: Kit) -> None:
    (id,) = await kit.enqueue(max_attempts=2)
    for _ in range(2):
        await kit.claim()
        page = await kit.run(kit.store.find_stale(NOW, 10))
        ended = rescued(page.stranded[0])
        again = ended.transition.to is JobState.RETRYABLE
        await kit.finalize(
            end(ended.attempt, JobState.RETRYABLE, error="rescued") if again else ended  # due at once
        )
        await kit.run(kit.store.promote(10))
    job = await kit.job(id)
    assert (job.state, job.attempt, len(job.errors)) == (JobState.FAILED, 2, 2)


async def the_deadline_of_a_job_counts_before_that_of_its_claim(kit: Kit) -> None:
    """Late by less than nothing: what is due within so many seconds."""
    own = [encode(deadline=100.0), encode(deadline=10_000.0), None]
    await kit.insert(*(NewJob("k", "q", "{}", extra=extra) for extra in own))
    await kit.insert(*jobs(1, queue="none"))
    soon, late, default = (a.id for a in await kit.claim(deadline=1_000.0))
    await kit.claim(queue="none")
    assert await found(kit, kit.store.find_overdue(NOW, 10)) == set()
    assert await found(kit, kit.store.find_overdue(-500.0, 10)) == {soon}
    assert await found(kit, kit.store.find_overdue(-5_000.0, 10)) == {soon, default}
    assert await found(kit, kit.store.find_overdue(-50_000.0, 10)) == {soon, late, default}
    first = await kit.run(kit.store.find_overdue(-50_000.0, 1))
    assert first.after is not None
    rest = await kit.run(kit.store.find_overdue(-50_000.0, 10, first.after))
    assert [stranded.attempt.id for stranded in (*first.stranded, *rest.stranded)] == [soon, late, default]


async def a_rescued_attempt_wins_its_key_again_or_is_cancelled_as_a_duplicate(kit: Kit) -> None:
    states = mask([JobState.AVAILABLE, JobState.RETRYABLE])
    unique = Unique(b"r" * 16, states)

    async def keyed() -> Attempt:
        await kit.insert(NewJob("k", "q", "{}", extra=with_unique(None, *unique), unique=unique))
        (attempt,) = await kit.claim()
        return attempt

    older, newer = await keyed(), await keyed()
    page = await kit.run(kit.store.find_stale(NOW, 10))
    assert await kit.finalize(rescued(page.stranded[1])) == [Verdict.ACCEPTED]
    assert await kit.finalize(rescued(page.stranded[0])) == [Verdict.DUPLICATE]
    assert (await kit.job(newer.id)).state is JobState.RETRYABLE
    job = await kit.job(older.id)
    assert (job.state, job.errors[-1]["error"]) == (JobState.CANCELLED, "rescheduled as duplicate")


async def what_a_worker_does_not_know_of_its_own_claims_is_found(kit: Kit) -> None:
    mine, other = (await kit.register()).instance, (await kit.register()).instance
    await kit.enqueue(7)

    async def claim(instance: int, wanted: int) -> list[Attempt]:
        return list((await kit.ask(Demand("q", wanted, aging=0.0), instance=instance)).attempts)

    known = await claim(mine, 2)
    await claim(other, 1)
    lost = await claim(mine, 3)
    finished = await claim(mine, 1)
    await kit.close(lost[1])
    await kit.close(finished[0])
    unknown = await kit.run(kit.store.unknown(mine, [a.claim_id for a in known], known[0].claim_id))
    assert unknown == [lost[0], lost[2]]
    assert await kit.run(kit.store.unknown(mine, [known[0].claim_id, lost[0].claim_id], 0)) == []


async def a_worker_that_beats_keeps_its_attempts_however_old_they_are(kit: DatabaseKit) -> None:
    instance = (await kit.register()).instance
    (id,) = await kit.enqueue()
    await kit.ask(Demand("q", 1), instance=instance)

    async def age(table: str, column: str) -> None:
        await kit.sql(f"UPDATE {kit.schema}.{table} SET {column} = {column} - interval '1 day 1 hour'")

    await age("instances", "heartbeat_at")
    assert await found(kit, kit.store.find_stale(LONG, 10)) == set(), "the claim itself is a sign of life"
    await age("claims", "claimed_at")
    await age("jobs_hot", "attempted_at")
    await kit.run(kit.store.beat(instance, WORKER))
    assert await found(kit, kit.store.find_stale(LONG, 10)) == set()
    await age("instances", "heartbeat_at")
    assert await found(kit, kit.store.find_stale(LONG, 10)) == {id}
    assert await kit.sql(f"SELECT id FROM {kit.schema}.instances WHERE id = {instance}") == [], "gone for a day"
    await kit.run(kit.store.beat(instance, WORKER))
    assert await found(kit, kit.store.find_stale(LONG, 10)) == set(), "a worker that was forgotten is there again"
    await kit.run(kit.store.unregister(instance))
    assert await found(kit, kit.store.find_stale(LONG, 10)) == {id}


async def attempts_of_every_segment_and_lane_are_found(kit: RingKit) -> None:
    """Also of the lanes aside, in which jobs are claimed one by one."""
    expected: list[int] = []
    for priority in (1, 2, 3):
        await kit.insert(*jobs(4, priority=priority))
        expected += [a.id for a in await kit.claim(3)]
        alone = await kit.run(kit.store.claim_one(1, queue="q"))
        assert alone is not None
        expected += [a.id for a in alone.attempts]
        await kit.rotate()
    assert {a.id for page in await pages(kit, 5) for a in page} == set(expected)
    assert {a.id for page in await pages(kit, 100) for a in page} == set(expected)
