"""Of jobs with one unique key, at most one is in a state that keeps others out, whoever enqueues, ends and brings back."""

import asyncio
import random
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, timedelta

import pytest

from awa_proto.errors import DatabaseError, UniqueConflict
from awa_proto.extra import unique_of, with_unique
from awa_proto.job import JobState
from awa_proto.store import Demand, JobFilter, NewJob, Unique
from awa_proto.unique import DEFAULT_STATES, keeps_out, mask
from tests.stress.actor import AGAIN, SEEDS, Actor, actor, ended

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

KEYS = [bytes([n]) * 16 for n in range(6)]
MASKS = [
    mask(DEFAULT_STATES),
    mask((JobState.SCHEDULED, JobState.AVAILABLE, JobState.RUNNING, JobState.RETRYABLE)),
    mask((JobState.SCHEDULED, JobState.AVAILABLE, JobState.RETRYABLE)),
]
ENDINGS = [
    JobState.COMPLETED,
    JobState.FAILED,
    JobState.RETRYABLE,
    JobState.SCHEDULED,
    JobState.AVAILABLE,
    JobState.CANCELLED,
]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def _job(a: Actor) -> NewJob:
    number = a.rng.randrange(len(KEYS))
    key, states = KEYS[number], MASKS[number % len(MASKS)]
    run_at = datetime.now(UTC) + timedelta(milliseconds=20) if a.rng.random() < 0.3 else None
    follow = Unique(key, states)
    return NewJob("k", "q", "{}", run_at=run_at, extra=with_unique(None, key, states), unique=follow)


async def _produce(a: Actor, until: asyncio.Event) -> None:
    """Alone and in batches, in autocommit and inside transactions of every isolation level that may be rolled back."""
    while not until.is_set():
        op = a.store.insert([_job(a) for _ in range(a.rng.choice([1, 1, 3]))], notify=False, skip=a.rng.random() < 0.5)
        with suppress(UniqueConflict):
            if a.rng.random() < 0.5:
                await a.surely(op)
                continue
            try:
                async with a.transaction():
                    with suppress(UniqueConflict):
                        await a.run(op)
                    await asyncio.sleep(a.rng.random() * 0.01)
                    if a.rng.random() < 0.3:
                        raise DatabaseError("rolled back", "40001")
            except DatabaseError as error:
                if error.failure not in AGAIN:
                    raise


async def _work(a: Actor, until: asyncio.Event) -> None:
    """Claims, and ends attempts each some way, some with a follow-up that is unique, too."""
    while not until.is_set():
        await a.surely(a.store.promote(50))
        claimed = await a.claim(Demand("q", a.rng.choice([1, 4])))
        for attempt in claimed.attempts:
            await asyncio.sleep(a.rng.random() * 0.002)
            end = ended(attempt, a.rng.choice(ENDINGS), "x")
            await a.finalize([end._replace(follow_ups=(_job(a),)) if a.rng.random() < 0.2 else end])


async def _bring_back(a: Actor, until: asyncio.Event) -> None:
    """Retries failed and cancelled jobs, cancels others, forgets keys."""
    while not until.is_set():
        rows = await a.surely(a.store.list_jobs(JobFilter(limit=40)))
        for row in a.rng.sample(rows, min(5, len(rows))):
            with suppress(UniqueConflict):
                await a.surely(a.store.retry(row.id) if row.state.is_terminal else a.store.cancel(row.id))
        await a.surely(a.store.forget_keys(100))
        await asyncio.sleep(0.002)


async def _look(a: Actor, until: asyncio.Event) -> int:
    """One snapshot after another of all jobs; how many it saw keep others out."""
    seen = 0
    while not until.is_set():
        rows = await a.run(a.store.list_jobs(JobFilter(limit=50)))
        found: dict[bytes, int] = {}
        for row in rows:
            unique = unique_of(row.extra_json)
            assert unique is not None
            if keeps_out(unique[1], row.state) and row.state is not JobState.COMPLETED:
                assert found.setdefault(unique[0], row.id) == row.id, [
                    r for r in rows if unique_of(r.extra_json) == unique
                ]
                seen += 1
    return seen


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", SEEDS)
async def test_producers_workers_and_people_never_make_two(migrated: str, seed: int) -> None:
    """Masks with and without `running`; what completes is left out, since a completion asks nobody."""
    rng = random.Random(seed)
    async with AsyncExitStack() as stack:
        roles = [_produce] * 4 + [_work] * 3 + [_bring_back] * 2
        actors = [
            await stack.enter_async_context(actor(migrated, (seed, n, rng.random()))) for n in range(len(roles) + 1)
        ]
        until = asyncio.Event()
        tasks = [asyncio.create_task(role(a, until)) for role, a in zip(roles, actors[1:], strict=True)]
        looking = asyncio.create_task(_look(actors[0], until))
        await asyncio.wait([*tasks, looking], timeout=12, return_when=asyncio.FIRST_EXCEPTION)
        until.set()
        await asyncio.gather(*tasks)
        assert await looking > 20
