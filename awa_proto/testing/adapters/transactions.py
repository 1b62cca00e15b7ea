"""Transactions: all or nothing, READ COMMITTED, ours or the caller's."""

# ruff: noqa: D103  # a scenario is named as a sentence

from __future__ import annotations

from collections.abc import Iterator

import anyio

from awa_proto.errors import ConfigurationError, DatabaseError, Failure, SchemaNotMigrated, ValidationError
from awa_proto.plan import Copy, Op, Plan, Rows
from awa_proto.testing.adapters import Driver, Scenario, ask, failing, new_table, opened, raised, sequence, statement


async def an_atomic_op_commits_all_its_statements(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn) as database:
        table = await new_table(database, "i int8")
        insert = f"INSERT INTO {table} VALUES ($1::int8) RETURNING i"
        assert await database.run(sequence(statement(insert, 1), statement(insert, 2), atomic=True)) == [[(1,)], [(2,)]]
        assert await database.run(ask(f"SELECT i FROM {table} ORDER BY i")) == [(1,), (2,)]


async def a_plan_that_raises_leaves_nothing(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn) as database:
        table = await new_table(database, "i int8")

        def plan() -> Plan[None]:
            yield statement(f"INSERT INTO {table} VALUES ($1::int8)", 1)
            raise ValidationError("queue", "not this one")

        assert (await raised(ValidationError, database.run(Op("kit", plan, atomic=True)))).field == "queue"
        assert await database.run(ask(f"SELECT i FROM {table}")) == []


async def an_error_is_thrown_into_the_plan_which_may_translate_it(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn) as database:
        table = await new_table(database, "i int8 PRIMARY KEY")
        insert = statement(f"INSERT INTO {table} VALUES ($1::int8)", 1)
        seen: list[Failure] = []

        def plan() -> Plan[str]:
            yield insert
            try:
                yield insert
            except DatabaseError as error:
                seen.append(error.failure)
                raise ValidationError("i", "taken") from error
            return "not reached"

        for atomic, left in ((True, []), (False, [(1,)])):
            error = await raised(ValidationError, database.run(Op("kit", plan, atomic=atomic)))
            assert isinstance(error.__cause__, DatabaseError)
            assert seen.pop() is Failure.UNIQUE_VIOLATION
            assert await database.run(ask(f"SELECT i FROM {table}")) == left


async def an_error_that_a_plan_answers_itself_ends_well_without_a_transaction(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn) as database:
        table = await new_table(database, "i int8 PRIMARY KEY")

        def plan() -> Plan[Rows]:
            yield statement(f"INSERT INTO {table} VALUES (1)")
            try:
                yield statement(f"INSERT INTO {table} VALUES (1)")
            except DatabaseError:
                rows: Rows = yield statement(f"SELECT i FROM {table}")
                return rows
            return []

        assert await database.run(Op("kit", plan)) == [(1,)]


async def a_swallowed_error_is_not_mistaken_for_a_commit(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn) as database:
        table = await new_table(database, "i int8 PRIMARY KEY")

        def plan() -> Plan[str]:
            yield statement(f"INSERT INTO {table} VALUES (1)")
            try:
                yield statement(f"INSERT INTO {table} VALUES (1)")
            except DatabaseError:
                return "looks fine"
            return "not reached"

        error = await failing(database.run(Op("kit", plan, atomic=True)))
        assert error.sqlstate == "25P02"

        async def block() -> None:
            async with database.transaction() as transaction:
                await transaction.execute(f"INSERT INTO {table} VALUES (1)")
                await failing(transaction.execute(f"INSERT INTO {table} VALUES (1)"))

        assert (await failing(block())).sqlstate == "25P02"
        assert await database.run(ask(f"SELECT i FROM {table}")) == []


async def transactions_are_read_committed_whatever_the_default(driver: Driver, dsn: str) -> None:
    show = "SHOW transaction_isolation"
    async with opened(driver, dsn) as database:
        assert await database.run(ask(show, atomic=True)) == [("read committed",)]
        async with database.transaction() as transaction:
            assert await transaction.fetch(show) == [("read committed",)]
        lane = database.lane("isolation")
        assert await lane.run(ask(show, atomic=True)) == [("read committed",)]
        await lane.close()


