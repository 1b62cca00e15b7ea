"""What each failure comes out as, and what is tried again."""

# ruff: noqa: D103  # a scenario is named as a sentence

from __future__ import annotations

import contextlib
import traceback

import anyio

from awa_proto.errors import ConfigurationError, DatabaseError, Failure, SchemaNotMigrated
from awa_proto.plan import Op, Plan, Rows
from awa_proto.testing.adapters import (
    Adapter,
    Driver,
    Scenario,
    ask,
    failing,
    new_table,
    opened,
    raised,
    refused,
    sequence,
    statement,
    until,
)

PID = "SELECT pg_backend_pid()"
NEVER = "SELECT pg_sleep(60)::text"
GONE = "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $1::int4"
SLEEPS = "SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = $1::int4 AND wait_event = 'PgSleep'"
SECRET = "s3cret"  # noqa: S105  # of nothing; it must not be repeated


async def a_unique_violation_names_its_constraint(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn) as database:
        table = await new_table(database, "i int8 CONSTRAINT {table}_once UNIQUE")
        error = await failing(database.run(ask(f"INSERT INTO {table} VALUES (1), (1)")))
        assert (error.failure, error.sqlstate, error.constraint) == (Failure.UNIQUE_VIOLATION, "23505", f"{table}_once")


async def a_missing_table_says_how_to_migrate(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn) as database:
        for sql in ("SELECT * FROM not_there", "SELECT not_there()", "SELECT not_there FROM pg_class"):
            assert "awa migrate" in str(await raised(SchemaNotMigrated, database.run(ask(sql))))
        lane = database.lane("failures")
        assert (await failing(lane.run(ask("SELECT * FROM not_there")))).failure is Failure.NOT_MIGRATED
        await lane.close()


async def what_the_server_will_refuse_again_is_run_once(driver: Driver, dsn: str) -> None:
    for sql, sqlstate in [("SELECT 1/0", "22012"), ("SELEC", "42601"), ("SELECT pg_read_file('/etc/x')", "58P01")]:
        starts = 0

        def plan(sql: str = sql) -> Plan[None]:
            nonlocal starts
            starts += 1
            yield statement(sql)

        async with opened(driver, dsn) as database:
            error = await failing(database.run(Op("kit", plan, safe_to_retry=True)))
            assert error.sqlstate == sqlstate
            assert starts == (1 if error.failure is Failure.REFUSED else 5)


async def a_lock_not_granted_is_busy(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn) as database:
        table = await new_table(database, "i int8")
        async with database.transaction() as holder:
            await holder.execute(f"LOCK TABLE {table}")
            op = sequence(statement("SET LOCAL lock_timeout = '10ms'"), statement(f"LOCK TABLE {table}"), atomic=True)
            error = await failing(database.run(op))
            assert (error.failure, error.sqlstate) == (Failure.BUSY, "55P03")


async def a_serialization_failure_is_run_again_and_a_lane_leaves_that_to_the_core(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn) as database:
        starts: list[int] = []

        def plan() -> Plan[int]:
            starts.append(len(starts))
            if len(starts) < 3:
                yield statement("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$")
            rows: Rows = yield statement("SELECT 7::int8")
            return int(rows[0][0])

        assert await database.run(Op("kit", plan, atomic=True)) == 7
        assert len(starts) == 3
        starts.clear()
        lane = database.lane("failures")
        assert (await failing(lane.run(Op("kit", plan)))).failure is Failure.TRANSIENT
        assert len(starts) == 1
        await lane.close()


async def what_returned_was_done_and_what_failed_was_not(driver: Driver, dsn: str) -> None:
    """Increments of one row by eight at once, each by itself: under SERIALIZABLE most attempts fail."""
    done = 0
    async with opened(driver, dsn) as database:
        table = await new_table(database, "n int8")
        await database.run(ask(f"INSERT INTO {table} VALUES (0)"))

        async def increment() -> None:
            nonlocal done
            for _ in range(5):
                try:
                    await database.run(ask(f"UPDATE {table} SET n = n + 1"))
                    done += 1
                except DatabaseError as error:
                    if error.failure is not Failure.TRANSIENT:
                        raise

        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(increment)
        assert await database.run(ask(f"SELECT n FROM {table}")) == [(done,)]


