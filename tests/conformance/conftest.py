"""What the conformance kit of the stores is run over: adapters, servers, default isolation levels, and the model."""

from __future__ import annotations

import importlib
import pathlib
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import anyio.to_thread
import psycopg
import pytest
from psycopg.sql import SQL, Identifier, Literal

from awa_proto.plan import Op
from awa_proto.store.canonical.store import CanonicalStore
from awa_proto.store.memory import MemoryStore
from awa_proto.store.queue import QueueStore
from awa_proto.testing.conformance import Scenario
from awa_proto.testing.conformance.kit import DatabaseKit, Kit, RingKit, RowKit, Runs
from awa_queue_pytest import NewDatabase
from tests.conformance.session import Sessions, sessions

ADAPTERS = {
    "asyncio-asyncpg": ("asyncio", "awa_asyncio.db.asyncpg"),
    "asyncio-psycopg": ("asyncio", "awa_asyncio.db.psycopg"),
    "trio-psycopg": ("trio", "awa_trio.db.psycopg"),
    "sync-psycopg": ("trio", "awa_sync.db.psycopg"),
}
_TRUNCATE = """
  FOR used IN SELECT format('awa.%I', relname) FROM pg_class
    WHERE relnamespace = 'awa'::regnamespace AND relkind = 'r' AND relname NOT IN ('segments', 'migrations', 'cluster')
      AND pg_relation_size(oid) > 0
  LOOP
    EXECUTE 'TRUNCATE ' || used;
  END LOOP;
"""
_AS_AT_FIRST = """
  PERFORM setval('awa.engine', 1), setval('awa.ring', 256);
  UPDATE awa.segments SET state = 'free', quiet = false, version = 0, opened_at = NULL, sealed_at = NULL
  WHERE seg <> 0 AND (state, quiet, version, opened_at, sealed_at) IS DISTINCT FROM ('free', false, 0, NULL, NULL);
  UPDATE awa.segments SET state = 'open', quiet = false, version = 1, opened_at = now(), sealed_at = NULL WHERE seg = 0;
  DELETE FROM awa.migrations WHERE name = 'from the future';
"""
EMPTIED = f"""
DO $$
DECLARE
  used text;
BEGIN
{_TRUNCATE}{_AS_AT_FIRST}
END
$$
"""
"""As if the schema were new, without the tenth of a second that making it takes.

Only what was written to is truncated: each TRUNCATE leaves dead rows in the catalogs, which some thousand tests share.
"""
_TABLES = """
SELECT 'awa.' || relname FROM pg_class
WHERE relnamespace = 'awa'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
  AND relname NOT IN ('segments', 'migrations', 'cluster')
"""
_LARGE = 500_000
"""Bytes of dead rows, of which there are many then."""


def _emptying(tables: Sequence[str]) -> str:
    """SQL: a function that makes the schema as if it were new. By DELETE, which leaves the plans of open connections as they
    are; by TRUNCATE for who looks at the sizes of tables, and now and then.
    """
    deleted = "".join(f"  DELETE FROM {table};\n" for table in tables)
    return f"""
CREATE OR REPLACE FUNCTION public.emptied(physically boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  used text;
BEGIN
  IF physically OR {_LARGE} < (
    SELECT sum(pg_relation_size(oid)) FROM pg_class WHERE relnamespace = 'awa'::regnamespace AND relkind = 'r') THEN
{_TRUNCATE}
  ELSE
{deleted}
  END IF;
{_AS_AT_FIRST}
END
$$"""


@pytest.fixture(scope="module")
def anyio_backend(adapter: str) -> str:
    """The event loop follows from the adapter."""
    return ADAPTERS[adapter][0] if adapter in ADAPTERS else "asyncio"


@pytest.fixture(scope="module")
def migrated(awa_new_database: NewDatabase) -> Iterator[str]:
    """A database with the schema, which the scenarios of a module share one after another."""
    with awa_new_database() as dsn:
        yield dsn


