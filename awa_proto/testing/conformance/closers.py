"""Closers at the same moment: exactly one winner, whatever each of them wants to make of the job."""

from __future__ import annotations

import itertools
from functools import partial

import anyio

from awa_proto.errors import DatabaseError, Failure
from awa_proto.job import Attempt, JobState
from awa_proto.plan import Op
from awa_proto.store import Verdict
from awa_proto.testing.conformance.kit import HOUR, OUTCOMES, DatabaseKit, Session, end, now, together

ACCEPTED, STALE, AGAIN = Verdict.ACCEPTED, Verdict.STALE, Verdict.AGAIN


async def once(session: Session, op: Op[list[Verdict]], count: int) -> list[Verdict]:
    """The verdicts. Where transactions are REPEATABLE READ the loser is rolled back, and on a busy machine it may have waited
    too long for a lock: both mean *again* as well.
    """
    try:
        return await session.run(op)
    except DatabaseError as error:
        if error.failure not in {Failure.TRANSIENT, Failure.BUSY}:
            raise
        return [AGAIN] * count


async def a_closer_that_waited_ends_only_what_the_winner_did_not(kit: DatabaseKit) -> None:
    """C1: it waited, with a snapshot from before. Whatever it is not told at once it learns by sending the same again."""
    for to in OUTCOMES:
        await kit.enqueue(3)
        attempts = await kit.claim()
        first, second = kit.flush, kit.flush
        verdicts: list[Verdict] = []

        async def lose(attempts: list[Attempt], flush: int, to: JobState, verdicts: list[Verdict]) -> None:
            async with kit.session() as loser:
                verdicts += await once(loser, kit.store.finalize([end(a, to) for a in attempts], flush), len(attempts))

        async def win(session: Session) -> None:
            await kit.until_waiting("transactionid")
            await session.sql("COMMIT")

        async with kit.session() as winner:
            await winner.sql("BEGIN")
            won = await winner.run(kit.store.finalize([end(a) for a in attempts[:2]], first))
            assert won == [ACCEPTED] * 2
            await together(partial(lose, attempts, second, to, verdicts), partial(win, winner))
        assert len(verdicts) == 3
        assert all(verdict in {AGAIN, truth} for verdict, truth in zip(verdicts, (STALE, STALE, ACCEPTED), strict=True))
        assert await kit.finalize(*(end(a, to) for a in attempts), flush=second) == [STALE, STALE, ACCEPTED]
        assert await kit.finalize(*(end(a) for a in attempts), flush=first) == [ACCEPTED, ACCEPTED, STALE]
        for state in (*[JobState.COMPLETED] * 2, to):
            assert (await kit.job(attempts.pop(0).id)).state is state
        for released in await kit.claim():
            await kit.close(released)


async def a_closer_does_not_wait_long_for_a_strangers_transaction(kit: DatabaseKit) -> None:
    """H8: after 200 ms it gives way, as busy; another claim's attempts are closed meanwhile."""
    await kit.enqueue(1)
    (held,) = await kit.claim()
    await kit.enqueue(1)
    (free,) = await kit.claim()
    async with kit.session() as stranger, kit.session() as closer:
        await stranger.sql("BEGIN")
        await stranger.run(kit.store.finalize([end(held)], kit.flush))
        try:
            await closer.run(kit.store.finalize([end(held, JobState.FAILED)], kit.flush))
        except DatabaseError as error:
            assert error.failure is Failure.BUSY, error
        else:
            raise AssertionError("two closers of one attempt")
        assert await closer.sql("SHOW lock_timeout") == [("0",)]
        assert await closer.run(kit.store.finalize([end(free)], kit.flush)) == [ACCEPTED]
        await stranger.sql("ROLLBACK")
    await kit.close(held, JobState.FAILED)


async def a_flush_sent_again_while_the_first_copy_still_runs_is_one_ending(kit: DatabaseKit) -> None:
    """Whichever of the two comes first, the other one finds it by its token."""
    await kit.enqueue(2)
    attempts = await kit.claim()
    flush = kit.flush
    verdicts: list[Verdict] = []

    async def resend() -> None:
        while not verdicts or AGAIN in verdicts:
            async with kit.session() as session:
                again = kit.store.finalize([end(a, JobState.FAILED) for a in attempts], flush)
                verdicts[:] = await once(session, again, len(attempts))

    async def commit(session: Session) -> None:
        await kit.until_waiting("transactionid")
        await session.sql("COMMIT")

    async with kit.session() as first:
        await first.sql("BEGIN")
        assert await first.run(kit.store.finalize([end(a, JobState.FAILED) for a in attempts], flush)) == [ACCEPTED] * 2
        await together(resend, partial(commit, first))
    assert verdicts == [ACCEPTED] * 2
    assert await kit.states([a.id for a in attempts]) == [JobState.FAILED] * 2


async def racing_closers_of_one_claim_accept_each_index_once_for_every_pair_of_outcomes(kit: DatabaseKit) -> None:
    """C1, L2: two closers over overlapping indexes, at the same time; the rows are what the accepted endings say."""
    for one, two in itertools.combinations_with_replacement(OUTCOMES, 2):
        await kit.enqueue(7)
        attempts = await kit.claim()
        verdicts: dict[int, list[Verdict]] = {}

        async def closer(
            name: int, mine: list[Attempt], to: JobState, due_in: int, verdicts: dict[int, list[Verdict]]
        ) -> None:
            flush = kit.flush
            while True:
                ends = [end(a, to, due=now() + due_in * HOUR, error=f"{name}") for a in mine]
                try:
                    verdicts[name] = await kit.finalize(*ends, flush=flush)
                except DatabaseError as error:
                    assert error.failure in {Failure.BUSY, Failure.TRANSIENT}
                    continue
                if AGAIN not in verdicts[name]:
                    return
                await anyio.sleep(0.001)

        await together(
            partial(closer, 0, attempts[:5], one, 1, verdicts),
            partial(closer, 1, attempts[:1:-1], two, 2, verdicts),
        )
        by = (dict(zip(attempts[:5], verdicts[0], strict=True)), dict(zip(attempts[:1:-1], verdicts[1], strict=True)))
        for attempt in attempts:
            winners = [name for name in (0, 1) if by[name].get(attempt) is ACCEPTED]
            assert len(winners) == 1, (one, two, verdicts)
            job = await kit.job(attempt.id)
            assert job.state is (one, two)[winners[0]]
            assert [entry["error"] for entry in job.errors] == [f"{winners[0]}"] * (job.state is not JobState.COMPLETED)
        for released in await kit.claim():
            await kit.close(released)
    stat = await kit.stat()
    assert (stat.running, stat.available) == (0, 0)


async def a_closer_in_a_users_transaction_that_rolls_back_has_done_nothing(kit: DatabaseKit) -> None:
    """At every isolation level; the attempt is still open for whoever comes next."""
    for level in ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"):
        for to in OUTCOMES:
            (id,) = await kit.enqueue()
            (attempt,) = await kit.claim()
            async with kit.session() as session:
                await session.sql(f"BEGIN ISOLATION LEVEL {level}")
                assert await session.run(kit.store.finalize([end(attempt, to)], kit.flush)) == [ACCEPTED]
                await session.sql("ROLLBACK")
            assert (await kit.job(id)).state is JobState.RUNNING
            await kit.close(attempt)