async def a_read_only_server_is_reported_and_its_connection_dropped(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn) as database:
        table = await new_table(database, "i int8")
        lane = database.lane("failures")
        before = await lane.run(ask(PID))
        write = sequence(
            statement("SET TRANSACTION READ ONLY"), statement(f"INSERT INTO {table} VALUES (1)"), atomic=True
        )
        error = await failing(lane.run(write))
        assert (error.failure, error.sqlstate) == (Failure.READ_ONLY, "25006")
        assert await lane.run(ask(PID)) != before
        await lane.close()
        assert (await failing(database.run(write))).failure is Failure.READ_ONLY


async def a_read_only_server_empties_the_pool(driver: Driver, dsn: str) -> None:
    """A primary that was demoted keeps its connections; all that are idle lead to it."""
    write = sequence(statement("SET TRANSACTION READ ONLY"), statement("CREATE TABLE never (i int8)"), atomic=True)
    async with opened(driver, dsn, max_size=3) as database:
        before = await _pids(database, 3)
        assert (await failing(database.run(write))).failure is Failure.READ_ONLY
        assert not before & await _pids(database, 3)

        async def block() -> None:
            async with database.transaction() as transaction:
                await transaction.execute("SET TRANSACTION READ ONLY")
                await transaction.execute("CREATE TABLE never (i int8)")

        before = await _pids(database, 3)
        assert (await failing(block())).failure is Failure.READ_ONLY
        assert not before & await _pids(database, 3)


async def idle_connections_ended_by_the_server_cost_no_error(driver: Driver, dsn: str) -> None:
    """As after a restart, or a limit on idle sessions: a write that is not repeated must not meet a dead connection."""
    async with opened(driver, dsn, max_size=3) as database, opened(driver, dsn) as admin:
        table = await new_table(database, "i int8")
        lanes = database.lane("plain"), database.lane("listening", channel="kit")
        for i in range(5):
            pids = await _pids(database, 3)
            for lane in lanes:
                ((pid,),) = await lane.run(ask(PID))
                pids.add(pid)
            for pid in pids:
                await admin.run(ask("SELECT pg_terminate_backend($1::int4)", pid))
            for pid in pids:
                await until(admin, GONE, pid)
            for work in (database, *lanes):
                await work.run(ask(f"INSERT INTO {table} VALUES ($1::int8)", i, atomic=i % 2 == 0))
            async with database.transaction() as transaction:
                await transaction.execute(f"INSERT INTO {table} VALUES ($1::int8)", i)
        for lane in lanes:
            await lane.close()
        assert await database.run(ask(f"SELECT count(*)::int8 FROM {table}")) == [(20,)]


async def _pids(database: Adapter, count: int) -> set[int]:
    """Those of so many connections of the pool, all used at the same time and idle afterwards."""
    pids: set[int] = set()
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(count):
            transaction = await stack.enter_async_context(database.transaction())
            ((pid,),) = await transaction.fetch(PID)
            pids.add(pid)
    assert len(pids) == count
    return pids


async def a_users_own_sql_says_nothing_about_our_schema_or_a_pooler(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn, max_size=1) as database:
        for sql in ("SELECT * FROM not_there", "SELECT not_there()", "EXECUTE not_there"):

            async def block(sql: str = sql) -> None:
                async with database.transaction() as transaction:
                    await transaction.fetch(sql)

            await refused(block())
        assert await _prepared(database) > 0


async def a_users_own_sql_is_not_kept_prepared(driver: Driver, dsn: str) -> None:
    """Its texts have no end, and would push ours out."""
    async with opened(driver, dsn, max_size=1) as database:
        before = await _prepared(database)
        async with database.transaction() as transaction:
            for i in range(150):
                assert await transaction.fetch(f"SELECT $1::int8 + {i}", 1) == [(1 + i,)]
        assert await _prepared(database) <= before + 2  # BEGIN and the like


async def _prepared(database: Adapter) -> int:
    """How many statements a connection has prepared."""
    ((count,),) = await database.run(ask("SELECT count(*)::int8 FROM pg_prepared_statements"))
    return int(count)


async def what_the_server_does_not_support_is_refused_at_once(driver: Driver, dsn: str) -> None:
    """0A000, which also says that a plan is stale; only then it may be run again."""
    async with opened(driver, dsn) as database:
        raising = "DO $$ BEGIN RAISE EXCEPTION 'no such feature' USING ERRCODE = '0A000'; END $$"
        error = await failing(database.run(ask(raising, safe_to_retry=True)))
        assert (error.failure, error.sqlstate) == (Failure.REFUSED, "0A000")
        lane = database.lane("failures")
        before = await lane.run(ask(PID))
        await refused(lane.run(ask(raising)))
        assert await lane.run(ask(PID)) == before
        await lane.close()


