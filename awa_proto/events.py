"""Lifecycle events: what hooks are told of the points in a job's life, as dataclasses to `match`.

Each carries the job as it is after the transition, and its args. Events are best effort and in-process: they observe
committed state, and are lost with the process. What must survive a crash is a follow-up.

Not frozen, since a frozen dataclass takes three times as long to make; the fields of what a worker tells are made when they
are first asked for, as most hooks look at little. An event is the hook's own: changing it changes no other.

Users see this module as `events` of their package, since `Completed` by itself is what a handler returns:

    match event:
        case awa.events.Completed(duration=duration): ...
        case awa.events.Exhausted(error=error): ...
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from typing_extensions import override

from awa_proto.job import JobRow

A_co = TypeVar("A_co", covariant=True)
E = TypeVar("E", bound="_Told")


class RescueReason(StrEnum):
    """Why upkeep ended an attempt."""

    EXPIRED_CALLBACK = "expired_callback"
    STALE_HEARTBEAT = "stale_heartbeat"
    DEADLINE_EXCEEDED = "deadline_exceeded"


class _Told:
    """What events have in common: fields that are not there yet are filled in when one of them is asked for."""

    __slots__ = ("_decode", "_unmade")

    if not TYPE_CHECKING:  # a checker would take any name for a field

        def __getattr__(self, name: str) -> Any:
            """Of a field that is not there: Python asks here for nothing else, so that those that are cost nothing."""
            if name == "args" and hasattr(self, "_decode"):
                self.args = self._decode(job_args_json(self))
                del self._decode
                return self.args
            if name in {"_decode", "_unmade"} or not hasattr(self, "_unmade"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            *_, fill, source = self._unmade
            del self._unmade
            fill(self, source)
            return getattr(self, name)

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        """What is copied or pickled has all its fields."""
        return type(self), tuple(getattr(self, each.name) for each in fields(self))  # type: ignore[arg-type]


def unmade(event_type: type[E], kind: str, args_json: str, fill: Callable[[E, Any], None], source: object) -> E:
    """An event without its args, of a job of that kind. The other fields are set by `fill(event, source)` when needed.

    Only of a job whose handler has had these args.
    """
    event = event_type.__new__(event_type)
    event._unmade = kind, args_json, fill, source  # type: ignore[attr-defined]  # noqa: SLF001
    return event


@dataclass(slots=True)
class Started(_Told, Generic[A_co]):
    """An attempt was claimed, and its handler is about to run. `job.state` is running."""

    job: JobRow
    args: A_co


@dataclass(slots=True)
class WaitingForCallback(_Told, Generic[A_co]):
    """The handler returned WaitForCallback and the job is parked. `job.callback_id`: what it waits for."""

    job: JobRow
    args: A_co


@dataclass(slots=True)
class Completed(_Told, Generic[A_co]):
    """The job is done. duration: how long the handler ran; zero when it was completed from outside."""

    job: JobRow
    args: A_co
    duration: timedelta


@dataclass(slots=True)
class Retried(_Told, Generic[A_co]):
    """The attempt failed, or asked for it, and the job runs again at `next_run_at`.

    error: text of the error; empty when the handler returned RetryAfter. attempt: its number.
    """

    job: JobRow
    args: A_co
    error: str
    attempt: int
    next_run_at: datetime


@dataclass(slots=True)
class Exhausted(_Told, Generic[A_co]):
    """The job failed for good: on its last attempt, or terminally. error: text of the error."""

    job: JobRow
    args: A_co
    error: str
    attempt: int


@dataclass(slots=True)
class Cancelled(_Told, Generic[A_co]):
    """The job was cancelled. reason: what the handler said; empty when a person did it."""

    job: JobRow
    args: A_co
    reason: str


@dataclass(slots=True)
class Rescued(_Told, Generic[A_co]):
    """Upkeep ended an attempt that its worker did not."""

    job: JobRow
    args: A_co
    reason: RescueReason


JobEvent: TypeAlias = (
    Started[A_co]
    | WaitingForCallback[A_co]
    | Completed[A_co]
    | Retried[A_co]
    | Exhausted[A_co]
    | Cancelled[A_co]
    | Rescued[A_co]
)
"""What a hook is called with; of a hook registered for a kind, `args` are the dict of its JSON."""

AnyEvent: TypeAlias = JobEvent[Any]


def job_kind(event: AnyEvent) -> str:
    """The kind of its job, which is not made for this."""
    try:
        kind: str = event._unmade[0]  # type: ignore[union-attr]  # noqa: SLF001
    except AttributeError:
        return event.job.kind
    return kind


def job_args_json(event: AnyEvent) -> str:
    """The args of its job as JSON text; neither is the job made for this."""
    try:
        args_json: str = event._unmade[1]  # type: ignore[union-attr]  # noqa: SLF001
    except AttributeError:
        return event.job.args_json
    return args_json


def copied(event: AnyEvent) -> AnyEvent:
    """Another event that says the same, without its args."""
    try:
        facts = event._unmade  # type: ignore[union-attr]  # noqa: SLF001
    except AttributeError:
        return replace(event, args=None)
    other: AnyEvent = object.__new__(type(event))
    other._unmade = facts  # type: ignore[union-attr]  # noqa: SLF001
    return other


def give_args(event: AnyEvent, decode: Callable[[str], Any], *, fit: bool) -> None:
    """Give an event its args, read from their JSON text by `decode`. Raises whatever that raises.

    fit: they are known to be readable where a handler has had them, and are read when they are asked for.
    """
    if fit and hasattr(event, "_unmade"):
        event._decode = decode  # type: ignore[union-attr]  # noqa: SLF001
    else:
        event.args = decode(job_args_json(event))
