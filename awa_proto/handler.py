"""JobBase: what a handler gets, whatever package runs it. `Job` and `BlockingJob` of each package say which client.

One is made for every attempt, so it holds what the claim brought and decodes the rest when asked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, cast

from typing_extensions import Unpack, override

from awa_proto import extra
from awa_proto.args import JobArgs
from awa_proto.callbacks.expressions import compile_expressions
from awa_proto.callbacks.token import CallbackId, CallbackToken, callback_id
from awa_proto.error_text import describe
from awa_proto.errors import (
    AttemptEnded,
    CallbackNotFound,
    ConfigurationError,
    OutputError,
    StagingError,
    ValidationError,
    WaitCancelled,
)
from awa_proto.intake import requested
from awa_proto.operations import Operations
from awa_proto.options import EnqueueRequest, InsertOpts
from awa_proto.outcome import Seconds, seconds
from awa_proto.plan import Op, Plan
from awa_proto.recording import Recording
from awa_proto.worker.events import Reason, StartJob, WaitAsked, WaitLeft


class HasOperations(Protocol):
    """What a job needs of its client."""

    @property
    def operations(self) -> Operations[Any]:
        """The client's calls as Ops."""
        ...


WaitEnd: TypeAlias = Reason | str | None
"""How a wait ended: why the handler is to stop; else JSON text, or None when it was in vain."""
A_co = TypeVar("A_co", covariant=True)
C_co = TypeVar("C_co", covariant=True)