async def a_backend_terminated_while_idle_is_replaced(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn, max_size=1) as database, opened(driver, dsn) as admin:
        ((pid,),) = await database.run(ask(PID))
        await admin.run(ask("SELECT pg_terminate_backend($1::int4)", pid))
        await until(admin, GONE, pid)
        ((other,),) = await database.run(ask(PID, safe_to_retry=True))
        assert other != pid


async def a_backend_terminated_at_work_leaves_the_outcome_unknown(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn, max_size=1) as database, opened(driver, dsn) as admin:
        starts: list[int] = []
        failures: list[Failure] = []

        async def work(*, atomic: bool) -> None:
            def plan() -> Plan[None]:
                ((pid,),) = yield statement(PID)
                starts.append(pid)
                if len(starts) == 1:
                    try:
                        yield statement(NEVER)
                    except DatabaseError as error:
                        failures.append(error.failure)
                        raise

            op = Op("kit", plan, atomic=atomic)
            if atomic:
                await database.run(op)  # nothing was left behind, so it ran again
            else:
                assert (await failing(database.run(op))).failure is Failure.OUTCOME_UNKNOWN

        for atomic in (False, True):
            starts.clear()
            async with anyio.create_task_group() as group:

                async def go(atomic: bool = atomic) -> None:
                    await work(atomic=atomic)

                group.start_soon(go)
                with anyio.fail_after(30):
                    while not starts:  # set by a plan, which may run in a thread
                        await anyio.sleep(0.002)
                await until(admin, SLEEPS, starts[0])
                await admin.run(ask("SELECT pg_terminate_backend($1::int4)", starts[0]))
            assert len(starts) == (2 if atomic else 1)
        assert failures == [Failure.OUTCOME_UNKNOWN, Failure.CONNECTION_LOST]


async def a_server_that_is_not_there_is_unavailable(driver: Driver, dsn: str) -> None:
    del dsn
    for url in (
        f"postgresql://awa:{SECRET}@127.0.0.1:1/awa",
        f"postgresql://awa:{SECRET}@/awa?host=/nonexistent&port=5432",
        f"postgresql://awa:{SECRET}@does-not-exist.invalid:5432/awa",
    ):
        async with opened(driver, url, statement_timeout=5.0) as database:
            lane = database.lane("failures")
            for work in (database.run(ask("SELECT 1")), lane.run(ask("SELECT 1"))):
                error = await failing(work)
                assert error.failure is Failure.UNAVAILABLE, (url, error.sqlstate, error)
                assert SECRET not in "".join(traceback.format_exception(error))
                assert SECRET not in repr(error) + repr(database) + repr(lane)


async def a_database_that_is_not_there_is_unavailable(driver: Driver, dsn: str) -> None:
    async with opened(driver, _other_database(dsn)) as database:
        error = await failing(database.run(ask("SELECT 1")))
        assert error.failure is Failure.UNAVAILABLE, error.sqlstate  # libpq passes no SQLSTATE on


async def a_url_that_cannot_be_read_is_refused_without_repeating_it(driver: Driver, dsn: str) -> None:
    del dsn
    for url in (
        "",
        f"mysql://awa:{SECRET}@localhost/awa",
        f"awa:{SECRET}@localhost/awa",
        f"postgresql://awa:{SECRET}@localhost:port/awa",
        f"postgresql://awa:{SECRET}@localhost:99999/awa",
        f"postgresql://awa:12/{SECRET}@localhost/awa",
        f"postgresql://awa:x/{SECRET}@localhost/awa",
        f"postgresql://awa:x@{SECRET}@localhost/awa",
        f"postgresql://awa:12?{SECRET}@localhost/awa",
        f"postgresql://awa:12#{SECRET}@localhost/awa",
        f"postgresql://awa:%{SECRET}@localhost/awa",
        f"postgresql://awa:{SECRET}@[::1/awa",
        f"postgresql://awa:{SECRET}@localhost/awa?sslmode=nonsense",
    ):
        try:
            async with opened(driver, url, statement_timeout=5.0) as database:
                await database.run(ask("SELECT 1"))
            raise AssertionError(f"{url} was read")
        except (ConfigurationError, DatabaseError) as error:
            told = "".join(traceback.format_exception(error))
            configured = isinstance(error, ConfigurationError) or "sslmode" in url  # libpq reads that when it connects
        assert configured, told
        assert SECRET not in told


