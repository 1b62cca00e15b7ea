"""The pytest plugin: a server, databases and test clients for applications that use awa. How to: `docs/testing.md`.

pytest loads it wherever awa-queue is installed, so it imports nothing of awa until a fixture needs it. No fixture is a
coroutine: what needs an event loop is entered by the test itself, `async with awa_asyncio_client() as test`. So the fixtures
depend on no plugin for async tests: anyio's, pytest-asyncio, pytest-trio and `asyncio.run` in a plain test all do.

Fixtures, from the outside in:
- awa_server: the DSN of the server, one for a session.
- awa_prepare_database: what comes into every database beside the tables of awa; to be overridden.
- awa_new_database: a function that makes databases.
- awa_session_database, awa_database: the DSN of a database for all tests, and of one for each test.
- awa_asyncio_client, awa_trio_client, awa_sync_client: functions that open an AwaTestClient on awa_database.

Databases are copies of a template which each process, so each worker of pytest-xdist, makes and migrates once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    import awa_asyncio
    import awa_asyncio.testing
    import awa_sync
    import awa_sync.testing
    import awa_trio
    import awa_trio.testing

__all__ = ["AsyncioClient", "NewDatabase", "PrepareDatabase", "SyncClient", "TrioClient"]

PrepareDatabase = Callable[[str], object]
"""Is called with the DSN of the template, once in each process."""


class NewDatabase(Protocol):
    """`with awa_new_database() as dsn`: a database that is dropped at the end of the block."""

    def __call__(self, *, empty: bool = False) -> AbstractContextManager[str]:
        """Make one.

        Args:
            empty: Without any tables, for tests of migrations.
        """
        ...


class AsyncioClient(Protocol):
    """`async with awa_asyncio_client() as test`: an AwaTestClient, its client open until the end of the block."""

    def __call__(
        self, client: awa_asyncio.Client | None = None, /, **options: Any
    ) -> AbstractAsyncContextManager[awa_asyncio.testing.AwaTestClient]:
        """Open one.

        Args:
            client: The application's own, which has no DSN: $AWA_DATABASE_URL is set in the block. By default a new one.
            options: Of the new client, such as `tasks` or `driver`.
        """
        ...


class TrioClient(Protocol):
    """`async with awa_trio_client() as test`: as AsyncioClient."""

    def __call__(
        self, client: awa_trio.Client | None = None, /, **options: Any
    ) -> AbstractAsyncContextManager[awa_trio.testing.AwaTestClient]:
        """Open one, arguments as AsyncioClient."""
        ...


class SyncClient(Protocol):
    """`with awa_sync_client() as test`: as AsyncioClient."""

    def __call__(
        self, client: awa_sync.Client | None = None, /, **options: Any
    ) -> AbstractContextManager[awa_sync.testing.AwaTestClient]:
        """Open one, arguments as AsyncioClient."""
        ...


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --awa-dsn and the settings awa_dsn, awa_schema and awa_directory."""
    group = parser.getgroup("awa", "awa, the job queue")
    group.addoption(
        "--awa-dsn",
        metavar="URL",
        help="a PostgreSQL server to make databases on, as a role that may; default: $AWA_TEST_DSN, the setting awa_dsn, "
        "or else a server that is started",
    )
    parser.addini("awa_dsn", "as --awa-dsn, which counts more, and so does $AWA_TEST_DSN", default="")
    parser.addini("awa_schema", "the schema the queue lives in", default="awa")
    parser.addini(
        "awa_directory", "where the data of the server that is started lies, from the rootdir", default=".awa/tests"
    )


@pytest.fixture(scope="session")
def awa_server(pytestconfig: pytest.Config) -> Iterator[str]:
    """The DSN of a PostgreSQL server: the one given, or one that is started, shared by all processes, and stopped."""
    given = pytestconfig.getoption("awa_dsn") or os.environ.get("AWA_TEST_DSN") or pytestconfig.getini("awa_dsn")
    if given:
        yield given
        return
    from awa_queue_pytest.databases import started  # noqa: PLC0415  see the module's docstring

    with started(pytestconfig.rootpath / Path(pytestconfig.getini("awa_directory"))) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def awa_prepare_database() -> PrepareDatabase:
    """A function that is called with the DSN of the template once awa is migrated: override it to add tables of your own."""
    return lambda _dsn: None


@pytest.fixture(scope="session")
def awa_new_database(
    awa_server: str, awa_prepare_database: PrepareDatabase, pytestconfig: pytest.Config
) -> Iterator[NewDatabase]:
    """What makes databases, each for a block: `with awa_new_database() as dsn`."""  # noqa: D402  an example
    from awa_queue_pytest.databases import Databases  # noqa: PLC0415

    with Databases(awa_server, pytestconfig.getini("awa_schema"), awa_prepare_database) as databases:
        yield databases.new


@pytest.fixture(scope="session")
def awa_session_database(awa_new_database: NewDatabase) -> Iterator[str]:
    """The DSN of a database that all tests of a process share, migrated: for tests that roll back what they do."""
    with awa_new_database() as dsn:
        yield dsn


@pytest.fixture
def awa_database(awa_new_database: NewDatabase) -> Iterator[str]:
    """The DSN of a database of this test's own, migrated and without a job."""
    with awa_new_database() as dsn:
        yield dsn


@pytest.fixture
def awa_asyncio_client(awa_database: str, pytestconfig: pytest.Config) -> AsyncioClient:
    """A function that opens an AwaTestClient of awa_asyncio on `awa_database`."""
    from awa_queue_pytest.clients import open_async, package  # noqa: PLC0415

    return open_async(package("asyncio"), awa_database, pytestconfig.getini("awa_schema"))


@pytest.fixture
def awa_trio_client(awa_database: str, pytestconfig: pytest.Config) -> TrioClient:
    """A function that opens an AwaTestClient of awa_trio on `awa_database`."""
    from awa_queue_pytest.clients import open_async, package  # noqa: PLC0415

    return open_async(package("trio"), awa_database, pytestconfig.getini("awa_schema"))


@pytest.fixture
def awa_sync_client(awa_database: str, pytestconfig: pytest.Config) -> SyncClient:
    """A function that opens an AwaTestClient of awa_sync on `awa_database`."""
    from awa_queue_pytest.clients import open_blocking, package  # noqa: PLC0415

    return open_blocking(package("sync"), awa_database, pytestconfig.getini("awa_schema"))
