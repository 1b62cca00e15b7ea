"""Callbacks: one of those who use one has its way, whatever the attempt does, and nothing waits for what cannot come."""

# ruff: noqa: D103  # a scenario is named as a sentence

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from random import random
from typing import Any

import anyio
import pytest

from awa_proto.callbacks.operations import Resolution
from awa_proto.dead_letters import DeadLetterPolicy
from awa_proto.errors import CallbackNotFound, ValidationError
from awa_proto.events import RescueReason
from awa_proto.extra import compact, encode, with_unique
from awa_proto.job import Attempt, JobRow, JobState
from awa_proto.operations import Operations
from awa_proto.outcome import DeadLetter, Ending, Outcome, Transition, conclude
from awa_proto.plan import Op
from awa_proto.store import Called, Ended, NewJob, Progress, Stranded, Unique, Verdict, Wait, Waited
from awa_proto.testing.conformance.kit import HOUR, DatabaseKit, Kit, end, jobs, now, together
from awa_proto.unique import DEFAULT_STATES, mask
from awa_proto.worker.events import Woken

NOBODY = "00000000-0000-4000-8000-000000000000"


def outside(kit: Kit, **settings: Any) -> Operations[Any]:
    """The calls of a client."""
    return Operations(kit.store, {}, "awa", now, random=random, **settings)


async def registered(kit: Kit, attempt: Attempt, before: str | None = None) -> str:
    """A callback of an attempt that runs, instead of the one it had before."""
    found = await kit.run(kit.store.register_callback(attempt, 3600.0, None, before))
    assert found is not None
    return found.id


def parking(attempt: Attempt, id: str) -> Ended:
    """How an attempt ends that waits for a callback."""
    transition = Transition(
        JobState.WAITING_EXTERNAL,
        attempt.attempt,
        now(),
        outcome=Outcome.WAITING_FOR_CALLBACK,
        ending=Ending.WAIT,
        callback=id,
    )
    return Ended(attempt, transition, flushed=True)


async def running(kit: Kit, **fields: Any) -> tuple[Attempt, str]:
    """An attempt with a callback."""
    await kit.enqueue(**fields)
    (attempt,) = await kit.claim(1)
    return attempt, await registered(kit, attempt)


async def parked(kit: Kit, **fields: Any) -> tuple[Attempt, str]:
    """A job that waits."""
    attempt, id = await running(kit, **fields)
    assert await kit.finalize(parking(attempt, id)) == [Verdict.ACCEPTED]
    return attempt, id


async def waiting(kit: Kit, **fields: Any) -> tuple[Attempt, str]:
    """A job whose handler waits."""
    attempt, id = await running(kit, **fields)
    assert await kit.run(kit.store.wait([Wait(attempt, id)])) == [Waited(is_over=False)]
    return attempt, id


WAYS: tuple[Callable[..., Awaitable[tuple[Attempt, str]]], ...] = (running, waiting, parked)


async def is_dead(kit: Kit, id: str) -> None:
    """Nothing can be done by this callback, and nothing is."""
    calls = outside(kit)
    before = [job.id for job in await kit.run(calls.list_jobs())]
    for op in (
        calls.complete_external(id),
        calls.fail_external(id, "late"),
        calls.retry_external(id),
        calls.resume_external(id),
        calls.heartbeat_callback(id),
        calls.resolve_callback(id, None, "complete"),
    ):
        with pytest.raises(CallbackNotFound):
            await kit.run(op)
    assert [job.id for job in await kit.run(calls.list_jobs())] == before


async def a_parked_job_is_shown_with_its_callback_and_takes_no_worker(kit: Kit) -> None:
    attempt, id = await running(kit, extra=encode(metadata={"m": 1}))
    job = await kit.job(attempt.id)
    assert (job.state, job.callback_id) == (JobState.RUNNING, id)
    assert job.callback_timeout_at is not None
    assert HOUR / 2 < job.callback_timeout_at - now() < 2 * HOUR
    assert await kit.finalize(parking(attempt, id)) == [Verdict.ACCEPTED]
    job = await kit.job(attempt.id)
    assert (job.state, job.callback_id, job.metadata) == (JobState.WAITING_EXTERNAL, id, {"m": 1})
    assert (job.attempt, job.run_lease, job.deadline_at) == (1, attempt.run_lease, None)
    assert await kit.listed(state=JobState.WAITING_EXTERNAL) == [attempt.id]
    assert await kit.listed() == [attempt.id]
    assert await kit.listed(state=JobState.RUNNING) == []
    stat = await kit.stat()
    assert (stat.waiting_external, stat.running, stat.available) == (1, 0, 0)
    assert await kit.claim() == []


async def a_handler_that_waits_is_shown_so_and_is_neither_stale_nor_overdue(kit: Kit) -> None:
    attempt, id = await waiting(kit, extra=encode(deadline=1e-6))
    job = await kit.job(attempt.id)
    assert (job.state, job.callback_id, job.deadline_at) == (JobState.WAITING_EXTERNAL, id, None)
    assert await kit.listed(state=JobState.WAITING_EXTERNAL) == [attempt.id]
    assert attempt.id not in await kit.listed(state=JobState.RUNNING)
    stat = await kit.stat()
    assert (stat.waiting_external, stat.running) == (1, 0)
    for op in (kit.store.find_stale(0.0, 10), kit.store.find_overdue(0.0, 10)):
        assert (await kit.run(op)).stranded == []
    await kit.run(outside(kit).resume_external(id))
    job = await kit.job(attempt.id)
    assert (job.state, job.callback_id) == (JobState.RUNNING, None)
    assert job.deadline_at is not None
    for op in (kit.store.find_stale(0.0, 10), kit.store.find_overdue(0.0, 10)):
        assert [stranded.attempt.id for stranded in (await kit.run(op)).stranded] == [attempt.id]


