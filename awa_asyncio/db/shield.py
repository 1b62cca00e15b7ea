"""What bounds a statement in time, and what keeps a cancellation from cutting it in two.

asyncio delivers a cancellation once; anyio delivers it again at every await until the scope is left, which also reaches
the clean-up in a `finally`. Work that must not be cut (COMMIT, ROLLBACK, taking back a cancelled statement) therefore
runs in a task of its own, which no scope knows, and the caller waits for it whatever is delivered. That wait ends for
certain: when the time is up the connection is closed, and closing it fails whatever runs on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any, Protocol, TypeVar

from awa_proto.errors import DatabaseError

T = TypeVar("T")

GRACE = 5.0
"""Seconds that cancelling, rolling back, or a cancelled caller's COMMIT may take before the connection is closed."""


class Closable(Protocol):
    """A connection that can be asked to cancel what it runs, and can be closed at any moment."""

    async def cancel(self) -> None:
        """Ask the server to cancel the running statement; returns once the request was taken."""

    def close(self) -> None:
        """Close at once. Whatever runs on the connection fails."""


async def shielded(
    link: Closable, work: Coroutine[Any, Any, T], seconds: float | None, *, interrupt: bool = False
) -> T:
    """The result of `work`, which no cancellation of the caller cuts off. The cancellation is raised when it has ended.

    seconds: how long it may take before `link` is closed; None: as long as it wants, until the caller is cancelled.
    interrupt: a cancellation is passed on to `work`, but only the first one.
    """
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    timer = None if seconds is None else loop.call_later(seconds, _give_up, link, task)
    cancelled: asyncio.CancelledError | None = None
    try:
        while not task.done():
            ended = loop.create_future()  # a plain future and not asyncio.wait, which costs 10 µs more
            task.add_done_callback(partial(_wake, ended))
            try:
                await ended
            except asyncio.CancelledError as error:
                if cancelled is None:
                    if interrupt:
                        task.cancel()
                    if timer is not None:
                        timer.cancel()
                    timer = loop.call_later(GRACE if seconds is None else min(seconds, GRACE), _give_up, link, task)
                cancelled = error
    finally:
        if timer is not None:
            timer.cancel()
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # marks it as seen: the cancellation is what the caller hears
        raise cancelled
    if task.cancelled():
        raise DatabaseError("the connection was closed, having given no answer in time")
    return task.result()


def _give_up(link: Closable, task: asyncio.Task[Any]) -> None:
    link.close()
    # asyncpg before 0.32 waits for the answer to a cancel request even on a connection that was closed
    task.get_loop().call_later(0.1, task.cancel)


def _wake(ended: asyncio.Future[None], task: asyncio.Task[Any]) -> None:
    del task
    if not ended.done():
        ended.set_result(None)


class Deadline:
    """The time one statement has. Past it the server is asked to cancel, and `GRACE` later the connection is closed."""

    __slots__ = ("_cancelling", "_link", "_loop", "_timer")

    def __init__(self, link: Closable, seconds: float) -> None:
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._cancelling: asyncio.Task[None] | None = None
        self._timer = self._loop.call_later(seconds, self._pass)

    def _pass(self) -> None:
        self._cancelling = self._loop.create_task(self._link.cancel())
        self._timer = self._loop.call_later(GRACE, self._link.close)

    @property
    def passed(self) -> bool:
        """Whether the server was asked to cancel."""
        return self._cancelling is not None

    def lift(self) -> None:
        """Stop the clock: the statement has ended."""
        self._timer.cancel()

    async def calm(self) -> None:
        """Wait until the request to cancel has arrived, so that it cannot hit the next statement."""
        if self._cancelling is not None:
            await shielded(self._link, _end_of(self._cancelling), GRACE)


async def _end_of(task: asyncio.Task[None]) -> None:
    await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()
