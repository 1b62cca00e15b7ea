"""The worker on trio: one inbox, the machine, and hands that decide nothing.

`_loop` takes what is in the inbox to the machine and carries out what the machine says. Every timer, retry, batch and
phase of a stop is the machine's (`awa_proto.worker`); here are a task with a cancel scope for each `async def` handler,
a thread for each plain one, and a connection for each lane.

The loop is a system task with a nursery of its own, for three reasons: a cancellation around the `async with` leaves it
running until results are written; what the body raises is not wrapped in an exception group; and trio delivers
KeyboardInterrupt to the body, never to the loop or a handler. Trio cannot abandon a task: a handler that shields itself
from cancellation lets `async with` end, but holds up the end of `trio.run`.

How a handler ends: whatever it raises ends its job, never its worker. `SystemExit` is an error like any other, because
a job that stops each worker that claims it would stop them all. `KeyboardInterrupt` is a person's: the attempt fails,
the worker stops gracefully and raises it to whoever entered it. A thread cannot be cancelled; it sees the job's flag.

If the loop itself fails, all handlers are cancelled, the body of the `async with` too, and the error leaves it.
"""

import contextlib
import contextvars
import functools
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar, assert_never

import trio
from outcome import Error, Outcome

from awa_proto.driving.beating import Beating, BlockingLane
from awa_proto.driving.otel import traced, traced_awaited
from awa_proto.driving.working import (
    NOTHING,
    PATIENCE,
    AwaitedLane,
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
)
from awa_proto.worker.heartbeat import Heartbeat
from awa_proto.worker.report import about
from awa_proto.worker.tally import Tally
from awa_proto.worker.worker import WorkerMachine

T = TypeVar("T")

_log = logging.getLogger("awa")


