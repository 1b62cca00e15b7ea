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


@pytest.fixture
def database(awa_database: str) -> str:
    """A database of the test's own as everywhere, but a copy of one that is migrated."""
    return awa_database


@pytest.fixture(params=HANDLERS)
def run(request: pytest.FixtureRequest, database: str, engine: str) -> Callable[..., None]:
    """Runs a scenario over an App on an empty database; options are those of the client."""
    name, _, plain = request.param.partition(" ")

    def with_app(scenario: Callable[[App], Coroutine[Any, Any, None]], **options: Any) -> None:
        async def over_client(client: Any) -> None:
            await scenario(App(client, is_async=not plain and not name.startswith("sync")))

        FLAVOURS[name](database, over_client, engine=engine, **options)

    return with_app


def is_run(name: str) -> bool:
    """Every flavour on queue storage; on the simple engine one that awaits and one that does not, since the conformance kit
    runs all adapters on it; and one flavour on the second server."""
    if "-canonical" in name:
        return "[15-asyncio-asyncpg-" in name or "[15-sync-" in name
    return "[18-" not in name or "asyncio-asyncpg-" in name


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """See `is_run`."""
    here = pathlib.Path(__file__).parent
    items[:] = [item for item in items if here not in item.path.parents or is_run(item.name)]
