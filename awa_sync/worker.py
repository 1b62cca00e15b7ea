"""The worker in blocking code: one inbox, the machine, and hands that decide nothing.

`_loop` takes what is in the inbox to the machine and carries out what the machine says. Every timer, retry, batch and
phase of a stop is the machine's (`awa_proto.worker`); here are a thread for the loop, one for each lane with its
connection, and a bounded pool of threads for handlers. The thread that enters the worker stays free, for signals.

How a handler ends: whatever it raises ends its job, never its worker. `SystemExit` is an error like any other, because
a job that stops each worker that claims it would stop them all. `KeyboardInterrupt` is a person's: the attempt fails,
the worker stops gracefully and raises it to whoever entered it. A thread cannot be cancelled; it sees the job's flag.

If the loop itself fails, all jobs' flags are set and the error is logged at once. It is raised by `stopped`, by
`drained`, and on leaving the `with`; the body cannot be interrupted.
"""

import contextvars
import logging
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Event as Signal
from threading import Thread
from types import TracebackType
from typing import NamedTuple, Protocol, Self, TypeVar, assert_never

from awa_proto.driving.beating import Beating, BlockingLane
from awa_proto.driving.otel import traced
from awa_proto.driving.threads import Threads
from awa_proto.driving.working import (
    NOTHING,
    PATIENCE,
    Fence,
    LaneDatabase,
    RunningJob,
    nobody_listens,
    open_lane,
    tell,
)
from awa_proto.errors import DatabaseError, SchemaNotMigrated
from awa_proto.events import AnyEvent
from awa_proto.health import WorkerHealth
from awa_proto.outcome import Raised, Returned, Seconds, seconds
from awa_proto.plan import Op
from awa_proto.tracing import Tracer
from awa_proto.worker.events import (
    Beat,
    CancelJob,
    DrainAsked,
    Drained,
    Emit,
    Event,
    Happened,
    JobEnded,
    Lane,
    OpDone,
    OpFailed,
    Output,
    Reason,
    RunOp,
    StartJob,
    StopAsked,
    Stopped,
    WaitOver,
    Woken,
)
from awa_proto.worker.heartbeat import Heartbeat
from awa_proto.worker.tally import Tally
from awa_proto.worker.worker import WorkerMachine

T = TypeVar("T")

_log = logging.getLogger("awa")


class LaneConnection(Protocol):
    """A connection of the worker's own, opened when it is first used and opened again after it was lost."""

    def run(self, op: Op[T]) -> T:
        """Run it once. Raises DatabaseError."""
        ...

    def close(self) -> None:
        """Close it, within a bound."""
        ...


