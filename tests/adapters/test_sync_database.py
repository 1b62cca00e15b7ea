"""What is special about blocking code: many threads, deadlines without an event loop, a thread that listens."""

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import psycopg
import pytest
from psycopg import RawCursor
from psycopg.conninfo import make_conninfo
from psycopg_pool import ConnectionPool

from awa_proto.errors import ConfigurationError, DatabaseError, Failure
from awa_proto.plan import Copy, Op, Plan, Rows, Statement, Value, answer
from awa_sync.db import session as session_module
from awa_sync.db import waiting as waiting_module
from awa_sync.db.psycopg import Database


def sql(text: str, *params: Value, **facts: Any) -> Op[Rows]:
    return Op("test", lambda: answer(Statement("test", text, params)), **facts)


@contextmanager
def database_at(dsn: str | None, **options: Any) -> Iterator[Database]:
    opened = Database(dsn, **options)
    opened.open()
    try:
        yield opened
    finally:
        opened.close()


def until(dsn: str, condition: str, *params: Value) -> None:
    """Wait until a query is true, seen from outside."""
    with psycopg.connect(dsn, autocommit=True) as observer:
        while True:
            row = RawCursor(observer).execute(condition.encode(), params).fetchone()
            if row is not None and row[0]:
                return
            time.sleep(0.002)


def until_asleep(dsn: str, pid: int) -> None:
    """Wait until a backend is in the middle of pg_sleep."""
    until(dsn, "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = $1::int", pid)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_module, "GRACE", 0.1)
    monkeypatch.setattr(session_module, "GRACE", 0.1)


def listeners() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "awa listener"]


# --- threads ------------------------------------------------------------------------------------------------------


def test_many_threads_share_a_database_and_no_connection_at_the_same_time(database: str) -> None:
    def transfer(number: int) -> None:
        if number % 2:
            with db.transaction() as transaction:
                transaction.execute("INSERT INTO halves VALUES ($1::int, 'first')", number)
                transaction.execute("INSERT INTO halves VALUES ($1::int, 'second')", number)
        else:

            def plan() -> Plan[None]:
                yield Statement("first", "INSERT INTO halves VALUES ($1::int, 'first')", (number,))
                yield Statement("second", "INSERT INTO halves VALUES ($1::int, 'second')", (number,))

            db.run(Op("transfer", plan, atomic=True))

    with database_at(database, max_size=4) as db:
        db.run(sql("CREATE TABLE halves (number int, half text)"))
        with ThreadPoolExecutor(20) as threads:
            list(threads.map(transfer, range(400)))
        assert dict(db.run(sql("SELECT number, count(*) FROM halves GROUP BY number"))) == dict.fromkeys(range(400), 2)
        assert 1 <= len(db._own._idle) <= 4


def test_threads_share_one_transaction_in_turn(database: str) -> None:
    with database_at(database) as db, db.transaction() as transaction, ThreadPoolExecutor(8) as threads:
        answers = threads.map(lambda number: transaction.fetch("SELECT $1::int", number), range(200))
        assert list(answers) == [[(number,)] for number in range(200)]