async def a_transaction_commits_at_its_end_and_rolls_back_on_an_exception(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn) as database:
        table = await new_table(database, "i int8")
        count = ask(f"SELECT count(*)::int8 FROM {table}")
        async with database.transaction() as transaction:
            await transaction.execute(f"INSERT INTO {table} VALUES ($1::int8)", 1)
            assert await transaction.run(ask(f"INSERT INTO {table} VALUES (2) RETURNING i", atomic=True)) == [(2,)]
            assert await transaction.fetch(f"SELECT i FROM {table} WHERE i > $1::int8", 0) == [(1,), (2,)]
            assert await database.run(count) == [(0,)]
        assert await database.run(count) == [(2,)]
        try:
            async with database.transaction() as transaction:
                await transaction.execute(f"INSERT INTO {table} VALUES (3)")
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        assert await database.run(count) == [(2,)]
        await failing(transaction.execute(f"INSERT INTO {table} VALUES (4)"))
        await failing(transaction.run(ask("SELECT 1")))


async def an_unmigrated_schema_is_named_inside_a_transaction_too(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn, schema="Odd schema") as database:
        op = ask("SELECT * FROM not_there")
        async with driver.caller(dsn) as caller:
            assert "Odd schema" in str(await raised(SchemaNotMigrated, database.run(op.on(caller.connection))))
            await caller.rollback()

        async def block() -> None:
            async with database.transaction() as transaction:
                await transaction.run(op)

        assert "Odd schema" in str(await raised(SchemaNotMigrated, block()))


async def several_statements_at_once_answer_in_their_order(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn) as database:
        step = tuple(statement("SELECT $1::int8, $2::text", i, str(i)) for i in range(20))
        for atomic in (True, False):
            (rows,) = await database.run(sequence(step, atomic=atomic))
            assert rows == [[(i, str(i))] for i in range(20)]
        async with database.transaction() as transaction:
            (rows,) = await transaction.run(sequence(step))
            assert rows == [[(i, str(i))] for i in range(20)]


async def several_statements_at_once_commit_each_by_itself_or_all_together(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn) as database:
        table = await new_table(database, "i int8 PRIMARY KEY")
        insert = f"INSERT INTO {table} VALUES ($1::int8)"
        step = statement(insert, 1), statement(insert, 1), statement(insert, 2)
        for atomic, left in ((True, []), (False, [(1,)])):
            error = await failing(database.run(sequence(step, atomic=atomic)))
            assert error.failure is Failure.UNIQUE_VIOLATION
            assert await database.run(ask(f"SELECT i FROM {table}")) == left


async def copy_streams_its_rows_and_counts_them(driver: Driver, dsn: str) -> None:
    chunks = [b"1\t\xc3\xa4\\", b"nb\n2\t\\N\n", b"", b"".join(b"%d\tx\n" % i for i in range(3, 50_001))]
    async with opened(driver, dsn) as database:
        await database.run(ask('CREATE SCHEMA IF NOT EXISTS "Odd ""one"'))
        await database.run(
            ask('CREATE TABLE "Odd ""one"."t t" ("i\'d" int8 PRIMARY KEY, t text, "n n" int8 DEFAULT 7)')
        )
        copy = Copy("kit", 'Odd "one', "t t", ("i'd", "t"), chunks)
        assert await database.run(sequence(copy, atomic=True)) == [[(50_000,)]]
        head = await database.run(ask('SELECT * FROM "Odd ""one"."t t" ORDER BY 1 LIMIT 3'))
        assert head == [(1, "ä\nb", 7), (2, None, 7), (3, "x", 7)]
        error = await failing(database.run(sequence(copy)))
        assert error.failure is Failure.UNIQUE_VIOLATION
        assert error.constraint == "t t_pkey"
        more = Copy("kit", 'Odd "one', "t t", ("i'd", "t"), [b"50001\ty\n"])
        assert await database.run(sequence(statement("SELECT 1"), more, statement("SELECT 2"), atomic=True)) == [
            [(1,)], [(1,)], [(2,)],
        ]  # fmt: skip
        nothing = Copy("kit", 'Odd "one', "t t", ("i'd", "t"), [])
        assert await database.run(sequence(nothing)) == [[(0,)]]
        await database.run(ask('DROP SCHEMA "Odd ""one" CASCADE'))


