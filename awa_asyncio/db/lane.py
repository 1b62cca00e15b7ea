"""A lane: the connection that one purpose of a worker has to itself, so that a slow one never delays another.

Nothing is repeated here. The core's machine hears how each Op ended and decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from awa_asyncio.db.attempt import Link, bounded, run_once
from awa_proto.driving.ops import Preparing, seconds_of
from awa_proto.errors import DatabaseError
from awa_proto.plan import Op

T = TypeVar("T")


class Lane:
    """A worker's own connection: opened when first used, kept as it is between Ops, dropped when dead."""

    def __init__(
        self,
        connect: Callable[[float], Awaitable[Link]],
        preparing: Preparing,
        seconds: float,
        *,
        channel: str | None,
        notified: Callable[[str], object] | None,
        lost: Callable[[DatabaseError], object] | None,
        opened: Callable[[int], object] | None = None,
    ) -> None:
        self._connect = connect
        self._preparing = preparing
        self._seconds = seconds
        self._channel = channel
        self._notified = notified
        self._lost = lost
        self._opened = opened
        self._link: Link | None = None
        self._turn = asyncio.Lock()

    async def run(self, op: Op[T]) -> T:
        """The result of an Op, run exactly once. Raises DatabaseError."""
        seconds = seconds_of(op, self._seconds)
        async with self._turn:
            link = await self._ready(seconds)
            try:
                return await run_once(link, op, seconds)
            except BaseException as error:
                self._preparing.learn_from(error)
                if not link.usable:
                    self._drop(link, error)
                raise

    async def close(self) -> None:
        """Close the connection. The lane may be used again and then opens a new one."""
        link, self._link = self._link, None
        if link is not None:
            await link.goodbye()

    async def _ready(self, seconds: float) -> Link:
        """The open connection, or a new one."""
        link = self._link
        if link is not None and self._channel is not None and not link.silent:
            await asyncio.sleep(0)  # the event loop takes in what came: notifications, or the end
            link = self._link
        if link is not None and link.usable and (link.silent or self._channel is not None):
            return link
        return await self._open(seconds)

    async def _open(self, seconds: float) -> Link:
        if (old := self._link) is not None:
            self._drop(old, None)
        link = await self._connect(seconds)
        try:
            if self._channel is not None:
                await bounded(link, seconds, link.listen(self._channel, self._notified or _ignore))
        except BaseException:
            link.close()
            raise
        self._link = link
        if self._opened is not None:
            self._opened(link.server_pid)
        if self._lost is not None or self._channel is not None:
            link.watch(partial(self._drop, link))
        return link

    def _drop(self, link: Link, error: BaseException | None) -> None:
        """Forget a dead connection, and say so, once."""
        if self._link is not link:
            return
        self._link = None
        link.close()
        if self._lost is not None:
            if not isinstance(error, DatabaseError):
                error = DatabaseError("the connection was closed, its state being in doubt", sent=False)
            self._lost(error)


def _ignore(payload: str) -> None:
    del payload
