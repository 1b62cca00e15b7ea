"""Statements on a connection of a user's own, however it is set up."""

import inspect
import json
from typing import Any

import asyncpg
import pytest

import awa_asyncio as awa
from awa_proto.store import canonical, queue


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("form", ["text", "binary"])
async def test_a_connection_that_encodes_json_itself_stores_what_was_said(database: str, form: Any) -> None:
    """A common setup of asyncpg; our JSON is text already, and must not be encoded twice."""
    async with awa.Client(database) as client:
        await client.migrate()
        connection = await asyncpg.connect(database)
        for name in ("json", "jsonb"):
            await connection.set_type_codec(
                name,
                encoder=json.dumps if form == "text" else lambda value: b"\1" + json.dumps(value).encode(),
                decoder=json.loads,
                schema="pg_catalog",
                format=form,
            )
        async with connection.transaction():
            one = await client.insert({"kind": "k", "a": 1}, metadata={"b": 2}, using=connection)
            many = await client.insert_many(
                [{"kind": "k", "a": n} for n in range(3)], metadata={"b": 2}, using=connection
            )
        for row in (one, *many):
            stored = await client.get_job(row.id)
            assert stored is not None
            assert (stored.args, stored.metadata) == (row.args, {"b": 2})
        await connection.close()


def test_no_parameter_has_a_type_that_a_user_can_encode_otherwise() -> None:
    """Found by asking for every statement of both engines."""
    for module in (*vars(queue).values(), *vars(canonical).values()):
        if inspect.ismodule(module):
            source = inspect.getsource(module)
            assert not [n for n in range(1, 15) if f"${n}::json" in source], module