async def waiting_stops_the_clock_of_the_deadline(kit: Kit) -> None:
    await kit.enqueue(extra=encode(deadline=3600.0))
    (attempt,) = await kit.claim(1)
    before = (await kit.job(attempt.id)).deadline_at
    id = await registered(kit, attempt)
    await kit.run(kit.store.wait([Wait(attempt, id)]))
    await anyio.sleep(0.02)
    await kit.run(outside(kit).resume_external(id))
    after = (await kit.job(attempt.id)).deadline_at
    assert before is not None
    assert after is not None
    assert (after - before).total_seconds() >= 0.02


async def more_time(kit: Kit, attempt: Attempt) -> float:
    """Seconds that an attempt with a deadline of an hour may take beyond that."""
    job = await kit.job(attempt.id)
    assert job.deadline_at is not None
    assert job.attempted_at is not None
    return (job.deadline_at - job.attempted_at - HOUR).total_seconds()


async def a_wait_counts_for_the_deadline_though_it_is_written_late_and_once(kit: Kit) -> None:
    attempt, id = await running(kit, extra=encode(deadline=3600.0))
    for _ in range(2):
        assert await kit.run(kit.store.wait([Wait(attempt, id, 500.0)])) == [Waited(is_over=False)]
    assert await kit.run(kit.store.wait([Wait(attempt, id, 1500.0)])) == [Waited(is_over=False)], "it was even longer"
    assert await kit.run(kit.store.wait([Wait(attempt, id, 1000.0)])) == [Waited(is_over=False)]
    await kit.run(outside(kit).resume_external(id))
    assert 1500.0 <= await more_time(kit, attempt) < 1900.0
    for _ in range(2):
        assert await kit.run(kit.store.wait([Wait(attempt, id, 2500.0)])) == [Waited(is_over=True, result="null")]
        assert await more_time(kit, attempt) == pytest.approx(2500.0), "it went on long after it was resumed"
    second = await registered(kit, attempt, id)
    assert await more_time(kit, attempt) == pytest.approx(2500.0)
    for way in (kit.store.find_stale(0.0, 10), kit.store.find_overdue(0.0, 10)):
        late = [stranded.attempt.id for stranded in (await kit.run(way)).stranded]
        assert late == ([attempt.id] if way.name == "find_stale" else [])
    await kit.run(kit.store.wait([Wait(attempt, second, 3000.0)]))
    await kit.run(outside(kit).resume_external(second))
    assert 3000.0 <= await more_time(kit, attempt) < 3400.0
    await kit.close(attempt)


async def how_long_a_handler_waited_that_left_is_what_its_worker_says(kit: Kit) -> None:
    attempt, id = await running(kit, extra=encode(deadline=3600.0))
    for _ in range(2):
        await kit.run(kit.store.leave([Wait(attempt, id, 50.0)]))
        assert await more_time(kit, attempt) == pytest.approx(50.0), "that it waited was never written"
    await kit.run(kit.store.wait([Wait(attempt, id, 50.0)]))
    await anyio.sleep(0.02)
    for _ in range(2):
        await kit.run(kit.store.leave([Wait(attempt, id, 50.01)]))
        job = await kit.job(attempt.id)
        assert (job.state, job.callback_id) == (JobState.RUNNING, id)
        assert await more_time(kit, attempt) == pytest.approx(50.01), "not the time until it was written"
    await kit.run(kit.store.leave([Wait(attempt, id, 20.0)]))
    assert await more_time(kit, attempt) == pytest.approx(50.01), "an older word changes nothing"
    second = await registered(kit, attempt, id)
    await kit.run(kit.store.wait([Wait(attempt, second, 50.01)]))
    await kit.run(kit.store.leave([Wait(attempt, id, 70.0)]))
    assert (await kit.job(attempt.id)).state is JobState.WAITING_EXTERNAL, "it has left another one"
    await kit.run(kit.store.leave([Wait(attempt, second, 70.0)]))
    assert await more_time(kit, attempt) == pytest.approx(70.0)
    await kit.run(outside(kit).resume_external(second))
    await kit.run(kit.store.leave([Wait(attempt, second, 90.0)]))
    assert await more_time(kit, attempt) == pytest.approx(90.0), "it was resumed as it left"
    assert await kit.run(kit.store.wait([Wait(attempt, second)])) == [Waited(is_over=True, result="null")]
    await kit.finalize(parking(attempt, second))
    await kit.run(kit.store.leave([Wait(attempt, second, 99.0)]))
    assert (await kit.job(attempt.id)).state is JobState.AVAILABLE


