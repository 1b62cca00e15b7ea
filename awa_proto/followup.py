"""Registered follow-ups: jobs that exist if and only if the transition of another one is written.

A function is registered for a kind and an outcome. It is called with the args of the job, the job as it is after the
transition (without its output), and what the outcome has to say; it returns the args of a follow-up, an EnqueueRequest,
or None for none. It is to be plain and pure: it is called before the transition is written, perhaps for an attempt that
turns out to be stale, and for a job whose flush is tried again it is not called again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Protocol, TypeAlias, TypeVar, overload

from awa_proto.args import JobArgs, decoder, kind_of
from awa_proto.error_text import describe
from awa_proto.errors import AwaError, SerializationError, ValidationError
from awa_proto.extra import traceparent_of
from awa_proto.intake import Intake
from awa_proto.job import JobRow
from awa_proto.options import EnqueueRequest, name
from awa_proto.outcome import Ending, Outcome
from awa_proto.store import Ended, NewJob

if TYPE_CHECKING:
    from awa_proto.events import RescueReason
    from awa_proto.registry import Registry

A = TypeVar("A")
P = ParamSpec("P")
Enqueued: TypeAlias = JobArgs | EnqueueRequest | None
"""What a follow-up function returns."""
R = TypeVar("R", bound=Enqueued)

Untyped: TypeAlias = dict[str, Any]
"""The args of a job whose kind is given as text."""


@dataclass(frozen=True, slots=True, eq=False)
class FollowUp:
    """A registered function, itself and no other.

    kind: the one it is for, or None where a class says it. args_type: the class of the args; None for a dict.
    decode: reads the args it wants; raises SerializationError.
    """

    outcome: Outcome
    kind: str | None
    args_type: type[Any] | None
    function: Callable[..., Enqueued]
    decode: Callable[[str], Any]

    @property
    def name(self) -> str:
        """How errors call it."""
        return getattr(self.function, "__qualname__", None) or repr(self.function)


Registered: TypeAlias = Mapping[str, Mapping[Outcome, Sequence[FollowUp]]]
"""The functions of an application, by kind and outcome, in the order of their registration."""


NO_FOLLOW_UPS: Final[Registered] = MappingProxyType({})


class FollowUpError(AwaError):
    """A follow-up function raised, or returned what an insert would refuse.

    The attempt it was called for fails with this; of a callback it undoes everything, and is raised to who brought it.
    """


class FollowUps:
    """Makes the follow-ups of attempts that end.

    registered: as it is now and as it becomes.
    """

    def __init__(self, registered: Registered, intake: Intake) -> None:
        self._registered = registered
        self._intake = intake

    @classmethod
    def none(cls) -> FollowUps:
        """Of an application that registers none, so that nothing is asked for a time."""
        return cls({}, Intake({}, lambda: datetime.fromtimestamp(0, UTC)))

    def knows(self, kind: str) -> bool:
        """Whether some function is registered for it, whatever the outcome: then this code is about jobs of the kind."""
        return kind in self._registered

    def wants(self, kind: str, outcome: Outcome) -> bool:
        """Whether some function is registered for it."""
        of_kind = self._registered.get(kind)
        return of_kind is not None and outcome in of_kind

    def of(
        self,
        ended: Ended,
        job: JobRow,
        unread: Callable[[FollowUp, SerializationError], object],
        outcome: Outcome | None = None,
    ) -> tuple[NewJob, ...]:
        """The follow-ups of an attempt.

        job: as it is after the transition. unread: told of a function whose args do not decode, which is skipped.
        outcome: instead of that of the transition. Raises FollowUpError.
        """
        outcome = outcome or ended.transition.outcome
        assert outcome is not None
        context = _context(ended, outcome)
        traceparent = traceparent_of(ended.attempt.extra)
        made: list[NewJob] = []
        for follow_up in self._registered[ended.attempt.kind][outcome]:
            try:
                args = follow_up.decode(ended.attempt.args)
            except SerializationError as error:
                unread(follow_up, error)
                continue
            try:
                wanted = follow_up.function(args, job, *context)
                if wanted is not None:
                    made.append(self._intake.one(wanted, {}, traceparent)[0])
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # a function of theirs ends its attempt, never the worker
                raise FollowUpError(f"the follow-up {follow_up.name} failed: {describe(error)}") from error
        return tuple(made)


def _context(ended: Ended, outcome: Outcome) -> tuple[Any, ...]:
    """What a function of the outcome is told beside args and job."""
    transition = ended.transition
    if outcome is Outcome.COMPLETED:
        return ()
    error = (
        "" if transition.entry is None or transition.ending is Ending.RETRY_AFTER else str(transition.entry["error"])
    )
    match outcome:
        case Outcome.CANCELLED:
            return (error.removeprefix("cancelled: "),)
        case Outcome.RETRIED:
            return error, ended.attempt.attempt, transition.run_at
        case Outcome.EXHAUSTED:
            return error or str((transition.entry or {}).get("error", "")), ended.attempt.attempt
        case Outcome.RESCUED:
            return (transition.rescue,)
        case _:
            return ()


def follow_up(
    outcome: Outcome, jobs: type[Any] | str, function: Callable[..., Enqueued], *, kind: str | None = None
) -> FollowUp:
    """A function to be registered, checked.

    jobs: the class of the args, or a kind. kind: only this one of the kinds a class has. Raises ValidationError.
    """
    if not callable(function):
        raise ValidationError("function", f"a function is needed, not {type(function).__name__}")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise ValidationError(
            "function", "a plain function is needed; one that is awaited cannot be part of a transition"
        )
    if isinstance(jobs, str):
        if kind is not None:
            raise ValidationError("kind", "it is given twice")
        return FollowUp(outcome, name("kind", jobs), None, function, decoder(None))
    if not isinstance(jobs, type):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValidationError("args_type", f"a class or a kind is needed, not {type(jobs).__name__}")
    if jobs is dict:
        raise ValidationError("args_type", "a dict has no kind; give the kind")
    name("kind", kind_of(jobs))
    return FollowUp(outcome, None if kind is None else name("kind", kind), jobs, function, decoder(jobs))


class Register(Protocol[P]):
    """A decorator for a function with these parameters. It returns the function as it is."""

    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]:
        """Register it."""
        ...


class RegistersFollowUps:
    """The decorators that register follow-ups, the same in the Client and the Tasks of every package.

    Each takes the class of the args, or a kind as text (then the function gets them as a dict). A class stands for every
    kind that a task of it is registered for, else for its own; `kind=` narrows it to one. The function returns args, an
    EnqueueRequest, or None to enqueue nothing; `…_with` is another name for the same.
    """

    registry: Registry

    def _follow_up(self, outcome: Outcome, jobs: type[Any] | str, kind: str | None) -> Callable[[Any], Any]:
        follow_up(outcome, jobs, _nothing, kind=kind)  # what is wrong with it is said where it is written

        def register(function: Callable[..., Enqueued]) -> Callable[..., Enqueued]:
            self.registry.add_follow_up(follow_up(outcome, jobs, function, kind=kind))
            return function

        return register

    @overload
    def on_completed_enqueue(self, args_type: type[A], /, *, kind: str | None = None) -> Register[[A, JobRow]]: ...
    @overload
    def on_completed_enqueue(self, args_type: str, /) -> Register[[Untyped, JobRow]]: ...
    def on_completed_enqueue(self, args_type: type[Any] | str, /, *, kind: str | None = None) -> Register[...]:
        """Enqueue when a job of the kind completes: a function over (args, job)."""
        return self._follow_up(Outcome.COMPLETED, args_type, kind)

    @overload
    def on_cancelled_enqueue(self, args_type: type[A], /, *, kind: str | None = None) -> Register[[A, JobRow, str]]: ...
    @overload
    def on_cancelled_enqueue(self, args_type: str, /) -> Register[[Untyped, JobRow, str]]: ...
    def on_cancelled_enqueue(self, args_type: type[Any] | str, /, *, kind: str | None = None) -> Register[...]:
        """Enqueue when its handler returns Cancel: a function over (args, job, reason)."""
        return self._follow_up(Outcome.CANCELLED, args_type, kind)

    @overload
    def on_retried_enqueue(
        self, args_type: type[A], /, *, kind: str | None = None
    ) -> Register[[A, JobRow, str, int, datetime]]: ...
    @overload
    def on_retried_enqueue(self, args_type: str, /) -> Register[[Untyped, JobRow, str, int, datetime]]: ...
    def on_retried_enqueue(self, args_type: type[Any] | str, /, *, kind: str | None = None) -> Register[...]:
        """Enqueue when it failed and will run again: a function over (args, job, error, attempt, next_run_at)."""
        return self._follow_up(Outcome.RETRIED, args_type, kind)

    @overload
    def on_exhausted_enqueue(
        self, args_type: type[A], /, *, kind: str | None = None
    ) -> Register[[A, JobRow, str, int]]: ...
    @overload
    def on_exhausted_enqueue(self, args_type: str, /) -> Register[[Untyped, JobRow, str, int]]: ...
    def on_exhausted_enqueue(self, args_type: type[Any] | str, /, *, kind: str | None = None) -> Register[...]:
        """Enqueue when it failed for good: a function over (args, job, error, attempt)."""
        return self._follow_up(Outcome.EXHAUSTED, args_type, kind)

    @overload
    def on_waiting_for_callback_enqueue(
        self, args_type: type[A], /, *, kind: str | None = None
    ) -> Register[[A, JobRow]]: ...
    @overload
    def on_waiting_for_callback_enqueue(self, args_type: str, /) -> Register[[Untyped, JobRow]]: ...
    def on_waiting_for_callback_enqueue(
        self, args_type: type[Any] | str, /, *, kind: str | None = None
    ) -> Register[...]:
        """Enqueue when it parks to wait for its callback: a function over (args, job)."""
        return self._follow_up(Outcome.WAITING_FOR_CALLBACK, args_type, kind)

    @overload
    def on_rescued_enqueue(
        self, args_type: type[A], /, *, kind: str | None = None
    ) -> Register[[A, JobRow, RescueReason]]: ...
    @overload
    def on_rescued_enqueue(self, args_type: str, /) -> Register[[Untyped, JobRow, RescueReason]]: ...
    def on_rescued_enqueue(self, args_type: type[Any] | str, /, *, kind: str | None = None) -> Register[...]:
        """Enqueue when upkeep ended an attempt that its worker did not: a function over (args, job, reason)."""
        return self._follow_up(Outcome.RESCUED, args_type, kind)

    on_completed_enqueue_with = on_completed_enqueue
    on_cancelled_enqueue_with = on_cancelled_enqueue
    on_retried_enqueue_with = on_retried_enqueue
    on_exhausted_enqueue_with = on_exhausted_enqueue
    on_waiting_for_callback_enqueue_with = on_waiting_for_callback_enqueue
    on_rescued_enqueue_with = on_rescued_enqueue


def _nothing() -> None:
    """Stands in for a function that is not there yet."""