class Worker:
    """A worker: `async with` starts it, and on leaving it stops gracefully.

    Leaving waits for running handlers up to the grace period. An exception in the body changes nothing about that; a
    cancellation, or one that arrives while leaving, cuts the grace to 0 and still lets results be written.
    """

    def __init__(
        self,
        machine: WorkerMachine,
        database: LaneDatabase[AwaitedLane],
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
            new_job: Makes what a handler is called with, a blocking one when the task is not async.
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
        self._silent = trio.Event()
        self._inbox: list[Event] = []
        self._bell: trio.Event | None = None
        self._running: dict[Fence, tuple[RunningJob, trio.CancelScope | None]] = {}
        self._free_threads = capacity
        self._plain: deque[tuple[StartJob, RunningJob]] = deque()
        self._unstarted: deque[tuple[StartJob, RunningJob, Fence, trio.CancelScope]] = deque()
        self._lanes: dict[Lane, AwaitedLane] = {}
        self._ops = 0
        self._answers: set[trio.Event] = set()
        self._stopped: Stopped | None = None
        self._failure: BaseException | None = None
        self._interrupt: KeyboardInterrupt | None = None
        self._leaving = False
        self._done = trio.Event()
        self._clock: Callable[[], float] = time.monotonic

    async def __aenter__(self) -> Self:
        if hasattr(self, "_body"):
            raise RuntimeError("a worker is entered once; make another one with client.worker(...)")
        self._token = trio.lowlevel.current_trio_token()
        self._clock = trio.lowlevel.current_clock().current_time  # can be read from every thread
        self._context = contextvars.copy_context()
        self._body = trio.CancelScope()
        self._body.__enter__()
        trio.lowlevel.spawn_system_task(self._run, name="awa worker", context=self._context.copy())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leaving = True
        self.stop(None if error is None or isinstance(error, Exception) else 0.0)
        late: BaseException | None = None
        try:
            await self._done.wait()
        except BaseException as cut:  # noqa: BLE001  raised again below, unless it was ours
            late = cut
            self.stop(0.0)
            with trio.CancelScope(shield=True):
                await self._done.wait()
        raised = error if late is None else late
        caught = self._body.__exit__(type(raised) if raised is not None else None, raised, trace)
        if self._failure is not None and error is not self._failure:
            raise self._failure
        if late is not None and not caught:
            raise late

    def stop(self, grace: Seconds | None = None) -> None:
        """Ask it to stop, and do not wait. Call it again with less grace to be quicker.

        Args:
            grace: Seconds (or a timedelta) running handlers get before they are cancelled; None for what the worker was set
                up with, which changes nothing about a stop that is under way.

        Raises:
            ValidationError: `grace` is below 0, or no number of seconds.
        """
        self._put(StopAsked(None if grace is None else seconds("grace", grace)))

    def stop_at_once(self) -> None:
        """Ask it to end at once, as a second signal does, and do not wait: handlers are told to end, and get a second.

        What has ended is written if the database answers within two seconds. What is left is run again by others.
        """
        self._put(StopAsked(at_once=True))

    async def stopped(self) -> Stopped:
        """Wait until it has stopped, and say how. Raises what made it fail."""
        if not hasattr(self, "_body"):
            raise RuntimeError("the worker was not entered: async with client.worker(...) as worker")
        await self._done.wait()
        return self._report()

    async def drained(self) -> None:
        """Wait until it has nothing to do: see `awa_proto.worker.events.Drained`. Raises what made the worker fail."""
        if not hasattr(self, "_body"):
            raise RuntimeError("the worker was not entered: async with client.worker(...) as worker")
        if not self._done.is_set():
            answer = trio.Event()
            self._answers.add(answer)
            self._put(DrainAsked(answer))
            await answer.wait()
        if self._failure is not None:
            raise self._failure

    def health(self) -> WorkerHealth:
        """How it is now. Asks nobody and waits for nothing, so it may be called at any time, from any thread."""
        return self._machine.health(self._clock(), time.monotonic())

    @property
    def tally(self) -> Tally:
        """What it has counted so far, by the names of the metrics."""
        return self._machine.tally

    # the loop

    async def _run(self) -> None:
        async with trio.open_nursery() as self._nursery:
            try:
                await self._loop()
                self._failure = self._interrupt
            except Exception as error:  # noqa: BLE001  whatever it is, it leaves the `async with`
                self._failure = error
            with trio.CancelScope(shield=True):
                await self._close()
            for answer in self._answers:
                answer.set()
            self._done.set()
            if self._failure is not None and not self._leaving:
                self._body.cancel()

    async def _loop(self) -> None:
        machine, now = self._machine, trio.current_time
        machine.start(now())
        while True:
            while (output := machine.poll_output()) is not None:
                self._perform(output)
            if self._stopped is not None:
                return
            if events := await self._events(machine.next_deadline()):
                machine.handle(events, now())
            else:
                machine.handle_timeout(now())

    async def _events(self, until: float | None) -> list[Event]:
        """All that is in the inbox, waiting for the first one; nothing when it is (already) `until`."""
        if until is not None and until <= trio.current_time():
            return []
        if not self._inbox and self._failure is None:
            await self._ring(math.inf if until is None else until)
        if self._failure is not None:
            raise self._failure
        events, self._inbox = self._inbox, []
        return events

    async def _ring(self, until: float) -> None:
        """Wait until something was put into the inbox, or ended."""
        self._bell = trio.Event()
        with trio.CancelScope(deadline=until):
            await self._bell.wait()
        self._bell = None

    def _put(self, event: Event) -> None:
        self._inbox.append(event)
        if self._bell is not None:
            self._bell.set()

    def _put_from_thread(self, event: Event) -> None:
        with contextlib.suppress(trio.RunFinishedError):  # nobody waits
            self._token.run_sync_soon(self._put, event)

    # what the machine says

    def _perform(self, output: Output) -> None:
        match output:
            case StartJob():
                self._start(output)
            case RunOp():
                self._ops += 1
                self._nursery.start_soon(self._run_op, output)
            case CancelJob():
                self._cancel(output)
            case WaitOver(attempt=attempt, callback_id=callback_id, result=result):
                if (running := self._running.get((attempt.id, attempt.run_lease))) is not None:
                    running[0].wait_over(result, callback_id)
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

    def _start(self, start: StartJob) -> None:
        job = self._new_job(start)
        fence = (start.attempt.id, start.attempt.run_lease)
        job.carry(self._put if start.task.is_async else self._put_from_thread)
        if start.task.is_async:
            scope = trio.CancelScope()
            self._running[fence] = job, scope
            self._unstarted.append((start, job, fence, scope))
            self._nursery.start_soon(self._run_next)
        else:
            self._running[fence] = job, None
            self._plain.append((start, job))
            self._start_plain()

    @trio.lowlevel.enable_ki_protection
    async def _run_next(self) -> None:
        """A handler, in a task of its own. Trio begins new tasks in any order; whichever begins takes the oldest job."""
        start, job, fence, scope = self._unstarted.popleft()
        with scope:
            try:
                if self._tracer is None:
                    value = await start.task.handler(job)
                else:
                    value = await traced_awaited(self._tracer, start, job)
            except BaseException as error:  # noqa: BLE001  a handler ends its job, never its worker; this is its whole task
                self._interrupted(error)
                event = JobEnded(start.attempt, Raised(error))
            else:
                event = JobEnded(start.attempt, NOTHING if value is None else Returned(value))
            job.seal()
            del self._running[fence]
            self._put(event)

    def _start_plain(self) -> None:
        """Give plain handlers to threads of trio's cache, as long as there may be more of them."""
        while self._plain and self._free_threads:
            start, job = self._plain.popleft()
            self._free_threads -= 1
            run = functools.partial(self._run_plain, start, job)
            trio.lowlevel.start_thread_soon(run, functools.partial(self._deliver, start), name="awa handler")

    def _run_plain(self, start: StartJob, job: RunningJob) -> object:
        """A plain handler, in a thread."""
        try:
            if self._tracer is None:
                return self._context.copy().run(start.task.handler, job)
            return self._context.copy().run(traced, self._tracer, start, job)
        finally:
            job.seal()

    def _deliver(self, start: StartJob, outcome: Outcome[object]) -> None:
        """In the thread of a plain handler that has ended."""
        ended = Raised(outcome.error) if isinstance(outcome, Error) else Returned(outcome.unwrap())
        try:
            self._token.run_sync_soon(self._ended_plain, JobEnded(start.attempt, ended))
        except trio.RunFinishedError:
            _log.warning(
                "the handler of job %d ended after trio.run", start.attempt.id, extra={"awa": about(start.attempt)}
            )

    def _ended_plain(self, event: JobEnded) -> None:
        self._free_threads += 1
        self._start_plain()
        del self._running[event.attempt.id, event.attempt.run_lease]
        if isinstance(event.ended, Raised):
            self._interrupted(event.ended.error)
        self._put(event)

    def _interrupted(self, error: BaseException) -> None:
        if isinstance(error, KeyboardInterrupt):
            self._interrupt = error
            self.stop()

    def _cancel(self, cancel: CancelJob) -> None:
        fence = (cancel.attempt.id, cancel.attempt.run_lease)
        if fence not in self._running:
            return  # it ended meanwhile: its JobEnded is on the way
        job, scope = self._running[fence]
        job.mark_cancelled(cancel.reason)
        if scope is not None:
            scope.cancel()

    async def _run_op(self, run: RunOp) -> None:
        try:
            result = await self._lane(run.lane).run(run.op)
        except (DatabaseError, SchemaNotMigrated) as error:
            self._put(OpFailed(run.id, error))
        except Exception as error:  # noqa: BLE001  a bug in an Op or an adapter: the loop fails with it
            self._failure = error
        else:
            self._put(OpDone(run.id, result))
        finally:
            self._ops -= 1
            if self._bell is not None:
                self._bell.set()

    def _lane(self, name: Lane) -> AwaitedLane:
        lane = self._lanes.get(name)
        if lane is None:
            lane = open_lane(self._database, name, self._channel, self._put)
            self._lanes[name] = lane
        return lane

    def _begin_beating(self, heartbeat: Heartbeat) -> None:
        if self._heart is not None:
            call = self._token.run_sync_soon
            self._beating = Beating(
                heartbeat, self._heart, lambda pinged: call(self._put, pinged), lambda: call(self._silent.set)
            )

    # the end

    async def _close(self) -> None:
        """Cancel what is left, close the lanes. What does not end within a bound is left behind."""
        for job, _ in self._running.values():
            job.mark_cancelled(Reason.SHUTDOWN)
        self._plain.clear()
        self._nursery.cancel_scope.cancel()
        patience = trio.current_time() + PATIENCE
        while self._ops or (self._stopped is None and any(scope for _, scope in self._running.values())):
            await self._ring(patience)
            if trio.current_time() >= patience:
                break
        if self._beating is not None:
            self._beating.stop()
            with trio.move_on_after(PATIENCE):
                await self._silent.wait()
        async with trio.open_nursery() as nursery:
            for lane in self._lanes.values():
                nursery.start_soon(self._close_lane, lane)

    async def _close_lane(self, lane: AwaitedLane) -> None:
        try:
            await lane.close()
        except Exception:  # noqa: BLE001  it was the last use of it
            _log.exception("a connection of the worker could not be closed")

    def _report(self) -> Stopped:
        if self._failure is not None:
            raise self._failure
        assert self._stopped is not None
        return self._stopped
