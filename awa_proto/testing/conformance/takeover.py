"""The way over: what canonical storage holds is worked by workers of queue storage, each attempt once, whoever works beside."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from functools import partial

import anyio

from awa_proto.errors import DatabaseError, Failure
from awa_proto.job import CANONICAL, Attempt, JobState
from awa_proto.outcome import DeadLetter, Transition
from awa_proto.plan import Op
from awa_proto.store import Called, Cancelled, Demand, Ended, NewJob, Progress, Unique, Verdict, Verdicts
from awa_proto.store.canonical.store import CanonicalStore
from awa_proto.store.canonical.switch import switch_storage
from awa_proto.testing.conformance.callbacks import WAYS, outside
from awa_proto.testing.conformance.endings import HELD, bringing, follows
from awa_proto.testing.conformance.kit import HOUR, OUTCOMES, RingKit, RowKit, Session, end, jobs, now, together
from awa_proto.testing.conformance.rescue import NOW, pages, rescued

ACCEPTED, STALE, AGAIN = Verdict.ACCEPTED, Verdict.STALE, Verdict.AGAIN
WAITING = (JobState.AVAILABLE, JobState.SCHEDULED, JobState.RETRYABLE)
GOES_ON = frozenset({JobState.AVAILABLE, JobState.SCHEDULED, JobState.RETRYABLE})
"""Where an attempt ends whose job moves over."""


def rows(kit: RingKit) -> RowKit:
    """Canonical storage in the same schema."""
    return RowKit(partial(CanonicalStore, random=random.random), kit.run, kit.session, schema=kit.schema)


async def where(kit: RingKit, id: int) -> str:
    """The table a job is in."""
    found: list[str] = []
    for table in ("ready", "deferred", "failed", "dlq", "jobs_hot", "scheduled_jobs"):
        found += [table] * len(await kit.sql(f"SELECT 1 FROM {kit.schema}.{table} WHERE id = {id}"))
    (table,) = found
    return table


async def taken_over(kit: RingKit, count: int = 1, **fields: object) -> list[Attempt]:
    """New jobs of canonical storage, claimed by a worker of queue storage."""
    ids = await rows(kit).enqueue(count, **fields)
    attempts = await kit.claim()
    assert [a.id for a in attempts] == ids
    assert {a.segment for a in attempts} <= {CANONICAL}
    return attempts


async def switch(kit: RingKit) -> bool:
    """The switch, and whether it was one."""
    return await kit.run(switch_storage(kit.schema))


async def a_worker_is_told_whether_canonical_storage_holds_anything(kit: RingKit) -> None:
    """While it takes new jobs, once it was used at all; after the switch while there is work of the worker's queues."""

    async def held(*queues: str) -> bool:
        ring, _ = await kit.run(kit.store.survey(queues))
        return ring.canonical

    there = rows(kit)
    await kit.enqueue(1)
    assert not await held("q")
    assert not (await kit.register("q")).ring.canonical
    (id,) = await there.enqueue()
    assert await held("q")
    assert await held("other")
    assert (await kit.register("q")).ring.canonical
    await switch(kit)
    assert (await held("q"), await held("other")) == (True, False)
    (attempt,) = await there.claim()
    assert attempt.id == id
    assert not await held("q")
    await there.close(attempt, JobState.RETRYABLE, due=now() + HOUR)
    assert (await held("q"), await held("other")) == (True, False)


async def a_glance_tells_whether_canonical_storage_was_ever_used(kit: RingKit) -> None:
    """By one statement that reads nothing of it."""
    ring, _ = await kit.run(kit.store.survey(["q"], glance=True))
    assert not ring.canonical
    await taken_over(kit)
    ring, _ = await kit.run(kit.store.survey(["nothing"], glance=True))
    assert ring.canonical
    ring, _ = await kit.run(rows(kit).store.survey(["q"], glance=True))
    assert not ring.canonical, "its own workers look there anyway"


