"""PgQueuer, as its own benchmark drives it: asyncpg connections, batches, uvloop.

Its batch size is the knob for speed. For handlers that only count: a batch of the concurrency asked for (times `wide`),
and no cap on concurrent tasks, which is its default and its fastest (a cap makes its dequeue statement do more). For
handlers that take time: the cap, and batches of half of it, the most it allows. A worker of concurrency 1 does not exist
then: it is one job a batch, a cap of 2, and handlers behind a lock.
"""

import asyncio
from contextlib import AsyncExitStack, nullcontext
from datetime import timedelta
from typing import Any

import asyncpg
import uvloop  # type: ignore[import-not-found]  # in the environment of this peer
from pgqueuer import PgQueuer  # type: ignore[import-not-found]  # as uvloop
from pgqueuer.db import AsyncpgDriver  # type: ignore[import-not-found]  # as uvloop
from pgqueuer.queries import Queries  # type: ignore[import-not-found]  # as uvloop

from benchmarks.stage import Stage
from benchmarks.systems import on_asyncio
from benchmarks.systems.adapter import QUEUE, Produce, Work


def install(dsn: str) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(dsn)
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    uvloop.run(run())


def produce(order: Produce, stage: Stage) -> None:
    if order.way == "copy" or not order.wake:
        raise NotImplementedError("PgQueuer has neither COPY nor an enqueue that wakes nobody")

    def inserter(queries: Any) -> on_asyncio.Inserter:
        async def single(jobs: range) -> None:
            await queries.enqueue(QUEUE, b"%d" % jobs[0])

        async def many(jobs: range) -> None:
            await queries.enqueue([QUEUE] * len(jobs), [b"%d" % job for job in jobs], [0] * len(jobs))

        return single if order.way == "single" else many

    async def run() -> None:
        connections = [await asyncpg.connect(order.dsn) for _ in range(order.producers)]
        await on_asyncio.produce(order, stage, [inserter(Queries(AsyncpgDriver(each))) for each in connections])

    uvloop.run(run())


def work(order: Work, stage: Stage, *, wide: int = 1) -> None:
    handle = on_asyncio.handler(order, stage)
    batch, cap = order.concurrency * wide, None
    if order.load == "sleep" or order.concurrency == 1:
        batch = max(order.concurrency // 2, 1)
        cap = max(order.concurrency, 2 * batch)

    async def run() -> None:
        one_at_a_time = asyncio.Lock() if order.concurrency == 1 else nullcontext()

        async def bench(job: Any) -> None:
            async with one_at_a_time:
                await handle(int(job.payload))

        async with AsyncExitStack() as stack:
            connection = await asyncpg.connect(order.dsn)
            stack.push_async_callback(connection.close)
            queuer = PgQueuer(AsyncpgDriver(connection))
            queuer.entrypoint(QUEUE)(bench)
            stage.ready()
            stop = on_asyncio.stopping(stage)
            running = asyncio.create_task(
                queuer.run(batch_size=batch, max_concurrent_tasks=cap, dequeue_timeout=timedelta(seconds=30))
            )
            await stop.wait()
            queuer.shutdown.set()
            await running
            stage.finish()

    uvloop.run(run())
