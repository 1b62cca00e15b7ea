"""A psycopg connection that runs under trio, with no asyncio anywhere.

All of psycopg's logic is in generators that yield what the socket has to be ready for. `AsyncConnection` hands them to
asyncio in few places: `wait`, `connect`, `cancel_safe` and its lock. These are replaced here. Everything else (cursors,
COPY, pipelines, `notifies`, two-phase commits) is inherited and works.

The second half of the work is cancellation. trio delivers it again at every checkpoint, so clean-up that was written
for asyncio, which delivers it once, never runs. The rules here:

- A cancelled statement is cancelled on the server, and what is left of its answer is read, both within `GRACE` seconds.
- BEGIN, COMMIT and ROLLBACK are not cut: when cancelled they get `GRACE` seconds more to be answered (`settling`).
- A cancelled COPY or pipeline, and whatever outlives its bound, closes the connection. It is never left in between.

What psycopg does not promise to keep is used in this file only: `_connect_gen`, `_autocommit`, `_adapters`,
`_WaitTimeout`, and the modules `generators` and `waiting`. Tested on 3.2.13, 3.3.4 and 3.3.9.
"""

# ruff: noqa: SLF001

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from math import inf
from time import monotonic
from typing import Any, Self, TypeVar, cast

import psycopg
import trio
from psycopg import AsyncConnection, AsyncCursor, AsyncTransaction, errors, generators
from psycopg.abc import AdaptContext, ConnParam, PQGen
from psycopg.adapt import AdaptersMap
from psycopg.conninfo import conninfo_attempts, conninfo_to_dict, make_conninfo, timeout_from_conninfo
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGconn
from psycopg.rows import AsyncRowFactory, Row
from psycopg.waiting import Ready, Wait
from typing_extensions import override

from awa_proto.driving.psycopg_connections import command, nobody_answered
from awa_trio.db.readiness import first_ready, ready_now, run_to_end
from awa_trio.db.settling import GRACE, Turn, is_settling, settling

T = TypeVar("T")

_LONGEST_RUN = 0.005
"""Seconds after which a connection whose socket is always ready lets other tasks run."""

_AGAIN = 0.25
"""Seconds between two requests to cancel: one may fall between two statements of a generator, and hit neither."""

_ACTIVE = TransactionStatus.ACTIVE
_WaitTimeout: type[psycopg.Error] = getattr(errors, "_WaitTimeout", errors.OperationalError)