async def a_statement_ends_at_its_deadline_and_the_connection_lives(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn) as database:
        lane = database.lane("failures")
        ((pid,),) = await lane.run(ask(PID))
        for atomic in (False, True):
            error = await failing(lane.run(ask(NEVER, timeout=0.05, atomic=atomic)))
            assert (error.sqlstate, error.failure) == ("57014", Failure.TIMED_OUT), error
            assert await lane.run(ask(PID)) == [(pid,)]
        await lane.close()
    async with opened(driver, dsn, statement_timeout=0.05) as database:
        assert (await failing(database.run(ask(NEVER, safe_to_retry=False)))).sqlstate == "57014"

        async def block() -> None:
            async with database.transaction() as transaction:
                await transaction.execute(NEVER)

        assert (await failing(block())).sqlstate == "57014"
        assert await database.run(ask("SELECT 1::int8")) == [(1,)]


async def waiting_for_a_connection_has_a_deadline_too(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn, max_size=1, statement_timeout=0.1) as database:
        async with database.transaction() as transaction:
            error = await failing(database.run(ask("SELECT 1")))
            assert error.failure is Failure.UNAVAILABLE
            await transaction.execute("SELECT 1")
        assert await database.run(ask("SELECT 1::int8")) == [(1,)]


async def lost_prepared_statements_are_given_up_once(driver: Driver, dsn: str) -> None:
    """As behind a transaction pooler that hands the next statement to another server connection."""
    async with opened(driver, dsn, max_size=1) as database:
        op = ask("SELECT $1::int8", 7)
        assert await database.run(op) == [(7,)]
        await database.run(ask("DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$"))
        assert await database.run(op) == [(7,)]
        assert await database.run(op) == [(7,)]
        assert await database.run(ask("SELECT count(*)::int8 FROM pg_prepared_statements")) == [(0,)]


async def a_plan_made_stale_by_a_migration_is_made_again(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn, max_size=1) as database:
        table = await new_table(database, "i int8")
        op = ask(f"SELECT * FROM {table}")
        assert await database.run(op) == []
        async with opened(driver, dsn) as admin:
            await admin.run(ask(f"ALTER TABLE {table} ALTER i TYPE text"))
            await admin.run(ask(f"INSERT INTO {table} VALUES ('a')"))
        assert await database.run(op) == [("a",)]


async def a_closed_database_says_so(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn) as database:
        await database.run(ask("SELECT 1"))
    assert (await failing(database.run(ask("SELECT 1")))).failure is Failure.CONNECTION_LOST


def _other_database(dsn: str) -> str:
    address, mark, query = dsn.partition("?")
    return f"{address.rpartition('/')[0]}/does_not_exist{mark}{query}"


SCENARIOS: tuple[Scenario, ...] = (
    a_unique_violation_names_its_constraint,
    a_missing_table_says_how_to_migrate,
    what_the_server_will_refuse_again_is_run_once,
    a_lock_not_granted_is_busy,
    a_serialization_failure_is_run_again_and_a_lane_leaves_that_to_the_core,
    what_returned_was_done_and_what_failed_was_not,
    a_read_only_server_is_reported_and_its_connection_dropped,
    a_read_only_server_empties_the_pool,
    idle_connections_ended_by_the_server_cost_no_error,
    a_users_own_sql_says_nothing_about_our_schema_or_a_pooler,
    a_users_own_sql_is_not_kept_prepared,
    what_the_server_does_not_support_is_refused_at_once,
    a_backend_terminated_while_idle_is_replaced,
    a_backend_terminated_at_work_leaves_the_outcome_unknown,
    a_server_that_is_not_there_is_unavailable,
    a_database_that_is_not_there_is_unavailable,
    a_url_that_cannot_be_read_is_refused_without_repeating_it,
    a_statement_ends_at_its_deadline_and_the_connection_lives,
    waiting_for_a_connection_has_a_deadline_too,
    lost_prepared_statements_are_given_up_once,
    a_plan_made_stale_by_a_migration_is_made_again,
    a_closed_database_says_so,
)
