"""What is special about trio: psycopg without asyncio, and cancellations that leave no connection in between."""

import asyncio
import logging
import os
import random
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NoReturn

import psycopg
import pytest
import trio
from psycopg import waiting
from psycopg.pq import TransactionStatus

from awa_proto.errors import DatabaseError, Failure
from awa_proto.plan import Copy, Op, Plan, Rows, Statement, Value, answer
from awa_trio.db import connection as connection_module
from awa_trio.db.connection import TrioConnection
from awa_trio.db.pool import Pool
from awa_trio.db.psycopg import Database


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


@pytest.fixture(autouse=True)
def no_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("asyncio was used")

    for name in ("get_running_loop", "to_thread", "create_task", "sleep", "wait_for"):
        monkeypatch.setattr(asyncio, name, refuse)
    monkeypatch.setattr(waiting, "get_running_loop", refuse, raising=False)
    monkeypatch.setattr(waiting, "wait_async", refuse)
    monkeypatch.setattr(waiting, "wait_conn_async", refuse)


def sql(text: str, *params: Value, **facts: Any) -> Op[Rows]:
    return Op("test", lambda: answer(Statement("test", text, params)), **facts)


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[TrioConnection[Any]]:
    connection = await TrioConnection.connect(dsn, autocommit=True)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def database_at(dsn: str | None, **options: Any) -> AsyncIterator[Database]:
    opened = Database(dsn, **options)
    await opened.open()
    try:
        yield opened
    finally:
        await opened.close()


async def execute(connection: TrioConnection[Any], text: str) -> None:
    await connection.execute(text.encode())


async def until(dsn: str, condition: str, *params: Value) -> None:
    """Wait until a query is true, seen from outside."""
    async with connected(dsn) as observer:
        while True:
            cursor = psycopg.AsyncRawCursor(observer)
            await cursor.execute(condition.encode(), params)
            row = await cursor.fetchone()
            if row is not None and row[0]:
                return
            await trio.sleep(0.002)


async def until_asleep(dsn: str, pid: int) -> None:
    """Wait until a backend is in the middle of pg_sleep."""
    await until(dsn, "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = $1::int", pid)


@contextmanager
def stopping(pid: int) -> Iterator[None]:
    """Whatever stops a backend in this block, it goes on afterwards."""
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def is_clean(connection: TrioConnection[Any]) -> bool:
    return connection.closed or connection.info.transaction_status == TransactionStatus.IDLE


# --- cancellation -------------------------------------------------------------------------------------------------


async def test_a_cancelled_statement_is_cancelled_on_the_server_and_the_connection_can_be_used_again(
    database: str,
) -> None:
    async with connected(database) as connection:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(execute, connection, "SELECT pg_sleep(20)")
            await until_asleep(database, connection.info.backend_pid)
            nursery.cancel_scope.cancel()
        assert connection.info.transaction_status == TransactionStatus.IDLE
        assert await (await connection.execute("SELECT 7")).fetchone() == (7,)


async def _by_run(database: Database, number: int) -> None:
    def plan() -> Plan[None]:
        yield Statement("first", "INSERT INTO halves VALUES ($1::int, 'first')", (number,))
        yield Statement("second", "INSERT INTO halves VALUES ($1::int, 'second')", (number,))

    await database.run(Op("halves", plan, atomic=True))


async def _by_transaction(database: Database, number: int) -> None:
    async with database.transaction() as transaction:
        await transaction.execute("INSERT INTO halves VALUES ($1::int, 'first')", number)
        await transaction.execute("INSERT INTO halves VALUES ($1::int, 'second')", number)


async def _by_copy(database: Database, number: int) -> None:
    def plan() -> Plan[None]:
        yield Copy("copy", "public", "halves", ("number", "half"), (b"%d\tfirst\n" % number, b"%d\tsecond\n" % number))

    await database.run(Op("copy", plan))


@pytest.mark.parametrize("work", [_by_run, _by_transaction, _by_copy])
async def test_400_transactions_cancelled_at_random_are_done_or_not_and_leave_no_connection_dirty(
    database: str, work: Callable[[Database, int], Awaitable[None]]
) -> None:
    numbers = random.Random(400)
    returned: set[int] = set()
    async with database_at(database, max_size=1) as db:
        await db.run(sql("CREATE TABLE halves (number int, half text)"))
        for number in range(400):
            with trio.move_on_after(numbers.uniform(0, 0.004)):
                await work(db, number)
                returned.add(number)
            assert all(is_clean(session.connection) for session in db._pool._idle)
        found: dict[int, int] = dict(await db.run(sql("SELECT number, count(*) FROM halves GROUP BY number")))
    assert set(found.values()) == {2}
    assert returned <= set(found)
    assert returned
    assert len(returned) < 400


