"""Everything a test does in one transaction that is rolled back: of the client's own, or of a connection of the test."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import asyncpg
import psycopg
import pytest

import awa_asyncio
import awa_asyncio.testing
import awa_proto as awa
import awa_sync
import awa_sync.testing
import awa_trio
import awa_trio.testing
from awa_trio.db.connection import TrioConnection
from tests.flavours import App, Awaited

Run = Callable[..., None]


@dataclass
class Order:
    id: int


@dataclass
class Ship:
    order: int


async def prepare(app: App) -> None:
    """A table of the application, and a handler that writes into it."""

    def order(job: Any) -> Iterator[Any]:
        job.enqueue_on_completion(Ship(job.args.id))
        yield job.client.insert({"kind": "mail", "order": job.args.id})

    app.task(Order)(order)
    app.task(Ship)(lambda _job: None)
    async with app.client.transaction() as tx:
        await tx.execute("CREATE TABLE orders (id int PRIMARY KEY)")


async def orders(app: App) -> list[int]:
    async with app.client.transaction() as tx:
        return [id for (id,) in await tx.fetch("SELECT id FROM orders ORDER BY id")]


async def place(app: App, id: int) -> Any:
    """What the code under test does."""
    async with app.client.transaction() as tx:
        await tx.execute("INSERT INTO orders VALUES ($1::int)", id)
        return await tx.insert(Order(id))


async def given_up(app: App, id: int) -> None:
    """What the code under test does when it changes its mind."""
    async with app.client.transaction() as tx:
        await tx.execute("INSERT INTO orders VALUES ($1::int)", id)
        await tx.insert(Order(id))
        raise LookupError("given up")


async def spoilt(app: App) -> None:
    """A transaction that goes on after a statement of it has failed."""
    async with app.client.transaction() as tx:
        with pytest.raises(awa.DatabaseError):
            await tx.execute("INSERT INTO nowhere VALUES (1)")
        await tx.execute("SELECT 1")


def test_nothing_remains_of_what_was_enqueued_worked_and_read(run: Run) -> None:
    async def scenario(app: App) -> None:
        await prepare(app)
        outside = await app.client.insert({"kind": "outside"})
        for _ in range(2):
            async with app.test.rolled_back() as test:
                job = await place(app, 1)
                assert await orders(app) == [1]
                assert (await app.client.get_job(job.id)).state is awa.JobState.AVAILABLE
                result = await test.work_one(Order)
                assert (result.outcome, result.job.id) == ("completed", job.id)
                await test.assert_enqueued("mail", args={"order": 1})
                assert [r.outcome for r in await test.work_all(Ship)] == ["completed"]
                assert (await test.work_one("outside")).outcome == "failed"
                await app.client.insert_many([Ship(n) for n in range(3)])
                await app.client.enqueue_many([Ship(n) for n in range(3)])
                assert len(await test.work_all(Ship)) == 6
                [stat] = await app.client.queue_stats()
                assert (stat.completed, stat.failed, stat.available) == (8, 1, 1)
            assert await orders(app) == []
            [left] = await app.client.list_jobs()
            assert (left.id, left.state) == (outside.id, awa.JobState.AVAILABLE)

    run(scenario)


def test_nobody_else_sees_anything_of_it_and_workers_go_on(run: Run, database: str) -> None:
    async def scenario(app: App) -> None:
        await prepare(app)
        async with app.test.rolled_back() as test:
            await place(app, 1)
            await test.work_one(Order)
            with psycopg.connect(database) as other:
                assert other.execute("SELECT count(*) FROM orders").fetchone() == (0,)
                assert other.execute("SELECT count(*) FROM awa.ready").fetchone() == (0,)
        await place(app, 2)
        await app.work()
        assert [job.args for job in await app.client.list_jobs(kind="order", state="completed")] == [{"id": 2}]

    run(scenario)


def test_an_exception_leaves_it_as_it_is(run: Run) -> None:
    async def scenario(app: App) -> None:
        await prepare(app)

        async def fails() -> None:
            async with app.test.rolled_back():
                await place(app, 1)
                raise LookupError("of the test")

        with pytest.raises(LookupError, match="of the test"):
            await fails()
        assert await orders(app) == []
        assert await app.client.list_jobs() == []

    run(scenario)


def test_a_call_that_fails_undoes_itself_and_nothing_else(run: Run) -> None:
    async def scenario(app: App) -> None:
        await prepare(app)
        async with app.test.rolled_back() as test:
            await place(app, 1)
            with pytest.raises(awa.DatabaseError):
                await place(app, 1)
            with pytest.raises(LookupError, match="given up"):
                await given_up(app, 2)
            with pytest.raises(awa.DatabaseError, match="aborted"):
                await spoilt(app)
            await app.client.insert(Ship(1), unique_opts={})
            with pytest.raises(awa.UniqueConflict):
                await app.client.insert(Ship(1), unique_opts={})
            assert await orders(app) == [1]
            assert [r.job.kind for r in await test.work_all(Order)] == ["order"]

    run(scenario)


def test_a_worker_is_refused_in_it(run: Run) -> None:
    async def scenario(app: App) -> None:
        async with app.test.rolled_back():
            with pytest.raises(awa.ConfigurationError, match="there are no workers"):
                await app.work()
        await app.work()

    run(scenario)


def test_it_can_be_nested(run: Run) -> None:
    async def scenario(app: App) -> None:
        await prepare(app)
        async with app.test.rolled_back() as test:
            await place(app, 1)
            async with test.rolled_back() as inner:
                await place(app, 2)
                assert len(await inner.work_all(Order)) == 2
            assert await orders(app) == [1]
            assert len(await test.work_all(Order)) == 1
        assert await orders(app) == []

    run(scenario)


def test_the_settings_of_the_transaction_are_the_tests(run: Run) -> None:
    async def scenario(app: App) -> None:
        await prepare(app)
        async with app.test.rolled_back() as test:
            async with app.client.transaction() as tx:
                await tx.execute("SET LOCAL lock_timeout = '7s'")
            await place(app, 1)
            await test.work_one(Order)
            async with app.client.transaction() as tx:
                assert await tx.fetch("SELECT current_setting('lock_timeout')") == [("7s",)]

    run(scenario)


# a connection of the test


@contextlib.asynccontextmanager
async def own_connection(client: Any, dsn: str) -> AsyncIterator[tuple[Any, Callable[[str], Any]]]:
    """A connection of a test with its transaction open, and what runs SQL on it; rolled back."""
    if isinstance(client, Awaited):
        with psycopg.connect(dsn) as blocking:

            async def execute_blocking(sql: str) -> Any:
                blocking.execute(sql.encode())

            await execute_blocking("SELECT 1")
            yield blocking, execute_blocking
            blocking.rollback()
    elif isinstance(client, awa_trio.Client):
        async with await TrioConnection.connect(dsn) as on_trio:
            await on_trio.execute("SELECT 1")
            yield on_trio, cast("Any", on_trio).execute
            await on_trio.rollback()
    elif client._driver == "psycopg":
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            await connection.execute("SELECT 1")
            yield connection, cast("Any", connection).execute
            await connection.rollback()
    else:
        other = await asyncpg.connect(dsn)
        transaction = other.transaction()
        await transaction.start()
        yield other, other.execute
        await transaction.rollback()
        await other.close()


def test_a_transaction_of_the_test_holds_its_own_tables_and_the_jobs(run: Run, database: str) -> None:
    async def scenario(app: App) -> None:
        await prepare(app)
        async with own_connection(app.client, database) as (connection, execute):
            await execute("INSERT INTO orders VALUES (1)")
            job = await app.client.insert(Order(1), using=connection)
            async with app.test.within(connection) as test:
                assert await orders(app) == [1]
                assert (await test.work_one(Order)).job.id == job.id
                await test.assert_enqueued(Ship(1), count=1)
                await place(app, 2)
                with pytest.raises(LookupError, match="given up"):
                    await given_up(app, 3)
                assert len(await test.work_all(Order)) == 1
            await execute("INSERT INTO orders VALUES (3)")
        assert await orders(app) == []
        assert await app.client.list_jobs() == []

    run(scenario)


def test_a_connection_in_no_transaction_or_of_another_kind_is_refused(run: Run) -> None:
    async def scenario(app: App) -> None:
        async with app.test.within(object()):
            with pytest.raises(awa.ValidationError, match="using"):
                await app.client.insert(Order(1))
        assert await app.client.list_jobs() == []

    run(scenario)


def test_the_client_is_itself_again_after_every_block(database: str) -> None:
    with awa_sync.Client(database) as client:
        client.migrate()
        test = awa_sync.testing.AwaTestClient(client)
        with pytest.raises(LookupError), test.rolled_back():
            raise LookupError
        with psycopg.connect(database) as connection:
            connection.execute("SELECT 1")
            with test.within(connection):
                client.insert(Order(1))
            connection.rollback()
        client.insert(Order(2))
        assert [job.args for job in client.list_jobs()] == [{"id": 2}]


def test_a_test_that_is_cancelled_cancels_the_handler_and_undoes_its_transaction(database: str) -> None:
    ended: list[str] = []

    async def main() -> None:
        async with awa_asyncio.Client(database) as client:
            await client.migrate()
            started = asyncio.Event()

            @client.task(Order)
            async def order(job: awa_asyncio.Job[Order]) -> None:
                started.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    ended.append("handler")

            async def body() -> None:
                async with awa_asyncio.testing.AwaTestClient(client).rolled_back() as test:
                    await client.insert(Order(1))
                    await test.work_one(Order)

            running = asyncio.create_task(body())
            await started.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert ended == ["handler"]
            assert await client.list_jobs() == []

    asyncio.run(main())


def test_on_trio_too(database: str) -> None:
    import trio

    ended: list[str] = []

    async def main() -> None:
        async with awa_trio.Client(database) as client:
            await client.migrate()

            @client.task(Order)
            async def order(job: awa_trio.Job[Order]) -> None:
                try:
                    scope.cancel()
                    await trio.sleep_forever()
                finally:
                    ended.append("handler")

            with trio.CancelScope() as scope:
                async with awa_trio.testing.AwaTestClient(client).rolled_back() as test:
                    await client.insert(Order(1))
                    await test.work_one(Order)
            assert scope.cancelled_caught
            assert ended == ["handler"]
            assert await client.list_jobs() == []

    trio.run(main)


def test_a_handler_that_is_cancelled_by_itself_has_failed(database: str) -> None:
    async def main() -> None:
        async with awa_asyncio.Client(database) as client:
            await client.migrate()

            @client.task(Order)
            async def order(job: awa_asyncio.Job[Order]) -> None:
                raise asyncio.CancelledError

            await client.insert(Order(1))
            result = await awa_asyncio.testing.AwaTestClient(client).work_one(Order)
            assert (result.outcome, result.error) == ("retryable", "CancelledError")

    asyncio.run(main())