async def nothing_is_asked_of_canonical_storage_while_it_is_empty(kit: RingKit) -> None:
    """A claim, a promotion and a flush are the statements they always were."""
    await kit.enqueue(1)
    ring, _ = await kit.run(kit.store.survey(["q"]))
    (attempt,) = await kit.claim()
    for op in (
        kit.store.claim(1, ring, [Demand("q", 1)]),
        kit.store.promote(10),
        kit.store.finalize([end(attempt)], kit.flush),
    ):
        plan = op.start()
        text = getattr(next(plan), "sql", "")
        plan.close()
        assert text
        assert "jobs_hot" not in text
        assert "scheduled_jobs" not in text


async def a_claim_takes_from_both_engines_and_fills_its_number(kit: RingKit) -> None:
    """Half and half while both have enough, else whatever is there; each job once, the better ones of each engine first."""
    there = rows(kit)
    old = [id for priority in (3, 1) for id in await there.enqueue(20, priority=priority)]
    new = await kit.enqueue(20)
    first = await kit.claim(10)
    assert Counter(a.segment == CANONICAL for a in first) == {True: 5, False: 5}
    assert {a.priority for a in first if a.segment == CANONICAL} == {1}
    taken = [*first, *await kit.claim(30), *await kit.claim(100), *await kit.claim(100)]
    assert sorted(a.id for a in taken) == sorted([*old, *new])
    assert len(taken) == 60
    await there.enqueue(7)
    assert len(await kit.claim(7)) == 7
    await kit.enqueue(7)
    assert len(await kit.claim(7)) == 7


async def who_wants_one_job_at_a_time_gets_them_all(kit: RingKit) -> None:
    """From either engine, by chance."""
    ids = [*await rows(kit).enqueue(12), *await kit.enqueue(12)]
    taken = [a.id for _ in ids for a in await kit.claim(1)]
    assert sorted(taken) == ids
    assert await kit.claim(1) == []


async def each_queue_of_a_claim_gets_its_number_from_both(kit: RingKit) -> None:
    """In one call, one being empty here and the other there; a paused one gives nothing."""
    there = rows(kit)
    await there.enqueue(4, queue="a")
    await kit.enqueue(4, queue="b")
    await there.enqueue(4, queue="paused")
    await kit.run(kit.store.pause_queue("paused", None))
    claimed = await kit.ask(Demand("a", 3), Demand("b", 9), Demand("none", 5), Demand("paused", 5))
    assert Counter(a.queue for a in claimed.attempts) == {"a": 3, "b": 4}


async def what_a_claim_got_is_kept_when_the_logs_cannot_be_claimed(kit: RingKit) -> None:
    """A stranger's transaction holds the turn of the lane: the rows come, and the queue is asked again soon."""
    held, *_ = await kit.enqueue(2)
    old = await rows(kit).enqueue(4)
    async with kit.session() as user:
        await user.sql("BEGIN")
        assert await user.run(kit.store.cancel(held)) is Cancelled.CANCELLED
        claimed = await kit.ask(Demand("q", 4))
        assert ([a.id for a in claimed.attempts], claimed.again) == (old[:2], frozenset({("q", 0)}))
        assert await kit.finalize(*(end(a) for a in claimed.attempts)) == [ACCEPTED] * 2
        await user.sql("ROLLBACK")


async def producers_that_do_not_commit_hold_up_no_claim(kit: RingKit) -> None:
    """Of either engine, prepared transactions among them; what they enqueued is claimed once they have committed."""
    there, name = rows(kit), f"awa takeover {random.random()}"  # names are the whole server's
    async with kit.session() as user:
        await user.sql("BEGIN")
        held = [
            (await user.run(each.store.insert(jobs(1, run_at=at), notify=False)))[0].id
            for each in (kit, there)
            for at in (None, now() + HOUR)
        ]
        await user.sql(f"PREPARE TRANSACTION '{name}'")
        others = [*await kit.enqueue(2), *await there.enqueue(2)]
        assert sorted(a.id for a in await kit.claim()) == others
        assert await kit.claim() == []
        assert (await kit.run(kit.store.promote(10, canonical=["q"]))).count == 0
        await user.sql(f"COMMIT PREPARED '{name}'")
    assert sorted(a.id for a in await kit.claim()) == held[::2]


