"""How a handler ends, and what that makes of the job. Everything that decides it is in this file, in one table.

A handler returns one of the results below or raises. `conclude` turns that ending into a `Transition`: plain data that a
store writes and that events are made of. `TABLE` is the outcome matrix of the documentation, one row per ending.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias
from uuid import UUID

from awa_proto.callbacks.token import CallbackId, CallbackToken, is_id
from awa_proto.error_text import clean, describe, traceback_of, type_name
from awa_proto.errors import TerminalError, ValidationError
from awa_proto.events import RescueReason
from awa_proto.job import Attempt, JobState

Seconds: TypeAlias = float | timedelta
MAX_DELAY: Final = 100 * 365.25 * 86400.0
"""Longest delay a handler may ask for, in seconds: a hundred years."""
MAX_BACKOFF: Final = 86400.0


def seconds(field: str, value: object) -> float:
    """A duration as seconds, checked: finite, 0 to a hundred years. Raises ValidationError."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValidationError(field, f"a number of seconds or a timedelta is needed, not {type(value).__name__}")
    try:
        found = float(value)
    except OverflowError:
        found = math.copysign(math.inf, value > 0 or -1)
    if not 0 <= found <= MAX_DELAY:  # which nan is not either
        raise ValidationError(field, f"{found:g} is outside 0 … 100 years")
    return found


@dataclass(frozen=True, slots=True)
class Completed:
    """The job is done; the same as returning None."""


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Run the job again after `delay` (seconds or timedelta). Counts as an attempt; on the last one the job fails."""

    delay: Seconds


@dataclass(frozen=True, slots=True)
class Snooze:
    """Run the job again after `delay` (seconds or timedelta), without counting this attempt."""

    delay: Seconds


@dataclass(frozen=True, slots=True)
class Cancel:
    """End the job as cancelled; it is not run again."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class WaitForCallback:
    """Park the job until its callback comes from outside. token: what `job.register_callback` gave, or its id."""

    token: CallbackId


Result: TypeAlias = Completed | RetryAfter | Snooze | Cancel | WaitForCallback | None
"""What a handler may return. Anything else fails the job for good."""


class Ending(StrEnum):
    """How an attempt came to its end: the rows of the matrix."""

    COMPLETED = "completed"
    RETRY_AFTER = "retry after"
    ERROR = "error"
    TERMINAL = "terminal"
    SNOOZE = "snooze"
    CANCEL = "cancel"
    WAIT = "wait for callback"
    UNREGISTERED = "wait without a registered callback"
    DEADLINE = "deadline"
    RELEASED = "released"
    RESCUED = "rescued"


class Outcome(StrEnum):
    """What hooks are told of and follow-ups are registered for."""

    COMPLETED = "completed"
    RETRIED = "retried"
    EXHAUSTED = "exhausted"
    CANCELLED = "cancelled"
    WAITING_FOR_CALLBACK = "waiting_for_callback"
    RESCUED = "rescued"


class Output(StrEnum):
    """Where what an attempt recorded as its output goes."""

    JOB = "the job's output"
    ENTRY = "in the error entry"
    DISCARDED = "discarded"
    ABANDONED = "abandoned"
    """Discarded, and counted as `abandoned`: the handler was cut off."""


class DeadLetter(StrEnum):
    """Why a failed job went to the dead letters."""

    EXHAUSTED = "max_attempts_exhausted"
    TERMINAL = "terminal_error"
    CALLBACK_TIMEOUT = "callback_timeout"
    NO_CALLBACK = "wait_for_callback_contract_violation"
    MOVED = "moved"
    """By a person."""


ReasonName: TypeAlias = Literal[
    "max_attempts_exhausted", "terminal_error", "callback_timeout", "wait_for_callback_contract_violation", "moved"
]
"""A reason by its name, which is as good as the member."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of the matrix.

    to: the state when attempts are left (or do not matter). outcome: what hooks and follow-ups of it are called by, if any.
    exhausts: on the last attempt the job fails instead, which is the outcome EXHAUSTED.
    output: where a recorded output goes. entry: whether an error entry is added. terminal: whether that entry says so.
    gives_back: the attempt is not counted. dead_letter: why a job that fails so goes to the dead letters, where those are
    on. metric: what is counted for it, `awa.job.failed` where the job fails instead. Progress is cleared by completion and
    kept by everything else.
    """

    to: JobState
    outcome: Outcome | None
    output: Output
    exhausts: bool = False
    entry: bool = False
    terminal: bool = False
    gives_back: bool = False
    dead_letter: DeadLetter | None = None
    metric: str | None = None

    def on(self, attempt: Attempt) -> tuple[JobState, Outcome | None]:
        """The state and the outcome for this very attempt."""
        if self.exhausts and attempt.attempt >= attempt.max_attempts:
            return JobState.FAILED, Outcome.EXHAUSTED
        return self.to, self.outcome

    def counted(self, to: JobState) -> str | None:
        """The metric for a job that went there."""
        return FAILED_METRIC if to is JobState.FAILED else self.metric


