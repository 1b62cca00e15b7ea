"""A migrated database for each stress test."""

import psycopg
import pytest

from awa_proto.schema import script


@pytest.fixture
def migrated(database: str) -> str:
    """A database of this test's own, with the schema."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(script().encode())
    return database
