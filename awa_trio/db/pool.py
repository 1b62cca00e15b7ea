"""A small pool without a task of its own: slots, and a stack of idle connections.

A connection is opened by the task that needs one and finds none idle. Connections come back already clean or already
closed, so giving one back is putting it on the stack. The one used last is the one taken next.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import trio
from psycopg.conninfo import conninfo_to_dict

from awa_proto.dsn import check_dsn
from awa_proto.errors import ConfigurationError, DatabaseError
from awa_trio.db.connection import TrioConnection
from awa_trio.db.session import Preparing, Session


class Pool:
    """At most `max_size` connections to `dsn`, opened when needed.

    dsn: a URL or `key=value` pairs; None: the environment variables PGHOST, PGUSER and so on.
    timeout: seconds to wait for a connection, and again to open it.

    Raises ConfigurationError for a DSN that cannot be read.
    """

    def __init__(self, dsn: str | None = None, *, max_size: int = 10, timeout: float = 30.0) -> None:
        if dsn is not None:
            _check(dsn)
        self.preparing = Preparing()
        self._dsn = dsn or ""
        self._max_size = max_size
        self._timeout = timeout
        self._slots = trio.Semaphore(max_size, max_value=max_size)
        self._idle: list[Session] = []
        self._closed = False

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[TrioConnection[Any]]:
        """A connection in autocommit, rolled back when the block leaves a transaction open. Raises DatabaseError."""
        session = await self.take(self._timeout)
        session.connection.timeout = None
        try:
            yield session.connection
        finally:
            await session.recover(None)
            if not session.connection.autocommit:
                session.connection.abandon()  # changed in the block; the next one expects what this one got
            self.give_back(session)

    async def connect(self, seconds: float, *, name: str = "") -> Session:
        """A connection that does not count. Raises DatabaseError.

        name: what it is for, told to the server unless the DSN has an application_name.
        """
        called = f"awa {name}".strip()
        try:
            with trio.fail_after(seconds):
                connection = await TrioConnection.connect(self._dsn, autocommit=True, fallback_application_name=called)
            return Session(connection, self.preparing)
        except trio.TooSlowError:
            message = f"no connection to the database within {seconds:g} s"
            raise DatabaseError(message, "08001", sent=False) from None
        except psycopg.Error as error:
            message = f"cannot connect to the database: {error}"
            raise DatabaseError(message, error.sqlstate or "08001", sent=False) from error

    async def take(self, seconds: float) -> Session:
        """A clean connection, waited for at most `seconds` and opened within as many. Raises DatabaseError."""
        try:
            self._slots.acquire_nowait()
        except trio.WouldBlock:
            with trio.move_on_after(seconds) as waiting:
                await self._slots.acquire()
            if waiting.cancelled_caught:
                message = f"no connection became free within {seconds:g} s: all {self._max_size} are in use"
                raise DatabaseError(message, "08001", sent=False) from None
        try:
            if self._closed:
                raise DatabaseError("the pool is closed", "08003", sent=False)
            while self._idle:
                session = self._idle.pop()
                if session.is_usable(self.preparing) and session.is_silent():
                    return session
                session.connection.abandon()
            return await self.connect(seconds)
        except BaseException:
            self._slots.release()
            raise

    def give_back(self, session: Session) -> None:
        """Take back a connection that is clean or closed."""
        self._slots.release()
        if self._closed or not session.is_usable(self.preparing):
            session.connection.abandon()
        else:
            self._idle.append(session)

    def drop_idle(self) -> None:
        """Close what is idle, so that the next caller gets a new connection."""
        while self._idle:
            self._idle.pop().connection.abandon()

    async def close(self) -> None:
        """Close what is idle now, and the rest when it is given back."""
        self._closed = True
        self.drop_idle()


def _check(dsn: str) -> None:
    check_dsn(dsn, keywords=True)
    try:
        conninfo_to_dict(dsn)
    except psycopg.Error:  # its text is not repeated, it may hold the password
        raise ConfigurationError("the database URL has an unknown parameter, or cannot be read by libpq") from None