async def an_attempt_of_canonical_storage_ends_there_and_goes_on_in_queue_storage(kit: RingKit) -> None:
    """Whatever the outcome, with everything the job carries; its id stays, and its lease goes on rising."""
    extra = '{"metadata":{"keep":1},"tags":["t"],"deadline":900.0}'
    places = {JobState.RETRYABLE: "deferred", JobState.SCHEDULED: "deferred", JobState.AVAILABLE: "ready"}
    for to in OUTCOMES:
        (attempt,) = await taken_over(kit, priority=3, max_attempts=7, extra=extra)
        before = await kit.job(attempt.id)
        assert await kit.finalize(end(attempt, to, error="why")._replace(progress='{"percent":40}')) == [ACCEPTED]
        assert await where(kit, attempt.id) == places.get(to, "jobs_hot")
        job = await kit.job(attempt.id)
        assert (job.state, job.run_lease, job.created_at) == (to, attempt.run_lease, before.created_at)
        assert (job.priority, job.max_attempts, job.metadata, job.tags) == (3, 7, {"keep": 1}, ["t"])
        assert [entry["error"] for entry in job.errors] == (["why"] if to is not JobState.COMPLETED else [])
        await kit.run(kit.store.promote(10))
        again = await kit.claim()
        assert [(a.id, a.segment) for a in again] == ([(attempt.id, 0)] if to in GOES_ON else [])
        for each in again:
            assert each.run_lease > attempt.run_lease
            assert each.attempt == (2 if to is JobState.RETRYABLE else 1)
            await kit.close(each)


async def a_flush_with_attempts_of_both_engines_is_answered_in_order(kit: RingKit) -> None:
    """And when it is sent again, also by a worker that ended nothing since; another flush is stale."""
    for to in OUTCOMES:
        there, here = await taken_over(kit, 3), await _claimed_here(kit, 3)
        flush, mixed = kit.flush, [a for pair in zip(there, here, strict=True) for a in pair]
        ends = [end(a, to, due=now() + HOUR) for a in mixed]
        assert await kit.finalize(*ends[:4], flush=flush) == [ACCEPTED] * 4
        assert await kit.finalize(*ends, flush=flush) == [ACCEPTED] * 6
        assert await kit.finalize(*reversed(ends), flush=flush) == [ACCEPTED] * 6
        assert await kit.finalize(*ends) == [STALE] * 6
        assert await kit.states([a.id for a in mixed]) == [to] * 6
        for each in await kit.claim():
            await kit.close(each)


async def _claimed_here(kit: RingKit, count: int) -> list[Attempt]:
    ids = await kit.enqueue(count)
    attempts = await kit.claim()
    assert [a.id for a in attempts] == ids
    return attempts


async def a_worker_of_either_engine_learns_what_the_other_ended(kit: RingKit) -> None:
    """For every pair of outcomes: the first counts, the second is stale, and either flush may be sent again."""
    there = rows(kit)
    for first, second in ((a, b) for a in OUTCOMES for b in OUTCOMES):
        for one, two in ((kit, there), (there, kit)):
            (id,) = await there.enqueue()
            (attempt,) = await there.claim()
            ends = [end(attempt, to, due=now() + HOUR, error=to) for to in (first, second)]
            flush = kit.flush
            assert await one.finalize(ends[0], flush=flush) == [ACCEPTED]
            before = await kit.job(id)
            assert before == await there.job(id)
            assert await two.finalize(ends[1], flush=kit.flush) == [STALE]
            assert await two.finalize(ends[0], flush=flush) == [ACCEPTED]
            assert await kit.job(id) == before
            for released in await kit.claim():
                await kit.close(released)


