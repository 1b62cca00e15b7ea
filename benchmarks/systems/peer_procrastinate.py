"""Procrastinate, with its psycopg connector and pool.

A worker takes and finishes one job a statement, so what helps is a pool that lets the jobs of one worker finish
beside each other. Its own command line runs on the plain asyncio loop, so this does.
"""

import asyncio
from typing import Any

from procrastinate import App, PsycopgConnector  # type: ignore[import-not-found]  # in the environment of this peer

from benchmarks.stage import Stage
from benchmarks.systems import on_asyncio
from benchmarks.systems.adapter import QUEUE, Produce, Work

_POOL = 10  # connections of a worker; more make it slower on two cores


def _app(dsn: str, connections: int) -> Any:
    return App(connector=PsycopgConnector(conninfo=dsn, min_size=connections, max_size=connections))


def install(dsn: str) -> None:
    async def run() -> None:
        async with _app(dsn, 1).open_async() as app:
            await app.schema_manager.apply_schema_async()

    asyncio.run(run())


async def _unused(job: int) -> None:
    """The task as a producer knows it: by its name."""


def produce(order: Produce, stage: Stage) -> None:
    if order.way == "copy" or not order.wake:
        raise NotImplementedError("procrastinate has neither COPY nor an enqueue that wakes nobody")

    async def run() -> None:
        app = _app(order.dsn, order.producers)
        task = app.task(name=QUEUE, queue=QUEUE)(_unused)

        async def single(jobs: range) -> None:
            await task.defer_async(job=jobs[0])

        async def many(jobs: range) -> None:
            await task.batch_defer_async(*({"job": job} for job in jobs))

        async with app.open_async():
            insert = single if order.way == "single" else many
            await on_asyncio.produce(order, stage, [insert] * order.producers)

    asyncio.run(run())


def work(order: Work, stage: Stage) -> None:
    async def run() -> None:
        handle = on_asyncio.handler(order, stage)
        app = _app(order.dsn, min(order.concurrency + 1, _POOL))

        async def bench(job: int) -> None:
            await handle(job)

        app.task(name=QUEUE, queue=QUEUE)(bench)
        async with app.open_async():
            stage.ready()
            stop = on_asyncio.stopping(stage)
            worker = asyncio.create_task(
                app.run_worker_async(queues=[QUEUE], concurrency=order.concurrency, install_signal_handlers=False)
            )
            await stop.wait()
            worker.cancel()  # its way to ask for a graceful stop
            await asyncio.wait([worker])
            stage.finish()

    asyncio.run(run())