FAILED_METRIC: Final = "awa.job.failed"
_AGAIN = Rule(
    JobState.RETRYABLE, Outcome.RETRIED, Output.ENTRY, exhausts=True, entry=True, dead_letter=DeadLetter.EXHAUSTED,
    metric="awa.job.retried",
)  # fmt: skip
_FOR_GOOD = Rule(
    JobState.FAILED, Outcome.EXHAUSTED, Output.ENTRY, entry=True, terminal=True, dead_letter=DeadLetter.TERMINAL,
    metric=FAILED_METRIC,
)  # fmt: skip
TABLE: Final[dict[Ending, Rule]] = {
    Ending.COMPLETED: Rule(JobState.COMPLETED, Outcome.COMPLETED, Output.JOB, metric="awa.job.completed"),
    Ending.RETRY_AFTER: _AGAIN,
    Ending.ERROR: _AGAIN,
    Ending.DEADLINE: dataclasses.replace(_AGAIN, output=Output.ABANDONED),
    Ending.TERMINAL: _FOR_GOOD,
    Ending.SNOOZE: Rule(JobState.SCHEDULED, None, Output.DISCARDED, gives_back=True, metric="awa.job.snoozed"),
    Ending.CANCEL: Rule(JobState.CANCELLED, Outcome.CANCELLED, Output.ENTRY, entry=True, metric="awa.job.cancelled"),
    Ending.WAIT: Rule(
        JobState.WAITING_EXTERNAL, Outcome.WAITING_FOR_CALLBACK, Output.DISCARDED, metric="awa.job.waiting_external"
    ),
    Ending.UNREGISTERED: dataclasses.replace(_FOR_GOOD, outcome=None, dead_letter=DeadLetter.NO_CALLBACK),
    Ending.RELEASED: Rule(JobState.AVAILABLE, None, Output.ABANDONED, gives_back=True, metric="awa.job.released"),
    Ending.RESCUED: dataclasses.replace(
        _AGAIN, outcome=Outcome.RESCUED, output=Output.ABANDONED, metric="awa.job.rescued"
    ),
}
RESCUES: Final[dict[RescueReason, str]] = {
    RescueReason.STALE_HEARTBEAT: "rescued: heartbeat stale, its worker is presumed dead",
    RescueReason.DEADLINE_EXCEEDED: "rescued: hard deadline exceeded",
    RescueReason.EXPIRED_CALLBACK: "rescued: callback timed out",
}
"""The error text of an attempt that was rescued."""
NOT_REGISTERED: Final = "the handler waits for a callback that is not registered (any more)"


@dataclass(frozen=True, slots=True)
class Transition:
    """What an ended attempt makes of its job.

    to: the new state. attempt: the job's attempt count after it. at: when (database time).
    run_at: when it is due again; None in terminal states. entry: the error entry added, or None.
    outcome: what hooks and follow-ups are called by, or None. dead_letter: why it goes to the dead letters, or None.
    rescue: why upkeep ended it, if it did. callback: the id of the callback that it waits for, of a job that is parked.
    """

    to: JobState
    attempt: int
    at: datetime
    run_at: datetime | None = None
    entry: dict[str, Any] | None = None
    outcome: Outcome | None = None
    dead_letter: DeadLetter | None = None
    ending: Ending | None = None
    rescue: RescueReason | None = None
    callback: str | None = None


@dataclass(frozen=True, slots=True)
class Returned:
    """The handler returned."""

    value: object


@dataclass(frozen=True, slots=True)
class Raised:
    """The handler raised, or never ran because its kind or args are bad (then the error says so, as a TerminalError)."""

    error: BaseException


def backoff(attempt: int, random: Callable[[], float]) -> float:
    """Seconds before attempt `attempt + 1`: min(2^attempt · (1 + 0.25 · random()), 24 h)."""
    return min(2.0 ** min(attempt, 32) * (1 + 0.25 * random()), MAX_BACKOFF)


