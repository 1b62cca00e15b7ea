"""A user's own connection for the conformance kit: psycopg in a thread, whatever the adapter under test is."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import psycopg
import psycopg.sql
from psycopg.pq import TransactionStatus
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


class Sessions:
    """Opens sessions on one database. One that ends as it began is kept for the next: a new connection is a new server process,
    which has to learn everything about the schema before its first answer.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._idle: list[psycopg.Connection[TupleRow]] = []

    @contextlib.asynccontextmanager
    async def session(self, *, options: str = "") -> AsyncIterator[BlockingSession]:
        """Open, and of nobody else until the end of the block. options: as for libpq; such a session is not kept."""
        connection = await anyio.to_thread.run_sync(self._take, options)
        try:
            yield BlockingSession(connection)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._give_back, connection, not options)

    def close(self) -> None:
        """Close those that are kept."""
        while self._idle:
            self._idle.pop().close()

    def _take(self, options: str) -> psycopg.Connection[TupleRow]:
        return self._idle.pop() if self._idle and not options else connect(self._dsn, options)

    def _give_back(self, connection: psycopg.Connection[TupleRow], is_usual: bool) -> None:
        if not is_usual or connection.info.transaction_status is not TransactionStatus.IDLE:
            connection.close()  # whatever is open is rolled back
            return
        connection.execute(b"UNLISTEN *; SELECT pg_advisory_unlock_all(); RESET ALL")
        for _ in connection.notifies(timeout=0):
            pass
        self._idle.append(connection)


@contextlib.asynccontextmanager
async def sessions(dsn: str) -> AsyncIterator[Sessions]:
    """Closed at the end of the block."""
    opened = Sessions(dsn)
    try:
        yield opened
    finally:
        opened.close()
