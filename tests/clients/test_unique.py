"""Unique jobs through the clients of every package: what their calls return and refuse, in transactions and outside."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import psycopg
import pytest

import awa_asyncio
import awa_proto as awa
import awa_sync
from tests.clients.test_clients import Add, run
from tests.flavours import Scenario

__all__ = ["run"]

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


async def conflict(call: Any) -> awa.UniqueConflict:
    """The conflict a call must meet."""
    with pytest.raises(awa.UniqueConflict) as met:
        await call
    return met.value


def test_of_jobs_alike_there_is_one(run: Callable[[Scenario], None]) -> None:
    async def scenario(client: Any) -> None:
        first = await client.insert(Add(1), unique_opts={})
        assert first.unique_key == (await client.get_job(first.id)).unique_key
        assert len(first.unique_key) == 16
        met = await conflict(client.insert(Add(1), unique_opts={}))
        assert (met.job_id, met.index, str(met)) == (first.id, None, f"job {first.id} has the same unique key")
        same = await client.insert(Add(1), unique_opts=awa.UniqueOpts(), on_conflict="skip")
        assert (same, same.existed, first.existed) == (first, True, False)
        assert (await client.insert(Add(1))).unique_key is None
        assert (await client.insert(Add(1, 2), unique_opts={})).existed is False
        assert (await client.insert(Add(1), unique_opts={"by_args": False})).existed is False
        assert (await client.insert(Add(1), queue="q", unique_opts={"by_queue": True})).existed is False
        assert (await conflict(client.insert(Add(1), queue="q", unique_opts={}))).job_id == first.id

    run(scenario)


def test_a_batch_is_refused_as_a_whole_or_skips(run: Callable[[Scenario], None]) -> None:
    async def scenario(client: Any) -> None:
        there = await client.insert(Add(3), unique_opts={})
        batch = [Add(n) for n in range(5)]
        met = await conflict(client.insert_many(batch, unique_opts={}))
        assert (met.job_id, met.index, str(met)) == (there.id, 3, f"jobs[3]: job {there.id} has the same unique key")
        assert (await conflict(client.insert_many([Add(7), Add(7)], unique_opts={}))).index == 1
        assert (await conflict(client.enqueue_many(batch, unique_opts={}))).index == 3
        assert [row.id for row in await client.list_jobs()] == [there.id]
        rows = await client.insert_many([*batch, Add(0)], unique_opts={}, on_conflict="skip")
        assert [row.existed for row in rows] == [False, False, False, True, False, True]
        assert (rows[3], rows[5]) == (there, rows[0])
        mixed = [awa.EnqueueRequest(Add(n)).unique(by_args=n % 2 == 0) for n in range(5)]
        assert await client.enqueue_many([*mixed, Add(9)], on_conflict="skip") == 2
        assert await client.enqueue_many(batch, unique_opts={}, on_conflict="skip") == 0
        assert await client.enqueue_many(batch, unique_opts={"by_period": 60}) == 5
        assert len(await client.list_jobs()) == 12

    run(scenario)


def test_within_a_period_there_is_one(run: Callable[[Scenario], None]) -> None:
    async def scenario(client: Any) -> None:
        hourly = awa.UniqueOpts(by_period=timedelta(hours=1))
        first = await client.insert(Add(1), run_at=NOON, unique_opts=hourly)
        half = NOON + timedelta(minutes=30)
        assert (await conflict(client.insert(Add(1), run_at=half, unique_opts=hourly))).job_id == first.id
        later = await client.insert(Add(1), run_at=NOON + timedelta(hours=1), unique_opts=hourly)
        assert await client.cancel_by_unique_key(args=Add(1), by_period=3600, at=half) == first.id
        assert await client.cancel_by_unique_key(args=Add(1), by_period=3600, at=half) is None
        assert (await client.get_job(later.id)).state is awa.JobState.AVAILABLE
        now = await client.insert(Add(1), unique_opts={"by_period": 36500 * 86400})
        assert await client.cancel_by_unique_key(args=Add(1), by_period=36500 * 86400) == now.id

    run(scenario)


def test_a_job_is_cancelled_by_its_key(run: Callable[[Scenario], None]) -> None:
    async def scenario(client: Any) -> None:
        first = await client.insert(Add(1), unique_opts={})
        assert await client.cancel_by_unique_key(args=Add(2)) is None
        assert await client.cancel_by_unique_key(kind="add") is None
        assert await client.cancel_by_unique_key(args=Add(1)) == first.id
        assert (await client.get_job(first.id)).state is awa.JobState.CANCELLED
        assert await client.cancel_by_unique_key(args=Add(1)) is None
        second = await client.insert(Add(1), queue="q", unique_opts=awa.UniqueOpts(by_queue=True, by_args=False))
        assert await client.cancel_by_unique_key(kind="add", queue="default") is None
        async with client.transaction() as tx:
            assert await tx.cancel_by_unique_key(kind="add", queue="q") == second.id
            third = await tx.insert(Add(1), queue="q", unique_opts={"by_queue": True, "by_args": False})
        assert await client.cancel_by_unique_key(kind="add", queue="q") == third.id
        assert await client.cancel_by_unique_key(args={"kind": "x", "n": 1}) is None
        fourth = await client.insert({"kind": "x", "n": 1}, unique_opts={})
        assert await client.cancel_by_unique_key(args={"n": 1, "kind": "x"}) == fourth.id

    run(scenario)


def test_a_job_is_retried_only_while_no_other_one_has_its_key(run: Callable[[Scenario], None]) -> None:
    async def scenario(client: Any) -> None:
        first = await client.insert(Add(1), unique_opts={})
        await client.cancel(first.id)
        second = await client.insert(Add(1), unique_opts={})
        assert (await conflict(client.retry(first.id))).job_id == second.id
        await client.cancel(second.id)
        assert (await client.retry(first.id)).unique_key == first.unique_key
        assert (await conflict(client.retry(second.id))).job_id == first.id

    run(scenario)


def test_a_conflict_leaves_a_transaction_as_it_was(run: Callable[[Scenario], None]) -> None:
    async def scenario(client: Any) -> None:
        there = await client.insert(Add(1), unique_opts={})
        async with client.transaction() as tx:
            await tx.insert(Add(2), unique_opts={})
            assert (await conflict(tx.insert(Add(1), unique_opts={}))).job_id == there.id
            assert (await conflict(tx.insert_many([Add(3), Add(1)], unique_opts={}))).index == 1
            assert (await tx.insert(Add(1), unique_opts={}, on_conflict="skip")).id == there.id
            await tx.insert(Add(3), unique_opts={})
        assert [row.args["a"] for row in await client.list_jobs()] == [3, 2, 1]

    run(scenario)


@asynccontextmanager
async def _connected(library: str, dsn: str) -> AsyncIterator[Any]:
    connection: Any = await asyncpg.connect(dsn) if library == "asyncpg" else await psycopg.AsyncConnection.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


@pytest.mark.parametrize("library", ["asyncpg", "psycopg"])
@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_a_conflict_leaves_the_callers_own_transaction_as_it_was(database: str, library: str, level: str) -> None:
    async def main() -> None:
        async with awa_asyncio.Client(database) as client, _connected(library, database) as own:
            await client.migrate()
            there = await client.insert(Add(1), unique_opts={})
            await own.execute(f"BEGIN ISOLATION LEVEL {level}")
            assert (await conflict(client.insert(Add(1), unique_opts={}, using=own))).job_id == there.id
            same = await client.insert_many([Add(1), Add(2)], unique_opts={}, on_conflict="skip", using=own)
            assert [row.existed for row in same] == [True, False]
            assert await client.cancel_by_unique_key(args=Add(1), using=own) == there.id
            again = await client.insert(Add(1), unique_opts={}, using=own)
            await own.execute("COMMIT")
            assert [row.id for row in await client.list_jobs(state="available")] == [again.id, same[1].id]

    asyncio.run(main())


def test_a_job_that_fails_while_a_newer_one_waits_is_cancelled_without_a_word_to_hooks(database: str) -> None:
    waiting = awa.UniqueOpts(states=["scheduled", "available", "retryable"])
    told: list[str] = []
    with awa_sync.Client(database) as client:
        client.migrate()

        @client.on_event(Add)
        def hear(event: Any) -> None:
            told.append(type(event).__name__)

        @client.on_retried_enqueue(Add)
        def follow(args: Add, job: awa.JobRow, error: str, attempt: int, next_run_at: datetime) -> Add:
            return Add(99)

        @client.task(Add)
        def fails(job: awa_sync.Job[Add]) -> None:
            job.client.insert(Add(1), queue="other", unique_opts=waiting)
            raise ValueError("the first time")

        older = client.insert(Add(1), unique_opts=waiting)
        with client.worker({"default": 1}) as worker:
            worker.drained()
        job = client.get_job(older.id)
        assert job is not None
        assert [entry["error"] for entry in job.errors] == ["ValueError: the first time", "rescheduled as duplicate"]
        assert job.state is awa.JobState.CANCELLED
        (newer,) = client.list_jobs(state="available")
        assert (newer.queue, newer.unique_key) == ("other", older.unique_key)
        assert told == ["Started"]
        assert len(client.list_jobs()) == 2


def test_bad_options_are_refused_and_nothing_is_written(run: Callable[[Scenario], None]) -> None:
    async def scenario(client: Any) -> None:
        calls = [
            ("unique_opts.states", lambda: client.insert(Add(1), unique_opts={"states": ["avail"]})),
            ("jobs[0].unique_opts.by_period", lambda: client.insert_many([awa.EnqueueRequest(Add(1)).unique(by_period=0)])),
            ("unique_opts.nope", lambda: client.enqueue_many([Add(1)], unique_opts={"nope": 1})),
            ("on_conflict", lambda: client.insert(Add(1), on_conflict="ignore")),
            ("on_conflict", lambda: client.insert_many([], on_conflict=None)),
            ("on_conflict", lambda: client.enqueue_many([], on_conflict=True)),
            ("kind", client.cancel_by_unique_key),
            ("kind", lambda: client.cancel_by_unique_key(kind="")),
            ("queue", lambda: client.cancel_by_unique_key(kind="k", queue="\0")),
            ("by_period", lambda: client.cancel_by_unique_key(kind="k", by_period=0)),
            ("at", lambda: client.cancel_by_unique_key(kind="k", at=NOON)),
            ("at", lambda: client.cancel_by_unique_key(kind="k", by_period=1, at=datetime(2026, 1, 1))),  # noqa: DTZ001
            ("args", lambda: client.cancel_by_unique_key(args=5)),
        ]  # fmt: skip
        for field, call in calls:
            with pytest.raises(awa.ValidationError) as refusal:
                await call()
            assert refusal.value.field == field
        assert await client.list_jobs() == []

    run(scenario)
