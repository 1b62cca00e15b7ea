"""Tracing: where a job comes from, as W3C Trace Context says it, and what the span of an attempt says. No library is used here.

A job that is enqueued inside of a span keeps that span's context in its metadata, under `awa:traceparent`. Each attempt is
a span of its own:

attempt                                 | its span
----------------------------------------|-------------------------------------------------------------
the first one                           | a child of what the job was enqueued in
a later one: after a failure, a snooze, | the root of a trace of its own, with a link to what the job was
a release or a wait                     | enqueued in, since a trace should not go on for days
of a job without a (readable) context   | the root of a trace of its own
"""

from __future__ import annotations

import re
from types import TracebackType
from typing import Final, NamedTuple, Protocol, Self

from awa_proto import extra as extras
from awa_proto.job import Attempt, JobState
from awa_proto.outcome import Ending, Outcome, Raised, Returned, conclude
from awa_proto.recording import Recording
from awa_proto.worker.endings import completes
from awa_proto.worker.events import Reason, StartJob

_FORM: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_CUT_OFF: Final = {Reason.DEADLINE: Ending.DEADLINE, Reason.SHUTDOWN: Ending.RELEASED}


class SpanContext(NamedTuple):
    """A span, wherever it is. flags: its lowest bit says whether it is sampled."""

    trace_id: int
    span_id: int
    flags: int


class Origin(NamedTuple):
    """What an attempt's span belongs to.

    context: what the job was enqueued in, or None. first: whether no attempt of the job ran before.
    """

    context: SpanContext | None
    first: bool


class Told(NamedTuple):
    """What a span says at its end.

    outcome: completed, retried, exhausted, cancelled, waiting_for_callback; or else snooze or released, which are none for
    hooks. error: why the attempt failed; None when it did not. exception: what made it fail, if something raised.
    """

    outcome: str
    error: str | None = None
    exception: BaseException | None = None


class Execution(Protocol):
    """The span of an attempt: current from the beginning of its `with` on, in a context of the handler's own."""

    def __enter__(self) -> Self:
        """Begin. Raises nothing."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End, and say how. Raises nothing."""
        ...

    def returned(self, value: object) -> None:
        """The handler has returned this."""
        ...


class Traced(Protocol):
    """What a tracer asks of the job that a handler gets."""

    @property
    def cancel_reason(self) -> Reason | None:
        """Why the handler was asked to stop, if it was."""
        ...


class Tracer(Protocol):
    """Makes spans."""

    def attempt(self, start: StartJob, job: Traced) -> Execution:
        """The span of an attempt that is about to run."""
        ...


def write(context: SpanContext) -> str:
    """As a traceparent (W3C Trace Context, 3.2)."""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.flags:02x}"


def read(traceparent: object) -> SpanContext | None:
    """What a traceparent says; None for what is none. A version after 00 may say more than is known here."""
    found = _FORM.fullmatch(traceparent) if isinstance(traceparent, str) else None
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    context = SpanContext(int(trace_id, 16), int(span_id, 16), int(flags, 16))
    if version == "ff" or (version == "00" and more) or not context.trace_id or not context.span_id:
        return None
    return context


def origin(attempt: Attempt) -> Origin:
    """Where the job of an attempt comes from."""
    if not attempt.extra:
        return Origin(None, attempt.attempt <= 1)
    body = extras.decode(attempt.extra)
    is_first = attempt.attempt <= 1 and "errors" not in body and "ran" not in body
    return Origin(read(body.get("metadata", {}).get(extras.TRACEPARENT)), is_first)


def told(attempt: Attempt, ended: Returned | Raised, reason: Reason | None, recording: Recording | None) -> Told:
    """What the end of a handler means.

    reason: why it was told to stop, if it was: what it then did counts for nothing. recording: what it recorded.
    """
    if reason is Reason.CANCELLED:
        return Told(Outcome.CANCELLED)
    how: Returned | Raised | Ending = ended if reason is None else _CUT_OFF[reason]
    if recording is not None and recording.refused is not None and how is ended and completes(ended):
        how = Raised(recording.refused)
    transition = conclude(attempt, how, attempt.run_at, lambda: 0.0)
    is_over = transition.to is JobState.FAILED
    outcome = transition.outcome or (Outcome.EXHAUSTED if is_over else transition.ending)
    has_failed = is_over or (transition.to is JobState.RETRYABLE and transition.ending is not Ending.RETRY_AFTER)
    if not has_failed:
        return Told(str(outcome))
    error = str((transition.entry or {}).get("error", ""))
    return Told(str(outcome), error, how.error if isinstance(how, Raised) else None)


def attributes(attempt: Attempt) -> dict[str, str | int]:
    """What a span says from its beginning; names beside `awa.` are those of the OpenTelemetry conventions for messaging."""
    return {
        "messaging.system": "awa",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": attempt.queue,
        "messaging.message.id": str(attempt.id),
        "awa.job.id": attempt.id,
        "awa.job.kind": attempt.kind,
        "awa.job.queue": attempt.queue,
        "awa.job.attempt": attempt.attempt,
    }
