"""What hooks may count on, promise by promise, the same on the three drivers, over a store in memory."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import anyio
import pytest

from awa_proto import events
from awa_proto.errors import TerminalError
from awa_proto.events import AnyEvent
from awa_proto.hooks import AT_ONCE, MOST_WAITING
from awa_proto.job import JobRow, JobState
from awa_proto.outcome import Cancel, Completed, RetryAfter, Snooze
from tests.workers.harness import MODES, Gate, Harness, HookScript, Job, Signal


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


def giving(result: object) -> Callable[[Job], Generator[Gate, None, object]]:
    def give(job: Job) -> Generator[Gate, None, object]:
        yield from ()
        if isinstance(result, BaseException):
            raise result
        return result

    return give


class Ear:
    """A hook that remembers what it heard, and the row that the store had at that moment."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self._change = threading.Condition()
        self.events: list[AnyEvent] = []
        self.rows: list[JobRow] = []

    def __call__(self, event: AnyEvent) -> Generator[Gate, None, None]:
        with self._change:
            self.events.append(event)
            self.rows.append(self._harness.job(event.job.id))
            self._change.notify_all()
        yield from ()

    @property
    def names(self) -> list[str]:
        return [type(event).__name__ for event in self.events]

    async def hears(self, count: int) -> list[AnyEvent]:
        """Wait until so many events were heard; they are returned."""

        def wait() -> bool:
            with self._change:
                return self._change.wait_for(lambda: len(self.events) >= count, 1.0)

        while not await anyio.to_thread.run_sync(wait):
            pass
        return self.events


# events


@pytest.mark.parametrize(
    ("result", "attempts", "told"),
    [
        (None, 25, "Completed"),
        (Completed(), 25, "Completed"),
        (RetryAfter(1000), 25, "Retried"),
        (ValueError("no"), 25, "Retried"),
        (RetryAfter(1000), 1, "Exhausted"),
        (ValueError("no"), 1, "Exhausted"),
        (TerminalError("no"), 25, "Exhausted"),
        (Cancel("no"), 25, "Cancelled"),
        (Snooze(1000), 25, None),
    ],
    ids=str,
)
async def test_the_outcome_of_an_attempt_decides_the_event(
    harness: Harness, result: object, attempts: int, told: str | None
) -> None:
    ear, last = Ear(harness), Ear(harness)
    harness.hook("job", ear)
    harness.hook("last", last)
    harness.handler("job", giving(result))
    harness.handler("last", nothing)
    harness.enqueue("job", max_attempts=attempts)
    async with harness.worker() as worker:
        await worker.drained()
        harness.enqueue("last")
        await worker.drained()
    await last.hears(2)
    await ear.hears(1 if told is None else 2)
    assert sorted(ear.names) == sorted(["Started"] if told is None else ["Started", told])


async def test_started_fires_when_the_claim_has_committed_and_its_job_is_running(harness: Harness) -> None:
    ear, gate = Ear(harness), Gate()

    def wait(job: Job) -> Generator[Gate, None, None]:
        yield gate

    harness.hook("wait", ear)
    harness.handler("wait", wait)
    [job_id] = harness.enqueue("wait", priority=3)
    async with harness.worker():
        [event] = await ear.hears(1)
        gate.open()
    assert isinstance(event, events.Started)
    assert event.job.state is ear.rows[0].state is JobState.RUNNING
    assert (event.job.id, event.job.attempt, event.job.priority) == (job_id, 1, 3)
    assert event.job.run_lease == ear.rows[0].run_lease


async def test_completed_carries_how_long_the_handler_ran(harness: Harness) -> None:
    ear = Ear(harness)
    harness.hook("job", ear)
    harness.handler("job", nothing)
    harness.enqueue("job")
    async with harness.worker():
        await ear.hears(2)
    (completed,) = (event for event in ear.events if isinstance(event, events.Completed))
    assert timedelta() <= completed.duration < timedelta(minutes=2)