async def a_callback_completes_its_job_wherever_that_is_and_once(kit: Kit) -> None:
    for way in WAYS:
        attempt, id = await way(kit)
        job = await kit.run(outside(kit).complete_external(id, {"any": "thing"}, output={"b": 1, "a": 1.0}))
        assert (job.id, job.state) == (attempt.id, JobState.COMPLETED)
        row = await kit.job(attempt.id)
        assert (row.state, row.attempt, row.callback_id) == (JobState.COMPLETED, 1, None)
        assert row.finalized_at is not None
        assert row.output_json == ('{"b":1,"a":1.0}' if kit.store.keeps_outputs else None)
        assert attempt.id in await kit.listed(state=JobState.COMPLETED)
        await is_dead(kit, id)
        assert await kit.finalize(end(attempt)) == [Verdict.STALE]
        assert await kit.finalize(parking(attempt, id)) == [Verdict.STALE]
        assert (await kit.job(attempt.id)).state is JobState.COMPLETED
    stat = await kit.stat()
    assert (stat.completed, stat.waiting_external, stat.running) == (3, 0, 0)


async def a_callback_fails_its_job_for_good(kit: Kit) -> None:
    for dead_letters in (False, True):
        for way in WAYS:
            attempt, id = await way(kit)
            calls = outside(kit, dead_letters=DeadLetterPolicy(dead_letters))
            job = await kit.run(calls.fail_external(id, "no such account"))
            assert (job.id, job.state) == (attempt.id, JobState.FAILED)
            row = await kit.job(attempt.id)
            assert (row.state, row.attempt) == (JobState.FAILED, 1)
            assert (row.errors[-1]["error"], row.errors[-1]["attempt"]) == ("no such account", 1)
            assert row.dlq_reason == (DeadLetter.TERMINAL if dead_letters else None)
            await is_dead(kit, id)
            assert await kit.finalize(end(attempt)) == [Verdict.STALE]


async def a_callback_lets_its_job_run_again_from_attempt_0_if_that_waits(kit: Kit) -> None:
    attempt, id = await running(kit)
    with pytest.raises(CallbackNotFound):
        await kit.run(outside(kit).retry_external(id))
    await kit.close(attempt)
    for way in (waiting, parked):
        attempt, id = await way(kit)
        job = await kit.run(outside(kit).retry_external(id))
        assert (job.id, job.state, job.attempt) == (attempt.id, JobState.AVAILABLE, 0)
        row = await kit.job(attempt.id)
        assert (row.state, row.attempt, row.attempted_at) == (JobState.AVAILABLE, 0, None)
        await is_dead(kit, id)
        (again,) = await kit.claim(1)
        assert (again.id, again.attempt) == (attempt.id, 1)
        assert again.run_lease > attempt.run_lease
        await kit.close(again)


async def a_parked_job_is_resumed_without_counting_and_is_told_what_came(kit: Kit) -> None:
    attempt, id = await parked(kit, extra=encode(tags=["t"]))
    job = await kit.run(outside(kit).resume_external(id, {"paid": 1.0}))
    assert (job.id, job.state, job.attempt) == (attempt.id, JobState.AVAILABLE, 0)
    await is_dead(kit, id)
    (again,) = await kit.claim(1)
    assert (again.id, again.attempt) == (attempt.id, 1)
    assert again.extra is not None
    assert '"callback_result":{"value":{"paid":1.0}}' in again.extra
    assert (await kit.job(attempt.id)).tags == ["t"]


async def a_handler_that_waits_is_given_what_came_any_number_of_times(kit: Kit) -> None:
    attempt, id = await waiting(kit)
    await kit.run(outside(kit).resume_external(id, [1, None]))
    for _ in range(2):
        assert await kit.run(kit.store.wait([Wait(attempt, id)])) == [Waited(is_over=True, result="[1,null]")]
    await is_dead(kit, id)
    second = await registered(kit, attempt, id)
    assert await kit.run(kit.store.wait([Wait(attempt, id), Wait(attempt, second)])) == [
        Waited(is_over=True),
        Waited(is_over=False),
    ], "a token that was replaced is waited for in vain"
    await kit.run(outside(kit).resume_external(second))
    assert await kit.run(kit.store.wait([Wait(attempt, second)])) == [Waited(is_over=True, result="null")]
    await kit.close(attempt)


async def a_handler_that_leaves_does_not_wait_any_more_and_may_wait_again(kit: Kit) -> None:
    attempt, id = await waiting(kit)
    await kit.run(kit.store.leave([Wait(attempt, id)]))
    job = await kit.job(attempt.id)
    assert (job.state, job.callback_id) == (JobState.RUNNING, id)
    assert await kit.run(kit.store.wait([Wait(attempt, id)])) == [Waited(is_over=False)]
    await kit.run(outside(kit).resume_external(id))
    await kit.run(kit.store.leave([Wait(attempt, id)]))
    assert await kit.run(kit.store.wait([Wait(attempt, id)])) == [Waited(is_over=True, result="null")]


