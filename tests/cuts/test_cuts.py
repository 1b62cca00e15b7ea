"""Answers that are lost: the connection is cut at every message of the protocol, of every Op, and then it is as promised.

Whatever the cut, an error that says that nothing was committed is true; and doing it again, as the core or its user would,
leaves exactly what doing it once does.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import pytest

from awa_proto.cron.job import fire_of
from awa_proto.cron.operations import fire
from awa_proto.errors import CallbackNotFound, DatabaseError, Failure
from awa_proto.followup import FollowUp
from awa_proto.job import Attempt, JobState
from awa_proto.operations import Operations
from awa_proto.options import EnqueueRequest
from awa_proto.outcome import Outcome
from awa_proto.plan import Op
from awa_proto.store import Demand, JobFilter, NewJob, Unique, Verdict, Wait, Waited, WorkerInfo
from awa_proto.store.queue import QueueStore
from awa_proto.testing.adapters import Adapter, Driver, ask, opened
from awa_proto.testing.conformance.callbacks import parking
from awa_proto.testing.conformance.cron import template
from awa_proto.testing.conformance.kit import Kit, end, jobs, now
from awa_proto.testing.conformance.rescue import rescued
from tests.cuts.proxy import Proxy
from tests.fleet.server import ask as ask_directly
from tests.fleet.server import until

pytestmark = [pytest.mark.anyio, pytest.mark.chaos]
T = TypeVar("T")
PID = "SELECT pg_backend_pid()"
GONE = """SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = %s
  OR datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend' AND state <> 'idle'"""
"""Also not one that is about the same Op on a connection that was opened for it."""
LOST = {Failure.CONNECTION_LOST, Failure.OUTCOME_UNKNOWN, Failure.UNAVAILABLE}
NOTHING_DONE = {Failure.CONNECTION_LOST, Failure.UNAVAILABLE}


@dataclass
class Cut:
    """One cut. kit: runs Ops on connections that are not cut. queue: of this cut alone. do: runs an Op where it is cut."""

    kit: Kit
    dsn: str
    queue: str
    number: int
    do: Callable[[Op[Any]], Awaitable[Any]]
    error: DatabaseError | None = None

    async def tried(self, op: Op[T]) -> T | None:
        """What it answered; None when its connection was cut."""
        try:
            answer: T = await self.do(op)
        except DatabaseError as error:
            self.error = error
            if error.failure not in LOST:
                raise
            return None
        return answer

    @property
    def says_nothing_was_done(self) -> bool:
        """Whether the error does."""
        return self.error is not None and self.error.failure in NOTHING_DONE

    async def enqueue(self, count: int = 1, **fields: Any) -> list[int]:
        """Jobs to work with."""
        return await self.kit.enqueue(count, queue=self.queue, **fields)

    async def states(self) -> list[tuple[str, int]]:
        """State and attempt of each job of the queue."""
        found = await self.kit.run(self.kit.store.list_jobs(JobFilter(queue=self.queue)))
        return [(job.state.value, job.attempt) for job in found]


Story = Callable[[Cut], Awaitable[None]]


async def an_insert_may_have_been_committed_and_never_when_the_error_says_so(cut: Cut) -> None:
    rows = await cut.tried(cut.kit.store.insert(jobs(2, queue=cut.queue)))
    found = len(await cut.states())
    assert found == 2 if rows is not None else found in ({0} if cut.says_nothing_was_done else {0, 2})


async def an_insert_of_a_unique_job_is_safe_to_repeat(cut: Cut) -> None:
    new = NewJob("k", cut.queue, "{}", unique=Unique(cut.queue.encode().ljust(16), 0b11111))
    op = cut.kit.store.insert([new], skip=True)
    first = await cut.tried(op)
    (again,) = await cut.kit.run(op)
    assert again.existed or first is None
    assert await cut.states() == [("available", 0)]


async def a_copy_is_whole_or_not_there(cut: Cut) -> None:
    copied = await cut.tried(cut.kit.store.copy(jobs(5, queue=cut.queue)))
    found = len(await cut.states())
    assert found == 5 if copied is not None else found in ({0} if cut.says_nothing_was_done else {0, 5})


async def a_claim_is_adopted_or_was_none(cut: Cut) -> None:
    store, run = cut.kit.store, cut.kit.run
    ids = await cut.enqueue(3)
    worker = await cut.kit.register(cut.queue)
    ring, _ = await run(store.survey([cut.queue]))
    claimed = await cut.tried(store.claim(worker.instance, ring, [Demand(cut.queue, 2)]))
    known = [] if claimed is None else list(claimed.attempts)
    adopted = await run(store.unknown(worker.instance, [attempt.claim_id for attempt in known], 0))
    assert not (known and adopted), (cut, known, adopted)
    assert not (adopted and cut.says_nothing_was_done), (cut, adopted)
    rest = await cut.kit.claim(10, cut.queue)
    taken = [*known, *adopted, *rest]
    assert sorted(attempt.id for attempt in taken) == ids, (cut, known, adopted, rest)
    assert {attempt.attempt for attempt in taken} == {1}
    assert set(await cut.kit.finalize(*map(end, taken))) == {Verdict.ACCEPTED}


