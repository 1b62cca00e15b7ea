"""Where connections come from: a small pool of our own, or one of psycopg_pool that was handed in.

Ours has no thread: a connection is opened by the thread that needs one and finds none idle, so that a server that is down
is said at once and with its reason. Connections come back already clean or already closed, so giving one back is putting
it on a stack. The one used last is the one taken next.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any, Protocol

import psycopg
from psycopg.conninfo import conninfo_to_dict, timeout_from_conninfo

from awa_proto.dsn import check_dsn
from awa_proto.errors import ConfigurationError, DatabaseError
from awa_sync.db.session import Preparing, Session

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


def check(dsn: str) -> None:
    """Raise ConfigurationError for a DSN that cannot be read."""
    check_dsn(dsn, keywords=True)
    try:
        timeout_from_conninfo(conninfo_to_dict(dsn))
    except psycopg.Error:  # its text is not repeated, it may hold the password
        raise ConfigurationError("the database URL has an unknown parameter, or cannot be read by libpq") from None


class Pool:
    """At most `max_size` connections to `dsn`, opened when needed."""

    def __init__(self, dsn: str, max_size: int) -> None:
        self.preparing = Preparing()
        self._dsn = dsn
        self._max_size = max_size
        self._slots = threading.Semaphore(max_size)
        self._idle: list[Session] = []
        self._closed = False

    def connect(self, seconds: float, *, name: str = "") -> Session:
        """A connection that does not count. Raises DatabaseError.

        seconds: for each host; libpq takes at least 2.
        name: what it is for, told to the server unless the DSN has an application_name.
        """
        limit = min(max(2, math.ceil(seconds)), timeout_from_conninfo(conninfo_to_dict(self._dsn)))
        called = f"awa {name}".strip()
        try:
            connection = psycopg.connect(
                self._dsn, autocommit=True, connect_timeout=limit, fallback_application_name=called
            )
        except psycopg.Error as error:
            raise _not_connected(error) from error
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
        """A clean connection, waited for at most `seconds`. Raises DatabaseError."""
        while True:
            try:
                connection = self._pool.getconn(timeout=seconds)
            except psycopg.Error as error:
                raise _not_connected(error) from error
            session = Session(connection, self.preparing)
            if session.is_silent():
                break
            session.close()
            self._pool.putconn(connection)
        if not connection.autocommit:
            connection.autocommit = True
            self._transactional.add(session)
        return session

    def give_back(self, session: Session) -> None:
        """Take back a connection that is clean or closed."""
        if session in self._transactional:
            self._transactional.discard(session)
            if not session.connection.closed:
                session.connection.autocommit = False
        session.release()
        self._pool.putconn(session.connection)

    def drop_idle(self) -> None:
        """Leave them: they are the user's."""


def _not_connected(error: psycopg.Error) -> DatabaseError:
    """What a failure to connect means. Nothing was sent, so nothing was done."""
    return DatabaseError(f"cannot connect to the database: {error}", error.sqlstate or "08001", sent=False)
