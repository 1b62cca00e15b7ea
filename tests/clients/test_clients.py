"""Clients on a real database: what a binding, a transaction and `using=` do there, in each package and with each library."""

import asyncio
import importlib.util
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any
from unittest import mock

import asyncpg
import psycopg
import psycopg_pool
import pytest
import trio

import awa_asyncio
import awa_proto as awa
import awa_sync
import awa_trio
from awa_trio.db.connection import TrioConnection
from awa_trio.db.pool import Pool
from tests.flavours import FLAVOURS, Awaited, Scenario


@dataclass
class Add:
    a: int
    b: int = 1


@pytest.fixture(params=FLAVOURS)
def run(request: pytest.FixtureRequest, database: str) -> Callable[[Scenario], None]:
    """Runs a scenario with a client on a migrated database."""
    return lambda scenario: FLAVOURS[request.param](database, scenario)


@asynccontextmanager
async def _own(library: str, dsn: str) -> AsyncIterator[Any]:
    """A connection of the user's own, in a transaction that is rolled back when the block raises."""
    if library == "asyncpg":
        connection = await asyncpg.connect(dsn)
        try:
            async with connection.transaction():
                yield connection
        finally:
            await connection.close()
    elif library == "sync":
        with psycopg.connect(dsn) as blocking:
            yield blocking
    else:
        kind: Any = TrioConnection if library == "trio" else psycopg.AsyncConnection
        async with await kind.connect(dsn, autocommit=True) as connection, connection.transaction():
            yield connection


def test_every_call_of_a_client_reaches_the_database(run: Callable[[Scenario], None]) -> None:
    async def scenario(client: Any) -> None:
        job = await client.insert(Add(1), queue="q", priority=1, tags=["x"], metadata={"m": [1.5, "ü"]})
        assert (job.kind, job.args, job.queue, job.metadata) == ("add", {"a": 1, "b": 1}, "q", {"m": [1.5, "ü"]})
        many = await client.insert_many([Add(2), awa.EnqueueRequest({"a": 3}).kind("x").priority(4)])
        assert [(row.kind, row.priority) for row in many] == [("add", 2), ("x", 4)]
        assert await client.enqueue_many(Add(n) for n in range(100)) == 100
        assert len(await client.list_jobs(limit=50)) == 50
        assert await client.get_job(job.id) == job
        assert await client.get_job(2**62) is None
        assert await client.cancel(job.id) is True
        assert await client.cancel(job.id) is False
        assert (await client.retry(job.id)).state is awa.JobState.AVAILABLE
        with pytest.raises(awa.ValidationError, match="is available"):
            await client.retry(job.id)
        with pytest.raises(awa.JobNotFound):
            await client.cancel(2**62)
        await client.set_stripes("q", 2)
        await client.pause_queue("q", by="me")
        stats = {stat.queue: stat for stat in await client.queue_stats()}
        assert (stats["q"].paused, stats["default"].available) == (True, 102)
        await client.resume_queue("q")
        assert await client.migrate() == 0

    run(scenario)


def test_a_transaction_holds_jobs_and_sql_of_the_user_together(run: Callable[[Scenario], None]) -> None:
    async def scenario(client: Any) -> None:
        async with client.transaction() as tx:
            await tx.execute("CREATE TABLE orders (id bigint)")
            await tx.execute("INSERT INTO orders VALUES ($1::bigint)", 7)
            job = await tx.insert(Add(1))
            await tx.insert_many([Add(2), Add(3)])
            assert await tx.fetch("SELECT id FROM orders") == [(7,)]
            with pytest.raises(awa.ValidationError, match="using"):
                await tx.insert(Add(4), using=object())
        with pytest.raises(KeyError):  # noqa: PT012  the block is the transaction
            async with client.transaction() as tx:
                await tx.execute("DELETE FROM orders")
                assert await tx.cancel(job.id)
                await tx.insert(Add(5))
                raise KeyError
        async with client.transaction() as tx:
            assert await tx.fetch("SELECT count(*)::int FROM orders") == [(1,)]
        assert {row.args["a"] for row in await client.list_jobs(state="available")} == {1, 2, 3}
        with pytest.raises(RuntimeError, match="not entered"):
            await client.transaction().insert(Add(1))

    run(scenario)


