"""Work one job in a test: the real claim of one job, the real worker machine, the real way into the database; no background.

`work` is an Op whose steps are Ops and Calls, one after the other, so a package only performs them. The machine of a worker
runs for this one attempt: it decodes the args, starts the handler, concludes, adds follow-ups, and writes the result as it
always does, with what a database may answer. What it would do beside is answered here, without the database: looking for
more jobs, promoting, listening. Its clock runs ahead where it would wait, so nothing ever sleeps.

What is left out: deadlines end no handler, and `is_cancelled()` stays false, since nobody listens. What callbacks bring to a
handler that waits is said by the test.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar, cast

from typing_extensions import override

from awa_proto import output as outputs
from awa_proto.application import Application
from awa_proto.args import JobArgs
from awa_proto.errors import DatabaseError, Failure
from awa_proto.events import AnyEvent, JobEvent
from awa_proto.followup import FollowUps
from awa_proto.handler import JobBase
from awa_proto.hooks import HookQueue
from awa_proto.intake import Intake, requested
from awa_proto.job import JobRow
from awa_proto.options import EnqueueRequest, InsertOpts
from awa_proto.outcome import Ending, Raised, Returned, Transition
from awa_proto.plan import Op, Plan
from awa_proto.recording import Recording
from awa_proto.store import (
    Claimed,
    Demand,
    Ended,
    NewJob,
    Progress,
    Promoted,
    QueueSettings,
    Registration,
    Ring,
    Store,
    Verdict,
    Verdicts,
    WorkerInfo,
)
from awa_proto.task import Task
from awa_proto.testing.deliveries import Deliveries, Delivery
from awa_proto.testing.handler_job import comparable
from awa_proto.version import VERSION
from awa_proto.worker.config import QueueConfig
from awa_proto.worker.events import (
    Beat,
    CancelJob,
    Drained,
    Emit,
    Event,
    Happened,
    JobEnded,
    OpDone,
    OpFailed,
    RunOp,
    StartJob,
    StopAsked,
    Stopped,
    WaitOver,
)
from awa_proto.worker.happened import job_after
from awa_proto.worker.worker import WorkerMachine

T = TypeVar("T")

_log = logging.getLogger("awa")
_MOST_FAILURES: Final = 5
"""So often a result may be refused, or held up by a lock, before the test hears of it."""
_REFUSED: Final = frozenset({Failure.REFUSED, Failure.UNIQUE_VIOLATION, Failure.BUSY, Failure.TIMED_OUT})
_MOST_ROUNDS: Final = 10_000
_HERE: Final = "answered here"


class WorkOutcome(StrEnum):
    """What an attempt made of its job: the state the job went to, or why it is none of those."""

    COMPLETED = "completed"
    RETRYABLE = "retryable"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SNOOZED = "snoozed"
    WAITING_EXTERNAL = "waiting_external"
    DUPLICATE = "duplicate"
    """It would have gone back, but a newer job has its unique key: it is cancelled."""
    STALE = "stale"
    """Somebody else ended the attempt while its handler ran, for example `client.cancel`: nothing was written."""


@dataclass(frozen=True, slots=True, repr=False)
class WorkResult:
    """What became of a job that was worked.

    job: the row as it is afterwards, as `get_job` reads it. output: what the handler recorded, as JSON says it, whatever
    became of it. error: the text of the error entry, if the attempt has one. raised: what the handler raised.
    follow_ups: those of the outcome, registered ones first, as they were asked for; one whose unique key is taken is among
    them and was not inserted. events: what hooks were told, whether there are any or not.
    """

    job: JobRow
    outcome: WorkOutcome
    output: Any = None
    error: str | None = None
    raised: BaseException | None = None
    follow_ups: list[EnqueueRequest] = field(default_factory=list[EnqueueRequest])
    events: list[JobEvent[Any]] = field(default_factory=list[JobEvent[Any]])

    def output_as(self, output_type: type[T], /) -> T | None:
        """The output as an instance of a type, or None when there is none; as `JobRow.output_as`."""
        return outputs.decode(self.output, output_type)

    @override
    def __repr__(self) -> str:
        job = self.job
        said = {"output": self.output, "error": self.error, "follow_ups": self.follow_ups or None}
        shown = "".join(f", {name}={value!r}" for name, value in said.items() if value is not None)
        return f"<{self.outcome}: job {job.id} {job.kind!r}, attempt {job.attempt} of {job.max_attempts}{shown}>"


@dataclass(frozen=True, slots=True)
class Call:
    """A step: call a function of the user's, a handler or a hook, and answer with how it ended.

    is_async: it gives what is to be awaited; else it runs where plain handlers of the package run.
    """

    function: Callable[[], Any]
    is_async: bool


def captured(function: Callable[[], Any]) -> Returned | Raised:
    """How a call ended. What is no Exception leaves as it is: Ctrl-C, `pytest.fail`; SystemExit ends a job, as on a worker."""
    try:
        return Returned(function())
    except (Exception, SystemExit) as error:  # noqa: BLE001  how the attempt ended
        return Raised(error)


async def captured_awaited(function: Callable[[], Any]) -> Returned | Raised:
    """The same for a coroutine function."""
    try:
        return Returned(await function())
    except (Exception, SystemExit) as error:  # noqa: BLE001
        return Raised(error)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which job is to be worked, and by what.

    id, kind, queue: conditions, all of which must hold. early: also one that is not due. task: instead of the one registered.
    deliver: what callbacks bring.
    """

    id: int | None = None
    kind: str | None = None
    queue: str | None = None
    early: bool = False
    task: Task | None = None
    deliver: tuple[Delivery, ...] = ()


