"""What the worker loops do, the same on the three drivers, over a store in memory."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest
from typing_extensions import override

from awa_proto.errors import TerminalError, ValidationError
from awa_proto.job import Attempt, JobState
from awa_proto.outcome import Cancel, Completed, Raised, RetryAfter, Snooze
from awa_proto.worker import lifecycle
from awa_proto.worker.events import CancelJob, Event, JobEnded, Output, Reason, StartJob, Stopped, Woken
from tests.workers.harness import MODES, Gate, Harness, Job, RunningWorker, Signal


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def anyio_backend(mode: str) -> str:
    return "trio" if mode.startswith("trio") else "asyncio"


@pytest.fixture
def harness(mode: str, anyio_backend: str) -> Harness:
    return Harness(mode)


def nothing(job: Job) -> Generator[Gate, None, None]:
    yield from ()


# jobs and how they end


async def test_every_job_runs_once_and_is_completed(harness: Harness) -> None:
    ran: list[int] = []

    def note(job: Job) -> Generator[Gate, None, None]:
        ran.append(job.id)
        yield from ()

    harness.handler("note", note)
    ids = harness.enqueue("note", 500)
    async with harness.worker() as worker:
        await worker.drained()
        assert sorted(ran) == ids
        assert harness.states() == {JobState.COMPLETED: 500}
    assert sorted(harness.database.closed) == sorted(set(harness.database.closed)), "a lane was closed twice"
    assert harness.database.closed


async def test_jobs_of_a_lane_start_in_the_order_they_were_enqueued(harness: Harness) -> None:
    """Trio begins tasks in a random order of its own; threads begin in order, but which one writes first is chance."""
    if harness.mode not in {"asyncio", "trio"}:
        pytest.skip("threads")
    began: list[int] = []

    def note(job: Job) -> Generator[Gate, None, None]:
        began.append(job.id)
        yield from ()

    harness.handler("note", note)
    ids = harness.enqueue("note", 300)
    async with harness.worker() as worker:
        await worker.drained()
    assert began == ids


@pytest.mark.parametrize(
    ("result", "state"),
    [
        (Completed(), JobState.COMPLETED),
        (RetryAfter(1000), JobState.RETRYABLE),
        (Snooze(1000), JobState.SCHEDULED),
        (Cancel("not wanted"), JobState.CANCELLED),
        ("no result", JobState.FAILED),
    ],
)
async def test_what_a_handler_returns_decides_the_state(harness: Harness, result: object, state: JobState) -> None:
    def give(job: Job) -> Generator[Gate, None, object]:
        yield from ()
        return result

    harness.handler("give", give)
    [job_id] = harness.enqueue("give")
    async with harness.worker() as worker:
        await worker.drained()
    assert harness.job(job_id).state is state


class Mute(Exception):
    @override
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Odd(BaseException):
    pass


@pytest.mark.parametrize(
    ("error", "state", "text"),
    [
        (ValueError("bad"), JobState.RETRYABLE, "ValueError: bad"),
        (TerminalError("never"), JobState.FAILED, "TerminalError: never"),
        (Mute(), JobState.RETRYABLE, "Mute: (the message could not be made)"),
        (Odd("odd"), JobState.RETRYABLE, "Odd: odd"),
        (SystemExit(3), JobState.RETRYABLE, "SystemExit: 3"),
        (GeneratorExit(), JobState.RETRYABLE, "GeneratorExit"),
        (asyncio.CancelledError("by itself"), JobState.RETRYABLE, "CancelledError: by itself"),
        (
            ExceptionGroup("two", [ValueError(1), ValueError(2)]),
            JobState.RETRYABLE,
            "ExceptionGroup: two (2 sub-exceptions)",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
async def test_whatever_a_handler_raises_ends_its_job_and_not_its_worker(
    harness: Harness, error: BaseException, state: JobState, text: str
) -> None:
    def fail(job: Job) -> Generator[Gate, None, None]:
        yield from ()
        raise error

    harness.handler("fail", fail)
    harness.handler("fine", nothing)
    [job_id] = harness.enqueue("fail")
    async with harness.worker() as worker:
        await worker.drained()
        [fine] = harness.enqueue("fine")
        await worker.drained()
    assert harness.job(job_id).state is state
    assert harness.job(job_id).errors[-1]["error"] == text
    assert harness.job(fine).state is JobState.COMPLETED


async def test_a_keyboard_interrupt_fails_the_attempt_stops_the_worker_and_is_raised(harness: Harness) -> None:
    def interrupt(job: Job) -> Generator[Gate, None, None]:
        yield from ()
        raise KeyboardInterrupt("a person")

    harness.handler("interrupt", interrupt)
    [job_id] = harness.enqueue("interrupt")
    with pytest.raises(KeyboardInterrupt, match="a person"):
        async with harness.worker() as worker:
            await worker.stopped()
    assert harness.job(job_id).state is JobState.RETRYABLE


async def test_handlers_do_not_see_each_others_context(harness: Harness) -> None:
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("of the test")
    seen: list[str] = []

    def change(job: Job) -> Generator[Gate, None, None]:
        seen.append(variable.get())
        variable.set(f"of job {job.id}")
        yield from ()

    harness.handler("change", change)
    harness.enqueue("change", 20)
    async with harness.worker(slots=1) as worker:
        await worker.drained()
    assert seen == ["of the test"] * 20
    assert variable.get() == "of the test"


async def test_never_more_handlers_than_slots_and_never_more_threads(harness: Harness) -> None:
    lock = threading.Lock()
    running, most = 0, 0
    threads: set[int] = set()
    full, gate = Signal(), Gate()

    def count(job: Job) -> Generator[Gate, None, None]:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            threads.add(threading.get_ident())
            if running == 3:
                full.give()
        yield gate
        with lock:
            running -= 1

    harness.handler("count", count)
    harness.enqueue("count", 50)
    async with harness.worker(slots=3) as worker:
        await full.given()
        gate.open()
        await worker.drained()
    assert most == 3
    assert len(threads) <= (1 if harness.is_async_handler else 3) or harness.mode == "trio-plain"  # trio's own cache
    assert harness.states() == {JobState.COMPLETED: 50}


# drained


async def test_drained_sees_what_was_enqueued_before_it_was_asked(harness: Harness) -> None:
    harness.handler("fine", nothing)
    async with harness.worker() as worker:
        for number in range(1, 20):
            harness.enqueue("fine")
            await worker.drained()
            assert harness.states() == {JobState.COMPLETED: number}


async def test_drained_waits_for_handlers_that_run(harness: Harness) -> None:
    started, gate = Signal(), Gate()

    def wait(job: Job) -> Generator[Gate, None, None]:
        started.give()
        yield gate

    harness.handler("wait", wait)
    [job_id] = harness.enqueue("wait")
    async with harness.worker() as worker:
        await started.given()
        async with anyio.create_task_group() as group:
            group.start_soon(worker.drained)
            await anyio.wait_all_tasks_blocked()
            gate.open()
        assert harness.job(job_id).state is JobState.COMPLETED


async def test_drained_after_the_stop_returns(harness: Harness) -> None:
    async with harness.worker() as worker:
        worker.stop()
        await worker.stopped()
        await worker.drained()


# stopping


async def test_leaving_waits_for_handlers_that_run_and_releases_what_has_not_started(harness: Harness) -> None:
    started, gate = Signal(), Gate()

    def wait(job: Job) -> Generator[Gate, None, None]:
        started.give()
        yield gate

    harness.handler("wait", wait)
    harness.enqueue("wait", 5)
    async with harness.worker(slots=1) as worker:
        await started.given()
        worker.stop()
        gate.open()
        stopped = await worker.stopped()
    assert stopped.clean
    assert stopped.left_running == ()
    assert harness.states() == {JobState.COMPLETED: 1, JobState.AVAILABLE: 4}


async def test_without_grace_a_handler_is_cancelled_and_its_attempt_given_back(harness: Harness) -> None:
    started, gate = Signal(), Gate()
    ended: list[str] = []
    jobs: list[Job] = []

    def wait(job: Job) -> Generator[Gate, None, None]:
        jobs.append(job)
        started.give()
        try:
            yield gate
            ended.append("passed")
        finally:
            ended.append("left")

    harness.handler("wait", wait)
    [job_id] = harness.enqueue("wait")
    async with harness.worker() as worker:
        await started.given()
        assert not jobs[0].is_cancelled()
        worker.stop(grace=0)
        if not harness.is_async_handler:
            await jobs[0].told.given()
            gate.open()
        stopped = await worker.stopped()
    assert stopped.clean
    assert jobs[0].is_cancelled()
    assert ended == (["left"] if harness.is_async_handler else ["passed", "left"])
    row = harness.job(job_id)
    assert (row.state, row.attempt, row.errors) == (JobState.AVAILABLE, 0, [])


async def test_a_second_stop_with_less_grace_cuts_the_first_short(harness: Harness) -> None:
    started, gate = Signal(), Gate()
    jobs: list[Job] = []

    def wait(job: Job) -> Generator[Gate, None, None]:
        jobs.append(job)
        started.give()
        yield gate

    harness.handler("wait", wait)
    harness.enqueue("wait")
    async with harness.worker() as worker:
        await started.given()
        worker.stop(grace=3600)
        worker.stop(grace=0)
        await jobs[0].told.given()
        gate.open()
        assert (await worker.stopped()).clean


async def test_leaving_does_not_shorten_the_grace_that_a_stop_gave(harness: Harness) -> None:
    started, gate = Signal(), Gate()
    jobs: list[Job] = []

    def wait(job: Job) -> Generator[Gate, None, None]:
        jobs.append(job)
        started.give()
        yield gate

    harness.handler("wait", wait)
    [job_id] = harness.enqueue("wait")

    async def open_in_a_while() -> None:
        await anyio.wait_all_tasks_blocked()
        await anyio.sleep(0.1)  # what the worker was set up with has passed many times over
        gate.open()

    async with anyio.create_task_group() as group:
        async with harness.worker(grace=0.001) as worker:
            await started.given()
            worker.stop(grace=3600)
            group.start_soon(open_in_a_while)
        assert not jobs[0].is_cancelled()
    assert harness.job(job_id).state is JobState.COMPLETED


@pytest.mark.parametrize("grace", [-1, float("nan"), float("inf"), "1", True])
async def test_a_grace_that_is_no_number_of_seconds_is_refused(harness: Harness, grace: Any) -> None:
    worker = harness.make()
    with pytest.raises(ValidationError, match="grace"):
        worker.stop(grace)


async def test_waiting_for_a_worker_that_was_not_entered_is_an_error(harness: Harness) -> None:
    worker = RunningWorker(harness.make(), blocking=harness.is_sync)
    for wait in (worker.stopped, worker.drained):
        with pytest.raises(RuntimeError, match="not entered"):
            await wait()


async def test_a_worker_stopped_before_it_was_entered_starts_nothing(harness: Harness) -> None:
    harness.handler("fine", nothing)
    harness.enqueue("fine")
    worker = harness.make()
    worker.stop()
    async with harness.entered(worker) as running:
        assert (await running.stopped()).clean
    assert harness.states() == {JobState.AVAILABLE: 1}


async def test_an_op_that_is_under_way_at_the_end_is_ended_and_nothing_of_it_is_left(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "FOR_LEAVING", 0.01)
    monkeypatch.setattr("awa_sync.worker.PATIENCE", 0.05)
    async with harness.worker() as worker:
        await worker.drained()
        harness.database.stuck.add("maintenance")
        worker.stop()
        assert not (await worker.stopped()).left_running
    assert sorted(harness.database.closed) == sorted({*harness.database.closed, "maintenance"})
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("awa maintenance")]


async def test_a_handler_that_will_not_end_is_left_behind_and_said(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    if harness.mode == "trio":
        pytest.skip("trio cannot leave a task behind")
    monkeypatch.setattr(lifecycle, "AFTER_CANCELLING", 0.01)
    started, gate, ended = Signal(), Gate(), Signal()

    def ignore(job: Job) -> Generator[Gate, None, None]:
        started.give()
        yield gate
        ended.give()

    async def stubborn(job: Job) -> None:
        started.give()
        while not gate._async.is_set():
            try:
                await gate.passed()
            except asyncio.CancelledError:
                continue
        ended.give()

    harness.handler("ignore", ignore)
    if harness.is_async_handler:
        harness.tasks["ignore"] = type(harness.tasks["ignore"])("ignore", stubborn, str, is_async=True)
    [job_id] = harness.enqueue("ignore")
    async with harness.worker() as worker:
        await started.given()
        worker.stop(grace=0)
        stopped = await worker.stopped()
    assert not stopped.clean
    assert stopped.left_running == (job_id,)
    gate.open()
    await ended.given()


async def test_an_exception_in_the_body_stops_the_worker_and_leaves_unwrapped(harness: Harness) -> None:
    harness.handler("fine", nothing)
    with pytest.raises(ZeroDivisionError):
        async with harness.worker() as worker:
            raise ZeroDivisionError
    assert (await worker.stopped()).clean  # pyright: ignore[reportPossiblyUnboundVariable]  no worker swallows


async def test_a_cancellation_around_the_body_stops_at_once_and_still_writes(harness: Harness) -> None:
    started, gate = Signal(), Gate()
    jobs: list[Job] = []

    def wait(job: Job) -> Generator[Gate, None, None]:
        jobs.append(job)
        started.give()
        yield gate

    harness.handler("wait", wait)
    [job_id] = harness.enqueue("wait")

    async def open_when_asked() -> None:
        await jobs[0].told.given()
        gate.open()

    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as scope:
            async with harness.worker():
                await started.given()
                group.start_soon(open_when_asked)
                scope.cancel()
                await anyio.sleep_forever()
    assert scope.cancelled_caught  # pyright: ignore[reportPossiblyUnboundVariable]  no worker swallows
    assert harness.job(job_id).state is JobState.AVAILABLE


async def test_a_cancellation_while_leaving_cuts_the_grace(harness: Harness) -> None:
    if harness.is_sync:
        pytest.skip("a thread cannot be cancelled")
    started, gate = Signal(), Gate()
    jobs: list[Job] = []

    def wait(job: Job) -> Generator[Gate, None, None]:
        jobs.append(job)
        started.give()
        yield gate

    harness.handler("wait", wait)
    [job_id] = harness.enqueue("wait")

    async def open_when_asked() -> None:
        await jobs[0].told.given()
        gate.open()

    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as scope:
            async with harness.worker():
                await started.given()
                group.start_soon(open_when_asked)
                group.start_soon(_cancel_when_idle, scope)
    assert scope.cancelled_caught  # pyright: ignore[reportPossiblyUnboundVariable]  no worker swallows
    assert harness.job(job_id).state is JobState.AVAILABLE


async def _cancel_when_idle(scope: anyio.CancelScope) -> None:
    await anyio.wait_all_tasks_blocked()
    scope.cancel()


async def test_a_worker_is_entered_once(harness: Harness) -> None:
    if harness.is_sync:
        worker = harness.make()
        with worker:
            pass
        with pytest.raises(RuntimeError, match="entered once"):
            worker.__enter__()
        return
    async with harness.worker() as running:
        pass
    with pytest.raises(RuntimeError, match="entered once"):
        await running.worker.__aenter__()


# when the loop itself fails


@pytest.fixture
def quiet() -> Iterator[None]:
    """The blocking worker logs its failure at once; here that is expected."""
    logger = logging.getLogger("awa")
    logger.disabled = True
    yield
    logger.disabled = False


@pytest.mark.usefixtures("quiet")
async def test_a_failure_of_the_loop_cancels_handlers_and_body_and_is_raised(harness: Harness) -> None:
    started, gate = Signal(), Gate()
    jobs: list[Job] = []

    def wait(job: Job) -> Generator[Gate, None, None]:
        jobs.append(job)
        started.give()
        yield gate

    harness.handler("wait", wait)
    harness.enqueue("wait")
    with pytest.raises(ZeroDivisionError) as raised:  # noqa: PT012  what it raises is the matter of the whole block
        async with harness.worker() as worker:
            await started.given()
            harness.database.broken = ZeroDivisionError("a bug in an adapter")
            harness.database.broken.add_note("the very one")
            if harness.is_sync:
                with pytest.raises(ZeroDivisionError):
                    await worker.drained()
            else:
                worker.worker._put(Woken())  # makes the machine ask the database
                await anyio.sleep_forever()
    assert raised.value is harness.database.broken
    assert jobs[0].is_cancelled()
    gate.open()
    if not harness.is_sync:
        await anyio.lowlevel.checkpoint()  # no cancellation of ours is left behind


@pytest.mark.usefixtures("quiet")
async def test_a_failure_when_a_job_is_made_is_raised_by_every_way_to_wait(harness: Harness) -> None:
    def broken(_: object) -> object:
        raise ZeroDivisionError

    harness.handler("fine", nothing)
    harness.new_job = broken
    harness.enqueue("fine")
    with pytest.raises(ZeroDivisionError):  # noqa: PT012  as above
        async with harness.worker() as worker:
            with pytest.raises((ZeroDivisionError, anyio.get_cancelled_exc_class())):
                await worker.drained()
    with pytest.raises(ZeroDivisionError):
        await worker.stopped()  # pyright: ignore[reportPossiblyUnboundVariable]  no worker swallows
    with pytest.raises(ZeroDivisionError):
        await worker.drained()  # pyright: ignore[reportPossiblyUnboundVariable]  no worker swallows


async def test_what_the_machine_tells_goes_to_the_logger_awa(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.enqueue("unheard of")
    with caplog.at_level(logging.WARNING, "awa"):
        async with harness.worker() as worker:
            await worker.drained()
    [record] = [record for record in caplog.records if "unknown job kind" in record.getMessage()]
    assert record.name == "awa"
    assert vars(record)["awa"]["kind"] == "unheard of"


async def test_a_handler_that_is_cancelled_before_its_first_step_has_ended_too(harness: Harness) -> None:
    if not harness.is_async_handler:
        pytest.skip("a thread cannot be cancelled")
    ran: list[int] = []

    def note(job: Job) -> Generator[Gate, None, None]:
        ran.append(job.id)
        yield Gate()

    harness.handler("note", note)
    now = datetime.now(UTC)
    attempt = Attempt(0, 0, 0, 1, 1, "default", 2, "note", "{}", 1, 25, now, now, None)
    harness.machine = machine = ScriptedMachine(
        StartJob(attempt, harness.tasks["note"], None), CancelJob(attempt, Reason.CANCELLED)
    )
    async with harness.worker() as worker:
        await worker.stopped()
    [event] = machine.heard
    assert isinstance(event, JobEnded)
    assert isinstance(event.ended, Raised)
    assert isinstance(event.ended.error, anyio.get_cancelled_exc_class())
    assert ran == [] if harness.mode == "asyncio" else [1]  # trio enters it, and cancels it at its first checkpoint


class ScriptedMachine:
    """Says what it was given, and stops at the first event."""

    def __init__(self, *outputs: Output) -> None:
        self._outputs = deque(outputs)
        self.heard: list[Event] = []

    def start(self, now: float) -> None:
        pass

    def handle(self, events: Sequence[Event], now: float) -> None:
        self.heard += events
        self._outputs.append(Stopped(clean=True))

    def handle_timeout(self, now: float) -> None:
        raise AssertionError("it has no timer")

    def poll_output(self) -> Output | None:
        return self._outputs.popleft() if self._outputs else None

    def next_deadline(self) -> float | None:
        return None
