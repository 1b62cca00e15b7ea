"""What happened to an attempt, as hooks and follow-up functions are told it: the event, and the job as it is afterwards.

Both are made of what the machine has in hand anyway, so neither reads the database.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, assert_never

from awa_proto.events import (
    AnyEvent,
    Cancelled,
    Completed,
    Exhausted,
    Rescued,
    Retried,
    Started,
    WaitingForCallback,
    unmade,
)
from awa_proto.extra import without_outputs
from awa_proto.job import Attempt, JobRow, JobState
from awa_proto.outcome import Ending, Outcome
from awa_proto.store import Ended
from awa_proto.worker.deadlines import limit
from awa_proto.worker.events import Happened, Output

_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_FINALIZES: Final = frozenset({JobState.COMPLETED, JobState.RETRYABLE, JobState.FAILED, JobState.CANCELLED})
_WAITS: Final = frozenset({JobState.RETRYABLE, JobState.SCHEDULED})
_CANCELLED: Final = "cancelled: "


class Hooked:
    """Puts in the stream what happens to jobs of the kinds that have hooks.

    kinds: those, as they are now; whoever has an attempt of another kind asks no further, so that it costs nothing.
    """

    __slots__ = ("_out", "kinds")

    def __init__(self, kinds: Collection[str], out: deque[Output]) -> None:
        self._out = out
        self.kinds = kinds

    def begin(self) -> list[AnyEvent]:
        """A list that is told at this place of the stream, with the events that are in it when the stream is read."""
        told: list[AnyEvent] = []
        self._out.append(Happened(told))
        return told

    def tell(self, event: AnyEvent) -> None:
        """Something happened, and is committed."""
        self._out.append(Happened((event,)))

    def ended(self, ended: Iterable[Ended]) -> None:
        """These ended, and that is committed."""
        if told := [event for event in map(event_of, ended) if event is not None]:
            self._out.append(Happened(told))


def job_after(ended: Ended, *, with_output: bool = False) -> JobRow:
    """The job after the transition of an attempt that ended.

    with_output: as events carry it; follow-up functions get the row without any, also of earlier attempts.
    """
    attempt, transition = ended.attempt, ended.transition
    to, at, is_dead = transition.to, transition.at, transition.dead_letter is not None
    extra = ended.extra or attempt.extra
    return JobRow(
        attempt.id,
        attempt.kind,
        attempt.queue,
        attempt.args,
        to,
        attempt.priority,
        transition.attempt,
        attempt.run_lease,
        attempt.max_attempts,
        attempt.run_at if transition.run_at is None or to not in _WAITS else transition.run_at,
        attempt.created_at,
        attempted_at=claimed_at(attempt, at),
        finalized_at=at if to in _FINALIZES else None,
        extra_json=extra if with_output else without_outputs(extra),
        output_json=ended.output if with_output and to is JobState.COMPLETED else None,
        dlq_reason=str(transition.dead_letter) if is_dead else None,
        dlq_at=at if is_dead else None,
        callback_id=transition.callback,
        callback_timeout_at=None
        if transition.callback is None or ended.recording is None
        else ended.recording.timeout_at,
    )


def claimed_at(attempt: Attempt, at: datetime) -> datetime:
    """When an attempt was claimed, by the database's clock: its run_lease says so, in microseconds.

    at: now, in database time; the answer when the lease had to run ahead of the clock, or is no time at all.
    """
    found = _instant(attempt.run_lease)
    return found if found is not None and attempt.created_at <= found <= at else at


@lru_cache(maxsize=256)
def _instant(run_lease: int) -> datetime | None:
    """The moment that a run_lease is; kept, since all attempts of a claim have the same."""
    try:
        return _EPOCH + timedelta(microseconds=run_lease)
    except OverflowError:
        return None


def started(attempt: Attempt, at: datetime, default: float | None) -> Started[None]:
    """The handler of a claimed attempt is about to run.

    at: now, in database time. default: seconds an attempt of its queue may take, or None.
    """
    return unmade(Started, attempt.kind, attempt.args, _fill_started, (attempt, at, default))


def _fill_started(event: Started[None], source: tuple[Attempt, datetime, float | None]) -> None:
    attempt, at, default = source
    claimed, seconds = claimed_at(attempt, at), limit(attempt, default)
    event.job = JobRow(
        attempt.id,
        attempt.kind,
        attempt.queue,
        attempt.args,
        JobState.RUNNING,
        attempt.priority,
        attempt.attempt,
        attempt.run_lease,
        attempt.max_attempts,
        attempt.run_at,
        attempt.created_at,
        attempted_at=claimed,
        deadline_at=None if seconds is None else claimed + timedelta(seconds=seconds),
        extra_json=attempt.extra,
    )


def rescued(ended: Ended) -> Rescued[None]:
    """Upkeep ended an attempt; `event_of` is told after it when the job failed with that."""
    assert ended.transition.rescue is not None
    return Rescued(job_after(ended, with_output=True), None, ended.transition.rescue)


def _fill_completed(event: Completed[None], ended: Ended) -> None:
    event.job = job_after(ended, with_output=True)
    event.duration = timedelta(seconds=ended.took)


def event_of(ended: Ended) -> AnyEvent | None:
    """The event of an attempt that ended, still without its args; None where the outcome is none."""
    attempt, transition = ended.attempt, ended.transition
    outcome = transition.outcome
    if outcome is Outcome.COMPLETED:  # the most frequent by far
        return unmade(Completed, attempt.kind, attempt.args, _fill_completed, ended)
    if outcome is None:
        return None
    job = job_after(ended, with_output=True)
    error = "" if transition.entry is None else str(transition.entry["error"])
    match outcome:
        case Outcome.RETRIED:
            assert transition.run_at is not None
            asked = transition.ending is Ending.RETRY_AFTER
            return Retried(job, None, "" if asked else error, attempt.attempt, transition.run_at)
        case Outcome.EXHAUSTED:
            return Exhausted(job, None, error, attempt.attempt)
        case Outcome.CANCELLED:
            return Cancelled(job, None, error.removeprefix(_CANCELLED))
        case Outcome.WAITING_FOR_CALLBACK:
            return WaitingForCallback(job, None)
        case Outcome.RESCUED:
            return rescued(ended)
        case _:
            assert_never(outcome)
