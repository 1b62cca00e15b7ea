"""Exactly one ending for each attempt, whoever closes (storage-review.md: e2_close.py, close_race.py, e22.py)."""

import asyncio
import random
from contextlib import AsyncExitStack

import pytest

from awa_proto.job import Attempt, JobState
from awa_proto.store import Demand, JobFilter, Verdict
from awa_proto.testing.conformance.kit import OUTCOMES
from tests.stress.actor import SEEDS, Actor, actor, ended, jobs

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def _close(a: Actor, attempts: list[Attempt], accepted: list[tuple[Attempt, JobState]]) -> None:
    """End a random part of the attempts, each some way, in random bites; note what was accepted."""
    todo = [(attempt, a.rng.choice(OUTCOMES)) for attempt in a.rng.sample(attempts, len(attempts) * 3 // 5)]
    while todo:
        bite = [todo.pop() for _ in range(min(len(todo), a.rng.choice([1, 7, 40, 100])))]
        verdicts = await a.finalize([ended(attempt, to) for attempt, to in bite])
        accepted += [e for e, verdict in zip(bite, verdicts, strict=True) if verdict is Verdict.ACCEPTED]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
async def test_racing_closers_of_overlapping_attempts_end_each_once_and_the_row_says_how(
    migrated: str, seed: int
) -> None:
    """C1, H8, L2: four closers, six claims of forty in two segments, every outcome, random orders: no attempt is accepted
    twice, no deadlock, and each job is where its accepted ending put it."""
    async with AsyncExitStack() as stack:
        first, *closers = [await stack.enter_async_context(actor(migrated, (seed, n))) for n in range(5)]
        for turn in range(8):
            if turn in {2, 5}:
                await first.run(first.store.open_next())
                await first.run(first.store.publish())
            attempts: list[Attempt] = []
            for priority in (1, 2, 3):
                await first.run(first.store.insert(jobs(80, queue=f"q{turn}", priority=priority), notify=False))
            for _ in range(6):
                attempts += (await first.claim(Demand(f"q{turn}", 40))).attempts
                first.ring = type(first.ring)(0)
            assert len(attempts) == 240
            accepted: list[tuple[Attempt, JobState]] = []
            await asyncio.gather(*(_close(a, attempts, accepted) for a in closers))
            assert len({attempt for attempt, _ in accepted}) == len(accepted), "accepted twice"
            open_still = set(attempts) - {attempt for attempt, _ in accepted}
            expected = {attempt.id: to for attempt, to in accepted} | {a.id: JobState.RUNNING for a in open_still}
            rows = await first.run(first.store.list_jobs(JobFilter(queue=f"q{turn}", limit=1000)))
            assert {row.id: row.state for row in rows} == expected
            assert len(rows) == 240


@pytest.mark.timeout(120)
async def test_four_closers_of_one_attempt_have_one_winner_every_time(migrated: str) -> None:
    """C1: the first prototype let two of them win in 1377 of 1500 races."""
    rng = random.Random(1)
    async with AsyncExitStack() as stack:
        first, *closers = [await stack.enter_async_context(actor(migrated, n)) for n in range(5)]
        for number in range(150):
            await first.run(first.store.insert(jobs(1), notify=False))
            (attempt,) = (await first.claim(Demand("q", 9))).attempts
            ways = rng.choices([to for to in OUTCOMES if to is not JobState.AVAILABLE], k=4)
            verdicts = await asyncio.gather(
                *(a.finalize([ended(attempt, to)]) for a, to in zip(closers, ways, strict=True))
            )
            winners = [to for [verdict], to in zip(verdicts, ways, strict=True) if verdict is Verdict.ACCEPTED]
            assert len(winners) == 1, (number, verdicts, ways)
            job = await first.run(first.store.get_job(attempt.id))
            assert job is not None
            assert job.state is winners[0]
