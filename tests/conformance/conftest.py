"""What the conformance kit of the stores is run over: adapters, servers, default isolation levels, and the model."""

import importlib
import pathlib
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import anyio.to_thread
import psycopg
import pytest
from psycopg.sql import SQL, Identifier, Literal

from awa_proto.plan import Op
from awa_proto.schema import migrate
from awa_proto.store.canonical.store import CanonicalStore
from awa_proto.store.memory import MemoryStore
from awa_proto.store.queue import QueueStore
from awa_proto.testing.conformance.kit import DatabaseKit, Kit, RingKit, RowKit
from tests.conformance.session import BlockingSession, connect, session

ADAPTERS = {
    "asyncio-asyncpg": ("asyncio", "awa_asyncio.db.asyncpg"),
    "asyncio-psycopg": ("asyncio", "awa_asyncio.db.psycopg"),
    "trio-psycopg": ("trio", "awa_trio.db.psycopg"),
    "sync-psycopg": ("trio", "awa_sync.db.psycopg"),
}
EMPTIED = """
SELECT setval('awa.engine', 1);
DO $$
DECLARE
  used text;
BEGIN
  FOR used IN SELECT format('awa.%I', relname) FROM pg_class
    WHERE relnamespace = 'awa'::regnamespace AND relkind = 'r' AND relname NOT IN ('segments', 'migrations', 'cluster')
      AND pg_relation_size(oid) > 0
  LOOP
    EXECUTE 'TRUNCATE ' || used;
  END LOOP;
END
$$;
UPDATE awa.segments SET state = 'free', quiet = false, version = 0, opened_at = NULL, sealed_at = NULL;
UPDATE awa.segments SET state = 'open', version = 1, opened_at = now() WHERE seg = 0;
SELECT setval('awa.ring', 256);
DELETE FROM awa.migrations WHERE name = 'from the future';
"""
"""As if the schema were new, without the tenth of a second that making it takes.

Only what was written to is truncated: each TRUNCATE leaves dead rows in the catalogs, which some thousand tests share.
"""


@pytest.fixture
def anyio_backend(adapter: str) -> str:
    """The event loop follows from the adapter."""
    return ADAPTERS[adapter][0] if adapter in ADAPTERS else "asyncio"


@pytest.fixture(scope="module")
def migrated(module_database: str) -> str:
    """A database with the schema, which the scenarios of a module share one after another."""
    with connect(module_database) as connection:
        BlockingSession(connection).perform_atomically(migrate())
    return module_database


@pytest.fixture
def empty_store(migrated: str) -> str:
    """The shared database, without jobs."""
    with psycopg.connect(migrated, autocommit=True) as connection:
        connection.execute(EMPTIED)
    return migrated


@pytest.fixture
def isolated_store(empty_store: str, isolation: str) -> Iterator[str]:
    """The same, where transactions are of that isolation unless they say otherwise."""
    with psycopg.connect(empty_store, autocommit=True) as connection:
        name = Identifier(connection.info.dbname)
        setting = SQL("ALTER DATABASE {} SET default_transaction_isolation TO {}")
        connection.execute(setting.format(name, Literal(isolation)))
        yield empty_store
        connection.execute(SQL("ALTER DATABASE {} RESET default_transaction_isolation").format(name))


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
async def database_kit(adapter: str, dsn: str, engine: str = "queue") -> AsyncIterator[DatabaseKit]:
    """A kit over one adapter and engine."""
    make: Callable[..., Any] = importlib.import_module(ADAPTERS[adapter][1]).Database
    database = make(dsn) if adapter != "sync-psycopg" else _Threaded(make(dsn))
    try:
        yield ENGINES[engine](database.run, partial(session, dsn))
    finally:
        with anyio.CancelScope(shield=True):
            await database.close()


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