@pytest.mark.parametrize("library", ["asyncpg", "psycopg"])
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_asyncio_takes_connections_of_either_library(database: str, driver: str, library: str) -> None:
    async def scenario(client: Any) -> None:
        await _in_the_callers_transaction(client, library, database)

    FLAVOURS[f"asyncio-{driver}"](database, scenario)


def test_trio_takes_its_own_connections(database: str) -> None:
    async def scenario(client: Any) -> None:
        await _in_the_callers_transaction(client, "trio", database)

    FLAVOURS["trio-psycopg"](database, scenario)


def test_blocking_code_takes_connections_of_psycopg(database: str) -> None:
    async def scenario(client: Any) -> None:
        await _in_the_callers_transaction(client, "sync", database)

    FLAVOURS["sync-psycopg"](database, scenario)


async def _in_the_callers_transaction(client: Any, library: str, dsn: str) -> None:
    kept = await client.insert(Add(0))
    with pytest.raises(KeyError):  # noqa: PT012  the block is the transaction
        async with _own(library, dsn) as connection:
            job = await client.insert(Add(1), using=connection)
            assert await client.get_job(job.id) is None  # not committed, so not there for others
            assert await client.cancel(kept.id, using=connection) is True
            raise KeyError
    assert [row.args["a"] for row in await client.list_jobs(state="available")] == [0]
    async with _own(library, dsn) as connection:
        await client.insert_many([Add(2), Add(3)], using=connection)
    assert len(await client.list_jobs(state="available")) == 3


def test_a_connection_of_another_kind_is_refused_before_anything_is_sent(
    run: Callable[[Scenario], None], database: str
) -> None:
    async def scenario(client: Any) -> None:
        with psycopg.connect(database) as blocking:
            others = [object(), "dsn", 5, *([] if isinstance(client, Awaited) else [blocking])]
            for connection in others:
                with pytest.raises(awa.ValidationError, match=r"using: .* is needed here, not ") as caught:
                    await client.insert(Add(1), using=connection)
                assert caught.value.field == "using"
        assert await client.list_jobs() == []

    run(scenario)


def test_bad_input_is_refused_and_nothing_is_written(run: Callable[[Scenario], None]) -> None:
    async def scenario(client: Any) -> None:
        for call in (
            client.insert(Add(1), priority=5),
            client.insert(Add("1")),  # type: ignore[arg-type]
            client.insert_many([Add(1), {"a\0": 1, "kind": "x"}]),
            client.enqueue_many([Add(1), 5]),
        ):
            with pytest.raises(awa.ValidationError):
                await call
        assert await client.list_jobs() == []

    run(scenario)


def test_a_database_without_the_schema_says_the_command(database: str) -> None:
    async def main() -> None:
        async with awa_asyncio.Client(database, schema="jobs") as client:
            with pytest.raises(awa.SchemaNotMigrated, match="awa migrate --schema jobs"):
                await client.insert(Add(1))
            with pytest.raises(awa.SchemaNotMigrated):
                async with client.transaction() as tx:
                    await tx.insert(Add(1))

    asyncio.run(main())


