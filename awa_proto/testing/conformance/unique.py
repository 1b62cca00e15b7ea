"""Unique jobs: of jobs with one key there is one, as long as it is in a state that keeps the others out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from awa_proto.errors import UniqueConflict
from awa_proto.extra import with_unique
from awa_proto.job import JobState
from awa_proto.store import Cancelled, NewJob, Unique
from awa_proto.testing.conformance.kit import HOUR, OUTCOMES, Kit, jobs, now
from awa_proto.testing.conformance.people import cancel
from awa_proto.unique import DEFAULT_STATES, mask

LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
ALL = mask(JobState)
WAITING = mask((JobState.SCHEDULED, JobState.AVAILABLE, JobState.RETRYABLE))
"""Those in which no handler runs: a newer job may come while one does."""


def unique(name: str = "a", states: int = mask(DEFAULT_STATES), **fields: Any) -> NewJob:
    """A job with a key made of a name."""
    given: dict[str, Any] = {"kind": "k", "queue": "q", "args": "{}", **fields}
    key = name.encode().ljust(16, b"\0")
    return NewJob(**given, extra=with_unique(None, key, states), unique=Unique(key, states))


def key(name: str = "a") -> bytes:
    """That key."""
    return name.encode().ljust(16, b"\0")


async def conflict_of(op: Callable[[], Awaitable[object]]) -> UniqueConflict:
    """The conflict that something must meet."""
    try:
        await op()
    except UniqueConflict as conflict:
        return conflict
    raise AssertionError("there was no conflict")


async def refused(kit: Kit, *new: NewJob) -> tuple[int | None, int | None]:
    """Whom these jobs conflict with, and which of them does."""
    conflict = await conflict_of(lambda: kit.insert(*new))
    return conflict.job_id, conflict.index


async def skipping(kit: Kit, *new: NewJob) -> list[tuple[int, bool]]:
    """The jobs there are afterwards, and whether they were there before."""
    rows = await kit.run(kit.store.insert(new, skip=True))
    for row in rows:
        assert row == await kit.job(row.id)
    return [(row.id, row.existed) for row in rows]


async def a_second_job_with_the_key_is_refused_and_nothing_is_written(kit: Kit) -> None:
    """The conflict names the first; another key is another matter."""
    (first,) = await kit.insert(unique())
    assert first.unique_key == key()
    assert (await kit.job(first.id)).unique_key == key()
    assert await refused(kit, unique()) == (first.id, 0)
    assert await refused(kit, unique(queue="other", kind="other", run_at=now() + HOUR)) == (first.id, 0)
    await kit.insert(unique("b"))
    assert len(await kit.listed()) == 2
    assert (await kit.stat()).available == 2


async def a_job_keeps_others_out_in_its_states_and_in_no_other(kit: Kit) -> None:
    """Each state of the mask and each state beside it."""
    for state in (JobState.AVAILABLE, JobState.RUNNING, *OUTCOMES[:5]):
        for states, blocks in ((mask((state,)), True), (ALL & ~mask((state,)), False), (ALL, True)):
            name = f"{state}{states}"
            id = await job_in(kit, state, unique(name, states, queue=name))
            if blocks:
                assert await refused(kit, unique(name)) == (id, 0), name
                assert await skipping(kit, unique(name)) == [(id, True)], name
            else:
                ((newer, existed),) = await skipping(kit, unique(name))
                assert newer > id, name
                assert not existed
                assert await refused(kit, unique(name, queue=name)) == (newer, 0), name


async def job_in(kit: Kit, state: JobState, new: NewJob) -> int:
    """A new job, alone in its queue, brought into a state."""
    if state is JobState.SCHEDULED:
        new = new._replace(run_at=now() + HOUR)
    (job,) = await kit.insert(new)
    if state not in {JobState.AVAILABLE, JobState.SCHEDULED}:
        (attempt,) = await kit.claim(queue=new.queue)
        if state is not JobState.RUNNING:
            await kit.close(attempt, state, due=now() + HOUR)
    return job.id


async def whose_states_count_are_those_of_the_job_that_has_the_key(kit: Kit) -> None:
    """Not those of the one that wants it."""
    id = await job_in(kit, JobState.COMPLETED, unique(states=mask((JobState.AVAILABLE,))))
    ((newer, _),) = await skipping(kit, unique(states=ALL))
    assert newer != id
    await cancel(kit, newer)
    assert await refused(kit, unique(states=mask((JobState.AVAILABLE,)))) == (newer, 0)


async def a_job_keeps_its_key_through_all_its_attempts(kit: Kit) -> None:
    """Retries, snoozes, releases and promotions; a cancellation frees it."""
    (job,) = await kit.insert(unique())
    for to in (JobState.RETRYABLE, JobState.SCHEDULED, JobState.AVAILABLE, JobState.RETRYABLE):
        (attempt,) = await kit.claim()
        assert attempt.id == job.id
        await kit.close(attempt, to, error="x")
        assert await refused(kit, unique()) == (job.id, 0)
        await kit.run(kit.store.promote(10))
        assert await refused(kit, unique()) == (job.id, 0)
    assert (await kit.job(job.id)).unique_key == key()
    assert await cancel(kit, job.id) is Cancelled.CANCELLED
    await kit.insert(unique())


async def of_a_batch_all_or_none_are_written(kit: Kit) -> None:
    """The conflict says which of them; what it left behind keeps nobody out."""
    (there,) = await kit.insert(unique("b"))
    batch = [unique("c"), *jobs(1), unique("b"), unique("d", run_at=now() + HOUR)]
    assert await refused(kit, *batch) == (there.id, 2)
    assert await kit.listed() == [there.id]
    assert await refused(kit, unique("c"), unique("e"), unique("c")) == (None, 2)
    assert len(await kit.insert(*batch[:2], *batch[3:])) == 3


async def of_a_batch_that_skips_the_others_are_written(kit: Kit) -> None:
    """Rows come in the order given; of several alike the first is written."""
    ids = [row.id for row in await kit.insert(unique("b"), unique("d"))]
    batch = [
        unique("c"),
        unique("b"),
        *jobs(1),
        unique("c", run_at=now() + HOUR),
        unique("d"),
        unique("e", run_at=now() + HOUR),
    ]
    found = await skipping(kit, *batch)
    c, b, plain, again, d, e = found
    assert (b, d, again) == ((ids[0], True), (ids[1], True), (c[0], True))
    assert [existed for _, existed in (c, plain, e)] == [False] * 3
    assert c[0] < plain[0] < e[0]
    assert (await kit.job(c[0])).state is JobState.AVAILABLE
    assert sorted(await kit.listed()) == sorted([*ids, c[0], plain[0], e[0]])
    assert await skipping(kit, unique("b"), unique("c")) == [(ids[0], True), (c[0], True)]


async def a_copy_wins_keys_like_any_other_enqueue(kit: Kit) -> None:
    """Refused as a whole, or without the jobs that are there; in the order given."""
    (there,) = await kit.insert(unique("5"))
    batch = [unique(str(n), args=f'{{"n":{n}}}') for n in range(100)]
    batch[50:50] = [*jobs(2), unique("7"), unique("x", run_at=now() + HOUR)]
    conflict = await conflict_of(lambda: kit.run(kit.store.copy(batch)))
    assert (conflict.job_id, conflict.index) == (None, 52)
    del batch[52]
    conflict = await conflict_of(lambda: kit.run(kit.store.copy(batch)))
    assert (conflict.job_id, conflict.index) == (there.id, 5)
    assert await kit.listed() == [there.id]
    assert await kit.run(kit.store.copy([*batch, unique("7")], skip=True)) == 102
    (first, *attempts) = await kit.claim(1000)
    assert first.id == there.id
    assert [a.args for a in attempts] == [job.args for n, job in enumerate(batch) if n not in {5, 52}]
    assert (await kit.stat()).scheduled == 1
    for name in ("0", "99", "x"):
        await refused(kit, unique(name))
    assert await kit.run(kit.store.copy(batch[:3], skip=True)) == 0
    assert await kit.run(kit.store.copy(jobs(3), skip=True)) == 3


async def who_has_a_key_can_be_asked(kit: Kit) -> None:
    """The job that got it last."""
    assert await kit.run(kit.store.holder(key())) is None
    (first,) = await kit.insert(unique())
    assert await kit.run(kit.store.holder(key())) == first.id
    await cancel(kit, first.id)
    assert await kit.run(kit.store.holder(key())) == first.id
    (second,) = await kit.insert(unique())
    assert await kit.run(kit.store.holder(key())) == second.id
