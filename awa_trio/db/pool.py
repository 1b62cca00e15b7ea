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

from awa_proto.driving.ops import Preparing
from awa_proto.driving.psycopg_connections import ENCODING, check_conninfo
from awa_proto.driving.psycopg_errors import connecting_failed
from awa_proto.dsn import Dsn, check_given, current
from awa_proto.errors import DatabaseError
from awa_trio.db.connection import TrioConnection
from awa_trio.db.session import Session


class Pool:
    """At most `max_size` connections to `dsn`, opened when needed.

    dsn: a URL or `key=value` pairs, or a function that gives them; None: the environment variables PGHOST, PGUSER and so on.
    timeout: seconds to wait for a connection, and again to open it.

    Raises ConfigurationError for a DSN that cannot be read.
    """

    def __init__(self, dsn: Dsn | None = None, *, max_size: int = 10, timeout: float = 30.0) -> None:
        check_given(dsn, check_conninfo)
        self.preparing = Preparing()
        self._dsn = dsn
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
        dsn = current(self._dsn, check_conninfo) or ""
        try:
            with trio.fail_after(seconds):
                connection = await TrioConnection.connect(
                    dsn,
                    autocommit=True,
                    client_encoding=ENCODING,
                    fallback_application_name=f"awa {name}".strip(),
                )
            return Session(connection, self.preparing)
        except trio.TooSlowError:
            message = f"no connection to the database within {seconds:g} s"
            raise DatabaseError(message, "08001", sent=False) from None
        except psycopg.Error as error:
            raise connecting_failed(error) from error

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
        self.abandon()

    def abandon(self) -> None:
        """The same from outside of the `trio.run` it was used in."""
        self._closed = True
        self.drop_idle()
