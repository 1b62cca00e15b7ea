"""Wake-ups: a producer notifies when somebody announced that it sleeps, and only then."""

from __future__ import annotations

from datetime import timedelta

from awa_proto.job import JobState
from awa_proto.testing.conformance.kit import HOUR, DatabaseKit, Session, end, jobs, now


async def listen(kit: DatabaseKit, session: Session) -> None:
    """LISTEN to the channel of the store."""
    channel = kit.channel.replace('"', '""')
    await session.sql(f'LISTEN "{channel}"')


async def a_producer_notifies_sleepers_of_their_queues_and_nobody_else(kit: DatabaseKit) -> None:
    """Not while nobody sleeps, not for another queue, not with notify=False, and no more once it is awake."""
    async with kit.session() as worker, kit.session() as deaf:
        await listen(kit, worker)
        await kit.enqueue(1)
        await deaf.run(kit.store.announce(["else"]))
        await kit.enqueue(2)
        assert await worker.heard() == []
        await worker.run(kit.store.announce(["q", "r"]))
        await kit.enqueue(1, queue="s")
        await kit.run(kit.store.insert(jobs(1), notify=False))
        await kit.run(kit.store.insert(jobs(3), notify=False))
        await kit.run(kit.store.copy(jobs(3), notify=False))
        assert await worker.heard() == []
        await kit.enqueue(1)
        assert await worker.heard() == ["q"]
        await kit.insert(*jobs(2, queue="r"), *jobs(2), *jobs(1, queue="s"))
        assert sorted(await worker.heard()) == ["q", "r"]
        await kit.run(kit.store.copy([*jobs(2), *jobs(1, queue="s")]))
        assert await worker.heard() == ["q"]
        await worker.run(kit.store.withdraw())
        await kit.enqueue(3)
        assert await worker.heard() == []


async def an_announcement_can_be_narrowed_and_is_withdrawn_whole(kit: DatabaseKit) -> None:
    """A worker with one noisy queue still sleeps for the other; announcing the same again is only a sign of life."""
    async with kit.session() as worker:
        await listen(kit, worker)
        await worker.run(kit.store.announce(["q", "r"]))
        await worker.run(kit.store.announce(["q", "r"], ["q", "r"]))
        await worker.run(kit.store.announce(["r"], ["q", "r"]))
        await kit.enqueue(1)
        assert await worker.heard() == []
        await kit.enqueue(1, queue="r")
        assert await worker.heard() == ["r"]
        await worker.run(kit.store.withdraw())
        await kit.enqueue(1, queue="r")
        assert await worker.heard() == []


async def a_sleeper_hears_when_the_transaction_commits_and_nothing_when_it_rolls_back(kit: DatabaseKit) -> None:
    """One word for a queue and transaction, however many jobs."""
    async with kit.session() as worker, kit.session() as user:
        await listen(kit, worker)
        await worker.run(kit.store.announce(["q"]))
        await user.sql("BEGIN")
        await user.run(kit.store.insert(jobs(2)))
        await user.run(kit.store.insert(jobs(2)))
        assert await worker.heard() == []
        await user.sql("COMMIT")
        assert await worker.heard() == ["q"]
        await user.sql("BEGIN")
        await user.run(kit.store.insert(jobs(2)))
        await user.sql("ROLLBACK")
        assert await worker.heard() == []


async def what_makes_a_job_available_wakes_like_an_enqueue(kit: DatabaseKit) -> None:
    """Promotion, release, retry, a move, and the resumption of a queue."""
    async with kit.session() as worker:
        await listen(kit, worker)
        await kit.enqueue(2, queue="q")
        one, two = await kit.claim()
        failed = await kit.job_in(JobState.FAILED, queue="f")
        (moved,) = await kit.enqueue(queue="m")
        await worker.run(kit.store.announce(["q", "f", "to", "p"]))
        await kit.close(one, JobState.AVAILABLE)
        assert await worker.heard() == ["q"]
        await kit.close(two, JobState.RETRYABLE)
        assert await worker.heard() == []
        await kit.run(kit.store.promote(10))
        assert await worker.heard() == ["q"]
        await kit.run(kit.store.retry(failed))
        assert await worker.heard() == ["f"]
        await kit.run(kit.store.move(moved, queue="to"))
        assert await worker.heard() == ["to"]
        await kit.run(kit.store.pause_queue("p", None))
        assert await worker.heard() == []
        await kit.run(kit.store.resume_queue("p"))
        assert await worker.heard() == ["p"]
        await kit.run(kit.store.promote(10))
        assert await worker.heard() == []


async def a_job_due_soon_is_told_without_a_name(kit: DatabaseKit) -> None:
    """Sleepers then look at what is deferred; a job of next hour is nobody's business yet."""
    async with kit.session() as worker:
        await listen(kit, worker)
        await worker.run(kit.store.announce(["q"]))
        await kit.enqueue(2, run_at=now() + HOUR)
        await kit.run(kit.store.copy(jobs(2, run_at=now() + HOUR)))
        assert await worker.heard() == []
        await kit.enqueue(2, run_at=now() + timedelta(seconds=2))
        assert await worker.heard() == [""]
        await kit.run(kit.store.copy(jobs(2, run_at=now() + timedelta(seconds=2))))
        assert await worker.heard() == [""]


async def everybody_hears_that_a_running_job_was_cancelled(kit: DatabaseKit) -> None:
    """Asleep or not: `!id:run_lease`. Cancelling what nobody runs is not told."""
    async with kit.session() as worker:
        await listen(kit, worker)
        (id,) = await kit.enqueue()
        (attempt,) = await kit.claim()
        await kit.run(kit.store.cancel(id))
        assert await worker.heard() == [f"!{id}:{attempt.run_lease}"]
        (other,) = await kit.enqueue()
        await kit.run(kit.store.cancel(other))
        await kit.run(kit.store.cancel(id))
        await kit.finalize(end(attempt))
        assert await worker.heard() == []


async def schemas_do_not_disturb_each_other(kit: DatabaseKit) -> None:
    """Another schema's sleepers are not ours, and a lost connection sleeps no more."""
    async with kit.session() as worker:
        await listen(kit, worker)
        async with kit.session() as gone:
            await gone.run(kit.store.announce(["q"]))
        here = "(SELECT oid FROM pg_database WHERE datname = current_database())"  # others use the server, too
        while await kit.sql(f"SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND database = {here}"):
            pass
        await kit.enqueue(1)
        assert await worker.heard() == []


async def workers_hear_which_attempts_somebody_else_has_ended(kit: DatabaseKit) -> None:
    """Asleep or not: a handler that runs for nothing is to be cancelled."""
    await kit.enqueue(2)
    attempts = await kit.claim()
    async with kit.session() as worker:
        await listen(kit, worker)
        await kit.run(kit.store.tell_ended(attempts))
        assert await worker.heard() == [f"!{attempt.id}:{attempt.run_lease}" for attempt in attempts]
