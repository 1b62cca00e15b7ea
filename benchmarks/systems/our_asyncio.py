"""awa_asyncio, over whichever of its drivers."""

import asyncio
import time
from dataclasses import dataclass
from typing import Literal

import awa_asyncio as awa
from benchmarks.stage import Stage
from benchmarks.systems import on_asyncio
from benchmarks.systems.adapter import QUEUE, Produce, Work
from benchmarks.systems.our_features import After, Features

Driver = Literal["asyncpg", "psycopg"]


@dataclass
class Bench:
    """The arguments of a job."""

    job: int


def install(driver: Driver, dsn: str) -> None:
    async def run() -> None:
        async with awa.Client(dsn, driver=driver) as client:
            await client.migrate()

    asyncio.run(run())


def produce(driver: Driver, order: Produce, stage: Stage) -> None:
    async def run() -> None:
        async with awa.Client(order.dsn, driver=driver, max_size=order.producers) as client:

            async def single(jobs: range) -> None:
                await client.insert(Bench(jobs[0]), queue=QUEUE, notify=order.wake)

            async def many(jobs: range) -> None:
                await client.insert_many([Bench(job) for job in jobs], queue=QUEUE, notify=order.wake)

            async def copy(jobs: range) -> None:
                await client.enqueue_many([Bench(job) for job in jobs], queue=QUEUE, notify=order.wake)

            await client.get_job(1)  # connects, as the peers' adapters do before they are ready
            insert = {"single": single, "many": many, "copy": copy}[order.way]
            await on_asyncio.produce(order, stage, [insert] * order.producers)

    asyncio.run(run())


def work(driver: Driver, order: Work, stage: Stage) -> None:
    async def run() -> None:
        handle = on_asyncio.handler(order, stage)

        async with awa.Client(order.dsn, driver=driver) as client:
            features = Features(order.feature, client, Bench, is_async=True)

            async def bench(job: awa.Job[Bench]) -> None:
                await handle(job.args.job)

            async def says(job: awa.Job[Bench]) -> None:
                features.says(job)
                await handle(job.args.job)

            async def inserts(job: awa.Job[Bench]) -> None:
                await client.insert(After(job.args.job))
                await handle(job.args.job)

            client.task(Bench, queue=QUEUE)(inserts if features.inserts else says if features.speaks else bench)
            stage.ready()
            stop = on_asyncio.stopping(stage)
            async with client.worker({QUEUE: order.concurrency}):
                await stop.wait()
            stopped = time.monotonic()
            while not features.has_heard(order.expect or 0, stopped):  # noqa: ASYNC110  a counter of hooks
                await asyncio.sleep(0.001)
            stage.finish()

    asyncio.run(run())
