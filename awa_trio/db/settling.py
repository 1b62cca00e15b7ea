"""What a cancellation must not cut: the end of a transaction, and the turn of whoever ends it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf

import trio
from psycopg import errors

GRACE = 5.0
"""Seconds to cancel a statement, or to end the transaction of a cancelled caller, before the connection is closed."""

_settling: ContextVar[bool] = ContextVar("awa_trio.settling", default=False)


@contextmanager
def settling() -> Iterator[None]:
    """What the task sends in this block is answered although the task is cancelled, or else the connection is closed.

    The cancellation is then raised by the next thing that can be cancelled.
    """
    token = _settling.set(True)
    try:
        yield
    finally:
        _settling.reset(token)


def is_settling() -> bool:
    """Whether the current task is in such a block."""
    return _settling.get()


class Turn:
    """Whose turn it is on a connection.

    A `trio.Lock` may only be released by the task that took it, but an async generator that holds this one (`notifies`,
    `stream`) may be finalised by another; and taking a free `trio.Lock` is a checkpoint, which a COMMIT cannot have.
    """

    __slots__ = ("_free",)

    def __init__(self) -> None:
        self._free = trio.Semaphore(1, max_value=1)

    async def __aenter__(self) -> None:
        try:
            self._free.acquire_nowait()
        except trio.WouldBlock:
            settle = is_settling()
            with trio.CancelScope(shield=settle, deadline=trio.current_time() + GRACE if settle else inf):
                return await self._free.acquire()
            raise errors.OperationalError("the connection is busy with something else") from None

    async def __aexit__(self, *_: object) -> None:
        self._free.release()
