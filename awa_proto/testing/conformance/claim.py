"""Claim: each job once, best first, fenced by a lease that only rises."""

from __future__ import annotations

from datetime import timedelta

from awa_proto import extra as extras
from awa_proto.job import JobState
from awa_proto.store import Demand, JobFilter, NewJob
from awa_proto.testing.conformance.kit import HOUR, Kit, jobs, now


async def jobs_of_a_lane_are_claimed_in_the_order_they_came(kit: Kit) -> None:
    """In bites of any size, whatever calls they came in, and never twice."""
    ids = [*await kit.enqueue(5), *await kit.enqueue(1), *await kit.enqueue(7)]
    taken: list[int] = []
    for wanted in (1, 4, 2, 0, 3, 100, 100):
        taken += [a.id for a in await kit.claim(wanted)] if wanted else []
    assert taken == ids


async def a_claim_tells_all_a_worker_needs(kit: Kit) -> None:
    """The attempt, its fence, and the job as it was enqueued."""
    extra = extras.encode(metadata={"a": 1}, tags=["t"])
    (row,) = await kit.insert(NewJob("kind", "q", '{"b":1,"a":1.0}', priority=3, max_attempts=7, extra=extra))
    worker = await kit.register("q")
    claimed = await kit.run(kit.store.claim(worker.instance, worker.ring, [Demand("q", 5)]))
    (a,) = claimed.attempts
    assert (a.id, a.queue, a.kind, a.priority, a.args) == (row.id, "q", "kind", 3, '{"b":1,"a":1.0}')
    assert (a.attempt, a.max_attempts, a.run_at, a.created_at) == (1, 7, row.run_at, row.created_at)
    assert a.extra == extra
    assert a.run_lease > 0
    assert claimed.version == worker.ring.version
    assert claimed.now >= worker.now
    assert claimed.again == frozenset()
    job = await kit.job(row.id)
    assert (job.state, job.attempt, job.run_lease) == (JobState.RUNNING, 1, a.run_lease)
    assert job.attempted_at is not None


async def an_empty_queue_gives_nothing_and_is_not_again(kit: Kit) -> None:
    """Nor does a queue nobody ever used."""
    claimed = await kit.ask(Demand("q", 5), Demand("never", 5), Demand("q2", 0))
    assert list(claimed.attempts) == []
    assert claimed.again == frozenset()


async def better_priorities_come_first_and_the_number_is_filled_across_them(kit: Kit) -> None:
    """H3: one claim takes from several lanes, else a trickle of urgent jobs stops the rest."""
    for priority in (3, 1, 4, 2):
        await kit.enqueue(3, priority=priority)
    assert [a.priority for a in await kit.claim(5)] == [1, 1, 1, 2, 2]
    await kit.enqueue(1, priority=1)
    assert [a.priority for a in await kit.claim(100)] == [1, 2, 3, 3, 3, 4, 4, 4]


async def each_queue_gets_its_own_number(kit: Kit) -> None:
    """One claim serves all queues of a worker."""
    for queue in "abc":
        await kit.enqueue(4, queue=queue)
    claimed = await kit.ask(Demand("a", 3), Demand("b", 9), Demand("c", 0), Demand("none", 5))
    queues = [a.queue for a in claimed.attempts]
    assert sorted(queues) == ["a"] * 3 + ["b"] * 4
    assert len({(a.id, a.run_lease) for a in claimed.attempts}) == 7


async def waiting_lifts_a_job_past_a_busy_better_priority(kit: Kit) -> None:
    """H4: a job that has waited a day beats a fresh one of priority 1: effective priority first, then the older one."""
    (old,) = await kit.enqueue(priority=4, run_at=now() - timedelta(days=1))
    await kit.enqueue(5, priority=1)
    assert [a.id for a in await kit.claim(1, aging=60.0)] == [old]
    assert len(await kit.claim(9, aging=60.0)) == 5