async def a_callback_that_comes_early_is_found_by_the_handler_or_ends_its_parking(kit: Kit) -> None:
    attempt, id = await running(kit)
    job = await kit.run(outside(kit).resume_external(id, "soon"))
    assert job.state is JobState.RUNNING
    assert await kit.run(kit.store.wait([Wait(attempt, id)])) == [Waited(is_over=True, result='"soon"')]
    await kit.close(attempt)
    attempt, id = await running(kit)
    await kit.run(outside(kit).resume_external(id, "soon"))
    assert await kit.finalize(parking(attempt, id)) == [Verdict.ACCEPTED]
    await is_dead(kit, id)
    (again,) = await kit.claim(1)
    assert (again.id, again.attempt) == (attempt.id, 1)
    assert again.extra is not None
    assert "soon" in again.extra


LARGE: dict[str, Any] = {"zz": 1e16, "a": 1.0, "b": [1e300, {"y": "ü", "x": None}]}
"""JSON that jsonb would say in other words."""


async def what_a_job_is_resumed_with_is_the_same_text_whether_it_was_parked_by_then_or_not(kit: Kit) -> None:
    extra = encode(metadata=LARGE, tags=["t"])
    found: list[str | None] = []
    for early in (False, True, False, True):
        attempt, id = await running(kit, extra=extra)
        for payload in (1, LARGE):  # also once more
            ended = parking(attempt, id)._replace(progress=compact(LARGE))
            if early:
                await kit.run(outside(kit).resume_external(id, payload))
            assert await kit.finalize(ended) == [Verdict.ACCEPTED]
            if not early:
                await kit.run(outside(kit).resume_external(id, payload))
            (attempt,) = await kit.claim(1)
            id = await registered(kit, attempt)
        found.append(attempt.extra)
        await kit.close(attempt)
    assert len(set(found)) == 1, found
    assert found[0] is not None
    for said in (
        f'"metadata":{compact(LARGE)}',
        f'"progress":{compact(LARGE)}',
        f'"callback_result":{{"value":{compact(LARGE)}}}',
    ):
        assert said in found[0]


async def what_an_attempt_recorded_leaves_the_text_of_its_jobs_own_as_it_is(kit: Kit) -> None:
    calls = outside(kit)
    for use in ("fail", "retry", "cancel"):
        attempt, id = await waiting(kit, extra=encode(metadata=LARGE))
        await kit.run(kit.store.record_progress([Progress(attempt, compact(LARGE))]))
        op: Op[Any] = {"fail": calls.fail_external(id, "no"), "retry": calls.retry_external(id)}.get(
            use, calls.cancel(attempt.id)
        )
        for act in (None, op):
            if act is not None:
                await kit.run(act)
            row = (await kit.job(attempt.id)).extra_json
            assert row is not None
            assert f'"metadata":{compact(LARGE)}' in row, use
            assert f'"progress":{compact(LARGE)}' in row, use
        for again in await kit.claim():
            await kit.close(again)


async def what_a_callback_came_with_stays_until_a_person_or_the_callback_lets_the_job_begin_anew(kit: Kit) -> None:
    calls, store = outside(kit), kit.store
    for extra in (None, encode(metadata={"m": 1})):
        for how in (
            "back-off",
            "snooze",
            "rescue",
            "retry",
            "retry failed",
            "cancelled",
            "letter",
            "letters",
            "external",
            "waits",
        ):
            attempt, id = await parked(kit, extra=extra)
            await kit.run(calls.resume_external(id, "yes"))
            (attempt,) = await kit.claim(1)
            assert attempt.extra is not None
            assert '"callback_result":{"value":"yes"}' in attempt.extra
            match how:
                case "back-off" | "snooze":
                    await kit.close(attempt, JobState.RETRYABLE if how == "back-off" else JobState.SCHEDULED)
                    await kit.run(store.promote(10))
                case "rescue":
                    transition = conclude(attempt, RescueReason.STALE_HEARTBEAT, now() - HOUR, lambda: 0.0)
                    assert await kit.finalize(Ended(attempt, transition)) == [Verdict.ACCEPTED]
                    await kit.run(store.promote(10))
                case "retry":
                    await kit.close(attempt, JobState.FAILED, error="no")
                    await kit.run(calls.retry(attempt.id))
                case "retry failed":
                    await kit.close(attempt, JobState.FAILED)
                    assert await kit.run(calls.retry_failed(kind="count")) == 1
                case "cancelled":
                    await kit.run(calls.cancel(attempt.id))
                    await kit.run(calls.retry(attempt.id))
                case "letter":
                    await kit.close(attempt, JobState.FAILED)
                    assert await kit.run(store.move_to_dlq(attempt.id)) is not None
                    await kit.run(calls.retry_from_dlq(attempt.id))
                case "letters":
                    await kit.close(attempt, JobState.FAILED)
                    assert await kit.run(store.move_to_dlq(attempt.id)) is not None
                    assert await kit.run(calls.retry_all_from_dlq(kind="count")) == 1
                case _:
                    second = await registered(kit, attempt)
                    assert await kit.finalize(parking(attempt, second)) == [Verdict.ACCEPTED]
                    await kit.run(calls.retry_external(second) if how == "external" else calls.retry(attempt.id))
            (again,) = await kit.claim(1)
            assert again.id == attempt.id, how
            kept = "callback_result" in (again.extra or "")
            assert kept is (how in {"back-off", "snooze", "rescue"}), how
            assert (await kit.job(again.id)).metadata == ({} if extra is None else {"m": 1})
            await kit.close(again)