@pytest.mark.parametrize(
    "run_with", [FLAVOURS["asyncio-asyncpg"], FLAVOURS["asyncio-psycopg"], FLAVOURS["trio-psycopg"]]
)
def test_a_worker_runs_async_and_plain_handlers_with_a_client_each(
    run_with: Callable[[str, Scenario], None], database: str
) -> None:
    seen: list[Any] = []
    main = threading.get_ident()

    async def scenario(client: Any) -> None:
        @client.task(Add, queue="sums")  # type: ignore[untyped-decorator]  # the client of any package
        async def add(job: Any) -> None:
            seen.append((job.args, job.attempt, threading.get_ident() == main))
            await job.client.insert({"sum": job.args.a + job.args.b}, kind="show", queue="sums")

        @client.task(kind="show")  # type: ignore[untyped-decorator]  # as above
        def show(job: Any) -> None:
            mine = job.client.get_job(job.id)
            seen.append((job.args, mine.state, threading.get_ident() == main))

        await client.insert(Add(1, 2))
        async with client.worker({"sums": 2}) as worker:
            await worker.drained()

    run_with(database, scenario)
    assert seen == [(Add(1, 2), 1, True), ({"sum": 3}, awa.JobState.RUNNING, False)]


def test_a_blocking_worker_runs_plain_handlers(database: str) -> None:
    seen: list[Any] = []
    with awa_sync.Client(database) as client:

        @client.task(Add, queue="sums")
        def add(job: awa_sync.Job[Add]) -> None:
            seen.append((job.args, job.client is client))
            job.client.insert({"sum": job.args.a + job.args.b}, kind="show", queue="sums")

        @client.task(kind="show")
        def show(job: awa_sync.Job[dict[str, Any]]) -> None:
            seen.append((job.args, job.attempt))

        client.migrate()
        client.insert(Add(1, 2))
        with client.worker({"sums": 2}) as worker:
            worker.drained()
    assert seen == [(Add(1, 2), True), ({"sum": 3}, 1)]


