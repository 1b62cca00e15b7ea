"""awa-pg, the reference system: a Rust runtime whose handlers are Python coroutines.

Queue storage is installed and active from the start. Settings are its defaults; batches go through `enqueue_many_copy`,
its fast way in, so "many" and "copy" are the same call.
"""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import awa  # type: ignore[import-not-found]  # in the environment of this peer

from benchmarks.stage import Stage
from benchmarks.systems import on_asyncio
from benchmarks.systems.adapter import QUEUE, Produce, Work


def _client(dsn: str, connections: int) -> Any:
    """Connect; sqlx wants a host name in the address even where the parameter `host` says which socket it is."""
    return awa.AsyncClient(dsn.replace("@/", "@localhost/"), max_connections=connections)


@dataclass
class Bench:
    """The arguments of a job."""

    job: int


def install(dsn: str) -> None:
    async def run() -> None:
        async with _client(dsn, 2) as client:
            await client.migrate()
            await client.install_queue_storage()
            status = json.loads(await client.storage_status())
            if status["active_engine"] != "queue_storage":
                raise RuntimeError(f"queue storage is not active: {status}")

    asyncio.run(run())


def produce(order: Produce, stage: Stage) -> None:
    if not order.wake:
        raise NotImplementedError("awa-pg has no enqueue that wakes nobody")

    async def run() -> None:
        async with _client(order.dsn, order.producers) as client:

            async def single(jobs: range) -> None:
                await client.insert(Bench(jobs[0]), queue=QUEUE)

            async def copy(jobs: range) -> None:
                await client.enqueue_many_copy([Bench(job) for job in jobs], queue=QUEUE)

            insert = single if order.way == "single" else copy
            await on_asyncio.produce(order, stage, [insert] * order.producers)

    asyncio.run(run())


def work(order: Work, stage: Stage) -> None:
    async def run() -> None:
        handle = on_asyncio.handler(order, stage)

        async def bench(job: Any) -> None:
            await handle(job.args.job)

        async with _client(order.dsn, min(order.concurrency + 4, 20)) as client:
            client.task(Bench, queue=QUEUE)(bench)
            stage.ready()
            stop = on_asyncio.stopping(stage)
            await client.start([(QUEUE, order.concurrency)])
            await stop.wait()
            await client.shutdown(timeout_ms=10_000)
            stage.finish()

    asyncio.run(run())