async def closers_of_both_engines_race_and_each_attempt_ends_once(kit: RingKit) -> None:
    """A worker of canonical storage finishes while one of queue storage does; what each accepted is what the rows say."""
    there = rows(kit)
    for one, two in ((a, b) for a in OUTCOMES for b in OUTCOMES):
        await there.enqueue(6)
        attempts = await there.claim()
        verdicts: dict[int, list[Verdict]] = {}

        async def closer(
            name: int, kit: RingKit | RowKit, mine: list[Attempt], to: JobState, verdicts: dict[int, list[Verdict]]
        ) -> None:
            flush = kit.flush + (name << 41)
            while AGAIN in verdicts.setdefault(name, [AGAIN]):
                ends = [end(a, to, due=now() + HOUR, error=f"{name}") for a in mine]
                try:
                    verdicts[name] = await kit.finalize(*ends, flush=flush)
                except DatabaseError as error:
                    assert error.failure in {Failure.BUSY, Failure.TRANSIENT}, error
                await anyio.sleep(0.001)

        await together(
            partial(closer, 0, kit, attempts[:4], one, verdicts),
            partial(closer, 1, there, attempts[:1:-1], two, verdicts),
        )
        by = dict(zip(attempts[:4], verdicts[0], strict=True)), dict(zip(attempts[:1:-1], verdicts[1], strict=True))
        for attempt in attempts:
            (winner,) = [name for name in (0, 1) if by[name].get(attempt) is ACCEPTED]
            assert (await kit.job(attempt.id)).state is (one, two)[winner]
        for released in await kit.claim():
            await kit.close(released)


async def an_ending_there_brings_along_what_any_ending_does(kit: RingKit) -> None:
    """Follow-ups go to queue storage, unique ones once; dead letters; progress; an output has no place."""
    attempts = await taken_over(kit, 3)
    (first, *_) = attempts
    assert await kit.run(kit.store.record_progress([Progress(a, '{"percent":9}') for a in attempts])) == [
        a.id for a in attempts
    ]
    assert (await kit.job(first.id)).progress == {"percent": 9}
    unique = Unique(b"u" * 16, HELD)
    ended = [bringing(a, follow_ups=follows(unique=unique), output="1", flushed=True) for a in attempts[:2]]
    verdicts = await kit.finalize(*ended)
    assert (verdicts, verdicts.inserted) == ([ACCEPTED] * 2, 1)
    assert (await kit.job(first.id)).output_json is None
    (follow,) = await kit.claim(queue="follow")
    assert follow.segment == 0
    failed = end(attempts[2], JobState.FAILED, error="why")
    dead = dataclasses.replace(failed.transition, dead_letter=DeadLetter.TERMINAL)
    flush = kit.flush
    for _ in range(2):
        assert await kit.finalize(failed._replace(transition=dead), flush=flush) == [ACCEPTED]
    assert await where(kit, attempts[2].id) == "dlq"
    assert await kit.sql(f"SELECT count(*) FROM {kit.schema}.attempts") == [(1,)]


async def what_dead_workers_of_either_engine_left_is_found_and_ends_once(kit: RingKit) -> None:
    """Page by page, and what a worker does not know of its own claims; what is retried goes on in queue storage."""
    there, instance = rows(kit), (await kit.register()).instance
    ids = [*await kit.enqueue(3), *await there.enqueue(3)]
    assert len((await kit.ask(Demand("q", 10), instance=instance)).attempts) == 6
    assert [len(page) for page in await pages(kit, 2)] == [2, 2, 2, 0]
    assert [len(page) for page in await pages(kit, 4)] == [4, 2]
    assert [len(page) for page in await pages(kit, 3)] == [3, 3, 0]
    unknown = await kit.run(kit.store.unknown(instance, [], 0))
    assert sorted(a.id for a in unknown) == ids
    page = await kit.run(kit.store.find_stale(NOW, 10))
    assert [stranded.attempt.id for stranded in page.stranded] == ids
    assert await kit.finalize(*(rescued(stranded) for stranded in page.stranded)) == [ACCEPTED] * 6
    assert await kit.finalize(*(end(a) for a in unknown)) == [STALE] * 6
    assert {await where(kit, id) for id in ids[3:]} == {"deferred"}
    assert await pages(kit, 10) == [[]]


