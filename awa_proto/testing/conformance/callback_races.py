"""Callbacks at the same moment as whatever else ends the attempt: one has its way, and nothing is left that waits.

Each interleaving is forced: the first one has done its work in a transaction that is open, the second one waits for its locks,
and only then the first one commits.
"""

# ruff: noqa: D103  # a scenario is named as a sentence

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from awa_proto.errors import CallbackNotFound, DatabaseError, Failure
from awa_proto.events import RescueReason
from awa_proto.job import Attempt, JobState
from awa_proto.outcome import conclude
from awa_proto.plan import Op, Plan, Rows, Statement
from awa_proto.store import Cancelled, Ended, Progress, Stranded, Verdict, Wait, Waited
from awa_proto.testing.conformance.callbacks import is_dead, outside, parking, registered, running, timed_out, waiting
from awa_proto.testing.conformance.kit import DatabaseKit, Kit, Runs, Session, together

COMPLETED, FAILED, CANCELLED = JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED
AVAILABLE, RETRYABLE, WAITS = JobState.AVAILABLE, JobState.RETRYABLE, JobState.WAITING_EXTERNAL
AGAIN = frozenset({Failure.TRANSIENT, Failure.BUSY})
LEFT = """
SELECT 'callback', job_id, state::int FROM awa.callbacks
UNION ALL SELECT 'parked', id, state FROM awa.waiting WHERE state = 7
UNION ALL SELECT 'parked', id, state FROM awa.jobs_hot WHERE state = 7"""


@dataclass
class Contest:
    """A job with a callback.

    silent: its attempt, ended as rescue found it before it waited. expired: the same as found when its time was up.
    """

    kit: Kit
    attempt: Attempt
    id: str
    silent: Ended
    expired: Ended | None = None

    async def decided(self, who: str, run: Runs) -> bool:
        """Let one of them try until it knows whether it had its way."""
        flush = self.kit.flush
        while True:
            try:
                answer = await self._tried(who, run, flush)
            except DatabaseError as error:
                if error.failure not in AGAIN:
                    raise
                continue
            if answer is not None:
                return answer

    async def _tried(self, who: str, run: Runs, flush: int) -> bool | None:
        calls, store = outside(self.kit), self.kit.store
        match who:
            case "complete":
                return await _used(run, calls.complete_external(self.id))
            case "fail":
                return await _used(run, calls.fail_external(self.id, "no"))
            case "retry":
                return await _used(run, calls.retry_external(self.id))
            case "resume":
                return await _used(run, calls.resume_external(self.id, "go"))
            case "cancel":
                cancelled = await run(store.cancel(self.attempt.id))
                return None if cancelled is Cancelled.AGAIN else cancelled is not Cancelled.ENDED
            case "expire":
                ended = self.expired
            case _:
                ended = parking(self.attempt, self.id) if who == "park" else self.silent
        assert ended is not None
        (verdict,) = await run(store.finalize([ended], flush))
        return None if verdict is Verdict.AGAIN else verdict is Verdict.ACCEPTED


async def _used(run: Runs, op: Op[object]) -> bool:
    try:
        await run(op)
    except CallbackNotFound:
        return False
    return True


def presumed_dead(stranded: Stranded) -> Ended:
    """How the rescue of a silent worker ends an attempt, with whatever it has registered since."""
    transition = conclude(stranded.attempt, RescueReason.STALE_HEARTBEAT, stranded.at, lambda: 0.0)
    return Ended(stranded.attempt, transition, flushed=True)


async def silent(kit: Kit, **fields: Any) -> tuple[Attempt, Ended]:
    """An attempt that runs, found by rescue before it has done anything."""
    await kit.enqueue(**fields)
    (attempt,) = await kit.claim(1)
    page = await kit.run(kit.store.find_stale(0.0, 10))
    (found,) = [stranded for stranded in page.stranded if stranded.attempt.id == attempt.id]
    return attempt, presumed_dead(found)


