"""Adapters whose connections are cut, by a proxy in front of the server."""

from collections.abc import Iterator

import psycopg
import pytest

from awa_proto.schema import script
from tests.adapters.conftest import anyio_backend, driver, driver_name
from tests.cuts.proxy import Proxy

__all__ = ["anyio_backend", "driver", "driver_name"]


@pytest.fixture
def proxy(module_database: str) -> Iterator[Proxy]:
    """In front of a migrated database that the tests of a module share."""
    with psycopg.connect(module_database, autocommit=True) as connection:
        if connection.execute("SELECT to_regnamespace('awa') IS NULL").fetchone() == (True,):
            connection.execute(script().encode())
    with Proxy(module_database) as running:
        yield running
