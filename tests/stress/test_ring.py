"""The ring under fire: no job is lost or handed out twice however fast it turns (storage-review.md: ring_stress.py).

Two leaders rotate, probe, sweep and prune at once, against producers with old snapshots and claimers with old lists of
segments; a paused queue is carried on and on; rows land in segments that are sealed, quiet and free.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable

import asyncpg
import pytest

from awa_proto.errors import DatabaseError
from awa_proto.job import Attempt, JobState
from awa_proto.store import Demand, Ring, Verdict
from tests.stress.actor import AGAIN, SECONDS, SEEDS, Actor, actor, ended, jobs

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

STRAY = """INSERT INTO awa.ready (seg, priority, queue, kind, args)
VALUES ($1::smallint, 2, $2::text, 'k', '{}') RETURNING id"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class _Fired(Exception):
    """Rolls a transaction back."""


class _Books:
    """What was committed, handed out and completed; completed_at: by the clock of this process, before it was written."""

    def __init__(self) -> None:
        self.committed: set[int] = set()
        self.handed_out: Counter[tuple[int, int]] = Counter()
        self.attempts: Counter[int] = Counter()
        self.completed_at: dict[int, float] = {}
        self.endings: Counter[int] = Counter()
        self.events: Counter[str] = Counter()
        self.is_producing = True
        self.is_working = True


async def _produce(a: Actor, books: _Books) -> None:
    """Transactions with old snapshots; some roll back. Some rows go where an old snapshot may put them."""
    rng, end = a.rng, time.monotonic() + SECONDS
    while time.monotonic() < end:
        ids: list[int] = []
        try:
            async with a.transaction():
                if rng.random() < 0.4:
                    await a.connection.fetch("SELECT 1")
                    await asyncio.sleep(rng.random() * rng.choice([0.05, 0.05, 0.05, 1.5]))
                for _ in range(rng.randint(1, 3)):
                    queue = rng.choice("abp")
                    if rng.random() < 0.1:
                        ids.append(await a.connection.fetchval(STRAY, rng.randrange(8), queue))
                    else:
                        new = jobs(rng.choice([1, 1, 2, 5]), queue=queue, priority=rng.randint(1, 4))
                        ids += [row.id for row in await a.run(a.store.insert(new))]
                    await asyncio.sleep(rng.random() * 0.02)
                if rng.random() < 0.15:
                    await asyncio.sleep(rng.random() * 0.6)
                if rng.random() < 0.15:
                    raise _Fired
        except (_Fired, asyncpg.SerializationError):
            continue
        except DatabaseError as error:
            if error.failure not in AGAIN:
                raise
            continue
        books.committed.update(ids)


async def _take(a: Actor, books: _Books) -> None:
    """Claims over lists of segments that are read now and then; attempts that take long; a third are no completions."""
    rng = a.rng
    while books.is_working:
        if rng.random() < 0.1:
            a.ring = Ring(0)
        queues = "ab" if books.is_producing else "abp"
        claimed = await a.claim(*(Demand(queue, rng.choice([1, 3, 10, 50]), 0, 0.05) for queue in queues))
        attempts = list(claimed.attempts)
        books.handed_out.update((t.id, t.run_lease) for t in attempts)
        books.attempts.update(t.id for t in attempts)
        if rng.random() < 0.2:
            await asyncio.sleep(rng.random() * 0.3)
        while attempts:
            bite = [attempts.pop() for _ in range(min(len(attempts), rng.choice([1, 5, 50])))]
            await _end(a, books, bite)
        await a.surely(a.store.promote(100))
        await asyncio.sleep(0 if claimed.attempts else 0.004)


async def _end(a: Actor, books: _Books, bite: list[Attempt]) -> None:
    ways = (JobState.COMPLETED, JobState.RETRYABLE, JobState.AVAILABLE, JobState.SCHEDULED)
    ends = [(t, a.rng.choices(ways, (6, 1, 1, 1) if books.is_producing else (1, 0, 0, 0))[0]) for t in bite]
    books.completed_at.update((t.id, time.monotonic()) for t, to in ends if to is JobState.COMPLETED)
    verdicts = await a.finalize([ended(t, to) for t, to in ends])
    assert verdicts == [Verdict.ACCEPTED] * len(bite)
    books.endings.update(t.id for t, to in ends if to is JobState.COMPLETED)


async def _lead(a: Actor, books: _Books) -> None:
    """Everything a leader does, whenever it likes."""
    rng = a.rng
    while books.is_working:
        await asyncio.sleep(rng.random() * 0.05)
        match rng.randrange(4):
            case 0:
                opened = await a.surely(a.store.open_next())
                await asyncio.sleep(rng.random() * 0.02)
                await a.surely(a.store.publish())
                books.events["rotations"] += opened is not None
            case 1:
                books.events["revived"] += len((await a.surely(a.store.probe())).revived)
            case 2:
                await a.surely(a.store.sweep(rng.choice([1, 5000])))
            case _:
                pruned = await a.surely(a.store.prune(0.0))
                books.events["prunes"] += pruned.segment is not None
                books.events["carried"] += pruned.carried