async def results_that_are_sent_again_are_accepted_once_and_so_are_their_follow_ups(cut: Cut) -> None:
    ids = await cut.enqueue(4)
    attempts = await cut.kit.claim(4, cut.queue)
    follow_up = NewJob("next", f"{cut.queue} next", "{}")
    ways = (JobState.COMPLETED, JobState.RETRYABLE, JobState.FAILED, JobState.COMPLETED)
    ended = [end(attempt, to)._replace(follow_ups=(follow_up,)) for attempt, to in zip(attempts, ways, strict=True)]
    flush = cut.kit.flush
    first = await cut.tried(cut.kit.store.finalize(ended, flush))
    before = [state for state, _ in await cut.states()]
    assert before == ["running"] * 4 or not cut.says_nothing_was_done
    second = await cut.kit.finalize(*ended, flush=flush)
    assert [list(verdicts) for verdicts in (first, second) if verdicts is not None][-1] == [Verdict.ACCEPTED] * len(ids)
    expected = sorted((way.value, 1) for way in ways)
    assert sorted(await cut.states()) == expected
    assert len(await cut.kit.run(cut.kit.store.list_jobs(JobFilter(queue=follow_up.queue)))) == len(ids)
    other = await cut.kit.finalize(*ended)
    assert list(other) == [Verdict.STALE] * len(ids)


async def a_rescue_that_is_repeated_counts_one_attempt(cut: Cut) -> None:
    (id,) = await cut.enqueue()
    await cut.kit.claim(1, cut.queue)
    page = await cut.tried(cut.kit.store.find_stale(0.0, 1000))
    if page is None:
        page = await cut.kit.run(cut.kit.store.find_stale(0.0, 1000))
    (found,) = [stranded for stranded in page.stranded if stranded.attempt.id == id]
    rescue = rescued(found)
    flush = cut.kit.flush
    await cut.tried(cut.kit.store.finalize([rescue], flush))
    assert list(await cut.kit.finalize(rescue, flush=flush)) == [Verdict.ACCEPTED]
    job = await cut.kit.run(cut.kit.store.get_job(id))
    assert job is not None
    assert (job.state, job.attempt, len(job.errors)) == (JobState.RETRYABLE, 1, 1)


async def promoted_jobs_are_there_once(cut: Cut) -> None:
    await cut.enqueue(3)
    first = await cut.kit.claim(3, cut.queue)
    await cut.kit.finalize(*(end(attempt, JobState.RETRYABLE) for attempt in first))
    await cut.tried(cut.kit.store.promote(100))
    while (await cut.kit.run(cut.kit.store.promote(100))).count:
        pass
    assert await cut.states() == [("available", 1)] * 3
    assert len(await cut.kit.claim(10, cut.queue)) == 3
    assert await cut.kit.claim(10, cut.queue) == []


async def a_cron_job_fires_once(cut: Cut) -> None:
    store, run = cut.kit.store, cut.kit.run
    await run(store.put_cron([template(cut.queue, queue=cut.queue)], declared=True))
    now, (job,) = await run(store.list_cron(cut.queue))
    found = fire_of(job, now + timedelta(minutes=1))
    assert found is not None
    mine = await cut.tried(fire(store, [found]))
    assert len(await cut.states()) == 0 or not cut.says_nothing_was_done
    again = await run(fire(store, [found]))
    assert not (mine and again)
    assert len(await cut.states()) == 1


async def a_beat_and_a_registration_are_repeated_at_will(cut: Cut) -> None:
    worker = WorkerInfo((cut.queue,), hostname="cut", pid=1)
    registered = await cut.tried(cut.kit.store.register(worker))
    if registered is None:
        registered = await cut.kit.run(cut.kit.store.register(worker))
    instance = registered.instance
    await cut.tried(cut.kit.store.beat(instance, worker))
    await cut.kit.run(cut.kit.store.beat(instance, worker))
    assert ask_directly(cut.dsn, "SELECT count(*) FROM awa.instances WHERE id = %s", instance) == [(1,)]


