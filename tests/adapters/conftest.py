"""The four database adapters, each as a `Driver` of the conformance kit."""

import importlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import asyncpg
import psycopg
import pytest
import trio

from awa_proto.errors import DatabaseError
from awa_proto.plan import Op, Row, Value
from awa_proto.testing.adapters import Driver

BACKENDS = {"asyncio-asyncpg": "asyncio", "asyncio-psycopg": "asyncio", "trio-psycopg": "trio", "sync-psycopg": "trio"}
_MODULES = {
    "asyncio-asyncpg": "awa_asyncio.db.asyncpg",
    "asyncio-psycopg": "awa_asyncio.db.psycopg",
    "trio-psycopg": "awa_trio.db.psycopg",
    "sync-psycopg": "awa_sync.db.psycopg",
}


@pytest.fixture(params=BACKENDS)
def driver_name(request: pytest.FixtureRequest) -> str:
    """Each adapter in turn."""
    name: str = request.param
    return name


@pytest.fixture
def anyio_backend(driver_name: str) -> str:
    """The event loop follows from the adapter."""
    return BACKENDS[driver_name]


@pytest.fixture
def driver(driver_name: str) -> Driver:
    """The adapter, with what a scenario must know of it."""
    try:
        database: Callable[..., Any] = importlib.import_module(_MODULES[driver_name]).Database
    except ModuleNotFoundError as missing:
        if missing.name is None or not _MODULES[driver_name].startswith(missing.name):
            raise
        pytest.skip(f"{_MODULES[driver_name]} does not exist yet")
    match name := driver_name:
        case "asyncio-asyncpg":
            return Driver(name, database, _asyncpg_caller, asyncpg.PostgresError)
        case "asyncio-psycopg":
            return Driver(name, database, _psycopg_caller(psycopg.AsyncConnection), psycopg.Error)
        case "trio-psycopg":
            connection = importlib.import_module("awa_trio.db.connection").TrioConnection
            return Driver(name, database, _psycopg_caller(connection), psycopg.Error)
        case _:
            threaded = lambda dsn, **options: ThreadedDatabase(database(dsn, **options))  # noqa: E731
            return Driver(name, threaded, _threaded_caller, psycopg.Error, cancellable=False)


class _Caller:
    def __init__(self, connection: object, commit: Callable[[], Any], rollback: Callable[[], Any]) -> None:
        self.connection = connection
        self.commit = commit
        self.rollback = rollback


@asynccontextmanager
async def _asyncpg_caller(dsn: str) -> AsyncIterator[_Caller]:
    connection = await asyncpg.connect(dsn)
    try:
        transaction = connection.transaction()
        await transaction.start()
        yield _Caller(connection, transaction.commit, transaction.rollback)
    finally:
        connection.terminate()


def _psycopg_caller(kind: Any) -> Callable[[str], AbstractAsyncContextManager[_Caller]]:
    @asynccontextmanager
    async def caller(dsn: str) -> AsyncIterator[_Caller]:
        connection = await kind.connect(dsn)
        try:
            yield _Caller(connection, connection.commit, connection.rollback)
        finally:
            with anyio.CancelScope(shield=True):
                await connection.close()

    return caller


@asynccontextmanager
async def _threaded_caller(dsn: str) -> AsyncIterator[_Caller]:
    connection = await _in_thread(psycopg.connect, dsn)
    try:
        yield _Caller(connection, partial(_in_thread, connection.commit), partial(_in_thread, connection.rollback))
    finally:
        connection.close()


async def _in_thread(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return await anyio.to_thread.run_sync(partial(call, *args, **options))


class ThreadedDatabase:
    """A blocking Database, each call in a thread."""

    def __init__(self, database: Any) -> None:
        self._database = database

    async def open(self) -> None:
        await _in_thread(self._database.open)

    async def close(self) -> None:
        await _in_thread(self._database.close)

    async def run(self, op: Op[Any]) -> Any:
        return await _in_thread(self._database.run, op)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["ThreadedTransaction"]:
        block: AbstractContextManager[Any] = self._database.transaction()
        inner = await _in_thread(block.__enter__)
        try:
            yield ThreadedTransaction(inner)
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await _in_thread(block.__exit__, type(error), error, error.__traceback__)
            raise
        else:
            await _in_thread(block.__exit__, None, None, None)

    def lane(
        self,
        name: str,
        *,
        channel: str | None = None,
        notified: Callable[[str], object] | None = None,
        lost: Callable[[DatabaseError], object] | None = None,
    ) -> "ThreadedLane":
        return ThreadedLane(
            self._database.lane(name, channel=channel, notified=notified and _here(notified), lost=lost and _here(lost))
        )


class ThreadedTransaction:
    """A blocking transaction, each call in a thread."""

    def __init__(self, transaction: Any) -> None:
        self._transaction = transaction

    async def run(self, op: Op[Any]) -> Any:
        return await _in_thread(self._transaction.run, op)

    async def fetch(self, sql: str, *params: Value) -> list[Row]:
        rows: list[Row] = await _in_thread(self._transaction.fetch, sql, *params)
        return rows

    async def execute(self, sql: str, *params: Value) -> None:
        await _in_thread(self._transaction.execute, sql, *params)


class ThreadedLane:
    """A blocking lane, each call in a thread."""

    def __init__(self, lane: Any) -> None:
        self._lane = lane

    async def run(self, op: Op[Any]) -> Any:
        return await _in_thread(self._lane.run, op)

    async def close(self) -> None:
        await _in_thread(self._lane.close)


def _here(callback: Callable[[Any], object]) -> Callable[[Any], None]:
    """The callback, called on the event loop's own thread whichever thread calls it."""
    token = trio.lowlevel.current_trio_token()

    def call(value: Any) -> None:
        token.run_sync_soon(callback, value)

    return call