async def test_400_transactions_on_the_connection_itself_cancelled_at_random(database: str) -> None:
    numbers = random.Random(401)
    returned: set[int] = set()
    async with connected(database) as connection:
        await connection.execute("CREATE TABLE halves (number int, half text)")
        for number in range(400):
            with trio.move_on_after(numbers.uniform(0, 0.004)):
                async with connection.transaction():
                    await connection.execute("INSERT INTO halves VALUES (%s, 'first')", (number,))
                    async with connection.transaction():
                        await connection.execute("INSERT INTO halves VALUES (%s, 'second')", (number,))
                returned.add(number)
            assert not connection.closed
            assert is_clean(connection)
        rows = await (await connection.execute("SELECT number, count(*) FROM halves GROUP BY number")).fetchall()
    assert {count for _, count in rows} == {2}
    assert returned <= {number for number, _ in rows}


async def test_a_cancelled_commit_is_waited_for(database: str) -> None:
    async with database_at(database) as db:
        await _slow_commits(db, seconds=0.2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(db.run, sql("INSERT INTO slow VALUES (1)", atomic=True))
            await until(database, "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
            nursery.cancel_scope.cancel()
        assert await db.run(sql("SELECT n FROM slow")) == [(1,)]


async def test_a_cancelled_commit_that_outlives_its_bound_closes_the_connection(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "GRACE", 0.1)
    async with database_at(database) as db:
        await _slow_commits(db, seconds=60)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(db.run, sql("INSERT INTO slow VALUES (1)", atomic=True))
            await until(database, "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
            nursery.cancel_scope.cancel()
        assert db._pool._idle == []


async def _slow_commits(db: Database, *, seconds: float) -> None:
    await db.run(sql("CREATE TABLE slow (n int)"))
    body = f"$$ BEGIN PERFORM pg_sleep({seconds}); RETURN NULL; END $$"
    await db.run(sql(f"CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS {body}"))
    trigger = "CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED"
    await db.run(sql(f"{trigger} FOR EACH ROW EXECUTE FUNCTION wait()"))


async def test_a_cancelled_copy_closes_its_connection_and_copies_nothing(database: str) -> None:
    def forever() -> Iterator[bytes]:
        started.set()
        while True:
            yield b"1\n" * 1000

    def plan() -> Plan[None]:
        yield Copy("copy", "public", "numbers", ("n",), forever())

    started = trio.Event()
    async with database_at(database) as db:
        await db.run(sql("CREATE TABLE numbers (n int)"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(db.run, Op("copy", plan))
            await started.wait()
            nursery.cancel_scope.cancel()
        assert db._pool._idle == []
        assert await db.run(sql("SELECT count(*) FROM numbers")) == [(0,)]


async def test_a_cancelled_pipeline_closes_its_connection(database: str) -> None:
    async def work() -> None:
        async with connection.pipeline():
            await connection.execute("SELECT pg_sleep(20)")
            await connection.execute("SELECT 1")

    async with connected(database) as connection:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            await until_asleep(database, connection.info.backend_pid)
            nursery.cancel_scope.cancel()
        assert connection.closed


async def test_cancelling_while_the_backend_does_not_answer_closes_the_connection(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "GRACE", 0.2)
    async with connected(database) as connection:
        pid = connection.info.backend_pid
        with stopping(pid):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(execute, connection, "SELECT pg_sleep(60)")
                await until_asleep(database, pid)
                os.kill(pid, signal.SIGSTOP)
                nursery.cancel_scope.cancel()
            assert connection.broken


async def test_cancelling_a_connect_to_a_mute_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        host, port = mute.getsockname()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(TrioConnection.connect, f"postgresql://someone@{host}:{port}/x")
            await trio.lowlevel.wait_readable(mute)  # it has connected
            nursery.cancel_scope.cancel()


# --- deadlines ----------------------------------------------------------------------------------------------------


async def test_a_statement_past_its_deadline_is_cancelled_and_its_connection_kept(database: str) -> None:
    async with database_at(database) as db:
        lane = db.lane("claim")
        pid = await lane.run(sql("SELECT pg_backend_pid()"))
        with pytest.raises(DatabaseError) as caught:
            await lane.run(sql("SELECT pg_sleep(20)", timeout=0.05))
        assert caught.value.sqlstate == "57014"
        assert await lane.run(sql("SELECT pg_backend_pid()")) == pid
        await lane.close()


@pytest.mark.parametrize("atomic", [False, True])
async def test_a_deadline_passes_on_a_backend_that_does_not_answer(
    database: str, monkeypatch: pytest.MonkeyPatch, atomic: bool
) -> None:
    monkeypatch.setattr(connection_module, "GRACE", 0.1)
    async with database_at(database) as db:
        lane = db.lane("claim")
        ((pid,),) = await lane.run(sql("SELECT pg_backend_pid()"))
        with stopping(pid):
            os.kill(pid, signal.SIGSTOP)
            with pytest.raises(DatabaseError) as caught:
                await lane.run(sql("SELECT 1", timeout=0.1, atomic=atomic))
        assert caught.value.failure is (Failure.CONNECTION_LOST if atomic else Failure.OUTCOME_UNKNOWN)
        assert await lane.run(sql("SELECT 1")) == [(1,)]
        await lane.close()


async def test_connecting_has_a_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        host, port = mute.getsockname()
        async with database_at(f"postgresql://someone:secret@{host}:{port}/x", statement_timeout=0.1) as db:
            with pytest.raises(DatabaseError, match="no connection to the database within") as caught:
                await db.run(sql("SELECT 1"))
    assert caught.value.failure is Failure.UNAVAILABLE


# --- sharing, breaking, pooling -----------------------------------------------------------------------------------


async def test_50_tasks_share_one_connection(database: str) -> None:
    async def ask(number: int) -> None:
        cursor = await connection.execute("SELECT %s::int", (number,))
        answers.append((number, await cursor.fetchone()))

    answers: list[tuple[int, Any]] = []
    async with connected(database) as connection, trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(ask, number)
    assert sorted(answers) == [(number, (number,)) for number in range(50)]


async def test_a_task_cancelled_while_it_waits_for_its_turn_disturbs_nobody(database: str) -> None:
    async with connected(database) as connection, trio.open_nursery() as nursery:
        nursery.start_soon(execute, connection, "SELECT pg_sleep(0.1)")
        await until_asleep(database, connection.info.backend_pid)
        with trio.move_on_after(0) as scope:
            await connection.execute("SELECT 1")
        assert scope.cancelled_caught
    assert connection.broken is False


async def test_notifications_are_read_with_psycopg_s_own_generator(database: str) -> None:
    async with connected(database) as connection, connected(database) as other:
        await connection.execute("LISTEN news")
        await other.execute("NOTIFY news, 'one'")
        assert [n.payload async for n in connection.notifies(timeout=30, stop_after=1)] == ["one"]
        assert [n.payload async for n in connection.notifies(timeout=0.05)] == []
        with trio.move_on_after(0.05):
            async for _ in connection.notifies():
                pass
        assert await (await connection.execute("SELECT 1")).fetchone() == (1,)


async def test_a_terminated_backend_is_noticed_by_whoever_waits_for_it(database: str) -> None:
    async def fail() -> None:
        with pytest.raises(DatabaseError) as caught:
            await lane.run(sql("SELECT pg_sleep(60)"))
        assert caught.value.sqlstate == "57P01"
        assert caught.value.failure is Failure.OUTCOME_UNKNOWN

    lost: list[DatabaseError] = []
    async with database_at(database) as db:
        lane = db.lane("claim", lost=lost.append)
        ((pid,),) = await lane.run(sql("SELECT pg_backend_pid()"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            await until_asleep(database, pid)
            await db.run(sql("SELECT pg_terminate_backend($1::int)", pid))
        assert [error.sqlstate for error in lost] == ["57P01"]
        assert await lane.run(sql("SELECT 1")) == [(1,)]
        await lane.close()


async def test_closing_a_connection_wakes_who_waits_for_it(database: str) -> None:
    async def fail() -> None:
        with pytest.raises(psycopg.OperationalError):
            await connection.execute("SELECT pg_sleep(60)")

    async with connected(database) as connection, trio.open_nursery() as nursery:
        nursery.start_soon(fail)
        await until_asleep(database, connection.info.backend_pid)
        await connection.close()


async def test_the_pool_keeps_its_size_and_replaces_dead_connections(database: str) -> None:
    async def use() -> None:
        async with pool.connection() as connection:
            pids.add(connection.info.backend_pid)
            await connection.execute("SELECT 1")

    pids: set[int] = set()
    pool = Pool(database, max_size=3)
    async with trio.open_nursery() as nursery:
        for _ in range(30):
            nursery.start_soon(use)
    assert 1 <= len(pids) <= 3
    async with connected(database) as other:
        for pid in pids:
            await other.execute("SELECT pg_terminate_backend(%s)", (pid,))
    await until(database, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = ANY ($1::int[])", list(pids))
    async with pool.connection() as connection:
        assert connection.info.backend_pid not in pids
    await pool.close()
    with pytest.raises(DatabaseError, match="closed"):
        async with pool.connection():
            pass


async def test_the_pool_takes_a_connection_back_clean_from_whatever_was_done_with_it(database: str) -> None:
    pool = Pool(database, max_size=1)
    async with pool.connection() as connection:
        await connection.execute("CREATE TABLE t (n int)")
        await connection.execute("BEGIN")
        await connection.execute("INSERT INTO t VALUES (1)")
        first = connection.info.backend_pid
    async with trio.open_nursery() as nursery:

        async def sleep() -> None:
            async with pool.connection() as connection:
                await connection.execute("BEGIN")
                await connection.execute("SELECT pg_sleep(60)")

        nursery.start_soon(sleep)
        await until_asleep(database, first)
        nursery.cancel_scope.cancel()
    async with pool.connection() as connection:
        assert connection.info.backend_pid == first
        assert await (await connection.execute("SELECT count(*) FROM t")).fetchone() == (0,)
    await pool.close()


async def test_a_pool_that_was_handed_in_stays_open(database: str) -> None:
    pool = Pool(database, max_size=1)
    async with database_at(None, pool=pool) as db:
        ((pid,),) = await db.run(sql("SELECT pg_backend_pid()"))
    async with pool.connection() as connection:
        assert connection.info.backend_pid == pid
    await pool.close()


# --- lanes, and what they learn -----------------------------------------------------------------------------------


async def test_a_listening_lane_hears_while_idle_and_while_busy_and_reports_its_loss_once(database: str) -> None:
    def hear(payload: str) -> None:
        heard.append(payload)
        changed.set()

    def lose(error: DatabaseError) -> None:
        lost.append(error)
        changed.set()

    heard: list[str] = []
    lost: list[DatabaseError] = []
    async with database_at(database) as db:
        lane = db.lane("listen", channel="odd \"name'", notified=hear, lost=lose)
        for round_ in range(2):
            ((pid,),) = await lane.run(sql("SELECT pg_backend_pid()"))
            changed = trio.Event()
            await db.run(sql("SELECT pg_notify($1::text, 'idle')", "odd \"name'"))
            await changed.wait()
            await lane.run(sql("SELECT pg_notify($1::text, 'busy')", "odd \"name'"))
            assert heard == ["idle", "busy"] * (round_ + 1)
            changed = trio.Event()
            await db.run(sql("SELECT pg_terminate_backend($1::int)", pid))
            await changed.wait()
            assert len(lost) == round_ + 1
        await lane.close()
    assert all(error.failure is Failure.CONNECTION_LOST for error in lost)


async def test_many_ops_follow_each_other_on_a_listening_lane(database: str) -> None:
    async with database_at(database) as db:
        lane = db.lane("listen", channel="news")
        async with trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(lane.run, sql("SELECT 1"))
        await lane.close()


async def test_prepared_statements_are_turned_off_once_when_a_pooler_loses_them(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "awa")
    async with database_at(database, max_size=1) as db:
        prepared = sql("SELECT count(*) FROM pg_prepared_statements WHERE NOT from_sql")
        assert await db.run(prepared) == [(1,)]
        await db.run(sql("DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$"))
        for _ in range(3):
            assert await db.run(prepared) == [(0,)]
    assert len(caplog.records) == 1


async def test_one_statement_is_prepared_once_whatever_its_values(database: str) -> None:
    async with database_at(database, max_size=1) as db:
        for value in (5, 100_000, 10**12, None):
            await db.run(sql("SELECT $1::int8", value))
        text = "SELECT count(*) FROM pg_prepared_statements WHERE statement = 'SELECT $1::int8'"
        assert await db.run(sql(text)) == [(1,)]