async def whoever_asked_to_lead_and_heard_nothing_leads_or_can(cut: Cut) -> None:
    mine, other = 2 * cut.number + 1000, 2 * cut.number + 1001
    said = await cut.tried(cut.kit.store.lead(mine, 60.0))
    held = await cut.kit.run(cut.kit.store.lead(other, 60.0))
    if said is not None:
        assert said.is_mine
        assert not held.is_mine
    if held.is_mine:
        await cut.kit.run(cut.kit.store.resign(other))
    again = await cut.kit.run(cut.kit.store.lead(mine, 60.0))
    assert again.is_mine
    await cut.kit.run(cut.kit.store.resign(mine))


async def _runs(cut: Cut) -> tuple[Attempt, str]:
    """An attempt with a callback."""
    await cut.enqueue()
    (attempt,) = await cut.kit.claim(1, cut.queue)
    found = await cut.kit.run(cut.kit.store.register_callback(attempt, 3600.0, None))
    assert found is not None
    return attempt, found.id


async def _waits(cut: Cut) -> tuple[Attempt, str]:
    """One whose handler waits for it."""
    attempt, id = await _runs(cut)
    assert await cut.kit.run(cut.kit.store.wait([Wait(attempt, id)])) == [Waited(is_over=False)]
    return attempt, id


async def _is_parked(cut: Cut) -> tuple[Attempt, str]:
    """One that was parked for it."""
    attempt, id = await _runs(cut)
    assert await cut.kit.finalize(parking(attempt, id)) == [Verdict.ACCEPTED]
    return attempt, id


def _used(
    has: Callable[[Cut], Awaitable[tuple[Attempt, str]]], call: str, state: str, count: int, *, follows: bool
) -> Story:
    """The outside world uses a callback, hears nothing, and says so again."""

    async def story(cut: Cut) -> None:
        attempt, id = await has(cut)
        before = await cut.states()
        calls = _outside(cut)
        arguments = ("no",) if call == "fail_external" else ()
        done = await cut.tried(getattr(calls, call)(id, *arguments))
        if cut.says_nothing_was_done:
            assert await cut.states() == before
        try:
            again = await cut.kit.run(getattr(calls, call)(id, *arguments))
        except CallbackNotFound:
            again = None
            assert not cut.says_nothing_was_done
        assert not (done and again), "it was used twice"
        assert await cut.states() == [(state, count)]
        followed = await cut.kit.run(cut.kit.store.list_jobs(JobFilter(queue=f"{cut.queue} next")))
        assert len(followed) == follows
        with pytest.raises(CallbackNotFound):
            await cut.kit.run(calls.resume_external(id))
        if state == "running":
            assert await cut.kit.run(cut.kit.store.wait([Wait(attempt, id)])) == [Waited(is_over=True, result="null")]
            assert await cut.kit.finalize(end(attempt)._replace(flushed=True)) == [Verdict.ACCEPTED]
        elif state == "available":
            (attempt,) = await cut.kit.claim(1, cut.queue)
            await cut.kit.close(attempt)
        assert ask_directly(cut.dsn, "SELECT count(*) FROM awa.callbacks WHERE job_id = %s", attempt.id) == [(0,)]

    story.__name__ = f"{call} of one that {has.__name__.strip('_').replace('_', ' ')} is done once".replace(" ", "_")
    return story


def _outside(cut: Cut) -> Any:
    """The calls of a client that makes a follow-up of whatever becomes of a job by its callback."""

    def follow(*_: object) -> EnqueueRequest:
        return EnqueueRequest({}).kind("next").queue(f"{cut.queue} next")

    registered = {
        "count": {outcome: [FollowUp(outcome, "count", None, follow, json.loads)] for outcome in Outcome},
    }
    return Operations(cut.kit.store, {}, "awa", now, random=lambda: 0.5, registered=registered)


async def a_registration_that_is_repeated_is_one(cut: Cut) -> None:
    await cut.enqueue()
    (attempt,) = await cut.kit.claim(1, cut.queue)
    before: str | None = None
    for _ in range(2):
        op = cut.kit.store.register_callback(attempt, 3600.0, None, before)
        first = await cut.tried(op)
        again = first or await cut.kit.run(op)
        assert again is not None
        assert again.id != before
        late = await cut.kit.run(op)
        assert late is not None
        assert late.id == again.id
        before = again.id
    assert await cut.kit.finalize(parking(attempt, str(before))) == [Verdict.ACCEPTED]
    assert await cut.states() == [("waiting_external", 1)]


