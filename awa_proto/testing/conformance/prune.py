"""Pruning: what is over goes with its segment, and nothing else does, whoever does what in between."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

from awa_proto.errors import DatabaseError
from awa_proto.job import JobState
from awa_proto.plan import Op, Plan, Statement, Step
from awa_proto.store import Cancelled, Demand, NewJob, Ring, Unique, Verdict
from awa_proto.store.upkeep import Kept, KeptFor, Probe, Pruned, Rotation
from awa_proto.testing.conformance.kit import HOUR, OUTCOMES, RingKit, Session, end, jobs, now, together
from awa_proto.testing.conformance.reads import agree
from awa_proto.testing.conformance.unique import unique

T = TypeVar("T")

RETENTION = 3600.0


async def prune(kit: RingKit, retention: float = 0.0) -> Pruned:
    """One pruning; by default of what is over this moment."""
    return await kit.run(kit.store.prune(retention))


async def a_finished_segment_goes_as_a_whole(kit: RingKit) -> None:
    """Its completed jobs are gone for every read, and it can be used again; swept or not."""
    for sweeps in (False, True):
        ids = await kit.enqueue(3)
        for attempt in await kit.claim():
            await kit.close(attempt)
        await kit.rotate()
        (other,) = await kit.enqueue(queue="other")
        if sweeps:
            await kit.run(kit.store.sweep())
        pruned = await prune(kit)
        assert (pruned.carried, pruned.kept) == (0, ())
        assert await prune(kit) == Pruned()
        assert await kit.sql(f"SELECT state FROM awa.segments WHERE seg = {pruned.segment}") == [("free",)]
        assert [await kit.run(kit.store.get_job(id)) for id in ids] == [None] * 3
        await agree(kit, [other])
        await kit.run(kit.store.cancel(other))
        await kit.run(kit.store.delete_job(other))


async def only_completed_jobs_go(kit: RingKit) -> None:
    """Whatever else became of a job, it lives elsewhere, and every read says the same before and after."""
    ids = await kit.enqueue(12)
    attempts = await kit.claim(6)
    await kit.finalize(*(end(a, to, due=now() + HOUR) for a, to in zip(attempts, OUTCOMES, strict=True)))
    await kit.rotate()
    kept = [id for id in ids if (await kit.job(id)).state is not JobState.COMPLETED]
    before = {id: await kit.job(id) for id in kept}
    assert await prune(kit) == Pruned(0, carried=7)
    await agree(kit, kept)
    assert {id: await kit.job(id) for id in kept} == before
    assert sorted(a.id for a in await kit.claim()) == sorted(
        id for id in kept if before[id].state is JobState.AVAILABLE
    )


async def completed_jobs_are_kept_from_the_moment_the_last_one_ended(kit: RingKit) -> None:
    """M6: not from that of the sealing; in marks and beyond them, also when the last one had been open for long."""
    await kit.enqueue(2)
    first, last = await kit.claim()
    await kit.rotate()
    await kit.close(first)
    await kit.run(kit.store.sweep())
    await _later(kit, 3601)
    await kit.close(last)
    for sweep in (False, True):
        assert await prune(kit, RETENTION) == Pruned()
        if sweep:
            await kit.run(kit.store.sweep())
    await _later(kit, 3500)
    assert await prune(kit, RETENTION) == Pruned()
    await _later(kit, 101)
    assert await prune(kit, RETENTION) == Pruned(0)


async def a_segment_that_nothing_was_claimed_from_is_kept_from_its_sealing(kit: RingKit) -> None:
    """There is no other moment; its jobs go on."""
    ids = await kit.enqueue(2)
    await kit.rotate()
    assert await prune(kit, RETENTION) == Pruned()
    await _later(kit, 3601)
    assert await prune(kit, RETENTION) == Pruned(0, carried=2)
    assert [(a.id, a.segment) for a in await kit.claim()] == [(id, 1) for id in ids]


async def a_running_attempt_keeps_its_segment(kit: RingKit) -> None:
    """However long it runs, and wherever its claim lies in the lane; then the body of its job is needed no more."""
    await kit.enqueue(4)
    (running,) = await kit.claim(1)
    for attempt in await kit.claim():
        await kit.close(attempt)
    await kit.rotate()
    await kit.run(kit.store.sweep())
    assert await prune(kit, RETENTION) == Pruned()
    await _later(kit, 3601)
    for _ in range(2):
        assert await prune(kit, RETENTION) == Pruned(kept=(Kept(0, KeptFor.RUNNING),))
        await kit.run(kit.store.sweep())
    await kit.close(running, JobState.RETRYABLE)
    assert await prune(kit, RETENTION) == Pruned()
    assert await prune(kit) == Pruned(0)
    await kit.run(kit.store.promote(9))
    assert [a.id for a in await kit.claim()] == [running.id]


async def a_segment_held_by_one_attempt_does_not_hold_the_others(kit: RingKit) -> None:
    """The ring goes on with those that are left, and when none is free rotation waits."""
    await kit.enqueue(1)
    (running,) = await kit.claim()
    for turn in range(20):
        await kit.enqueue(3)
        for attempt in await kit.claim(3):
            await kit.close(attempt)
        assert (await kit.run(kit.store.rotate(0.0))).opened is not None, turn
        while (await prune(kit)).more:
            pass
        assert await kit.states([running.id]) == [JobState.RUNNING]
    await kit.close(running)
    assert (await prune(kit)).segment == 0


async def jobs_of_a_paused_queue_are_carried_on_and_on(kit: RingKit) -> None:
    """Once around the ring and further, in their order, behind what is there; with all they have."""
    await kit.run(kit.store.pause_queue("q", None))
    ids = await kit.enqueue(5, priority=3, extra='{"metadata": {"a": 1}}')
    before = [await kit.job(id) for id in ids]
    for _ in range(9):
        await kit.rotate()
        assert (await prune(kit)).carried == 5
        assert [await kit.job(id) for id in ids] == before
    ids += await kit.enqueue(2, priority=3)
    await kit.run(kit.store.resume_queue("q"))
    attempts = await kit.claim()
    assert [a.id for a in attempts] == ids
    for attempt in attempts:
        await kit.close(attempt)


async def a_long_backlog_keeps_its_segment(kit: RingKit) -> None:
    """Carrying it on would keep others waiting; it is claimed where it is."""
    await kit.run(kit.store.copy(jobs(5_001)))
    await kit.rotate()
    assert await prune(kit) == Pruned(kept=(Kept(0, KeptFor.BACKLOG),))
    await kit.close((await kit.claim(1))[0])
    assert await prune(kit) == Pruned(0, carried=5_000)


async def a_job_claimed_aside_is_kept_and_goes_like_any(kit: RingKit) -> None:
    """Its lane is numbered by turns and not by transactions: nobody carries it on while it runs, nor afterwards."""
    ids = await kit.enqueue(3)
    claimed = await kit.run(kit.store.claim_one(1, id=ids[1]))
    assert claimed is not None
    await kit.rotate()
    await kit.run(kit.store.sweep())
    assert await prune(kit) == Pruned(kept=(Kept(0, KeptFor.RUNNING),))
    await kit.close(claimed.attempts[0])
    assert await prune(kit) == Pruned(0, carried=2)
    await agree(kit, [ids[0], ids[2]])


async def deleted_jobs_leave_no_trace(kit: RingKit) -> None:
    """What hides them goes with their segment, and not before."""
    first, second = await kit.enqueue(2)
    for attempt in await kit.claim():
        await kit.close(attempt)
    assert await kit.run(kit.store.delete_job(first))
    await kit.rotate()
    (kept,) = await kit.enqueue()
    for attempt in await kit.claim():
        await kit.close(attempt)
    await kit.run(kit.store.delete_job(kept))
    assert await prune(kit) == Pruned(0)
    await agree(kit, [])
    assert await kit.sql("SELECT id FROM awa.deleted") == [(kept,)]
    assert await kit.run(kit.store.get_job(second)) is None


# stragglers: rows that come into a segment late


async def a_transaction_that_has_put_rows_there_is_not_waited_for_and_loses_none(kit: RingKit) -> None:
    """It holds the table until it ends, open or prepared; then its jobs are carried on."""
    await kit.enqueue()
    (attempt,) = await kit.claim()
    await kit.close(attempt)
    name = f"awa kit {random.getrandbits(60)}"  # of the whole server
    async with kit.session() as straggler:
        await straggler.sql("BEGIN")
        (row,) = await straggler.run(kit.store.insert(jobs(1), notify=False))
        await kit.rotate()
        assert await prune(kit) == Pruned(kept=(Kept(0, KeptFor.BUSY),))
        await straggler.sql(f"PREPARE TRANSACTION '{name}'")
        assert await prune(kit) == Pruned(kept=(Kept(0, KeptFor.BUSY),))
        await straggler.sql(f"COMMIT PREPARED '{name}'")
    assert await prune(kit) == Pruned(0, carried=1)
    assert [(a.id, a.segment) for a in await kit.claim()] == [(row.id, 1)]


async def a_row_committed_between_the_decision_and_the_lock_is_carried_on(kit: RingKit) -> None:
    """C4: what is true under the lock is asked under the lock, in a new statement."""
    await kit.rotate()
    async with kit.session() as leader, kit.session() as straggler:
        await leader.sql("BEGIN ISOLATION LEVEL READ COMMITTED")
        go_on = await _until(leader, kit.store.prune(0.0), "prune.lock")
        await straggler.sql("BEGIN ISOLATION LEVEL REPEATABLE READ")
        id = await _stray(straggler, 0)
        await straggler.sql("COMMIT")
        assert await leader.run(go_on) == Pruned(0, carried=1)
        await leader.sql("COMMIT")
    assert [(a.id, a.segment) for a in await kit.claim()] == [(id, 1)]


async def a_row_committed_while_the_lock_is_waited_for_is_carried_on(kit: RingKit) -> None:
    """The statement after the lock has a newer snapshot than the lock."""
    await kit.rotate()
    await kit.sql("ALTER FUNCTION awa.lock_segment RENAME TO lock_segment_soon")
    await kit.sql(
        "CREATE FUNCTION awa.lock_segment(segment int, patience text) RETURNS boolean LANGUAGE sql"
        " AS $$SELECT awa.lock_segment_soon(segment, '10s')$$"
    )
    try:
        async with kit.session() as straggler:
            await straggler.sql("BEGIN")
            id = await _stray(straggler, 0)

            async def commit() -> None:
                await kit.until_waiting("relation")
                await straggler.sql("COMMIT")

            async def carried() -> None:
                assert await prune(kit) == Pruned(0, carried=1)

            await together(carried, commit)
    finally:
        await kit.sql("DROP FUNCTION awa.lock_segment")
        await kit.sql("ALTER FUNCTION awa.lock_segment_soon RENAME TO lock_segment")
    assert [(a.id, a.segment) for a in await kit.claim()] == [(id, 1)]


async def an_attempt_that_began_between_the_decision_and_the_lock_keeps_its_segment(kit: RingKit) -> None:
    """A worker with an old list of segments has claimed a job that was about to be carried on."""
    await kit.enqueue()
    await kit.rotate()
    async with kit.session() as leader:
        await leader.sql("BEGIN ISOLATION LEVEL READ COMMITTED")
        go_on = await _until(leader, kit.store.prune(0.0), "prune.lock")
        (attempt,) = await kit.claim()
        assert await leader.run(go_on) == Pruned(kept=(Kept(0, KeptFor.RUNNING),))
        await leader.sql("COMMIT")
    await kit.close(attempt)
    assert await prune(kit) == Pruned(0)


async def a_row_with_an_old_snapshot_in_an_emptied_segment_is_found(kit: RingKit) -> None:
    """Section 4: its transaction is older than the sealing and than the pruning."""
    await kit.enqueue()
    async with kit.session() as old:
        await old.sql("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await old.sql("SELECT count(*) FROM awa.segments")
        (attempt,) = await kit.claim()
        await kit.close(attempt)
        await kit.rotate()
        assert await prune(kit) == Pruned(0)
        id = await _stray(old, 0)
        (row,) = await old.run(kit.store.insert(jobs(1, priority=4), notify=False))
        await old.sql("COMMIT")
    assert await kit.run(kit.store.probe()) == Probe(live=1, revived=(0,))
    assert [(a.id, a.segment) for a in await kit.claim()] == [(id, 0), (row.id, 1)]


async def an_insert_that_has_chosen_its_segment_but_not_reached_it_is_found(kit: RingKit) -> None:
    """It holds nothing of the segment yet, so it is emptied; and then the row comes."""
    await kit.rotate()
    ids: list[int] = []
    async with kit.session() as blocker, kit.session() as slow:
        await blocker.sql("BEGIN")
        await blocker.sql("SELECT pg_advisory_xact_lock(9)")

        async def insert() -> None:
            rows = await slow.sql(
                "WITH chosen AS MATERIALIZED (SELECT 0 AS seg), waited AS MATERIALIZED (SELECT pg_advisory_xact_lock_shared(9))"
                " INSERT INTO awa.ready (seg, priority, queue, kind, args)"
                " SELECT seg, 2, 'q', 'k', '{}' FROM chosen, waited RETURNING id"
            )
            ids.append(rows[0][0])

        async def empty() -> None:
            await kit.until_waiting("advisory")
            assert await prune(kit) == Pruned(0)
            await blocker.sql("COMMIT")

        await together(insert, empty)
    assert await kit.run(kit.store.probe()) == Probe(live=1, revived=(0,))
    assert [(a.id, a.segment) for a in await kit.claim()] == [(ids[0], 0)]


async def a_straggler_is_carried_on_also_when_nobody_has_probed(kit: RingKit) -> None:
    """Probes bound the delay; safety is in pruning, and in opening a segment that is not empty."""
    await kit.rotate()
    await kit.run(kit.store.probe())
    ids = [await _stray_by(kit, 0), await _stray_by(kit, 2)]
    assert await prune(kit) == Pruned(0, carried=1)
    await kit.rotate()
    assert sorted(a.id for a in await kit.claim()) == sorted(ids)


async def a_transaction_open_elsewhere_is_no_reason_to_wait(kit: RingKit) -> None:
    """M4: its number is a hole in every cursor, but it has no rows here."""
    async with kit.session() as other:
        await other.sql("BEGIN")
        await other.sql("SELECT pg_current_xact_id()")
        ids = await kit.enqueue(2)
        for attempt in await kit.claim(1):
            await kit.close(attempt)
        await kit.rotate()
        assert await prune(kit) == Pruned(0, carried=1)
        assert [a.id for a in await kit.claim()] == ids[1:]


async def rows_that_go_on_into_a_sealed_segment_are_not_cut_off(kit: RingKit) -> None:
    """A rotation that nobody has published: jobs still go into the old segment, which is left alone."""
    await kit.rotate()
    (id,) = await kit.enqueue()
    await kit.rotate(publish=False)
    await kit.run(kit.store.pause_queue("q", None))
    assert (await prune(kit)).segment == 0
    assert await prune(kit) == Pruned()
    await kit.run(kit.ring_store.publish())
    assert await prune(kit) == Pruned(1, carried=1)
    await kit.run(kit.store.resume_queue("q"))
    assert [(a.id, a.segment) for a in await kit.claim()] == [(id, 2)]


# others who use the tables


async def a_long_reader_holds_a_segment_only_as_long_as_it_reads(kit: RingKit) -> None:
    """pg_dump, or a transaction that has looked at a view: pruning gives up quietly, and is tried again."""
    for read in ("SELECT count(*) FROM awa.jobs", "SELECT count(*) FROM awa.closures"):
        await kit.enqueue()
        async with kit.session() as reader:
            await reader.sql("BEGIN")
            await reader.sql(read)
            (attempt,) = await kit.claim()
            await kit.close(attempt)
            opened = (await kit.run(kit.store.rotate(0.0))).opened
            assert opened is not None
            for _ in range(2):
                kept = (await prune(kit)).kept
                assert {why.reason for why in kept} == {KeptFor.BUSY}
            assert len(await kit.enqueue()) == 1
            (attempt,) = await kit.claim()
            assert attempt.segment == opened
            await kit.close(attempt)
            await reader.sql("COMMIT")
        while (await prune(kit)).segment is not None:
            pass
        await kit.run(kit.store.rotate(0.0))
        while (await prune(kit)).segment is not None:
            pass
        assert await kit.sql("SELECT count(*) FROM awa.segments WHERE state = 'sealed'") == [(0,)]


async def two_leaders_that_prune_at_once_carry_a_job_once(kit: RingKit) -> None:
    """One has the tables; the other gives up, or finds it done."""
    ids = await kit.enqueue(3)
    await kit.rotate()
    async with kit.session() as leader:
        await leader.sql("BEGIN ISOLATION LEVEL READ COMMITTED")
        go_on = await _until(leader, kit.store.prune(0.0), "prune.lock")
        assert await prune(kit) == Pruned(kept=(Kept(0, KeptFor.BUSY),))  # the first has looked there
        assert await leader.run(go_on) == Pruned(0, carried=3)
        await leader.sql("COMMIT")
    await kit.rotate()
    async with kit.session() as leader:
        await leader.sql("BEGIN ISOLATION LEVEL READ COMMITTED")
        go_on = await _until(leader, kit.store.prune(0.0), "prune.carry")

        async def second() -> None:
            await kit.until_waiting("relation")
            assert await leader.run(go_on) == Pruned(1, carried=3)
            await leader.sql("COMMIT")

        async def first() -> None:
            pruned = await prune(kit)
            assert pruned.segment is None

        await together(first, second)
    assert [a.id for a in await kit.claim()] == ids


async def a_cancellation_that_has_found_a_job_finds_it_again_where_it_was_carried(kit: RingKit) -> None:
    """Told to ask again, never that there is no such job; moving, too."""
    calls: list[tuple[str, Callable[[int], Op[Cancelled]]]] = [
        ("cancel.available", kit.store.cancel),
        ("move.available", lambda id: kit.store.move(id, priority=1)),
    ]
    for name, call in calls:
        (id,) = await kit.enqueue()
        await kit.rotate()
        async with kit.session() as user:
            go_on = await _until(user, call(id), name)
            assert (await prune(kit)).carried == 1
            assert await user.run(go_on) is Cancelled.AGAIN
            assert await user.run(call(id)) is Cancelled.CANCELLED


async def an_attempt_whose_segment_is_gone_is_stale(kit: RingKit) -> None:
    """A worker that was thought dead comes back long after its attempt was ended for it."""
    await kit.enqueue()
    (attempt,) = await kit.claim()
    await kit.run(kit.store.cancel(attempt.id))
    await kit.rotate()
    assert await prune(kit) == Pruned(0)
    for to in OUTCOMES:
        assert await kit.finalize(end(attempt, to)) == [Verdict.STALE]
    assert await kit.states([attempt.id]) == [JobState.CANCELLED]


async def a_worker_with_an_old_list_claims_what_there_is(kit: RingKit) -> None:
    """The segments it knows are empty, or others by now."""
    old = Ring(0, (0, 1, 2))
    for _ in range(2):
        await kit.enqueue()
        for attempt in await kit.claim():
            await kit.close(attempt)
        await kit.rotate()
    assert (await prune(kit)).more
    await prune(kit)
    (id,) = await kit.enqueue()
    claimed = await kit.run(kit.store.claim(1, old, [Demand("q", 9)]))
    assert [a.id for a in claimed.attempts] == [id]
    assert claimed.version > old.version


# unique keys


async def a_carried_job_keeps_its_unique_key(kit: RingKit) -> None:
    """Who wants it is told of the job, and not of one that is gone."""
    (row,) = await kit.insert(unique("a"))
    await kit.rotate()
    assert await prune(kit) == Pruned(0, carried=1)
    (skipped,) = await kit.run(kit.store.insert([unique("a")], skip=True))
    assert skipped.id == row.id
    await _until_all_are_looked_at(kit)
    assert await kit.run(kit.store.holder(_key("a").key)) == row.id


async def a_snapshot_older_than_the_carrying_cannot_get_the_key(kit: RingKit) -> None:
    """It sees the job neither where it was nor where it is, and fails instead of taking it for gone."""
    for level in ("REPEATABLE READ", "SERIALIZABLE"):
        await kit.insert(unique(level))
        async with kit.session() as user:
            await user.sql(f"BEGIN ISOLATION LEVEL {level}")
            await user.sql("SELECT 1")
            await kit.rotate()
            assert (await prune(kit)).carried >= 1
            try:
                await user.run(kit.store.insert([unique(level)]))
            except DatabaseError as error:
                assert error.sqlstate == "40001", error
            else:
                raise AssertionError("there are two")


async def the_key_of_a_job_that_went_with_its_segment_is_free_and_forgotten(kit: RingKit) -> None:
    """Not that of a job with the same key that came later, nor that of one that was retried elsewhere."""
    for name in ("gone", "newer", "retried"):
        await kit.insert(unique(name))
    attempts = await kit.claim()
    for attempt, to in zip(attempts, (JobState.COMPLETED, JobState.CANCELLED, JobState.RETRYABLE), strict=True):
        await kit.close(attempt, to, due=now() + HOUR)
    (newer,) = await kit.insert(unique("newer"))
    await kit.rotate()
    assert await prune(kit) == Pruned(0, carried=1)
    assert await _until_all_are_looked_at(kit) == 1
    assert [await kit.run(kit.store.holder(_key(name).key)) for name in ("gone", "newer", "retried")] == [
        None,
        newer.id,
        attempts[2].id,
    ]
    await kit.insert(unique("gone"))


# the ring as a whole


async def a_full_ring_goes_on_when_a_segment_is_emptied(kit: RingKit) -> None:
    """Nothing is lost while it is full, and the next rotation after a pruning opens a segment."""
    ids: list[int] = []
    while (await kit.run(kit.store.rotate(0.0))) != Rotation(is_full=True):
        ids += await kit.enqueue(2)
    for attempt in await kit.claim():
        await kit.close(attempt)
    assert (await prune(kit)).segment == 0
    await kit.enqueue()
    assert await kit.run(kit.store.rotate(0.0)) == Rotation(opened=0)


async def _later(kit: RingKit, seconds: int) -> None:
    """As if so many seconds had passed."""
    ago = f"- interval '{seconds} s'"
    await kit.sql(f"UPDATE awa.segments SET opened_at = opened_at {ago}, sealed_at = sealed_at {ago}")
    await kit.sql(f"UPDATE awa.closures SET closed_at = closed_at {ago}")
    await kit.sql(f"UPDATE awa.sweeps SET closed_at = closed_at {ago}")


async def _stray(session: Session, segment: int) -> int:
    """A job in a segment that is not open, as an old snapshot may put it there."""
    rows = await session.sql(
        f"INSERT INTO awa.ready (seg, priority, queue, kind, args) VALUES ({segment}, 2, 'q', 'k', '{{}}') RETURNING id"
    )
    id: int = rows[0][0]
    return id


async def _stray_by(kit: RingKit, segment: int) -> int:
    async with kit.session() as session:
        return await _stray(session, segment)


def _key(name: str) -> Unique:
    job: NewJob = unique(name)
    assert job.unique is not None
    return job.unique


async def _until_all_are_looked_at(kit: RingKit) -> int:
    """Forget keys, all around. How many."""
    after, keys = b"", 0
    while True:
        forgotten = await kit.run(kit.store.forget_keys(2, after))
        keys += forgotten.keys
        if forgotten.last is None:
            return keys
        after = forgotten.last


async def _until(session: Session, op: Op[T], name: str) -> Op[T]:
    """Run an Op up to a statement that begins with `name`, in the transaction that is open; the rest of it, as an Op."""
    plan = op.start()
    waiting: list[Step] = []

    def begin() -> Plan[None]:
        step = next(plan)
        while not (isinstance(step, Statement) and step.name.startswith(name)):
            rows = yield step
            step = plan.send(rows)
        waiting.append(step)

    def go_on() -> Plan[T]:
        rows = yield waiting[0]
        try:
            step = plan.send(rows)
            while True:
                rows = yield step
                step = plan.send(rows)
        except StopIteration as done:
            result: T = done.value
            return result

    await session.run(Op("begin", begin))
    return Op("go_on", go_on)
