"""No job is lost or handed out twice, whatever order transactions commit in (storage-review.md: stress.py, ring_stress.py)."""

import asyncio
from collections.abc import Awaitable, Callable

import asyncpg
import pytest

from awa_proto.errors import DatabaseError
from awa_proto.job import JobState
from awa_proto.store import Demand, JobFilter
from tests.stress.actor import AGAIN, SEEDS, Actor, actor, jobs

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class _Fired(Exception):
    """Rolls a transaction back."""


class _Books:
    """What was committed and what was handed out."""

    def __init__(self) -> None:
        self.committed: set[int] = set()
        self.handed_out: list[tuple[int, int]] = []
        self.producing = True


async def _produce(a: Actor, books: _Books, rounds: int) -> None:
    """Transactions with old snapshots, savepoints, pauses; some roll back."""
    rng = a.rng
    for _ in range(rounds):
        ids: list[int] = []
        try:
            async with a.transaction():
                if rng.random() < 0.3:
                    await a.connection.fetch("SELECT pg_current_xact_id()" if rng.random() < 0.5 else "SELECT 1")
                    await asyncio.sleep(rng.random() * rng.choice([0.05, 0.05, 0.6]))
                for _ in range(rng.randint(1, 3)):
                    ids += await _insert(a)
                    await asyncio.sleep(rng.random() * 0.01)
                if rng.random() < 0.15:
                    await asyncio.sleep(rng.random() * 0.3)
                if rng.random() < 0.15:
                    raise _Fired
        except _Fired:
            continue
        except asyncpg.SerializationError:
            continue
        except DatabaseError as error:
            if error.failure not in AGAIN:
                raise
            continue
        books.committed.update(ids)


async def _insert(a: Actor) -> list[int]:
    """Some jobs, in a savepoint that may be rolled back, or not."""
    count = a.rng.choice([1, 1, 2, 5, 40])
    op = a.store.insert(jobs(count, queue=a.rng.choice("ab"), priority=a.rng.randint(1, 4)), notify=False)
    if a.rng.random() < 0.3:
        try:
            async with a.connection.transaction():
                rows = await a.run(op)
                if a.rng.random() < 0.3:
                    raise _Fired
        except _Fired:
            return []
    else:
        rows = await a.run(op)
    return [row.id for row in rows]


async def _take(a: Actor, books: _Books) -> None:
    """Claims of every size over two queues, one of them in three stripes; some roll back."""
    rng = a.rng
    idle = 0
    while idle < 30:
        demands = [Demand("a", rng.choice([0, 1, 3, 10, 50]), 0, 0.05)]
        demands += [Demand("b", rng.choice([1, 3, 10, 50]), stripe, 0.0) for stripe in range(3) if rng.random() < 0.7]
        taken: list[tuple[int, int]] = []
        try:
            if rng.random() < 0.3:
                async with a.transaction():
                    ring = a.ring if a.ring.segments else (await a.run(a.store.survey([])))[0]
                    claimed = await a.run(a.store.claim(1, ring, demands, advance=rng.random() < 0.1))
                    taken = [(t.id, t.run_lease) for t in claimed.attempts]
                    await asyncio.sleep(rng.random() * 0.003)
                    if rng.random() < 0.2:
                        raise _Fired
            else:
                claimed = await a.claim(*demands, advance=rng.random() < 0.1)
                taken = [(t.id, t.run_lease) for t in claimed.attempts]
        except (_Fired, asyncpg.SerializationError):
            continue
        except DatabaseError as error:
            if error.failure not in AGAIN:
                raise
            continue
        books.handed_out += taken
        idle = 0 if taken or books.producing else idle + 1
        await asyncio.sleep(0 if taken else rng.random() * 0.004)


async def _lead(a: Actor, books: _Books) -> None:
    """Rotations all the way, two leaders at once; published late."""
    while books.producing:
        await asyncio.sleep(a.rng.random() * 0.4)
        await a.surely(a.store.open_next())
        await asyncio.sleep(a.rng.random() * 0.1)
        await a.surely(a.store.publish())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
async def test_no_job_is_lost_or_handed_out_twice_whatever_order_transactions_commit_in(
    migrated: str, seed: int
) -> None:
    """C2, H11, M1-M3 and section 4: late, reordered and rolled-back producers under three isolation levels, racing
    claimers that sometimes roll back, stale lists of segments, rotations by two leaders, stripes."""
    books = _Books()
    async with asyncio.TaskGroup() as group, actor(migrated, seed) as first:
        await first.run(first.store.set_stripes("b", 3))

        async def as_actor(number: int, act: Callable[..., Awaitable[None]], *args: object) -> None:
            async with actor(migrated, (seed, number)) as a:
                await act(a, books, *args)

        takers = [group.create_task(as_actor(n, _take)) for n in range(4)]
        leaders = [group.create_task(as_actor(10 + n, _lead)) for n in range(2)]
        await asyncio.gather(*(as_actor(20 + n, _produce, 40) for n in range(6)))
        books.producing = False
        await asyncio.gather(*takers, *leaders)
        while taken := (await first.claim(Demand("a", 999), *(Demand("b", 999, s) for s in range(3)))).attempts:
            books.handed_out += [(t.id, t.run_lease) for t in taken]
        ids = [id for id, _ in books.handed_out]
        assert len(set(ids)) == len(ids), "handed out twice"
        assert books.committed - set(ids) == set(), "lost"
        assert set(ids) - books.committed == set(), "never committed"
        assert len(ids) > 500
        stats = await first.run(first.store.queue_stats())
        assert (sum(s.running for s in stats), sum(s.available for s in stats)) == (len(ids), 0)
        for id, lease in first.rng.sample(books.handed_out, 100):
            job = await first.run(first.store.get_job(id))
            assert job is not None
            assert (job.state, job.run_lease) == (JobState.RUNNING, lease)
        listed: list[int] = []
        while page := await first.run(
            first.store.list_jobs(JobFilter(state=JobState.RUNNING, before_id=listed[-1] if listed else None))
        ):
            listed += [job.id for job in page]
        assert listed == sorted(ids, reverse=True)
