"""What a handler notices of its deadline, on the three drivers, over a store in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import anyio
import pytest

from awa_proto.job import JobState
from awa_proto.task import Task
from awa_proto.worker.config import QueueConfig, WorkerConfig
from awa_proto.worker.events import Reason
from awa_proto.worker.worker import WorkerMachine
from tests.workers.harness import MODES, Gate, Harness, Job, Signal

SOON = '{"deadline":0.05}'
EXCEEDED = "hard deadline exceeded"


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def anyio_backend(mode: str) -> str:
    return "trio" if mode.startswith("trio") else "asyncio"


@pytest.fixture
def harness(mode: str, anyio_backend: str) -> Harness:
    return Harness(mode)


async def until_in(harness: Harness, id: int, state: JobState) -> None:
    """Return when a job is in a state."""
    while harness.job(id).state is not state:  # noqa: ASYNC110  the store has no event to wait for
        await anyio.sleep(0.005)


@pytest.mark.parametrize("attempts", [1, 25], ids=["last attempt", "attempts left"])
async def test_at_its_deadline_an_attempt_fails_and_its_handler_is_cancelled_or_sees_the_flag(
    harness: Harness, attempts: int
) -> None:
    gate, started, ended, jobs = Gate(), Signal(), Signal(), list[Job]()

    def slow(job: Job) -> Generator[Gate, None, None]:
        jobs.append(job)
        started.give()
        try:
            yield gate
        finally:
            ended.give()

    harness.handler("slow", slow)
    (id,) = harness.enqueue("slow", extra=SOON, max_attempts=attempts)
    async with harness.worker() as worker:
        await started.given()
        await jobs[0].told.given()
        if not harness.is_async_handler:
            gate.open()  # a thread cannot be cancelled: it has to look at the flag, or to end by itself
        await ended.given()
        await until_in(harness, id, JobState.FAILED if attempts == 1 else JobState.RETRYABLE)
        await worker.drained()
    assert harness.job(id).errors[-1]["error"] == EXCEEDED
    assert jobs[0].is_cancelled()
    assert jobs[0].cancel_reason is Reason.DEADLINE


async def test_the_deadline_of_a_queue_counts_for_jobs_without_one_of_their_own(harness: Harness) -> None:
    gate = Gate()

    def slow(job: Job) -> Generator[Gate, None, None]:
        yield gate

    harness.handler("slow", slow)
    harness.machine = WorkerMachine(
        store=harness.store,
        tasks=harness.tasks,
        config=WorkerConfig({"default": QueueConfig(2, deadline=0.05)}),
        random=lambda: 0.5,
    )
    short, long = harness.enqueue("slow", max_attempts=1), harness.enqueue("slow", extra='{"deadline":1000}')
    async with harness.worker(slots=2) as worker:
        await until_in(harness, short[0], JobState.FAILED)
        assert harness.job(*long).state is JobState.RUNNING
        gate.open()
        await worker.drained()
    assert harness.job(*short).errors[-1]["error"] == EXCEEDED
    assert harness.job(*long).state is JobState.COMPLETED


async def test_a_handler_that_ignores_its_cancellation_keeps_its_slot_and_its_result_is_none(harness: Harness) -> None:
    if not harness.is_async_handler:
        pytest.skip("a thread cannot be cancelled")
    gate, cancelled = Gate(), anyio.Event()
    ran: list[int] = []

    async def stubborn(job: Any) -> None:
        ran.append(job.id)
        with anyio.CancelScope(shield=True):  # trio
            while True:
                try:
                    await gate.passed()
                except asyncio.CancelledError:
                    cancelled.set()
                else:
                    return

    harness.tasks["stubborn"] = Task("stubborn", stubborn, str, is_async=True)
    (id,) = harness.enqueue("stubborn", extra=SOON, max_attempts=1)
    (next_one,) = harness.enqueue("stubborn")
    async with harness.worker(slots=1) as worker:
        await until_in(harness, id, JobState.FAILED)
        if harness.mode == "asyncio":
            await cancelled.wait()
        assert ran == [id], "its slot is not free"
        gate.open()
        await worker.drained()
    assert ran == [id, next_one]
    assert harness.job(id).errors[-1]["error"] == EXCEEDED
    assert harness.job(next_one).state is JobState.COMPLETED
