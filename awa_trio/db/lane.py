"""A worker's own connection, which may listen.

Between Ops a task watches the socket of a listening lane: what comes then is a notification, or the end. It is a system
task of trio, so a lane needs no nursery and has the same shape as on the other drivers; it lives only while the lane is
idle, and ends when an Op begins, with the connection, or with `trio.run`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import psycopg
import trio
from psycopg import Notify

from awa_proto.driving.ops import Preparing, seconds_of
from awa_proto.driving.psycopg_connections import receive
from awa_proto.errors import DatabaseError
from awa_proto.plan import Op
from awa_trio.db.session import Session
from awa_trio.db.settling import Turn

T = TypeVar("T")

_log = logging.getLogger("awa")


class Lane:
    """Opened when first used, kept as it is between Ops, dropped when dead."""

    def __init__(
        self,
        connect: Callable[[float], Awaitable[Session]],
        preparing: Preparing,
        seconds: float,
        channel: str | None,
        notified: Callable[[str], object] | None,
        lost: Callable[[DatabaseError], object] | None,
        opened: Callable[[int], object] | None = None,
    ) -> None:
        self._connect = connect
        self._preparing = preparing
        self._seconds = seconds
        self._channel = channel
        self._notified = notified
        self._lost = lost
        self._opened = opened
        self._session: Session | None = None
        self._turn = Turn()
        self._watching = trio.CancelScope()

    async def run(self, op: Op[T]) -> T:
        """The result of an Op, run exactly once. Raises DatabaseError."""
        seconds = seconds_of(op, self._seconds)
        async with self._turn:
            self._watching.cancel()  # takes effect at once: the socket is ours
            session = await self._ready(seconds)
            try:
                return await session.run_once(op, seconds)
            except BaseException as error:
                self._preparing.learn_from(error)
                if not session.is_usable(self._preparing):
                    self._drop(session, error)
                raise
            finally:
                self._watch(session)

    async def close(self) -> None:
        """Close the connection, also under an Op that is running. Used again, the lane opens a new one."""
        session, self._session = self._session, None
        if session is not None:
            self._watching.cancel()
            session.connection.abandon()

    async def _ready(self, seconds: float) -> Session:
        """The open connection, or a new one."""
        session = self._session
        if session is not None:
            if self._is_alive(session):
                return session
            self._drop(session, None)
        session = await self._connect(seconds)
        try:
            if self._channel is not None:
                await session.listen(self._channel, self._heard, seconds)
        except BaseException:
            session.connection.abandon()
            raise
        self._session = session
        if self._opened is not None:
            self._opened(session.connection.pgconn.backend_pid)
        return session

    def _is_alive(self, session: Session) -> bool:
        """Whether it can be used; one that listens takes in first what came, which may be its end."""
        if not session.is_usable(self._preparing) or session.is_silent():
            return session.is_usable(self._preparing)
        if self._channel is None:
            return False
        try:
            receive(session.connection.pgconn)
        except psycopg.Error:
            return False
        return True

    def _heard(self, notification: Notify) -> None:
        if self._notified is not None:
            try:
                self._notified(notification.payload)
            except Exception:  # noqa: BLE001  a system task of trio must not raise
                _log.exception("a callback for notifications failed")

    def _watch(self, session: Session) -> None:
        if self._channel is not None and self._session is session:
            self._watching = trio.CancelScope()
            trio.lowlevel.spawn_system_task(self._receive, session, self._watching, name="awa listener")

    async def _receive(self, session: Session, scope: trio.CancelScope) -> None:
        """Take in what the server sends while the lane is idle."""
        with scope:
            try:
                while not scope.cancel_called:  # else an Op has begun, and reads by itself
                    await trio.lowlevel.wait_readable(session.connection.pgconn.socket)
                    if not scope.cancel_called:
                        receive(session.connection.pgconn)
            except trio.ClosedResourceError:
                return
            except (psycopg.Error, OSError) as error:
                self._drop(session, DatabaseError(f"the connection was closed by the other side: {error}", sent=False))

    def _drop(self, session: Session, error: BaseException | None) -> None:
        """Forget a dead connection, and say so, once."""
        if self._session is not session:
            return
        self._session = None
        session.connection.abandon()
        if self._lost is not None:
            if not isinstance(error, DatabaseError):
                error = DatabaseError("the connection was closed, its state being in doubt", sent=False)
            self._lost(error)