Begin: TypeAlias = Callable[[StartJob], tuple[JobBase[Any, Any], Callable[[], Any]]]
"""Makes what a handler is called with, and the call of it."""


def work(
    application: Application, wanted: Wanted, begin: Begin, now: Callable[[], float]
) -> Generator[Any, Any, WorkResult | None]:
    """The steps, Ops and Calls, that work one job; None when there is none.

    now: seconds of a monotonic clock.
    """
    store = application.store
    registration: Registration = yield store.register(WorkerInfo((), "a test", 0, VERSION))
    claimed: Claimed | None = yield store.claim_one(
        registration.instance, id=wanted.id, kind=wanted.kind, queue=wanted.queue, early=wanted.early
    )
    if claimed is None:
        yield store.unregister(registration.instance)
        return None
    return (yield from _Work(application, wanted, registration, claimed, begin, now).steps())


class _Work:
    """A machine at work on one attempt, and what is seen of it."""

    def __init__(
        self,
        application: Application,
        wanted: Wanted,
        registration: Registration,
        claimed: Claimed,
        begin: Begin,
        now: Callable[[], float],
    ) -> None:
        self._store = _OneAttempt(application.store, registration, claimed)
        (self._attempt,) = claimed.attempts
        self._begin = begin
        self._now = now
        self._ahead = 0.0
        tasks = application.registry.tasks
        task = wanted.task
        self._tasks: Mapping[str, Task] = tasks if task is None else {**tasks, self._attempt.kind: task}
        self._deliver = wanted.deliver
        self._asked = _Noting(application.operations.intake)
        self._hooks = HookQueue(application.registry.hooks)
        self._machine: WorkerMachine = application.machine(
            application.configured(
                {self._attempt.queue: QueueConfig(max_workers=1)},
                poll_interval=1.0,
                grace=0.0,
                unknown_kinds="fail",
                hostname="",
                pid=0,
            ),
            store=cast("Store", self._store),
            tasks=self._tasks,
            follow_ups=FollowUps(application.registry.follow_ups, self._asked),
            hooked=frozenset({self._attempt.kind}),
        )
        self._failures = 0
        self._recording: Recording | None = None
        self._raised: BaseException | None = None
        self._verdict = Verdict.STALE
        self._happened: list[AnyEvent] = []

    def steps(self) -> Generator[Any, Any, WorkResult]:
        """Until the machine has stopped: then everything is written."""
        machine, events = self._machine, list[Event]()
        machine.start(self._time())
        for _ in range(_MOST_ROUNDS):
            while (output := machine.poll_output()) is not None:
                match output:
                    case RunOp():
                        events.append((yield from self._run(output)))
                    case StartJob():
                        events.append((yield from self._handle(output)))
                    case Happened(events=told):
                        for event in told:
                            yield from self._tell(event)
                    case Emit():
                        _say(output)
                    case Stopped():
                        return (yield from self._result())
                    case CancelJob() | WaitOver() | Beat() | Drained():
                        pass
            if events:
                machine.handle(events, self._time())
                events.clear()
            elif machine.unwritten:
                machine.handle_timeout(self._time(machine.next_deadline()))
            else:
                machine.handle([StopAsked(0.0)], self._time())
        raise RuntimeError("the worker machine does not come to an end")

    def _time(self, at_least: float | None = None) -> float:
        """The time, which is ahead of the clock by as much as was not waited for."""
        now = self._now() + self._ahead
        if at_least is not None and at_least > now:
            self._ahead += at_least - now
            now = at_least
        return now

    def _run(self, run: RunOp) -> Generator[Any, Any, Event]:
        if run.op.name == _HERE:
            return OpDone(run.id, (yield from run.op.start()))
        try:
            result = yield run.op
        except DatabaseError as error:
            self._failures += 1
            if run.op.name != "finalize" or error.failure not in _REFUSED or self._failures > _MOST_FAILURES:
                raise
            return OpFailed(run.id, error)
        if isinstance(result, Verdicts):
            (self._verdict,) = result
        return OpDone(run.id, result)

    def _handle(self, start: StartJob) -> Generator[Any, Any, Event]:
        job, call = self._begin(start)
        job.carry(Deliveries(job, start, self._deliver).carry)
        ended: Returned | Raised = yield Call(call, start.task.is_async)
        job.seal()
        self._recording = start.recordings.get((start.attempt.id, start.attempt.run_lease))
        if isinstance(ended, Raised):
            self._raised = ended.error
        return JobEnded(start.attempt, ended)

    def _tell(self, event: AnyEvent) -> Generator[Any, Any, None]:
        """Call the hooks, one after the other, and wait for each."""
        task = self._tasks.get(event.job.kind)
        args = captured(partial(task.decode, event.job.args_json)) if task is not None else Returned(event.job.args)
        self._happened.append(
            dataclasses.replace(event, args=args.value if isinstance(args, Returned) else event.job.args)
        )
        (run,) = self._hooks.happened((event,), self._time(), None) or (None,)
        while run is not None:
            ended: Returned | Raised = yield Call(run.call, run.is_async)
            if isinstance(ended, Raised):
                self._hooks.raised(run, ended.error, self._time())
            run = self._hooks.ended(run)
        while self._hooks.said:
            _say(self._hooks.said.popleft())

    def _result(self) -> Generator[Any, Any, WorkResult]:
        ended = self._store.ended
        assert ended is not None, "an attempt that was claimed has ended"
        job: JobRow | None = yield self._store.beneath.get_job(self._attempt.id)
        recording = self._recording
        accepted = self._verdict is Verdict.ACCEPTED
        return WorkResult(
            job or job_after(ended, with_output=True),
            _outcome(self._verdict, ended.transition),
            None if recording is None or recording.output is None else json.loads(recording.output),
            _error(self._verdict, ended.transition),
            self._raised,
            [self._request(new) for new in ended.follow_ups] if accepted else [],
            self._happened,
        )

    def _request(self, new: NewJob) -> EnqueueRequest:
        """What a follow-up was made of: what the handler staged, or what a registered function returned."""
        made = list(self._asked.made)
        if self._recording is not None:
            made += zip(self._recording.staged, self._recording.requests, strict=True)
        return comparable(next(request for other, request in made if other is new))