async def a_token_of_an_attempt_that_ended_is_dead(kit: Kit) -> None:
    for to in (JobState.COMPLETED, JobState.RETRYABLE, JobState.FAILED, JobState.SCHEDULED, JobState.AVAILABLE):
        attempt, id = await running(kit)
        ended = end(attempt, to, due=now() + HOUR)._replace(flushed=True)
        assert await kit.finalize(ended) == [Verdict.ACCEPTED]
        await is_dead(kit, id)
        assert await kit.run(kit.store.register_callback(attempt, 1.0, None)) is None
        if to is JobState.AVAILABLE:
            (again,) = await kit.claim(1)
            await is_dead(kit, id)
            await kit.close(again)


async def a_token_of_an_attempt_that_ended_is_dead_although_its_worker_did_not_know_of_it(kit: Kit) -> None:
    attempt, id = await running(kit)
    await kit.close(attempt, JobState.RETRYABLE, due=now() + HOUR)
    await is_dead(kit, id)
    await kit.run(kit.store.prune_attempts(100))
    await is_dead(kit, id)


async def an_attempt_is_parked_for_its_newest_callback_or_not_at_all(kit: Kit) -> None:
    for way in (running, waiting):
        attempt, id = await way(kit)
        for other in (NOBODY, (await running(kit))[1]):
            assert await kit.finalize(parking(attempt, other)) == [Verdict.UNREGISTERED]
        job = await kit.job(attempt.id)
        assert (job.callback_id, job.run_lease) == (id, attempt.run_lease)
        assert await kit.run(kit.store.wait([Wait(attempt, id)])) == [Waited(is_over=False)], "nothing was written"
        assert await kit.finalize(parking(attempt, id)) == [Verdict.ACCEPTED]
        await kit.run(outside(kit).complete_external(id))
        assert await kit.finalize(parking(attempt, NOBODY)) == [Verdict.STALE], "it has ended"


async def an_attempt_without_a_callback_cannot_be_parked_and_may_end_otherwise(kit: Kit) -> None:
    await kit.enqueue()
    (attempt,) = await kit.claim(1)
    flush = kit.flush
    for _ in range(2):
        assert await kit.finalize(parking(attempt, NOBODY), flush=flush) == [Verdict.UNREGISTERED]
    assert (await kit.job(attempt.id)).state is JobState.RUNNING
    await kit.close(attempt, JobState.FAILED, error="it waits for nothing")
    assert (await kit.job(attempt.id)).errors[-1]["error"] == "it waits for nothing"


async def a_registration_takes_the_place_of_an_earlier_one(kit: Kit) -> None:
    """Whether anybody has heard of it or not: that its answer was lost the database does not know."""
    attempt, first = await running(kit)
    second = await registered(kit, attempt, first)
    assert first != second
    await is_dead(kit, first)
    assert await kit.finalize(parking(attempt, first)) == [Verdict.UNREGISTERED]
    assert (await kit.job(attempt.id)).callback_id == second
    third = await registered(kit, attempt, second)
    assert await kit.finalize(parking(attempt, third)) == [Verdict.ACCEPTED]
    assert (await kit.job(attempt.id)).callback_id == third
    for dead in (first, second):
        await is_dead(kit, dead)
    await kit.run(outside(kit).complete_external(third))


async def a_registration_whose_answer_was_lost_is_the_answer_when_it_is_sent_again_however_late(kit: Kit) -> None:
    attempt, first = await running(kit)
    assert await registered(kit, attempt) == first
    second = await registered(kit, attempt, first)
    for late in (None, first):
        assert await registered(kit, attempt, late) == second, "it takes no newer one away"
    found = await kit.run(kit.store.register_callback(attempt, 60.0, None, first))
    assert found is not None
    job = await kit.job(attempt.id)
    assert (job.callback_id, job.callback_timeout_at) == (second, found.timeout_at), "what was said last counts"
    assert await kit.run(kit.store.wait([Wait(attempt, second)])) == [Waited(is_over=False)]
    await kit.run(outside(kit).resume_external(second, "came"))
    assert await registered(kit, attempt, first) == second
    assert await kit.run(kit.store.wait([Wait(attempt, second)])) == [Waited(is_over=True, result='"came"')]
    third = await registered(kit, attempt, second)
    assert await kit.finalize(parking(attempt, third)) == [Verdict.ACCEPTED]
    assert await kit.run(kit.store.register_callback(attempt, 3600.0, None, second)) is None
    assert (await kit.job(attempt.id)).callback_id == third


async def what_is_no_callback_is_not_found(kit: Kit) -> None:
    await is_dead(kit, NOBODY)
    with pytest.raises(CallbackNotFound):
        outside(kit).complete_external("no uuid")
    attempt, id = await parked(kit)
    with pytest.raises(CallbackNotFound):
        await kit.run(outside(kit).complete_external(id, run_lease=attempt.run_lease + 1))
    with pytest.raises(ValidationError, match="output_for"):
        await kit.run(outside(kit).complete_external(id, output_for="another_kind"))
    assert (await kit.job(attempt.id)).state is JobState.WAITING_EXTERNAL
    await kit.run(outside(kit).complete_external(id.upper(), run_lease=attempt.run_lease, output_for="count"))


