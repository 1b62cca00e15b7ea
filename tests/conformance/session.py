"""A user's own connection for the conformance kit: psycopg in a thread, whatever the adapter under test is."""

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import psycopg
import psycopg.sql
from psycopg.rows import TupleRow

from awa_proto.errors import DatabaseError
from awa_proto.plan import Copy, Op, Row, Statement, Step

T = TypeVar("T")


class BlockingSession:
    """Statements as they come, in autocommit until one says BEGIN."""

    def __init__(self, connection: psycopg.Connection[TupleRow]) -> None:
        self._connection = connection

    async def run(self, op: Op[T]) -> T:
        return await anyio.to_thread.run_sync(self.perform, op)

    async def sql(self, text: str) -> list[Row]:
        return await anyio.to_thread.run_sync(self._execute, Statement("sql", text))

    async def heard(self) -> list[str]:
        return await anyio.to_thread.run_sync(self._heard)

    def perform(self, op: Op[T]) -> T:
        """Run a plan here, in the transaction that is open, if one is."""
        plan = op.start()
        try:
            step = next(plan)
            while True:
                try:
                    rows = self._answer(step)
                except DatabaseError as error:
                    step = plan.throw(error)
                else:
                    step = plan.send(rows)
        except StopIteration as done:
            result: T = done.value
            return result

    def perform_atomically(self, op: Op[T]) -> T:
        """Run a plan in a transaction of its own."""
        with self._connection.transaction():
            return self.perform(op)

    def _answer(self, step: Step) -> Any:
        match step:
            case Statement():
                return self._execute(step)
            case Copy():
                return self._copy(step)
            case _:
                return [self._execute(each) for each in step]

    def _execute(self, statement: Statement) -> list[Row]:
        with _translated():
            cursor = self._connection.execute(statement.sql.encode(), statement.params or None)
            return cursor.fetchall() if cursor.description else []

    def _copy(self, copy: Copy) -> list[Row]:
        columns = psycopg.sql.SQL(", ").join(map(psycopg.sql.Identifier, copy.columns))
        into = psycopg.sql.SQL("COPY {} ({}) FROM STDIN").format(
            psycopg.sql.Identifier(copy.schema, copy.table), columns
        )
        with _translated():
            cursor = self._connection.cursor()
            with cursor.copy(into.as_string(self._connection).encode()) as sink:
                for chunk in copy.chunks:
                    sink.write(chunk)
            return [(cursor.rowcount,)]

    def _heard(self) -> list[str]:
        self._connection.execute(b"SELECT 1")  # what was committed before it is delivered with its answer
        return [notification.payload for notification in self._connection.notifies(timeout=0)]


class _translated:  # noqa: N801  # used like the function it could be
    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, psycopg.Error):
            raise DatabaseError(str(error), error.sqlstate, constraint=error.diag.constraint_name) from error


def connect(dsn: str, options: str = "") -> psycopg.Connection[TupleRow]:
    """A connection that takes `$1` and prepares nothing. options: as for libpq."""
    return psycopg.connect(
        dsn, autocommit=True, options=options, cursor_factory=psycopg.RawCursor, prepare_threshold=None
    )


@contextlib.asynccontextmanager
async def session(dsn: str, *, options: str = "") -> AsyncIterator[BlockingSession]:
    """Open, and closed whatever happens."""
    connection = await anyio.to_thread.run_sync(partial(connect, dsn, options))
    try:
        yield BlockingSession(connection)
    finally:
        connection.close()
