"""One connection that speaks the words of the core: steps in, rows out, and every failure a `DatabaseError`.

Where a transaction begins and ends is decided here, and in what state a connection is left:

- It is clean afterwards (no transaction, nothing running) or closed. Where that is in doubt it is closed.
- BEGIN, COMMIT and ROLLBACK are not cut by a cancellation. If `run_once` returns, it is committed; if it is cancelled,
  it may or may not be.
- What fails before COMMIT was sent left nothing behind, even when the connection broke: that is `CONNECTION_LOST`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any, TypeVar

import psycopg
import trio
from psycopg import AsyncRawCursor, Notify, sql
from psycopg.pq import ExecStatus, Format, PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row
from psycopg.waiting import Wait

from awa_proto.driving.psycopg_values import adapt
from awa_proto.errors import DatabaseError, Failure
from awa_proto.plan import Copy, Op, Row, Rows, Statement, Step
from awa_trio.db.connection import TrioConnection
from awa_trio.db.readiness import ready_now
from awa_trio.db.settling import GRACE, settling

T = TypeVar("T")

_log = logging.getLogger("awa")
_STALE_PLAN = "0A000"
"""Says a prepared statement whose table was altered ("cached plan must not change result type")."""


class Preparing:
    """Whether statements are prepared on the server: until the first sign of a pooler that loses them."""

    on = True

    def learn_from(self, error: BaseException) -> None:
        """Turn preparing off, once, if that is what `error` means."""
        if self.on and isinstance(error, DatabaseError) and error.failure is Failure.UNPREPARED:
            self.on = False
            _log.warning("prepared statements are off from here on, a connection pooler seems to lose them: %s", error)


async def drive(plan: Generator[Step, Any, T], perform: Callable[[Step], Awaitable[Any]]) -> T:
    """The trampoline: feed a plan with what it asks for, until it returns."""
    try:
        step = next(plan)
        while True:
            try:
                rows = await perform(step)
            except DatabaseError as error:
                step = plan.throw(error)
            else:
                step = plan.send(rows)
    except StopIteration as done:
        result: T = done.value
        return result
    finally:
        plan.close()


class Session:
    """A `TrioConnection` and the cursor it runs the core's statements with; used by one task at a time."""

    __slots__ = ("_cursor", "_in_transaction", "_prepared", "connection")

    def __init__(self, connection: TrioConnection[Any], preparing: Preparing) -> None:
        self.connection = connection
        self._prepared = preparing.on
        self._in_transaction = False  # of ours, so that a failure before COMMIT means that nothing was done
        self._cursor = AsyncRawCursor(connection, row_factory=tuple_row)
        self._cursor.format = Format.BINARY
        adapt(self._cursor.adapters)

    def is_usable(self, preparing: Preparing) -> bool:
        """Whether it is open and prepares as it should."""
        return not self.connection.closed and self._prepared == preparing.on

    def is_silent(self) -> bool:
        """Whether the server sent nothing while nobody asked; what it sends then is mostly its farewell."""
        return not ready_now(self.connection.pgconn.socket, Wait.R)

    def is_clean(self) -> bool:
        """Whether it is closed, or certainly has no transaction open and nothing running."""
        pgconn = self.connection.pgconn
        return self.connection.closed or (
            pgconn.transaction_status == TransactionStatus.IDLE and pgconn.pipeline_status == PipelineStatus.OFF
        )

    async def run_once(self, op: Op[T], seconds: float) -> T:
        """The result of an Op, in a transaction of its own when it is atomic. Raises DatabaseError."""
        perform = partial(self.perform, seconds=seconds)
        try:
            if not op.atomic:
                return await drive(op.start(), perform)
            await self.begin(seconds)
            result = await drive(op.start(), perform)
            await self.commit()
        except BaseException as error:
            await self.recover(error)
            raise
        return result

    async def perform(self, step: Step, *, seconds: float, prepare: bool = True) -> Any:
        """The answer to what a plan yielded, each statement within `seconds`."""
        if self.connection.closed:
            raise DatabaseError("the connection is closed", "08003", sent=False)
        self.connection.timeout = seconds
        try:
            match step:
                case Statement():
                    return await self._fetch(step, prepare)
                case Copy():
                    return await self._copy(step)
                case _:
                    return [await self._fetch(statement, prepare) for statement in step]
        except psycopg.Error as error:
            raise self._database_error(error) from error

    async def _fetch(self, statement: Statement, prepare: bool) -> Rows:
        cursor = self._cursor
        try:
            await cursor.execute(statement.sql.encode(), statement.params, prepare=prepare and self._prepared)
        except (ValueError, TypeError, OverflowError) as error:  # from writing a parameter; psycopg lets them through
            raise DatabaseError(f"a value that cannot be sent: {error}", "22000", sent=False) from error
        result = cursor.pgresult
        return await cursor.fetchall() if result is not None and result.status == ExecStatus.TUPLES_OK else []

    async def _copy(self, copy: Copy) -> list[Row]:
        statement = sql.SQL("COPY {}.{} ({}) FROM STDIN").format(
            sql.Identifier(copy.schema),
            sql.Identifier(copy.table),
            sql.SQL(", ").join(map(sql.Identifier, copy.columns)),
        )
        async with self._cursor.copy(statement) as stream:
            for chunk in copy.chunks:
                await stream.write(chunk)
        return [(self._cursor.rowcount,)]

    async def listen(self, channel: str, heard: Callable[[Notify], None], seconds: float) -> None:
        """LISTEN to a channel; from here on `heard` is called for each notification."""
        self.connection.add_notify_handler(heard)
        statement = sql.SQL("LISTEN {}").format(sql.Identifier(channel)).as_string(self.connection)
        await self.perform(Statement("listen", statement), seconds=seconds, prepare=False)

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
        if isinstance(error, DatabaseError) and (
            error.connection_is_dead or error.failure is Failure.UNPREPARED or error.sqlstate == _STALE_PLAN
        ):
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
        """What a failed statement means; psycopg's own errors, and a connection that broke, have no SQLSTATE."""
        sent = not self._in_transaction
        if error.sqlstate is not None:
            message = error.diag.message_primary or str(error)
            return DatabaseError(message, error.sqlstate, constraint=error.diag.constraint_name, sent=sent)
        if self.connection.closed:
            return DatabaseError(f"the connection broke: {error}", sent=sent)
        if isinstance(error, psycopg.DataError | psycopg.ProgrammingError):  # a value that cannot be written or read
            return DatabaseError(str(error), "22000", sent=False)
        return DatabaseError(str(error), "XX000", sent=sent)
