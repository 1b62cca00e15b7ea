"""Where connections come from: a small pool of our own, or one of psycopg_pool that was handed in.

Ours has no thread: a connection is opened by the thread that needs one and finds none idle, so that a server that is down
is said at once and with its reason. Connections come back already clean or already closed, so giving one back is putting
it on a stack. The one used last is the one taken next.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Protocol

import psycopg

from awa_proto.driving.ops import Preparing
from awa_proto.driving.psycopg_connections import ENCODING, check_conninfo, check_lent
from awa_proto.driving.psycopg_errors import connecting_failed
from awa_proto.dsn import Dsn, current
from awa_proto.errors import DatabaseError
from awa_sync.db.session import Session
from awa_sync.db.waiting import connect

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool


class Source(Protocol):
    """What a Database needs of a pool."""

    preparing: Preparing

    def take(self, seconds: float) -> Session:
        """A clean connection, waited for at most `seconds`. Raises DatabaseError."""
        ...

    def give_back(self, session: Session) -> None:
        """Take back a connection that is clean or closed."""
        ...

    def drop_idle(self) -> None:
        """Close what is idle, so that the next caller gets a new connection."""
        ...


class Pool:
    """At most `max_size` connections to `dsn`, opened when needed."""

    def __init__(self, dsn: Dsn | None, max_size: int) -> None:
        self.preparing = Preparing()
        self._dsn = dsn
        self._max_size = max_size
        self._slots = threading.Semaphore(max_size)
        self._idle: list[Session] = []
        self._closed = False

    def connect(self, seconds: float, *, name: str = "") -> Session:
        """A connection that does not count. Raises DatabaseError.

        seconds: for all hosts together.
        name: what it is for, told to the server unless the DSN has an application_name.
        """
        dsn = current(self._dsn, check_conninfo) or ""
        options = {"client_encoding": ENCODING, "fallback_application_name": f"awa {name}".strip()}
        try:
            connection = connect(dsn, seconds, **options)
            connection.autocommit = True
        except psycopg.errors.ConnectionTimeout as error:
            message = f"no connection to the database within {seconds:g} s"
            raise DatabaseError(message, "08001", sent=False) from error
        except psycopg.Error as error:
            raise connecting_failed(error) from error
        return Session(connection, self.preparing)

    def take(self, seconds: float) -> Session:
        """A clean connection, waited for at most `seconds` and opened within as many. Raises DatabaseError."""
        if not self._slots.acquire(timeout=seconds):
            message = f"no connection became free within {seconds:g} s: all {self._max_size} are in use"
            raise DatabaseError(message, "08001", sent=False)
        try:
            if self._closed:
                raise DatabaseError("the client is closed", "08003", sent=False)
            while (session := self._pop()) is not None:
                if session.is_usable(self.preparing) and session.is_silent():
                    return session
                session.close()
            return self.connect(seconds)
        except BaseException:
            self._slots.release()
            raise

    def give_back(self, session: Session) -> None:
        """Take back a connection that is clean or closed."""
        if session.is_usable(self.preparing):
            self._idle.append(session)
            if self._closed:  # looked at after, so that no connection is left behind by `close`
                self.drop_idle()
        else:
            session.close()
        self._slots.release()

    def drop_idle(self) -> None:
        """Close what is idle, so that the next caller gets a new connection."""
        while (session := self._pop()) is not None:
            session.close()

    def close(self) -> None:
        """Close what is idle now, and the rest when it is given back."""
        self._closed = True
        self.drop_idle()

    def _pop(self) -> Session | None:
        try:
            return self._idle.pop()  # one step for all threads
        except IndexError:
            return None


class LentPool:
    """A psycopg_pool.ConnectionPool of the user's. Its connections are in autocommit while they are with us."""

    def __init__(self, pool: ConnectionPool[Any]) -> None:
        self.preparing = Preparing()
        self._pool = pool
        self._transactional: set[Session] = set()  # those that came without autocommit

    def take(self, seconds: float) -> Session:
        """A clean connection within `seconds`. Raises DatabaseError, or ConfigurationError for one of no use."""
        end = time.monotonic() + seconds
        while True:
            try:
                connection = self._pool.getconn(timeout=max(0.0, end - time.monotonic()))
            except psycopg.Error as error:
                raise connecting_failed(error) from error
            try:
                if (session := self._prepared(connection)) is not None:
                    return session
            except psycopg.Error as error:
                self._pool.putconn(connection)
                raise connecting_failed(error) from error
            except BaseException:
                self._pool.putconn(connection)
                raise
            self._pool.putconn(connection)

    def _prepared(self, connection: psycopg.Connection[Any]) -> Session | None:
        """The connection for our use; None for one that the server has ended, which is closed then."""
        session = Session(connection, self.preparing)
        try:
            if not session.is_silent():
                session.close()
                return None
            check_lent(connection.pgconn)
            if not connection.autocommit:
                connection.autocommit = True
                self._transactional.add(session)
        except BaseException:
            session.release()
            raise
        return session

    def give_back(self, session: Session) -> None:
        """Take back a connection that is clean or closed."""
        connection = session.connection
        try:
            if session in self._transactional:
                self._transactional.discard(session)
                if not connection.closed:
                    connection.autocommit = False
        finally:
            session.release()
            self._pool.putconn(connection)

    def drop_idle(self) -> None:
        """Leave them: they are the user's."""
