"""Connections that end while clients and workers of every package use them, or rest."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import psycopg_pool
import pytest

import awa_asyncio
from tests.fleet.members import Member
from tests.fleet.server import terminate_all

FAREWELL = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection due to administrator command\0\0"


def test_a_client_does_not_send_on_a_connection_that_the_server_has_ended(member: Member, database: str) -> None:
    """Sent there, an insert would have an unknown outcome, and could not be repeated."""
    before = member.call("insert", {"kind": "x"})

    async def after_the_end() -> Any:
        terminate_all(database)  # blocks the event loop, so it knows of nothing
        return await member.client.insert({"kind": "x"})

    if member.is_sync:
        terminate_all(database)
        after = member.call("insert", {"kind": "x"})
    else:
        after = member.run(after_the_end)
    assert [row.id for row in member.call("list_jobs")] == [after.id, before.id]


@pytest.mark.parametrize("library", ["asyncpg", "psycopg"])
def test_a_client_does_not_send_on_a_dead_connection_of_the_pool_that_was_handed_in(
    database: str, library: str
) -> None:
    async def main() -> None:
        pool: Any
        if library == "asyncpg":
            pool = asyncpg.create_pool(database, min_size=1, max_size=1)
        else:
            pool = psycopg_pool.AsyncConnectionPool(database, min_size=1, max_size=1, open=False)
        async with pool, awa_asyncio.Client(pool=pool) as client:
            await client.migrate()
            await client.insert({"kind": "x"})
            terminate_all(database)
            await client.insert({"kind": "x"})
            assert len(await client.list_jobs()) == 2

    asyncio.run(main())


def test_asyncpg_does_not_send_between_a_farewell_and_the_end_and_that_is_known(database: str) -> None:
    async def main() -> None:
        pool = asyncpg.create_pool(database, min_size=1, max_size=1)
        async with pool, awa_asyncio.Client(pool=pool) as client:
            await client.migrate()
            async with pool.acquire() as connection:
                protocol = connection._protocol
            protocol.data_received(b"E" + (len(FAREWELL) + 4).to_bytes(4, "big") + FAREWELL)
            await client.insert({"kind": "x"})
            assert len(await client.list_jobs()) == 1

    asyncio.run(main())