async def contest(kit: Kit, way: str, *, expires: bool) -> Contest:
    """One whose handler is `running`, is `waiting`, or has `parked` its job."""
    attempt, ended = await silent(kit)
    found = Contest(kit, attempt, await registered(kit, attempt), ended)
    if way == "waiting":
        assert await kit.run(kit.store.wait([Wait(attempt, found.id)])) == [Waited(is_over=False)]
    if way == "parked":
        assert await kit.finalize(parking(attempt, found.id)) == [Verdict.ACCEPTED]
    if expires:
        await kit.run(outside(kit).heartbeat_callback(found.id, 0.0))
        ((stranded, called),) = (await kit.run(kit.store.find_expired(10))).stranded
        found.expired = timed_out(stranded, called)
    return found


RACES: tuple[tuple[str, str, str, bool, JobState], ...] = (
    # where the handler is, who is first, who is second, whether that one still finds something to do, the job at the end
    ("running", "park", "rescue", False, WAITS),
    ("running", "rescue", "park", False, RETRYABLE),
    ("running", "park", "resume", True, AVAILABLE),
    ("running", "resume", "park", True, AVAILABLE),
    ("waiting", "cancel", "complete", False, CANCELLED),
    ("waiting", "complete", "cancel", False, COMPLETED),
    ("waiting", "retry", "complete", False, AVAILABLE),
    ("waiting", "retry", "rescue", False, AVAILABLE),
    ("waiting", "expire", "retry", False, RETRYABLE),
    ("waiting", "rescue", "resume", False, RETRYABLE),
    ("waiting", "resume", "rescue", True, RETRYABLE),  # it goes on, and so does the silence of its worker
    ("waiting", "resume", "expire", False, JobState.RUNNING),
    ("parked", "cancel", "complete", False, CANCELLED),
    ("parked", "complete", "cancel", False, COMPLETED),
    ("parked", "complete", "retry", False, COMPLETED),
    ("parked", "retry", "expire", False, AVAILABLE),
    ("parked", "expire", "resume", False, RETRYABLE),
)


async def the_second_of_two_sees_what_the_first_did_whoever_they_are(kit: DatabaseKit) -> None:
    for way, first, second, also, state in RACES:
        race = await contest(kit, way, expires="expire" in {first, second})
        answers: list[bool] = []

        async def follow(race: Contest = race, second: str = second, answers: list[bool] = answers) -> None:
            answers.append(await race.decided(second, kit.run))

        async def commit(session: Session) -> None:
            await kit.until_waiting("transactionid")
            await session.sql("COMMIT")

        async with kit.session() as session:
            await session.sql("BEGIN")
            assert await race.decided(first, session.run), (way, first)
            await together(follow, partial(commit, session))
        assert (answers, (await kit.job(race.attempt.id)).state) == ([also], state), (way, first, second)
        await goes_on_without_the_old_token(kit, race, state)
    assert await kit.sql(LEFT) == []
    stat = await kit.stat()
    assert (stat.waiting_external, stat.running, stat.available) == (0, 0, 0)


async def goes_on_without_the_old_token(kit: Kit, race: Contest, state: JobState) -> None:
    """A job that runs again has a token of its own, and the old one is of no use for it."""
    calls = outside(kit)
    if state is WAITS:
        await kit.run(calls.complete_external(race.id))
    elif state is JobState.RUNNING:
        await kit.run(kit.store.cancel(race.attempt.id))
    elif state is AVAILABLE:
        if isinstance(kit, DatabaseKit):
            assert await kit.sql(LEFT) == []
        (again,) = await kit.claim(1)
        assert (again.id, again.attempt) == (race.attempt.id, 1)
        second = await registered(kit, again)
        for op in (calls.complete_external(race.id), calls.resume_external(race.id)):
            with pytest.raises(CallbackNotFound):
                await kit.run(op)
        await kit.run(calls.complete_external(second, run_lease=again.run_lease))
    for op in (calls.complete_external(race.id), calls.resume_external(race.id)):
        with pytest.raises(CallbackNotFound):
            await kit.run(op)


