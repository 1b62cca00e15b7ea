"""The asyncpg adapter.

asyncpg prepares by SQL text and types every parameter by the cast in the SQL, which is the rule of the core already, so
values pass as they are. What takes care is how it ends: on a cancelled await it sends the cancel request by itself and
drops the answer, and its time-outs do the same. Deadlines are therefore ours, so that an answer is always heard.
"""

from __future__ import annotations

import asyncio
import contextlib
import random as _random
import socket
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, TypeAlias, cast

import asyncpg

from awa_asyncio import db
from awa_asyncio.db import Connection, Lane
from awa_asyncio.db.attempt import BEGIN
from awa_asyncio.db.pool import Pool
from awa_asyncio.db.shield import GRACE, shielded
from awa_proto.contact import Calls
from awa_proto.driving.ops import Preparing
from awa_proto.driving.sockets import is_readable
from awa_proto.dsn import Dsn, check_dsn, check_given, current
from awa_proto.errors import ConfigurationError, DatabaseError, ValidationError
from awa_proto.plan import Copy, Rows, Statement, Step, Value

__all__ = ["Connection", "Database", "Lane"]

_Library: TypeAlias = Any
"""A connection or pool of asyncpg, which ships no type information."""


class Database(db.Database):
    """PostgreSQL through asyncpg.

    dsn: a URL, or a function that gives one; None: the environment variables PGHOST, PGUSER and so on.
    pool: an asyncpg pool to use instead of one of our own.
    schema: where awa lives; named in errors.
    statement_timeout: seconds a statement, a connect, or the wait for a connection may take.
    max_size: connections of our own pool.
    random: numbers from 0 to 1, for the pauses between attempts.
    calls: told how each Op of a client ended.
    """

    def __init__(
        self,
        dsn: Dsn | None = None,
        *,
        pool: _Library | None = None,
        schema: str = "awa",
        statement_timeout: float = 30.0,
        max_size: int = 10,
        random: Callable[[], float] = _random.random,
        calls: Calls | None = None,
    ) -> None:
        check_given(dsn, _check_url)
        preparing = Preparing()

        async def connect(seconds: float) -> _Link:
            try:
                return _Link(await _connect(current(dsn, _check_url), seconds, prepare=preparing.on), preparing)
            except ConfigurationError as error:
                if callable(dsn):  # which may give another one
                    raise DatabaseError(str(error), "08001", sent=False) from None
                raise

        super().__init__(
            source=Pool(connect, max_size) if pool is None else _LentPool(pool, preparing),
            connect=connect if pool is None or dsn is not None else None,
            borrow=_borrow,
            library_error=Exception,
            preparing=preparing,
            schema=schema,
            statement_timeout=statement_timeout,
            random=random,
            calls=calls,
        )


class _Own(asyncpg.Connection):  # type: ignore[misc]  # it ships no type information
    """A connection whose prepared statements have names that no other one's have, and which knows the types of PostgreSQL.

    asyncpg counts names in each process. A transaction pooler that keeps no account of them would let one connection run what
    another has prepared under that name; so it says that there is none.

    On each connection asyncpg asks anew what arrays are, by three round trips for each sort of them, of which one costs more
    than most statements of ours. What PostgreSQL itself brings is the same in every database.
    """

    __slots__ = ("_apart", "_count")

    def _get_unique_id(self, prefix: str) -> str:
        if not hasattr(self, "_apart"):
            self._apart, self._count = uuid.uuid4().hex, 0
        self._count += 1
        return f"__awa_{prefix}_{self._apart}_{self._count:x}__"

    async def _introspect_types(self, typeoids: Iterable[int], timeout: float | None) -> tuple[Any, Any]:  # noqa: ASYNC109
        wanted = frozenset(typeoids)
        if (known := _KNOWN_TYPES.get(wanted)) is not None:
            return known, _NOTHING_ASKED
        types, statement = await super()._introspect_types(typeoids, timeout)
        if max(wanted) < _FIRST_OF_USERS and not any(each["attrtypoids"] for each in types):
            _KNOWN_TYPES[wanted] = types
        return types, statement


_FIRST_OF_USERS = 10_000
"""Below are the numbers of types that stand in PostgreSQL's source, the same in every version; but not what rows of catalogs
are made of."""
_KNOWN_TYPES: dict[frozenset[int], Any] = {}
"""What asyncpg was told of such types, by what it asked for."""
_NOTHING_ASKED = SimpleNamespace(name="none")
"""In place of the statement that asked: none has taken the place of an unnamed one."""