class Worker:
    """A worker: `with` starts it, and on leaving it stops gracefully.

    Leaving waits for running handlers up to the grace period. An exception in the body changes nothing about that;
    KeyboardInterrupt and SystemExit, or one that arrives while leaving, cut the grace to 0 and still let results be
    written. `stop`, `stopped` and `drained` may be called from any thread, `stop` from a signal handler too.
    """

    def __init__(
        self,
        machine: WorkerMachine,
        database: LaneDatabase[LaneConnection],
        *,
        channel: str,
        new_job: Callable[[StartJob], RunningJob],
        capacity: int,
        happened: Callable[[Sequence[AnyEvent]], object] = nobody_listens,
        tracer: Tracer | None = None,
        heart: Callable[[], BlockingLane] | None = None,
    ) -> None:
        """Made by `Client.worker`.

        Args:
            machine: Fresh, not yet started.
            database: Where lanes come from.
            channel: What the listening lane LISTENs on; a payload is the name of a queue, or empty for all.
            new_job: Makes what a handler is called with.
            capacity: Most handlers at the same time, and so the most threads.
            happened: Told the events of kinds that have hooks, as they come; returns at once and raises nothing.
            tracer: Makes a span of each attempt.
            heart: Makes the lane of the heartbeat, in its thread; without it there is none, and jobs are soon another's.
        """
        self._machine = machine
        self._database = database
        self._channel = channel
        self._new_job = new_job
        self._happened = happened
        self._tracer = tracer
        self._heart = heart
        self._beating: Beating | None = None
        self._inbox: SimpleQueue[Event] = SimpleQueue()
        self._running: dict[Fence, RunningJob] = {}
        self._threads: Threads[tuple[StartJob, RunningJob]] = Threads(capacity, self._run_job, "awa handler")
        self._lanes: dict[Lane, _Lane] = {}
        self._answers: set[Signal] = set()
        self._stopped: Stopped | None = None
        self._failure: BaseException | None = None
        self._interrupt: KeyboardInterrupt | None = None
        self._done = Signal()

    def __enter__(self) -> Self:
        if hasattr(self, "_context"):
            raise RuntimeError("a worker is entered once; make another one with client.worker(...)")
        self._context = contextvars.copy_context()
        Thread(target=self._context.copy().run, args=(self._run,), name="awa worker", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(None if error is None or isinstance(error, Exception) else 0.0)
        late: BaseException | None = None
        while not self._done.is_set():
            try:
                self._done.wait()
            except BaseException as cut:  # noqa: BLE001  an exception of a signal handler; raised below
                late = cut
                self.stop(0.0)
        if self._failure is not None and error is not self._failure:
            raise self._failure
        if late is not None:
            raise late

    def stop(self, grace: Seconds | None = None) -> None:
        """Ask it to stop, and do not wait. Call it again with less grace to be quicker.

        Args:
            grace: Seconds (or a timedelta) running handlers get before they are told to end; None for what the worker was set
                up with, which changes nothing about a stop that is under way.

        Raises:
            ValidationError: `grace` is below 0, or no number of seconds.
        """
        self._inbox.put(StopAsked(None if grace is None else seconds("grace", grace)))

    def stop_at_once(self) -> None:
        """Ask it to end at once, as a second signal does, and do not wait: handlers are told to end, and get a second.

        What has ended is written if the database answers within two seconds. What is left is run again by others.
        """
        self._inbox.put(StopAsked(at_once=True))

    def stopped(self) -> Stopped:
        """Wait until it has stopped, and say how. Raises what made it fail."""
        if not hasattr(self, "_context"):
            raise RuntimeError("the worker was not entered: with client.worker(...) as worker")
        self._done.wait()
        if self._failure is not None:
            raise self._failure
        assert self._stopped is not None
        return self._stopped

    def drained(self) -> None:
        """Wait until it has nothing to do: see `awa_proto.worker.events.Drained`. Raises what made the worker fail."""
        if not hasattr(self, "_context"):
            raise RuntimeError("the worker was not entered: with client.worker(...) as worker")
        answer = Signal()
        self._answers.add(answer)
        self._inbox.put(DrainAsked(answer))
        if not self._done.is_set():  # else nobody takes the question, and nobody else sets the answer
            answer.wait()
        if self._failure is not None:
            raise self._failure

    def health(self) -> WorkerHealth:
        """How it is now. Asks nobody and waits for nothing, so it may be called at any time, from any thread."""
        return self._machine.health(time.monotonic(), time.monotonic())

    @property
    def tally(self) -> Tally:
        """What it has counted so far, by the names of the metrics."""
        return self._machine.tally

    # the loop

    def _run(self) -> None:
        try:
            self._loop()
            self._failure = self._interrupt
        except BaseException as error:  # noqa: BLE001  whatever it is, it leaves the `with`
            self._failure = error
            _log.critical("the worker failed", exc_info=True)
        self._close()
        self._done.set()
        for answer in list(self._answers):
            answer.set()

    def _loop(self) -> None:
        machine, now = self._machine, time.monotonic
        machine.start(now())
        while True:
            while (output := machine.poll_output()) is not None:
                self._perform(output)
            if self._stopped is not None:
                return
            if events := self._events(machine.next_deadline()):
                machine.handle(events, now())
            else:
                machine.handle_timeout(now())

    def _events(self, until: float | None) -> list[Event]:
        """All that is in the inbox, waiting for the first one; nothing when it is (already) `until`."""
        inbox = self._inbox
        try:
            if until is None:
                events = [inbox.get()]
            elif (left := until - time.monotonic()) > 0:
                events = [inbox.get(timeout=left)]
            else:
                return []
        except Empty:
            return []
        while not inbox.empty():
            events.append(inbox.get())
        if self._failure is not None:
            raise self._failure
        for event in events:
            if type(event) is JobEnded:
                self._threads.ended()
                del self._running[event.attempt.id, event.attempt.run_lease]
        return events

    # what the machine says

    def _perform(self, output: Output) -> None:
        match output:
            case StartJob(attempt=attempt):
                job = self._new_job(output)
                job.carry(self._inbox.put)
                self._running[attempt.id, attempt.run_lease] = job
                self._threads.start((output, job))
            case RunOp(lane=lane):
                if lane not in self._lanes:
                    self._lanes[lane] = self._open(lane)
                self._lanes[lane].runs.put(output)
            case CancelJob() | WaitOver():
                self._reach(output)
            case Emit():
                tell(output)
            case Happened(events=events):
                self._happened(events)
            case Beat(heartbeat=heartbeat):
                self._begin_beating(heartbeat)
            case Drained(token=answer):
                self._answers.discard(answer)
                answer.set()
            case Stopped():
                self._stopped = output
            case _:
                assert_never(output)

    def _reach(self, output: CancelJob | WaitOver) -> None:
        """Say it to the handler, unless that has ended meanwhile."""
        running = self._running.get((output.attempt.id, output.attempt.run_lease))
        if running is not None:
            if isinstance(output, CancelJob):
                running.mark_cancelled(output.reason)
            else:
                running.wait_over(output.result, output.callback_id)

    def _run_job(self, item: tuple[StartJob, RunningJob]) -> None:
        """A handler, in a thread of the pool."""
        start, job = item
        try:
            if self._tracer is None:
                value = self._context.copy().run(start.task.handler, job)
            else:
                value = self._context.copy().run(traced, self._tracer, start, job)
        except BaseException as error:  # noqa: BLE001  a handler ends its job, never its worker
            if isinstance(error, KeyboardInterrupt):
                self._interrupt = error
                self.stop()
            event = JobEnded(start.attempt, Raised(error))
        else:
            event = JobEnded(start.attempt, NOTHING if value is None else Returned(value))
        job.seal()
        self._inbox.put(event)

    def _open(self, name: Lane) -> "_Lane":
        connection = open_lane(self._database, name, self._channel, self._inbox.put)
        runs: SimpleQueue[RunOp | None] = SimpleQueue()
        thread = Thread(target=self._serve, args=(connection, runs), name=f"awa {name}", daemon=True)
        thread.start()
        return _Lane(connection, runs, thread)

    def _serve(self, lane: LaneConnection, runs: "SimpleQueue[RunOp | None]") -> None:
        """The Ops of a lane, one after the other, in its thread."""
        try:
            while (run := runs.get()) is not None:
                try:
                    event: OpDone | OpFailed = OpDone(run.id, lane.run(run.op))
                except (DatabaseError, SchemaNotMigrated) as error:
                    event = OpFailed(run.id, error)
                self._inbox.put(event)
        except BaseException as error:  # noqa: BLE001  a bug in an Op or an adapter: the loop fails with it
            self._failure = error
            self._inbox.put(Woken())
        finally:
            lane.close()

    def _begin_beating(self, heartbeat: Heartbeat) -> None:
        if self._heart is not None:
            self._beating = Beating(heartbeat, self._heart, self._inbox.put, lambda: None)

    # the end

    def _close(self) -> None:
        """Tell what is left to end, close the lanes. What does not end within a bound is left behind."""
        for job in self._running.values():
            job.mark_cancelled(Reason.SHUTDOWN)
        self._threads.close()
        if self._beating is not None:
            self._beating.stop()
        for lane in self._lanes.values():
            lane.runs.put(None)
        self._await_lanes()
        for lane in self._lanes.values():
            if lane.thread.is_alive():  # with a statement that does not end
                try:
                    lane.connection.close()
                except Exception:  # noqa: BLE001  it was the last use of it
                    _log.exception("a connection of the worker could not be closed")
        self._await_lanes()

    def _await_lanes(self) -> None:
        patience = time.monotonic() + PATIENCE
        for lane in self._lanes.values():
            lane.thread.join(max(0.0, patience - time.monotonic()))
        if self._beating is not None:
            self._beating.join(max(0.0, patience - time.monotonic()))


class _Lane(NamedTuple):
    """An open lane: its connection, and the thread that runs what it is given, until it is given None."""

    connection: LaneConnection
    runs: SimpleQueue[RunOp | None]
    thread: Thread
