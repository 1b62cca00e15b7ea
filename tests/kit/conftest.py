"""The testing kit as users have it: over each package with each of its libraries, and both kinds of handlers."""

import pathlib

import pytest

from tests.executor.conftest import database, engine, is_run, run

__all__ = ["database", "engine", "run"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """As for the executor."""
    here = pathlib.Path(__file__).parent
    items[:] = [item for item in items if here not in item.path.parents or is_run(item.name)]
