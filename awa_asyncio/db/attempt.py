"""One attempt at an Op on one connection, whichever library carries it.

The library is behind `Link`, one connection whose every failure is a `DatabaseError`. The rules kept here:

- A connection is left clean (no transaction, nothing running) or closed. Where that is in doubt it is closed.
- COMMIT is never cut off. If an attempt returns, it is committed; if it is cancelled, it may or may not be.
- What fails before COMMIT was sent left nothing behind, even when the connection broke: that is `CONNECTION_LOST`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol, TypeVar

from awa_asyncio.db.pool import Pooled
from awa_asyncio.db.shield import GRACE, Closable, Deadline, shielded
from awa_proto.driving.ops import drive_awaited
from awa_proto.errors import DatabaseError, Failure
from awa_proto.plan import Op, Statement, Step

T = TypeVar("T")

BEGIN = Statement("begin", "BEGIN ISOLATION LEVEL READ COMMITTED")
"""Whatever the role or the database defaults to."""

_log = logging.getLogger("awa")


class Link(Pooled, Closable, Protocol):
    """One connection of a library. Its failures come out as DatabaseError, with the library's own as the cause."""

    @property
    def clean(self) -> bool:
        """Whether no transaction is open and no statement is running, for certain."""
        ...

    @property
    def server_pid(self) -> int:
        """The number of the server process, as it was said when the connection was made."""
        ...

    async def perform(self, step: Step) -> Any:
        """The answer to what a plan yielded."""
        ...

    async def begin(self, step: Step) -> Any:
        """BEGIN, and the answer to the first step; in one round trip where the library can."""

    async def commit(self) -> None:
        """COMMIT; DatabaseError when the server rolled back instead."""

    async def reset(self) -> None:
        """Wait for what was cancelled, and roll back."""

    async def listen(self, channel: str, notified: Callable[[str], object]) -> None:
        """LISTEN; each payload is handed to `notified`, while idle too."""

    def watch(self, lost: Callable[[DatabaseError], object]) -> None:
        """Call `lost` when the connection breaks while nobody uses it."""


async def bounded(link: Link, seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """`work` on `link`, ended from outside when it takes longer than `seconds`."""
    deadline = Deadline(link, seconds)
    try:
        return await work
    except DatabaseError as error:
        if deadline.passed:
            raise error.restated(f"no answer within {seconds:g} s: {error}") from error.__cause__
        raise
    finally:
        deadline.lift()
        if deadline.passed:
            await deadline.calm()


async def autocommitted(link: Link, seconds: float, step: Step) -> Any:
    """The answer to a step that commits by itself, or in the transaction of a caller."""
    return await bounded(link, seconds, link.perform(step))


async def in_transaction(link: Link, seconds: float, step: Step) -> Any:
    """The answer to a step inside a transaction of ours."""
    return await _undone_when_lost(bounded(link, seconds, link.perform(step)))


class _Transaction:
    """Performs the steps of a plan in one transaction. BEGIN goes out with the first of them."""

    __slots__ = ("_link", "_seconds", "begun")

    def __init__(self, link: Link, seconds: float) -> None:
        self._link = link
        self._seconds = seconds
        self.begun = False

    async def perform(self, step: Step) -> Any:
        if self.begun:
            return await in_transaction(self._link, self._seconds, step)
        self.begun = True
        return await _undone_when_lost(bounded(self._link, self._seconds, self._link.begin(step)))


async def _undone_when_lost(work: Coroutine[Any, Any, T]) -> T:
    """Before COMMIT was sent nothing is done, also when the connection broke."""
    try:
        return await work
    except DatabaseError as error:
        if error.failure is Failure.OUTCOME_UNKNOWN:
            raise error.restated(sent=False) from error.__cause__
        raise


async def run_once(link: Link, op: Op[T], seconds: float) -> T:
    """The result of one attempt at `op`, in a transaction when it is atomic. Leaves the connection clean, or closed."""
    try:
        if not op.atomic:
            return await drive_awaited(op.start(), partial(autocommitted, link, seconds))
        transaction = _Transaction(link, seconds)
        result = await drive_awaited(op.start(), transaction.perform)
        if transaction.begun:
            await shielded(link, link.commit(), seconds)
    except BaseException as error:
        await recover(link, error)
        raise
    return result


async def recover(link: Link, error: BaseException) -> None:
    """After a failure: leave the connection clean, or closed."""
    if isinstance(error, DatabaseError) and error.connection_is_dead:
        link.close()
    elif not link.clean:
        try:
            await shielded(link, link.reset(), GRACE)
        except DatabaseError as second:
            _log.info("closing a connection that could not be reset: %s", second)
        finally:
            if not link.clean:
                link.close()
