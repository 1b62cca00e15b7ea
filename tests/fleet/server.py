"""What tests do to a server behind the back of its clients. Blocking; every wait is for a state, not for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.fleet.members import PATIENCE

_OTHERS = "datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"


def ask(dsn: str, sql: str, *params: Any) -> list[tuple[Any, ...]]:
    """The rows of a statement, on a connection of its own."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(sql.encode(), params or None)
        return [] if cursor.description is None else cursor.fetchall()  # rows may have no columns


def until(holds: Callable[[], object], what: str) -> None:
    """Ask again and again until it holds."""
    end = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > end:
            pytest.fail(f"did not happen: {what}")
        time.sleep(0.005)


def connections(dsn: str) -> int:
    """How many other connections of the database there are."""
    [(found,)] = ask(dsn, f"SELECT count(*)::int FROM pg_stat_activity WHERE {_OTHERS}")
    return int(found)


def terminate_all(dsn: str, where: str = "true") -> int:
    """End every other connection of the database, and wait until they are gone. How many there were."""
    pids = [pid for (pid,) in ask(dsn, f"SELECT pid FROM pg_stat_activity WHERE {_OTHERS} AND {where}")]
    ask(dsn, "SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) pid", pids)
    gone = "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY (%s)"
    until(lambda: ask(dsn, gone, pids) == [(0,)], "the end of terminated backends")
    return len(pids)
