"""Waiting for a socket under trio, in the words of psycopg's generators."""

from __future__ import annotations

import select
import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

import trio
from psycopg.abc import PQGenConn
from psycopg.waiting import Ready, Wait

T = TypeVar("T")

if sys.platform != "win32":

    def ready_now(fd: int, state: Wait) -> Ready:
        """What a socket is ready for at this moment, of what was asked."""
        poll = select.poll()
        poll.register(fd, (select.POLLIN if state & Wait.R else 0) | (select.POLLOUT if state & Wait.W else 0))
        ready = 0
        for _, event in poll.poll(0):
            # An error or a hang-up counts as both: it is found by reading or writing.
            ready |= (Ready.R if event & ~select.POLLOUT else 0) | (Ready.W if event & ~select.POLLIN else 0)
        return Ready(ready & state)

else:

    def ready_now(fd: int, state: Wait) -> Ready:
        """What a socket is ready for at this moment, of what was asked."""
        readable, writable, _ = select.select([fd] if state & Wait.R else [], [fd] if state & Wait.W else [], [], 0)
        return Ready((Ready.R if readable else 0) | (Ready.W if writable else 0))


async def first_ready(fd: int, state: Wait) -> Ready:
    """Wait until a socket can be written to or, where that is asked too, read from."""
    async with trio.open_nursery() as nursery:

        async def first(wait: Callable[[int], Awaitable[None]]) -> None:
            await wait(fd)
            nursery.cancel_scope.cancel()

        if state & Wait.R:
            nursery.start_soon(first, trio.lowlevel.wait_readable)
        nursery.start_soon(first, trio.lowlevel.wait_writable)
    return ready_now(fd, state)


async def run_to_end(gen: PQGenConn[T]) -> T:
    """The result of a generator that says itself which socket it waits for: one that connects, or asks to cancel."""
    try:
        fd, state = next(gen)
        while True:
            if state == Wait.R:
                await trio.lowlevel.wait_readable(fd)
                fd, state = gen.send(Ready.R)
            else:
                await trio.lowlevel.wait_writable(fd)
                fd, state = gen.send(Ready.W)
    except StopIteration as done:
        return cast("T", done.value)
    finally:
        gen.close()
