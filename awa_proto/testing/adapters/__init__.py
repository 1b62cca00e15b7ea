"""What every database adapter must do alike, as scenarios that are run over each of them.

A scenario is an async function of a `Driver` and the DSN of a database it may fill. It speaks anyio only, so it runs under
asyncio and under trio; a blocking adapter takes part behind a façade that runs each call in a thread. What an adapter
cannot do is a fact of its `Driver`, and the test that skips a scenario for it says so.

    values        one scenario for each trap between asyncpg and psycopg, and odd values there and back
    transactions  commit, roll back, the caller's own transaction, COPY, several statements at once
    failures      what each error of the database comes out as, and what is tried again
    lanes         a worker's own connection, notifications, and its loss
    cancellation  a statement cut short at any moment leaves nothing half done and no connection dirty
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import anyio

from awa_proto.errors import DatabaseError, Failure
from awa_proto.plan import Op, Plan, Row, Rows, Statement, Step, Value, answer

T = TypeVar("T")
E = TypeVar("E", bound=Exception)


class Transaction(Protocol):
    """What `Adapter.transaction` gives."""

    async def run(self, op: Op[T], /) -> T:
        """The result of an Op inside the transaction."""
        ...

    async def fetch(self, sql: str, /, *params: Value) -> list[Row]:
        """The rows of a statement of the user's own."""
        ...

    async def execute(self, sql: str, /, *params: Value) -> None:
        """A statement of the user's own."""


class Lane(Protocol):
    """A worker's own connection."""

    async def run(self, op: Op[T], /) -> T:
        """The result of an Op, run exactly once."""
        ...

    async def close(self) -> None:
        """Close the connection."""


class Adapter(Protocol):
    """A `Database` of a driver; a blocking one behind a façade."""

    async def open(self) -> None:
        """Make it ready."""

    async def close(self) -> None:
        """Close its connections."""

    async def run(self, op: Op[T], /) -> T:
        """The result of an Op."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """A transaction for the length of a block."""
        ...

    def lane(
        self,
        name: str,
        /,
        *,
        channel: str | None = None,
        notified: Callable[[str], object] | None = None,
        lost: Callable[[DatabaseError], object] | None = None,
    ) -> Lane:
        """A connection of its own."""
        ...


class Caller(Protocol):
    """A user's own connection of the library, with a transaction open."""

    @property
    def connection(self) -> object:
        """What is given as `using=`."""
        ...

    async def rollback(self) -> None:
        """End the transaction."""

    async def commit(self) -> None:
        """End the transaction."""


@dataclass(frozen=True, slots=True)
class Driver:
    """An adapter, with what a scenario must know of it.

    database: makes a Database from a DSN and its keyword arguments.
    caller: opens a connection of the library itself, inside a transaction.
    library_error: what the library raises when the server refuses a statement.
    cancellable: a running call can be cancelled; blocking calls cannot.
    """

    name: str
    database: Callable[..., Adapter]
    caller: Callable[[str], AbstractAsyncContextManager[Caller]]
    library_error: type[Exception]
    cancellable: bool = True


Scenario: TypeAlias = "Callable[[Driver, str], Awaitable[None]]"


class opened:  # noqa: N801  # used like the function it could be
    """`async with opened(driver, dsn) as database`, closed whatever happens."""

    def __init__(self, driver: Driver, dsn: str, **options: Any) -> None:
        self._database = driver.database(dsn, **options)

    async def __aenter__(self) -> Adapter:
        await self._database.open()
        return self._database

    async def __aexit__(self, *failure: object) -> None:
        with anyio.CancelScope(shield=True):
            await self._database.close()


def ask(sql: str, *params: Value, **facts: Any) -> Op[Rows]:
    """An Op of one statement, named by its text."""
    return Op("kit", lambda: answer(Statement(sql, sql, params)), **facts)


def sequence(*steps: Step, **facts: Any) -> Op[list[Any]]:
    """An Op of several steps, one after another; the list of their answers."""

    def plan() -> Plan[list[Any]]:
        answers: list[Any] = []
        for step in steps:
            answers.append((yield step))  # noqa: PERF401  # a plan cannot yield from inside a comprehension
        return answers

    return Op("kit", plan, **facts)


def statement(sql: str, *params: Value) -> Statement:
    """A statement named by its text."""
    return Statement(sql, sql, params)


_numbers = itertools.count(1)


async def new_table(database: Adapter, columns: str) -> str:
    """The name of a new table that no other scenario uses, which `{table}` in its columns stands for."""
    name = f"kit_{next(_numbers)}"
    await database.run(ask(f"DROP TABLE IF EXISTS {name}"))
    await database.run(ask(f"CREATE TABLE {name} ({columns.replace('{table}', name)})"))
    return name


async def until(database: Adapter, sql: str, *params: Value) -> None:
    """Ask until the one value of the answer is true."""
    with anyio.fail_after(30):
        while (await database.run(ask(sql, *params)))[0][0] is not True:  # PostgreSQL tells nobody
            await anyio.sleep(0.002)


async def raised(kind: type[E], work: Awaitable[object]) -> E:
    """The exception of this kind that `work` must raise."""
    try:
        answered = await work
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}, but {answered!r}")


async def failing(work: Awaitable[object]) -> DatabaseError:
    """The DatabaseError that `work` must raise."""
    return await raised(DatabaseError, work)


async def refused(work: Awaitable[object]) -> None:
    """`work` must fail as what the server will refuse again."""
    error = await failing(work)
    assert error.failure is Failure.REFUSED, (error.failure, error.sqlstate, error)