async def _in_cast(dsn: str, seed: object, act: Callable[[Actor, _Books], Awaitable[None]], books: _Books) -> None:
    async with actor(dsn, seed) as a:
        await act(a, books)


@pytest.mark.timeout(120 + 20 * SECONDS)
@pytest.mark.parametrize("seed", SEEDS)
async def test_no_job_is_lost_or_handed_out_twice_however_fast_the_ring_turns(migrated: str, seed: int) -> None:
    books = _Books()
    async with asyncio.TaskGroup() as group:
        for number, act in enumerate([_take, _take, _take, _lead, _lead]):
            group.create_task(_in_cast(migrated, (seed, number), act, books))
        await asyncio.gather(*(_in_cast(migrated, (seed, 10 + n), _produce, books) for n in range(6)))
        books.is_producing = False
        async with asyncio.timeout(60), actor(migrated, seed) as a:
            await _until_all_is_over(a, books)
        books.is_working = False
    assert max(books.handed_out.values()) == 1, "the same attempt twice"
    assert max(books.endings.values()) == 1, "completed twice"
    assert set(books.attempts) == books.committed
    assert len(books.committed) > 20  # how many is the machine's affair
    assert books.events["prunes"] > 2, books.events
    assert books.events["carried"], books.events
    assert books.events["revived"], books.events


async def _until_all_is_over(a: Actor, books: _Books) -> None:
    while True:
        stats = await a.surely(a.store.queue_stats())
        left = any(s.available + s.running + s.scheduled + s.retryable for s in stats)
        if set(books.endings) == books.committed and not left:
            return
        await asyncio.sleep(0.05)


RETENTION = 1.0


@pytest.mark.timeout(120 + 20 * SECONDS)
async def test_a_day_of_rotation_in_some_seconds_keeps_every_promise(migrated: str) -> None:
    """Kept for a second: two leaders as a leader runs them, several producers and claimers, a job that takes long.

    Every job is completed once; as long as it is to be kept it is found; then its segment goes, and the ring never stays full.
    """
    books = _Books()
    fulls: list[bool] = []

    async def lead(a: Actor, books: _Books) -> None:
        while books.is_working:
            rotation = await a.surely(a.store.rotate(RETENTION, 50_000_000))
            fulls.append(rotation.is_full)
            books.events["rotations"] += rotation.opened is not None
            await a.surely(a.store.probe())
            await a.surely(a.store.sweep())
            more = True
            while more:
                pruned = await a.surely(a.store.prune(RETENTION))
                books.events["prunes"] += pruned.segment is not None
                more = pruned.more
            await asyncio.sleep(0.02 + a.rng.random() * 0.05)

    async def read(a: Actor, books: _Books) -> None:
        while books.is_working:
            recent = [id for id, at in books.completed_at.items() if time.monotonic() - at < RETENTION]
            for id in a.rng.sample(recent, min(5, len(recent))):
                asked = time.monotonic()
                row = await a.surely(a.store.get_job(id))
                assert row is not None or asked - books.completed_at[id] >= RETENTION, f"job {id} went too early"
                assert row is None or row.state in {JobState.RUNNING, JobState.COMPLETED}
            await asyncio.sleep(0.01)

    async def take_long(a: Actor, books: _Books) -> None:
        (row,) = await a.surely(a.store.insert(jobs(1, queue="long")))
        (attempt,) = (await a.claim(Demand("long", 1))).attempts
        await asyncio.sleep(SECONDS * 0.6)
        job = await a.surely(a.store.get_job(row.id))
        assert job is not None
        assert (job.state, job.run_lease) == (JobState.RUNNING, attempt.run_lease)
        assert await a.finalize([ended(attempt, JobState.COMPLETED)]) == [Verdict.ACCEPTED]

    async with asyncio.TaskGroup() as group:
        for number, act in enumerate([_take, _take, _take, lead, lead, read, take_long]):
            group.create_task(_in_cast(migrated, number, act, books))
        await asyncio.gather(*(_in_cast(migrated, 10 + n, _produce, books) for n in range(4)))
        books.is_producing = False
        async with asyncio.timeout(60), actor(migrated, "end") as a:
            await _until_all_is_over(a, books)
            while True:  # nothing more is enqueued: what is kept goes with the time, all but what is open
                if await a.connection.fetchval("SELECT count(*) FROM awa.segments WHERE state = 'sealed'") == 0:
                    break
                await asyncio.sleep(0.05)
            assert (
                await a.connection.fetchval(
                    "SELECT count(*) FROM awa.sweeps w WHERE seg NOT IN (SELECT seg FROM"
                    " awa.segments WHERE state = 'open')"
                )
                == 0
            )
        books.is_working = False
    assert max(books.handed_out.values()) == 1
    assert max(books.endings.values()) == 1
    assert books.events["prunes"] > 1, books.events
    assert not all(fulls)
