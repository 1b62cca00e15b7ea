"""What asyncpg has to ask about types, it asks once in a process; about types of users on each connection."""

from collections.abc import Iterable
from typing import Any

import asyncpg
import psycopg
import pytest

from awa_asyncio.db import asyncpg as adapter
from awa_proto.errors import DatabaseError
from awa_proto.plan import Op, Plan, Rows, Statement

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """The types that the server was asked about, time by time, in a process that knows nothing yet."""
    times: list[set[int]] = []
    ask: Any = asyncpg.Connection._introspect_types

    async def counted(self: Any, typeoids: Iterable[int], *rest: Any) -> Any:
        times.append(set(typeoids))
        return await ask(self, typeoids, *rest)

    monkeypatch.setattr(asyncpg.Connection, "_introspect_types", counted)
    monkeypatch.setattr(adapter, "_KNOWN_TYPES", {})
    return times


async def _answer(dsn: str, sql: str, *params: Any, prepare: bool = True) -> Rows:
    """By a connection of its own."""

    def plan() -> Plan[Rows]:
        rows: Rows = yield Statement("types", sql, params, prepare=prepare)
        return rows

    database = adapter.Database(dsn)
    try:
        rows: Rows = await database.run(Op("types", plan))
    finally:
        await database.close()
    return rows


@pytest.mark.parametrize("prepare", [True, False])
async def test_what_arrays_are_is_asked_by_the_first_connection_only(
    module_database: str, asked: list[set[int]], prepare: bool
) -> None:
    sql = "SELECT $1::bigint[], $2::float8[], $3::timestamptz[]"
    for _ in range(3):
        rows = await _answer(module_database, sql, [1, None], [0.5], [], prepare=prepare)
        assert rows == [([1, None], [0.5], [])]
    assert len(asked) == 1
    assert await _answer(module_database, "SELECT $1::bigint[]", [7]) == [([7],)]
    assert await _answer(module_database, "SELECT $1::bigint[]", [8]) == [([8],)]
    assert len(asked) == 2, "what was asked for together is known together"


async def test_types_of_a_database_s_own_are_asked_by_each_connection(
    module_database: str, asked: list[set[int]]
) -> None:
    with psycopg.connect(module_database, autocommit=True) as connection:
        for mood in ("sad", "glad"):
            connection.execute("DROP TYPE IF EXISTS mood")
            connection.execute(f"CREATE TYPE mood AS ENUM ('{mood}')".encode())
            assert await _answer(module_database, "SELECT $1::mood[]", [mood]) == [([mood],)]
    assert len(asked) == 2


async def test_rows_of_catalogs_are_asked_by_each_connection(module_database: str, asked: list[set[int]]) -> None:
    for _ in range(2):
        with pytest.raises(DatabaseError, match="composite"):  # what asyncpg cannot read, but for that it has asked
            await _answer(module_database, "SELECT t FROM pg_type t LIMIT 1")
    assert len(asked) == 2, "their columns differ from version to version"