async def a_copy_whose_rows_fail_to_encode_leaves_nothing(driver: Driver, dsn: str) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"1\n"
        raise ValidationError("args", "cannot be written")

    async with opened(driver, dsn, max_size=1) as database:
        table = await new_table(database, "i int8")
        for atomic in (True, False):
            op = sequence(Copy("kit", "public", table, ("i",), chunks()), atomic=atomic)
            assert (await raised(ValidationError, database.run(op))).field == "args"
            assert await database.run(ask(f"SELECT i FROM {table}")) == []


async def what_comes_out_of_the_chunks_of_a_copy_reaches_the_caller_unchanged(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn, max_size=1) as database:
        table = await new_table(database, "i int8")

        def broken(error: Exception, *, large: bool) -> Copy:
            def chunks() -> Iterator[bytes]:
                yield b"1\n" * (100_000 if large else 1)
                raise error

            return Copy("kit", "public", table, ("i",), chunks())

        lane = database.lane("copy")
        errors = ValidationError("args", "ä\0"), OSError("disk"), TimeoutError(), LookupError()
        for error in errors:
            for large in (False, True):
                copy = sequence(broken(error, large=large))
                assert await raised(Exception, database.run(copy)) is error
                assert await raised(Exception, lane.run(sequence(broken(error, large=large), atomic=True))) is error
                assert await database.run(ask("SELECT 1::int8")) == [(1,)]
                assert await lane.run(ask("SELECT 1::int8", atomic=True)) == [(1,)]
            async with driver.caller(dsn) as caller:
                copy = sequence(broken(error, large=large)).on(caller.connection)
                assert await raised(Exception, database.run(copy)) is error
                await caller.rollback()
            try:
                async with database.transaction() as transaction:
                    await transaction.execute(f"INSERT INTO {table} VALUES (2)")
                    assert await raised(Exception, transaction.run(sequence(broken(error, large=True)))) is error
                    refusal = await failing(transaction.execute("SELECT 1"))
                    assert refusal.sqlstate == "25P02", refusal
            except DatabaseError as at_end:
                assert at_end.sqlstate == "25P02", at_end
        await lane.close()
        assert await database.run(ask(f"SELECT i FROM {table}")) == []


async def statements_at_once_in_one_transaction_run_in_turn(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn, max_size=1) as database:
        table = await new_table(database, "i int8")
        seen: list[int] = []
        async with database.transaction() as transaction:

            async def ask_for(i: int) -> None:
                if i % 2:
                    await transaction.run(ask(f"INSERT INTO {table} VALUES ($1::int8)", i))
                else:
                    seen.extend((await transaction.fetch("SELECT $1::int8 FROM pg_sleep(0.001)", i))[0])

            async with anyio.create_task_group() as group:
                for i in range(20):
                    group.start_soon(ask_for, i)
        assert sorted(seen) == list(range(0, 20, 2))
        assert await database.run(ask(f"SELECT count(*)::int8 FROM {table}")) == [(10,)]


async def text_is_stored_as_it_was_given_whatever_encoding_was_asked_for(driver: Driver, dsn: str) -> None:
    latin = dsn + ("&" if "?" in dsn else "?") + "client_encoding=latin1"
    text = "é ä €"
    async with opened(driver, latin) as database, opened(driver, dsn) as reader:
        table = await new_table(database, "t text, a text[]")
        lane = database.lane("latin")
        insert = ask(f"INSERT INTO {table} VALUES ($1::text, $2::text[]) RETURNING t, a", text, [text])
        copy = Copy("kit", "public", table, ("t", "a"), [f"{text}\t{{{text}}}\n".encode()])
        for one in (database, lane):
            assert await one.run(insert) == [(text, [text])]
            await one.run(sequence(copy))
        await lane.close()
        async with driver.caller(latin) as caller:
            error = await raised(ValidationError, database.run(insert.on(caller.connection)))
            assert error.field == "using"
            await caller.rollback()
        assert await reader.run(ask(f"SELECT * FROM {table}")) == [(text, [text])] * 4


