"""A worker's own connection, which may listen.

Ops run in the thread that calls `run`. A listening lane has one thread more, as long as its connection lives: it sleeps
until the socket is readable, and then takes its turn on the connection like an Op. What it finds is a notification, or
the end; what came together with the answer of an Op was already read there.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, TypeVar

import psycopg
from psycopg import Notify
from typing_extensions import override

from awa_proto.driving.ops import Preparing, seconds_of
from awa_proto.driving.psycopg_connections import receive
from awa_proto.errors import DatabaseError
from awa_proto.plan import Op
from awa_sync.db.session import Session
from awa_sync.db.waiting import GRACE, request_cancel

T = TypeVar("T")

_log = logging.getLogger("awa")
_TO_CANCEL = 1.0
"""Seconds a running statement gets to end as cancelled, before its connection is cut off when the lane is closed."""


class Lane:
    """Opened when first used, kept as it is between Ops, dropped when dead."""

    def __init__(
        self,
        connect: Callable[[float], Session],
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
        self._line: _Line | None = None
        self._turn = threading.RLock()

    def run(self, op: Op[T]) -> T:
        """The result of an Op, run exactly once. Raises DatabaseError."""
        seconds = seconds_of(op, self._seconds)
        with self._turn:
            session = self._ready(seconds)
            try:
                return session.run_once(op, seconds)
            except BaseException as error:
                self._preparing.learn_from(error)
                if not session.is_usable(self._preparing):
                    self._drop(session, error)
                raise

    def close(self) -> None:
        """Close the connection, also under an Op that is running. Used again, the lane opens a new one."""
        line, self._line = self._line, None  # from here on its end is no loss
        if line is None:
            return
        if not self._turn.acquire(blocking=False):
            request_cancel(line.session.connection, _TO_CANCEL)  # cut off only, it would go on in the server
            if not self._turn.acquire(timeout=_TO_CANCEL):
                _hang_up(line.session)
                if not self._turn.acquire(timeout=GRACE):
                    _log.warning("a connection is in use and cannot be closed")
                    return
        try:
            line.close()
        finally:
            self._turn.release()
        if line.listener is not None and line.listener is not threading.current_thread():
            line.listener.join(GRACE)

    def _ready(self, seconds: float) -> Session:
        """The open connection, or a new one."""
        if self._line is not None:
            session = self._line.session
            if self._is_alive(session):
                return session
            self._drop(session, None)
        session = self._connect(seconds)
        listener = None
        try:
            if self._channel is not None:
                session.listen(self._channel, self._heard, seconds)
                listener = _Listener(session, self._turn, self._drop)
                listener.start()
        except BaseException:
            session.close()
            raise
        self._line = _Line(session, listener)
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
            except Exception:  # noqa: BLE001  what it raises must not come out of somebody's statement
                _log.exception("a callback for notifications failed")

    def _drop(self, session: Session, error: BaseException | None) -> None:
        """Forget a dead connection, and say so, once."""
        line = self._line
        if line is None or line.session is not session:
            return
        self._line = None
        line.close()
        if self._lost is not None:
            if not isinstance(error, DatabaseError):
                error = DatabaseError("the connection was closed, its state being in doubt", sent=False)
            self._lost(error)


class _Line(NamedTuple):
    """An open connection, and who listens to it."""

    session: Session
    listener: _Listener | None

    def close(self) -> None:
        if self.listener is not None:
            self.listener.stop()
        self.session.close()


class _Listener(threading.Thread):
    """Takes in what the server sends while no Op runs."""

    def __init__(
        self, session: Session, turn: threading.RLock, broken: Callable[[Session, DatabaseError], None]
    ) -> None:
        super().__init__(name="awa listener", daemon=True)
        self._session = session
        self._turn = turn
        self._broken = broken
        self._stopped = False
        self._sleeper, self._waker = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._sleeper, selectors.EVENT_READ)
        self._selector.register(session.connection.pgconn.socket, selectors.EVENT_READ)

    def stop(self) -> None:
        """Wake the thread, to end. Called in turn, before the connection is closed."""
        self._stopped = True
        self._waker.close()

    @override
    def run(self) -> None:
        """Until stopped, or the connection broke."""
        with self._sleeper, self._waker, self._selector:
            while self._selector.select():
                with self._turn:
                    if self._stopped:
                        return
                    try:
                        receive(self._session.connection.pgconn)
                    except (psycopg.Error, OSError) as error:
                        message = f"the connection was closed by the other side: {error}"
                        self._broken(self._session, DatabaseError(message, sent=False))
                        return


def _hang_up(session: Session) -> None:
    """Let the Op that uses a connection in another thread fail. That thread still waits for the socket: it stays open."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(session.connection.pgconn.socket)) as end:
        end.shutdown(socket.SHUT_RDWR)
