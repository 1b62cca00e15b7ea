"""The executor as users see it: a scenario runs on each package with each of its libraries and on each engine."""

import pathlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.flavours import FLAVOURS, App

ENGINES = ("queue", "canonical")
HANDLERS = [*FLAVOURS, "asyncio-asyncpg plain", "trio-psycopg plain"]
"""`plain`: handlers in threads, which get a BlockingJob."""


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """Where the jobs are kept."""
    return str(request.param)


@pytest.fixture(params=HANDLERS)
def run(request: pytest.FixtureRequest, database: str, engine: str) -> Callable[..., None]:
    """Runs a scenario over an App on an empty database; options are those of the client."""
    name, _, plain = request.param.partition(" ")

    def with_app(scenario: Callable[[App], Coroutine[Any, Any, None]], **options: Any) -> None:
        async def over_client(client: Any) -> None:
            await scenario(App(client, is_async=not plain and not name.startswith("sync")))

        FLAVOURS[name](database, over_client, engine=engine, **options)

    return with_app


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On the second server one flavour is enough here: the conformance kit runs all of them on both."""
    here = pathlib.Path(__file__).parent
    left_out = [
        item
        for item in items
        if here in item.path.parents and "[18-" in item.name and "asyncio-asyncpg-" not in item.name
    ]
    items[:] = [item for item in items if item not in left_out]
