"""Enqueue: what is committed exists, in the order it was given, and nothing else does."""

from __future__ import annotations

import json
import random

from awa_proto import extra as extras
from awa_proto.errors import DatabaseError
from awa_proto.job import JobState
from awa_proto.store import NewJob
from awa_proto.testing.conformance.kit import HOUR, DatabaseKit, Kit, jobs, now

ODD = 'tab\t new\nline \\ \\N \\. "quoted" 100% ünï 日本 \U0001f418 $1 {x}'
"""Text that a careless COPY, a format string or a parameter would trip over."""


def odd_job(run_at_future: bool = False) -> NewJob:
    """A job at every limit, with text that has to be escaped everywhere."""
    metadata = {"who": ODD, "float": 1.5, "nested": {"list": [1, None, True]}}
    return NewJob(
        kind=ODD + "k" * (200 - len(ODD)),
        queue=ODD + "q" * (200 - len(ODD)),
        args='{"float":1.0,"big":' + str(2**70) + ',"b":1,"a":' + extras.compact(ODD) + "}",
        priority=4,
        max_attempts=1000,
        run_at=now() + HOUR if run_at_future else None,
        extra=extras.encode(metadata=metadata, tags=[ODD, ""], deadline=7.5),
    )


async def jobs_come_back_in_the_order_given_with_rising_ids(kit: Kit) -> None:
    """Also across lanes: ids are drawn in that order."""
    rows = await kit.insert(*(NewJob("k", f"q{n % 3}", f'{{"n":{n}}}', priority=1 + n % 4) for n in range(40)))
    assert [row.args["n"] for row in rows] == list(range(40))
    assert [row.id for row in rows] == sorted({row.id for row in rows})


async def a_job_without_a_run_at_is_available(kit: Kit) -> None:
    """And its answer is what a read finds."""
    (row,) = await kit.insert(*jobs(1))
    assert row.state is JobState.AVAILABLE
    assert (row.attempt, row.run_lease, row.max_attempts, row.priority) == (0, 0, 25, 2)
    assert row == await kit.job(row.id)


async def a_run_at_already_due_starts_as_available_and_one_in_the_future_as_scheduled(kit: Kit) -> None:
    """In one call, mixed with jobs that name no time; every answer is what a read finds."""
    at = now()
    times = [None, at - HOUR, at + HOUR, None, at + 2 * HOUR]
    rows = await kit.insert(*(NewJob("k", "q", "{}", run_at=time) for time in times))
    waits = [JobState.AVAILABLE, JobState.AVAILABLE, JobState.SCHEDULED, JobState.AVAILABLE, JobState.SCHEDULED]
    assert [row.state for row in rows] == waits
    assert [row.run_at for row, time in zip(rows, times, strict=True) if time] == [time for time in times if time]
    assert rows == [await kit.job(row.id) for row in rows]
    assert len(await kit.claim()) == 3


async def everything_of_a_job_is_kept_whether_it_comes_alone_in_a_batch_or_by_copy(kit: Kit) -> None:
    """Text with what COPY, JSON and format strings escape, at the limits of every column; due and scheduled."""
    for later in (False, True):
        job = odd_job(later)
        rows = [*await kit.insert(job), *await kit.insert(job, job)]
        assert await kit.run(kit.store.copy([job] * 2)) == 2
        listed = await kit.listed(queue=job.queue, state=JobState.SCHEDULED if later else JobState.AVAILABLE)
        assert len(listed) == 5
        for id in listed:
            row = await kit.job(id)
            assert (row.kind, row.queue, row.priority, row.max_attempts) == (job.kind, job.queue, 4, 1000)
            assert row.args == json.loads(job.args)
            assert list(row.args) == ["float", "big", "b", "a"]
            assert isinstance(row.args["float"], float)
            assert row.metadata == json.loads(job.extra or "")["metadata"]
            assert row.tags == [ODD, ""]
        assert rows[0].args == rows[1].args == json.loads(job.args)
    attempts = await kit.claim(queue=odd_job().queue)
    assert [(a.args, a.extra) for a in attempts] == [(odd_job().args, odd_job().extra)] * 5


async def a_copy_is_claimed_like_any_other_job(kit: Kit) -> None:
    """In the order given, due ones now; due ones may also come from something that is no list."""
    given = [*jobs(300), *jobs(2, run_at=now() + HOUR), *jobs(3)]
    assert await kit.run(kit.store.copy(given)) == 305
    assert await kit.run(kit.store.copy(dict(enumerate(jobs(200))).values())) == 200
    attempts = await kit.claim(1000)
    assert [a.args for a in attempts] == [job.args for job in [*given, *jobs(200)] if job.run_at is None]
    assert await kit.run(kit.store.copy([])) == 0


async def nothing_given_is_nothing_written(kit: Kit) -> None:
    """An empty insert is allowed."""
    assert await kit.insert() == []
    assert await kit.listed() == []


async def a_copy_with_one_bad_row_writes_none(kit: DatabaseKit) -> None:
    """All or none."""
    try:
        await kit.run(kit.store.copy([*jobs(1000), NewJob("k", "q", '{"not json')]))
    except DatabaseError as error:
        assert error.sqlstate == "22P02", error
    else:
        raise AssertionError("JSON that is none was accepted")
    assert await kit.listed() == []


async def a_rolled_back_enqueue_never_appears(kit: DatabaseKit) -> None:
    """Neither of a whole transaction nor of a savepoint, neither of one, many or a copy."""
    for isolation in ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"):
        async with kit.session() as user:
            await user.sql(f"BEGIN ISOLATION LEVEL {isolation}")
            await user.run(kit.store.insert(jobs(1)))
            await user.run(kit.store.insert(jobs(5)))
            await user.run(kit.store.copy([*jobs(3), *jobs(3, run_at=now() + HOUR)]))
            await user.sql("ROLLBACK")
            await user.sql(f"BEGIN ISOLATION LEVEL {isolation}")
            kept = await user.run(kit.store.insert(jobs(1)))
            await user.sql("SAVEPOINT one")
            await user.run(kit.store.insert(jobs(3)))
            await user.sql("ROLLBACK TO one")
            kept += await user.run(kit.store.insert(jobs(2)))
            await user.sql("RELEASE one")
            assert await kit.claim() == [], "handed out before it was committed"
            await user.sql("COMMIT")
            assert [a.id for a in await kit.claim()] == [row.id for row in kept]
    assert len(await kit.listed()) == 9


async def a_prepared_transaction_enqueues_when_it_commits(kit: DatabaseKit) -> None:
    """With notify=False; jobs that came later do not wait for it, and none is skipped for it."""
    name = f"awa kit {random.getrandbits(60)}"  # of the whole server
    async with kit.session() as user:
        for verdict in ("ROLLBACK", "COMMIT"):
            await user.sql("BEGIN")
            (held,) = await user.run(kit.store.insert(jobs(1), notify=False))
            await user.run(kit.store.insert(jobs(2, run_at=now() + HOUR), notify=False))
            await user.sql(f"PREPARE TRANSACTION '{name}'")
            (other,) = await kit.enqueue()
            assert [a.id for a in await kit.claim()] == [other]
            assert await kit.claim() == []
            await user.sql(f"{verdict} PREPARED '{name}'")
            assert [a.id for a in await kit.claim()] == ([held.id] if verdict == "COMMIT" else [])
    assert len(await kit.listed(state=JobState.SCHEDULED)) == 2