def _outcome(verdict: Verdict, transition: Transition) -> WorkOutcome:
    if verdict is Verdict.DUPLICATE:
        return WorkOutcome.DUPLICATE
    if verdict is not Verdict.ACCEPTED:
        return WorkOutcome.STALE
    return WorkOutcome.SNOOZED if transition.ending is Ending.SNOOZE else WorkOutcome(transition.to.value)


def _error(verdict: Verdict, transition: Transition) -> str | None:
    if verdict is Verdict.DUPLICATE:
        return "rescheduled as duplicate"
    entry = transition.entry if verdict is Verdict.ACCEPTED else None
    return None if entry is None else str(entry["error"])


def _say(emit: Emit) -> None:
    _log.log(emit.level, "%s", emit.text, extra={"awa": emit.fields})


class _Noting(Intake):
    """An intake that notes what each job was made of.

    made: pairs of both, in their order.
    """

    def __init__(self, intake: Intake) -> None:
        self._beneath = intake
        self.made: list[tuple[NewJob, EnqueueRequest]] = []

    @override
    def one(
        self, args: JobArgs | EnqueueRequest, options: InsertOpts, traceparent: str | None = None
    ) -> tuple[NewJob, bool]:
        job, wake = self._beneath.one(args, options, traceparent)
        self.made.append((job, requested(args, options)))
        return job, wake


