"""Clients on a database that has the schema, as a copy of one: to make it anew for each test was a third of all the work."""

import pytest


@pytest.fixture
def database(awa_database: str) -> str:
    """A database of the test's own as everywhere, but a copy of one that is migrated."""
    return awa_database
