"""One scenario for all packages: a client of each package with each of its database libraries, its calls awaited."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, TypeVar

import trio

import awa_asyncio
import awa_asyncio.testing
import awa_sync
import awa_sync.testing
import awa_trio
import awa_trio.testing

F = TypeVar("F", bound=Callable[..., Any])
Scenario = Callable[[Any], Coroutine[Any, Any, None]]


class Awaited:
    """A blocking object whose calls can be awaited, so that one scenario serves all packages."""

    def __init__(self, blocking: Any) -> None:
        self.blocking = blocking

    def __getattr__(self, name: str) -> Any:
        member = getattr(self.blocking, name)
        if name in {"transaction", "worker", "rolled_back", "within"}:
            return lambda *args, **kwargs: Awaited(member(*args, **kwargs))
        if name in {"task", "registry", "tally"} or name.startswith("on_"):
            return member

        async def call(*args: Any, **kwargs: Any) -> Any:
            return member(*args, **kwargs)

        return call

    async def __aenter__(self) -> "Awaited":  # noqa: PYI034  what the blocking one gives, not itself
        return Awaited(self.blocking.__enter__())

    async def __aexit__(self, *exception: object) -> Any:
        return self.blocking.__exit__(*exception)


def _asyncio(driver: Any) -> Callable[..., None]:
    def run(dsn: str, scenario: Scenario, **options: Any) -> None:
        async def main() -> None:
            async with awa_asyncio.Client(dsn, driver=driver, **options) as client:
                await client.migrate()
                await scenario(client)

        asyncio.run(main())

    return run


def _trio(dsn: str, scenario: Scenario, **options: Any) -> None:
    async def main() -> None:
        async with awa_trio.Client(dsn, **options) as client:
            await client.migrate()
            await scenario(client)

    trio.run(main)


def _sync(dsn: str, scenario: Scenario, **options: Any) -> None:
    with awa_sync.Client(dsn, **options) as client:
        client.migrate()
        steps = scenario(Awaited(client)).__await__()
        assert next(steps, "the end") == "the end"  # nothing is ever waited for


FLAVOURS: dict[str, Callable[..., None]] = {
    "asyncio-asyncpg": _asyncio("asyncpg"),
    "asyncio-psycopg": _asyncio("psycopg"),
    "trio-psycopg": _trio,
    "sync-psycopg": _sync,
}
"""Each runs a scenario with a client of its own on a database: `run(dsn, scenario, **options of the client)`."""


class App:
    """An application under test: a client of one flavour, and handlers written once as plain functions.

    is_async: whether handlers are registered as coroutine functions, which gives them a Job; else they get a BlockingJob.
    """

    def __init__(self, client: Any, *, is_async: bool) -> None:
        self.client = client
        self.is_async = is_async

    def __getattr__(self, name: str) -> Callable[..., Callable[[F], F]]:
        """A decorator of the client, such as `on_completed_enqueue`."""
        if not name.startswith("on_"):
            raise AttributeError(name)
        found: Callable[..., Callable[[F], F]] = getattr(self.client, name)
        return found

    def task(self, *args: Any, **options: Any) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
        """Register a plain function as handler; on async packages as a coroutine function too."""

        def register(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
            self.client.task(*args, **options)(self.handler(function))
            return function

        return register

    def handler(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """A handler for this flavour. A generator function yields the calls of its job's client, and is sent their results."""
        if not self.is_async:
            return _blocking(function) if inspect.isgeneratorfunction(function) else function
        if inspect.iscoroutinefunction(function):
            return function

        async def awaited(job: Any) -> Any:
            if not inspect.isgeneratorfunction(function):
                return function(job)
            steps = function(job)
            step = partial(steps.send, None)
            while True:
                try:
                    call = step()
                except StopIteration as done:
                    return done.value
                try:
                    step = partial(steps.send, await call)
                except Exception as error:  # noqa: BLE001  it is for the handler to see, as in blocking code
                    step = partial(steps.throw, error)

        return awaited

    @property
    def test(self) -> Any:
        """The AwaTestClient of the package, its calls awaited."""
        if isinstance(self.client, Awaited):
            return Awaited(awa_sync.testing.AwaTestClient(self.client.blocking))
        packages: list[Any] = [awa_asyncio, awa_trio]
        (package,) = [each for each in packages if isinstance(self.client, each.Client)]
        return package.testing.AwaTestClient(self.client)

    async def work(self, queues: Iterable[str] = ("default",), **options: Any) -> Any:
        """Work until there is nothing left to do."""
        async with self.client.worker(dict.fromkeys(queues, 10), **options) as worker:
            await worker.drained()

    async def run(self, *jobs: Any, **options: Any) -> list[Any]:
        """Enqueue, work until there is nothing left to do, and return the rows as they are then."""
        rows = [await self.client.insert(job, **options) for job in jobs]
        await self.work({row.queue for row in rows} | {"default"})
        return [await self.client.get_job(row.id) for row in rows]


def _blocking(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def handler(job: Any) -> Any:
        steps, result = function(job), None
        while True:
            try:
                result = steps.send(result)
            except StopIteration as done:
                return done.value

    return handler