async def test_an_outcome_hook_observes_committed_state_and_carries_the_row_after_the_transition(
    harness: Harness,
) -> None:
    for number, result in enumerate((None, RetryAfter(1000), ValueError("no"), TerminalError("no"), Cancel("no"))):
        harness.handler(f"job {number}", giving(result))
    ear = Ear(harness)
    for kind in harness.tasks:
        harness.hook(kind, ear)
        harness.enqueue(kind)
    async with harness.worker():
        await ear.hears(10)
    outcomes = [
        (event.job, row)
        for event, row in zip(ear.events, ear.rows, strict=True)
        if not isinstance(event, events.Started)
    ]
    assert len(outcomes) == 5
    for job, row in outcomes:
        assert (job.state, job.attempt, job.run_lease) == (row.state, row.attempt, row.run_lease)
        assert (job.run_at, job.finalized_at, job.errors) == (row.run_at, row.finalized_at, row.errors)


async def test_a_stale_result_fires_no_outcome_event_though_started_has_fired(harness: Harness) -> None:
    ear, last, gate = Ear(harness), Ear(harness), Gate()

    def wait(job: Job) -> Generator[Gate, None, None]:
        yield gate

    harness.hook("wait", ear)
    harness.hook("last", last)
    harness.handler("wait", wait)
    harness.handler("last", nothing)
    [job_id] = harness.enqueue("wait")
    async with harness.worker() as worker:
        await ear.hears(1)
        harness.database.execute(harness.store.cancel(job_id))
        gate.open()
        await worker.drained()
        harness.enqueue("last")
        await last.hears(2)
    assert ear.names == ["Started"]


async def test_jobs_of_kinds_without_hooks_fire_nothing(harness: Harness) -> None:
    told: list[AnyEvent] = []
    ear = Ear(harness)
    harness.hook_runner.tell = told.extend
    harness.hook("hooked", ear)
    for kind in ("hooked", "plain"):
        harness.handler(kind, nothing)
        harness.enqueue(kind, 10)
    async with harness.worker() as worker:
        await worker.drained()
    assert {event.job.kind for event in told} == {"hooked"}
    assert len(told) == 20


async def test_a_job_that_cannot_begin_is_exhausted_and_was_never_started(harness: Harness) -> None:
    ear = Ear(harness)
    harness.hook("nobody knows", ear)
    harness.enqueue("nobody knows")
    async with harness.worker():
        [event] = await ear.hears(1)
    assert isinstance(event, events.Exhausted)
    assert "unknown job kind" in event.error


@dataclass
class Number:
    n: int


async def test_a_typed_hook_gets_args_of_its_class_and_an_untyped_one_what_the_json_says(harness: Harness) -> None:
    typed, untyped = Ear(harness), Ear(harness)
    harness.hook("job", typed, Number)
    harness.hook("job", untyped)
    harness.handler("job", nothing)
    harness.enqueue("job", args='{"n":3}')
    async with harness.worker():
        await untyped.hears(2)
    assert [event.args for event in typed.events] == [Number(3)] * 2
    assert [event.args for event in untyped.events] == [{"n": 3}] * 2


