"""Turns and snapshots: what a claim does beside others, and beside transactions that are still open."""

from __future__ import annotations

from functools import partial

from awa_proto.errors import DatabaseError, Failure
from awa_proto.store import Claimed, Demand, Ring
from awa_proto.store.queue.names import Names
from awa_proto.testing.conformance.kit import DatabaseKit, RingKit, Session, jobs, together

CLAIM_SEED = Names("awa").seed("claim")
RING = Ring(256, (0,))
LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")


async def a_job_that_commits_late_is_claimed_after_those_it_let_pass(kit: RingKit) -> None:
    """Ids do not rise in the order of commits; nothing is skipped and nothing waits."""
    async with kit.session() as first, kit.session() as second:
        await first.sql("BEGIN")
        early = await first.run(kit.store.insert(jobs(2)))
        await second.sql("BEGIN ISOLATION LEVEL REPEATABLE READ")
        middle = await second.run(kit.store.insert(jobs(2)))
        last = await kit.enqueue(2)
        assert [a.id for a in await kit.claim(1)] == last[:1]
        await first.sql("COMMIT")
        assert [a.id for a in await kit.claim(2)] == [last[1], early[0].id]
        more = await kit.enqueue(1)
        await second.sql("COMMIT")
        assert [a.id for a in await kit.claim(1)] == [early[1].id]
        assert [a.id for a in await kit.claim(1)] + [a.id for a in await kit.claim()] == [
            *(j.id for j in middle),
            *more,
        ]
        assert await kit.claim() == []


async def the_last_row_of_a_late_transaction_does_not_starve_lower_lanes(kit: DatabaseKit) -> None:
    """C2: a bite that ends exactly with a late transaction's rows leaves its lane empty, not busy for ever."""
    async with kit.session() as late:
        await late.sql("BEGIN")
        (held,) = await late.run(kit.store.insert(jobs(1, priority=1)))
        await kit.enqueue(1, priority=1)
        assert len(await kit.claim(1)) == 1
        await late.sql("COMMIT")
    assert [a.id for a in await kit.claim(1)] == [held.id]
    below = await kit.enqueue(3, priority=4)
    assert [a.id for n in range(3) for a in await kit.claim(1)] == below


async def late_transactions_are_taken_in_bites_of_any_size(kit: DatabaseKit) -> None:
    """M1, M2: twenty open transactions, committed out of order between bites of three, over two lanes."""
    taken: list[int] = []
    wanted: set[int] = set()
    sessions: list[Session] = []
    managers = [kit.session() for _ in range(20)]
    try:
        for number, manager in enumerate(managers):
            session = await manager.__aenter__()
            sessions.append(session)
            await session.sql(f"BEGIN ISOLATION LEVEL {LEVELS[number % 3]}")
            rows = await session.run(kit.store.insert([*jobs(3, priority=1 + number % 2), *jobs(1, priority=3)]))
            wanted |= {row.id for row in rows}
        wanted |= set(await kit.enqueue(2))
        for place in (7, 3, 19, 0, 11, 1, 18, 2, 5, 13, 4, 17, 6, 16, 8, 9, 15, 10, 14, 12):
            await sessions[place].sql("COMMIT")
            taken += [a.id for a in await kit.claim(3)]
            if place % 5 == 0:
                await kit.ask(Demand("nothing", 1), Demand("q", 0), advance=True)
        while bite := await kit.claim(3):
            taken += [a.id for a in bite]
    finally:
        for manager in managers[: len(sessions)]:
            await manager.__aexit__(None, None, None)
    assert len(taken) == len(set(taken))
    assert set(taken) == wanted


