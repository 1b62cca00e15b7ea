"""Deferred jobs: promoted when they are due, once, in order, and with everything they carried."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import anyio

from awa_proto.job import JobState
from awa_proto.store import Promoted
from awa_proto.testing.conformance.kit import HOUR, DatabaseKit, Kit, end, now, together


async def overdue(kit: Kit, count: int, **fields: object) -> list[int]:
    """So many retryable jobs that are due, the last one longest."""
    ids = await kit.enqueue(count, **fields)
    queue = str(fields.get("queue", "q"))
    ends = [
        end(a, JobState.RETRYABLE, due=now() - HOUR - timedelta(seconds=n))
        for n, a in enumerate(await kit.claim(count, queue))
    ]
    await kit.finalize(*ends)
    return ids


async def promote(kit: Kit, limit: int = 100) -> Promoted:
    """What a promotion says."""
    return await kit.run(kit.store.promote(limit))


async def with_nothing_deferred_there_is_no_next_time(kit: Kit) -> None:
    """None, not 0: a worker that hears 0 asks again at once."""
    assert await promote(kit) == Promoted(0)
    await kit.enqueue(3)
    assert await promote(kit) == Promoted(0)


async def what_is_not_due_stays_and_says_when_it_will_be(kit: Kit) -> None:
    """Seconds until the earliest of them."""
    await kit.enqueue(1, run_at=now() + 2 * HOUR)
    await kit.enqueue(1, run_at=now() + HOUR)
    promoted = await promote(kit)
    assert (promoted.count, promoted.queues) == (0, frozenset())
    assert promoted.due_in is not None
    assert 3500 < promoted.due_in <= 3600
    assert await kit.claim() == []


async def due_jobs_become_available(kit: Kit) -> None:
    """And the answer names their queues."""
    ids = [*await overdue(kit, 3), *await overdue(kit, 1, queue="z")]
    later = await kit.enqueue(1, run_at=now() + HOUR)
    promoted = await promote(kit)
    assert (promoted.count, promoted.queues) == (4, frozenset({"q", "z"}))
    assert promoted.due_in is not None
    assert promoted.due_in > 3000
    assert await kit.states(ids) == [JobState.AVAILABLE] * 4
    assert await kit.states(later) == [JobState.SCHEDULED]
    assert sorted(a.id for a in await kit.claim()) == ids[:3]
    assert [(a.id, a.attempt) for a in await kit.claim(queue="z")] == [(ids[3], 2)]


async def the_longest_due_are_promoted_first(kit: Kit) -> None:
    """When there are more than a promotion takes. What is promoted together keeps the order it was enqueued in."""
    ids = await overdue(kit, 6)
    promoted: list[int] = []
    for _ in range(3):
        assert (await promote(kit, 2)).count == 2
        promoted += [a.id for a in await kit.claim()]
    assert [set(promoted[n : n + 2]) for n in (0, 2, 4)] == [{ids[5], ids[4]}, {ids[3], ids[2]}, {ids[1], ids[0]}]


async def a_promotion_takes_at_most_its_limit_and_says_there_is_more(kit: Kit) -> None:
    """0 seconds until the next."""
    ids = await overdue(kit, 5)
    found, q = [await promote(kit, 2) for _ in range(3)], frozenset({"q"})
    assert [(p.count, p.queues, p.due_in) for p in found] == [(2, q, 0.0), (2, q, 0.0), (1, q, None)]
    assert found[0].until is not None
    assert found[2].until is not None
    assert found[0].until <= found[2].until

    assert sorted(a.id for a in await kit.claim()) == ids


async def a_look_may_begin_at_a_moment(kit: Kit) -> None:
    """M5: what is due before it waits for a look at everything."""
    (early,) = await overdue(kit, 1)
    job = await kit.job(early)
    assert (await kit.run(kit.store.promote(9, job.run_at + timedelta(seconds=1)))).count == 0
    assert (await kit.run(kit.store.promote(9, job.run_at))).count == 1


async def a_scheduled_job_runs_when_its_time_has_come(kit: Kit) -> None:
    """Not before, and as its first attempt."""
    at = now() + timedelta(seconds=0.15)
    (id,) = await kit.enqueue(1, run_at=at)
    while not (await promote(kit)).count:
        await anyio.sleep(0.01)
    job = await kit.job(id)
    assert (job.state, job.run_at) == (JobState.AVAILABLE, at)
    claimed = (await kit.claim())[0]
    assert (claimed.id, claimed.attempt) == (id, 1)
    running = await kit.job(id)
    assert running.attempted_at is not None
    assert running.attempted_at >= at


async def several_promoters_move_each_job_once(kit: DatabaseKit) -> None:
    """Each takes its own rows and waits for nobody."""
    ids = await overdue(kit, 300)
    counts: list[int] = []

    async def promoter() -> None:
        empty = 0
        while empty < 2:
            count = (await promote(kit, 20)).count
            counts.append(count)
            empty = 0 if count else empty + 1

    await together(*[promoter] * 4)
    assert sum(counts) == 300
    assert sorted(a.id for a in await kit.claim(1000)) == ids


async def a_promotion_that_rolls_back_has_moved_nothing(kit: DatabaseKit) -> None:
    """And one beside it does not wait for it."""
    ids = await overdue(kit, 4)
    async with kit.session() as session:
        await session.sql("BEGIN")
        assert (await session.run(kit.store.promote(2))).count == 2
        assert (await promote(kit)).count == 2
        await session.sql("ROLLBACK")
    assert len(await kit.claim()) == 2
    assert (await promote(kit)).count == 2
    assert len(await kit.claim()) == 2
    assert len(await kit.listed(state=JobState.RUNNING)) == len(ids)


async def a_cancel_beside_a_promotion_is_not_lost(kit: DatabaseKit) -> None:
    """H2: the row moves while it is looked for; whoever cancels is told to ask again, and finds it."""
    (id,) = await overdue(kit, 1)
    async with kit.session() as promoting:
        await promoting.sql("BEGIN")
        assert (await promoting.run(kit.store.promote(2))).count == 1

        async def cancel() -> None:
            while (await kit.run(kit.store.cancel(id))).value == "again":
                await anyio.sleep(0.001)

        async def commit() -> None:
            await kit.until_waiting("transactionid")
            await promoting.sql("COMMIT")

        await together(cancel, partial(commit))
    assert await kit.states([id]) == [JobState.CANCELLED]
    assert await kit.claim() == []
