"""One face of the three workers for tests: handlers and hooks as scripts, a database that is the memory store.

A handler is a generator function over the job. It yields gates to wait on and returns what a handler returns; it runs as
a coroutine function or as a plain function, whichever the mode says. The blocking worker is driven from threads. A hook is
the same over the event.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import random
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeAlias, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread
from typing_extensions import override

import awa_sync.worker
from awa_proto.args import decoder
from awa_proto.errors import DatabaseError
from awa_proto.events import AnyEvent
from awa_proto.handler import JobBase
from awa_proto.hooks import Hook, HookQueue
from awa_proto.job import JobRow, JobState
from awa_proto.plan import Op
from awa_proto.store import NewJob
from awa_proto.store.memory import MemoryStore
from awa_proto.task import Task
from awa_proto.worker.config import Liveness, QueueConfig, WorkerConfig
from awa_proto.worker.events import Reason, StartJob, Stopped
from awa_proto.worker.worker import WorkerMachine

T = TypeVar("T")
Script: TypeAlias = "Callable[[Job], Generator[Gate, None, object]]"
HookScript: TypeAlias = "Callable[[AnyEvent], Generator[Gate, None, None]]"
MODES = ("asyncio", "asyncio-plain", "trio", "trio-plain", "sync")


class Gate:
    """What handlers wait on until the test opens it."""

    def __init__(self) -> None:
        self._async = anyio.Event()
        self._thread = threading.Event()

    def open(self) -> None:
        """Let everybody through. Called on the event loop."""
        self._async.set()
        self._thread.set()

    async def passed(self) -> None:
        """Wait on the event loop."""
        await self._async.wait()

    def pass_blocking(self) -> None:
        """Wait in a thread."""
        self._thread.wait()


class Signal:
    """What a test waits on until a handler gives it."""

    def __init__(self) -> None:
        self._given = threading.Event()

    def give(self) -> None:
        """From any thread."""
        self._given.set()

    async def given(self) -> None:
        """Wait on the event loop, without a thread that would outlive a cancelled test for long."""
        while not await anyio.to_thread.run_sync(self._given.wait, 1.0):
            pass


class Job(JobBase[str, None]):
    """A job that says when its flag is set."""

    def __init__(self, start: StartJob) -> None:
        super().__init__(start, None)
        self.told = Signal()

    @override
    def mark_cancelled(self, reason: Reason) -> None:
        """As the base, and said."""
        super().mark_cancelled(reason)
        self.told.give()


class MemoryDatabase:
    """Lanes whose Ops run on a memory store.

    broken: what every Op raises instead. stuck: lanes whose Ops do not end, unless cancelled or closed.
    """

    def __init__(self, store: MemoryStore, *, blocking: bool) -> None:
        self._store = store
        self._blocking = blocking
        self._lock = threading.Lock()
        self.broken: Exception | None = None
        self.stuck: set[str] = set()
        self.closed: list[str] = []

    def execute(self, op: Op[T]) -> T:
        """Run an Op: the memory store asks no database."""
        if self.broken is not None:
            raise self.broken
        with self._lock:
            try:
                step = next(op.start())
            except StopIteration as done:
                result: T = done.value
                return result
        raise AssertionError(f"the memory store asked for {step}")

    def lane(
        self,
        name: str,
        *,
        channel: str | None = None,
        notified: Callable[[str], object] | None = None,
        lost: Callable[[DatabaseError], object] | None = None,
        opened: Callable[[int], object] | None = None,
    ) -> Any:
        """A lane of the kind the driver needs."""
        return (_BlockingLane if self._blocking else _AsyncLane)(self, name)


class _AsyncLane:
    def __init__(self, database: MemoryDatabase, name: str) -> None:
        self._database, self._name = database, name

    async def run(self, op: Op[T]) -> T:
        await anyio.lowlevel.checkpoint()
        if self._name in self._database.stuck:
            await anyio.sleep_forever()
        return self._database.execute(op)

    async def close(self) -> None:
        self._database.closed.append(self._name)


class _BlockingLane:
    def __init__(self, database: MemoryDatabase, name: str) -> None:
        self._database, self._name = database, name
        self._is_closed = threading.Event()

    def run(self, op: Op[T]) -> T:
        if self._name in self._database.stuck:
            self._is_closed.wait()
            raise DatabaseError("the connection was closed", sent=False)
        return self._database.execute(op)

    def close(self) -> None:
        self._is_closed.set()
        if self._name not in self._database.closed:
            self._database.closed.append(self._name)


class RunningWorker:
    """What the three workers offer, awaited."""

    def __init__(self, worker: Any, *, blocking: bool) -> None:
        self.worker = worker
        self._blocking = blocking

    def stop(self, grace: float | None = None) -> None:
        """As the worker's."""
        self.worker.stop(grace)

    async def stopped(self) -> Stopped:
        """As the worker's."""
        stopped: Stopped = await self._call(self.worker.stopped)
        return stopped

    async def drained(self) -> None:
        """As the worker's."""
        await self._call(self.worker.drained)

    async def _call(self, method: Callable[[], Any]) -> Any:
        if self._blocking:
            return await anyio.to_thread.run_sync(method, abandon_on_cancel=True)
        return await method()