async def an_advance_past_open_transactions_skips_none_of_them(kit: DatabaseKit) -> None:
    """M3: the cursor moves while they are open, and what they bring is found afterwards."""
    async with kit.session() as late:
        await late.sql("BEGIN")
        held = await late.run(kit.store.insert(jobs(4)))
        for _ in range(3):
            assert not (await kit.ask(Demand("q", 5), advance=True)).attempts
        await late.sql("COMMIT")
    assert [a.id for a in await kit.claim(3)] == [job.id for job in held[:3]]
    await kit.ask(Demand("q", 0), advance=True)
    assert [a.id for a in await kit.claim(3)] == [held[3].id]


async def a_rolled_back_claim_gives_its_jobs_back(kit: DatabaseKit) -> None:
    """At every isolation level: the turn is free again with it."""
    ids = await kit.enqueue(3)
    for level in LEVELS:
        async with kit.session() as session:
            await session.sql(f"BEGIN ISOLATION LEVEL {level}")
            claimed = await session.run(kit.store.claim(1, RING, [Demand("q", 9)]))
            assert [a.id for a in claimed.attempts] == ids
            await session.sql("ROLLBACK")
    assert [a.id for a in await kit.claim()] == ids


async def who_meets_a_claim_in_progress_is_told_again_not_empty(kit: RingKit) -> None:
    """H5: the queue's lock is taken, so the loser knows at once; other queues are served; stripes do not disturb."""
    await kit.run(kit.store.set_stripes("q", 2))
    await kit.enqueue(4)
    await kit.enqueue(1, queue="other")
    async with kit.session() as winner:
        await winner.sql("BEGIN")
        await winner.run(kit.store.claim(1, RING, [Demand("q", 1)]))
        claimed = await kit.ask(Demand("q", 1), Demand("other", 1), Demand("q", 1, stripe=1))
        assert claimed.again == {("q", 0)}
        assert {a.queue for a in claimed.attempts} >= {"other"}
        await winner.sql("COMMIT")


async def who_loses_the_turn_itself_is_told_again(kit: RingKit) -> None:
    """H2, H5: a change of what is claimable takes the turn without the lock; the claim waits for it, then asks again."""
    ids = await kit.enqueue(3)
    answers: list[Claimed] = []

    async def ask() -> None:
        answers.append(await kit.ask(Demand("q", 9)))

    async def commit(session: Session) -> None:
        await kit.until_waiting("transactionid")
        await session.sql("COMMIT")

    async with kit.session() as admin:
        await admin.sql("BEGIN")
        await admin.run(kit.store.cancel(ids[0]))
        await together(ask, partial(commit, admin))
    (answer,) = answers
    # where transactions are REPEATABLE READ it is rolled back instead, and has been run again
    assert bool(answer.attempts) is (answer.again == frozenset())
    assert [a.id for a in [*answer.attempts, *await kit.claim()]] == ids[1:]


async def a_claim_gives_way_to_an_open_transaction_that_holds_its_turn(kit: RingKit) -> None:
    """A cancellation in somebody's open transaction holds one queue: a claim of it fails soon, other queues are claimed."""
    held, *_ = await kit.enqueue(2)
    await kit.enqueue(1, queue="other")
    async with kit.session() as admin:
        await admin.sql("BEGIN")
        await admin.run(kit.store.cancel(held))
        try:
            await kit.run(kit.store.claim(1, RING, [Demand("q", 9)]))
        except DatabaseError as error:
            assert error.failure is Failure.BUSY, error
        else:
            raise AssertionError("claimed what an open transaction has taken")
        assert len(await kit.claim(queue="other")) == 1
        await admin.sql("ROLLBACK")
    assert len(await kit.claim()) == 2


async def what_a_person_does_in_a_transaction_leaves_its_settings_alone(kit: DatabaseKit) -> None:
    """A lock timeout meant for a worker must not fail a user's later statements."""
    running, waiting = await kit.enqueue(2)
    await kit.claim(1)
    async with kit.session() as user:
        await user.sql("BEGIN")
        before = await user.sql("SHOW lock_timeout")
        for id in (running, waiting):
            await user.run(kit.store.cancel(id))
        await user.run(kit.store.insert(jobs(2)))
        assert await user.sql("SHOW lock_timeout") == before
        await user.sql("COMMIT")