async def of_many_who_use_a_callback_one_has_its_way(kit: Kit) -> None:
    for way in WAYS:
        attempt, id = await way(kit)
        calls = outside(kit)
        done: list[JobRow | Resolution] = []

        async def use(op: Op[Any], done: list[JobRow | Resolution] = done) -> None:
            with contextlib.suppress(CallbackNotFound):
                done.append(await kit.run(op))

        ops: list[Op[JobRow]] = []
        for _ in range(4):
            ops += [calls.complete_external(id), calls.fail_external(id, "x"), calls.resume_external(id, 1)]
        await together(*(partial(use, op) for op in ops))
        assert len(done) == 1, (way.__name__, done)
        (job,) = done
        assert isinstance(job, JobRow)
        assert (await kit.job(attempt.id)).state is job.state
        await is_dead(kit, id)
        for left in await kit.claim():
            await kit.close(left)
        await kit.finalize(end(attempt)._replace(flushed=True))


async def parking_and_a_callback_at_the_same_time_leave_nothing_waiting(kit: Kit) -> None:
    for name in ("complete", "resume", "fail") * 3:
        attempt, id = await running(kit)
        calls = outside(kit)
        op: Op[Any] = {
            "complete": calls.complete_external(id),
            "resume": calls.resume_external(id, name),
            "fail": calls.fail_external(id, name),
        }[name]
        verdicts: list[Verdict] = []

        ended = parking(attempt, id)

        async def park(ended: Ended = ended, verdicts: list[Verdict] = verdicts) -> None:
            flush = kit.flush
            while True:
                (verdict,) = await kit.finalize(ended, flush=flush)
                if verdict is not Verdict.AGAIN:
                    break
            verdicts.append(verdict)

        await together(park, partial(kit.run, op))
        job = await kit.job(attempt.id)
        if name == "resume":
            assert verdicts == [Verdict.ACCEPTED]
            assert job.state is JobState.AVAILABLE
            (again,) = await kit.claim(1)
            await kit.close(again)
        else:
            assert job.state is (JobState.COMPLETED if name == "complete" else JobState.FAILED)
        await is_dead(kit, id)


def timed_out(stranded: Stranded, called: Called) -> Ended:
    """How a callback that did not come ends an attempt."""
    attempt = stranded.attempt
    transition = conclude(attempt, RescueReason.EXPIRED_CALLBACK, now(), lambda: 0.0, dead_letters=True)
    return Ended(attempt, transition, flushed=True, called=called)


async def who_waits_too_long_is_found_in_time_and_fails_as_an_attempt(kit: Kit) -> None:
    for way in (waiting, parked):
        for max_attempts in (2, 1):
            attempt, id = await way(kit, max_attempts=max_attempts)
            page = await kit.run(kit.store.find_expired(10))
            assert page.stranded == []
            assert page.due_in is not None
            assert 1800 < page.due_in <= 3600
            await kit.run(outside(kit).heartbeat_callback(id, 0.0))
            page = await kit.run(kit.store.find_expired(10))
            ((stranded, called),) = page.stranded
            assert page.due_in is None
            assert (stranded.attempt.id, stranded.attempt.attempt) == (attempt.id, 1)
            ended = timed_out(stranded, called)
            await kit.run(outside(kit).heartbeat_callback(id, 3600.0))
            assert await kit.finalize(ended) == [Verdict.STALE], "it was given more time"
            await kit.run(outside(kit).heartbeat_callback(id, 0.0))
            assert await kit.finalize(ended) == [Verdict.ACCEPTED]
            job = await kit.job(attempt.id)
            assert "callback timed out" in job.errors[-1]["error"]
            assert (job.state, job.dlq_reason) == (
                (JobState.RETRYABLE, None) if max_attempts == 2 else (JobState.FAILED, "callback_timeout")
            )
            await is_dead(kit, id)
            assert (await kit.run(kit.store.find_expired(10))).stranded == []


async def when_the_next_callback_is_due_is_known_before_its_handler_waits(kit: Kit) -> None:
    attempt, id = await running(kit)
    due_in = (await kit.run(kit.store.find_expired(10))).due_in
    assert due_in is not None
    assert 1800 < due_in <= 3600
    await kit.run(outside(kit).heartbeat_callback(id, 0.0))
    page = await kit.run(kit.store.find_expired(10))
    assert (page.stranded, page.due_in) == ([], None), "it is due, and its handler does not wait"
    assert await kit.run(kit.store.wait([Wait(attempt, id)])) == [Waited(is_over=False)]
    assert [called.callback_id for _, called in (await kit.run(kit.store.find_expired(10))).stranded] == [id]
    await kit.close(attempt)


