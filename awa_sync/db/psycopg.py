"""A database for blocking code, through psycopg: what runs an Op.

Connections come from a pool, Ops are run by a `Session`, and whether to try again is decided by `Retries` in the core,
only for Ops on connections of our own. A Database may be used from many threads; each call has a connection to itself.
"""

from __future__ import annotations

import random as _random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

from awa_proto.contact import Calls
from awa_proto.driving.ops import Preparing, drive, errors_of_library, schema_named, seconds_of, users_sql
from awa_proto.driving.psycopg_connections import check_borrowed, check_conninfo
from awa_proto.dsn import Dsn, check_given
from awa_proto.errors import ConfigurationError, DatabaseError, Failure, Retries
from awa_proto.plan import Op, Row, Value, users_own
from awa_sync.db.lane import Lane
from awa_sync.db.pool import LentPool, Pool, Source
from awa_sync.db.session import Session

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

__all__ = ["Connection", "Database", "Lane"]

T = TypeVar("T")


class Connection:
    """A transaction of ours, READ COMMITTED, for Ops and for SQL of the user's own; its statements run in turn."""

    def __init__(self, session: Session, schema: str, seconds: float) -> None:
        self._session: Session | None = session
        self._schema = schema
        self._seconds = seconds
        self._turn = threading.Lock()

    def run(self, op: Op[T]) -> T:
        """The result of an Op inside this transaction; never tried again, for its failure ends the transaction."""
        with self._turn:
            perform = partial(self._open().perform, seconds=seconds_of(op, self._seconds))
            with schema_named(self._schema):
                return drive(op.start(), perform)

    def fetch(self, sql: str, *params: Value) -> list[Row]:
        """The rows of one statement with placeholders `$1`, each with a cast. Raises DatabaseError."""
        with self._turn:
            with users_sql():
                rows: list[Row] = self._open().perform(users_own(sql, params), seconds=self._seconds)
            return rows

    def execute(self, sql: str, *params: Value) -> None:
        """Run one statement with placeholders `$1`, each with a cast. Raises DatabaseError."""
        self.fetch(sql, *params)

    def end(self) -> None:
        """From here on every use is an error."""
        self._session = None

    def _open(self) -> Session:
        if self._session is None:
            raise DatabaseError("this transaction is over", "25P01", sent=False)
        return self._session


class Database:
    """PostgreSQL through psycopg.

    dsn: a URL or `key=value` pairs, or a function that gives them; None: the environment variables PGHOST, PGUSER and so on.
    pool: a psycopg_pool.ConnectionPool to use instead of one of our own, for everything but lanes, which need `dsn`.
    schema: where awa lives; named in errors.
    statement_timeout: seconds a statement, a connect, or the wait for a connection may take.
    max_size: connections of our own pool.
    random: numbers from 0 to 1, for the pauses between attempts.
    calls: told how each Op of a client ended.

    Raises ConfigurationError for a DSN that cannot be read.
    """

    def __init__(
        self,
        dsn: Dsn | None = None,
        *,
        pool: ConnectionPool[Any] | None = None,
        schema: str = "awa",
        statement_timeout: float = 30.0,
        max_size: int = 10,
        random: Callable[[], float] = _random.random,
        calls: Calls | None = None,
    ) -> None:
        check_given(dsn, check_conninfo)
        own = Pool(dsn, max_size)
        self._pool: Source = own if pool is None else LentPool(pool)
        self._lanes = own if pool is None or dsn is not None else None  # where their connections come from
        self._own = own
        self._schema = schema
        self._seconds = statement_timeout
        self._random = random
        self._calls = calls

    def open(self) -> None:
        """Nothing yet: connections open when they are needed, so that a server that is down is an error of a call."""

    def close(self) -> None:
        """Close the connections that are ours. A pool that was handed in stays open."""
        self._own.close()

    def run(self, op: Op[T]) -> T:
        """The result of one Op.

        On `op.using` it runs once, in the caller's transaction, and what psycopg raises is passed on as it is.
        Otherwise raises DatabaseError, or SchemaNotMigrated.
        """
        if op.using is not None:
            return self._run_borrowed(op, op.using)
        seconds = seconds_of(op, self._seconds)
        retries = Retries(op, self._schema, self._random, self._calls)
        while True:
            try:
                session = self._pool.take(seconds)
                try:
                    result = session.run_once(op, seconds)
                finally:
                    self._pool.give_back(session)
            except DatabaseError as error:
                self._learn_from(error)
                pause = retries.after(error)
            else:
                retries.succeeded()
                return result
            time.sleep(pause)

    def _run_borrowed(self, op: Op[T], connection: object) -> T:
        if isinstance(connection, Connection):
            return connection.run(op)
        if not isinstance(connection, psycopg.Connection):
            raise ConfigurationError(f"using= takes a psycopg.Connection here, not {type(connection).__qualname__}")
        check_borrowed(connection.pgconn)
        session = Session(connection, Preparing())
        try:
            with errors_of_library(self._schema, psycopg.Error):
                return drive(op.start(), partial(session.perform, seconds=seconds_of(op, self._seconds)))
        finally:
            session.release()

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A transaction, committed when the block ends, rolled back when an exception leaves it."""
        session = self._pool.take(self._seconds)
        connection = Connection(session, self._schema, self._seconds)
        try:
            session.begin(self._seconds)
            yield connection
            connection.end()
            session.commit()
        except BaseException as error:
            self._learn_from(error)
            session.recover(error)
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
        opened: Callable[[int], object] | None = None,
    ) -> Lane:
        """A connection of its own for one purpose of a worker.

        name: what it is for, told to the server as the application's name.
        channel: LISTEN to it from the moment the connection opens, which is when the first Op runs.
        notified: called with the payload of each notification, in whichever thread it arrives.
        lost: called once when the connection breaks, in use or not; in whichever thread notices.
        opened: called with the number of the server process, as it said it, whenever a connection was opened.
        """
        if self._lanes is None:
            raise ConfigurationError(f"the lane {name!r} needs a connection of its own: give dsn= beside pool=")
        connect = partial(self._lanes.connect, name=name)
        return Lane(connect, self._lanes.preparing, self._seconds, channel, notified, lost, opened)

    def _learn_from(self, error: BaseException) -> None:
        self._pool.preparing.learn_from(error)
        if isinstance(error, DatabaseError) and error.failure is Failure.READ_ONLY:
            self._pool.drop_idle()  # they lead to the same standby