class Harness:
    """Makes workers of one mode over one store."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.is_sync = mode == "sync"
        self.is_async_handler = mode in {"asyncio", "trio"}
        self.store = MemoryStore(lambda: datetime.now(UTC), random.Random(1).random)
        self.database = MemoryDatabase(self.store, blocking=self.is_sync)
        self.tasks: dict[str, Task] = {}
        self.hooks: dict[str, tuple[Hook, ...]] = {}
        self._hook_runner: Any = None
        self.new_job: Callable[[StartJob], Any] = Job
        self.machine: Any = None  # instead of a WorkerMachine
        self.liveness = Liveness()

    def handler(self, kind: str, script: Script) -> None:
        """Register a handler."""
        run = partial(_run_async if self.is_async_handler else _run_plain, script)
        self.tasks[kind] = Task(kind, run, str, self.is_async_handler)

    def hook(self, kind: str, script: HookScript, args_type: type[Any] | None = None) -> None:
        """Register a hook, after those of the kind."""
        run = partial(_run_async if self.is_async_handler else _run_plain, script)
        decode = decoder(args_type) if args_type is not None else json.loads
        hook = Hook(kind, args_type, run, decode, self.is_async_handler, getattr(script, "__qualname__", "a hook"))
        self.hooks[kind] = (*self.hooks.get(kind, ()), hook)

    @property
    def hook_runner(self) -> Any:
        """What a client has, one for its workers and its calls."""
        if self._hook_runner is None:
            self._hook_runner = self._package("hooks").HookRunner(HookQueue(self.hooks))
        return self._hook_runner

    def _package(self, module: str) -> Any:
        return importlib.import_module(f"awa_{self.mode.partition('-')[0]}.{module}")

    def enqueue(self, kind: str, count: int = 1, **options: Any) -> list[int]:
        """Enqueue jobs in the queue "default"; returns their ids."""
        jobs = [NewJob(kind, "default", **{"args": f'"{number}"', **options}) for number in range(count)]
        return [row.id for row in self.database.execute(self.store.insert(jobs))]

    def job(self, id: int) -> JobRow:
        """A job as it is now."""
        row = self.database.execute(self.store.get_job(id))
        assert row is not None
        return row

    def states(self) -> dict[JobState, int]:
        """How many jobs are in each state."""
        found: dict[JobState, int] = {}
        for row in self.store.rows:
            found[row.state] = found.get(row.state, 0) + 1
        return found

    def make(self, slots: int = 10, grace: float = 60.0) -> Any:
        """A worker that was not entered yet."""
        config = WorkerConfig({"default": QueueConfig(max_workers=slots)}, grace=grace, liveness=self.liveness)
        machine = self.machine or WorkerMachine(
            store=self.store, tasks=self.tasks, config=config, random=random.Random(1).random, hooked=self.hooks
        )
        return self._package("worker").Worker(
            machine,
            self.database,
            channel="awa",
            new_job=self.new_job,
            capacity=slots,
            happened=self.hook_runner.tell,
            heart=lambda: _BlockingLane(self.database, "heartbeat"),
        )

    @asynccontextmanager
    async def worker(self, slots: int = 10, grace: float = 60.0) -> AsyncIterator[RunningWorker]:
        """A running worker."""
        async with self.entered(self.make(slots, grace)) as worker:
            yield worker

    @asynccontextmanager
    async def entered(self, worker: Any) -> AsyncIterator[RunningWorker]:
        """A worker that was made, running."""
        if self.is_sync:
            async with _in_threads(worker):
                yield RunningWorker(worker, blocking=True)
        else:
            async with worker:
                yield RunningWorker(worker, blocking=False)


@asynccontextmanager
async def _in_threads(worker: awa_sync.worker.Worker) -> AsyncGenerator[None]:
    """`with worker:` from an event loop; a cancellation is passed on as what is no Exception."""
    await anyio.to_thread.run_sync(worker.__enter__)
    error: BaseException | None = None
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(lambda: worker.__exit__(type(error) if error else None, error, None))


async def _run_async(script: Callable[[T], Generator[Gate, None, object]], given: T) -> object:
    with contextlib.closing(script(given)) as steps:
        while True:
            try:
                gate = next(steps)
            except StopIteration as done:
                return done.value
            await gate.passed()


def _run_plain(script: Callable[[T], Generator[Gate, None, object]], given: T) -> object:
    with contextlib.closing(script(given)) as steps:
        while True:
            try:
                gate = next(steps)
            except StopIteration as done:
                return done.value
            gate.pass_blocking()
