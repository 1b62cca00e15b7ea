"""A job and the row it is about, committed together or not at all, on connections that are yours: `using=`.

asyncpg, psycopg under asyncio, psycopg in blocking code, and psycopg under trio (its connection class is awa's). The
database is $AWA_DATABASE_URL.
"""

import asyncio
import os
from dataclasses import dataclass

import asyncpg
import psycopg
import trio

import awa_asyncio
import awa_sync
import awa_trio
from awa_trio.db.connection import TrioConnection

DSN = os.environ["AWA_DATABASE_URL"]


@dataclass
class ShipOrder:
    """Which order is to be shipped."""

    order: int


def with_psycopg(client: awa_sync.Client) -> None:
    with psycopg.connect(DSN) as connection:  # commits when the block ends
        connection.execute("INSERT INTO orders DEFAULT VALUES")
        client.insert(ShipOrder(1), queue="shipping", using=connection)


async def with_asyncpg(client: awa_asyncio.Client) -> None:
    connection = await asyncpg.connect(DSN)
    async with connection.transaction():
        await connection.execute("INSERT INTO orders DEFAULT VALUES")
        await client.insert(ShipOrder(2), queue="shipping", using=connection)
    await connection.close()


async def with_async_psycopg(client: awa_asyncio.Client) -> None:
    async with await psycopg.AsyncConnection.connect(DSN) as connection:
        await connection.execute("INSERT INTO orders DEFAULT VALUES")
        await client.insert(ShipOrder(3), queue="shipping", using=connection)


async def with_trio(client: awa_trio.Client) -> None:
    async with await TrioConnection.connect(DSN) as connection:
        await connection.execute("INSERT INTO orders DEFAULT VALUES")
        await client.insert(ShipOrder(4), queue="shipping", using=connection)


async def on_asyncio() -> None:
    async with awa_asyncio.Client() as client:
        await with_asyncpg(client)
        await with_async_psycopg(client)


async def on_trio() -> None:
    async with awa_trio.Client() as client:
        await with_trio(client)


with awa_sync.Client() as client:
    client.migrate()
    with psycopg.connect(DSN) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS orders (id bigserial PRIMARY KEY)")
    with_psycopg(client)
    asyncio.run(on_asyncio())
    trio.run(on_trio)
    print("to ship:", sorted(job.args["order"] for job in client.list_jobs(kind="ship_order")))
