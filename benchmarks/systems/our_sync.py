"""awa_sync: handlers are threads, and so are producers."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import assert_never

import awa_sync as awa
from benchmarks.stage import Stage
from benchmarks.systems.adapter import QUEUE, Insert, Produce, Sleep, Work, orders
from benchmarks.systems.our_features import After, Features


@dataclass
class Bench:
    """The arguments of a job."""

    job: int


def install(dsn: str) -> None:
    with awa.Client(dsn) as client:
        client.migrate()


def produce(order: Produce, stage: Stage) -> None:
    board = stage.board

    def producer(client: awa.Client, number: int) -> None:
        for step in orders(order, number, board):
            match step:
                case Sleep(seconds):
                    time.sleep(seconds)
                case Insert(jobs):
                    called = time.monotonic_ns()
                    insert(client, jobs)
                    board.committed[jobs[0]] = time.monotonic_ns()
                    board.called[jobs[0]] = called
                case _:
                    assert_never(step)

    def insert(client: awa.Client, jobs: range) -> None:
        match order.way:
            case "single":
                client.insert(Bench(jobs[0]), queue=QUEUE, notify=order.wake)
            case "many":
                client.insert_many([Bench(job) for job in jobs], queue=QUEUE, notify=order.wake)
            case "copy":
                client.enqueue_many([Bench(job) for job in jobs], queue=QUEUE, notify=order.wake)

    with awa.Client(order.dsn, max_size=order.producers) as client, ThreadPoolExecutor(order.producers) as threads:
        client.get_job(1)  # connects, as the peers' adapters do before they are ready
        stage.ready()
        for done in [threads.submit(producer, client, number) for number in range(order.producers)]:
            done.result()
        stage.finish()


def work(order: Work, stage: Stage) -> None:
    tally = stage.tally(order.worker, order.expect)
    stop = threading.Event()

    def count(job: awa.Job[Bench]) -> None:
        tally(job.args.job)

    def sleep(job: awa.Job[Bench]) -> None:
        tally(job.args.job)
        time.sleep(order.seconds)

    with awa.Client(order.dsn) as client:
        features = Features(order.feature, client, Bench, is_async=False)

        def says(job: awa.Job[Bench]) -> None:
            features.says(job)
            tally(job.args.job)

        def inserts(job: awa.Job[Bench]) -> None:
            client.insert(After(job.args.job))
            tally(job.args.job)

        handler = sleep if order.load == "sleep" else count
        client.task(Bench, queue=QUEUE)(inserts if features.inserts else says if features.speaks else handler)
        stage.ready()
        stage.on_stop(stop.set)
        with client.worker({QUEUE: order.concurrency}):
            stop.wait()
        stopped = time.monotonic()
        while not features.has_heard(order.expect or 0, stopped):
            time.sleep(0.001)
        stage.finish()
