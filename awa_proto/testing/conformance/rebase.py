"""A dump that was restored into another cluster: found out, made right in place, and nothing is lost, skipped or run twice."""

from __future__ import annotations

from awa_proto.errors import DatabaseError, Failure
from awa_proto.job import Attempt, JobRow, JobState
from awa_proto.store import Demand
from awa_proto.store.upkeep import Pruned
from awa_proto.testing.conformance.kit import HOUR, RingKit, end, jobs, now
from awa_proto.testing.conformance.reads import agree

AHEAD = 1_000_000


async def _moved(kit: RingKit, ahead: int) -> None:
    """As if it had been restored from a cluster whose transactions have numbers so much higher (or lower)."""
    shifted = (
        "format('%s:%s:%s', pg_snapshot_xmin({c})::text::bigint + {a}, pg_snapshot_xmax({c})::text::bigint + {a},"
        " (SELECT string_agg((x::text::bigint + {a})::text, ',') FROM pg_snapshot_xip({c}) x))::pg_snapshot"
    )
    seen, upto = (shifted.format(c=column, a=ahead) for column in ("seen", "upto"))
    await kit.sql(f"UPDATE awa.ready SET xid = (xid::text::bigint + {ahead})::text::xid8 WHERE stripe < 64")
    await kit.sql(
        f"UPDATE awa.claims SET upto = {upto}, seen = CASE WHEN seen IS NOT NULL THEN {seen} END,"
        f" pos_xid = CASE WHEN pos_xid = '0' THEN pos_xid ELSE (pos_xid::text::bigint + {ahead})::text::xid8 END"
        " WHERE stripe < 64"
    )
    await kit.sql("UPDATE awa.cluster SET system_identifier = system_identifier + 1")


async def _busy(kit: RingKit, rounds: int = 3) -> tuple[list[int], list[Attempt]]:
    """Jobs in every state over three segments, some claimed aside, some late; and the attempts that run."""
    ids: list[int] = []
    running: list[Attempt] = []
    for number in range(rounds):
        async with kit.session() as late:
            await late.sql("BEGIN")
            (row,) = await late.run(kit.store.insert(jobs(1), notify=False))
            ids += [row.id, *await kit.enqueue(12, priority=1 + number), *await kit.enqueue(3, run_at=now() + HOUR)]
            ends = [end(a, to, due=now() + HOUR) for a, to in zip(await kit.claim(5), _ENDS, strict=True)]
            await kit.finalize(*ends)
            running += await kit.claim(2)
            await late.sql("COMMIT")
        aside = await kit.run(kit.store.claim_one(1, kind="count"))
        assert aside is not None
        running += aside.attempts
        await kit.rotate()
        await kit.run(kit.store.sweep(2))
    return ids, running


_ENDS = (JobState.COMPLETED, JobState.FAILED, JobState.RETRYABLE, JobState.CANCELLED, JobState.AVAILABLE)


async def _refused(of: RingKit) -> None:
    """A worker cannot start."""
    try:
        await of.register()
    except DatabaseError as error:
        assert error.failure is Failure.RESTORED
        assert "dump of another cluster" in str(error)
    else:
        raise AssertionError("registered in a restored dump")


async def a_database_that_was_not_moved_is_left_alone(kit: RingKit) -> None:
    """Thoroughly or not, with cursors and without."""
    for thorough in (False, True):
        assert not await kit.run(kit.store.rebase(thorough=thorough))
    ids, _ = await _busy(kit)
    before = await agree(kit, ids)
    for thorough in (False, True):
        assert not await kit.run(kit.store.rebase(thorough=thorough))
    assert await agree(kit, ids) == before
    await kit.register()


