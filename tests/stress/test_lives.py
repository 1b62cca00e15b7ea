"""Whole lives of thousands of jobs at once: workers, promoters, people and late producers, against what each was told.

Everything an Op answered is kept; at the end every job must be where its answers say, and it must have been somewhere at
every moment in between (storage-review.md: H2, cancel_stress.py; section 6, the reads).
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable

import asyncpg
import pytest

from awa_proto.errors import DatabaseError
from awa_proto.job import Attempt, JobState
from awa_proto.store import Cancelled, Demand, JobFilter, Verdict
from awa_proto.testing.conformance.kit import OUTCOMES
from tests.stress.actor import SEEDS, Actor, actor, ended, jobs

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
QUEUES = ("a", "b", "c")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class _World:
    """What was answered so far.

    endings: (id, run_lease) -> how its attempt was accepted. ended_by_people: ids with a cancellation that said so, and
    retries, in order.
    """

    def __init__(self) -> None:
        self.jobs: list[int] = []
        self.taken: dict[tuple[int, int], Attempt] = {}
        self.endings: dict[tuple[int, int], JobState] = {}
        self.cancelled: dict[int, int] = defaultdict(int)
        self.retried: dict[int, int] = defaultdict(int)
        self.failed: dict[int, int] = defaultdict(int)
        self.left = 3
        self.working = True


async def _produce(a: Actor, w: _World) -> None:
    for _ in range(60):
        try:
            async with a.transaction():
                op = a.store.insert(jobs(a.rng.randint(1, 8), queue=a.rng.choice(QUEUES), priority=a.rng.randint(1, 4)))
                ids = [row.id for row in await a.run(op)]
                if a.rng.random() < 0.3:
                    await asyncio.sleep(a.rng.random() * 0.05)
        except (asyncpg.SerializationError, DatabaseError):
            continue
        w.jobs += ids
    w.left -= 1


async def _work(a: Actor, w: _World) -> None:
    while w.working:
        claimed = await a.claim(*(Demand(q, a.rng.choice([1, 5, 20]), 0, 0.5) for q in QUEUES))
        for t in claimed.attempts:
            assert (t.id, t.run_lease) not in w.taken, "the same fence twice"
            w.taken[t.id, t.run_lease] = t
        attempts = list(claimed.attempts)
        while attempts:
            bite = [attempts.pop() for _ in range(min(len(attempts), a.rng.choice([1, 5, 50])))]
            await asyncio.sleep(a.rng.random() * 0.005)
            weights = (10, 2, 2, 2, 1, 2) if w.left else (50, 1, 1, 1, 1, 1)
            ends = [(t, a.rng.choices(OUTCOMES, weights)[0]) for t in bite]
            for (t, to), verdict in zip(ends, await a.finalize([ended(t, to) for t, to in ends]), strict=True):
                if verdict is Verdict.ACCEPTED:
                    assert (t.id, t.run_lease) not in w.endings, "ended twice"
                    w.endings[t.id, t.run_lease] = to
                    w.failed[t.id] += to in {JobState.FAILED, JobState.CANCELLED}
                else:
                    assert verdict is Verdict.STALE
        await asyncio.sleep(0 if claimed.attempts else a.rng.random() * 0.005)


async def _promote(a: Actor, w: _World) -> None:
    while w.working:
        await a.surely(a.store.promote(a.rng.choice([1, 10, 100])))
        await asyncio.sleep(a.rng.random() * 0.01)


async def _meddle(a: Actor, w: _World) -> None:
    """Cancel, move and retry, mostly what is new, until the last producer is done."""
    while w.left:
        await asyncio.sleep(a.rng.random() * 0.004)
        if not w.jobs:
            continue
        id = a.rng.choice(w.jobs[-80:])
        match a.rng.randint(0, 3):
            case 0:
                answer = await a.surely(a.store.cancel(id))
                w.cancelled[id] += answer in {Cancelled.CANCELLED, Cancelled.RUNNING}
            case 1:
                await a.surely(a.store.move(id, queue=a.rng.choice((None, *QUEUES)), priority=a.rng.randint(1, 4)))
            case _:
                row = await a.surely(a.store.retry(id))
                w.retried[id] += row is not None


async def _read(a: Actor, w: _World) -> None:
    """A committed job is always somewhere, its lease only rises, and a page holds it once."""
    leases: dict[int, int] = defaultdict(int)
    while w.working:
        if w.jobs:
            id = a.rng.choice(w.jobs)
            row = await a.surely(a.store.get_job(id))
            assert row is not None, f"job {id} is nowhere"
            assert row.run_lease >= leases[id]
            leases[id] = row.run_lease
        before = a.rng.choice([None, *w.jobs[-200:]])
        state = a.rng.choice([None, *JobState])
        page = await a.surely(a.store.list_jobs(JobFilter(state=state, before_id=before, limit=40)))
        ids = [row.id for row in page]
        assert ids == sorted(set(ids), reverse=True)
        assert {row.state for row in page} <= ({state} if state else set(JobState))
        await asyncio.sleep(a.rng.random() * 0.01)


async def _lead(a: Actor, w: _World) -> None:
    while w.working:
        await asyncio.sleep(a.rng.random() * 0.8)
        await a.surely(a.store.open_next())
        await a.surely(a.store.publish())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
async def test_every_job_is_where_the_answers_say(migrated: str, seed: int) -> None:
    """H2, H11, C1 and the reads of section 6 under fire: nobody was told two things, and nothing vanished."""
    w = _World()
    async with actor(migrated, seed) as first:

        async def as_actor(number: int, act: Callable[[Actor, _World], Awaitable[None]]) -> None:
            async with actor(migrated, (seed, number)) as a:
                await act(a, w)

        cast = [_work, _work, _work, _promote, _promote, _read, _lead]
        async with asyncio.TaskGroup() as group:
            for number, act in enumerate(cast):
                group.create_task(as_actor(number, act))
            busy = [
                group.create_task(as_actor(100 + n, act)) for n, act in enumerate([*[_produce] * 3, *[_meddle] * 2])
            ]
            await asyncio.wait(busy)
            while True:
                stats = await first.surely(first.store.queue_stats())
                if not sum(s.available + s.running + s.scheduled + s.retryable for s in stats):
                    break
                await asyncio.sleep(0.05)
            w.working = False
        await _check(first, w)


async def _check(a: Actor, w: _World) -> None:
    assert len(w.jobs) > 300
    last: dict[int, int] = defaultdict(int)
    for id, lease in w.taken:
        last[id] = max(last[id], lease)
    for id in w.jobs:
        row = await a.run(a.store.get_job(id))
        assert row is not None
        assert row.run_lease >= last[id]
        ways_out = w.cancelled[id] + w.failed[id] - w.retried[id]
        if row.state is JobState.COMPLETED:
            assert w.endings[id, row.run_lease] is JobState.COMPLETED
            assert ways_out == 0, (row, w.cancelled[id], w.failed[id], w.retried[id])
        else:
            assert row.state in {JobState.FAILED, JobState.CANCELLED}
            assert ways_out == 1, (row, w.cancelled[id], w.failed[id], w.retried[id])
            if w.endings.get((id, row.run_lease)) is JobState.FAILED and row.attempt:
                assert row.state is JobState.FAILED
    completed = [id for (id, _), to in w.endings.items() if to is JobState.COMPLETED]
    assert len(completed) == len(set(completed)), "completed twice"
    assert {(id, lease) for (id, lease) in w.endings} <= set(w.taken)
