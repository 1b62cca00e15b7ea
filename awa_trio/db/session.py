"""One connection that speaks the words of the core: steps in, rows out, and every failure a `DatabaseError`.

Where a transaction begins and ends is decided here, and in what state a connection is left:

- It is clean afterwards (no transaction, nothing running) or closed. Where that is in doubt it is closed.
- BEGIN, COMMIT and ROLLBACK are not cut by a cancellation. If `run_once` returns, it is committed; if it is cancelled,
  it may or may not be.
- What fails before COMMIT was sent left nothing behind, even when the connection broke: that is `CONNECTION_LOST`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import psycopg
import trio
from psycopg import AsyncRawCursor, Notify
from psycopg.pq import Format
from psycopg.rows import tuple_row

from awa_proto.driving.ops import Preparing, drive_awaited
from awa_proto.driving.psycopg_connections import (
    copy_statement,
    has_rows,
    is_clean,
    is_silent,
    listen_statement,
    name_apart,
)
from awa_proto.driving.psycopg_errors import statement_failed, value_refused
from awa_proto.driving.psycopg_values import adapt
from awa_proto.errors import DatabaseError
from awa_proto.plan import Copy, Op, Row, Rows, Statement, Step
from awa_trio.db.connection import TrioConnection
from awa_trio.db.settling import GRACE, settling

T = TypeVar("T")

_log = logging.getLogger("awa")


class Session:
    """A `TrioConnection` and the cursor it runs the core's statements with; used by one task at a time."""

    __slots__ = ("_cursor", "_in_transaction", "_prepared", "connection")

    def __init__(self, connection: TrioConnection[Any], preparing: Preparing) -> None:
        self.connection = connection
        self._prepared = preparing.on
        name_apart(connection, os.urandom(7))
        self._in_transaction = False  # of ours, so that a failure before COMMIT means that nothing was done
        self._cursor = AsyncRawCursor(connection, row_factory=tuple_row)
        self._cursor.format = Format.BINARY
        adapt(self._cursor.adapters)

    def is_usable(self, preparing: Preparing) -> bool:
        """Whether it is open and prepares as it should."""
        return not self.connection.closed and self._prepared == preparing.on

    def is_silent(self) -> bool:
        """Whether the server sent nothing while nobody asked; what it sends then is mostly its farewell."""
        return is_silent(self.connection.pgconn)

    def is_clean(self) -> bool:
        """Whether it is closed, or certainly has no transaction open and nothing running."""
        return is_clean(self.connection.pgconn)

    async def run_once(self, op: Op[T], seconds: float) -> T:
        """The result of an Op, in a transaction of its own when it is atomic. Raises DatabaseError."""
        perform = partial(self.perform, seconds=seconds)
        try:
            if not op.atomic:
                return await drive_awaited(op.start(), perform)
            await self.begin(seconds)
            result = await drive_awaited(op.start(), perform)
            await self.commit()
        except BaseException as error:
            await self.recover(error)
            raise
        return result

    async def perform(self, step: Step, *, seconds: float) -> Any:
        """The answer to what a plan yielded, each statement within `seconds`."""
        if self.connection.closed:
            raise DatabaseError("the connection is closed", "08003", sent=False)
        self.connection.timeout = seconds
        try:
            match step:
                case Statement():
                    return await self._fetch(step)
                case Copy():
                    return await self._copy(step)
                case _:
                    return [await self._fetch(statement) for statement in step]
        except psycopg.Error as error:
            raise self._database_error(error) from error

    async def _fetch(self, statement: Statement) -> Rows:
        cursor, prepare = self._cursor, statement.prepare and self._prepared
        try:
            await cursor.execute(statement.sql.encode(), statement.params, prepare=prepare)
        except (ValueError, TypeError, OverflowError) as error:
            raise value_refused(error) from error
        return await cursor.fetchall() if has_rows(cursor.pgresult) else []

    async def _copy(self, copy: Copy) -> list[Row]:
        async with self._cursor.copy(copy_statement(copy)) as stream:
            for chunk in copy.chunks:
                await stream.write(chunk)
        return [(self._cursor.rowcount,)]

    async def listen(self, channel: str, heard: Callable[[Notify], None], seconds: float) -> None:
        """LISTEN to a channel; from here on `heard` is called for each notification."""
        self.connection.add_notify_handler(heard)
        await self.perform(listen_statement(channel), seconds=seconds)

    async def begin(self, seconds: float) -> None:
        """Open a READ COMMITTED transaction, each of whose statements may take `seconds`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.connection.closed:
            raise DatabaseError("the connection is closed", "08003", sent=False)
        self.connection.timeout = seconds
        self._in_transaction = True
        await self._command("BEGIN ISOLATION LEVEL READ COMMITTED")

    async def commit(self) -> None:
        """Commit. Raises DatabaseError when the server rolled back instead."""
        if self.connection.closed:
            raise DatabaseError("the connection is closed", "08003", sent=False)
        self._in_transaction = False
        if await self._command("COMMIT") != "COMMIT":
            raise DatabaseError("the transaction had failed before, so COMMIT rolled it back", "25P02")

    async def recover(self, error: BaseException | None) -> None:
        """Whatever happened: leave the connection clean, or closed."""
        self._in_transaction = False
        if isinstance(error, DatabaseError) and error.connection_is_dead:
            self.connection.abandon()
        elif not self.is_clean():
            self.connection.timeout = GRACE
            try:
                await self._command("ROLLBACK")
            except DatabaseError as second:
                _log.info("closing a connection that could not be rolled back: %s", second)
            finally:
                if not self.is_clean():
                    self.connection.abandon()

    async def _command(self, text: str) -> str:
        try:
            with settling():
                return await self.connection.command(text)
        except psycopg.Error as error:
            raise self._database_error(error) from error

    def _database_error(self, error: psycopg.Error) -> DatabaseError:
        return statement_failed(error, closed=self.connection.closed, sent=not self._in_transaction)