@pytest.fixture(scope="module")
def isolated(awa_new_database: NewDatabase, isolation: str) -> Iterator[str]:
    """Another one, where transactions are of that isolation unless they say otherwise."""
    with awa_new_database() as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            name = Identifier(connection.info.dbname)
            setting = SQL("ALTER DATABASE {} SET default_transaction_isolation TO {}")
            connection.execute(setting.format(name, Literal(isolation)))
        yield dsn


@pytest.fixture(scope="module")
async def stage(adapter: str, anyio_backend: str, migrated: str) -> AsyncIterator[Stage]:
    """Where scenarios take place, over an adapter."""
    async with staged(adapter, migrated) as found:
        yield found


@pytest.fixture(scope="module")
async def isolated_stage(adapter: str, anyio_backend: str, isolated: str) -> AsyncIterator[Stage]:
    """The same under another default isolation."""
    async with staged(adapter, isolated) as found:
        yield found


class _Threaded:
    """A blocking Database, each call in a thread."""

    def __init__(self, database: Any) -> None:
        self._database = database

    async def run(self, op: Op[Any]) -> Any:
        return await anyio.to_thread.run_sync(self._database.run, op)

    async def close(self) -> None:
        await anyio.to_thread.run_sync(self._database.close)


ENGINES: dict[str, Callable[..., DatabaseKit]] = {
    "queue": partial(RingKit, partial(QueueStore, random=random.random)),
    "canonical": partial(RowKit, partial(CanonicalStore, random=random.random)),
}


@asynccontextmanager
async def _opened(adapter: str, dsn: str) -> AsyncIterator[Runs]:
    """What runs Ops over an adapter."""
    make: Callable[..., Any] = importlib.import_module(ADAPTERS[adapter][1]).Database
    database = make(dsn) if adapter != "sync-psycopg" else _Threaded(make(dsn))
    try:
        yield database.run
    finally:
        with anyio.CancelScope(shield=True):
            await database.close()


class Stage:
    """A database with the schema, and connections to it that stay open from one scenario to the next.

    Most of what a scenario costs would else be new server processes, each of which plans every statement anew.
    """

    def __init__(self, run: Runs, sessions: Sessions) -> None:
        self._run = run
        self._sessions = sessions

    async def kit(self, engine: str, scenario: Scenario) -> DatabaseKit:
        """A kit over an engine without jobs. What is about one engine alone may look at the sizes of its tables."""
        async with self._sessions.session() as session:
            await session.sql(f"SELECT public.emptied({scenario.engine is not None})")
        return ENGINES[engine](self._run, self._sessions.session)


@asynccontextmanager
async def staged(adapter: str, dsn: str) -> AsyncIterator[Stage]:
    """A stage over one adapter."""
    async with _opened(adapter, dsn) as run, sessions(dsn) as opened:
        async with opened.session() as session:
            await session.sql(_emptying([table for (table,) in await session.sql(_TABLES)]))
        yield Stage(run, opened)


@asynccontextmanager
async def database_kit(adapter: str, dsn: str, engine: str = "queue") -> AsyncIterator[DatabaseKit]:
    """A kit over one adapter and engine, in a database of its own."""
    async with _opened(adapter, dsn) as run, sessions(dsn) as opened:
        yield ENGINES[engine](run, opened.session)


def memory_kit() -> Kit:
    """A kit over the model."""

    async def run(op: Op[Any]) -> Any:
        plan = op.start()
        try:
            next(plan)
        except StopIteration as done:
            return done.value
        raise AssertionError("the model has no statements")

    return Kit(MemoryStore(lambda: datetime.now(UTC), random.random), run)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On the second server: the simple engine, which is the same SQL for all, over one adapter; no other isolation levels."""
    here = pathlib.Path(__file__).parent
    left_out = [
        item
        for item in items
        if here in item.path.parents
        and "[18-" in item.name
        and ("isolation" in item.name or ("-canonical-" in item.name and "asyncio-asyncpg" not in item.name))
    ]
    items[:] = [item for item in items if item not in left_out]
