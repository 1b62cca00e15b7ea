"""The ring of segments: rotation, and claims over what several segments hold."""

from __future__ import annotations

import random
from functools import partial

from awa_proto.errors import DatabaseError, Failure
from awa_proto.job import JobState
from awa_proto.store import Demand, Ring, Verdict
from awa_proto.store.upkeep import Probe, Rotation
from awa_proto.testing.conformance.kit import HOUR, OUTCOMES, RingKit, end, jobs, now, together
from awa_proto.testing.conformance.reads import agree


async def _live(of: RingKit) -> tuple[int, ...]:
    """Those that may hold work."""
    ring, _ = await of.run(of.store.survey([]))
    return ring.segments


async def a_rotation_opens_the_next_segment_and_claims_report_it(kit: RingKit) -> None:
    """The version grows, so a worker with an old list knows that it is old."""
    before = await kit.register()
    assert before.ring.segments == (0,)
    assert await kit.rotate(publish=False) == 1
    unpublished = await kit.run(kit.store.claim(1, before.ring, [Demand("q", 1)]))
    assert unpublished.version == before.ring.version
    await kit.run(kit.ring_store.publish())
    await kit.run(kit.ring_store.publish())
    after = await kit.run(kit.store.claim(1, before.ring, [Demand("q", 1)]))
    assert after.version > before.ring.version
    ring, _ = await kit.run(kit.store.survey([]))
    assert ring == Ring(after.version, (0, 1))