class _Link:
    """One asyncpg connection."""

    __slots__ = ("_answered", "_prepared", "_preparing", "connection")

    def __init__(self, connection: _Library, preparing: Preparing) -> None:
        self.connection = connection
        self._preparing = preparing
        self._prepared = preparing.on
        self._answered = True  # False while a statement runs, and after one that was abandoned

    @property
    def usable(self) -> bool:
        return not self.connection.is_closed() and self._prepared == self._preparing.on

    @property
    def silent(self) -> bool:
        return self._socket is not None and (fd := self._socket.fileno()) >= 0 and not is_readable(fd)

    @property
    def clean(self) -> bool:
        return self.connection.is_closed() or (self._answered and not self.connection.is_in_transaction())

    @property
    def server_pid(self) -> int:
        pid: int = self.connection.get_server_pid()
        return pid

    async def perform(self, step: Step) -> Any:
        if isinstance(step, Statement):
            return await self._fetch(step)
        if isinstance(step, Copy):
            return await self._copy(step)
        return [await self._fetch(statement) for statement in step]

    async def begin(self, step: Step) -> Any:
        await self._command(BEGIN.sql)
        return await self.perform(step)

    async def _fetch(self, statement: Statement) -> Rows:
        _check(statement.params)
        ask = self.connection.fetch if statement.prepare else self._fetch_unprepared
        return list(map(tuple, await self._ask(ask(statement.sql, *statement.params))))

    async def _fetch_unprepared(self, sql: str, *params: Value) -> Any:
        unnamed = await self.connection.prepare(sql, name="")  # not in asyncpg's cache, where it would push others out
        return await unnamed.fetch(*params)

    async def _copy(self, copy: Copy) -> Rows:
        chunks = _each(copy)
        copying = self.connection.copy_to_table(
            copy.table, schema_name=copy.schema, columns=copy.columns, source=chunks
        )
        try:
            status = await self._ask(copying)
        except _ChunksFailedError as failed:
            error = failed.error
        else:
            return [(int(status.split()[-1]),)]
        finally:
            await chunks.aclose()
        raise error

    async def _command(self, sql: str) -> str:
        status: str = await self._ask(self.connection.execute(sql))
        return status

    async def _ask(self, work: Awaitable[Any]) -> Any:
        """The answer of asyncpg, whose failures come out as DatabaseError."""
        answered, self._answered = self._answered, False
        try:
            answer = await work
        except _ChunksFailedError:
            raise  # with a request to cancel under way
        except Exception as error:
            nothing_sent = isinstance(error, asyncpg.InterfaceError)  # something else may run on the connection
            self._answered = answered if nothing_sent else True
            raise _database_error(error) from error
        self._answered = True
        return answer

    async def commit(self) -> None:
        if await self._command("COMMIT") != "COMMIT":
            raise DatabaseError("the transaction had failed before, so COMMIT rolled it back", "25P02")

    async def reset(self) -> None:
        if not self._answered:
            with contextlib.suppress(DatabaseError):  # refused in a failed transaction, but answered
                await self._command("SELECT")  # asyncpg waits for the end of a cancelled statement first
        if not self.clean:
            await self._command("ROLLBACK")

    async def cancel(self) -> None:
        taken = asyncio.get_running_loop().create_future()
        self.connection._cancel_current_command(taken)  # noqa: SLF001  # the public ways drop the answer
        await taken

    def close(self) -> None:
        with contextlib.suppress(AttributeError, OSError, TypeError):  # closed already, or of a loop that is
            self._socket.shutdown(socket.SHUT_RDWR)  # without the event loop, which may never run again
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self.connection.terminate()

    @property
    def _socket(self) -> Any:
        return self.connection._transport.get_extra_info("socket")  # noqa: SLF001  there is no public way

    async def goodbye(self) -> None:
        with contextlib.suppress(DatabaseError, *_ERRORS):
            await shielded(self, self.connection.close(), GRACE)

    async def listen(self, channel: str, notified: Callable[[str], object]) -> None:
        def heard(*said: Any) -> None:  # connection, pid, channel, payload
            notified(said[3])

        await self._ask(self.connection.add_listener(channel, heard))

    def watch(self, lost: Callable[[DatabaseError], object]) -> None:
        def ended(_: _Library) -> None:
            lost(DatabaseError("the connection was closed by the other side", sent=False))

        self.connection.add_termination_listener(ended)


class _LentPool:
    """A pool of the user's. What its connections go through on release is theirs to say."""

    def __init__(self, pool: _Library, preparing: Preparing) -> None:
        self._pool = pool
        self._preparing = preparing

    async def take(self, seconds: float) -> _Link:
        try:
            async with asyncio.timeout(seconds):
                while True:
                    link = _Link(await self._pool.acquire(), self._preparing)
                    if link.silent and _speaks_utf8(link.connection):
                        return link
                    if link.silent:
                        await self.give_back(link)
                        raise ConfigurationError("the connections of pool= have another client_encoding than UTF8")
                    link.close()
                    await self.give_back(link)
        except _ERRORS as error:
            raise _connect_error(error, seconds) from error

    async def give_back(self, link: _Link) -> None:
        with contextlib.suppress(DatabaseError, *_ERRORS):  # what was done with it is done; the pool drops it
            await shielded(link, self._pool.release(link.connection), GRACE)

    def drop_idle(self) -> None:
        """Leave them: they are the user's."""

    async def close(self) -> None:
        """Leave it open: it was handed in."""

    def abandon(self) -> None:
        """Leave it open: it was handed in."""


