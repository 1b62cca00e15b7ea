"""awa_trio."""

import time
from dataclasses import dataclass
from typing import assert_never

import trio

import awa_trio as awa
from benchmarks.stage import Stage
from benchmarks.systems.adapter import QUEUE, Insert, Produce, Sleep, Work, orders
from benchmarks.systems.our_features import After, Features


@dataclass
class Bench:
    """The arguments of a job."""

    job: int


def install(dsn: str) -> None:
    async def run() -> None:
        async with awa.Client(dsn) as client:
            await client.migrate()

    trio.run(run)


def produce(order: Produce, stage: Stage) -> None:
    board = stage.board

    async def producer(client: awa.Client, number: int) -> None:
        for step in orders(order, number, board):
            match step:
                case Sleep(seconds):
                    await trio.sleep(seconds)
                case Insert(jobs):
                    called = time.monotonic_ns()
                    await insert(client, jobs)
                    board.committed[jobs[0]] = time.monotonic_ns()
                    board.called[jobs[0]] = called
                case _:
                    assert_never(step)

    async def insert(client: awa.Client, jobs: range) -> None:
        match order.way:
            case "single":
                await client.insert(Bench(jobs[0]), queue=QUEUE, notify=order.wake)
            case "many":
                await client.insert_many([Bench(job) for job in jobs], queue=QUEUE, notify=order.wake)
            case "copy":
                await client.enqueue_many([Bench(job) for job in jobs], queue=QUEUE, notify=order.wake)

    async def run() -> None:
        async with awa.Client(order.dsn, max_size=order.producers) as client:
            await client.get_job(1)  # connects, as the peers' adapters do before they are ready
            stage.ready()
            async with trio.open_nursery() as nursery:
                for number in range(order.producers):
                    nursery.start_soon(producer, client, number)
            stage.finish()

    trio.run(run)


def work(order: Work, stage: Stage) -> None:
    async def run() -> None:
        tally = stage.tally(order.worker, order.expect)
        stop = trio.Event()
        token = trio.lowlevel.current_trio_token()

        async def count(job: awa.Job[Bench]) -> None:
            tally(job.args.job)

        async def sleep(job: awa.Job[Bench]) -> None:
            tally(job.args.job)
            await trio.sleep(order.seconds)

        async with awa.Client(order.dsn) as client:
            features = Features(order.feature, client, Bench, is_async=True)

            async def says(job: awa.Job[Bench]) -> None:
                features.says(job)
                tally(job.args.job)

            async def inserts(job: awa.Job[Bench]) -> None:
                await client.insert(After(job.args.job))
                tally(job.args.job)

            handler = sleep if order.load == "sleep" else count
            client.task(Bench, queue=QUEUE)(inserts if features.inserts else says if features.speaks else handler)
            stage.ready()
            stage.on_stop(lambda: token.run_sync_soon(stop.set))
            async with client.worker({QUEUE: order.concurrency}):
                await stop.wait()
            stopped = time.monotonic()
            while not features.has_heard(order.expect or 0, stopped):  # noqa: ASYNC110  a counter of hooks
                await trio.sleep(0.001)
            stage.finish()

    trio.run(run)
