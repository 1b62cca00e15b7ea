"""The demo on each driver: the same steps, awaited or not. Nothing is imported of a driver that is not asked for."""

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from awa_proto.job import JobRow
from awa_sync.cli.demo.scenario import Errand, Errands, Log, Undone

if TYPE_CHECKING:
    import awa_asyncio
    import awa_trio

Progress: TypeAlias = Callable[[int], None]
Outcome: TypeAlias = "tuple[list[JobRow], float]"
"""The jobs as they are in the database in the end, and the seconds the worker took."""

_SLOTS = 50
_TICK = 0.05
_AT_MOST = 60.0
"""Seconds after which a driver is given up; the account then shows what is missing."""


def on_asyncpg(dsn: str, schema: str, errands: Errands, log: Log, progress: Progress) -> Outcome:
    """Asyncio on asyncpg."""
    import awa_asyncio

    return _on_asyncio(awa_asyncio.Client(dsn, schema=schema, driver="asyncpg"), errands, log, progress)


def on_async_psycopg(dsn: str, schema: str, errands: Errands, log: Log, progress: Progress) -> Outcome:
    """Asyncio on psycopg."""
    import awa_asyncio

    return _on_asyncio(awa_asyncio.Client(dsn, schema=schema, driver="psycopg"), errands, log, progress)


def _on_asyncio(client: "awa_asyncio.Client", errands: Errands, log: Log, progress: Progress) -> Outcome:
    import asyncio

    import awa_asyncio

    @client.task(Errand)
    async def run(job: awa_asyncio.Job[Errand]) -> Any:
        return log.handle(job.args)

    return asyncio.run(_work(client, asyncio.sleep, errands, log, progress))


def on_trio(dsn: str, schema: str, errands: Errands, log: Log, progress: Progress) -> Outcome:
    """Trio on psycopg."""
    import trio

    import awa_trio

    client = awa_trio.Client(dsn, schema=schema)

    @client.task(Errand)
    async def run(job: awa_trio.Job[Errand]) -> Any:
        return log.handle(job.args)

    return trio.run(_work, client, trio.sleep, errands, log, progress)


async def _work(
    client: "awa_asyncio.Client | awa_trio.Client",
    sleep: Callable[[float], Awaitable[object]],
    errands: Errands,
    log: Log,
    progress: Progress,
) -> Outcome:
    async with client:
        await client.migrate()
        await client.enqueue_many(errands.copied)
        async with client.transaction() as tx:
            await tx.insert_many(errands.immediate)
        await client.insert_many(errands.later)
        for row in await client.insert_many(errands.withdrawn):
            await client.cancel(row.id)
        with suppress(Undone):
            async with client.transaction() as tx:
                await tx.insert_many(errands.rolled_back)
                raise Undone
        started = time.monotonic()
        async with client.worker({errands.queue: _SLOTS}) as worker:
            while not log.is_complete and time.monotonic() - started < _AT_MOST:
                await sleep(_TICK)
                progress(len(log.runs))
            await worker.drained()
            progress(len(log.runs))
        seconds = time.monotonic() - started
        page = await client.list_jobs(queue=errands.queue, limit=1000)
        rows = list(page)
        while page.next is not None:
            page = await client.list_jobs(queue=errands.queue, limit=1000, before_id=page.next)
            rows += page
        return rows, seconds


def on_sync(dsn: str, schema: str, errands: Errands, log: Log, progress: Progress) -> Outcome:
    """Threads on psycopg."""
    import awa_sync

    client = awa_sync.Client(dsn, schema=schema)

    @client.task(Errand)
    def run(job: awa_sync.Job[Errand]) -> Any:
        return log.handle(job.args)

    with client:
        client.migrate()
        client.enqueue_many(errands.copied)
        with client.transaction() as tx:
            tx.insert_many(errands.immediate)
        client.insert_many(errands.later)
        for row in client.insert_many(errands.withdrawn):
            client.cancel(row.id)
        with suppress(Undone), client.transaction() as tx:
            tx.insert_many(errands.rolled_back)
            raise Undone
        started = time.monotonic()
        with client.worker({errands.queue: _SLOTS}) as worker:
            while not log.is_complete and time.monotonic() - started < _AT_MOST:
                time.sleep(_TICK)
                progress(len(log.runs))
            worker.drained()
            progress(len(log.runs))
        seconds = time.monotonic() - started
        page = client.list_jobs(queue=errands.queue, limit=1000)
        rows = list(page)
        while page.next is not None:
            page = client.list_jobs(queue=errands.queue, limit=1000, before_id=page.next)
            rows += page
        return rows, seconds


DRIVERS: Final[dict[str, tuple[tuple[str, ...], Callable[[str, str, Errands, Log, Progress], Outcome]]]] = {
    "asyncio, asyncpg": (("asyncpg",), on_asyncpg),
    "asyncio, psycopg": (("psycopg", "psycopg_pool"), on_async_psycopg),
    "trio": (("trio", "psycopg"), on_trio),
    "sync": (("psycopg", "psycopg_pool"), on_sync),
}
"""What each needs to be installed, and its function."""
