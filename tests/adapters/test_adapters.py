"""The conformance kit of the database adapters, over all four of them, on each server of the session."""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg.sql import SQL, Identifier, Literal

from awa_proto.errors import Failure, ValidationError
from awa_proto.testing.adapters import (
    Driver,
    Scenario,
    ask,
    cancellation,
    failing,
    failures,
    lanes,
    opened,
    raised,
    transactions,
    until,
    values,
)

pytestmark = pytest.mark.anyio

EVERYWHERE = (*values.SCENARIOS, *transactions.SCENARIOS, *failures.SCENARIOS, *lanes.SCENARIOS)
ISOLATED = (
    transactions.an_atomic_op_commits_all_its_statements,
    transactions.transactions_are_read_committed_whatever_the_default,
    transactions.a_transaction_commits_at_its_end_and_rolls_back_on_an_exception,
    transactions.several_statements_at_once_commit_each_by_itself_or_all_together,
    transactions.copy_streams_its_rows_and_counts_them,
    transactions.concurrent_ops_do_not_share_a_transaction,
    failures.a_serialization_failure_is_run_again_and_a_lane_leaves_that_to_the_core,
    failures.what_returned_was_done_and_what_failed_was_not,
)
ASYNCIO = ("asyncio-asyncpg", "asyncio-psycopg")


def _name(scenario: object) -> str:
    return getattr(scenario, "__name__", str(scenario))


@pytest.mark.parametrize("scenario", EVERYWHERE, ids=_name)
async def test_adapter(scenario: Scenario, driver: Driver, module_database: str) -> None:
    await scenario(driver, module_database)


@pytest.mark.parametrize("scenario", cancellation.SCENARIOS, ids=_name)
async def test_cancelled_adapter(scenario: Scenario, driver: Driver, module_database: str) -> None:
    if not driver.cancellable:
        pytest.skip(f"a blocking call of {driver.name} cannot be cancelled")
    await scenario(driver, module_database)


@pytest.fixture
def isolated(database: str, isolation: str) -> str:
    """A database whose transactions are of this isolation unless they say otherwise."""
    with psycopg.connect(database, autocommit=True) as connection:
        name = Identifier(connection.info.dbname)
        connection.execute(
            SQL("ALTER DATABASE {} SET default_transaction_isolation TO {}").format(name, Literal(isolation))
        )
    return database


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
@pytest.mark.parametrize("scenario", ISOLATED, ids=_name)
async def test_adapter_under_another_default_isolation(scenario: Scenario, driver: Driver, isolated: str) -> None:
    await scenario(driver, isolated)


# --- asyncio only -----------------------------------------------------------------------------------------------------