async def without_aging_waiting_lifts_nothing(kit: Kit) -> None:
    """Aging 0 is strict priority."""
    (old,) = await kit.enqueue(priority=4, run_at=now() - timedelta(days=1))
    await kit.enqueue(1, priority=3)
    first, second = await kit.claim(2, aging=0.0)
    assert (first.priority, second.id) == (3, old)


async def waiting_lifts_step_by_step(kit: Kit) -> None:
    """floor(waiting / aging) steps: 90 s at 60 s a step make a 4 a 3, behind a 2 and before a 4."""
    for priority, waited in ((4, 0), (4, 0), (2, 0)):
        await kit.enqueue(priority=priority, run_at=now() - timedelta(seconds=waited), queue=f"q{priority}")
    (lifted,) = await kit.enqueue(priority=4, run_at=now() - timedelta(seconds=90))
    await kit.enqueue(priority=2)
    assert [a.priority for a in await kit.claim(1, aging=60.0)] == [2]
    await kit.enqueue(priority=3, run_at=now() - timedelta(seconds=30))
    assert [a.id for a in await kit.claim(1, aging=60.0)] == [lifted]


async def a_lease_rises_with_every_claim_of_a_job_and_is_shared_by_nobody_else(kit: Kit) -> None:
    """(id, run_lease) is the fence of an attempt: no pair comes twice."""
    await kit.enqueue(3)
    fences: set[tuple[int, int]] = set()
    last: dict[int, int] = {}
    for _ in range(6):
        attempts = await kit.claim()
        assert len(attempts) == 3
        for a in attempts:
            assert a.run_lease > last.get(a.id, 0)
            last[a.id] = a.run_lease
            fences.add((a.id, a.run_lease))
            await kit.close(a, JobState.AVAILABLE)
    assert len(fences) == 18


async def a_deadline_is_the_jobs_own_else_the_queues_else_none(kit: Kit) -> None:
    """It is shown while the attempt runs, by every read, and gone afterwards."""
    own = extras.encode(deadline=1000.0)
    first, second = [row.id for row in await kit.insert(*jobs(1, extra=own), *jobs(1))]
    attempts = await kit.claim(deadline=50.0)
    for id, seconds in ((first, 1000), (second, 50)):
        job = await kit.job(id)
        assert job.attempted_at is not None
        assert job.deadline_at == job.attempted_at + timedelta(seconds=seconds)
        listed = await kit.run(kit.store.list_jobs(JobFilter(state=JobState.RUNNING)))
        assert job in listed, (job, listed)
    for attempt in attempts:
        await kit.close(attempt)
    assert [(await kit.job(id)).deadline_at for id in (first, second)] == [None, None]
    (third,) = await kit.enqueue()
    await kit.claim()
    assert (await kit.job(third)).deadline_at is None


async def a_paused_queue_is_left_out_of_a_claim_that_serves_others(kit: Kit) -> None:
    """And is not called busy."""
    await kit.enqueue(queue="a")
    await kit.enqueue(queue="b")
    await kit.run(kit.store.pause_queue("a", "kit"))
    claimed = await kit.ask(Demand("a", 5), Demand("b", 5))
    assert [a.queue for a in claimed.attempts] == ["b"]
    assert claimed.again == frozenset()


async def an_advance_skips_nothing(kit: Kit) -> None:
    """M3: moving over what an empty poll had to walk is only ever a saving of time."""
    assert not (await kit.ask(Demand("q", 5), advance=True)).attempts
    ids = await kit.enqueue(3)
    taken = (await kit.ask(Demand("q", 2), advance=True)).attempts
    await kit.ask(Demand("q2", 2), advance=True)
    taken = [*taken, *(await kit.ask(Demand("q", 9), advance=True)).attempts]
    assert [a.id for a in taken] == ids
    (late,) = await kit.enqueue(run_at=now() - HOUR)
    assert [a.id for a in await kit.claim()] == [late]
