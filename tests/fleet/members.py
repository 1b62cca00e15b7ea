"""Members of a fleet: a client of any package behind one blocking face, on an event loop of its own where it needs one.

A handler is a plain function over the job that may return a generator; what that yields are gates to wait on. On the
async packages it runs as a coroutine function, or in a thread when it is registered as `plain`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, Self, TypeVar

import anyio.from_thread
import anyio.to_thread
import pytest

import awa_asyncio
import awa_sync
import awa_trio
from awa_proto.worker.config import QueueConfig
from awa_proto.worker.events import Stopped

T = TypeVar("T")

FLAVOURS = ("asyncio-asyncpg", "asyncio-psycopg", "trio", "sync")
PATIENCE = 60.0
"""Seconds after which a test that waits for something gives up: a bound on a hang, not a measurement."""


class Gate:
    """What handlers wait on, and tests too; any thread or event loop."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def open(self) -> None:
        """Let everybody through, from now on."""
        self._event.set()

    def passed(self) -> None:
        """Wait, in a thread."""
        if not self._event.wait(PATIENCE):
            pytest.fail("what the test waits for did not happen")

    async def passed_async(self) -> None:
        """Wait, on an event loop; a cancellation leaves at once."""
        await anyio.to_thread.run_sync(self.passed, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))


Script = Callable[[Any], "Generator[Gate, None, object] | object"]


class Member:
    """A client of one package; its methods are called with `member.call("insert", ...)`, from any thread."""

    def __init__(self, flavour: str, dsn: str | Callable[[], str], **options: Any) -> None:
        self.flavour = flavour
        self.is_sync = flavour == "sync"
        backend, _, driver = flavour.partition("-")
        package: Any = {"asyncio": awa_asyncio, "trio": awa_trio, "sync": awa_sync}[backend]
        self._backend = backend
        self.client: Any = package.Client(dsn, **({"driver": driver} if driver else {}), **options)
        self.portal: anyio.from_thread.BlockingPortal | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if not self.is_sync:
            self.portal = self._stack.enter_context(anyio.from_thread.start_blocking_portal(self._backend))
        self._stack.callback(self.run, self.client.close)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call it, on the member's event loop, and wait for what it returns."""
        called = partial(function, *args, **kwargs)
        return called() if self.portal is None else self.portal.call(called)

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the client."""
        return self.run(getattr(self.client, method), *args, **kwargs)

    def enter(self, manager: Any) -> AbstractContextManager[Any]:
        """`with`, or `async with` on the member's event loop."""
        found: AbstractContextManager[Any] = (
            manager if self.portal is None else self.portal.wrap_async_context_manager(manager)
        )
        return found

    @contextmanager
    def transaction(self) -> Iterator[Callable[..., Any]]:
        """A transaction of the client; calls its methods by name."""
        with self.enter(self.run_here("transaction")) as tx:
            yield lambda method, *args, **kwargs: self.run(getattr(tx, method), *args, **kwargs)

    def run_here(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method that is plain in every package, where its event loop is running."""
        return self.run(getattr(self.client, method), *args, **kwargs)

    def handle(self, kind: str, script: Script, *, plain: bool = False) -> None:
        """Register a handler."""

        def in_thread(job: Any) -> object:
            ran = script(job)
            return _drive(ran) if isinstance(ran, Generator) else ran

        async def on_loop(job: Any) -> object:
            ran = script(job)
            return await _drive_async(ran) if isinstance(ran, Generator) else ran

        self.client.task(kind=kind)(in_thread if plain or self.is_sync else on_loop)

    @contextmanager
    def worker(self, queues: Mapping[str, int | QueueConfig], **options: Any) -> Iterator[Crew]:
        """A running worker of this client; leaving stops it."""
        worker = self.run_here("worker", queues, **options)
        with self.enter(worker):
            yield Crew(self, worker)


class Crew:
    """A worker that runs, behind a blocking face."""

    def __init__(self, member: Member, worker: Any) -> None:
        self.member = member
        self.worker = worker

    @property
    def machine(self) -> Any:
        """Its machine, to look at."""
        return self.worker._machine

    def stop(self, grace: float | None = None) -> None:
        """As the worker's."""
        self.member.run(self.worker.stop, grace)

    def stopped(self) -> Stopped:
        """As the worker's."""
        found: Stopped = self.member.run(self.worker.stopped)
        return found

    def drained(self) -> None:
        """As the worker's."""
        self.member.run(self.worker.drained)


def _drive(ran: Generator[Gate, None, object]) -> object:
    try:
        while True:
            next(ran).passed()
    except StopIteration as done:
        return done.value
    finally:
        ran.close()


async def _drive_async(ran: Generator[Gate, None, object]) -> object:
    try:
        while True:
            await next(ran).passed_async()
    except StopIteration as done:
        return done.value
    finally:
        ran.close()
