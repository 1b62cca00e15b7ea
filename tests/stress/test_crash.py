"""The server dies under load, several times: nothing is lost, nothing ends twice, no fence is given out again.

A claim commits without waiting for the disk, so a crash may forget it; a producer's commit and a closure do not
(storage-review.md: H1, e3_crash.py, crash.py).
"""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import anyio.to_thread
import asyncpg
import psycopg
import pytest

from awa_proto.errors import DatabaseError
from awa_proto.job import Attempt, JobState
from awa_proto.schema import script
from awa_proto.store import Demand, Verdict
from awa_sync.cli.embedded import Server
from tests.stress.actor import Actor, actor, ended, jobs

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.chaos]
CRASHES = int(os.environ.get("AWA_STRESS_CRASHES", "3"))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class _Books:
    """What the server said before it died."""

    def __init__(self) -> None:
        self.committed: set[int] = set()
        self.in_doubt: set[int] = set()
        self.fences: set[tuple[int, int]] = set()
        self.accepted: dict[tuple[int, int], JobState] = {}
        self.up = True
        self.producing = True


async def _produce(a: Actor, books: _Books) -> None:
    while books.producing:
        new = jobs(a.rng.randint(1, 20), priority=a.rng.randint(1, 4))
        transaction = a.connection.transaction()
        await transaction.start()
        ids = {row.id for row in await a.run(a.store.insert(new, notify=False))}
        books.in_doubt |= ids
        await transaction.commit()
        books.committed |= ids
        await asyncio.sleep(a.rng.random() * 0.004)


async def _work(a: Actor, books: _Books) -> None:
    while books.up:
        attempts = list((await a.claim(Demand("q", a.rng.choice([1, 10, 50])))).attempts)
        for t in attempts:
            assert (t.id, t.run_lease) not in books.fences, "the same fence twice"
            books.fences.add((t.id, t.run_lease))
        await asyncio.sleep(a.rng.random() * 0.004)
        while attempts:
            bite = [attempts.pop() for _ in range(min(len(attempts), 20))]
            await _end(a, books, bite)
        await a.run(a.store.promote(50))


async def _end(a: Actor, books: _Books, bite: list[Attempt]) -> None:
    ways = (JobState.COMPLETED, JobState.RETRYABLE, JobState.FAILED, JobState.AVAILABLE)
    ends = [(t, a.rng.choices(ways, (8, 1, 1, 1))[0]) for t in bite]
    for (t, to), verdict in zip(ends, await a.finalize([ended(t, to) for t, to in ends]), strict=True):
        if verdict is Verdict.ACCEPTED:
            books.accepted[t.id, t.run_lease] = to


async def _alive(dsn: str, seed: object, act: Callable[[Actor, _Books], Awaitable[None]], books: _Books) -> None:
    """Do it until the server dies."""
    try:
        async with actor(dsn, seed) as a:
            await act(a, books)
    except (DatabaseError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError):
        assert not books.up


async def _rescue(a: Actor, books: _Books) -> None:
    """Every attempt that is still open, as the leader would: what this test took and never ended, and what it forgot."""
    left = await a.connection.fetch(
        "SELECT c.seg, c.claim_id, i - 1, c.lease, c.job_ids[i] FROM awa.claims c, generate_series(1, cardinality(c.job_ids)) i"
        " WHERE NOT EXISTS (SELECT FROM awa.closures k WHERE k.claim_id = c.claim_id AND (i - 1)::smallint = ANY (k.idx))"
    )
    now = datetime.now(UTC)
    opened = [Attempt._make((*row, "q", 1, "k", "{}", 1, 25, now, now, None)) for row in left]
    for n in range(0, len(opened), 100):
        await _end(a, books, opened[n : n + 100])


@pytest.mark.timeout(240)
async def test_a_server_that_dies_under_load_loses_nothing_and_ends_nothing_twice(own_server: Server) -> None:
    """H1: attempts of a worker that outlives the server are stale where the server forgot them, never somebody else's."""
    books = _Books()
    with psycopg.connect(own_server.dsn, autocommit=True) as connection:
        connection.execute(script().encode())
        connection.execute("ALTER SYSTEM SET wal_writer_delay = '3s'")  # so that a crash forgets many claims
        connection.execute("SELECT pg_reload_conf()")
    rng = random.Random(7)
    for crash in range(CRASHES):
        books.up = True
        async with asyncio.TaskGroup() as group:
            for n in range(3):
                group.create_task(_alive(own_server.dsn, (crash, n), _produce, books))
                group.create_task(_alive(own_server.dsn, (crash, 9 + n), _work, books))
            await asyncio.sleep(0.5 + rng.random())
            books.up = False
            await anyio.to_thread.run_sync(own_server.crash)
        await anyio.to_thread.run_sync(own_server.restart)
    books.producing = False
    books.up = True
    async with actor(own_server.dsn, "end") as a:
        worker = asyncio.create_task(_alive(own_server.dsn, "last", _work, books))
        while True:
            (stat,) = await a.surely(a.store.queue_stats())
            if not stat.available and not stat.scheduled and not stat.retryable:
                await _rescue(a, books)
                (stat,) = await a.surely(a.store.queue_stats())
                if not stat.available + stat.running + stat.retryable:
                    break
            await asyncio.sleep(0.02)
        books.up = False
        await worker
        await _check(a, books)


async def _check(a: Actor, books: _Books) -> None:
    assert len(books.committed) > 50
    closed = await a.connection.fetch(
        "SELECT c.job_ids[i + 1] AS id, c.lease, k.outcome"
        " FROM awa.closures k JOIN awa.claims c USING (seg, claim_id), unnest(k.idx) i"
    )
    endings = {(row["id"], row["lease"]): list(JobState)[row["outcome"]] for row in closed}
    assert len(endings) == len(closed), "ended twice"
    contradicted = {f: to for f, to in books.accepted.items() if endings.get(f) is not to}
    assert not contradicted
    completed = [id for (id, _), to in endings.items() if to is JobState.COMPLETED]
    assert len(completed) == len(set(completed)), "completed twice"
    for id in books.committed:
        job = await a.run(a.store.get_job(id))
        assert job is not None, f"job {id} is lost"
        assert job.state in {JobState.COMPLETED, JobState.FAILED}
    assert {id for id, _ in endings} <= books.in_doubt, "a job nobody enqueued"
    orphans = "SELECT count(*) FROM awa.closures k LEFT JOIN awa.claims c USING (seg, claim_id) WHERE c.turn IS NULL"
    assert await a.connection.fetchval(orphans) == 0, "a closure survived its claim"