async def a_callback_and_its_timeout_at_the_same_time_are_one_winner(kit: Kit) -> None:
    for way in (waiting, parked):
        for name in ("complete", "resume", "retry"):
            attempt, id = await way(kit)
            calls = outside(kit)
            await kit.run(calls.heartbeat_callback(id, 0.0))
            ((stranded, called),) = (await kit.run(kit.store.find_expired(10))).stranded
            ended = timed_out(stranded, called)
            op: Op[Any] = {
                "complete": calls.complete_external(id),
                "resume": calls.resume_external(id),
                "retry": calls.retry_external(id),
            }[name]
            won: list[str] = []

            async def call(op: Op[Any] = op, won: list[str] = won) -> None:
                try:
                    await kit.run(op)
                except CallbackNotFound:
                    return
                won.append("callback")

            async def rescue(ended: Ended = ended, won: list[str] = won) -> None:
                flush = kit.flush
                while (verdict := (await kit.finalize(ended, flush=flush))[0]) is Verdict.AGAIN:
                    pass
                if verdict is Verdict.ACCEPTED:
                    won.append("timeout")

            await together(call, rescue)
            assert len(won) == 1, won
            job = await kit.job(attempt.id)
            if won == ["timeout"]:
                assert job.state is JobState.RETRYABLE
            else:
                assert job.state is not JobState.RETRYABLE
                assert job.state is not JobState.WAITING_EXTERNAL
            await is_dead(kit, id)
            for left in await kit.claim():
                await kit.close(left)
            await kit.finalize(end(attempt)._replace(flushed=True))


async def a_waiter_whose_worker_died_can_be_completed_and_is_rescued_once_it_was_resumed_or_late(kit: Kit) -> None:
    """Nobody runs its handler any more, and nothing of it is stuck."""
    attempt, id = await waiting(kit)
    assert (await kit.run(kit.store.find_stale(0.0, 10))).stranded == []
    await kit.run(outside(kit).complete_external(id))
    assert (await kit.job(attempt.id)).state is JobState.COMPLETED
    attempt, id = await waiting(kit)
    await kit.run(outside(kit).resume_external(id))
    (stranded,) = (await kit.run(kit.store.find_stale(0.0, 10))).stranded
    assert stranded.attempt.id == attempt.id
    transition = conclude(stranded.attempt, RescueReason.STALE_HEARTBEAT, now(), lambda: 0.0)
    assert await kit.finalize(Ended(stranded.attempt, transition, flushed=True)) == [Verdict.ACCEPTED]
    assert (await kit.job(attempt.id)).state is JobState.RETRYABLE
    await is_dead(kit, id)
    attempt, id = await waiting(kit)
    await kit.run(outside(kit).heartbeat_callback(id, 0.0))
    ((stranded, called),) = (await kit.run(kit.store.find_expired(10))).stranded
    ended = timed_out(stranded, called)
    assert await kit.finalize(ended) == [Verdict.ACCEPTED]
    assert (await kit.job(attempt.id)).state is JobState.RETRYABLE


async def a_person_cancels_and_retries_jobs_that_wait(kit: Kit) -> None:
    calls = outside(kit)
    for way in (waiting, parked):
        attempt, id = await way(kit)
        assert await kit.run(calls.cancel(attempt.id)) is True
        assert (await kit.job(attempt.id)).state is JobState.CANCELLED
        await is_dead(kit, id)
        assert await kit.finalize(end(attempt)) == [Verdict.STALE]
        attempt, id = await way(kit)
        job = await kit.run(calls.retry(attempt.id))
        assert (job.state, job.attempt) == (JobState.AVAILABLE, 0)
        await is_dead(kit, id)
        (again,) = await kit.claim(1)
        assert (again.id, again.attempt) == (attempt.id, 1)
        await kit.close(again)
    attempt, id = await parked(kit)
    assert await kit.run(kit.store.drain_queue("q")) == 1
    assert (await kit.job(attempt.id)).state is JobState.CANCELLED
    await is_dead(kit, id)


async def a_job_that_was_completed_from_outside_can_be_deleted_and_goes_by_age(kit: Kit) -> None:
    calls = outside(kit)
    attempt, id = await parked(kit)
    assert await kit.run(kit.store.delete_job(attempt.id)) is False
    await kit.run(calls.complete_external(id))
    assert await kit.run(kit.store.cancel(attempt.id)) == "ended"
    assert await kit.run(kit.store.delete_job(attempt.id)) is True
    assert await kit.run(kit.store.get_job(attempt.id)) is None
    attempt, id = await parked(kit)
    await kit.run(calls.complete_external(id))
    assert await kit.run(kit.store.prune_completed(3600.0, 10)) == 0
    await anyio.sleep(0.002)
    assert await kit.run(kit.store.prune_completed(0.0, 10)) == 1
    assert await kit.run(kit.store.get_job(attempt.id)) is None


async def progress_is_kept_by_what_waits_and_by_what_it_becomes(kit: Kit) -> None:
    for way in (waiting, parked):
        await kit.enqueue()
        (attempt,) = await kit.claim(1)
        id = await registered(kit, attempt)
        await kit.run(kit.store.record_progress([Progress(attempt, '{"percent":50}')]))
        if way is parked:
            await kit.finalize(parking(attempt, id)._replace(progress='{"percent":50}'))
        else:
            await kit.run(kit.store.wait([Wait(attempt, id)]))
        assert (await kit.job(attempt.id)).progress == {"percent": 50}
        await kit.run(outside(kit).retry_external(id))
        assert (await kit.job(attempt.id)).progress == {"percent": 50}
        (again,) = await kit.claim(1)
        await kit.close(again)


def keyed(states: tuple[JobState, ...] = DEFAULT_STATES) -> NewJob:
    """A job of which there is one at a time."""
    unique = Unique(b"k" * 16, mask(states))
    (new,) = jobs(1)
    return new._replace(extra=with_unique(None, unique.key, unique.states), unique=unique)


