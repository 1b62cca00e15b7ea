"""What the adapters of all asyncio systems share: producers as tasks, and an event that says stop.

Standard library only: it runs in the environments of the peers.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import assert_never

from benchmarks.stage import Stage
from benchmarks.systems.adapter import Insert, Produce, Sleep, Work, orders

Inserter = Callable[[range], Awaitable[object]]
Handler = Callable[[int], Awaitable[None]]


async def produce(order: Produce, stage: Stage, inserters: Sequence[Inserter]) -> None:
    """Carry out the orders of each producer with its own way to insert, all at once."""
    board = stage.board

    async def producer(number: int, insert: Inserter) -> None:
        for step in orders(order, number, board):
            match step:
                case Sleep(seconds):
                    await asyncio.sleep(seconds)
                case Insert(jobs):
                    called = time.monotonic_ns()
                    await insert(jobs)
                    board.committed[jobs[0]] = time.monotonic_ns()
                    board.called[jobs[0]] = called
                case _:
                    assert_never(step)

    stage.ready()
    await asyncio.gather(*(producer(number, insert) for number, insert in enumerate(inserters)))
    stage.finish()


def handler(order: Work, stage: Stage) -> Handler:
    """Return what the system's handler awaits with the number of its job."""
    tally = stage.tally(order.worker, order.expect)

    async def count(job: int) -> None:
        tally(job)

    async def sleep(job: int) -> None:
        tally(job)
        await asyncio.sleep(order.seconds)

    return sleep if order.load == "sleep" else count


def stopping(stage: Stage) -> asyncio.Event:
    """Return an event that is set when the worker is to stop."""
    loop = asyncio.get_running_loop()
    event = asyncio.Event()

    def stop() -> None:
        loop.call_soon_threadsafe(event.set)

    stage.on_stop(stop)
    return event
