"""A database under asyncio: single Ops, transactions, and lanes for a worker.

The adapters `asyncpg` and `psycopg` differ in how they open a connection and what they make of one (`attempt.Link`).
What is done with it is the same for both and stands in `attempt`, `lane` and here. Whether a failed Op is tried again is
decided by `Retries` in the core, and only for connections of our own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Protocol, TypeVar

from awa_asyncio.db.attempt import (
    BEGIN,
    Link,
    autocommitted,
    in_transaction,
    recover,
    run_once,
)
from awa_asyncio.db.lane import Lane
from awa_asyncio.db.shield import shielded
from awa_proto.contact import Calls
from awa_proto.driving.ops import Preparing, drive_awaited, errors_of_library, schema_named, seconds_of, users_sql
from awa_proto.errors import ConfigurationError, DatabaseError, Failure, Retries
from awa_proto.plan import Op, Row, Value, users_own

T = TypeVar("T")

__all__ = ["Connection", "Database", "Lane", "Source"]


class Source(Protocol):
    """Where connections come from: a pool of ours, or one that was handed in."""

    async def take(self, seconds: float) -> Link:
        """A clean connection."""
        ...

    async def give_back(self, link: Any) -> None:
        """Take back a connection that is clean or closed."""

    def drop_idle(self) -> None:
        """Close what is idle and ours, so that the next caller gets a new connection."""

    async def close(self) -> None:
        """Close what is ours."""

    def abandon(self) -> None:
        """Close what is ours at once, also when the event loop it was used on is closed."""


class Connection:
    """A transaction of ours, READ COMMITTED, for Ops and for SQL of the user's own; its statements run in turn.

    turn: held by whoever uses the connection.
    """

    def __init__(self, link: Link, schema: str, seconds: float) -> None:
        self._link: Link | None = link
        self._schema = schema
        self._seconds = seconds
        self.turn = asyncio.Lock()

    async def run(self, op: Op[T]) -> T:
        """The result of an Op inside this transaction; never tried again, for its failure ends the transaction."""
        async with self.turn:
            perform = partial(in_transaction, self._open(), seconds_of(op, self._seconds))
            with schema_named(self._schema):
                return await drive_awaited(op.start(), perform)

    async def fetch(self, sql: str, *params: Value) -> list[Row]:
        """The rows of one statement with placeholders `$1`, each with a cast. Raises DatabaseError."""
        async with self.turn:
            with users_sql():
                rows: list[Row] = await in_transaction(self._open(), self._seconds, users_own(sql, params))
            return rows

    async def execute(self, sql: str, *params: Value) -> None:
        """Run one statement with placeholders `$1`, each with a cast. Raises DatabaseError."""
        await self.fetch(sql, *params)

    def end(self) -> None:
        """From here on every use is an error."""
        self._link = None

    def _open(self) -> Link:
        if self._link is None:
            raise DatabaseError("this transaction is over", "25P01", sent=False)
        return self._link


class Database:
    """Runs Ops on connections of `source`, and makes lanes with connections of their own.

    source: where the connections for single Ops and transactions come from.
    connect: opens a connection that belongs to no pool; None when there is no DSN.
    borrow: a Link over a connection of the caller; raises ConfigurationError when it is of another kind.
    library_error: what the library raises, which a caller gets to see.
    calls: told how each Op of a client ended.
    """

    def __init__(
        self,
        *,
        source: Source,
        connect: Callable[[float], Awaitable[Link]] | None,
        borrow: Callable[[object], Link],
        library_error: type[Exception],
        preparing: Preparing,
        schema: str,
        statement_timeout: float,
        random: Callable[[], float],
        calls: Calls | None,
    ) -> None:
        self._source = source
        self._calls = calls
        self._connect = connect
        self._borrow = borrow
        self._library_error = library_error
        self._preparing = preparing
        self._schema = schema
        self._seconds = statement_timeout
        self._random = random

    async def open(self) -> None:
        """Nothing: connections are opened when they are needed, so a server that is down is an error of a call."""

    async def close(self) -> None:
        """Close the connections that are ours. A pool that was handed in stays open."""
        await self._source.close()

    def abandon(self) -> None:
        """The same at once, also when the event loop it was used on is closed."""
        self._source.abandon()

    async def run(self, op: Op[T]) -> T:
        """The result of one Op.

        On `op.using` it runs once, in the caller's transaction, and what the library raises is passed on as it is.
        Otherwise raises DatabaseError, or SchemaNotMigrated.
        """
        if op.using is not None:
            return await self._run_borrowed(op, op.using)
        seconds = seconds_of(op, self._seconds)
        retries = Retries(op, self._schema, self._random, self._calls)
        while True:
            try:
                link = await self._source.take(seconds)
                try:
                    result = await run_once(link, op, seconds)
                finally:
                    await self._source.give_back(link)
            except DatabaseError as error:
                self._learn_from(error)
                pause = retries.after(error)
            else:
                retries.succeeded()
                return result
            await asyncio.sleep(pause)

    async def _run_borrowed(self, op: Op[T], connection: object) -> T:
        link = self._borrow(connection)
        with errors_of_library(self._schema, self._library_error):
            return await drive_awaited(op.start(), partial(autocommitted, link, seconds_of(op, self._seconds)))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A transaction, committed when the block ends, rolled back when an exception leaves it."""
        link = await self._source.take(self._seconds)
        try:
            connection = Connection(link, self._schema, self._seconds)
            try:
                await in_transaction(link, self._seconds, BEGIN)
                yield connection
                connection.end()
                async with connection.turn:
                    await shielded(link, link.commit(), self._seconds)
            except BaseException as error:
                connection.end()
                self._learn_from(error)
                await recover(link, error)
                raise
        finally:
            await self._source.give_back(link)

    def lane(
        self,
        name: str,
        *,
        channel: str | None = None,
        notified: Callable[[str], object] | None = None,
        lost: Callable[[DatabaseError], object] | None = None,
        opened: Callable[[int], object] | None = None,
    ) -> Lane:
        """A connection of its own for one purpose of a worker.

        name: what it is for, said in errors.
        channel: LISTEN to it from the moment the connection opens, which is when the first Op runs.
        notified: called with the payload of each notification.
        lost: called once when the connection breaks, in use or not.
        opened: called with the number of the server process, as it said it, whenever a connection was opened.
        """
        if self._connect is None:
            raise ConfigurationError(f"the lane {name!r} needs a connection of its own: give dsn= beside pool=")
        return Lane(
            self._connect, self._preparing, self._seconds, channel=channel, notified=notified, lost=lost, opened=opened
        )

    def _learn_from(self, error: BaseException) -> None:
        self._preparing.learn_from(error)
        if isinstance(error, DatabaseError) and error.failure is Failure.READ_ONLY:
            self._source.drop_idle()  # they lead to the same standby
