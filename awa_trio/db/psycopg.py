"""A database under trio, through psycopg: what runs an Op.

Connections come from a pool, Ops are run by a `Session`, and whether to try again is decided by `Retries` in the core,
only for Ops on connections of our own.
"""

from __future__ import annotations

import random as _random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

import psycopg
import trio

from awa_proto.errors import ConfigurationError, DatabaseError, Failure, Retries, not_migrated
from awa_proto.plan import Op, Row, Statement, Value
from awa_trio.db.connection import TrioConnection
from awa_trio.db.lane import Lane
from awa_trio.db.pool import Pool
from awa_trio.db.session import Preparing, Session, drive
from awa_trio.db.settling import Turn

__all__ = ["Connection", "Database", "Lane", "Pool", "TrioConnection"]

T = TypeVar("T")


class Connection:
    """A transaction of ours, READ COMMITTED, for Ops and for SQL of the user's own; its statements run in turn."""

    def __init__(self, session: Session, schema: str, seconds: float) -> None:
        self._session: Session | None = session
        self._schema = schema
        self._seconds = seconds
        self._turn = Turn()

    async def run(self, op: Op[T]) -> T:
        """The result of an Op inside this transaction; never tried again, for its failure ends the transaction."""
        seconds = self._seconds if op.timeout is None else op.timeout
        async with self._turn:
            try:
                return await drive(op.start(), partial(self._open().perform, seconds=seconds))
            except DatabaseError as error:
                if error.failure is Failure.NOT_MIGRATED:
                    raise not_migrated(self._schema) from error
                raise

    async def fetch(self, sql: str, *params: Value) -> list[Row]:
        """The rows of one statement with placeholders `$1`, each with a cast. Raises DatabaseError."""
        async with self._turn:
            statement = Statement("user", sql, params)
            rows: list[Row] = await self._open().perform(statement, seconds=self._seconds, prepare=False)
            return rows

    async def execute(self, sql: str, *params: Value) -> None:
        """Run one statement with placeholders `$1`, each with a cast. Raises DatabaseError."""
        await self.fetch(sql, *params)

    def end(self) -> None:
        """From here on every use is an error."""
        self._session = None

    def _open(self) -> Session:
        if self._session is None:
            raise DatabaseError("this transaction is over", "25P01", sent=False)
        return self._session


class Database:
    """PostgreSQL through psycopg, under trio.

    dsn: a URL or `key=value` pairs; None: the environment variables PGHOST, PGUSER and so on.
    pool: a `Pool` to use instead of one of our own, for everything but lanes, which open connections to `dsn` if given.
    schema: where awa lives; named in errors.
    statement_timeout: seconds a statement, a connect, or the wait for a connection may take.
    max_size: connections of our own pool.
    random: numbers from 0 to 1, for the pauses between attempts.

    Raises ConfigurationError for a DSN that cannot be read.
    """

    def __init__(
        self,
        dsn: str | None = None,
        *,
        pool: Pool | None = None,
        schema: str = "awa",
        statement_timeout: float = 30.0,
        max_size: int = 10,
        random: Callable[[], float] = _random.random,
    ) -> None:
        own = Pool(dsn, max_size=max_size, timeout=statement_timeout)
        self._pool = own if pool is None else pool
        self._lanes = own if pool is None or dsn is not None else pool  # where their connections come from
        self._own = own
        self._schema = schema
        self._seconds = statement_timeout
        self._random = random

    async def open(self) -> None:
        """Nothing yet: connections open when they are needed, so that a server that is down is an error of a call."""

    async def close(self) -> None:
        """Close the connections that are ours. A pool that was handed in stays open."""
        await self._own.close()

    async def run(self, op: Op[T]) -> T:
        """The result of one Op.

        On `op.using` it runs once, in the caller's transaction, and what psycopg raises is passed on as it is.
        Otherwise raises DatabaseError, or SchemaNotMigrated.
        """
        if op.using is not None:
            return await self._run_borrowed(op, op.using)
        seconds = self._seconds if op.timeout is None else op.timeout
        retries = Retries(op, self._schema, self._random)
        while True:
            try:
                session = await self._pool.take(seconds)
                try:
                    return await session.run_once(op, seconds)
                finally:
                    self._pool.give_back(session)
            except DatabaseError as error:
                self._learn_from(error)
                pause = retries.after(error)
            await trio.sleep(pause)

    async def _run_borrowed(self, op: Op[T], connection: object) -> T:
        if isinstance(connection, Connection):
            return await connection.run(op)
        if not isinstance(connection, TrioConnection):
            raise ConfigurationError(f"using= takes an awa_trio connection here, not {type(connection).__qualname__}")
        session = Session(connection, Preparing())
        seconds, before = self._seconds if op.timeout is None else op.timeout, connection.timeout
        try:
            return await drive(op.start(), partial(session.perform, seconds=seconds))
        except DatabaseError as error:
            if error.failure is Failure.NOT_MIGRATED:
                raise not_migrated(self._schema) from error
            if not isinstance(error.__cause__, psycopg.Error):
                raise
            original = error.__cause__
        finally:
            connection.timeout = before
        raise original

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A transaction, committed when the block ends, rolled back when an exception leaves it."""
        session = await self._pool.take(self._seconds)
        connection = Connection(session, self._schema, self._seconds)
        try:
            await session.begin(self._seconds)
            yield connection
            connection.end()
            await session.commit()
        except BaseException as error:
            self._learn_from(error)
            await session.recover(error)
            raise
        finally:
            connection.end()
            self._pool.give_back(session)

    def lane(
        self,
        name: str,
        *,
        channel: str | None = None,
        notified: Callable[[str], object] | None = None,
        lost: Callable[[DatabaseError], object] | None = None,
    ) -> Lane:
        """A connection of its own for one purpose of a worker.

        name: what it is for, told to the server as the application's name.
        channel: LISTEN to it from the moment the connection opens, which is when the first Op runs.
        notified: called with the payload of each notification.
        lost: called once when the connection breaks, in use or not.
        """
        connect = partial(self._lanes.connect, name=name)
        return Lane(connect, self._lanes.preparing, self._seconds, channel, notified, lost)

    def _learn_from(self, error: BaseException) -> None:
        self._pool.preparing.learn_from(error)
        if isinstance(error, DatabaseError) and error.failure is Failure.READ_ONLY:
            self._pool.drop_idle()  # they lead to the same standby