async def a_leader_of_canonical_storage_does_the_upkeep_of_both_engines(kit: RingKit) -> None:
    """Which of the workers leads must not matter."""
    leader = CanonicalStore("awa", random=random.random)
    await kit.enqueue(2)
    (lost, done) = await kit.claim()
    await kit.close(done)
    (there,) = await taken_over(kit)
    await kit.run(leader.sweep())
    found = (await kit.run(leader.find_stale(-1.0, 10))).stranded
    assert {stranded.attempt.id for stranded in found} == {lost.id, there.id}
    verdicts = await kit.run(
        leader.finalize([end(stranded.attempt, JobState.RETRYABLE) for stranded in found], kit.flush)
    )
    assert verdicts == [Verdict.ACCEPTED, Verdict.ACCEPTED]
    assert await kit.states([lost.id, done.id, there.id]) == [
        JobState.RETRYABLE, JobState.COMPLETED, JobState.RETRYABLE,
    ]  # fmt: skip
    assert (await kit.run(leader.rotate(0.0))).opened is not None
    assert (await kit.run(leader.prune(-1.0))).segment == done.segment
    assert await kit.run(kit.store.get_job(done.id)) is None


async def jobs_that_are_not_due_move_over_when_a_worker_of_their_queue_promotes(kit: RingKit) -> None:
    """Due ones become available, others are deferred, each in its state; other queues are left to whoever serves them."""
    there = rows(kit)
    (later,) = await there.enqueue(run_at=now() + HOUR)
    retried = await there.job_in(JobState.RETRYABLE)
    (foreign,) = await there.enqueue(queue="foreign", run_at=now() + HOUR)
    due = await there.job_in(JobState.RETRYABLE)
    await kit.sql(f"UPDATE {kit.schema}.scheduled_jobs SET run_at = now() - interval '1 s' WHERE id = {due}")
    before = [await kit.job(id) for id in (later, retried)]
    promoted = await kit.run(kit.store.promote(10, canonical=["q", "none"]))
    assert (promoted.count, promoted.queues) == (1, frozenset({"q"}))
    assert promoted.due_in is not None
    assert 3000 < promoted.due_in <= 3600
    assert [await where(kit, id) for id in (later, retried, due, foreign)] == [
        "deferred", "deferred", "ready", "scheduled_jobs",
    ]  # fmt: skip
    assert [await kit.job(id) for id in (later, retried)] == before
    assert [a.id for a in await kit.claim()] == [due]
    assert (await kit.run(kit.store.promote(10, canonical=["q"]))).count == 0


async def more_than_a_promotion_takes_moves_over_in_bites(kit: RingKit) -> None:
    """The answer says that there is more at once."""
    ids = await rows(kit).enqueue(7, run_at=now() + HOUR)
    answers = [await kit.run(kit.store.promote(3, canonical=["q"])) for _ in range(3)]
    assert [a.count for a in answers] == [0, 0, 0]
    assert [a.due_in == 0.0 for a in answers] == [True, True, False]
    assert {await where(kit, id) for id in ids} == {"deferred"}


async def promoters_of_both_engines_move_each_job_once(kit: RingKit) -> None:
    """A worker of canonical storage promotes there what another one takes over."""
    there = rows(kit)
    ids = await there.enqueue(200, run_at=now() + HOUR)
    await kit.sql(f"UPDATE {kit.schema}.scheduled_jobs SET run_at = now() - interval '1 s'")

    async def promoter(kit: RingKit | RowKit) -> None:
        for _ in range(12):
            await kit.run(kit.store.promote(20, canonical=["q"]))

    await together(*[partial(promoter, each) for each in (kit, there, kit, there)])
    taken = [a.id for _ in range(3) for a in await kit.claim(200)]
    assert sorted(taken) == ids