async def a_restored_dump_goes_on_where_it_was(kit: RingKit) -> None:
    """C3: from a cluster of higher numbers, of lower ones and of about the same; twice; with every job as it was before."""
    ids, running = await _busy(kit)
    for ahead in (AHEAD, -50, 7):
        await _moved(kit, ahead)
        before = await agree(kit, ids)
        await _refused(kit)
        assert await kit.run(kit.store.rebase())
        assert not await kit.run(kit.store.rebase(thorough=True))
        assert await agree(kit, ids) == before
        await kit.register()
        ids += await kit.enqueue(2)
        available = {row.id for row in await agree(kit, ids) if row.state is JobState.AVAILABLE}
        taken = await kit.claim(5)
        assert {a.id for a in taken} <= available
        running += taken
        await kit.run(kit.store.sweep())
        assert {row.id for row in await agree(kit, ids) if row.state is JobState.RUNNING} == {a.id for a in running}
        await kit.close(running.pop(0), JobState.RETRYABLE, due=now() + HOUR)
        await kit.close(running.pop(0))
    await _ends_well(kit, ids, running)


async def a_claim_that_finds_a_cursor_in_the_future_leads_to_it(kit: RingKit) -> None:
    """Whatever the identifier says: a copy may have come by other ways."""
    ids, running = await _busy(kit)
    await _moved(kit, AHEAD)
    await kit.sql("UPDATE awa.cluster SET system_identifier = (SELECT system_identifier FROM pg_control_system())")
    worker = await kit.register()
    try:
        await kit.run(kit.store.claim(worker.instance, worker.ring, [Demand("q", 9)]))
    except DatabaseError as error:
        assert error.failure is Failure.RESTORED
    else:
        raise AssertionError("claimed with a cursor in the future")
    assert not await kit.run(kit.store.rebase())
    assert await kit.run(kit.store.rebase(thorough=True))
    await _ends_well(kit, ids, running)


async def a_transaction_that_is_open_over_it_loses_nothing(kit: RingKit) -> None:
    """It may have rows for the segment, which is waited for; or number itself before, and write after."""
    ids, running = await _busy(kit)
    await _moved(kit, AHEAD)
    async with kit.session() as early:
        await early.sql("BEGIN")
        await early.sql("SELECT pg_current_xact_id()")
        assert await kit.run(kit.store.rebase())
        (row,) = await early.run(kit.store.insert(jobs(1), notify=False))
        taken = await kit.claim(1)
        assert row.id not in {a.id for a in taken}
        running += taken
        await early.sql("COMMIT")
    await _ends_well(kit, [*ids, row.id], running)


async def while_a_segment_is_in_use_nothing_is_rebased(kit: RingKit) -> None:
    """All or nothing; it is tried again."""
    ids, running = await _busy(kit)
    await _moved(kit, AHEAD)
    async with kit.session() as reader:
        await reader.sql("BEGIN")
        await reader.sql("SELECT count(*) FROM awa.ready_2")
        await kit.sql("ALTER FUNCTION awa.lock_segment RENAME TO lock_segment_later")
        await kit.sql(
            "CREATE FUNCTION awa.lock_segment(segment int, patience text) RETURNS boolean LANGUAGE sql"
            " AS $$SELECT awa.lock_segment_later(segment, '20ms')$$"
        )
        try:
            await kit.run(kit.store.rebase())
        except DatabaseError as error:
            assert error.failure is Failure.BUSY
        else:
            raise AssertionError("rebased under a reader")
        finally:
            await kit.sql("DROP FUNCTION awa.lock_segment")
            await kit.sql("ALTER FUNCTION awa.lock_segment_later RENAME TO lock_segment")
        await reader.sql("COMMIT")
    await _refused(kit)
    assert await kit.run(kit.store.rebase())
    await _ends_well(kit, ids, running)


async def _ends_well(kit: RingKit, ids: list[int], running: list[Attempt]) -> None:
    """Every job that waits is handed out once, every attempt can end, and the segments go with them."""
    rows: list[JobRow] = await agree(kit, ids)
    waiting = {row.id for row in rows if row.state is JobState.AVAILABLE}
    taken = await kit.claim()
    assert sorted(a.id for a in taken) == sorted(waiting)
    claimed = await kit.run(kit.store.claim_one(1))
    assert claimed is None
    for attempt in (*running, *taken):
        await kit.close(attempt)
    left = [row.id for row in await agree(kit, ids) if row.state is not JobState.COMPLETED]
    await kit.rotate()
    while (pruned := await kit.run(kit.store.prune(0.0))).more:
        assert pruned.carried == 0
    assert pruned == Pruned(pruned.segment)
    await agree(kit, left)
