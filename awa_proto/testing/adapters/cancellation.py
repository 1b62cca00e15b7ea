"""Cancelled at any moment: nothing half done, and no connection left dirty.

These need a driver whose calls can be cancelled. Scopes of anyio cancel by level under both event loops: the clean-up of
whoever does not shield it is cancelled again.
"""

# ruff: noqa: D103  # a scenario is named as a sentence

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import anyio

from awa_proto.plan import Copy, Op, Plan
from awa_proto.testing.adapters import Driver, Scenario, ask, new_table, opened, sequence, statement, until
from awa_proto.testing.adapters.failures import NEVER, PID, SLEEPS

Interrupt: TypeAlias = "Callable[[float, Callable[[], Awaitable[object]]], Awaitable[bool]]"
"""Calls something and cancels it after so many seconds; says whether it returned."""

QUIET = "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in tr%'"
STOPPED = "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $1::int4 AND state = 'active'"


async def by_scope(seconds: float, call: Callable[[], Awaitable[object]]) -> bool:
    """Cancel with an anyio scope."""
    with anyio.move_on_after(seconds):
        await call()
        return True
    return False


async def randomly_cancelled(
    driver: Driver, dsn: str, *, times: int, seed: int, interrupt: Interrupt = by_scope, copy: bool = False
) -> tuple[int, int]:
    """Insert two rows in one transaction, cancelled at a random moment, again and again; how many returned, and did not.

    Between them a statement that is refused inside a transaction runs on the same connection: VACUUM.
    """
    draw = random.Random(seed)
    returned: set[int] = set()
    async with opened(driver, dsn, max_size=1) as database:
        table = await new_table(database, "i int8")
        empty = await new_table(database, "i int8")
        insert = f"INSERT INTO {table} VALUES ($1::int8)"

        def op(i: int) -> Op[list[object]]:
            second = Copy("kit", "public", table, ("i",), [b"%d\n" % i]) if copy else statement(insert, i)
            return sequence(statement(insert, i), second, atomic=True)

        async def block(i: int) -> None:
            async with database.transaction() as transaction:
                await transaction.execute(insert, i)
                await transaction.run(op(i))
                await transaction.execute(f"DELETE FROM {table} WHERE i = $1::int8", i)
                await transaction.run(op(i))

        for i in range(times):

            async def call(i: int = i) -> None:
                await (block(i) if i % 4 == 0 else database.run(op(i)))

            if await interrupt(draw.random() * 0.002, call):
                returned.add(i)
            if i % 3 == 0:
                await database.run(ask(f"VACUUM {empty}"))
        await until(database, QUIET)
        rows = await database.run(ask(f"SELECT i, count(*)::int8 FROM {table} GROUP BY i"))
        assert all(count == 2 for _, count in rows), rows
        assert returned <= {i for i, _ in rows}, "what returned was not committed"
        await until(database, QUIET)
    return len(returned), times - len(returned)


async def transactions_cancelled_at_random_are_whole_and_leave_nothing_open(driver: Driver, dsn: str) -> None:
    returned, cancelled = await randomly_cancelled(driver, dsn, times=400, seed=1)
    assert returned + cancelled == 400
    assert cancelled > 40


async def copies_cancelled_at_random_are_whole_and_leave_nothing_open(driver: Driver, dsn: str) -> None:
    await randomly_cancelled(driver, dsn, times=100, seed=2, copy=True)


async def a_cancelled_statement_stops_on_the_server(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn) as database:
        lane = database.lane("cancelled")
        for atomic in (False, True):
            ((pid,),) = await lane.run(ask(PID))
            async with anyio.create_task_group() as group:
                group.start_soon(lane.run, ask(NEVER, atomic=atomic))
                await until(database, SLEEPS, pid)
                group.cancel_scope.cancel()
            await until(database, STOPPED, pid)
            assert await lane.run(ask("SELECT 1::int8", atomic=True)) == [(1,)]
        await lane.close()


