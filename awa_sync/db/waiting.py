"""Waiting for the server, with an end to every wait.

psycopg's logic is in generators that yield what the socket has to be ready for, and `Connection.wait` drives them for as
long as it takes. `wait` here gives up at a deadline, also when the other end is half open and never says anything: it
cancels the statement on the server, reads what is left of the answer, and where that is in doubt closes the connection.
An interruption (Ctrl-C) is treated alike.

What psycopg does not promise to keep is used in this file only: the module `waiting` and `_connect_gen`.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, TypeVar, cast

import psycopg
from psycopg import Connection, errors, waiting
from psycopg.abc import ConnDict, PQGen, PQGenConn
from psycopg.conninfo import conninfo_attempts, conninfo_to_dict, make_conninfo, timeout_from_conninfo
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.waiting import Wait

from awa_proto.driving.psycopg_connections import nobody_answered

T = TypeVar("T")

GRACE = 5.0
"""Seconds to cancel a statement, or to end an interrupted transaction, before the connection is closed."""

_TICK = 0.1
"""Seconds between two looks at the clock while nothing comes."""

_AGAIN = 0.25
"""Seconds between two requests to cancel: one may fall between two statements of a generator, and hit neither."""


class _Late(Exception):
    """The deadline passed."""


class _Run:
    """A generator that can be interrupted and gone on with."""

    __slots__ = ("_gen", "_state")

    def __init__(self, gen: PQGen[Any]) -> None:
        self._gen = gen
        self._state: Wait | None = None

    def until(self, deadline: float) -> PQGen[Any]:
        try:
            if self._state is None:
                self._state = next(self._gen)
            while True:
                ready = yield self._state
                self._state = self._gen.send(ready)
                if monotonic() >= deadline:
                    raise _Late
        except StopIteration as done:
            return done.value


def wait(connection: Connection[Any], gen: PQGen[T], seconds: float, *, settle: bool = False) -> T:
    """The result of a generator that works on `connection`, within `seconds`.

    settle: what was sent must not be cancelled, for it ends a transaction.

    Raises QueryCanceled when the server confirmed that it stopped, OperationalError when the connection had to be closed.
    """
    pgconn = connection.pgconn
    midway = pgconn.transaction_status == TransactionStatus.ACTIVE or pgconn.pipeline_status != PipelineStatus.OFF
    run = _Run(gen)
    try:
        return cast("T", waiting.wait(run.until(monotonic() + seconds), pgconn.socket, interval=_TICK))
    except _Late:
        late = errors.OperationalError(f"no answer within {seconds:g} s: the connection was closed")
        try:
            return cast("T", _finish(connection, run, cancel=True, close=midway or settle, otherwise=late))
        except errors.QueryCanceled as error:
            raise errors.QueryCanceled(f"no answer within {seconds:g} s: the statement was cancelled") from error
    except errors.Error:
        raise
    except BaseException as interruption:  # Ctrl-C, or what else the handler of a signal raised
        if pgconn.transaction_status != TransactionStatus.ACTIVE:
            raise  # not at all: it comes from writing a parameter, and nothing was sent
        with suppress(errors.Error):
            _finish(connection, run, cancel=not settle, close=midway, otherwise=interruption)
        raise


def _finish(connection: Connection[Any], run: _Run, *, cancel: bool, close: bool, otherwise: BaseException) -> object:
    """Bring an interrupted generator to its end: its result or its error. Else close the connection.

    cancel: ask the server to stop first.
    close: do not even try.
    otherwise: raised when the connection had to be closed.
    """
    pgconn = connection.pgconn
    end = monotonic() + GRACE
    while not close and (now := monotonic()) < end:
        try:
            if cancel:
                request_cancel(connection, end - now)
            result = waiting.wait(run.until(min(end, now + _AGAIN) if cancel else end), pgconn.socket, interval=_TICK)
            if pgconn.transaction_status != TransactionStatus.ACTIVE:
                return result
            break
        except _Late:
            continue
        except errors.Error:
            if pgconn.transaction_status != TransactionStatus.ACTIVE:
                raise
            break
        except BaseException:  # interrupted again
            pgconn.finish()
            raise
    pgconn.finish()
    raise otherwise


def request_cancel(connection: Connection[Any], seconds: float) -> None:
    """Ask the server to stop; returns when it was told, or cannot be told."""

    def cancel() -> None:
        with suppress(errors.Error):
            if psycopg.capabilities.has_cancel_safe():
                connection.cancel_safe(timeout=seconds)
            else:
                connection.cancel()

    if psycopg.capabilities.has_cancel_safe():
        cancel()
    else:  # libpq before 17 has no deadline for this
        thread = threading.Thread(target=cancel, daemon=True)
        thread.start()
        thread.join(seconds)


def connect(conninfo: str, seconds: float, **options: str) -> Connection[Any]:
    """A new connection within `seconds`, however many hosts are tried and names looked up. Raises psycopg.Error.

    psycopg's own `connect` has a limit for each host, of at least 2 seconds, and none for names.
    """
    params = conninfo_to_dict(conninfo, **options)
    end = monotonic() + seconds
    failures: list[errors.Error] = []
    for attempt in _attempts(params, seconds):
        limit = min(end, monotonic() + timeout_from_conninfo(params))
        gen = Connection._connect_gen(make_conninfo("", **attempt))  # noqa: SLF001  see above
        try:
            return waiting.wait_conn(_until(gen, limit), interval=_TICK)
        except _Late:
            failures.append(errors.ConnectionTimeout("connection timeout expired"))
        except errors.Error as error:
            failures.append(error)
        if monotonic() >= end:
            break
    raise nobody_answered(failures)


def _attempts(params: ConnDict, seconds: float) -> list[ConnDict]:
    """Where to connect to. The system looks names up for as long as it likes, hence in a thread."""

    def look_up() -> None:
        try:
            found.put(conninfo_attempts(params))
        except Exception as error:  # noqa: BLE001  raised by who waits for it
            found.put(error)

    found: SimpleQueue[list[ConnDict] | Exception] = SimpleQueue()
    threading.Thread(target=look_up, name="awa resolver", daemon=True).start()
    try:
        answer = found.get(timeout=seconds)
    except Empty:
        raise errors.ConnectionTimeout("the names of the hosts were not resolved in time") from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _until(gen: PQGenConn[T], deadline: float) -> PQGenConn[T]:
    """The same generator, given up at a deadline. Whoever drives it looks up at least each `_TICK`."""
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if monotonic() >= deadline:
                raise _Late
            if ready:
                wanted = gen.send(ready)
    except StopIteration as done:
        result: T = done.value
        return result
    finally:
        gen.close()