def _borrow(connection: object) -> _Link:
    if not isinstance(connection, asyncpg.Connection | asyncpg.pool.PoolConnectionProxy):
        raise ConfigurationError(f"using= takes an asyncpg connection here, not {type(connection).__qualname__}")
    link = _Link(connection, Preparing())
    if link.usable and not _speaks_utf8(connection):
        raise ValidationError("using", "the connection has another client_encoding than UTF8, which it needs")
    return link


def _speaks_utf8(connection: _Library) -> bool:
    """Whether the chunks of a COPY, which are not asyncpg's to encode, mean what they should."""
    encoding: str = connection.get_settings().client_encoding
    return encoding.replace("-", "").lower() in {"utf8", "unicode"}


def _check_url(dsn: str) -> None:
    check_dsn(dsn, keywords=False)


async def _connect(dsn: str | None, seconds: float, *, prepare: bool) -> _Library:
    connect: Any = asyncpg.connect  # its time-out is a float, whatever a type checker infers from the default
    try:
        return await connect(
            dsn,
            timeout=seconds,
            connection_class=_Own,
            statement_cache_size=100 if prepare else 0,
            max_cached_statement_lifetime=0,  # the SQL of an Op never changes, so nothing in the cache grows old
            max_cacheable_statement_size=0,  # no limit
            server_settings={"client_encoding": "utf8"},  # whatever the DSN says: chunks of a COPY are written in it
        )
    except ValueError:  # of the DSN; its text is not repeated, it may hold the password
        raise ConfigurationError("the database URL or a PG* environment variable cannot be read by asyncpg") from None
    except _ERRORS as error:
        raise _connect_error(error, seconds) from error


class _ChunksFailedError(Exception):
    """What the chunks of a COPY raised, while it passes through asyncpg, which takes some exceptions for its own."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


async def _each(copy: Copy) -> AsyncGenerator[bytes]:
    try:
        for chunk in copy.chunks:
            yield chunk
    except Exception as error:
        raise _ChunksFailedError(error) from error


_INFINITIES = (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))


def _check(params: tuple[Value, ...]) -> None:
    """Refuse the two instants that asyncpg sends as -infinity and infinity, which it reads back without a zone."""
    for value in params:
        kind = type(value)
        if (kind is datetime and value in _INFINITIES) or (
            kind is list and _holds_an_infinity(cast("list[Any]", value))
        ):
            raise DatabaseError("the first and the last instant of a datetime cannot be sent", "22008", sent=False)


def _holds_an_infinity(values: list[Any]) -> bool:
    first = next((value for value in values if value is not None), None)
    return type(first) is datetime and any(instant in values for instant in _INFINITIES)


_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
"""All that asyncpg raises; TimeoutError is an OSError."""


def _connect_error(error: BaseException, seconds: float) -> DatabaseError:
    """What a failure to connect means. Nothing was sent, so nothing was done."""
    if (said := _said(error)) is not None:
        return DatabaseError(error.args[0], said.sqlstate, sent=False)
    if isinstance(error, TimeoutError):
        return DatabaseError(f"no connection to the database within {seconds:g} s", "08001", sent=False)
    return DatabaseError(f"cannot connect to the database: {error}", "08001", sent=False)


def _said(error: BaseException | None) -> Any:
    """What the server said; None when asyncpg raised an error of the server's classes itself, which has no severity."""
    said: Any = error
    return said if isinstance(error, asyncpg.PostgresError) and said.severity is not None else None


def _database_error(error: Exception) -> DatabaseError:
    """What a failed statement means."""
    said: Any
    if (said := _said(error)) is not None:
        source: str | None = said.server_source_function
        return DatabaseError(error.args[0], said.sqlstate, constraint=said.constraint_name, source=source)
    if isinstance(error, asyncpg.PostgresConnectionError):
        said = _said(error.__cause__)  # before it hung up
        return DatabaseError(error.args[0], None if said is None else said.sqlstate)
    if isinstance(error, asyncpg.InterfaceError):
        return DatabaseError(error.args[0], "08003" if "closed" in error.args[0] else "XX000", sent=False)
    if isinstance(error, asyncpg.InternalClientError) and "cannot switch to state" in str(error):
        # The server has said goodbye and not hung up yet. asyncpg finds that before it sends anything.
        return DatabaseError(f"the connection was being closed by the other side: {error}", sent=False)
    if isinstance(error, asyncpg.InternalClientError | OSError):
        return DatabaseError(f"the connection broke: {error}")
    return DatabaseError(f"a value that cannot be sent: {error}", "22000", sent=False)