class JobBase(Generic[A_co, C_co]):
    """The attempt a handler works on. Its args and its client are typed; nothing of it can be set.

    Made by a worker, of what it starts and the client whose handler it is.
    """

    __slots__ = ("_attempt", "_cancelled", "_carry", "_client", "_extra", "_is_sealed", "_start", "_told")

    def __init__(self, start: StartJob, client: C_co) -> None:
        self._start = start
        self._attempt = start.attempt
        self._client = client
        self._cancelled: Reason | None = None
        self._extra: dict[str, Any] | None = None
        self._is_sealed = False
        self._carry: Callable[[WaitAsked | WaitLeft], object] | None = None
        self._told: tuple[WaitAsked, Callable[[WaitEnd], object]] | None = None

    @property
    def args(self) -> A_co:
        """What the job is told, as the type its handler was registered with."""
        args: A_co = self._start.args
        return args

    @property
    def client(self) -> C_co:
        """The client whose worker runs this: it enqueues and reads."""
        return self._client

    @property
    def id(self) -> int:
        """The number of the job, the same for all its attempts."""
        return self._attempt.id

    @property
    def kind(self) -> str:
        """Which handler the job is for."""
        return self._attempt.kind

    @property
    def queue(self) -> str:
        """The queue it was claimed from."""
        return self._attempt.queue

    @property
    def priority(self) -> int:
        """1 (first) to 4."""
        return self._attempt.priority

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1. A snoozed attempt is not counted."""
        return self._attempt.attempt

    @property
    def max_attempts(self) -> int:
        """How many attempts the job has in all."""
        return self._attempt.max_attempts

    @property
    def run_lease(self) -> int:
        """The fence of this attempt: `(id, run_lease)` is its own among all attempts there ever are."""
        return self._attempt.run_lease

    @property
    def run_at(self) -> datetime:
        """When this attempt was due; aware, in UTC."""
        return self._attempt.run_at

    @property
    def created_at(self) -> datetime:
        """When the job was enqueued; aware, in UTC."""
        return self._attempt.created_at

    @property
    def metadata(self) -> dict[str, Any]:
        """What the job was enqueued with beside its args. A copy for this attempt: changes go nowhere."""
        found: dict[str, Any] = self._decoded().setdefault("metadata", {})
        return found

    @property
    def tags(self) -> list[str]:
        """The tags it was enqueued with."""
        found: list[str] = self._decoded().setdefault("tags", [])
        return found

    @property
    def errors(self) -> list[dict[str, Any]]:
        """One entry for each failed attempt before, oldest first, without outputs; see `JobRow.errors`."""
        found: list[dict[str, Any]] = self._decoded().setdefault("errors", [])
        return found

    @property
    def was_resumed(self) -> bool:
        """Whether the job was parked and its callback has come, by `resume_external`: this attempt goes on from there."""
        return "callback_result" in self._decoded()

    @property
    def callback_result(self) -> Any:
        """What the callback came with, as JSON says it; None where the job was not resumed.

        It stays for retries of this attempt, until the job is resumed with something else.
        """
        found: dict[str, Any] = self._decoded().get("callback_result", {})
        return found.get("value")

    @property
    def progress(self) -> dict[str, Any] | None:
        """What this attempt said of itself, or else the one before it: `{"percent": …, "message": …, "metadata": {…}}`."""
        recording = self._start.recordings.get(self._fence)
        if recording is not None and recording.progress is not None:
            return dict(recording.progress)
        found: dict[str, Any] | None = self._decoded().get("progress")
        return found

    def set_progress(self, percent: int, message: str | None = None) -> None:
        """Say how far the job is. It is written with the next heartbeat, with the attempt's end, or by `flush_progress`.

        Kept across retries, snoozes and failures; cleared by completion. After the handler has returned, nothing happens.

        Args:
            percent: 0 to 100.
            message: A text for people.

        Raises:
            ValidationError: Naming the limit; all of the progress may have 64 KiB.
        """
        if not self._is_sealed:
            self._recording().set_progress(percent, message)

    def update_metadata(self, changes: Mapping[str, Any], /) -> None:
        """Merge keys into the metadata of the progress, a checkpoint for the next attempt; written like `set_progress`.

        Args:
            changes: A JSON object; its keys replace those of the same name.

        Raises:
            ValidationError: It is no JSON object, or the progress would have more than 64 KiB.
        """
        if not self._is_sealed:
            self._recording().update_metadata(changes)

    def set_output(self, value: object, /) -> None:
        """Record the output of this attempt: a small JSON value for people and tools to inspect; the last one counts.

        If the attempt completes it becomes the job's output; if it fails it is kept in that attempt's entry in `errors`.

        Args:
            value: At most 4 KiB as compact JSON. Pydantic models are dumped in JSON mode, dataclasses and tuples are
                converted; None clears.

        Raises:
            OutputError: `.Invalid`, `.TooLarge`, or `.Sealed` after the handler has returned. What was recorded before is
                cleared. Uncaught, it fails the attempt for good.
        """
        if self._is_sealed:
            raise OutputError.Sealed("the handler has returned, so the output is what it is")
        if value is None:
            self.clear_output()
        else:
            self._recording().record_output(value, self._start.task.output_type)

    @property
    def output(self) -> Any:
        """What has been recorded so far, as JSON says it; None for nothing."""
        recording = self._start.recordings.get(self._fence)
        return None if recording is None or recording.output is None else json.loads(recording.output)

    def clear_output(self) -> None:
        """Remove what has been recorded. Raises OutputError.Sealed after the handler has returned."""
        if self._is_sealed:
            raise OutputError.Sealed("the handler has returned, so the output is what it is")
        if self._fence in self._start.recordings:
            self._recording().output = None

    def enqueue_on_completion(self, args: JobArgs | EnqueueRequest, /, **options: Unpack[InsertOpts]) -> None:
        """Stage a follow-up: it exists if and only if this attempt completes, in the same statement as the completion.

        Every other ending discards it. Workers are told of it like of any insert.

        Args:
            args: As `Client.insert` takes them.
            options: Those of `Client.insert`.

        Raises:
            StagingError: `.Invalid` for what an insert would refuse, `.TooMany` above 16 follow-ups, `.TooLarge` above 64 KiB
                of them, `.Sealed` after the handler has returned. Even caught, it fails the attempt for good.
        """
        if self._is_sealed:
            raise StagingError.Sealed("the handler has returned; what it staged is decided")
        recording = self._recording()
        try:
            request = requested(args, options)
            operations = cast("HasOperations", self._client).operations
            traceparent = operations.traceparent() or extra.traceparent_of(self._attempt.extra)
            new, size = operations.intake.staged(request, traceparent)
        except Exception as error:
            raise recording.refuse(
                StagingError.Invalid(f"the follow-up cannot be staged: {describe(error)}")
            ) from error
        recording.stage(new, size, request)

    @property
    def operations(self) -> JobOperations:
        """The calls of this job as Ops."""
        return JobOperations(self)

    def is_cancelled(self) -> bool:
        """Whether the handler is asked to stop: the job was cancelled, its deadline passed, or the worker stops."""
        return self._cancelled is not None

    @property
    def cancel_reason(self) -> Reason | None:
        """Why it is asked to stop: "cancelled", "deadline" or "shutdown"; None while it is not."""
        return self._cancelled

    def mark_cancelled(self, reason: Reason) -> None:
        """Let `is_cancelled()` be true from now on. Called by the worker; any thread may."""
        self._cancelled = reason
        self.wait_over(reason)

    # what the packages make of `wait_for_callback`

    def carry(self, put: Callable[[WaitAsked | WaitLeft], object]) -> None:
        """Let its worker be told what it waits for. Called by the worker."""
        self._carry = put

    def begin_wait(self, token: CallbackId, told: Callable[[WaitEnd], object]) -> WaitAsked:
        """Wait for a callback: `told` is called with how that ended, from any thread.

        Raises ConfigurationError where there is no worker, ValidationError when the handler waits already, AttemptEnded,
        CallbackNotFound or WaitCancelled when there is nothing to wait for any more.
        """
        asked = WaitAsked(self._attempt, callback_id(token))
        if self._carry is None:
            raise ConfigurationError("wait_for_callback needs a worker, which is woken when the callback comes")
        if self._is_sealed:
            raise AttemptEnded(self.id)
        if self._told is not None:
            raise ValidationError("token", "the handler waits for a callback already")
        self._told = asked, told
        try:
            if self._cancelled is not None:
                raise WaitCancelled(f"job {self.id}: {self._cancelled}")
            if self._has_gone_on_with(asked.callback_id):
                raise CallbackNotFound(asked.callback_id)
            self._carry(asked)
        except BaseException:
            self._told = None
            raise
        return asked

    def wait_over(self, end: WaitEnd, callback_id: str | None = None) -> None:
        """The handler goes on. Called by the worker.

        callback_id: what it waits for; by now that may be another one, of which this says nothing. None: whatever it is.
        """
        waits = self._told
        if waits is not None and callback_id in {None, waits[0].callback_id}:
            self._told = None
            waits[1](end)

    def end_wait(self, asked: WaitAsked) -> None:
        """The handler does not wait any more, for whatever reason; unless it has begun to wait anew."""
        waits = self._told
        if waits is not None and waits[0] is asked:
            self._told = None
            if self._carry is not None:
                self._carry(WaitLeft(asked.attempt, asked.callback_id))

    def waited(self, asked: WaitAsked, end: WaitEnd) -> Any:
        """What the callback came with, as JSON says it. Raises CallbackNotFound or WaitCancelled."""
        if isinstance(end, Reason):
            raise WaitCancelled(f"job {self.id}: {end}")
        recording = self._start.recordings.get(self._fence)
        if recording is not None and recording.callback == asked.callback_id:
            recording.callback = None
        if end is None:
            raise CallbackNotFound(asked.callback_id)
        return json.loads(end)

    @property
    def is_sealed(self) -> bool:
        """Whether its handler has returned."""
        return self._is_sealed

    def seal(self) -> None:
        """Take nothing more: the handler has returned. Called by the worker, in whatever thread the handler ran."""
        self._is_sealed = True

    @override
    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.kind!r} attempt {self.attempt} of {self.max_attempts}>"

    @property
    def _fence(self) -> tuple[int, int]:
        return self._attempt.id, self._attempt.run_lease

    def _has_gone_on_with(self, callback_id: str) -> bool:
        """Whether it is its newest callback, and used up. The database would give what that came with any number of times."""
        recording = self._start.recordings.get(self._fence)
        return recording is not None and recording.callback is None and recording.newest == callback_id

    def _recording(self) -> Recording:
        """What this attempt records, from now on."""
        attempt, recordings = self._attempt, self._start.recordings
        fence = attempt.id, attempt.run_lease
        found = recordings.get(fence)
        if found is None:
            progress = None if attempt.extra is None else self._decoded().get("progress")
            found = recordings.setdefault(fence, Recording(attempt, progress))
        return found

    def _decoded(self) -> dict[str, Any]:
        if self._extra is None:
            self._extra = extra.decode(self._attempt.extra)
            for entry in self._extra.get("errors", ()):
                entry.pop("output", None)
        return self._extra


class JobOperations:
    """The calls of a job that its handler makes, as Ops."""

    def __init__(self, job: JobBase[Any, Any]) -> None:
        self._job = job

    def register_callback(
        self,
        timeout: Seconds = 3600.0,
        *,
        filter: str | None = None,
        on_complete: str | None = None,
        on_fail: str | None = None,
        transform: str | None = None,
    ) -> Op[CallbackToken]:
        """Register a callback, so that somebody outside can end this job or let it go on, and return its token.

        It is written when this returns, so its id can leave the process. It takes the place of an earlier one. Then return
        `WaitForCallback(token)` to park the job, or wait here: `wait_for_callback`. Expressions say what a payload means that
        `Client.resolve_callback` is given; they are written in CEL over `payload`.

        Args:
            timeout: Seconds (or a timedelta) from now that the job waits; then it is rescued, which counts as a failed attempt.
            filter: True for payloads that count.
            on_complete: True for those that complete the job.
            on_fail: True for those that fail it.
            transform: What becomes of the payload of one that completes it.

        Raises:
            ValidationError: Naming the argument: the timeout is no number of seconds, an expression cannot be compiled.
            AttemptEnded: The attempt was ended by somebody else; nothing is written.
            DatabaseError: Nothing was written, or the outcome is unknown: call it again, what was written is given then.
        """
        job = self._job
        longest = seconds("timeout", timeout)
        expressions = compile_expressions(filter=filter, on_complete=on_complete, on_fail=on_fail, transform=transform)
        attempt = job._attempt  # noqa: SLF001  its own
        operations: Operations[Any] = job.client.operations
        recording = job._start.recordings.get(job._fence)  # noqa: SLF001
        before = None if recording is None else recording.newest
        op = operations.register_callback(attempt, longest, expressions, before)

        def plan() -> Plan[CallbackToken]:
            if job.is_sealed:
                raise AttemptEnded(attempt.id)
            registered = yield from op.start()
            if registered is None:
                raise AttemptEnded(attempt.id)
            job._recording().registered(*registered)  # noqa: SLF001
            return CallbackToken(registered.id)

        return Op(op.name, plan, safe_to_retry=True)

    def flush_progress(self) -> Op[bool]:
        """Write what `set_progress` and `update_metadata` said, now. Whether this attempt still is the job's.

        Raises:
            DatabaseError: Nothing was written, or the outcome is unknown.
        """
        job = self._job
        operations: Operations[Any] = job.client.operations
        return operations.flush_progress(job._attempt, job._start.recordings.get(job._fence))  # noqa: SLF001  its own