async def test_args_that_do_not_decode_skip_typed_hooks_and_no_other(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    typed, untyped = Ear(harness), Ear(harness)
    harness.hook("job", typed, Number)
    harness.hook("job", untyped)
    harness.handler("job", nothing)
    harness.enqueue("job", args='{"n":"three"}')
    async with harness.worker():
        await untyped.hears(2)
    assert typed.events == []
    assert sum("do not fit the class of a hook" in record.message for record in caplog.records) == 2


# several hooks


async def test_hooks_of_one_event_run_in_order_one_after_the_other(harness: Harness) -> None:
    order: list[str] = []
    gate, waits, ear = Gate(), Signal(), Ear(harness)

    def first(event: AnyEvent) -> Generator[Gate, None, None]:
        if isinstance(event, events.Completed):
            order.append("first begins")
            waits.give()
            yield gate
            order.append("first ends")

    def second(event: AnyEvent) -> Generator[Gate, None, None]:
        if isinstance(event, events.Completed):
            order.append("second")
        yield from ()

    harness.hook("job", first)
    harness.hook("job", second)
    harness.hook("job", ear)
    harness.handler("job", nothing)
    harness.enqueue("job")
    async with harness.worker() as worker:
        await waits.given()
        await worker.drained()
        assert order == ["first begins"]
        gate.open()
        await ear.hears(2)
    assert order == ["first begins", "first ends", "second"]


class Odd(BaseException):
    pass


@pytest.mark.parametrize(
    "error",
    [ValueError("bad"), SystemExit(3), Odd("odd"), GeneratorExit(), asyncio.CancelledError("by itself")],
    ids=repr,
)
async def test_a_hook_that_raises_is_logged_with_its_name_and_later_hooks_and_jobs_go_on(
    harness: Harness, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    ear = Ear(harness)

    def broken_hook(event: AnyEvent) -> Generator[Gate, None, None]:
        yield from ()
        raise error

    harness.hook("job", broken_hook)
    harness.hook("job", ear)
    harness.handler("job", nothing)
    harness.enqueue("job", 5)
    async with harness.worker() as worker:
        await worker.drained()
        await ear.hears(10)
    assert harness.states() == {JobState.COMPLETED: 5}
    failed = [record for record in caplog.records if "a hook failed" in record.message]
    assert len(failed) == 10
    assert {record.levelno for record in failed} == {logging.ERROR}
    assert all("broken_hook" in record.message and type(error).__name__ in record.message for record in failed)


# nothing waits for a hook


def holding(gate: Gate, begun: Signal) -> HookScript:
    def hold(event: AnyEvent) -> Generator[Gate, None, None]:
        begun.give()
        yield gate

    return hold


async def test_a_slow_hook_holds_no_slot_and_delays_no_result(harness: Harness) -> None:
    gate, begun = Gate(), Signal()
    harness.hook("job", holding(gate, begun))
    harness.handler("job", nothing)
    harness.enqueue("job", 50)
    async with harness.worker(slots=1) as worker:
        await begun.given()
        await worker.drained()
        assert harness.states() == {JobState.COMPLETED: 50}
    gate.open()


async def test_shutdown_does_not_wait_for_hooks_and_they_go_on(harness: Harness) -> None:
    gate, begun, ear = Gate(), Signal(), Ear(harness)
    harness.hook("job", holding(gate, begun))
    harness.hook("job", ear)
    harness.handler("job", nothing)
    harness.enqueue("job")
    async with harness.worker() as worker:
        await begun.given()
        await worker.drained()
        worker.stop()
        stopped = await worker.stopped()
    assert stopped.clean
    assert ear.events == []
    gate.open()
    assert len(await ear.hears(2)) == 2


async def test_a_fast_job_may_finish_before_its_started_hook_has(harness: Harness) -> None:
    gate, begun, ear = Gate(), Signal(), Ear(harness)

    def slow_at_first(event: AnyEvent) -> Generator[Gate, None, None]:
        if isinstance(event, events.Started):
            begun.give()
            yield gate

    harness.hook("job", slow_at_first)
    harness.hook("job", ear)
    harness.handler("job", nothing)
    harness.enqueue("job")
    async with harness.worker():
        await begun.given()
        await ear.hears(1)
        assert ear.names == ["Completed"]
        gate.open()
        await ear.hears(2)
    assert ear.names == ["Completed", "Started"]


async def test_so_many_events_are_handled_at_a_time_and_beyond_the_bound_the_newest_are_dropped(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    gate, begun, ear = Gate(), Signal(), Ear(harness)
    harness.hook("job", holding(gate, begun))
    harness.hook("job", ear)
    harness.handler("job", nothing)
    jobs = (AT_ONCE + MOST_WAITING) // 2 + 100
    harness.enqueue("job", jobs)
    queue = harness.hook_runner.queue
    async with harness.worker() as worker:
        await worker.drained()
        assert (queue.running, queue.waiting, queue.dropped) == (AT_ONCE, MOST_WAITING, 200)
        gate.open()
        await ear.hears(AT_ONCE + MOST_WAITING)
    assert len(ear.events) == AT_ONCE + MOST_WAITING
    assert sum("hooks are slower than events come" in record.message for record in caplog.records) == 1


async def test_hooks_run_in_the_context_of_the_worker_and_do_not_see_each_others(harness: Harness) -> None:
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("of the test")
    seen: list[str] = []
    ear = Ear(harness)

    def change(event: AnyEvent) -> Generator[Gate, None, None]:
        seen.append(variable.get())
        variable.set("of a hook")
        yield from ()

    harness.hook("job", change)
    harness.hook("job", change)
    harness.hook("job", ear)
    harness.handler("job", nothing)
    harness.enqueue("job", 5)
    async with harness.worker():
        await ear.hears(10)
    assert seen == ["of the test"] * 20


async def test_plain_hooks_run_in_threads(harness: Harness) -> None:
    threads: list[int] = []
    ear = Ear(harness)

    def note(event: AnyEvent) -> Generator[Gate, None, None]:
        threads.append(threading.get_ident())
        yield from ()

    harness.hook("job", note)
    harness.hook("job", ear)
    harness.handler("job", nothing)
    harness.enqueue("job")
    async with harness.worker():
        await ear.hears(2)
    assert (set(threads) == {threading.get_ident()}) is harness.is_async_handler


LAST_WORDS = """
import json, sys
from datetime import UTC, datetime
from awa_proto.events import Started
from awa_proto.hooks import AT_ONCE, Hook, HookQueue
from awa_proto.job import JobRow, JobState

now = datetime.now(UTC)
event = Started(JobRow(1, "k", "q", "{{}}", JobState.RUNNING, 2, 1, 9, 25, now, now), None)

def queue(function, is_async):
    hook = Hook("k", None, function, json.loads, is_async, "hook")
    return HookQueue({{"k": (hook, hook)}})

{program}
print("ended")
"""
ENDS = {
    "asyncio": """
import asyncio
from awa_asyncio.hooks import HookRunner

async def hook(_):
    try:
        await asyncio.Event().wait()
    finally:
        print("cancelled")

async def main():
    runner = HookRunner(queue(hook, True))
    for _ in range(AT_ONCE + 10):
        runner.tell([event])
    for _ in range(AT_ONCE):
        await asyncio.sleep(0)

asyncio.run(main(), debug=True)
""",
    "asyncio, never begun": """
import asyncio
from awa_asyncio.hooks import HookRunner

async def hook(_):
    await asyncio.sleep(0)

async def main():
    runner = HookRunner(queue(hook, True))
    for _ in range(AT_ONCE + 10):
        runner.tell([event])

asyncio.run(main(), debug=True)
""",
    "asyncio, cancellation ignored": """
import asyncio
from awa_asyncio.hooks import HookRunner

async def hook(_):
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        print("ignored")

async def main():
    runner = HookRunner(queue(hook, True))
    for _ in range(AT_ONCE + 10):
        runner.tell([event])
    for _ in range(AT_ONCE):
        await asyncio.sleep(0)

asyncio.run(main(), debug=True)
""",
    "asyncio, threads": """
import asyncio, threading
from awa_asyncio.hooks import HookRunner

begun, end, over = threading.Event(), threading.Event(), threading.Event()

def hook(_):
    begun.set()
    end.wait()
    print("goes on")
    over.set()

async def main():
    runner = HookRunner(queue(hook, False))
    runner.tell([event])
    await asyncio.to_thread(begun.wait)

asyncio.run(main(), debug=True)
end.set()
over.wait()
""",
    "trio": """
import trio
from awa_trio.hooks import HookRunner

async def hook(_):
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            await trio.sleep_forever()
    finally:
        print("cancelled")

async def main():
    runner = HookRunner(queue(hook, True))
    for _ in range(AT_ONCE + 10):
        runner.tell([event])
    await trio.testing.wait_all_tasks_blocked()

import trio.testing
trio.run(main)
""",
    "trio, never begun": """
import trio
from awa_trio.hooks import HookRunner

async def hook(_):
    await trio.sleep(0)

async def main():
    runner = HookRunner(queue(hook, True))
    for _ in range(AT_ONCE + 10):
        runner.tell([event])

trio.run(main)
""",
    "trio, threads": """
import threading, trio
from awa_trio.hooks import HookRunner

begun, end, over = threading.Event(), threading.Event(), threading.Event()

def hook(_):
    begun.set()
    end.wait()
    print("goes on")
    over.set()

async def main():
    runner = HookRunner(queue(hook, False))
    runner.tell([event])
    await trio.to_thread.run_sync(begun.wait)

trio.run(main)
end.set()
over.wait()
""",
    "sync": """
import threading
from awa_sync.hooks import HookRunner

begun = threading.Event()

def hook(_):
    begun.set()
    threading.Event().wait()

runner = HookRunner(queue(hook, False))
for _ in range(AT_ONCE + 10):
    runner.tell([event])
begun.wait()
""",
}
SAID = {
    "asyncio": ["cancelled"] * AT_ONCE,
    "asyncio, cancellation ignored": ["ignored"] * AT_ONCE,
    "trio": ["cancelled"] * AT_ONCE,
    "asyncio, threads": ["goes on"],
    "trio, threads": ["goes on"],
}


@pytest.mark.parametrize("end", ENDS)
def test_the_end_of_the_loop_or_the_process_does_not_wait_for_hooks_and_is_silent(end: str) -> None:
    program = LAST_WORDS.format(program=ENDS[end])
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [*SAID.get(end, []), "ended"]


def test_a_keyboard_interrupt_that_lands_in_a_hook_on_asyncio_is_handed_on_to_the_process() -> None:
    program = LAST_WORDS.format(
        program="""
import asyncio
from awa_asyncio.hooks import HookRunner

async def hook(_):
    raise KeyboardInterrupt

async def main():
    HookRunner(queue(hook, True)).tell([event])
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)
        print("stopped in good order")

try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted")
"""
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == ["stopped in good order", "interrupted", "ended"]


async def test_a_hook_that_is_registered_while_a_worker_runs_hears_of_the_next_job(harness: Harness) -> None:
    ear = Ear(harness)
    harness.handler("job", nothing)
    harness.enqueue("job")
    async with harness.worker() as worker:
        await worker.drained()
        harness.hook("job", ear)
        [job_id] = harness.enqueue("job")
        await ear.hears(2)
    assert {event.job.id for event in ear.events} == {job_id}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("mode", ["asyncio"])
async def test_a_cancelled_hook_costs_what_waits_and_no_later_event(harness: Harness) -> None:
    """Somebody who cancels all tasks of the loop, as `asyncio.run` does at its end."""
    gate, begun, ear = Gate(), Signal(), Ear(harness)
    first: list[Any] = []

    def cancelled(event: AnyEvent) -> Generator[Gate, None, None]:
        if not first:
            first.append(asyncio.current_task())
            begun.give()
            yield gate

    harness.hook("job", cancelled)
    harness.hook("job", ear)
    harness.handler("job", nothing)
    harness.enqueue("job")
    async with harness.worker() as worker:
        await begun.given()
        first[0].cancel()
        await worker.drained()
        harness.enqueue("job")
        await ear.hears(3)
