"""Fleet tests: clients and workers of every package against a real server."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.fleet.members import FLAVOURS, Member


@pytest.fixture(params=FLAVOURS)
def member(request: pytest.FixtureRequest, database: str) -> Iterator[Member]:
    """A member of each package in turn, on a migrated database."""
    with Member(request.param, database) as found:
        found.call("migrate")
        yield found


@pytest.fixture
def fleet(database: str) -> Iterator[list[Member]]:
    """One member of each package on the same migrated database."""
    with ExitStack() as stack:
        members = [stack.enter_context(Member(flavour, database)) for flavour in FLAVOURS]
        members[0].call("migrate")
        yield members
