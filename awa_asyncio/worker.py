"""The worker on asyncio: one inbox, the machine, and hands that decide nothing.

`_loop` takes what is in the inbox to the machine and carries out what the machine says. Every timer, retry, batch and
phase of a stop is the machine's (`awa_proto.worker`); here are a task for each `async def` handler, a thread for each
plain one, and a connection for each lane.

How a handler ends: whatever it raises ends its job, never its worker. `SystemExit` is an error like any other, because
a job that stops each worker that claims it would stop them all. `KeyboardInterrupt` is a person's: the attempt fails,
the worker stops gracefully and raises it to whoever entered it. A thread cannot be cancelled; it sees the job's flag.

If the loop itself fails, all handlers are cancelled, the body of the `async with` too, and the error leaves it.
"""

import asyncio
import contextlib
import contextvars
import logging
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar, assert_never

from awa_proto.driving.beating import Beating, BlockingLane
from awa_proto.driving.otel import traced, traced_awaited
from awa_proto.driving.threads import Threads
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
from awa_proto.job import Attempt
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
        self._silent = asyncio.Event()
        self._inbox: list[Event] = []
        self._waiter: asyncio.Future[None] | None = None
        self._running: dict[Fence, tuple[RunningJob, asyncio.Task[None] | None]] = {}
        self._threads: Threads[tuple[StartJob, RunningJob]] = Threads(capacity, self._run_plain, "awa handler")
        self._lanes: dict[Lane, AwaitedLane] = {}
        self._ops: set[asyncio.Task[None]] = set()
        self._stopped: Stopped | None = None
        self._failure: BaseException | None = None
        self._interrupt: KeyboardInterrupt | None = None
        self._leaving = False
        self._owner_cancelled = False
        self._clock: Callable[[], float] = time.monotonic

    async def __aenter__(self) -> Self:
        if hasattr(self, "_task"):
            raise RuntimeError("a worker is entered once; make another one with client.worker(...)")
        self._event_loop = asyncio.get_running_loop()
        self._clock = self._event_loop.time
        self._context = contextvars.copy_context()
        self._owner = asyncio.current_task()
        self._task = self._event_loop.create_task(self._run(), name="awa worker")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leaving = True
        self.stop(None if error is None or isinstance(error, Exception) else 0.0)
        cancelled = await self._until_done()
        if self._owner_cancelled and self._owner is not None:
            self._owner.uncancel()
            if cancelled is None and not isinstance(error, asyncio.CancelledError):
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)  # the body ended first: our cancellation is still to be delivered
        if self._failure is not None and error is not self._failure:
            raise self._failure
        if cancelled is not None and not self._owner_cancelled:
            raise cancelled

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
        if not hasattr(self, "_task"):
            raise RuntimeError("the worker was not entered: async with client.worker(...) as worker")
        await asyncio.wait({self._task})
        return self._report()

    async def drained(self) -> None:
        """Wait until it has nothing to do: see `awa_proto.worker.events.Drained`. Raises what made the worker fail."""
        if not hasattr(self, "_task"):
            raise RuntimeError("the worker was not entered: async with client.worker(...) as worker")
        answer = self._event_loop.create_future()
        self._put(DrainAsked(answer))
        await asyncio.wait({answer, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            self._report()

    def health(self) -> WorkerHealth:
        """How it is now. Asks nobody and waits for nothing, so it may be called at any time, from any thread."""
        return self._machine.health(self._clock(), time.monotonic())

    @property
    def tally(self) -> Tally:
        """What it has counted so far, by the names of the metrics."""
        return self._machine.tally

    # the loop

    async def _run(self) -> None:
        try:
            await self._loop()
            self._failure = self._interrupt
        except BaseException as error:  # noqa: BLE001  whatever it is, it leaves the `async with`
            self._failure = error
        await self._close()
        if self._failure is not None and not self._leaving and self._owner is not None:
            self._owner_cancelled = self._owner.cancel("the awa worker failed")

    async def _loop(self) -> None:
        machine, now = self._machine, self._event_loop.time
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
        if until is not None and until <= self._event_loop.time():
            return []
        if not self._inbox:
            self._waiter = waiter = self._event_loop.create_future()
            timer = None if until is None else self._event_loop.call_at(until, self._wake)
            try:
                await waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        if self._failure is not None:
            raise self._failure
        events, self._inbox = self._inbox, []
        return events

    def _put(self, event: Event) -> None:
        self._inbox.append(event)
        if self._waiter is not None:
            self._wake()

    def _put_from_thread(self, event: Event) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self._event_loop.call_soon_threadsafe(self._put, event)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # what the machine says

    def _perform(self, output: Output) -> None:
        match output:
            case StartJob():
                self._start(output)
            case RunOp():
                task = self._event_loop.create_task(self._run_op(output), name="awa op")
                self._ops.add(task)
                task.add_done_callback(self._ops.discard)
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
                if not answer.done():
                    answer.set_result(None)
            case Stopped():
                self._stopped = output
            case _:
                assert_never(output)

    def _start(self, start: StartJob) -> None:
        job = self._new_job(start)
        fence = (start.attempt.id, start.attempt.run_lease)
        job.carry(self._put if start.task.is_async else self._put_from_thread)
        if start.task.is_async:
            self._running[fence] = job, self._event_loop.create_task(self._run_job(start, job, fence), name="awa job")
        else:
            self._running[fence] = job, None
            self._threads.start((start, job))

    async def _run_job(self, start: StartJob, job: RunningJob, fence: Fence) -> None:
        try:
            if self._tracer is None:
                value = await start.task.handler(job)
            else:
                value = await traced_awaited(self._tracer, start, job)
        except BaseException as error:  # noqa: BLE001  a handler ends its job, never its worker
            self._interrupted(error)
            event = JobEnded(start.attempt, Raised(error))
        else:
            event = JobEnded(start.attempt, NOTHING if value is None else Returned(value))
        job.seal()
        del self._running[fence]
        self._put(event)

    def _run_plain(self, item: tuple[StartJob, RunningJob]) -> None:
        """A plain handler, in a thread."""
        start, job = item
        ended: Returned | Raised
        try:
            if self._tracer is None:
                ended = Returned(self._context.copy().run(start.task.handler, job))
            else:
                ended = Returned(self._context.copy().run(traced, self._tracer, start, job))
        except BaseException as error:  # noqa: BLE001  as in _run_job
            ended = Raised(error)
        job.seal()
        try:
            self._event_loop.call_soon_threadsafe(self._ended_plain, JobEnded(start.attempt, ended))
        except RuntimeError:
            _log.warning(
                "the handler of job %d ended after its event loop was closed",
                start.attempt.id,
                extra={"awa": about(start.attempt)},
            )

    def _ended_plain(self, event: JobEnded) -> None:
        self._threads.ended()
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
        job, task = self._running[fence]
        job.mark_cancelled(cancel.reason)
        if task is not None:
            task.cancel(f"awa: {cancel.reason}")
            task.add_done_callback(lambda _: self._never_started(cancel.attempt, fence))

    def _never_started(self, attempt: Attempt, fence: Fence) -> None:
        """Asyncio ends a task that is cancelled before its first step without entering it."""
        if self._running.pop(fence, None) is not None:
            self._put(JobEnded(attempt, Raised(asyncio.CancelledError())))

    async def _run_op(self, run: RunOp) -> None:
        try:
            result = await self._lane(run.lane).run(run.op)
        except (DatabaseError, SchemaNotMigrated) as error:
            self._put(OpFailed(run.id, error))
        except Exception as error:  # noqa: BLE001  a bug in an Op or an adapter: the loop fails with it
            self._failure = error
            self._wake()
        else:
            self._put(OpDone(run.id, result))

    def _lane(self, name: Lane) -> AwaitedLane:
        lane = self._lanes.get(name)
        if lane is None:
            lane = open_lane(self._database, name, self._channel, self._put)
            self._lanes[name] = lane
        return lane

    def _begin_beating(self, heartbeat: Heartbeat) -> None:
        if self._heart is not None:
            call = self._event_loop.call_soon_threadsafe
            self._beating = Beating(
                heartbeat, self._heart, lambda pinged: call(self._put, pinged), lambda: call(self._silent.set)
            )

    # the end

    async def _close(self) -> None:
        """Cancel what is left, close the lanes. What does not end within a bound is left behind."""
        jobs = [task for _, task in self._running.values() if task is not None]
        for job, _ in self._running.values():
            job.mark_cancelled(Reason.SHUTDOWN)
        for task in (*jobs, *self._ops):
            task.cancel("awa: the worker has stopped")
        if left := {*self._ops, *(jobs if self._stopped is None else ())}:
            await asyncio.wait(left, timeout=PATIENCE)
        self._threads.close()
        if self._beating is not None:
            self._beating.stop()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._silent.wait(), PATIENCE)
        await asyncio.gather(*(lane.close() for lane in self._lanes.values()), return_exceptions=True)
        for task in jobs:
            if not task.done():
                _leave_behind(task)

    async def _until_done(self) -> asyncio.CancelledError | None:
        """Wait for the end of the loop, whatever happens. A cancellation meanwhile cuts the grace, and is returned."""
        cancelled: asyncio.CancelledError | None = None
        while not self._task.done():
            try:
                await asyncio.wait({self._task})
            except asyncio.CancelledError as error:
                cancelled = error
                self.stop(0.0)
        return cancelled

    def _report(self) -> Stopped:
        if self._failure is not None:
            raise self._failure
        assert self._stopped is not None
        return self._stopped


def _leave_behind(task: asyncio.Task[None]) -> None:
    """Let asyncio.run end without this task, which ignores its cancellation: it would wait for it for ever."""
    asyncio._unregister_task(task)  # noqa: SLF001  documented, for whoever extends asyncio
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001  it was said already
