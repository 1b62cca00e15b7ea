"""Test clients on the database of a test: a new client, or the application's own, which finds it by $AWA_DATABASE_URL."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final, Literal

import pytest

_NEEDED: Final = {
    "asyncio": (
        (("asyncpg", "psycopg"),),
        "asyncpg or psycopg: pip install 'awa-queue[asyncpg]' or 'awa-queue[psycopg]'",
    ),
    "trio": ((("trio",), ("psycopg",)), "trio and psycopg: pip install 'awa-queue[trio]'"),
    "sync": ((("psycopg",),), "psycopg: pip install 'awa-queue[psycopg]'"),
}
"""For each driver the libraries it needs, one of each group, and how that is said."""


def package(name: Literal["asyncio", "trio", "sync"]) -> ModuleType:
    """The `testing` module of a driver. Fails the test when what it needs is not installed."""
    groups, said = _NEEDED[name]
    if not all(any(find_spec(library) for library in group) for group in groups):
        pytest.fail(f"awa_{name}_client needs {said}", pytrace=False)
    return importlib.import_module(f"awa_{name}.testing")


def open_async(testing: ModuleType, dsn: str, schema: str) -> Callable[..., Any]:
    """The function of a package whose clients are entered with `async with`."""

    @asynccontextmanager
    async def opened(client: Any = None, /, **options: Any) -> AsyncIterator[Any]:
        with _on(testing, dsn, schema, client, options) as one:
            async with one:
                yield testing.AwaTestClient(one)

    return opened


def open_blocking(testing: ModuleType, dsn: str, schema: str) -> Callable[..., Any]:
    """The function of the package whose clients are entered with `with`."""

    @contextmanager
    def opened(client: Any = None, /, **options: Any) -> Iterator[Any]:
        with _on(testing, dsn, schema, client, options) as one, one:
            yield testing.AwaTestClient(one)

    return opened


@contextmanager
def _on(testing: ModuleType, dsn: str, schema: str, client: Any, options: dict[str, Any]) -> Iterator[Any]:
    """A client that is not open yet, with $AWA_DATABASE_URL naming the database, for other clients of the application too."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWA_DATABASE_URL", dsn)
        if client is None:
            yield testing.Client(**{"dsn": dsn, "schema": schema, **options})
            return
        if options:
            raise TypeError(f"options are those of a new client, and one was given: {', '.join(options)}")
        if client._dsn is not None or client._pool is not None:  # noqa: SLF001  of the same distribution
            raise ValueError(
                "this client has a DSN or a pool of its own, so it would not use the database of the test: make it without "
                "one, for $AWA_DATABASE_URL, or include it in a new client: tasks=[client]"
            )
        yield client