ALL = {
    "running": ("complete", "fail", "resume", "cancel", "rescue", "park"),
    "waiting": ("complete", "fail", "retry", "resume", "cancel", "rescue", "expire"),
    "parked": ("complete", "fail", "retry", "resume", "cancel", "rescue", "expire"),
}
USE_IT = {"complete", "fail", "retry", "resume", "expire"}
END_IT = {"complete", "fail", "retry", "rescue", "expire"}


async def of_all_who_end_a_job_that_waits_one_does_and_of_all_who_use_its_callback_one(kit: Kit) -> None:
    """At once. Who cancels has its way as long as the job has not ended for good, whatever else has become of it."""
    for way, rivals in ALL.items():
        race = await contest(kit, way, expires=way != "running")
        won: set[str] = set()

        async def enter(who: str, race: Contest = race, won: set[str] = won) -> None:
            if await race.decided(who, kit.run):
                won.add(who)

        await together(*(partial(enter, who) for who in rivals))
        assert len(won & USE_IT) <= 1, (way, won)
        assert len(won & END_IT) <= 1, (way, won)
        expected = COMPLETED if "complete" in won else FAILED if "fail" in won else CANCELLED
        assert ("cancel" in won) is (expected is CANCELLED), (way, won)
        assert (await kit.job(race.attempt.id)).state is expected, (way, won)
        await is_dead(kit, race.id)
        if isinstance(kit, DatabaseKit):
            assert await kit.sql(LEFT) == [], (way, won)


async def a_handler_that_gave_up_waiting_may_register_or_park_before_that_is_written(kit: Kit) -> None:
    """Its worker writes that it waits no more on another connection, which may be slow."""
    for late_word in (False, True):
        attempt, _ = await silent(kit, extra='{"deadline":3600.0}')
        first = await registered(kit, attempt)
        before = (await kit.job(attempt.id)).deadline_at
        assert await kit.run(kit.store.wait([Wait(attempt, first)])) == [Waited(is_over=False)]
        second = await registered(kit, attempt, first)
        after = (await kit.job(attempt.id)).deadline_at
        assert before is not None
        assert after is not None
        assert after > before, "it stood still meanwhile"
        assert await kit.run(kit.store.wait([Wait(attempt, first)])) == [Waited(is_over=True)], "it was replaced"
        await is_dead(kit, first)
        assert await kit.run(kit.store.wait([Wait(attempt, second)])) == [Waited(is_over=False)]
        if late_word:
            await kit.run(kit.store.leave([Wait(attempt, first)]))
            assert (await kit.job(attempt.id)).state is WAITS, "that was about the other one"
        assert await kit.finalize(parking(attempt, second)) == [Verdict.ACCEPTED]
        if late_word:
            await kit.run(kit.store.leave([Wait(attempt, second)]))
        job = await kit.job(attempt.id)
        assert (job.state, job.callback_id) == (WAITS, second)
        await kit.run(outside(kit).resume_external(second, late_word))
        (again,) = await kit.claim(1)
        assert again.id == attempt.id
        await kit.close(again)


async def who_uses_a_callback_in_an_open_transaction_holds_up_no_other_handler(kit: DatabaseKit) -> None:
    """What cannot be written of its handler is said, and written later; the others are answered at once."""
    held, id = await running(kit)
    other, its = await waiting(kit)
    left, third = await waiting(kit)
    await kit.run(outside(kit).resume_external(its))
    async with kit.session() as user, kit.session() as worker:
        await worker.sql("SET lock_timeout = '1s'")  # it would wait for ever else
        await user.sql("BEGIN ISOLATION LEVEL READ COMMITTED")
        await user.run(outside(kit).heartbeat_callback(id, 7200.0))
        found = await worker.run(kit.store.wait([Wait(held, id), Wait(other, its)]))
        assert found == [Waited(is_over=False), Waited(is_over=True, result="null")]
        await user.sql("COMMIT")
        assert (await kit.job(held.id)).state is JobState.RUNNING, "that it waits is not written so far"
        await worker.run(kit.store.wait([Wait(held, id)]))
        assert (await kit.job(held.id)).state is WAITS
        await user.sql("BEGIN ISOLATION LEVEL READ COMMITTED")
        await user.run(outside(kit).heartbeat_callback(id, 7200.0))
        gone = [Wait(held, id, 5.0), Wait(left, third, 5.0)]
        assert await worker.run(kit.store.leave(gone)) == [0]
        assert [(await kit.job(attempt.id)).state for attempt in (held, left)] == [WAITS, JobState.RUNNING]
        await user.sql("COMMIT")
        for _ in range(2):
            assert await worker.run(kit.store.leave(gone)) == []
            assert (await kit.job(held.id)).state is JobState.RUNNING
    for attempt in (held, other, left):
        await kit.close(attempt)