async def a_claim_that_insists_asks_although_another_seems_to_be_at_it(kit: RingKit) -> None:
    """L1: the advisory lock only spares work; whoever holds its key for long must not stop a queue."""
    await kit.enqueue(2)
    async with kit.session() as other:
        await other.sql("BEGIN")
        await other.sql(f"SELECT pg_advisory_xact_lock(hashtextextended('q#0', {CLAIM_SEED}))")
        answer = await kit.run(kit.store.claim(1, RING, [Demand("q", 9)]))
        assert (list(answer.attempts), answer.again) == ([], frozenset({("q", 0)}))
        insisting = await kit.run(kit.store.claim(1, RING, [Demand("q", 9, insist=True)]))
        assert len(insisting.attempts) == 2
        await other.sql("ROLLBACK")


async def a_claim_refuses_a_transaction_that_has_written(kit: RingKit) -> None:
    """H9: what that transaction enqueues afterwards would count as claimed and never run."""
    await kit.enqueue(1)
    for level in LEVELS:
        async with kit.session() as session:
            await session.sql(f"BEGIN ISOLATION LEVEL {level}")
            await session.run(kit.store.insert(jobs(1)))
            try:
                await session.run(kit.store.claim(1, RING, [Demand("q", 9)]))
            except DatabaseError as error:
                assert "first write of its transaction" in str(error), error
            else:
                raise AssertionError("claimed inside of a writing transaction")
            await session.sql("ROLLBACK")
    assert len(await kit.claim()) == 1


async def a_cursor_in_the_future_is_refused(kit: RingKit) -> None:
    """C3: after a restore into a cluster of lower transaction ids nothing is skipped silently."""
    await kit.enqueue(2)
    await kit.claim(1)
    await kit.sql(
        f"INSERT INTO {kit.schema}.claims_0"
        " (seg, queue, priority, stripe, turn, instance, lease, upto, pos_xid, pos_id, job_ids)"
        " SELECT 0, 'q', 2, 0, 2, 0, 0, format('%s:%s:', x, x)::pg_snapshot, '0', 0, '{}'"
        " FROM (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint + 1000000) s(x)"
    )
    try:
        await kit.claim()
    except DatabaseError as error:
        assert error.failure is Failure.RESTORED
        assert "lies in the future" in str(error), error
    else:
        raise AssertionError("claimed with a cursor in the future")


async def an_empty_poll_writes_nothing(kit: DatabaseKit) -> None:
    """No row and no transaction id: polling costs no WAL."""
    await kit.enqueue(1)
    await kit.claim()
    async with kit.session() as session:
        await session.sql("BEGIN")
        for _ in range(3):
            assert not (await session.run(kit.store.claim(1, RING, [Demand("q", 9), Demand("x", 9)]))).attempts
        assert await session.sql("SELECT pg_current_xact_id_if_assigned()::text") == [(None,)]
        await session.sql("COMMIT")


async def a_claim_is_cut_to_a_thousand_and_goes_on_where_it_stopped(kit: DatabaseKit) -> None:
    """H6: the constant that keeps the planner's cost low must not lose rows."""
    await kit.run(kit.store.copy(jobs(1500)))
    assert [len(await kit.claim(n)) for n in (1001, 5000, 5)] == [1000, 500, 0]


async def a_claim_commits_without_waiting_for_the_disk_and_leaves_the_session_as_it_was(kit: DatabaseKit) -> None:
    """A claim a crash forgets is as good as none; only its own transaction is asynchronous."""
    await kit.enqueue(1)
    async with kit.session() as session:
        before = await session.sql("SHOW synchronous_commit")
        await session.run(kit.store.claim(1, RING, [Demand("q", 9)]))
        assert await session.sql("SHOW synchronous_commit") == before == [("on",)]