async def a_parked_job_keeps_others_out_only_if_its_states_say_so(kit: Kit) -> None:
    first = (await kit.insert(keyed()))[0]
    (attempt,) = await kit.claim(1)
    id = await registered(kit, attempt)
    assert await kit.finalize(parking(attempt, id)) == [Verdict.ACCEPTED]
    second = (await kit.insert(keyed()))[0]
    assert second.id != first.id
    job = await kit.run(outside(kit).resume_external(id))
    assert (job.id, job.state) == (first.id, JobState.CANCELLED)
    row = await kit.job(first.id)
    assert (row.state, row.errors[-1]["error"]) == (JobState.CANCELLED, "rescheduled as duplicate")
    await is_dead(kit, id)


async def a_job_whose_callback_came_before_it_was_parked_does_not_run_beside_a_newer_one(kit: Kit) -> None:
    states = (JobState.SCHEDULED, JobState.AVAILABLE, JobState.RETRYABLE)
    first = (await kit.insert(keyed(states)))[0]
    (attempt,) = await kit.claim(1)
    id = await registered(kit, attempt)
    second = (await kit.insert(keyed(states)))[0]
    await kit.run(outside(kit).resume_external(id))
    flush = kit.flush
    for _ in range(2):
        assert await kit.finalize(parking(attempt, id), flush=flush) == [Verdict.DUPLICATE]
    row = await kit.job(first.id)
    assert (row.state, row.errors[-1]["error"]) == (JobState.CANCELLED, "rescheduled as duplicate")
    await is_dead(kit, id)
    (other,) = await kit.claim()
    assert other.id == second.id
    other_id = await registered(kit, other)
    await kit.run(outside(kit).resume_external(other_id))
    assert await kit.finalize(parking(other, other_id)) == [Verdict.ACCEPTED]
    (again,) = await kit.claim()
    assert again.id == second.id


async def a_parked_job_whose_states_say_so_keeps_its_key(kit: Kit) -> None:
    states = (*DEFAULT_STATES, JobState.WAITING_EXTERNAL)
    first = (await kit.insert(keyed(states)))[0]
    (attempt,) = await kit.claim(1)
    id = await registered(kit, attempt)
    assert await kit.finalize(parking(attempt, id)) == [Verdict.ACCEPTED]
    (row,) = await kit.run(kit.store.insert([keyed(states)], skip=True))
    assert (row.id, row.existed) == (first.id, True)
    await kit.run(outside(kit).resume_external(id))
    assert (await kit.job(first.id)).state is JobState.AVAILABLE


async def many_are_parked_by_one_flush_each_by_its_own_callback(kit: Kit) -> None:
    await kit.enqueue(20)
    attempts = await kit.claim()
    ids = {attempt.id: await registered(kit, attempt) for attempt in attempts[:15]}
    await kit.run(outside(kit).resume_external(ids[attempts[0].id], compact({"first": True})))
    await kit.run(outside(kit).complete_external(ids[attempts[1].id]))
    flush = kit.flush
    ended = [parking(attempt, ids.get(attempt.id, NOBODY)) for attempt in attempts]
    ended[2:4] = [parking(attempts[2], ids[attempts[3].id]), parking(attempts[3], ids[attempts[2].id])]
    expected = [Verdict.ACCEPTED, Verdict.STALE, *[Verdict.UNREGISTERED] * 2]
    expected += [*[Verdict.ACCEPTED] * 11, *[Verdict.UNREGISTERED] * 5]
    assert await kit.finalize(*ended, flush=flush) == expected
    assert await kit.finalize(*ended, flush=flush) == expected, "the same flush again"
    states = await kit.states([attempt.id for attempt in attempts])
    waits, runs = JobState.WAITING_EXTERNAL, JobState.RUNNING
    assert states == [JobState.AVAILABLE, JobState.COMPLETED, *[runs] * 2, *[waits] * 11, *[runs] * 5]


async def a_callback_that_is_due_soon_is_told_to_the_leader(kit: DatabaseKit) -> None:
    async with kit.session() as session:
        await session.sql(f'LISTEN "{kit.channel}"')
        attempt, id = await running(kit)
        assert await session.heard() == [], "it looks every few seconds as it is"
        for seconds in (2.5, 5.0, 0.0):
            await kit.run(outside(kit).heartbeat_callback(id, seconds))
        first, second = map(Woken.callback_due_in, await session.heard())
        assert (first, second) == (2.5, 0.0)
        for seconds in (4.5, 6.0):
            found = await kit.run(kit.store.register_callback(attempt, seconds, None, id))
            assert found is not None
            id = found.id
        assert [Woken.callback_due_in(payload) for payload in await session.heard()] == [4.5]
        await kit.close(attempt)


async def a_notification_wakes_the_handler_and_ends_one_whose_job_was_ended(kit: DatabaseKit) -> None:
    async with kit.session() as session:
        await session.sql(f'LISTEN "{kit.channel}"')
        attempt, id = await waiting(kit)
        await kit.run(outside(kit).resume_external(id))
        assert await session.heard() == [f"^{attempt.id}:{attempt.run_lease}"]
        await kit.close(attempt)
        attempt, id = await waiting(kit)
        await kit.run(outside(kit).complete_external(id))
        assert await session.heard() == [f"!{attempt.id}:{attempt.run_lease}"]