async def who_ends_a_job_in_an_open_transaction_holds_up_the_progress_of_no_other(kit: DatabaseKit) -> None:
    ends, id = await running(kit)
    other, _ = await running(kit)
    records = [Progress(ends, '{"percent":1}'), Progress(other, '{"percent":1}')]
    assert await kit.run(kit.store.record_progress(records)) == [ends.id, other.id]
    async with kit.session() as user, kit.session() as worker:
        await worker.sql("SET lock_timeout = '1s'")  # it would wait for ever else
        for use in (outside(kit).complete_external(id), outside(kit).cancel(ends.id)):
            await user.sql("BEGIN ISOLATION LEVEL READ COMMITTED")
            await user.run(use)
            assert await worker.run(kit.store.record_progress(records)) == [other.id]
            with pytest.raises(DatabaseError):  # who asks whether the attempt is the job's still waits for the answer
                await worker.run(kit.store.record_progress(records[:1], patient=True))
            await user.sql("ROLLBACK")
            assert await worker.run(kit.store.record_progress(records)) == [ends.id, other.id]
    for attempt in (ends, other):
        await kit.close(attempt)


async def what_a_silent_attempt_registers_after_rescue_has_looked_goes_with_it(kit: Kit) -> None:
    """Its worker was slow, not dead: it went on and now waits, for something that can never come."""
    for waits in (False, True):
        attempt, ended = await silent(kit)
        id = await registered(kit, attempt)
        if waits:
            await kit.run(kit.store.wait([Wait(attempt, id)]))
        assert await kit.finalize(ended) == [Verdict.ACCEPTED]
        assert (await kit.job(attempt.id)).state is RETRYABLE
        stat = await kit.stat()
        assert (stat.waiting_external, stat.running) == (0, 0)
        await is_dead(kit, id)
        assert await kit.run(kit.store.wait([Wait(attempt, id)])) == [Waited(is_over=True)]
        assert await kit.run(kit.store.register_callback(attempt, 1.0, None)) is None
    if isinstance(kit, DatabaseKit):
        assert await kit.sql(LEFT) == []


def cut_off(op: Op[Any], id: int) -> Op[Any]:
    """The same over a connection that is lost as soon as an attempt of the job has ended."""

    def plan() -> Plan[Any]:
        inner = op.start()
        step = next(inner)
        while True:
            answer = yield step
            found: Rows = yield Statement("state", "SELECT state FROM awa.jobs WHERE id = $1::bigint", (id,))
            try:
                step = inner.send(answer)
            except StopIteration as done:
                return done.value
            if found[0][0] not in {"running", "waiting_external"}:
                raise DatabaseError("the connection is lost", "08006")

    return dataclasses.replace(op, start=plan, safe_to_retry=False)


async def whoever_runs_a_job_is_told_by_the_statement_that_ends_it(kit: DatabaseKit) -> None:
    calls = outside(kit)
    async with kit.session() as ear:
        await ear.sql(f'LISTEN "{kit.channel}"')
        for use in ("complete", "fail", "retry", "resolve", "cancel"):
            attempt, _ = await silent(kit)
            id = await registered(kit, attempt)
            await kit.run(kit.store.wait([Wait(attempt, id)]))
            op: Op[Any] = {
                "complete": calls.complete_external(id),
                "fail": calls.fail_external(id, "no"),
                "retry": calls.retry_external(id),
                "resolve": calls.resolve_callback(id, None, "complete"),
                "cancel": kit.store.cancel(attempt.id),
            }[use]
            await kit.run(cut_off(op, attempt.id))
            assert await ear.heard() == [f"!{attempt.id}:{attempt.run_lease}"], use