def test_a_client_is_connected_when_first_used_and_outlives_an_event_loop(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = awa_asyncio.Client()
    with pytest.raises(awa.ConfigurationError, match="AWA_DATABASE_URL"):
        asyncio.run(client.get_job(1))
    monkeypatch.setenv("AWA_DATABASE_URL", database)

    async def use(first: bool) -> None:
        if first:
            await client.migrate()
        await client.insert(Add(1))
        await client.close()
        assert len(await client.list_jobs()) == (1 if first else 2)
        await client.close()

    asyncio.run(use(first=True))
    asyncio.run(use(first=False))


def test_a_pool_of_the_user_is_used_and_left_open(database: str) -> None:
    async def main() -> None:
        async with asyncpg.create_pool(database, min_size=1, max_size=2) as pool:
            async with awa_asyncio.Client(pool=pool) as client:
                await client.migrate()
                await client.insert(Add(1))
                with pytest.raises(awa.ConfigurationError, match="dsn= beside pool="):
                    client.worker({"q": 1})
            assert await pool.fetchval("SELECT count(*) FROM awa.ready") == 1
        async with psycopg_pool.AsyncConnectionPool(database, min_size=1, open=False) as pool:
            async with awa_asyncio.Client(pool=pool) as client:
                assert len(await client.list_jobs()) == 1
            async with pool.connection() as connection:
                await connection.execute("SELECT 1")

    asyncio.run(main())


def test_a_blocking_worker_needs_a_dsn_beside_a_pool(database: str) -> None:
    with psycopg_pool.ConnectionPool(database, min_size=1, open=False) as pool:
        with awa_sync.Client(pool=pool) as client:
            client.migrate()
            with pytest.raises(awa.ConfigurationError, match="dsn= beside pool="):
                client.worker({"q": 1})
        with awa_sync.Client(database, pool=pool) as client, client.worker({"q": 1}) as worker:
            worker.drained()


def test_a_worker_on_trio_finds_its_database_by_the_pool(database: str) -> None:
    async def main() -> None:
        pool = Pool(database)
        async with awa_trio.Client(pool=pool) as client:
            await client.migrate()
            async with client.worker({"q": 1}) as worker:
                await worker.drained()
        await pool.close()

    trio.run(main)


@pytest.mark.parametrize("library", ["asyncpg", "psycopg"])
def test_asyncio_refuses_a_connection_in_no_transaction(database: str, library: str) -> None:
    async def scenario(client: Any) -> None:
        if library == "asyncpg":
            connection = await asyncpg.connect(database)
        else:
            connection = await psycopg.AsyncConnection.connect(database, autocommit=True)
        await _outside_of_a_transaction(client, connection)
        if library == "psycopg":  # which begins one by itself, unless told not to
            await connection.set_autocommit(False)
            await client.insert(Add(2), using=connection)
            assert await client.list_jobs() == []
            await connection.commit()
            assert len(await client.list_jobs()) == 1
        await connection.close()

    FLAVOURS["asyncio-asyncpg"](database, scenario)


def test_trio_refuses_a_connection_in_no_transaction(database: str) -> None:
    async def scenario(client: Any) -> None:
        async with await TrioConnection.connect(database, autocommit=True) as connection:
            await _outside_of_a_transaction(client, connection)

    FLAVOURS["trio-psycopg"](database, scenario)


def test_blocking_code_refuses_a_connection_in_no_transaction(database: str) -> None:
    async def scenario(client: Any) -> None:
        with psycopg.connect(database, autocommit=True) as connection:
            await _outside_of_a_transaction(client, connection)

    FLAVOURS["sync-psycopg"](database, scenario)


async def _outside_of_a_transaction(client: Any, connection: Any) -> None:
    for call in (client.insert(Add(1), using=connection), client.cancel(1, using=connection)):
        with pytest.raises(awa.ValidationError, match="using: the connection is in no transaction"):
            await call
    assert await client.list_jobs() == []


DIES = """
import os, signal, sys
import awa_sync
client = awa_sync.Client(sys.argv[1])
@client.task(kind="dies")
def dies(job):
    os.kill(os.getpid(), signal.SIGKILL)
with client.worker({"default": 1}) as worker:
    worker.drained()
"""


def test_what_a_killed_worker_ran_is_found_running_and_brought_back_by_hand(database: str) -> None:
    with awa_sync.Client(database) as client:
        client.migrate()
        job = client.insert({}, kind="dies")
        done = subprocess.run([sys.executable, "-c", DIES, database], check=False)
        assert done.returncode == -signal.SIGKILL
        assert [found.id for found in client.list_jobs(state="running")] == [job.id]
        assert client.cancel(job.id) is True
        assert client.retry(job.id).attempt == 0
        seen: list[int] = []

        @client.task(kind="dies")
        def lives(job: awa_sync.Job[dict[str, Any]]) -> None:
            seen.append(job.id)

        with client.worker({"default": 1}) as worker:
            worker.drained()
        assert seen == [job.id]


BAD_DSNS = ["", "mysql://u:hunter2@h/d", "postgresql://u:hunt/er2@h/d", "postgresql://u:hunter2@h:port/d", "hunter2"]


@pytest.mark.parametrize("package", [awa_asyncio, awa_trio, awa_sync], ids=lambda package: package.__name__)
@pytest.mark.parametrize("dsn", BAD_DSNS)
def test_a_bad_dsn_is_refused_without_its_password(package: Any, dsn: str) -> None:
    with pytest.raises(awa.ConfigurationError) as caught:
        package.Client(dsn)
    assert "er2" not in str(caught.value)


@pytest.mark.parametrize(
    "dsn", ["foo=hunter2", "host=h password='hunter2", "postgresql://h/d?foo=hunter2", b"hunter2", 3]
)
@pytest.mark.parametrize("make", [awa_trio.Client, awa_sync.Client, partial(awa_asyncio.Client, driver="psycopg")])
def test_what_libpq_cannot_read_is_refused_when_the_client_is_made(make: Any, dsn: Any) -> None:
    with pytest.raises(awa.ConfigurationError, match="database URL") as caught:
        make(dsn)
    assert "er2" not in str(caught.value)


@pytest.mark.parametrize("package", [awa_asyncio, awa_trio, awa_sync], ids=lambda package: package.__name__)
@pytest.mark.parametrize(
    "option",
    [("max_size", 0), ("max_size", "5"), ("max_size", 10**9), ("dead_letters", 1), ("dead_letters", {"q": 1}), ("retention", 5),
     ("engine", "memory"), ("engine", None), ("engine", ["queue"]),
     ("statement_timeout", -1), ("statement_timeout", 0),
     ("statement_timeout", float("nan")), ("statement_timeout", 25 * 86400), ("tasks", 5), ("tasks", [5]), ("pool", 3)],
)  # fmt: skip
def test_a_setting_of_a_client_is_checked_when_it_is_made(package: Any, option: tuple[str, Any]) -> None:
    with pytest.raises((awa.ValidationError, awa.ConfigurationError), match=option[0]):
        package.Client("postgresql://h/d", **dict([option]))


def test_a_timedelta_is_a_statement_timeout() -> None:
    for package in (awa_asyncio, awa_trio, awa_sync):
        package.Client("postgresql://h/d", statement_timeout=timedelta(minutes=1))


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    missing = {"asyncpg"}

    def find_spec(name: str, package: str | None = None) -> Any:
        return None if name in missing else found(name, package)

    for module in ("awa_asyncio", "awa_trio", "awa_sync"):
        monkeypatch.setattr(f"{module}.connections.find_spec", find_spec)
    with pytest.raises(awa.ConfigurationError, match=r"pip install 'awa-queue\[asyncpg\]'"):
        awa_asyncio.Client("postgresql://h/d", driver="asyncpg")
    awa_asyncio.Client("host=h dbname=d")  # then psycopg is the default, which reads this form too
    missing.add("psycopg")
    with pytest.raises(awa.ConfigurationError, match=r"awa-queue\[asyncpg\]'.*awa-queue\[psycopg\]'"):
        awa_asyncio.Client("postgresql://h/d")
    with pytest.raises(awa.ConfigurationError, match=r"pip install 'awa-queue\[psycopg\]'"):
        awa_sync.Client("postgresql://h/d").get_job(1)
    with pytest.raises(awa.ConfigurationError, match=r"pip install 'awa-queue\[trio\]'"):
        trio.run(awa_trio.Client("postgresql://h/d").get_job, 1)


@pytest.mark.parametrize("package", ["awa_asyncio", "awa_trio", "awa_sync"])
def test_importing_a_package_needs_no_database_library(package: str) -> None:
    hidden = "import sys; sys.modules.update(dict.fromkeys(('asyncpg', 'psycopg', 'psycopg_pool')))"
    subprocess.run([sys.executable, "-c", f"{hidden}; import {package}; {package}.Tasks()"], check=True)


def test_importing_awa_trio_without_trio_names_the_extra() -> None:
    program = "import sys; sys.modules['trio'] = None; import awa_trio"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == "ImportError: awa_trio needs trio: pip install 'awa-queue[trio]'"


@pytest.mark.parametrize("package", [awa_asyncio, awa_trio, awa_sync], ids=lambda package: package.__name__)
def test_a_mock_of_a_client_knows_what_a_call_takes(package: Any) -> None:
    client = mock.create_autospec(package.Client, instance=True)
    assert isinstance(client.insert, mock.AsyncMock) is (package is not awa_sync)
    with pytest.raises(TypeError, match="prioritty"):
        client.insert(Add(1), prioritty=1)


@pytest.mark.parametrize("options", [{"driver": "psycopg2"}, {"pool": object()}, {"schema": ""}, {"schema": "pg_x"}])
def test_a_client_that_is_set_up_wrongly_says_how(options: dict[str, Any]) -> None:
    with pytest.raises((awa.ConfigurationError, awa.ValidationError)):
        awa_asyncio.Client("postgresql://h/d", **options)


@pytest.mark.parametrize("queues", [{}, {"": 1}, {"q": 0}, {"q": True}, {"q": "1"}, ["q"], "q"])
def test_a_worker_that_is_set_up_wrongly_says_how(queues: Any) -> None:
    async def main() -> None:
        with pytest.raises((awa.ConfigurationError, awa.ValidationError)):
            awa_asyncio.Client("postgresql://h/d").worker(queues)

    asyncio.run(main())