async def a_closer_that_waits_for_the_other_engine_gives_way(kit: RingKit) -> None:
    """After 200 ms, as busy, as for any stranger's transaction."""
    (attempt,) = await taken_over(kit)

    async def lose(session: Session) -> None:
        try:
            await session.run(kit.store.finalize([end(attempt, JobState.FAILED)], kit.flush))
        except DatabaseError as error:
            assert error.failure is Failure.BUSY, error
        else:
            raise AssertionError("two closers of one attempt")

    async with kit.session() as stranger, kit.session() as closer:
        await stranger.sql("BEGIN")
        assert await stranger.run(rows(kit).store.finalize([end(attempt)], kit.flush)) == [ACCEPTED]
        await lose(closer)
        await stranger.sql("ROLLBACK")
    await kit.close(attempt, JobState.FAILED)


async def a_client_of_canonical_storage_ends_what_is_in_the_logs_with_its_follow_ups(kit: RingKit) -> None:
    """It took a job there by `claim_one`, or a callback came to it: follow-ups are written to where new jobs are then."""
    there = rows(kit)

    async def has_followed(what: object, verdicts: Verdicts, *, switched: bool) -> None:
        assert (verdicts, verdicts.inserted) == ([ACCEPTED], 2), what
        table, later = ("ready", "deferred") if switched else ("jobs_hot", "scheduled_jobs")
        newest = await kit.sql(f"SELECT id FROM {kit.schema}.jobs WHERE kind = 'follow' ORDER BY id DESC LIMIT 2")
        assert [await where(kit, id) for (id,) in newest] == [later, table], what

    for switched, keyed in ((False, False), (False, True), (True, False), (True, True)):
        if switched:
            await switch(kit)

        def brought(keyed: bool = keyed) -> tuple[NewJob, ...]:
            unique = Unique(random.randbytes(16), HELD) if keyed else None
            return (*follows(1, unique=unique), *follows(1, run_at=now() + HOUR))

        for to in OUTCOMES:
            await kit.enqueue()
            (attempt,) = await kit.claim(1)
            verdicts = await kit.run(there.store.finalize([bringing(attempt, to, follow_ups=brought())], kit.flush))
            await has_followed(to, verdicts, switched=switched)
        for way in WAYS:
            for to, dead in (
                (JobState.COMPLETED, None),
                (JobState.FAILED, None),
                (JobState.FAILED, DeadLetter.TERMINAL),
                (JobState.AVAILABLE, None),
            ):
                attempt, id = await way(kit)
                found = await kit.run(Op("find", partial(there.store.find_callback, id)))
                assert found is not None
                transition = Transition(to, attempt.attempt, now(), now(), dead_letter=dead)
                called = Called(id, (found.waits,))
                ended = Ended(found.attempt, transition, follow_ups=brought(), called=called)
                verdicts = await kit.run(Op("end", partial(there.store.end_called, ended, kit.flush)))
                await has_followed((way.__name__, to), verdicts, switched=switched)
                assert (await kit.job(attempt.id)).state is to
        for each in await kit.claim():
            await kit.close(each)


async def an_output_that_comes_with_a_callback_is_kept_where_its_job_is_whatever_the_client_is_of(kit: RingKit) -> None:
    """In the logs it is, in canonical storage it is not."""
    there = rows(kit)
    for holder, kept in ((kit, '{"paid":995}'), (there, None)):
        for way in WAYS:
            for client in (kit, there):
                attempt, id = await way(holder)
                await kit.run(outside(client).complete_external(id, output={"paid": 995}))
                for reader in (kit, there):
                    job = await reader.job(attempt.id)
                    assert (job.state, job.output_json) == (JobState.COMPLETED, kept), (way.__name__, kept)
