"""Waiting for the server, with an end to every wait.

psycopg's logic is in generators that yield what the socket has to be ready for, and `Connection.wait` drives them for as
long as it takes. `wait` here gives up at a deadline, also when the other end is half open and never says anything: it
cancels the statement on the server, reads what is left of the answer, and where that is in doubt closes the connection.
An interruption (Ctrl-C) is treated alike.

What psycopg does not promise to keep is used in this file only: the modules `generators` and `waiting`.
"""

from __future__ import annotations

import select
import sys
import threading
from contextlib import suppress
from time import monotonic
from typing import Any, TypeVar, cast

import psycopg
from psycopg import Connection, errors, generators, waiting
from psycopg.abc import PQGen
from psycopg.pq import ExecStatus, PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGconn
from psycopg.waiting import Wait

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
                _request_cancel(connection, end - now)
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


def _request_cancel(connection: Connection[Any], seconds: float) -> None:
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


def command(pgconn: PGconn, text: bytes) -> PQGen[str]:
    """Run a command without parameters, such as COMMIT, at the cost of one message; returns what the server did.

    psycopg's own `rollback` also forgets all prepared statements, which costs a round trip and is of use only to those
    who create and drop types.
    """
    pgconn.send_query(text)
    result = (yield from generators.execute(pgconn))[-1]
    if result.status == ExecStatus.FATAL_ERROR:
        raise errors.error_from_result(result, encoding="utf-8")
    return (result.command_status or b"").decode()


if sys.platform != "win32":

    def is_readable(fd: int) -> bool:
        """Whether something came that nobody has read."""
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(0))

else:

    def is_readable(fd: int) -> bool:
        """Whether something came that nobody has read."""
        return bool(select.select([fd], [], [], 0)[0])