async def a_cancelled_transaction_rolls_back(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn, max_size=1) as database, opened(driver, dsn) as admin:
        table = await new_table(database, "i int8")

        async def block() -> None:
            async with database.transaction() as transaction:
                await transaction.execute(f"INSERT INTO {table} VALUES (1)")
                await anyio.sleep_forever()

        async with anyio.create_task_group() as group:
            group.start_soon(block)
            await until(admin, "SELECT count(*) > 0 FROM pg_stat_activity WHERE state = 'idle in transaction'")
            group.cancel_scope.cancel()
        await database.run(ask(f"VACUUM {table}"))
        assert await database.run(ask(f"SELECT i FROM {table}")) == []


async def a_cancelled_wait_for_a_connection_keeps_its_place_for_others(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn, max_size=1) as database:
        for _ in range(5):
            async with database.transaction() as transaction, anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(database.run, ask("SELECT 1"))
                await transaction.execute("SELECT 1")
                group.cancel_scope.cancel()
            assert await database.run(ask("SELECT 1::int8")) == [(1,)]


async def a_cancelled_caller_keeps_a_connection_it_can_use(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn) as database, driver.caller(dsn) as caller:
        ((pid,),) = await database.run(ask(PID).on(caller.connection))
        async with anyio.create_task_group() as group:
            group.start_soon(database.run, ask(NEVER).on(caller.connection))
            await until(database, SLEEPS, pid)
            group.cancel_scope.cancel()
        await until(database, STOPPED, pid)
        await caller.rollback()


async def a_cancelled_connect_leaves_room_for_the_next(driver: Driver, dsn: str) -> None:
    draw = random.Random(3)
    async with opened(driver, dsn) as observer:
        for _ in range(30):
            async with opened(driver, dsn, max_size=1) as database:
                await by_scope(draw.random() * 0.01, lambda database=database: database.run(ask("SELECT 1")))  # type: ignore[misc]  # a lambda's default has no type
                assert await database.run(ask("SELECT 1::int8")) == [(1,)]
        await until(observer, "SELECT count(*) < 3 FROM pg_stat_activity WHERE datname = current_database()")


async def a_plan_is_closed_when_its_op_is_cancelled(driver: Driver, dsn: str) -> None:
    closed: list[bool] = []

    def plan() -> Plan[None]:
        try:
            yield statement(NEVER)
        finally:
            closed.append(True)

    async with opened(driver, dsn) as database:
        await by_scope(0.02, lambda: database.run(Op("kit", plan)))
    assert closed == [True]


async def cancelling_many_at_once_leaves_the_pool_whole(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn, max_size=4) as database:
        async with anyio.create_task_group() as group:
            for i in range(20):
                group.start_soon(database.run, ask(NEVER, atomic=i % 2 == 0))
            await until_busy(driver, dsn, 4)
            group.cancel_scope.cancel()
        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(database.run, ask("SELECT pg_sleep(0.001)::text", atomic=True))
        await until(database, QUIET)


async def until_busy(driver: Driver, dsn: str, count: int) -> None:
    """Wait until so many backends of this database sleep."""
    sleeping = "SELECT count(*) >= $1::int8 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
    async with opened(driver, dsn) as observer:
        await until(observer, sleeping, count)


SCENARIOS: tuple[Scenario, ...] = (
    transactions_cancelled_at_random_are_whole_and_leave_nothing_open,
    copies_cancelled_at_random_are_whole_and_leave_nothing_open,
    a_cancelled_statement_stops_on_the_server,
    a_cancelled_transaction_rolls_back,
    a_cancelled_wait_for_a_connection_keeps_its_place_for_others,
    a_cancelled_caller_keeps_a_connection_it_can_use,
    a_cancelled_connect_leaves_room_for_the_next,
    a_plan_is_closed_when_its_op_is_cancelled,
    cancelling_many_at_once_leaves_the_pool_whole,
)
