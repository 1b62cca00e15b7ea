"""A worker in a process of its own, for the tests of signals: python -m tests.workers.program DRIVER SCENE.

Prints a line for everything a test waits for. SCENE: `patient` has a handler that ends when it sees that the worker stops
taking new jobs (a line on stdin); `stubborn` one that ends only when it is told to.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
from datetime import UTC, datetime
from typing import Any

from awa_proto.errors import ConfigurationError
from awa_proto.handler import JobBase
from awa_proto.store import NewJob
from awa_proto.store.memory import MemoryStore
from awa_proto.task import Task
from awa_proto.worker.config import QueueConfig, WorkerConfig
from awa_proto.worker.worker import WorkerMachine
from tests.workers.harness import MemoryDatabase


def say(text: str) -> None:
    """A line for the test."""
    print(text, flush=True)


def handle(job: JobBase[str, None]) -> None:
    """Run until stdin says so, or the job is told to end."""
    say("started")
    if sys.argv[2] == "patient":
        sys.stdin.readline()
    else:
        told = threading.Event()
        while not job.is_cancelled():
            told.wait(0.01)
        say("told")


def main() -> None:
    """Run a worker until signals stop it, then say how it stopped and which handlers are installed."""
    driver = sys.argv[1]
    store = MemoryStore(lambda: datetime.now(UTC), random.random)
    database = MemoryDatabase(store, blocking=driver == "sync")
    database.execute(store.insert([NewJob("wait", "default", "{}")]))
    config = WorkerConfig({"default": QueueConfig()}, grace=3600.0)
    tasks = {"wait": Task("wait", handle, str, is_async=False)}
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]

    def make(package: Any) -> Any:
        return package.Worker(
            WorkerMachine(store=store, tasks=tasks, config=config, random=random.random),
            database,
            channel="awa",
            new_job=lambda start: JobBase(start, None),
            capacity=50,
        )

    try:
        match driver:
            case "asyncio":
                import asyncio

                import awa_asyncio.running
                import awa_asyncio.worker

                async def on_asyncio() -> Any:
                    return await awa_asyncio.running.run(make(awa_asyncio.worker), config.grace)

                stopped = asyncio.run(on_asyncio())
            case "trio":
                import trio

                import awa_trio.running
                import awa_trio.worker

                async def on_trio() -> Any:
                    return await awa_trio.running.run(make(awa_trio.worker), config.grace)

                stopped = trio.run(on_trio)
            case _:
                import awa_sync.running
                import awa_sync.worker

                stopped = awa_sync.running.run(make(awa_sync.worker), config.grace)
    except ConfigurationError as error:
        say(f"refused: {error}")
        return
    after = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    say(f"stopped clean={stopped.clean} restored={before == after} state={store.rows[0].state}")


if __name__ == "__main__":
    if sys.argv[2] == "thread":
        other = threading.Thread(target=main)
        other.start()
        other.join()
    else:
        main()
