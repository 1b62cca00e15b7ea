"""The pytest plugin needs no second server: what it does there, the tests that use its databases show."""

import pathlib

import pytest

from tests.conftest import SERVERS


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep those on the first server."""
    here = pathlib.Path(__file__).parent
    others = tuple(f"[{name}" for name in SERVERS[1:])
    items[:] = [
        item for item in items if here not in item.path.parents or not any(name in item.name for name in others)
    ]
