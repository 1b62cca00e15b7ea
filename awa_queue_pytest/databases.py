"""The server of a session, and databases on it, by whichever of psycopg and asyncpg is installed.

Names: `awa_test_WHERE_RUN_NUMBER`, where RUN is drawn by each process, which holds an advisory lock on it as long as it
lives. So processes do not meet, and what a killed one has left is known by the lock that nobody holds, and dropped by the next.
Such a lock is seen only in the database it was taken in, the one of the DSN: WHERE is its oid.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self
from urllib.parse import urlsplit

import pytest

from awa_proto.dsn import check_dsn
from awa_proto.errors import ConfigurationError
from awa_proto.schema import script
from awa_queue_pytest import PrepareDatabase
from awa_sync.cli.embedded import ServerError, server

_SETTINGS: Final[Mapping[str, str]] = {
    "fsync": "off",  # the data is worth nothing after the tests
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "max_connections": "300",
    "max_prepared_transactions": "20",
}
_LOCKS: Final = 0x617761  # "awa": the first half of the keys; the other one is the run


class Connection(Protocol):
    """A connection in autocommit, for SQL without parameters."""

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a statement; of several statements, nothing."""
        ...

    def close(self) -> None:
        """Close it."""


@contextmanager
def started(directory: Path) -> Iterator[str]:
    """The DSN of a server with its data in `directory`. Fails the test when there is nothing to start."""
    try:
        with pytest.MonkeyPatch.context() as environment:
            environment.delenv("AWA_DATABASE_URL", raising=False)  # the application's: no place for tests
            running = server(directory=directory, settings=_SETTINGS)
    except ServerError as error:
        pytest.fail(
            f"{error}\nTo use a server that runs already: --awa-dsn, $AWA_TEST_DSN or the setting awa_dsn",
            pytrace=False,
        )
    with running:
        yield running.dsn


class Databases:
    """Makes databases on a server, and takes them away.

    Args:
        dsn: Of the server's maintenance database, as a role that may create databases.
        schema: The schema the queue lives in.
        prepare: Called with the DSN of the template.
    """

    def __init__(self, dsn: str, schema: str, prepare: PrepareDatabase) -> None:
        try:
            check_dsn(dsn, keywords=False)
        except ConfigurationError as error:
            pytest.fail(f"the server for tests: {error}", pytrace=False)
        self._dsn = dsn
        self._schema = schema
        self._prepare = prepare
        self._connection = connected(dsn)
        ((where,),) = self._connection.run("SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database()")
        self._prefix = f"awa_test_{where}_"
        self._run = secrets.randbits(31)
        self._how = ""
        self._made = 0
        self._template: str | None = None

    def __enter__(self) -> Self:
        self._connection.run(f"SELECT pg_advisory_lock({_LOCKS}, {self._run})")
        self._drop_what_was_left()
        # Copying files is quicker than copying pages through shared memory, where its two checkpoints cost nothing.
        quick = "current_setting('fsync') = 'off' AND current_setting('server_version_num')::int >= 150000"
        self._how = " STRATEGY FILE_COPY" if self._connection.run(f"SELECT {quick}") == [(True,)] else ""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with closing(self._connection):
            if self._template is not None:
                self._drop(self._template)

    def new(self, *, empty: bool = False) -> AbstractContextManager[str]:
        """The DSN of a new database: a copy of the template, or an empty one."""
        return self._new(None if empty else self._migrated())

    @contextmanager
    def _new(self, template: str | None) -> Iterator[str]:
        name = self._create(template)
        try:
            yield self._at(name)
        finally:
            self._drop(name)

    def _migrated(self) -> str:
        if self._template is None:
            name = self._create(None)
            try:
                with closing(connected(self._at(name))) as connection:
                    connection.run(script(self._schema))
                self._prepare(self._at(name))
            except BaseException:
                self._drop(name)
                raise
            self._template = name
        return self._template

    def _create(self, template: str | None) -> str:
        self._made += 1
        name = f"{self._prefix}{self._run}_{self._made}"
        self._connection.run(f"CREATE DATABASE {name}" + (f" TEMPLATE {template}" if template else "") + self._how)
        return name

    def _drop(self, name: str) -> None:
        prepared = self._connection.run(f"SELECT gid FROM pg_catalog.pg_prepared_xacts WHERE database = '{name}'")
        if prepared:  # these keep even WITH (FORCE) from dropping it
            with closing(connected(self._at(name))) as connection:
                for (gid,) in prepared:
                    connection.run("ROLLBACK PREPARED '{}'".format(gid.replace("'", "''")))
        self._connection.run(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def _drop_what_was_left(self) -> None:
        left: dict[int, list[str]] = {}
        for (name,) in self._connection.run("SELECT datname FROM pg_catalog.pg_database"):
            if found := re.fullmatch(rf"{self._prefix}(\d+)_\d+", name):
                left.setdefault(int(found[1]), []).append(name)
        for run in left.keys() - {self._run}:
            if self._connection.run(f"SELECT pg_try_advisory_lock({_LOCKS}, {run})") == [(True,)]:
                for name in left[run]:
                    self._drop(name)
                self._connection.run(f"SELECT pg_advisory_unlock({_LOCKS}, {run})")

    def _at(self, name: str) -> str:
        return urlsplit(self._dsn)._replace(path=f"/{name}").geturl()


def connected(dsn: str) -> Connection:
    """A connection. Fails the test when neither library is installed."""
    if find_spec("psycopg") is not None:
        return _Psycopg(dsn)
    if find_spec("asyncpg") is not None:
        return _Asyncpg(dsn)
    pytest.fail(
        "neither psycopg nor asyncpg is installed: pip install 'awa-queue[psycopg]' or 'awa-queue[asyncpg]'",
        pytrace=False,
    )


class _Psycopg:
    def __init__(self, dsn: str) -> None:
        import psycopg  # noqa: PLC0415  may not be installed

        self._connection = psycopg.connect(dsn, autocommit=True)

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        self._connection.close()


class _Asyncpg:
    """In a thread with an event loop of its own, for the thread of the test may run one."""

    def __init__(self, dsn: str) -> None:
        import asyncpg  # noqa: PLC0415  may not be installed

        self._thread = ThreadPoolExecutor(1, "awa-tests")
        self._runner = asyncio.Runner()
        self._connection = self._await(asyncpg.connect, dsn)

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        if sql.startswith("SELECT"):
            return [tuple(row) for row in self._await(self._connection.fetch, sql)]
        self._await(self._connection.execute, sql)
        return []

    def close(self) -> None:
        self._await(self._connection.close)
        self._thread.submit(self._runner.close).result()
        self._thread.shutdown()

    def _await(self, function: Any, *arguments: Any) -> Any:
        async def call() -> Any:
            return await function(*arguments)

        return self._thread.submit(self._runner.run, call()).result()