async def by_task(seconds: float, call: Callable[[], Awaitable[object]]) -> bool:
    """Cancel once, as asyncio itself does."""
    task = asyncio.ensure_future(call())
    timer = asyncio.get_running_loop().call_later(seconds, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        return False
    finally:
        timer.cancel()
    return True


async def by_timeout(seconds: float, call: Callable[[], Awaitable[object]]) -> bool:
    """Cancel by asyncio.timeout, which must get its own cancellation back to turn it into a TimeoutError."""
    try:
        async with asyncio.timeout(seconds):
            await call()
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize("driver_name", ASYNCIO)
@pytest.mark.parametrize("interrupt", [by_task, by_timeout], ids=_name)
async def test_transactions_cancelled_once_are_whole_and_leave_nothing_open(
    interrupt: cancellation.Interrupt, driver: Driver, module_database: str
) -> None:
    returned, cancelled = await cancellation.randomly_cancelled(
        driver, module_database, times=400, seed=4, interrupt=interrupt
    )
    assert returned + cancelled == 400
    assert cancelled > 40


@pytest.mark.parametrize("driver_name", ASYNCIO)
@pytest.mark.parametrize("atomic", [False, True])
async def test_a_server_that_stopped_answering_is_left_at_the_bound(
    atomic: bool, driver: Driver, module_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backend that is stopped takes statements and cancel requests, and answers nothing."""
    monkeypatch.setattr("awa_asyncio.db.shield.GRACE", 0.1)
    monkeypatch.setattr("awa_asyncio.db.attempt.GRACE", 0.1)
    async with opened(driver, module_database) as database, opened(driver, module_database) as observer:
        lane = database.lane("frozen")
        for cancelled in (False, True):
            ((pid,),) = await lane.run(ask(failures.PID))
            with _stopped(pid):
                if cancelled:
                    assert not await by_timeout(0.1, lambda: lane.run(ask("SELECT 1", atomic=atomic)))
                else:
                    error = await failing(lane.run(ask("SELECT 1", timeout=0.1, atomic=atomic)))
                    assert error.failure is (Failure.CONNECTION_LOST if atomic else Failure.OUTCOME_UNKNOWN)
            await until(observer, failures.GONE, pid)
        await lane.close()


@pytest.mark.parametrize("driver_name", ASYNCIO)
async def test_a_commit_without_an_answer_has_an_unknown_outcome(
    driver: Driver, module_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("awa_asyncio.db.shield.GRACE", 0.1)
    async with opened(driver, module_database, statement_timeout=0.2) as database:
        stopped = contextlib.ExitStack()

        async def block() -> None:
            async with database.transaction() as transaction:
                ((pid,),) = await transaction.fetch(failures.PID)
                stopped.enter_context(_stopped(pid))

        with stopped:
            assert (await failing(block())).failure is Failure.OUTCOME_UNKNOWN
        with stopped:
            assert not await by_timeout(0.1, block)


async def test_a_callers_connection_in_pipeline_mode_is_refused(driver: Driver, module_database: str) -> None:
    if driver.name == "asyncio-asyncpg":
        pytest.skip("asyncpg has no pipelines")
    op = ask("SELECT 1::int8")
    async with opened(driver, module_database) as database, driver.caller(module_database) as caller:
        pipeline: Any = getattr(caller.connection, "pipeline")()  # noqa: B009  psycopg's; the kit knows no library
        async with contextlib.AsyncExitStack() as stack:
            if driver.cancellable:
                await stack.enter_async_context(pipeline)
            else:
                stack.enter_context(pipeline)
            error = await raised(ValidationError, database.run(op.on(caller.connection)))
            assert error.field == "using"
        assert await database.run(op.on(caller.connection)) == [(1,)]
        await caller.rollback()


@contextlib.contextmanager
def _stopped(pid: int) -> Iterator[None]:
    try:
        os.kill(pid, signal.SIGSTOP)
    except (PermissionError, ProcessLookupError):
        pytest.skip("the server's processes are not ours to stop")
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("driver_name", ASYNCIO)
async def test_giving_up_prepared_statements_is_logged_once(
    driver: Driver, module_database: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "awa"):
        await failures.lost_prepared_statements_are_given_up_once(driver, module_database)
    assert ["prepared statements are off" in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize("driver_name", ASYNCIO)
async def test_a_pool_of_the_users_is_used_and_left_open(driver: Driver, module_database: str) -> None:
    async with _users_pool(driver, module_database) as pool:
        database = driver.database(None, pool=pool)
        await database.open()
        assert await database.run(ask("SELECT 1::int8", atomic=True)) == [(1,)]
        with contextlib.suppress(ZeroDivisionError):
            async with database.transaction() as transaction:
                await transaction.execute("CREATE TABLE of_the_pool (i int8)")
                raise ZeroDivisionError
        assert await database.run(ask("SELECT to_regclass('of_the_pool')::text")) == [(None,)]
        for i in range(100):
            await by_timeout(0.0001 * (i % 20), lambda: database.run(ask("SELECT 1", atomic=True)))
            await cancellation.by_scope(0.0001 * (i % 20), lambda: database.run(ask("SELECT 1", atomic=True)))
        with pytest.raises(Exception, match="dsn="):
            database.lane("needs a DSN")
        await database.close()
        again = driver.database(module_database, pool=pool)
        assert await again.run(ask("SELECT 1::int8")) == [(1,)]
        lane = again.lane("has a DSN")
        assert await lane.run(ask("SELECT 1::int8")) == [(1,)]
        await lane.close()


@contextlib.asynccontextmanager
async def _users_pool(driver: Driver, dsn: str):  # type: ignore[no-untyped-def]  # two libraries, two kinds of pool
    if driver.name == "asyncio-asyncpg":
        import asyncpg

        async with asyncpg.create_pool(dsn, min_size=0, max_size=2) as pool:
            yield pool
    else:
        from psycopg_pool import AsyncConnectionPool

        async with AsyncConnectionPool(dsn, min_size=1, max_size=2) as pool:
            yield pool
