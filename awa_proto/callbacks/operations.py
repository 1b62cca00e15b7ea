"""What the outside world does to jobs that wait for it, as Ops; part of `Operations`.

Each finds the callback, decides what becomes of its attempt, and writes that if the callback still is what was found. So of
any number of calls with one id one has its way, and all others raise CallbackNotFound and change nothing.

call              | job waits, parked      | its handler waits                  | the handler has not come so far
------------------|------------------------|------------------------------------|-----------------------------------------
complete_external | completed              | completed; the handler is cancelled| the same
fail_external     | failed                 | failed; the handler is cancelled   | the same
retry_external    | available, attempt 0   | the same; the handler is cancelled | CallbackNotFound
resume_external   | available, not counted | the handler goes on                | it goes on at once when it asks, or parks
heartbeat_callback| has more time          | has more time                      | has more time
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, NoReturn, TypeVar

from awa_proto import output as outputs
from awa_proto.args import kind_of, to_object
from awa_proto.callbacks.books import Books
from awa_proto.callbacks.expressions import Action, checked_action, resolve
from awa_proto.callbacks.token import CallbackId, callback_id
from awa_proto.dead_letters import DeadLetterPolicy
from awa_proto.error_text import clean
from awa_proto.errors import CallbackNotFound, DatabaseError, SerializationError, ValidationError
from awa_proto.events import AnyEvent
from awa_proto.extra import compact, size_of
from awa_proto.flush import flush_number
from awa_proto.followup import FollowUp, FollowUps
from awa_proto.intake import Intake
from awa_proto.job import JobRow, JobState
from awa_proto.options import whole
from awa_proto.outcome import DeadLetter, Ending, Outcome, Seconds, Transition, rfc3339, seconds
from awa_proto.plan import Op, Plan
from awa_proto.store import Callback, Called, Ended, NewJob, Store, Verdict, Waits
from awa_proto.worker.happened import event_of, job_after

C = TypeVar("C")
T = TypeVar("T")

TIMEOUT: Final = 3600.0
"""Seconds a callback is waited for, where nothing else is said."""
_MOST_ASKS: Final = 10
_ENDS: Final = (Waits.REGISTERED, Waits.IN_HANDLER)


@dataclass(frozen=True, slots=True)
class Resolution:
    """What `resolve_callback` made of a payload.

    outcome: "completed", "failed" or "ignored". job: the job afterwards; of an ignored payload as it is. payload: what
    came, transformed if that was asked for. reason: why it was ignored.
    """

    outcome: Literal["completed", "failed", "ignored"]
    job: JobRow
    payload: Any = None
    reason: str | None = None


class CallbackOperations(Generic[C]):
    """The calls about callbacks."""

    _store: Store
    intake: Intake
    _hooked: Collection[str]
    _follow_ups: FollowUps
    _dead_letters: DeadLetterPolicy
    _books: Books
    _random: Callable[[], float]

    def complete_external(
        self,
        id: CallbackId,
        /,
        payload: object = None,
        *,
        output: object = None,
        output_for: Any = None,
        run_lease: int | None = None,
        using: C | None = None,
    ) -> Op[JobRow]:
        """Complete the job that waits for a callback, and return it. Registered follow-ups are part of that.

        Args:
            id: The callback's.
            payload: What came. It is checked to be JSON, and stored nowhere: `output` is, and `resume_external` hands it on.
            output: The job's output, at most 4 KiB of JSON, as `job.set_output` takes it.
            output_for: The class of the args of the kind of job this must be, or its task: the output is checked to be of the
                type that is declared for it.
            run_lease: Only if it is this attempt that waits.
            using: A connection of your own, in whose open transaction this happens. Until that ends, results of jobs that were
                claimed together with one that is not parked wait. No hook is told: whether you commit is not known here.

        Raises:
            CallbackNotFound: No job waits for it (any more).
            ValidationError: The payload is no JSON; the job is of another kind than `output_for` says. Nothing is changed.
            OutputError: The output is none. Nothing is changed.
            FollowUpError: A follow-up function failed. Nothing is changed, so it can be tried again.
        """
        payload_json("payload", payload)
        kind, declared = self._declared(output_for)
        recorded = None if output is None else outputs.encode(output, declared)
        wanted = _Wanted(id, run_lease, (*_ENDS, Waits.PARKED))

        def decide(callback: Callback) -> Ended:
            if kind is not None and callback.attempt.kind != kind:
                raise ValidationError("output_for", f"the job is of kind {callback.attempt.kind!r}, not {kind!r}")
            return self._completed(callback, recorded)

        return self._ending("complete_external", wanted, decide, using)

    def fail_external(
        self,
        id: CallbackId,
        /,
        error: str,
        *,
        run_lease: int | None = None,
        using: C | None = None,
    ) -> Op[JobRow]:
        """Fail the job that waits for a callback for good, whatever attempts are left, and return it.

        Args:
            id: The callback's.
            error: The text of its error entry: at most 8 KiB of it are kept, and what a database cannot hold is replaced.
            run_lease: Only if it is this attempt that waits.
            using: As `complete_external`.

        Raises:
            CallbackNotFound: No job waits for it (any more).
            ValidationError: The error is no text.
            FollowUpError: A follow-up function failed. Nothing is changed, so it can be tried again.
        """
        if not isinstance(error, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValidationError("error", f"text is needed, not {type(error).__name__}")
        said = clean(error)
        wanted = _Wanted(id, run_lease, (*_ENDS, Waits.PARKED))
        return self._ending("fail_external", wanted, lambda callback: self._failed(callback, said), using)

    def retry_external(self, id: CallbackId, /, *, run_lease: int | None = None, using: C | None = None) -> Op[JobRow]:
        """Let the job that waits for a callback run again now, from attempt 0, and return it.

        Args:
            id: The callback's.
            run_lease: Only if it is this attempt that waits.
            using: As `complete_external`.

        Raises:
            CallbackNotFound: No job waits for it (any more), or its handler has not begun to wait.
            FollowUpError: A follow-up function failed. Nothing is changed, so it can be tried again.
        """
        wanted = _Wanted(id, run_lease, (Waits.IN_HANDLER, Waits.PARKED))
        return self._ending("retry_external", wanted, _retried, using)

    def resume_external(
        self,
        id: CallbackId,
        /,
        payload: object = None,
        *,
        run_lease: int | None = None,
        using: C | None = None,
    ) -> Op[JobRow]:
        """Let a job go on with what its callback came with, and return it as it is then.

        A handler that waits in `job.wait_for_callback` gets the payload. A job that was parked runs again at once, which counts
        as no attempt, and finds it in `job.callback_result`. No hook is told, and no follow-up made.

        Args:
            id: The callback's.
            payload: Any JSON, at most 1 MiB.
            run_lease: Only if it is this attempt that waits.
            using: As `complete_external`.

        Raises:
            CallbackNotFound: No job waits for it (any more).
            ValidationError: The payload is no JSON, or too much.
        """
        result = payload_json("payload", payload)
        wanted = _Wanted(id, run_lease, (*_ENDS, Waits.PARKED))

        def plan() -> Plan[JobRow]:
            for _ in range(_MOST_ASKS):
                callback = yield from self._found(wanted)
                if callback.waits is Waits.PARKED:
                    job = yield from self._written(_resumed(callback, result))
                    if job is not None:
                        return job
                elif (yield from self._store.resume(callback, result)):
                    return _waiting(callback, JobState.RUNNING)
            _busy(wanted.id)

        op: Op[JobRow] = Op("resume_external", plan)
        return op.on(using)

    def heartbeat_callback(
        self,
        id: CallbackId,
        /,
        timeout: Seconds = TIMEOUT,
        *,
        run_lease: int | None = None,
        using: C | None = None,
    ) -> Op[JobRow]:
        """Say that the callback is still to come: its job waits for so many seconds from now. The job as it is.

        Args:
            id: The callback's.
            timeout: Seconds (or a timedelta).
            run_lease: Only if it is this attempt that waits.
            using: As `complete_external`.

        Raises:
            CallbackNotFound: No job waits for it (any more).
            ValidationError: The timeout is below 0, or no number of seconds.
        """
        wanted = _Wanted(id, run_lease, (*_ENDS, Waits.PARKED))
        longest = seconds("timeout", timeout)

        def plan() -> Plan[JobRow]:
            for _ in range(_MOST_ASKS):
                callback = yield from self._found(wanted)
                until = yield from self._store.heartbeat_callback(callback, longest)
                if until is not None:
                    return _waiting(callback._replace(timeout_at=until))
            _busy(wanted.id)

        op: Op[JobRow] = Op("heartbeat_callback", plan, safe_to_retry=True)
        return op.on(using)

    def resolve_callback(
        self,
        id: CallbackId,
        /,
        payload: object = None,
        default_action: Action = "ignore",
        *,
        run_lease: int | None = None,
        using: C | None = None,
    ) -> Op[Resolution]:
        """Let the expressions that were registered with a callback decide what its payload means.

        Args:
            id: The callback's.
            payload: Any JSON, at most 1 MiB.
            default_action: What to do where they do not say: "ignore", "complete" or "fail".
            run_lease: Only if it is this attempt that waits.
            using: As `complete_external`.

        Raises:
            CallbackNotFound: No job waits for it (any more).
            ValidationError: The payload is no JSON, or too much; there is no such action.
            FollowUpError: A follow-up function failed. Nothing is changed, so it can be tried again.
        """
        given = json.loads(payload_json("payload", payload))
        action = checked_action(default_action)
        wanted = _Wanted(id, run_lease, (*_ENDS, Waits.PARKED))

        def attempt(told: list[AnyEvent]) -> Plan[Resolution]:
            for _ in range(_MOST_ASKS):
                callback = yield from self._found(wanted)
                decision = resolve(callback.expressions, given, action)
                self._books.unanswered(callback.attempt, decision.troubles)
                if decision.action == "ignore":
                    return Resolution("ignored", _waiting(callback), given, decision.reason)
                if decision.action == "complete":
                    ended = self._completed(callback, None)
                else:
                    ended = self._failed(callback, "the callback failed the job", decision.expression)
                job = yield from self._ended(callback, ended, wanted, told, using)
                if job is not None:
                    return Resolution("completed" if decision.action == "complete" else "failed", job, decision.payload)
            _busy(wanted.id)

        return _telling("resolve_callback", attempt).on(using)

    @property
    def unknown_kinds(self) -> tuple[str, ...]:
        """Kinds of jobs that were ended here, of which the client does not know what else is registered for them."""
        return self._books.unknown_kinds

    # inside

    def _retried_waiting(self, id: int) -> Plan[JobRow | None]:
        """A person lets a job that waits run again, whatever it waits for. None when it does not wait."""
        for _ in range(_MOST_ASKS):
            callback = yield from self._store.find_waiting(id)
            if callback is None:
                return None
            job = yield from self._written(_called(_retried(callback), callback, (callback.waits,)))
            if job is not None:
                return job
        return None

    def _written(self, ended: Ended) -> Plan[JobRow | None]:
        """The job afterwards; None when it was not written, since the callback is not as it was."""
        (verdict,) = yield from self._store.end_called(ended, flush_number(self._random))
        if verdict is Verdict.DUPLICATE:
            return _duplicate(ended)
        return _after(ended) if verdict is Verdict.ACCEPTED else None

    def _ending(self, name: str, wanted: _Wanted, decide: Callable[[Callback], Ended], using: C | None) -> Op[JobRow]:
        def attempt(told: list[AnyEvent]) -> Plan[JobRow]:
            for _ in range(_MOST_ASKS):
                callback = yield from self._found(wanted)
                job = yield from self._ended(callback, decide(callback), wanted, told, using)
                if job is not None:
                    return job
            _busy(wanted.id)

        return _telling(name, attempt).on(using)

    def _found(self, wanted: _Wanted) -> Plan[Callback]:
        """The callback, as it must be. Raises CallbackNotFound."""
        callback = yield from self._store.find_callback(wanted.id)
        if (
            callback is None
            or callback.waits not in wanted.waits
            or wanted.run_lease not in {None, callback.attempt.run_lease}
        ):
            raise CallbackNotFound(wanted.id)
        return callback

    def _ended(
        self, callback: Callback, ended: Ended, wanted: _Wanted, told: list[AnyEvent], using: C | None
    ) -> Plan[JobRow | None]:
        """Write it with its follow-ups. The job afterwards; None when it is to be looked for again."""
        is_parked = callback.waits is Waits.PARKED
        waits = tuple(w for w in wanted.waits if (w is Waits.PARKED) is is_parked)
        ended = _called(ended, callback, waits)
        ended = ended._replace(follow_ups=self._following(ended))
        dropped = None
        if ended.output is not None and not ended.attempt.keeps_output:
            dropped, ended = ended.output, ended._replace(output=None)
        verdicts = yield from self._store.end_called(ended, flush_number(self._random))
        (verdict,) = verdicts
        if verdict is Verdict.DUPLICATE:
            return _duplicate(ended)
        if verdict is not Verdict.ACCEPTED:
            return None
        attempt = ended.attempt
        if using is None:
            self._books.ended(ended, verdicts.inserted, dropped)
            event = event_of(ended) if attempt.kind in self._hooked else None
            if event is not None:
                told.append(event)
        if not (
            attempt.kind in self.intake.tasks or attempt.kind in self._hooked or self._follow_ups.knows(attempt.kind)
        ):
            self._books.unknown(attempt)
        return _after(ended)

    def _following(self, ended: Ended) -> tuple[NewJob, ...]:
        outcome = ended.transition.outcome
        if outcome is None or not self._follow_ups.wants(ended.attempt.kind, outcome):
            return ()

        def unread(follow_up: FollowUp, error: SerializationError) -> None:
            self._books.unread(ended.attempt, follow_up, error)

        return self._follow_ups.of(ended, job_after(ended), unread)

    def _completed(self, callback: Callback, output: str | None) -> Ended:
        attempt = callback.attempt
        done = Transition(
            JobState.COMPLETED, attempt.attempt, callback.at, outcome=Outcome.COMPLETED, ending=Ending.COMPLETED
        )
        return Ended(attempt, done, output=output)

    def _failed(self, callback: Callback, error: str, expression: str | None = None) -> Ended:
        attempt = callback.attempt
        entry = {"error": error, "attempt": attempt.attempt, "at": rfc3339(callback.at)}
        if expression is not None:
            entry["expression"] = expression
        failed = Transition(
            JobState.FAILED,
            attempt.attempt,
            callback.at,
            entry=entry,
            outcome=Outcome.EXHAUSTED,
            dead_letter=DeadLetter.TERMINAL if self._dead_letters.keeps(attempt.queue) else None,
            ending=Ending.TERMINAL,
        )
        return Ended(attempt, failed)

    def _declared(self, output_for: Any) -> tuple[str | None, Any]:
        """The kind that is meant, and the type of its outputs."""
        if output_for is None:
            return None, None
        tasks = self.intake.tasks
        known = next((task for task in tasks.values() if output_for in (task, task.handler)), None)
        if known is None and isinstance(output_for, type):
            of_class = [task for task in tasks.values() if task.args_type is output_for]
            if len(of_class) > 1:
                raise ValidationError("output_for", f"{output_for.__name__} has several tasks; give one of them")
            known = of_class[0] if of_class else None
            if known is None:
                return kind_of(output_for), None
        if isinstance(output_for, str):
            known = tasks.get(output_for)
            if known is None:
                return output_for, None
        if known is None:
            raise ValidationError("output_for", "a class of args, or a task that is registered here, is needed")
        return known.kind, known.output_type


class _Wanted:
    """Which callback, and how its attempt may wait. Raises ValidationError, or CallbackNotFound for what is no id at all."""

    __slots__ = ("id", "run_lease", "waits")

    def __init__(self, id: object, run_lease: object, waits: tuple[Waits, ...]) -> None:
        self.id = callback_id(id)
        self.run_lease = None if run_lease is None else whole("run_lease", run_lease, 0, 2**63 - 1)
        self.waits = waits


MAX_PAYLOAD: Final = 1024 * 1024
"""Most bytes of JSON text of a payload."""


def payload_json(field: str, value: object) -> str:
    """The JSON text of a payload. Raises ValidationError: it is no JSON, or too much."""
    found = compact(to_object(field, {field: value})[1][field])
    if (size := size_of(found)) > MAX_PAYLOAD:
        raise ValidationError(field, f"has {size} bytes of JSON; {MAX_PAYLOAD} are allowed")
    return found


def _called(ended: Ended, callback: Callback, waits: tuple[Waits, ...]) -> Ended:
    """An ending by a callback, with what its attempt recorded."""
    is_done = ended.transition.to is JobState.COMPLETED
    return ended._replace(
        called=Called(callback.id, waits),
        flushed=callback.recorded is not None,
        progress=None if is_done else callback.recorded,
    )


def _retried(callback: Callback) -> Ended:
    return Ended(
        callback.attempt,
        Transition(
            JobState.AVAILABLE,
            0,
            callback.at,
            run_at=callback.at,
            outcome=Outcome.RETRIED,
            ending=Ending.RETRY_AFTER,
        ),
    )


def _resumed(callback: Callback, result: str) -> Ended:
    attempt = callback.attempt
    again = Transition(JobState.AVAILABLE, max(attempt.attempt - 1, 0), callback.at, run_at=callback.at)
    return Ended(attempt, again, called=Called(callback.id, (Waits.PARKED,), result=result))


def _after(ended: Ended) -> JobRow:
    """The job as it is then."""
    job = job_after(ended, with_output=True)
    if ended.transition.to is JobState.AVAILABLE and ended.transition.run_at is not None:
        job.run_at, job.attempted_at = ended.transition.run_at, None
    return job


def _duplicate(ended: Ended) -> JobRow:
    """The job that was cancelled instead, since a newer one has its unique key."""
    at = ended.transition.at
    return dataclasses.replace(
        job_after(ended), state=JobState.CANCELLED, finalized_at=at, extra_json=ended.extra_of_duplicate
    )


def _waiting(callback: Callback, state: JobState | None = None) -> JobRow:
    """The job while its callback is there. state: since it was used."""
    here = JobState.RUNNING if callback.waits is Waits.REGISTERED else JobState.WAITING_EXTERNAL
    attempt = callback.attempt
    job = job_after(Ended(attempt, Transition(state or here, attempt.attempt, callback.at)))
    if state is None:
        job.callback_id, job.callback_timeout_at = callback.id, callback.timeout_at
    return job


def _telling(name: str, attempt: Callable[[list[AnyEvent]], Plan[T]]) -> Op[T]:
    """An Op whose plan fills a list with the events to tell after the commit."""
    told: list[AnyEvent] = []

    def plan() -> Plan[T]:
        told.clear()
        return (yield from attempt(told))

    return Op(name, plan, events=told)


def _busy(id: str) -> NoReturn:
    """After too many asks: as a serialization failure, so that it is tried again after a pause, or by the caller."""
    raise DatabaseError(f"the callback {id} kept moving while it was asked for", "40001")
