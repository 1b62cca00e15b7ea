"""What hooks and follow-up functions are told of an attempt: the event, and the job after the transition."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from awa_proto import events
from awa_proto.errors import TerminalError
from awa_proto.job import Attempt, JobState
from awa_proto.outcome import (
    Cancel,
    Completed,
    Ending,
    Outcome,
    Raised,
    RetryAfter,
    Returned,
    Snooze,
    Transition,
    conclude,
)
from awa_proto.store import Ended
from awa_proto.worker.happened import claimed_at, event_of, job_after, started

CREATED = datetime(2026, 1, 1, 12, tzinfo=UTC)
CLAIMED = CREATED + timedelta(seconds=5)
AT = CLAIMED + timedelta(seconds=2)
LEASE = (CLAIMED - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)
FIRST = Attempt(1, 2, 3, LEASE, 7, "q", 3, "k", '{"a":1}', 1, 3, CREATED, CREATED, '{"metadata":{"m":1},"tags":["t"]}')
LAST = FIRST._replace(attempt=3)


def ended(attempt: Attempt, end: Returned | Raised | Ending, **facts: Any) -> Ended:
    return Ended(attempt, conclude(attempt, end, AT, lambda: 0.0, output=facts.pop("recorded", None)), **facts)


ERROR = Raised(RuntimeError("boom"))


@pytest.mark.parametrize(
    ("attempt", "end", "event"),
    [
        (FIRST, Returned(None), events.Completed),
        (FIRST, Returned(Completed()), events.Completed),
        (FIRST, Returned(RetryAfter(60)), events.Retried),
        (FIRST, ERROR, events.Retried),
        (FIRST, Ending.DEADLINE, events.Retried),
        (LAST, Returned(RetryAfter(60)), events.Exhausted),
        (LAST, ERROR, events.Exhausted),
        (LAST, Ending.DEADLINE, events.Exhausted),
        (FIRST, Raised(TerminalError("no")), events.Exhausted),
        (FIRST, Returned("what is this"), events.Exhausted),
        (FIRST, Returned(Cancel("no more")), events.Cancelled),
        (FIRST, Returned(Snooze(60)), None),
        (FIRST, Ending.WAIT, events.WaitingForCallback),
        (FIRST, Ending.UNREGISTERED, None),
        (FIRST, Ending.RELEASED, None),
    ],
)
def test_each_ending_has_the_event_of_the_page_or_none(attempt: Attempt, end: Any, event: type | None) -> None:
    if end in {Ending.WAIT, Ending.UNREGISTERED}:
        rule_to = JobState.WAITING_EXTERNAL if end is Ending.WAIT else JobState.FAILED
        outcome = Outcome.WAITING_FOR_CALLBACK if end is Ending.WAIT else None
        found = event_of(Ended(attempt, Transition(rule_to, 1, AT, outcome=outcome, ending=end)))
    else:
        found = event_of(ended(attempt, end))
    assert type(found) is (event or type(None))


def test_completed_says_how_long_the_handler_ran_and_carries_the_output() -> None:
    event = event_of(ended(FIRST, Returned(None), output="[1.0]", took=1.5))
    assert isinstance(event, events.Completed)
    assert event.duration == timedelta(seconds=1.5)
    assert (event.job.state, event.job.output_json) == (JobState.COMPLETED, "[1.0]")


def test_a_follow_up_function_gets_the_same_row_without_the_output() -> None:
    end = ended(FIRST, Returned(None), output="[1.0]")
    event = event_of(end)
    assert event is not None
    assert job_after(end) == replace(event.job, output_json=None)


def test_retried_says_the_error_the_attempt_and_when_it_runs_again() -> None:
    event = event_of(ended(FIRST, ERROR, took=1.0))
    assert isinstance(event, events.Retried)
    assert (event.error, event.attempt) == ("RuntimeError: boom", 1)
    assert event.next_run_at == event.job.run_at == AT + timedelta(seconds=2)
    assert event.job.finalized_at == AT
    assert [entry["error"] for entry in event.job.errors] == ["RuntimeError: boom"]


def test_the_error_of_a_retry_that_was_asked_for_is_empty() -> None:
    event = event_of(ended(FIRST, Returned(RetryAfter(60))))
    assert isinstance(event, events.Retried)
    assert (event.error, event.next_run_at) == ("", AT + timedelta(seconds=60))


@pytest.mark.parametrize("end", [ERROR, Returned(RetryAfter(60)), Raised(TerminalError("no"))])
def test_the_error_of_exhausted_is_that_of_the_entry(end: Returned | Raised) -> None:
    event = event_of(ended(LAST, end))
    assert isinstance(event, events.Exhausted)
    assert event.error == event.job.errors[-1]["error"] != ""
    assert (event.attempt, event.job.state, event.job.finalized_at) == (3, JobState.FAILED, AT)


def test_an_output_of_a_failed_attempt_is_in_the_entry_its_event_shows() -> None:
    event = event_of(ended(FIRST, ERROR, recorded='{"half":"done"}'))
    assert event is not None
    assert event.job.errors[-1]["output"] == {"half": "done"}


@pytest.mark.parametrize("reason", ["", "no more", "cancelled: twice"])
def test_cancelled_says_the_reason_of_the_handler(reason: str) -> None:
    event = event_of(ended(FIRST, Returned(Cancel(reason))))
    assert isinstance(event, events.Cancelled)
    assert (event.reason, event.job.state) == (reason, JobState.CANCELLED)


def test_the_row_after_a_transition_keeps_what_the_job_was_enqueued_with() -> None:
    job = job_after(ended(FIRST, Returned(None)))
    assert (job.id, job.kind, job.queue, job.priority, job.max_attempts) == (7, "k", "q", 3, 3)
    assert (job.args, job.metadata, job.tags) == ({"a": 1}, {"m": 1}, ["t"])
    assert (job.run_at, job.created_at, job.attempted_at, job.finalized_at) == (CREATED, CREATED, CLAIMED, AT)
    assert (job.attempt, job.run_lease, job.deadline_at) == (1, LEASE, None)


def test_the_row_of_a_snoozed_job_does_not_count_the_attempt() -> None:
    job = job_after(ended(FIRST, Returned(Snooze(60))))
    assert (job.state, job.attempt, job.run_at, job.finalized_at) == (
        JobState.SCHEDULED,
        0,
        AT + timedelta(seconds=60),
        None,
    )


def test_progress_is_gone_from_a_completed_row_and_kept_in_another() -> None:
    assert job_after(ended(FIRST, Returned(None), progress='{"percent":50}')).progress is None
    assert job_after(ended(FIRST, ERROR, progress='{"percent":50}')).progress == {"percent": 50}


def test_a_dead_letter_says_so_in_the_row() -> None:
    transition = conclude(LAST, ERROR, AT, lambda: 0.0, dead_letters=True)
    job = job_after(Ended(LAST, transition))
    assert (job.dlq_reason, job.dlq_at) == ("max_attempts_exhausted", AT)


def test_started_is_of_a_running_job_with_the_deadline_counted_from_the_claim() -> None:
    job = started(FIRST, AT, 60.0).job
    assert (job.state, job.attempt, job.attempted_at) == (JobState.RUNNING, 1, CLAIMED)
    assert job.deadline_at == CLAIMED + timedelta(seconds=60)
    assert started(FIRST, AT, None).job.deadline_at is None


@pytest.mark.parametrize("lease", [0, 1, LEASE + 10**9, 2**63 - 1])
def test_a_lease_that_is_no_time_between_creation_and_now_dates_no_claim(lease: int) -> None:
    assert claimed_at(FIRST._replace(run_lease=lease), AT) == AT