def test_a_connection_that_died_while_idle_is_replaced(database: str) -> None:
    with database_at(database, max_size=1) as db:
        ((pid,),) = db.run(sql("SELECT pg_backend_pid()"))
        with psycopg.connect(database, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s)", (pid,))
        until(database, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $1::int", pid)
        assert db.run(sql("SELECT pg_backend_pid()")) != [(pid,)]


# --- deadlines ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("atomic", [False, True])
def test_a_deadline_passes_on_a_backend_that_does_not_answer(database: str, short_grace: None, atomic: bool) -> None:
    with database_at(database) as db:
        lane = db.lane("claim")
        ((pid,),) = lane.run(sql("SELECT pg_backend_pid()"))
        with stopped(pid), pytest.raises(DatabaseError) as caught:
            lane.run(sql("SELECT 1", timeout=0.1, atomic=atomic))
        assert caught.value.failure is (Failure.CONNECTION_LOST if atomic else Failure.OUTCOME_UNKNOWN)
        assert lane.run(sql("SELECT 1")) == [(1,)]
        lane.close()


def test_a_commit_without_an_answer_has_an_unknown_outcome(database: str, short_grace: None) -> None:
    def commit() -> None:
        with db.transaction() as transaction:
            ((pid,),) = transaction.fetch("SELECT pg_backend_pid()")
            os.kill(pid, signal.SIGSTOP)
            pids.append(pid)

    pids: list[int] = []
    with database_at(database, statement_timeout=0.2) as db:
        try:
            with pytest.raises(DatabaseError) as caught:
                commit()
        finally:
            os.kill(pids[0], signal.SIGCONT)
    assert caught.value.failure is Failure.OUTCOME_UNKNOWN


def test_a_deadline_passes_in_the_middle_of_a_copy(database: str, short_grace: None) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"1\n"
        os.kill(pid, signal.SIGSTOP)
        while True:
            yield b"1\n" * 10_000

    def plan() -> Plan[None]:
        yield Copy("copy", "public", "numbers", ("n",), chunks())

    with database_at(database) as db:
        db.run(sql("CREATE TABLE numbers (n int)"))
        lane = db.lane("copy")
        ((pid,),) = lane.run(sql("SELECT pg_backend_pid()"))
        try:
            with pytest.raises(DatabaseError) as caught:
                lane.run(Op("copy", plan, timeout=0.2))
        finally:
            os.kill(pid, signal.SIGCONT)
        assert caught.value.failure is Failure.OUTCOME_UNKNOWN
        lane.close()


def test_connecting_has_a_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        host, port = mute.getsockname()
        with (
            database_at(f"postgresql://someone:secret@{host}:{port}/x", statement_timeout=0.1) as db,
            pytest.raises(DatabaseError) as caught,
        ):
            db.run(sql("SELECT 1"))
    assert caught.value.failure is Failure.UNAVAILABLE
    assert "secret" not in str(caught.value)


@pytest.mark.timeout(5)  # psycopg itself takes 2 s for each host
def test_connecting_has_one_deadline_for_all_hosts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        hosts = ",".join([f"127.0.0.1:{port}"] * 5)
        with (
            database_at(f"postgresql://someone:secret@{hosts}/x", statement_timeout=0.3) as db,
            pytest.raises(DatabaseError, match=r"no connection to the database within 0\.3 s") as caught,
        ):
            db.run(sql("SELECT 1"))
    assert caught.value.failure is Failure.UNAVAILABLE


def test_looking_up_a_name_counts_as_connecting(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(waiting_module, "conninfo_attempts", lambda _: ended.wait(60))
    with (
        database_at("postgresql://somewhere.invalid/x", statement_timeout=0.05) as db,
        pytest.raises(DatabaseError, match="within") as caught,
    ):
        db.run(sql("SELECT 1"))
    ended.set()
    assert caught.value.failure is Failure.UNAVAILABLE


def test_the_second_of_several_hosts_is_tried_when_the_first_refuses(database: str) -> None:
    url = urlsplit(database)
    query = dict(parse_qsl(url.query))
    host, port = query.get("host") or url.hostname, query.get("port") or url.port or 5432
    hosts = {"host": f"/nonexistent,{host}", "port": f"1,{port}"}
    dsn = make_conninfo("", **hosts, user=url.username, password=url.password, dbname=url.path[1:])
    with database_at(dsn) as db:
        assert db.run(sql("SELECT 1")) == [(1,)]


def test_an_exception_from_a_signal_handler_leaves_the_connection_clean(database: str) -> None:
    class Alarm(Exception):
        pass

    def ring(*_: object) -> None:
        raise Alarm

    def alarm(pid: int) -> None:
        until_asleep(database, pid)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, ring)
    try:
        with database_at(database) as db:
            lane = db.lane("claim")
            ((pid,),) = lane.run(sql("SELECT pg_backend_pid()"))
            for atomic in (False, True):
                thread = threading.Thread(target=alarm, args=(pid,))
                thread.start()
                with pytest.raises(Alarm):
                    lane.run(sql("SELECT pg_sleep(60)", atomic=atomic))
                thread.join()
                assert lane.run(sql("SELECT pg_backend_pid()")) == [(pid,)]
            lane.close()
    finally:
        signal.signal(signal.SIGUSR1, before)


# --- the user's own pool and connections --------------------------------------------------------------------------


def test_a_pool_of_psycopg_pool_is_used_and_given_back_as_it_was(database: str) -> None:
    with ConnectionPool(database, min_size=1, max_size=2, open=True) as pool:
        with database_at(None, pool=pool) as db:
            assert db.run(sql("SELECT $1::int", 1)) == [(1,)]
            with db.transaction() as transaction:
                transaction.execute("CREATE TABLE t (n int)")
            with pytest.raises(ConfigurationError, match="dsn="):
                db.lane("claim")
            with pytest.raises(DatabaseError) as caught:
                db.run(sql("SELECT pg_sleep(60)", timeout=0.05))
            assert caught.value.sqlstate == "57014"
        with pool.connection() as connection:
            assert not connection.autocommit
            assert "wait" not in vars(connection)
            assert connection.execute("SELECT count(*) FROM t").fetchone() == (0,)
        with database_at(database, pool=pool) as db:
            lane = db.lane("claim")
            assert lane.run(sql("SELECT 1")) == [(1,)]
            lane.close()


def test_a_connection_that_the_pool_lent_is_given_back_whatever_is_wrong_with_it(database: str) -> None:
    with ConnectionPool(database, min_size=1, max_size=1, open=True) as pool, database_at(None, pool=pool) as db:
        with pool.connection() as connection:
            connection.execute("SET client_encoding TO latin1")
            connection.commit()
        for _ in range(3):
            with pytest.raises(ConfigurationError, match="LATIN1"):
                db.run(sql("SELECT 1"))
        with pool.connection() as connection:
            connection.execute("SET client_encoding TO utf8")
            connection.commit()
            pid = connection.info.backend_pid
        # In a transaction, autocommit cannot be set.
        real, pool.getconn = pool.getconn, lambda *a, **k: begun(real(*a, **k))  # type: ignore[method-assign]

        def begun(connection: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
            connection.execute("SELECT 1")
            return connection

        for _ in range(3):
            with pytest.raises(DatabaseError):
                db.run(sql("SELECT 1"))
        pool.getconn = real  # type: ignore[method-assign]
        assert db.run(sql("SELECT pg_backend_pid()")) == [(pid,)]


def test_a_pool_that_lends_dead_connections_has_one_deadline(database: str) -> None:
    with ConnectionPool(database, min_size=2, max_size=2, open=True) as pool:
        pool.wait()
        with psycopg.connect(database, autocommit=True) as other:
            pids = "datname = current_database() AND pid <> pg_backend_pid()"
            other.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {pids}".encode())
        until(database, f"SELECT count(*) = 0 FROM pg_stat_activity WHERE {pids} AND backend_type = 'client backend'")
        with database_at(None, pool=pool) as db:
            assert db.run(sql("SELECT 1")) == [(1,)]


def test_a_statement_on_the_callers_connection_has_a_deadline(database: str) -> None:
    with database_at(database) as db, psycopg.connect(database) as connection:
        with pytest.raises(psycopg.errors.QueryCanceled):
            db.run(sql("SELECT pg_sleep(60)", timeout=0.05, using=connection))
        connection.rollback()
        assert db.run(sql("SELECT 1", using=connection)) == [(1,)]
        assert "wait" not in vars(connection)


# --- listening ----------------------------------------------------------------------------------------------------


def test_a_listening_lane_hears_while_idle_and_while_busy_and_reports_its_loss_once(database: str) -> None:
    heard: SimpleQueue[str] = SimpleQueue()
    lost: SimpleQueue[DatabaseError] = SimpleQueue()
    with database_at(database) as db:
        lane = db.lane("listen", channel="odd \"name'", notified=heard.put, lost=lost.put)
        for _ in range(2):
            ((pid,),) = lane.run(sql("SELECT pg_backend_pid()"))
            db.run(sql("SELECT pg_notify($1::text, 'idle')", "odd \"name'"))
            assert heard.get(timeout=30) == "idle"
            lane.run(sql("SELECT pg_notify($1::text, 'busy')", "odd \"name'"))
            assert heard.get(timeout=30) == "busy"
            db.run(sql("SELECT pg_terminate_backend($1::int)", pid))
            assert lost.get(timeout=30).failure is Failure.CONNECTION_LOST
        lane.close()
    assert lost.empty()
    assert heard.empty()


def test_the_thread_that_listens_ends_with_its_connection(database: str) -> None:
    with database_at(database) as db:
        lane = db.lane("listen", channel="news")
        lane.run(sql("SELECT 1"))
        assert len(listeners()) == 1
        lane.close()
        assert listeners() == []
        lane.run(sql("SELECT 1"))
        with pytest.raises(DatabaseError):
            lane.run(sql("SELECT pg_terminate_backend(pg_backend_pid())"))
        lane.run(sql("SELECT 1"))
        lane.close()
        for thread in listeners():
            thread.join(30)
        assert listeners() == []


def test_closing_a_lane_ends_the_op_that_runs_on_it(database: str) -> None:
    def work() -> None:
        with pytest.raises(DatabaseError):
            lane.run(sql("SELECT pg_sleep(60)"))
        ended.set()

    ended = threading.Event()
    with database_at(database) as db:
        lane = db.lane("listen", channel="news")
        ((pid,),) = lane.run(sql("SELECT pg_backend_pid()"))
        thread = threading.Thread(target=work)
        thread.start()
        until_asleep(database, pid)
        lane.close()
        assert ended.wait(30)
        thread.join()
        assert listeners() == []


def test_closing_a_lane_ends_the_statement_on_the_server_too(database: str) -> None:
    def work() -> None:
        with pytest.raises(DatabaseError):
            lane.run(sql("SELECT pg_sleep(60)"))

    with database_at(database) as db:
        lane = db.lane("claim")
        ((pid,),) = lane.run(sql("SELECT pg_backend_pid()"))
        thread = threading.Thread(target=work)
        thread.start()
        until_asleep(database, pid)
        lane.close()
        thread.join()
        until(database, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $1::int", pid)


def test_closing_a_lane_whose_server_does_not_answer_cuts_it_off(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work() -> None:
        with pytest.raises(DatabaseError):
            lane.run(sql("SELECT pg_sleep(60)"))

    monkeypatch.setattr("awa_sync.db.lane._TO_CANCEL", 0.05)
    with database_at(database) as db:
        lane = db.lane("claim")
        ((pid,),) = lane.run(sql("SELECT pg_backend_pid()"))
        thread = threading.Thread(target=work)
        thread.start()
        until_asleep(database, pid)
        with stopped(pid):
            lane.close()
            thread.join()


def test_many_threads_use_a_listening_lane_in_turn(database: str) -> None:
    heard: SimpleQueue[str] = SimpleQueue()
    with database_at(database) as db:
        lane = db.lane("listen", channel="news", notified=heard.put)
        ops = [sql("SELECT pg_notify('news', $1::int::text)", number) for number in range(200)]
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lane.run, ops))
        assert sorted(heard.get(timeout=30) for _ in range(200)) == sorted(map(str, range(200)))
        lane.close()


def test_prepared_statements_are_turned_off_once_when_a_pooler_loses_them(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "awa")
    with database_at(database, max_size=1) as db:
        prepared = sql("SELECT count(*) FROM pg_prepared_statements WHERE NOT from_sql")
        assert db.run(prepared) == [(1,)]
        db.run(sql("DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$"))
        for _ in range(3):
            assert db.run(prepared) == [(0,)]
    assert len(caplog.records) == 1
