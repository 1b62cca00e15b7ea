"""The server of a run, a new database for each measurement, and what the server itself counts.

A cluster made for this run and removed after it: default settings (so fsync and synchronous_commit are on) except
`max_connections`, for the 20 workers, and pg_stat_statements where it is there.
"""

import itertools
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import psycopg
from psycopg import sql

from awa_sync.cli.embedded import Server, ServerError, installed, server

Prefer = Literal["system", "embedded"] | None


class Arena:
    """A running server; `with` starts it and removes it."""

    def __init__(self, prefer: Prefer = None) -> None:
        self._prefer: Prefer = prefer
        self._home = Path(".awa", f"bench-{os.getpid()}").resolve()
        self._numbers = itertools.count(1)

    def __enter__(self) -> Self:
        settings = {"max_connections": "500"}
        try:
            self._server = self._start({**settings, "shared_preload_libraries": "pg_stat_statements"})
            self.counts_statements = True
        except ServerError as error:
            if "pg_stat_statements" not in str(error):
                raise
            self._server = self._start(settings)
            self.counts_statements = False
        self._admin = psycopg.connect(self._server.dsn, autocommit=True)
        if self.counts_statements:
            self._admin.execute("CREATE EXTENSION pg_stat_statements")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._admin.close()
        self._server.stop()
        for data in self._home.glob("postgres-*"):
            if data.is_symlink():  # as root, out of a directory that the server's user cannot reach
                shutil.rmtree(data.resolve(), ignore_errors=True)
        shutil.rmtree(self._home, ignore_errors=True)

    @property
    def source(self) -> str:
        """Which server this is."""
        return self._server.source

    @contextmanager
    def database(self) -> Iterator["Database"]:
        """Make an empty database, checkpoint, and drop it at the end."""
        name = f"bench_{next(self._numbers)}"
        self._admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield Database(self._admin, name, self._server.dsn.replace("/postgres?", f"/{name}?"))
        finally:
            self._admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def _start(self, settings: dict[str, str]) -> Server:
        return server(directory=self._home, prefer=self._prefer or self._installed(), settings=settings)

    @staticmethod
    def _installed() -> Literal["system", "embedded"]:
        # Asking for what would be taken anyway keeps $AWA_DATABASE_URL out: that is a server somebody uses.
        return installed()[0].found


@dataclass(frozen=True, slots=True)
class Statement:
    """One kind of statement, as pg_stat_statements counts it."""

    text: str
    calls: int
    wal_bytes: int


class Database:
    """A database and the server's counters that concern it."""

    def __init__(self, admin: psycopg.Connection, name: str, dsn: str) -> None:
        self._admin = admin
        self._name = name
        self.dsn = dsn

    def wal(self) -> int:
        """Bytes of WAL since the cluster was made; of the whole cluster, but nobody else uses it."""
        return int(self._one("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn"))

    def checkpoint(self) -> None:
        """Write everything out, so that each measurement starts alike."""
        self._admin.execute("CHECKPOINT")

    def forget_statements(self) -> None:
        """Start counting statements afresh."""
        self._admin.execute("SELECT pg_stat_statements_reset()")

    def statements(self) -> list[Statement]:
        """What was asked of this database since, most often first."""
        rows = self._admin.execute(
            """
            SELECT query, calls, wal_bytes
            FROM pg_stat_statements
            WHERE dbid = (SELECT oid FROM pg_database WHERE datname = %s)
            ORDER BY calls DESC
            """,
            (self._name,),
        )
        return [Statement(" ".join(text.split()), calls, int(wal)) for text, calls, wal in rows]

    def value(self, query: str) -> Any:
        """The one value of a query in this database."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            row = connection.execute(query.encode()).fetchone()
        return row[0] if row else None

    def dead_tuples(self) -> int:
        """Rows that take room and that nobody needs or somebody holds, over all tables of users.

        Counted by pgstattuple where there is one (it looks at each page), else as the statistics know it.
        """
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            tables = "FROM pg_stat_user_tables JOIN pg_class ON oid = relid WHERE relkind = 'r'"
            if connection.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'pgstattuple'").fetchone():
                connection.execute("CREATE EXTENSION IF NOT EXISTS pgstattuple")
                row = connection.execute(f"SELECT sum((pgstattuple(relid)).dead_tuple_count) {tables}").fetchone()
            else:
                row = connection.execute(f"SELECT sum(n_dead_tup) {tables}").fetchone()
        return int(row[0] or 0) if row else 0

    @contextmanager
    def pinned(self) -> Iterator[None]:
        """Hold a snapshot open: what dies meanwhile cannot be removed."""
        with psycopg.connect(self.dsn) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.execute("SELECT 1")
            yield

    def _one(self, query: str) -> Any:
        row = self._admin.execute(query.encode()).fetchone()
        assert row is not None
        return row[0]