class _OneAttempt:
    """What the machine takes for its store: it claims the one attempt, and nothing happens beside it.

    beneath: the real one, which writes the result. ended: what was written last.
    """

    keeps_outputs: bool

    def __init__(self, beneath: Store, registration: Registration, claimed: Claimed) -> None:
        self.beneath = beneath
        self.keeps_outputs = beneath.keeps_outputs
        self.ended: Ended | None = None
        self._registration = dataclasses.replace(registration, queues={})
        self._claimed: Claimed | None = claimed
        self._nothing = Claimed((), claimed.version, claimed.now)

    def __getattr__(self, name: str) -> Any:
        """What a machine never asks for."""
        return getattr(self.beneath, name)

    def register(self, worker: WorkerInfo) -> Op[Registration]:  # noqa: ARG002  that was done
        return _here(self._registration)

    def unregister(self, instance: int) -> Op[None]:
        return self.beneath.unregister(instance)

    def survey(self, queues: Sequence[str], *, glance: bool = False) -> Op[tuple[Ring, Mapping[str, QueueSettings]]]:  # noqa: ARG002
        return _here((self._registration.ring, {}))

    def claim(self, instance: int, ring: Ring, demands: Sequence[Demand], *, advance: bool = False) -> Op[Claimed]:  # noqa: ARG002
        claimed, self._claimed = self._claimed, None
        return _here(claimed or self._nothing)

    def record_progress(self, records: Sequence[Progress], *, patient: bool = False) -> Op[list[int]]:
        return self.beneath.record_progress(records, patient=patient)

    def finalize(self, ended: Sequence[Ended], flush: int) -> Op[Verdicts]:
        (self.ended,) = ended
        return self.beneath.finalize(ended, flush)

    def promote(self, limit: int, since: datetime | None = None, *, canonical: Sequence[str] = ()) -> Op[Promoted]:  # noqa: ARG002
        return _here(Promoted(0))

    def replan(self) -> Op[None]:
        return _here(None)

    def announce(self, queues: Sequence[str], held: Sequence[str] = ()) -> Op[None]:  # noqa: ARG002
        return _here(None)

    def withdraw(self) -> Op[None]:
        return _here(None)


def _here(answer: T) -> Op[T]:
    """An Op that needs no database."""

    def plan() -> Plan[T]:
        yield from ()
        return answer

    return Op(_HERE, plan)
