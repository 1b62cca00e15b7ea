"""The testing kit as users have it: over each package with each of its libraries, and both kinds of handlers."""

import pathlib

import pytest

from tests.executor.conftest import engine, run

__all__ = ["engine", "run"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On the second server one flavour is enough here."""
    here = pathlib.Path(__file__).parent
    left_out = [
        item
        for item in items
        if here in item.path.parents and "[18-" in item.name and "asyncio-asyncpg-" not in item.name
    ]
    items[:] = [item for item in items if item not in left_out]