async def jobs_of_all_segments_are_found_old_ones_first(kit: RingKit) -> None:
    """At equal effective priority the oldest segment comes first, so that it gets empty."""
    ids: list[int] = []
    for _ in range(4):
        ids += await kit.enqueue(2)
        await kit.rotate()
    ids += await kit.enqueue(2)
    assert await _live(kit) == (0, 1, 2, 3, 4)
    attempts = [a for wanted in (3, 1, 100) for a in await kit.claim(wanted)]
    assert [a.id for a in attempts] == ids
    assert [a.segment for a in attempts] == [n // 2 for n in range(10)]


async def a_backlog_in_an_old_segment_does_not_hide_an_urgent_job_in_a_new_one(kit: RingKit) -> None:
    """Best effective priority over all segments first, then the oldest segment."""
    backlog = await kit.enqueue(5, priority=3)
    await kit.rotate()
    (urgent,) = await kit.enqueue(priority=1)
    (aged,) = await kit.enqueue(priority=4, run_at=now() - 24 * HOUR)
    low = await kit.enqueue(2, priority=4, queue="q")
    assert [a.id for n in (1, 1) for a in await kit.claim(n, aging=3600.0)] == [aged, urgent]
    assert sorted(a.id for a in await kit.claim(100)) == sorted([*backlog, *low])


async def attempts_end_in_the_segment_they_were_claimed_in(kit: RingKit) -> None:
    """Whatever the outcome; a job that goes on goes on in the open segment, and every read finds it."""
    ids = await kit.enqueue(6)
    attempts = await kit.claim()
    await kit.rotate()
    ids += await kit.enqueue(6)
    attempts += await kit.claim()
    await kit.rotate()
    await agree(kit, ids)
    ends = [end(a, to) for a, to in zip(attempts, [*OUTCOMES] * 2, strict=True)]
    flush = kit.flush
    assert {v.value for v in await kit.finalize(*ends, flush=flush)} == {"accepted"}
    assert {v.value for v in await kit.finalize(*reversed(ends), flush=flush)} == {"accepted"}
    await agree(kit, ids)
    assert (await kit.run(kit.store.promote(100))).count == 4
    for id in ids:
        await kit.run(kit.store.retry(id))
    await agree(kit, ids)
    again = await kit.claim()
    assert {a.segment for a in again} == {2}
    assert len(again) == 10
    await agree(kit, ids)


async def a_wrong_place_in_the_logs_is_stale(kit: RingKit) -> None:
    """H1: after a crash the server may give out claim ids again; each is asked for with its lease, each index within it."""
    await kit.enqueue(1)
    (attempt,) = await kit.claim()
    for to in OUTCOMES:
        for wrong in (
            attempt._replace(claim_id=attempt.claim_id + 1000),
            attempt._replace(idx=1),
            attempt._replace(idx=999),
        ):
            assert await kit.finalize(end(wrong, to)) == [Verdict.STALE]
    await kit.close(attempt)


async def people_find_jobs_in_every_segment(kit: RingKit) -> None:
    """Cancel and move work on sealed segments; what is moved goes to the open one."""
    first = await kit.enqueue(4)
    await kit.claim(1)
    await kit.rotate()
    second = await kit.enqueue(2)
    await kit.rotate()
    assert (await kit.run(kit.store.cancel(first[0]))).value == "running"
    assert (await kit.run(kit.store.cancel(first[1]))).value == "cancelled"
    assert (await kit.run(kit.store.move(first[2], priority=4))).value == "cancelled"
    assert (await kit.run(kit.store.cancel(second[0]))).value == "cancelled"
    await agree(kit, [*first, *second])
    assert [(a.id, a.segment) for a in await kit.claim()] == [(first[3], 0), (second[1], 1), (first[2], 2)]


async def a_transaction_with_an_old_snapshot_reaches_the_open_segment(kit: RingKit) -> None:
    """The open segment is read from a sequence, which no snapshot hides."""
    async with kit.session() as old:
        await old.sql("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await old.sql("SELECT 1")
        await kit.rotate()
        await kit.rotate()
        (row,) = await old.run(kit.store.insert(jobs(1)))
        await old.sql("COMMIT")
    assert [(a.id, a.segment) for a in await kit.claim()] == [(row.id, 2)]


async def a_straggler_in_a_sealed_segment_is_found(kit: RingKit) -> None:
    """Its transaction began before the seal and ended long after."""
    async with kit.session() as straggler:
        await straggler.sql("BEGIN")
        (row,) = await straggler.run(kit.store.insert(jobs(1)))
        await kit.enqueue(1)
        assert len(await kit.claim()) == 1
        await kit.rotate()
        await kit.enqueue(1)
        assert len(await kit.claim()) == 1
        await straggler.sql("COMMIT")
    assert [(a.id, a.segment) for a in await kit.claim()] == [(row.id, 0)]


async def without_a_free_segment_rotation_waits(kit: RingKit) -> None:
    """None, and everything goes on in the open one."""
    assert [await kit.rotate() for _ in range(9)] == [1, 2, 3, 4, 5, 6, 7, None, None]
    (id,) = await kit.enqueue()
    assert [(a.id, a.segment) for a in await kit.claim()] == [(id, 7)]
    assert await kit.states([id]) == [JobState.RUNNING]


async def two_leaders_that_rotate_at_once_open_one_segment(kit: RingKit) -> None:
    """Never two open ones: the rotation that waited finds nothing to do."""
    opened: list[int | None] = []

    async def rotate() -> None:
        async with kit.session() as session:
            try:
                opened.append(await session.run(kit.ring_store.open_next()))
            except DatabaseError as error:  # where transactions are REPEATABLE READ
                if error.failure is not Failure.TRANSIENT:
                    raise
                opened.append(None)

    async with kit.session() as leader:
        await leader.sql("BEGIN")
        assert await leader.run(kit.ring_store.open_next()) == 1

        async def commit() -> None:
            await kit.until_waiting("transactionid")
            await leader.sql("COMMIT")

        await together(rotate, partial(commit))
    assert opened == [None]
    await kit.run(kit.ring_store.publish())
    assert await _live(kit) == (0, 1)


async def a_rotation_comes_when_it_is_time_and_not_for_what_is_empty(kit: RingKit) -> None:
    """By age, its share of the retention, or by size; what has been rotated is published at once."""
    rotate = kit.store.rotate
    assert await kit.run(rotate(0.0)) == Rotation()
    (first,) = await kit.enqueue()
    assert await kit.run(rotate()) == await kit.run(rotate(3600.0, 2**40)) == Rotation()
    assert await kit.run(rotate(0.0)) == Rotation(opened=1)
    (second,) = await kit.enqueue()
    assert await kit.run(rotate(3600.0, 1000)) == Rotation(opened=2)
    assert [(a.id, a.segment) for a in await kit.claim()] == [(first, 0), (second, 1)]
    await kit.sql("UPDATE awa.segments SET opened_at = opened_at - interval '601 s' WHERE seg = 2")
    await kit.enqueue()
    assert await kit.run(rotate(3700.0)) == Rotation()
    assert await kit.run(rotate(3600.0)) == Rotation(opened=3)


async def a_rotation_that_nobody_published_is_published_by_the_next(kit: RingKit) -> None:
    """Its leader died in between; until then jobs go on into what is sealed, and are found there."""
    assert await kit.rotate(publish=False) == 1
    (early,) = await kit.enqueue()
    assert await kit.run(kit.store.rotate()) == Rotation()
    (late,) = await kit.enqueue()
    assert [(a.id, a.segment) for a in await kit.claim()] == [(early, 0), (late, 1)]


async def when_the_ring_is_full_rotation_says_so_and_nothing_else_happens(kit: RingKit) -> None:
    """Jobs go on into the open segment, however often it is asked for."""
    for segment in range(1, 8):
        await kit.enqueue()
        assert await kit.run(kit.store.rotate(0.0)) == Rotation(opened=segment)
    await kit.enqueue()
    for _ in range(3):
        assert await kit.run(kit.store.rotate(0.0)) == Rotation(is_full=True)
    assert len(await kit.claim()) == 8


async def workers_look_only_where_something_can_be_claimed(kit: RingKit) -> None:
    """A sealed segment from which all is claimed is left alone, until something is there again."""
    await kit.enqueue(2)
    await kit.rotate()
    await kit.enqueue()
    await kit.rotate()
    assert await kit.run(kit.store.probe()) == Probe(live=2)
    before, _ = await kit.run(kit.store.survey([]))
    assert before.segments == (0, 1, 2)
    await kit.claim(2)
    assert await kit.run(kit.store.probe()) == Probe(live=1)
    assert await _live(kit) == (1, 2)
    await kit.claim()
    assert await kit.run(kit.store.probe()) == Probe()
    assert await kit.run(kit.store.probe()) == Probe()
    after, _ = await kit.run(kit.store.survey([]))
    assert after == Ring(before.version, (2,))
    assert (await kit.stat()).running == 3
    assert len(await kit.listed(state=JobState.RUNNING)) == 3


async def a_paused_queue_keeps_its_segment_live(kit: RingKit) -> None:
    """Its jobs wait, and are found at once when it is resumed."""
    (id,) = await kit.enqueue()
    await kit.run(kit.store.pause_queue("q", None))
    await kit.rotate()
    assert await kit.run(kit.store.probe()) == Probe(live=1)
    await kit.run(kit.store.resume_queue("q"))
    assert [a.id for a in await kit.claim()] == [id]


async def a_segment_is_live_as_long_as_a_transaction_has_rows_for_it(kit: RingKit) -> None:
    """Open or prepared: the jobs are there for claiming the moment it commits, without waiting for a probe."""
    await kit.enqueue()
    name = f"awa kit {random.getrandbits(60)}"  # of the whole server
    async with kit.session() as straggler:
        await straggler.sql("BEGIN")
        (row,) = await straggler.run(kit.store.insert(jobs(1), notify=False))
        await kit.rotate()
        await kit.claim()
        assert await kit.run(kit.store.probe()) == Probe(live=1)
        await straggler.sql(f"PREPARE TRANSACTION '{name}'")
        assert await kit.run(kit.store.probe()) == Probe(live=1)
        await straggler.sql(f"COMMIT PREPARED '{name}'")
    assert [(a.id, a.segment) for a in await kit.claim()] == [(row.id, 0)]
    assert await kit.run(kit.store.probe()) == Probe()


async def a_row_in_a_segment_nobody_looks_into_makes_it_live_again(kit: RingKit) -> None:
    """Section 4: one that is quiet, and one that is free. The ring has a new version, so that workers learn of it."""
    await kit.enqueue()
    await kit.claim()
    await kit.rotate()
    await kit.run(kit.store.probe())
    worker = await kit.register()
    assert worker.ring.segments == (1,)
    for segment in (0, 5):
        await _stray(kit, segment)
    assert not (await kit.run(kit.store.claim(1, worker.ring, [Demand("q", 9)]))).attempts
    assert await kit.run(kit.store.probe()) == Probe(live=2, revived=(0, 5))
    told = await kit.run(kit.store.claim(1, worker.ring, [Demand("q", 9)]))
    assert told.version > worker.ring.version
    ring, _ = await kit.run(kit.store.survey([]))
    assert (ring.version, set(ring.segments)) == (told.version, {0, 1, 5})
    assert sorted(a.segment for a in await kit.claim()) == [0, 5]
    assert await kit.run(kit.store.probe()) == Probe()


async def attempts_in_a_free_segment_are_found(kit: RingKit) -> None:
    """A worker with an old list has claimed there before anybody has looked."""
    await kit.run(kit.store.probe())
    ring = Ring(0, (3,))
    await _stray(kit, 3)
    (attempt,) = (await kit.run(kit.store.claim(1, ring, [Demand("q", 1)]))).attempts
    assert await kit.run(kit.store.probe()) == Probe(live=1, revived=(3,))
    assert await kit.listed(state=JobState.RUNNING) == [attempt.id]
    await kit.close(attempt)
    assert await kit.run(kit.store.probe()) == Probe()


async def _stray(kit: RingKit, segment: int) -> None:
    """A job in a segment that is not open, as an old snapshot may put it there."""
    await kit.sql(f"INSERT INTO awa.ready (seg, priority, queue, kind, args) VALUES ({segment}, 2, 'q', 'k', '{{}}')")


async def rotations_at_full_speed_lose_no_job(kit: RingKit) -> None:
    """Two rotate and publish, two enqueue, two claim with a list of segments that is old."""
    ids: list[int] = []
    taken: list[int] = []
    left = 2

    async def produce() -> None:
        nonlocal left
        for n in range(40):
            ids.extend(await kit.enqueue(1 + n % 3, priority=1 + n % 4))
        left -= 1

    async def rotate() -> None:
        for _ in range(4):
            await kit.rotate()

    async def claim() -> None:
        while left:
            taken.extend([a.id for a in await kit.claim(5)])

    await together(produce, produce, rotate, rotate, claim, claim)
    taken += [a.id for a in await kit.claim(1000)]
    assert len(taken) == len(set(taken))
    assert set(taken) == set(ids)
