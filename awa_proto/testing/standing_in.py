"""What stands in for the database of a client while a test keeps everything in one transaction.

An Op is at most one transaction, so each one gets a savepoint: one that fails undoes itself, as it would by itself. A
transaction of the client becomes a savepoint too, inside of which a failed statement spoils the rest, as in a real one. The
outer transaction is the test's, to be rolled back.

One thing after the other: savepoints of tasks that run at the same time would undo each other.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from typing import Any, Protocol, TypeVar

from awa_proto.errors import ConfigurationError, DatabaseError
from awa_proto.plan import Op, Plan, Row, Rows, Statement, Value, answer, users_own

T = TypeVar("T")


class Undone(Exception):
    """Leaves a transaction, so that it is rolled back; nobody else sees it."""


class Runs(Protocol):
    """Runs an Op in the transaction of the test."""

    def __call__(self, op: Op[T], /) -> T:
        """Its result."""
        ...


class RunsAwaited(Protocol):
    """Runs an Op in the transaction of the test."""

    def __call__(self, op: Op[T], /) -> Awaitable[T]:
        """Its result."""
        ...


class StandIn:
    """For the database of a client of blocking code. turn: a lock, held for each Op."""

    def __init__(self, run: Runs, turn: AbstractContextManager[object]) -> None:
        self._run = run
        self._turn = turn
        self._numbers = itertools.count(1)

    def open(self) -> None:
        """The transaction is open already."""

    def close(self) -> None:
        """It is the test's to end."""

    def run(self, op: Op[T]) -> T:
        """The result of an Op; what one that failed did is undone."""
        with self._turn, self._savepoint():
            if op.name != "finalize":
                return self._run(op)
            patience = self._run(_patience())
            result = self._run(op)
            self._run(_set_patience(patience))
            return result

    @contextmanager
    def transaction(self) -> Iterator[StandInTransaction]:
        """What a transaction of the client is: undone when an exception leaves it."""
        with self._savepoint():
            yield StandInTransaction(self._run)

    def lane(self, name: str, **_: object) -> Any:
        """There are none. Raises ConfigurationError."""
        raise no_worker(name)

    @contextmanager
    def _savepoint(self) -> Iterator[None]:
        name = f"awa_test_{next(self._numbers)}"
        self._run(_command(f"SAVEPOINT {name}"))
        try:
            yield
        except BaseException:
            with suppress(Exception):  # the connection may be gone, and the test hears of what happened first
                self._run(_command(f"ROLLBACK TO SAVEPOINT {name}"))
            raise
        self._run(_command(f"RELEASE SAVEPOINT {name}"))


class StandInTransaction:
    """What a Transaction of the client uses for its connection."""

    def __init__(self, run: Runs) -> None:
        self._run = run

    def run(self, op: Op[T]) -> T:
        """The result of an Op."""
        return self._run(op)

    def fetch(self, sql: str, *params: Value) -> list[Row]:
        """The rows of one statement of the user's."""
        return self._run(_users(sql, params))

    def execute(self, sql: str, *params: Value) -> None:
        """Run one statement of the user's."""
        self._run(_users(sql, params))


class AwaitedStandIn:
    """For the database of a client that is awaited. turn: a lock, held for each Op."""

    def __init__(self, run: RunsAwaited, turn: AbstractAsyncContextManager[object]) -> None:
        self._run = run
        self._turn = turn
        self._numbers = itertools.count(1)

    async def open(self) -> None:
        """The transaction is open already."""

    async def close(self) -> None:
        """It is the test's to end."""

    async def run(self, op: Op[T]) -> T:
        """The result of an Op; what one that failed did is undone."""
        async with self._turn, self._savepoint():
            if op.name != "finalize":
                return await self._run(op)
            patience = await self._run(_patience())
            result = await self._run(op)
            await self._run(_set_patience(patience))
            return result

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AwaitedStandInTransaction]:
        """What a transaction of the client is: undone when an exception leaves it."""
        async with self._savepoint():
            yield AwaitedStandInTransaction(self._run)

    def lane(self, name: str, **_: object) -> Any:
        """There are none. Raises ConfigurationError."""
        raise no_worker(name)

    @asynccontextmanager
    async def _savepoint(self) -> AsyncIterator[None]:
        name = f"awa_test_{next(self._numbers)}"
        await self._run(_command(f"SAVEPOINT {name}"))
        try:
            yield
        except BaseException:
            with suppress(Exception):  # as above
                await self._run(_command(f"ROLLBACK TO SAVEPOINT {name}"))
            raise
        await self._run(_command(f"RELEASE SAVEPOINT {name}"))


class AwaitedStandInTransaction:
    """What a Transaction of the client uses for its connection."""

    def __init__(self, run: RunsAwaited) -> None:
        self._run = run

    async def run(self, op: Op[T]) -> T:
        """The result of an Op."""
        return await self._run(op)

    async def fetch(self, sql: str, *params: Value) -> list[Row]:
        """The rows of one statement of the user's."""
        return await self._run(_users(sql, params))

    async def execute(self, sql: str, *params: Value) -> None:
        """Run one statement of the user's."""
        await self._run(_users(sql, params))


def no_worker(name: str) -> ConfigurationError:
    """A worker would see nothing of the transaction."""
    return ConfigurationError(
        f"inside of a transaction that a test rolls back there are no workers (lane {name!r}), whose connections would see"
        " nothing of it: use work_one and work_all"
    )


def _command(sql: str) -> Op[Rows]:
    return Op("test.savepoint", lambda: answer(Statement("test.savepoint", sql, prepare=False)))


def _users(sql: str, params: tuple[Value, ...]) -> Op[Rows]:
    def plan() -> Plan[Rows]:
        try:
            rows: Rows = yield users_own(sql, params)
        except DatabaseError as error:
            error.is_of_users_sql()
            raise
        return rows

    return Op("user", plan)


def _patience() -> Op[str]:
    """What `finalize` sets for itself until the transaction ends, which here is not its own."""

    def plan() -> Plan[str]:
        rows = yield Statement("test.patience", "SELECT current_setting('lock_timeout')")
        patience: str = rows[0][0]
        return patience

    return Op("test.patience", plan)


def _set_patience(patience: str) -> Op[Rows]:
    set_it = Statement("test.set_patience", "SELECT set_config('lock_timeout', $1::text, true)", (patience,))
    return Op("test.set_patience", lambda: answer(set_it))