async def nobody_is_told_of_a_parked_job_that_nobody_runs(kit: DatabaseKit) -> None:
    calls = outside(kit)
    async with kit.session() as ear:
        await ear.sql(f'LISTEN "{kit.channel}"')
        for use in ("complete", "fail", "retry", "cancel"):
            race = await contest(kit, "parked", expires=False)
            assert await race.decided(use, kit.run)
            assert await ear.heard() == [], use
        attempt, _ = await silent(kit)
        assert await kit.run(calls.cancel(attempt.id)) is True
        assert await ear.heard() == [f"!{attempt.id}:{attempt.run_lease}"]


async def callbacks_of_many_jobs_of_one_claim_each_have_their_way_at_once(kit: Kit) -> None:
    """Their attempts are ended in one place, where each but one is told to look again."""
    await kit.enqueue(8)
    attempts = await kit.claim(8)
    ids = [await registered(kit, attempt) for attempt in attempts]
    calls = outside(kit)
    ops = [calls.fail_external(id, "no") if n % 2 else calls.complete_external(id) for n, id in enumerate(ids)]
    await together(*(partial(kit.run, op) for op in ops))
    assert await kit.states([attempt.id for attempt in attempts]) == [COMPLETED, FAILED] * 4


async def a_callback_that_somebody_uses_as_it_expires_holds_up_no_other_one_that_does(kit: DatabaseKit) -> None:
    races = [await contest(kit, way, expires=False) for way in ("parked", "waiting", "parked")]
    for race in races:
        await kit.run(outside(kit).heartbeat_callback(race.id, 0.0))
    held, *others = races
    async with kit.session() as session:
        await session.sql("BEGIN ISOLATION LEVEL READ COMMITTED")
        assert await held.decided("retry", session.run)
        page = await kit.run(kit.store.find_expired(2))
        assert {called.callback_id for _, called in page.stranded} == {race.id for race in others}
        for found in page.stranded:
            assert await kit.finalize(timed_out(*found)) == [Verdict.ACCEPTED]
        page = await kit.run(kit.store.find_expired(2))
        assert (page.stranded, page.due_in) == ([], None)
        await session.sql("ROLLBACK")
    ((stranded, called),) = (await kit.run(kit.store.find_expired(2))).stranded
    assert stranded.attempt.id == held.attempt.id
    assert await kit.finalize(timed_out(stranded, called)) == [Verdict.ACCEPTED]
    assert await kit.sql(LEFT) == []


def pausing(op: Op[Any], sql: str) -> Op[Any]:
    """The same, where a statement is run before each of its own but the first."""

    def plan() -> Plan[Any]:
        inner = op.start()
        step = next(inner)
        while True:
            answer = yield step
            try:
                step = inner.send(answer)
            except StopIteration as done:
                return done.value
            yield Statement("pause", sql)

    return dataclasses.replace(op, start=plan)


async def one_that_comes_to_be_late_while_it_is_looked_for_is_found_or_looked_for_again(kit: DatabaseKit) -> None:
    for way in ("waiting", "parked"):
        race = await contest(kit, way, expires=False)
        await kit.run(outside(kit).heartbeat_callback(race.id, 0.3))
        until_late = f"""
            SELECT pg_sleep(greatest(0, extract(epoch FROM timeout_at - clock_timestamp()) + 0.01)) FROM awa.callbacks
            WHERE job_id = {race.attempt.id}"""
        page = await kit.run(pausing(kit.store.find_expired(10), until_late))
        assert [called.callback_id for _, called in page.stranded] == [race.id] or page.due_in is not None
        assert await race.decided("cancel", kit.run)
