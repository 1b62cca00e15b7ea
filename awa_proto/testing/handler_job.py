"""HandlerJob without a package: an attempt that nobody claimed, and a client whose jobs are in memory.

A handler is a function, so a unit test calls it with a job and looks at what it said. The job records as a real one does,
with the same conversions, limits and errors, because it is one; only its attempt was made up. Each package has its own
`HandlerJob` (in `awa_asyncio.testing` and so on), typed as its Job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final, Protocol, TypeVar
from uuid import UUID

from typing_extensions import override

from awa_proto import extra as extras
from awa_proto.args import build, decoder, to_object
from awa_proto.callbacks.operations import payload_json
from awa_proto.callbacks.token import CallbackToken
from awa_proto.errors import ConfigurationError, ValidationError
from awa_proto.extra import compact
from awa_proto.handler import JobBase
from awa_proto.intake import Intake
from awa_proto.job import Attempt, JobRow
from awa_proto.operations import Operations
from awa_proto.options import EnqueueRequest, InsertOpts, instant, whole
from awa_proto.plan import Op, Plan
from awa_proto.recording import Recording
from awa_proto.registry import Registry
from awa_proto.store import Registered
from awa_proto.store.memory import MemoryStore
from awa_proto.task import Task
from awa_proto.testing.deliveries import Deliveries
from awa_proto.worker.events import Reason, StartJob

A_co = TypeVar("A_co", covariant=True)
C_co = TypeVar("C_co", covariant=True)
T = TypeVar("T")

_BIGINT: Final = 2**63 - 1


class JobFields(InsertOpts, total=False):
    """What a test may say of the attempt, beside the options of an insert, which mean what they mean there.

    id: its number; 1. attempt: which one it is, from 1; 1. run_lease: its fence; 1. created_at: when the job was enqueued;
    now. errors: the entries of the attempts before, `{"error": …, "attempt": …}`. progress: what they left,
    `{"percent": …, "message": …, "metadata": …}`. output: the type of the outputs; what the task declares, if `tasks` has it.
    callback_result: what the callback came with for which the job was parked, as `resume_external` says it; None is a payload
    too. Without it the job was not resumed.
    """

    id: int
    attempt: int
    run_lease: int
    created_at: datetime
    errors: Sequence[Mapping[str, Any]]
    progress: Mapping[str, Any]
    output: Any
    callback_result: object


_OF_THE_ATTEMPT: Final = JobFields.__annotations__.keys() - InsertOpts.__annotations__.keys()


class HasRegistry(Protocol):
    """Tasks, or a client, of any package."""

    registry: Registry


class Memory:
    """Jobs in memory, and the calls of a client over them.

    tasks: whose registrations count; a job knows its queue by them.
    """

    def __init__(self, tasks: HasRegistry | None = None) -> None:
        self._store = MemoryStore(_now, lambda: 0.5)
        known = {} if tasks is None else tasks.registry.tasks
        self.operations = _Operations(self._store, known, "awa", _now, random=Random(1).random)

    def perform(self, op: Op[T]) -> T:
        """The result of an Op. Raises ConfigurationError when it wants a database."""
        if op.using is not None:
            raise no_database()
        plan = op.start()
        try:
            next(plan)
        except StopIteration as done:
            result: T = done.value
            return result
        plan.close()
        raise no_database()

    @property
    def jobs(self) -> list[JobRow]:
        """All there are, oldest first."""
        return self._store.rows


def no_database() -> ConfigurationError:
    """What was asked for needs a database."""
    return ConfigurationError(
        "this HandlerJob has no database, its client keeps jobs in memory: transactions, using= and workers need a real"
        " one, HandlerJob(..., client=client)"
    )


class _Operations(Operations[Any]):
    """Those over a store that no row stands in for the attempt, so that what it flushes is kept here.

    flushed: the progress at each time. is_cancelled: whether the attempt was. callbacks: those that were registered.
    """

    flushed: tuple[Mapping[str, Any], ...] = ()
    is_cancelled = False
    callbacks: tuple[Registered, ...] = ()

    @override
    def flush_progress(self, attempt: Attempt, recording: Recording | None) -> Op[bool]:
        def plan() -> Plan[bool]:
            yield from ()
            if recording is not None and recording.progress is not None:
                self.flushed = (*self.flushed, recording.progress)
                recording.flushed(recording.progress)
            return not self.is_cancelled

        return Op("record_progress", plan)

    @override
    def register_callback(
        self, attempt: Attempt, timeout: float, expressions: str | None, before: str | None = None
    ) -> Op[Registered | None]:
        def plan() -> Plan[Registered | None]:
            yield from ()
            if self.is_cancelled:
                return None
            id = UUID(int=len(self.callbacks) + 1, version=4)
            registered = Registered(str(id), _now() + timedelta(seconds=timeout))
            self.callbacks = (*self.callbacks, registered)
            return registered

        return Op("register_callback", plan)


class HandlerJobBase(JobBase[A_co, C_co]):
    """What the HandlerJob of each package is made of."""

    def __init__(
        self, args: A_co, client: C_co, memory: Memory | None, tasks: HasRegistry | None, fields: JobFields
    ) -> None:
        """Made by the packages.

        memory: where the client's jobs are, when they are in memory. tasks: whose registrations count.
        """
        known = {} if tasks is None else tasks.registry.tasks
        attempt, task, decoded = _claimed(args, known, fields)
        start = StartJob(attempt, task, decoded)
        super().__init__(start, client)
        self._memory = memory
        self._deliveries = Deliveries(self, start)
        self.carry(self._deliveries.carry)

    @property
    def staged(self) -> list[EnqueueRequest]:
        """The follow-ups that were staged, in their order: args as they were given, and the options that were said."""
        recording = self._start.recordings.get(self._fence)
        return [] if recording is None else [comparable(request) for request in recording.requests]

    @property
    def enqueued(self) -> list[JobRow]:
        """The jobs that `job.client` enqueued, oldest first. Raises ConfigurationError when the test gave the client."""
        return self._kept().jobs

    @property
    def flushed(self) -> list[Mapping[str, Any]]:
        """The progress as it was at each `flush_progress`. Raises ConfigurationError when the test gave the client."""
        return list(self._kept().operations.flushed)

    @property
    def callbacks(self) -> list[CallbackToken]:
        """The callbacks that were registered, oldest first. Raises ConfigurationError when the test gave the client."""
        return [CallbackToken(registered.id) for registered in self._kept().operations.callbacks]

    def deliver(self, *payloads: object) -> None:
        """Let `wait_for_callback` return these, one after the other. Without any left it raises ConfigurationError.

        Args:
            payloads: Any JSON. An exception is raised instead, such as a `TimeoutError` for a limit of the handler's own.

        Raises:
            ValidationError: One is no JSON, or too much.
        """
        self._deliveries.add(payloads)

    def cancel(self) -> None:
        """Let the handler be asked to stop: `is_cancelled()` is true from now on."""
        self.mark_cancelled(Reason.CANCELLED)
        if self._memory is not None:
            self._memory.operations.is_cancelled = True

    def _kept(self) -> Memory:
        if self._memory is None:
            raise ConfigurationError("this HandlerJob was given a client, which keeps what it is told in a database")
        return self._memory


def comparable(request: EnqueueRequest) -> EnqueueRequest:
    """A request as its methods make it, so that two that ask for the same are equal: tags are a tuple."""
    tags = request.options.get("tags")
    return request if tags is None else request.tags(*tags)


def _claimed(args: Any, tasks: Mapping[str, Task], fields: JobFields) -> tuple[Attempt, Task, Any]:
    """The attempt, its task, and its args as a handler of the kind gets them. Raises ValidationError."""
    said: dict[str, Any] = {**fields}
    own = {name: said.pop(name) for name in _OF_THE_ATTEMPT & said.keys()}
    options: Any = said  # whatever is left must be an option
    new, _ = Intake(tasks, _now).one(args, options)
    given = args.args if isinstance(args, EnqueueRequest) else args
    task = tasks.get(new.kind) or Task(
        new.kind, _nobody, decoder(None if isinstance(given, Mapping) else type(given)), is_async=False
    )
    if "output" in own:
        task = Task(task.kind, task.handler, task.decode, task.is_async, task.queue, task.args_type, own["output"])
    build(task.args_type)
    attempt = Attempt(
        0,
        1,
        0,
        whole("run_lease", own.get("run_lease", 1), 1, _BIGINT),
        whole("id", own.get("id", 1), 1, _BIGINT),
        new.queue,
        new.priority,
        new.kind,
        new.args,
        whole("attempt", own.get("attempt", 1), 1, 1000),
        new.max_attempts,
        new.run_at or _now(),
        instant("created_at", own.get("created_at")) or _now(),
        _extra(new.extra, own),
    )
    return attempt, task, task.decode(new.args)


def _extra(extra: str | None, own: Mapping[str, Any]) -> str | None:
    body = extras.decode(extra)
    for name in ("errors", "progress"):
        if own.get(name):
            body[name] = to_object("job", {name: own[name]})[1][name]
    if not isinstance(body.get("progress", {}), dict):
        raise ValidationError("progress", f"a mapping is needed, not {type(own['progress']).__name__}")
    extra = compact(body) if body else None
    if "callback_result" not in own:
        return extra
    return extras.with_result(extra, payload_json("callback_result", own["callback_result"]))


def _nobody(_: object) -> None:
    """The handler of a task that nobody registered; it is never called."""


def _now() -> datetime:
    return datetime.now(UTC)