async def waiting_leaving_and_parking_are_repeated_at_will(cut: Cut) -> None:
    attempt, id = await _runs(cut)
    store, run = cut.kit.store, cut.kit.run
    wait = [Wait(attempt, id, 1.0)]
    for _ in range(2):
        await cut.tried(store.wait(wait))
        assert await run(store.wait(wait)) == [Waited(is_over=False)]
        assert await cut.states() == [("waiting_external", 1)]
        await cut.tried(store.leave(wait))
        assert await run(store.leave(wait)) == []
        assert await cut.states() == [("running", 1)]
    flush, ended = cut.kit.flush, parking(attempt, id)
    await cut.tried(store.finalize([ended], flush))
    assert await cut.kit.finalize(ended, flush=flush) == [Verdict.ACCEPTED]
    assert await cut.states() == [("waiting_external", 1)]
    await run(store.find_expired(10))
    await run(_outside(cut).heartbeat_callback(id, 0.0))
    page = await cut.tried(store.find_expired(1000))
    if page is None:
        page = await run(store.find_expired(1000))
    ((found, called),) = [each for each in page.stranded if each[0].attempt.id == attempt.id]
    rescue = rescued(found)._replace(called=called)
    flush = cut.kit.flush
    await cut.tried(store.finalize([rescue], flush))
    (verdict,) = await cut.kit.finalize(rescue, flush=flush)
    job = await cut.kit.job(attempt.id)
    assert (job.state, job.attempt, len(job.errors)) == (JobState.RETRYABLE, 1, 1)
    assert verdict in {Verdict.ACCEPTED, Verdict.STALE}


ON_LANES: list[Story] = [
    a_claim_is_adopted_or_was_none,
    results_that_are_sent_again_are_accepted_once_and_so_are_their_follow_ups,
    a_rescue_that_is_repeated_counts_one_attempt,
    promoted_jobs_are_there_once,
    a_cron_job_fires_once,
    a_beat_and_a_registration_are_repeated_at_will,
    whoever_asked_to_lead_and_heard_nothing_leads_or_can,
    a_registration_that_is_repeated_is_one,
    waiting_leaving_and_parking_are_repeated_at_will,
]
"""What a worker does, whose lanes run an Op once."""
OF_CLIENTS: list[Story] = [
    an_insert_may_have_been_committed_and_never_when_the_error_says_so,
    an_insert_of_a_unique_job_is_safe_to_repeat,
    a_copy_is_whole_or_not_there,
    _used(_runs, "complete_external", "completed", 1, follows=True),
    _used(_runs, "resume_external", "running", 1, follows=False),
    _used(_waits, "fail_external", "failed", 1, follows=True),
    _used(_is_parked, "complete_external", "completed", 1, follows=True),
    _used(_is_parked, "retry_external", "available", 0, follows=True),
    _used(_is_parked, "resume_external", "available", 0, follows=False),
]
"""What a client does, which runs an Op again by itself where that is right."""


ON_ADAPTERS = [
    *itertools.product(("asyncio-asyncpg", "sync-psycopg"), [*ON_LANES, *OF_CLIENTS]),
    *itertools.product(("trio-psycopg",), ON_LANES[:2]),
]
"""The Ops are the same on each; what differs is how they are sent, and noticed to be lost."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("driver_name", "story"), ON_ADAPTERS, ids=[f"{name}-{story.__name__}" for name, story in ON_ADAPTERS]
)
async def test_it_is_as_promised_wherever_the_connection_is_cut(
    driver: Driver, proxy: Proxy, module_database: str, story: Story
) -> None:
    async with opened(driver, module_database) as direct:
        kit = Kit(QueueStore(random=lambda: 0.5), direct.run)
        number, has_cut = -1, True
        while has_cut:
            number += 1
            cut = Cut(kit, module_database, f"{story.__name__[:60]} {driver.name} {number}", number, _unconnected)
            async with opened(driver, proxy.dsn) as database:
                has_cut = await _told(story, cut, database, proxy)
    assert number > 3, "the Op sends a statement, which sends more messages than that"


async def _told(story: Story, cut: Cut, database: Adapter, proxy: Proxy) -> bool:
    """Tell a story of which one message is not passed on. Whether it had so many that one was not."""
    lane = database.lane("cut")
    run = database.run if story in OF_CLIENTS else lane.run
    left = cut.number
    has_cut = False

    async def do(op: Op[Any]) -> Any:
        nonlocal left, has_cut
        [(pid,)] = await run(ask(PID))
        if has_cut:
            return await run(op)
        proxy.cut_before(left)
        try:
            return await run(op)
        finally:
            left, has_cut = proxy.left()
            if has_cut:  # the server may still be about it
                until(lambda: ask_directly(cut.dsn, GONE, pid) == [(True,)], "the end of the backend")

    cut.do = do
    try:
        await story(cut)
    finally:
        await lane.close()
    return has_cut


async def _unconnected(op: Op[Any]) -> Any:
    raise AssertionError(f"{op.name} has no connection yet")