class TrioConnection(AsyncConnection[Row]):
    """A `psycopg.AsyncConnection` for trio.

    timeout: seconds the server may take for one answer, None for ever. Past it the statement is cancelled and
        `errors.QueryCanceled` raised; when the server does not confirm that, the connection is closed and
        `errors.OperationalError` raised, and the outcome is unknown. Waiting for notifications has no such limit.
    """

    timeout: float | None = None

    def __init__(self, pgconn: PGconn, *args: Any) -> None:
        super().__init__(pgconn, *args)
        self.lock = cast("Any", Turn())  # declared as an asyncio.Lock, used as an async context manager
        self._let_run = monotonic()

    @classmethod
    @override
    async def connect(
        cls,
        conninfo: str = "",
        *,
        autocommit: bool = False,
        prepare_threshold: int | None = 5,
        context: AdaptContext | None = None,
        row_factory: AsyncRowFactory[Row] | None = None,
        cursor_factory: type[AsyncCursor[Row]] | None = None,
        **kwargs: ConnParam,
    ) -> Self:
        """As `psycopg.AsyncConnection.connect`: `connect_timeout` bounds each host that is tried."""
        params = conninfo_to_dict(conninfo, **kwargs)
        failures: list[errors.Error] = []
        # Looks host names up, which blocks.
        attempts = await trio.to_thread.run_sync(conninfo_attempts, params, abandon_on_cancel=True)
        for attempt in attempts:
            try:
                with trio.fail_after(timeout_from_conninfo(params)):
                    connection = await run_to_end(cls._connect_gen(make_conninfo("", **attempt)))
            except errors.Error as error:
                failures.append(error)
            except trio.TooSlowError:
                failures.append(errors.ConnectionTimeout("connection timeout expired"))
            else:
                break
        else:
            raise nobody_answered(failures)
        connection._autocommit = bool(autocommit)
        connection.row_factory = row_factory or connection.row_factory
        connection.cursor_factory = cursor_factory or connection.cursor_factory
        connection._adapters = AdaptersMap(context.adapters) if context else None
        connection.prepare_threshold = prepare_threshold
        return connection

    @override
    async def wait(self, gen: PQGen[T], interval: float = 0.0, timeout: float | None = None) -> T:
        """Drive a generator of psycopg; the module says what a cancellation does.

        interval: wakes the generator that often (asked for by psycopg before 3.3.6).
        timeout: gives up waiting after so many seconds, and does nothing else about it.
        """
        pgconn = self.pgconn
        midway = pgconn.transaction_status == _ACTIVE or pgconn.pipeline_status != PipelineStatus.OFF
        settle = is_settling()
        if not settle:
            await self._checkpoint(midway)
        try:
            state = next(gen)
        except StopIteration as done:
            return cast("T", done.value)
        limit = self.timeout if timeout is None and pgconn.transaction_status == _ACTIVE else timeout
        waiting = True  # whether an exception comes out of waiting, and not out of the generator
        try:
            with trio.CancelScope(deadline=inf if limit is None else trio.current_time() + limit):
                while True:
                    ready = await self._readiness(state, interval)
                    waiting = False
                    state = gen.send(ready)
                    waiting = True
        except StopIteration as done:
            return cast("T", done.value)
        except BaseException as error:
            if not waiting or isinstance(error, errors.Error):
                raise
            if settle and isinstance(error, trio.Cancelled):
                return await self._finish(gen, state, cancel=False, close=False, otherwise=error)
            with suppress(errors.Error):
                await self._finish(gen, state, cancel=not settle, close=midway, otherwise=errors.OperationalError())
            raise
        if timeout is not None:
            raise _WaitTimeout(f"nothing was received within {timeout} s")
        late = errors.OperationalError(f"no answer within {limit:g} s: the connection was closed")
        try:
            return await self._finish(gen, state, cancel=True, close=midway or settle, otherwise=late)
        except errors.QueryCanceled as error:
            raise errors.QueryCanceled(f"no answer within {limit:g} s: the statement was cancelled") from error

    async def _finish(self, gen: PQGen[T], state: Wait, *, cancel: bool, close: bool, otherwise: BaseException) -> T:
        """Bring an interrupted generator to its end: its result or its error. Else close the connection.

        cancel: ask the server to stop first.
        close: do not even try.
        otherwise: raised when the connection had to be closed.
        """
        if self.pgconn.transaction_status not in {_ACTIVE, TransactionStatus.UNKNOWN} and not close:
            gen.close()  # it was waiting for notifications: there is nothing to stop
            raise otherwise
        if not close:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + GRACE):
                try:
                    while True:
                        if cancel:
                            await self._try_cancel()
                        with trio.move_on_after(_AGAIN if cancel else inf):
                            while True:
                                state = gen.send(await self._readiness(state, 0.0))
                except StopIteration as done:
                    if self.pgconn.transaction_status != _ACTIVE:
                        return cast("T", done.value)
                except errors.Error:
                    if self.pgconn.transaction_status != _ACTIVE:
                        raise
        self.abandon()
        raise otherwise

    async def _checkpoint(self, midway: bool) -> None:
        try:
            if monotonic() - self._let_run > _LONGEST_RUN:
                await trio.lowlevel.checkpoint()
                self._let_run = monotonic()
            else:
                await trio.lowlevel.checkpoint_if_cancelled()
        except BaseException:
            if midway:
                self.abandon()
            raise

    async def _readiness(self, state: Wait, interval: float) -> Ready:
        """Wait until the socket is ready for what a generator asks."""
        fd = self.pgconn.socket
        try:
            if state == Wait.R:
                if interval:
                    with trio.move_on_after(interval) as tick:
                        await trio.lowlevel.wait_readable(fd)
                    return Ready.NONE if tick.cancelled_caught else Ready.R
                await trio.lowlevel.wait_readable(fd)
                self._let_run = monotonic()
                return Ready.R
            # A socket can nearly always be written to, and asking is cheaper than waiting.
            if ready := ready_now(fd, state):
                await self._checkpoint(midway=False)
                return ready
            return await first_ready(fd, state)
        except (trio.ClosedResourceError, OSError) as error:
            raise errors.OperationalError("the connection was closed") from error

    @override
    async def cancel_safe(self, *, timeout: float = 30.0) -> None:
        """Ask the server to cancel what it is doing for this connection; returns when the request was taken."""
        if self.closed:
            return
        try:
            with trio.fail_after(timeout or inf):
                if psycopg.capabilities.has_cancel_safe():
                    request = self.pgconn.cancel_conn()
                    try:
                        request.start()
                        await run_to_end(generators.cancel(request))
                    finally:
                        request.finish()
                else:
                    await trio.to_thread.run_sync(self.pgconn.get_cancel().cancel, abandon_on_cancel=True)
        except trio.TooSlowError:
            raise errors.CancellationTimeout("cancellation timeout expired") from None

    async def command(self, text: str) -> str:
        """Run a command without parameters, such as COMMIT; returns what the server did."""
        async with self.lock:
            return await self.wait(command(self.pgconn, text.encode()))

    @override
    async def commit(self) -> None:
        """Commit; a cancellation does not cut it."""
        with settling():
            await super().commit()

    @override
    async def rollback(self) -> None:
        """Roll back; a cancellation does not cut it."""
        with settling():
            await super().rollback()

    @asynccontextmanager
    @override
    async def transaction(
        self, savepoint_name: str | None = None, force_rollback: bool = False
    ) -> AsyncGenerator[AsyncTransaction]:
        """A transaction or, inside of one, a savepoint; rolled back when an exception leaves the block."""
        await trio.lowlevel.checkpoint_if_cancelled()
        block = super().transaction(savepoint_name, force_rollback)
        with settling():
            transaction = await block.__aenter__()
        try:
            yield transaction
        except BaseException as error:
            with settling(), self._closed_on_doubt():
                if await block.__aexit__(type(error), error, error.__traceback__):
                    return
            raise
        with settling(), self._closed_on_doubt():
            await block.__aexit__(None, None, None)

    @contextmanager
    def _closed_on_doubt(self) -> Iterator[None]:
        try:
            yield
        except errors.OperationalError:  # also when the connection was busy with something else for too long
            self.abandon()
            raise

    def abandon(self) -> None:
        """Close at once, without a word to the server; whoever waits for the socket is told."""
        if not self.closed:
            trio.lowlevel.notify_closing(self.pgconn.socket)
            self.pgconn.finish()

    @override
    async def close(self) -> None:
        """Close the connection."""
        if not self.closed:
            trio.lowlevel.notify_closing(self.pgconn.socket)
        await super().close()
