"""One connection that speaks the words of the core: steps in, rows out, and every failure a `DatabaseError`.

Where a transaction begins and ends is decided here, and in what state a connection is left:

- It is clean afterwards (no transaction, nothing running) or closed. Where that is in doubt it is closed.
- COMMIT is never cut. If `run_once` returns, it is committed; if it is interrupted, it may or may not be.
- What fails before COMMIT was sent left nothing behind, even when the connection broke: that is `CONNECTION_LOST`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import psycopg
from psycopg import Notify, RawCursor
from psycopg.abc import PQGen
from psycopg.pq import Format
from psycopg.rows import tuple_row

from awa_proto.driving.ops import Preparing, drive
from awa_proto.driving.psycopg_connections import (
    command,
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
from awa_sync.db.waiting import GRACE, wait

T = TypeVar("T")

_log = logging.getLogger("awa")


class Session:
    """A psycopg connection, which may be the user's, and the cursor it runs the core's statements with.

    From here until `release` all waiting of the connection goes through `waiting.wait`, also that of psycopg's own methods:
    `Connection.wait` is what they call, and it is shadowed on this one object.
    """

    __slots__ = ("_cursor", "_in_transaction", "_prepared", "_seconds", "_settling", "connection")

    def __init__(self, connection: psycopg.Connection[Any], preparing: Preparing) -> None:
        self.connection = connection
        self._prepared = preparing.on
        name_apart(connection, os.urandom(7))
        self._in_transaction = False  # of ours, so that a failure before COMMIT means that nothing was done
        self._seconds = GRACE
        self._settling = False
        self._cursor = RawCursor(connection, row_factory=tuple_row)
        self._cursor.format = Format.BINARY
        adapt(self._cursor.adapters)
        vars(connection)["wait"] = self._wait

    def release(self) -> None:
        """Leave the connection as it was."""
        vars(self.connection).pop("wait", None)

    def close(self) -> None:
        """Close at once, without waiting for the server."""
        self.release()
        self.connection.pgconn.finish()

    def is_usable(self, preparing: Preparing) -> bool:
        """Whether it is open and prepares as it should."""
        return not self.connection.closed and self._prepared == preparing.on

    def is_silent(self) -> bool:
        """Whether the server sent nothing while nobody asked; what it sends then is mostly its farewell."""
        return is_silent(self.connection.pgconn)

    def is_clean(self) -> bool:
        """Whether it is closed, or certainly has no transaction open and nothing running."""
        return is_clean(self.connection.pgconn)

    def run_once(self, op: Op[T], seconds: float) -> T:
        """The result of an Op, in a transaction of its own when it is atomic. Raises DatabaseError."""
        perform = partial(self.perform, seconds=seconds)
        try:
            if not op.atomic:
                return drive(op.start(), perform)
            self.begin(seconds)
            result = drive(op.start(), perform)
            self.commit()
        except BaseException as error:
            self.recover(error)
            raise
        return result

    def perform(self, step: Step, *, seconds: float) -> Any:
        """The answer to what a plan yielded, each statement within `seconds`."""
        self._seconds = seconds
        self._check_open()
        try:
            match step:
                case Statement():
                    return self._fetch(step)
                case Copy():
                    return self._copy(step)
                case _:
                    return [self._fetch(statement) for statement in step]
        except psycopg.Error as error:
            raise self._database_error(error) from error

    def _fetch(self, statement: Statement) -> Rows:
        cursor, prepare = self._cursor, statement.prepare and self._prepared
        try:
            cursor.execute(statement.sql.encode(), statement.params, prepare=prepare)
        except (ValueError, TypeError, OverflowError) as error:
            raise value_refused(error) from error
        return cursor.fetchall() if has_rows(cursor.pgresult) else []

    def _copy(self, copy: Copy) -> list[Row]:
        with self._cursor.copy(copy_statement(copy)) as stream:
            for chunk in copy.chunks:
                stream.write(chunk)
        return [(self._cursor.rowcount,)]

    def listen(self, channel: str, heard: Callable[[Notify], None], seconds: float) -> None:
        """LISTEN to a channel; from here on `heard` is called for each notification."""
        self.connection.add_notify_handler(heard)
        self.perform(listen_statement(channel), seconds=seconds)

    def begin(self, seconds: float) -> None:
        """Open a READ COMMITTED transaction, each of whose statements may take `seconds`."""
        self._seconds = seconds
        self._check_open()
        self._in_transaction = True
        self._command(b"BEGIN ISOLATION LEVEL READ COMMITTED")

    def commit(self) -> None:
        """Commit. Raises DatabaseError when the server rolled back instead."""
        self._check_open()
        self._in_transaction = False
        if self._command(b"COMMIT") != "COMMIT":
            raise DatabaseError("the transaction had failed before, so COMMIT rolled it back", "25P02")

    def recover(self, error: BaseException | None) -> None:
        """Whatever happened: leave the connection clean, or closed."""
        self._in_transaction = False
        if isinstance(error, DatabaseError) and error.connection_is_dead:
            self.close()
        elif not self.is_clean():
            self._seconds = GRACE
            try:
                self._command(b"ROLLBACK")
            except DatabaseError as second:
                _log.info("closing a connection that could not be rolled back: %s", second)
            finally:
                if not self.is_clean():
                    self.close()

    def _check_open(self) -> None:
        if self.connection.closed:
            raise DatabaseError("the connection is closed", "08003", sent=False)

    def _command(self, text: bytes) -> str:
        self._settling = True
        try:
            with self.connection.lock:
                return self._wait(command(self.connection.pgconn, text))
        except psycopg.Error as error:
            raise self._database_error(error) from error
        finally:
            self._settling = False

    def _wait(self, gen: PQGen[T], *_: object, **__: object) -> T:
        return wait(self.connection, gen, self._seconds, settle=self._settling)

    def _database_error(self, error: psycopg.Error) -> DatabaseError:
        return statement_failed(error, closed=self.connection.closed, sent=not self._in_transaction)