def conclude(
    attempt: Attempt,
    ended: Returned | Raised | Ending | RescueReason,
    at: datetime,
    random: Callable[[], float],
    *,
    output: str | None = None,
    dead_letters: bool = False,
    callback: str | None = None,
) -> Transition:
    """The transition of an attempt that ended. It raises nothing, whatever a handler returned or raised.

    ended: what the handler did; RELEASED or DEADLINE when the machine ended it; UNREGISTERED when the database does not know
    the callback that it waits for; why it was rescued.
    at: now, in database time. random: floats in [0, 1).
    output: JSON text the attempt recorded. dead_letters: whether a job that fails goes to the dead letters.
    callback: the id of the callback that the attempt has registered, the newest.
    """
    delay: float | None = None
    entry: dict[str, Any] = {}
    match ended:
        case Returned(value=None):
            return Transition(
                JobState.COMPLETED, attempt.attempt, at, outcome=Outcome.COMPLETED, ending=Ending.COMPLETED
            )
        case Returned(value=value):
            ending, delay, entry = _of_value(value, callback)
        case Raised(error=error):
            ending = Ending.TERMINAL if issubclass(type(error), TerminalError) else Ending.ERROR
            entry = {"error": describe(error), "traceback": traceback_of(error)}
        case Ending.DEADLINE:
            ending, entry = Ending.DEADLINE, {"error": "hard deadline exceeded"}
        case Ending.UNREGISTERED:
            ending, entry = Ending.UNREGISTERED, {"error": NOT_REGISTERED}
        case RescueReason():
            ending, entry = Ending.RESCUED, {"error": RESCUES[ended]}
        case _:
            ending = ended
    rule = TABLE[ending]
    to, outcome = rule.on(attempt)
    if ending is Ending.RETRY_AFTER and to is JobState.FAILED:
        entry["error"] = f"attempts exhausted after {attempt.attempt}; the handler asked for a retry in {delay:g} s"
    run_at = None
    if to in {JobState.RETRYABLE, JobState.SCHEDULED}:
        run_at = at + timedelta(seconds=backoff(attempt.attempt, random) if delay is None else delay)
    if rule.entry:
        entry = {"error": entry.pop("error"), "attempt": attempt.attempt, "at": rfc3339(at)} | entry
        if rule.terminal:
            entry["terminal"] = True
        if output is not None and rule.output is Output.ENTRY:
            entry["output"] = json.loads(output)
    return Transition(
        to,
        attempt.attempt - rule.gives_back,
        at,
        run_at if to is not JobState.AVAILABLE else at,
        entry if rule.entry else None,
        outcome,
        _letter(rule, ended) if dead_letters and to is JobState.FAILED else None,
        ending,
        ended if isinstance(ended, RescueReason) else None,
        callback if ending is Ending.WAIT else None,
    )


def _letter(rule: Rule, ended: object) -> DeadLetter | None:
    return DeadLetter.CALLBACK_TIMEOUT if ended is RescueReason.EXPIRED_CALLBACK else rule.dead_letter


def _of_value(value: object, callback: str | None) -> tuple[Ending, float | None, dict[str, Any]]:
    try:
        match value:
            case Completed():
                return Ending.COMPLETED, None, {}
            case RetryAfter(delay=delay):
                asked = seconds("RetryAfter.delay", delay)
                return Ending.RETRY_AFTER, asked, {"error": "retry requested", "retry_after": asked}
            case Snooze(delay=delay):
                return Ending.SNOOZE, seconds("Snooze.delay", delay), {}
            case WaitForCallback(token=token) if callback is not None and is_id(token, callback):
                return Ending.WAIT, None, {}
            case WaitForCallback(token=str() | UUID() | CallbackToken()):
                return Ending.UNREGISTERED, None, {"error": NOT_REGISTERED}
            case WaitForCallback(token=token):
                kind = type_name(token)
                missing = ": is an await missing?" if kind == "coroutine" else ""
                wrong = f"the handler waits for a {kind}, not for what register_callback gave{missing}"
                return Ending.UNREGISTERED, None, {"error": clean(wrong)}
            case Cancel(reason=reason) if isinstance(reason, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                return Ending.CANCEL, None, {"error": clean(f"cancelled: {reason}")}
            case Cancel(reason=reason):
                raise ValidationError("Cancel.reason", f"text is needed, not {type_name(reason)}")
            case _:
                may = "None, Completed, RetryAfter, Snooze, Cancel or WaitForCallback"
                wrong = f"the handler returned {type_name(value)}; it may return {may}"
    except ValidationError as error:
        wrong = f"wrong return value: {error}"
    except Exception:  # noqa: BLE001  a property of a class of theirs may raise anything
        wrong = f"the handler returned {type_name(value)}, which cannot be looked at"
    return Ending.TERMINAL, None, {"error": clean(wrong)}


def rfc3339(at: datetime) -> str:
    """An instant as text, in UTC, with microseconds: `2026-01-31T23:59:59.000001Z`."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
