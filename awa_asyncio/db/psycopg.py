"""The psycopg adapter.

Values cross as `values` says, so that one text is one prepared statement. Each call runs in a task of its own (about
15 µs), because psycopg takes back a cancelled statement only when the cancellation comes once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random as _random
import socket
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import psycopg
from psycopg import AsyncConnection, AsyncRawCursor, Notify
from psycopg.pq import Format, PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from awa_asyncio import db
from awa_asyncio.db import Connection, Lane
from awa_asyncio.db.attempt import BEGIN
from awa_asyncio.db.pool import Pool
from awa_asyncio.db.shield import GRACE, shielded
from awa_proto.contact import Calls
from awa_proto.driving.ops import Preparing
from awa_proto.driving.psycopg_connections import (
    ENCODING,
    check_borrowed,
    check_conninfo,
    check_lent,
    copy_statement,
    has_rows,
    is_clean,
    is_silent,
    listen_statement,
    name_apart,
    receive,
)
from awa_proto.driving.psycopg_errors import connecting_failed, statement_failed, value_refused
from awa_proto.driving.psycopg_values import adapt
from awa_proto.dsn import Dsn, check_given, current
from awa_proto.errors import ConfigurationError, DatabaseError
from awa_proto.plan import Copy, Row, Rows, Statement, Step

if TYPE_CHECKING:
    from psycopg_pool import AsyncConnectionPool

__all__ = ["Connection", "Database", "Lane"]

T = TypeVar("T")

_AnyConnection: TypeAlias = "AsyncConnection[Any]"


class Database(db.Database):
    """PostgreSQL through psycopg.

    dsn: a URL or `key=value` pairs, or a function that gives them; None: the environment variables PGHOST, PGUSER and so on.
    pool: a psycopg_pool.AsyncConnectionPool to use instead of one of our own.
    schema: where awa lives; named in errors.
    statement_timeout: seconds a statement, a connect, or the wait for a connection may take.
    max_size: connections of our own pool.
    random: numbers from 0 to 1, for the pauses between attempts.
    calls: told how each Op of a client ended.
    """

    def __init__(
        self,
        dsn: Dsn | None = None,
        *,
        pool: AsyncConnectionPool[Any] | None = None,
        schema: str = "awa",
        statement_timeout: float = 30.0,
        max_size: int = 10,
        random: Callable[[], float] = _random.random,
        calls: Calls | None = None,
    ) -> None:
        check_given(dsn, check_conninfo)
        preparing = Preparing()

        async def connect(seconds: float) -> _Link:
            return _Link(await _connect(current(dsn, check_conninfo) or "", seconds), preparing, ours=True)

        super().__init__(
            source=Pool(connect, max_size) if pool is None else _LentPool(pool, preparing),
            connect=connect if pool is None or dsn is not None else None,
            borrow=_borrow,
            library_error=psycopg.Error,
            preparing=preparing,
            schema=schema,
            statement_timeout=statement_timeout,
            random=random,
            calls=calls,
        )


class _Link:
    """One psycopg connection. Every use of it goes through `_alone`, which lets at most one cancellation in."""

    __slots__ = ("_busy", "_cursor", "_cut", "_lost", "_ours", "_prepared", "_preparing", "connection")

    def __init__(self, connection: _AnyConnection, preparing: Preparing, *, ours: bool = False) -> None:
        self.connection = connection
        self._ours = ours  # then its cursors inherit how values cross
        if ours:
            adapt(connection.adapters)
        self._preparing = preparing
        self._prepared = preparing.on
        name_apart(connection, os.urandom(7))
        self._cursor = self._new_cursor()
        self._busy = False  # whether a task waits for the socket, which must then not be closed under it
        self._cut = False  # whether the socket was shut down
        self._lost: Callable[[DatabaseError], object] | None = None

    def _new_cursor(self) -> AsyncRawCursor[Row]:
        cursor = AsyncRawCursor(self.connection, row_factory=tuple_row)
        cursor.format = Format.BINARY
        if not self._ours:
            adapt(cursor.adapters)
        return cursor

    @property
    def usable(self) -> bool:
        return self._is_open and self._prepared == self._preparing.on

    @property
    def _is_open(self) -> bool:
        return not self._cut and not self.connection.closed

    @property
    def silent(self) -> bool:
        return is_silent(self.connection.pgconn)

    @property
    def clean(self) -> bool:
        return is_clean(self.connection.pgconn)

    @property
    def server_pid(self) -> int:
        return self.connection.pgconn.backend_pid

    async def perform(self, step: Step) -> Any:
        return await shielded(self, self._alone(self._perform(step)), None, interrupt=True)

    async def begin(self, step: Step) -> Any:
        return await shielded(self, self._alone(self._begin(step)), None, interrupt=True)

    async def _alone(self, work: Coroutine[Any, Any, T]) -> T:
        """Use the connection: errors mapped, the socket left open under whoever waits for it."""
        if not self._is_open:
            work.close()
            raise DatabaseError("the connection is closed", "08003", sent=False)
        self._busy = True
        try:
            return await work
        except psycopg.Error as error:
            raise statement_failed(error, closed=not self._is_open) from error
        finally:
            self._busy = False
            if self._lost is not None and self._is_open:
                asyncio.get_running_loop().add_reader(self.connection.pgconn.socket, self._readable)

    async def _perform(self, step: Step) -> Any:
        if isinstance(step, Statement):
            return await self._fetch(step)
        if isinstance(step, Copy):
            return await self._copy(step)
        if self.connection.pgconn.transaction_status == TransactionStatus.INTRANS:
            return await self._pipeline(step)
        return [await self._fetch(statement) for statement in step]  # a pipeline would make one transaction of them

    async def _begin(self, step: Step) -> Any:
        if isinstance(step, Copy):
            await self._fetch(BEGIN)
            return await self._copy(step)
        if isinstance(step, Statement):
            return (await self._pipeline((BEGIN, step)))[1]
        return (await self._pipeline((BEGIN, *step)))[1:]

    async def _fetch(self, statement: Statement) -> Rows:
        await self._send(self._cursor, statement)
        return await _rows(self._cursor)

    async def _pipeline(self, statements: tuple[Statement, ...]) -> list[Rows]:
        cursors = [self._new_cursor() for _ in statements]
        async with self.connection.pipeline():
            for cursor, statement in zip(cursors, statements, strict=True):
                await self._send(cursor, statement)
        return [await _rows(cursor) for cursor in cursors]

    async def _send(self, cursor: AsyncRawCursor[Row], statement: Statement) -> None:
        prepare = statement.prepare and self._prepared
        try:
            await cursor.execute(statement.sql.encode(), statement.params, prepare=prepare)
        except (ValueError, TypeError, OverflowError) as error:
            raise value_refused(error) from error

    async def _copy(self, copy: Copy) -> Rows:
        async with self._cursor.copy(copy_statement(copy)) as stream:
            for chunk in copy.chunks:
                await stream.write(chunk)
        return [(self._cursor.rowcount,)]

    async def commit(self) -> None:
        await self._alone(self._cursor.execute("COMMIT"))
        if self._cursor.statusmessage != "COMMIT":
            raise DatabaseError("the transaction had failed before, so COMMIT rolled it back", "25P02")

    async def reset(self) -> None:
        pgconn = self.connection.pgconn
        in_transaction = pgconn.transaction_status in {TransactionStatus.INTRANS, TransactionStatus.INERROR}
        if in_transaction and pgconn.pipeline_status == PipelineStatus.OFF:
            await self._alone(self._cursor.execute("ROLLBACK"))

    async def cancel(self) -> None:
        with contextlib.suppress(psycopg.Error):  # what runs is then ended by closing
            await self.connection.cancel_safe(timeout=GRACE)

    def close(self) -> None:
        pgconn = self.connection.pgconn
        if self.connection.closed:
            return
        self._cut = True
        if self._busy:  # an event loop forgets a file descriptor that is closed; shut down, it reports the end
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(pgconn.socket)) as end:
                end.shutdown(socket.SHUT_RDWR)
            return
        if self._lost is not None:
            self._lost = None
            asyncio.get_running_loop().remove_reader(pgconn.socket)
        pgconn.finish()

    async def goodbye(self) -> None:
        self.close()

    async def listen(self, channel: str, notified: Callable[[str], object]) -> None:
        def heard(notification: Notify) -> None:
            notified(notification.payload)

        self.connection.add_notify_handler(heard)
        await self.perform(listen_statement(channel))

    def watch(self, lost: Callable[[DatabaseError], object]) -> None:
        self._lost = lost
        asyncio.get_running_loop().add_reader(self.connection.pgconn.socket, self._readable)

    def _readable(self) -> None:
        """The server spoke while nobody asked: notifications, or its end."""
        pgconn = self.connection.pgconn
        loop, fd = asyncio.get_running_loop(), pgconn.socket
        loop.remove_reader(fd)  # libpq closes the socket when it reads the end
        try:
            receive(pgconn)
        except psycopg.Error as error:
            lost = self._lost
            self.close()
            if lost is not None:
                lost(DatabaseError(f"the connection was closed by the other side: {error}", sent=False))
        else:
            loop.add_reader(fd, self._readable)


class _LentPool:
    """A pool of the user's. Its connections are set to autocommit while they are with us."""

    def __init__(self, pool: AsyncConnectionPool[Any], preparing: Preparing) -> None:
        self._pool = pool
        self._preparing = preparing
        self._in_transaction: set[_Link] = set()  # those that came without autocommit

    async def take(self, seconds: float) -> _Link:
        end = asyncio.get_running_loop().time() + seconds
        while True:
            left = end - asyncio.get_running_loop().time()
            try:
                connection: _AnyConnection = await self._pool.getconn(timeout=max(0.0, left))
            except psycopg.Error as error:
                raise connecting_failed(error) from error
            link = _Link(connection, self._preparing)
            try:
                if not link.silent:
                    link.close()
                elif await self._is_prepared(link):
                    return link
            except psycopg.Error as error:
                await self.give_back(link)
                raise connecting_failed(error) from error
            except BaseException:
                await self.give_back(link)
                raise
            await self.give_back(link)

    async def _is_prepared(self, link: _Link) -> bool:
        """Make it ready for our use; whether it is still open then."""
        check_lent(link.connection.pgconn)
        if not link.connection.autocommit:
            self._in_transaction.add(link)
            await shielded(link, link.connection.set_autocommit(True), GRACE)
        return link.usable

    async def give_back(self, link: _Link) -> None:
        with contextlib.suppress(DatabaseError, psycopg.Error):  # what was done with it is done; the pool drops it
            await shielded(link, self._put(link), GRACE)

    async def _put(self, link: _Link) -> None:
        if link in self._in_transaction:
            self._in_transaction.discard(link)
            if not link.connection.closed:
                await link.connection.set_autocommit(False)
        await self._pool.putconn(link.connection)

    def drop_idle(self) -> None:
        """Leave them: they are the user's."""

    async def close(self) -> None:
        """Leave it open: it was handed in."""

    def abandon(self) -> None:
        """Leave it open: it was handed in."""


def _borrow(connection: object) -> _Link:
    if not isinstance(connection, AsyncConnection):
        raise ConfigurationError(f"using= takes a psycopg.AsyncConnection here, not {type(connection).__qualname__}")
    check_borrowed(connection.pgconn)
    return _Link(connection, Preparing())


async def _connect(dsn: str, seconds: float) -> _AnyConnection:
    try:
        async with asyncio.timeout(seconds):
            return await AsyncConnection.connect(dsn, autocommit=True, client_encoding=ENCODING)
    except TimeoutError:
        message = f"no connection to the database within {seconds:g} s"
        raise DatabaseError(message, "08001", sent=False) from None
    except psycopg.Error as error:
        raise connecting_failed(error) from error


async def _rows(cursor: AsyncRawCursor[Row]) -> Rows:
    return await cursor.fetchall() if has_rows(cursor.pgresult) else []