async def an_op_runs_in_the_transaction_of_a_caller(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn) as database:
        table = await new_table(database, "i int8")
        insert = ask(f"INSERT INTO {table} VALUES ($1::int8) RETURNING i", 1, atomic=True)
        two = sequence((statement("SELECT 1"), statement("SELECT 2")))
        count = ask(f"SELECT count(*)::int8 FROM {table}")
        for commit, left in ((False, 0), (True, 1)):
            async with driver.caller(dsn) as caller:
                assert await database.run(insert.on(caller.connection)) == [(1,)]
                assert await database.run(count.on(caller.connection)) == [(1,)]
                assert await database.run(two.on(caller.connection)) == [[[(1,)], [(2,)]]]
                assert await database.run(count) == [(0,)]
                await (caller.commit() if commit else caller.rollback())
            assert await database.run(count) == [(left,)]


async def a_caller_sees_the_errors_of_its_own_library(driver: Driver, dsn: str) -> None:
    seen: list[Failure] = []
    async with opened(driver, dsn) as database:
        table = await new_table(database, "i int8 PRIMARY KEY")

        def plan() -> Plan[None]:
            try:
                yield statement(f"INSERT INTO {table} VALUES (1), (1)")
            except DatabaseError as error:
                seen.append(error.failure)
                raise

        async with driver.caller(dsn) as caller:
            op = Op("kit", plan, safe_to_retry=True, using=caller.connection)
            error = await raised(driver.library_error, database.run(op))
            assert getattr(error, "sqlstate", None) == "23505"
            await caller.rollback()
        async with driver.caller(dsn) as caller:
            late = ask("SELECT pg_sleep(60)", timeout=0.05).on(caller.connection)
            error = await raised(driver.library_error, database.run(late))
            assert getattr(error, "sqlstate", None) == "57014"
            await caller.rollback()
    assert seen == [Failure.UNIQUE_VIOLATION]


async def a_connection_of_another_library_is_refused(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn) as database:
        error = await raised(ConfigurationError, database.run(ask("SELECT 1").on(object())))
        assert "using" in str(error)


async def concurrent_ops_do_not_share_a_transaction(driver: Driver, dsn: str) -> None:
    async with opened(driver, dsn, max_size=3) as database:
        table = await new_table(database, "i int8")
        insert = f"INSERT INTO {table} VALUES ($1::int8)"
        insert_twice = [sequence(statement(insert, i), statement(insert, i), atomic=True) for i in range(50)]
        async with anyio.create_task_group() as group:
            for op in insert_twice:
                group.start_soon(database.run, op)
        rows = await database.run(ask(f"SELECT i, count(*)::int8 FROM {table} GROUP BY i ORDER BY i"))
        assert rows == [(i, 2) for i in range(50)]


SCENARIOS: tuple[Scenario, ...] = (
    an_atomic_op_commits_all_its_statements,
    a_plan_that_raises_leaves_nothing,
    an_error_is_thrown_into_the_plan_which_may_translate_it,
    an_error_that_a_plan_answers_itself_ends_well_without_a_transaction,
    a_swallowed_error_is_not_mistaken_for_a_commit,
    transactions_are_read_committed_whatever_the_default,
    a_transaction_commits_at_its_end_and_rolls_back_on_an_exception,
    an_unmigrated_schema_is_named_inside_a_transaction_too,
    several_statements_at_once_answer_in_their_order,
    several_statements_at_once_commit_each_by_itself_or_all_together,
    copy_streams_its_rows_and_counts_them,
    a_copy_whose_rows_fail_to_encode_leaves_nothing,
    what_comes_out_of_the_chunks_of_a_copy_reaches_the_caller_unchanged,
    statements_at_once_in_one_transaction_run_in_turn,
    text_is_stored_as_it_was_given_whatever_encoding_was_asked_for,
    an_op_runs_in_the_transaction_of_a_caller,
    a_caller_sees_the_errors_of_its_own_library,
    a_connection_of_another_library_is_refused,
    concurrent_ops_do_not_share_a_transaction,
)
