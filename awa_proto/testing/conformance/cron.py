"""Cron jobs: kept as they were said, and each fire enqueued once, whoever else is about to."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

from awa_proto.cron.job import CronJob, CronTemplate, Fire, MissedFirePolicy, fire_of
from awa_proto.cron.operations import fire
from awa_proto.cron.schedule import Schedule
from awa_proto.errors import DatabaseError, Failure
from awa_proto.extra import encode
from awa_proto.job import JobRow
from awa_proto.outcome import rfc3339
from awa_proto.store import JobFilter, NewJob
from awa_proto.testing.conformance.kit import HOUR, DatabaseKit, Kit, Session, together
from awa_proto.unique import Uniqueness

MINUTE = timedelta(minutes=1)


def template(
    name: str = "c",
    cron: str = "* * * * *",
    policy: MissedFirePolicy = "coalesce",
    uniqueness: Uniqueness | None = None,
    **job: Any,
) -> CronTemplate:
    """A cron job that enqueues in queue `q`."""
    new = NewJob(**{"kind": "count", "queue": "q", "args": '{"n":1.0}', **job})
    return CronTemplate(name, Schedule(cron, "UTC"), policy, new, uniqueness)


async def put(kit: Kit, *templates: CronTemplate, declared: bool = True) -> int:
    """How many were made or changed."""
    return await kit.run(kit.store.put_cron(templates, declared=declared))


async def cron_jobs(kit: Kit) -> list[CronJob]:
    """All of them."""
    return (await kit.run(kit.store.list_cron()))[1]


async def due(kit: Kit, later: timedelta = timedelta()) -> list[Fire]:
    """What is due so much later than now."""
    now, found = await kit.run(kit.store.list_cron())
    return [fire for job in found if (fire := fire_of(job, now + later)) is not None]


async def enqueued(kit: Kit) -> list[JobRow]:
    """The jobs there are, the oldest first."""
    return sorted(await kit.run(kit.store.list_jobs(JobFilter(limit=1000))), key=lambda job: job.id)


async def what_is_put_is_listed_as_it_was_said(kit: Kit) -> None:
    """With every option, and JSON as it was written."""
    unique = Uniqueness(by_queue=True, by_args=False, period=HOUR, states=5)
    extra = encode(metadata={"a": 1.0}, tags=["x"], deadline=2.5)
    full = template("full", "*/5 3 * * *", "catch_up", unique, priority=1, max_attempts=3, extra=extra, ordering=2**62)
    assert await put(kit, template("plain"), full) == 2
    first, second = await cron_jobs(kit)
    assert (first.template, second.template) == (full, template("plain"))
    assert first.last_fire_at is None
    assert not first.is_paused
    assert abs(first.created_at - first.after - MINUTE) < timedelta(seconds=1), "made in one statement"
    assert (await kit.run(kit.store.list_cron("plain")))[1] == [second]
    assert (await kit.run(kit.store.list_cron("nothing")))[1] == []


async def code_changes_only_what_it_did_not_say_before(kit: Kit) -> None:
    """So what people changed stays over restarts, until the code says something else."""
    assert await put(kit, template()) == 1
    assert await put(kit, template()) == 0
    assert await kit.run(kit.store.edit_cron("c", {"cron": "0 0 * * *", "queue": "other"}))
    assert await put(kit, template()) == 0
    (edited,) = await cron_jobs(kit)
    assert (edited.cron, edited.queue, edited.kind) == ("0 0 * * *", "other", "count")
    assert await put(kit, template(cron="1 1 * * *")) == 1
    (said,) = await cron_jobs(kit)
    assert (said.cron, said.queue) == ("1 1 * * *", "q")


async def what_people_put_stays_whatever_code_said(kit: Kit) -> None:
    """They may say it again and again."""
    await put(kit, template())
    assert await put(kit, template(cron="0 0 * * *"), declared=False) == 1
    assert await put(kit, template()) == 0
    (found,) = await cron_jobs(kit)
    assert found.cron == "0 0 * * *"


async def a_changed_schedule_counts_from_now_on(kit: Kit) -> None:
    """What it would have fired before is not missed."""
    await put(kit, template(cron="0 0 1 1 *", policy="catch_up"))
    (before,) = await cron_jobs(kit)
    await put(kit, template(cron="* * * * *", policy="catch_up"))
    (after,) = await cron_jobs(kit)
    assert after.after > before.after
    assert await due(kit) == []
    await put(kit, template(cron="* * * * *", policy="coalesce"))
    assert (await cron_jobs(kit))[0].after == after.after


async def a_new_cron_job_fires_in_the_minute_that_it_names(kit: Kit) -> None:
    """And not for what was long before; with either policy once."""
    await put(kit, template("a"), template("b", policy="catch_up"), template("c", "0 0 1 1 *"))
    assert [(fire.name, len(fire.jobs)) for fire in await due(kit)] == [("a", 1), ("b", 1)]


async def a_fire_enqueues_a_job_that_says_where_it_comes_from(kit: Kit) -> None:
    """Due at that moment, in the state of a job that is due."""
    await put(kit, template(extra=encode(metadata={"mine": 1}, tags=["t"])))
    (found,) = await due(kit)
    assert await kit.run(fire(kit.store, [found])) == ["c"]
    (job,) = await enqueued(kit)
    assert (job.run_at, job.kind, job.queue, job.args_json, job.tags) == (found.at, "count", "q", '{"n":1.0}', ["t"])
    assert job.metadata == {"mine": 1, "cron_name": "c", "cron_fire_time": rfc3339(found.at)}
    (after,) = await cron_jobs(kit)
    assert (after.after, after.last_fire_at) == (found.at, found.at)
    assert await due(kit) == []


async def fires_that_were_found_twice_are_enqueued_once(kit: Kit) -> None:
    """As by two leaders, or after an answer that was lost."""
    await put(kit, template())
    found = await due(kit)
    assert await kit.run(fire(kit.store, found)) == ["c"]
    assert await kit.run(fire(kit.store, found)) == []
    assert len(await enqueued(kit)) == 1


async def what_was_missed_is_made_up_for_as_the_policy_says(kit: Kit) -> None:
    """Only the newest; or each in order, once it has fired at all."""
    await put(kit, template("newest"), template("all", policy="catch_up"))
    await kit.run(fire(kit.store, await due(kit)))
    before = await enqueued(kit)
    found = {each.name: each for each in await due(kit, timedelta(minutes=30))}
    assert [len(found[name].jobs) for name in ("newest", "all")] == [1, 30]
    assert sorted(await kit.run(fire(kit.store, list(found.values())))) == ["all", "newest"]
    new = (await enqueued(kit))[len(before) :]
    times = [job.run_at for job in new if job.metadata["cron_name"] == "all"]
    assert times == [before[0].run_at + n * MINUTE for n in range(1, 31)]


async def what_was_missed_for_ever_so_long_comes_in_pieces(kit: Kit) -> None:
    """A thousand in a transaction, and what follows after it, none left out."""
    await put(kit, template(policy="catch_up"))
    await kit.run(fire(kit.store, await due(kit)))
    for _ in range(2):
        (found,) = await due(kit, timedelta(days=7))
        assert len(found.jobs) == 1000
        await kit.run(fire(kit.store, [found]))
    times = [job.run_at for job in await kit.run(kit.store.list_jobs(JobFilter(limit=2500)))]
    assert sorted(times) == [min(times) + n * MINUTE for n in range(2001)]


async def a_paused_cron_job_fires_nothing_and_then_what_its_policy_says(kit: Kit) -> None:
    """Also when it was paused after its fires were found."""
    await put(kit, template(policy="catch_up"))
    found = await due(kit)
    assert await kit.run(kit.store.pause_cron("c", "me"))
    (paused,) = await cron_jobs(kit)
    assert (paused.is_paused, paused.paused_by) == (True, "me")
    assert await due(kit, HOUR) == []
    assert await kit.run(fire(kit.store, found)) == []
    assert await put(kit, template(cron="*/2 * * * *", policy="catch_up")) == 1
    assert (await cron_jobs(kit))[0].is_paused
    assert await kit.run(kit.store.resume_cron("c"))
    (resumed,) = await cron_jobs(kit)
    assert (resumed.is_paused, resumed.paused_by) == (False, None)
    assert len(await due(kit, HOUR)) == 1
    for nothing in (kit.store.pause_cron("d", None), kit.store.resume_cron("d"), kit.store.edit_cron("d", {})):
        assert not await kit.run(nothing)


async def a_deleted_cron_job_fires_nothing_and_its_jobs_stay(kit: Kit) -> None:
    """Also when its fires were found before."""
    await put(kit, template("a"), template("b"))
    found = await due(kit)
    await kit.run(fire(kit.store, [found[1]]))
    assert await kit.run(kit.store.delete_cron("a"))
    assert await kit.run(kit.store.delete_cron("b"))
    assert not await kit.run(kit.store.delete_cron("b"))
    assert await kit.run(fire(kit.store, found)) == []
    assert [job.metadata["cron_name"] for job in await enqueued(kit)] == ["b"]


async def a_fire_whose_job_is_there_already_is_past_all_the_same(kit: Kit) -> None:
    """Unique jobs are skipped, and the next moment is another one."""
    unique = Uniqueness(by_queue=False, by_args=True, period=None, states=0b111)
    await put(kit, template(uniqueness=unique))
    await kit.run(fire(kit.store, await due(kit)))
    (later,) = await due(kit, HOUR)
    assert await kit.run(fire(kit.store, [later])) == ["c"]
    assert len(await enqueued(kit)) == 1
    assert (await cron_jobs(kit))[0].last_fire_at == later.at


async def a_fire_that_is_not_committed_is_still_due(kit: DatabaseKit) -> None:
    """Job and fire are one transaction."""
    await put(kit, template())
    async with kit.session() as session:
        await session.sql("BEGIN")
        found = await due(kit)
        assert await session.run(fire(kit.store, found)) == ["c"]
        await session.sql("ROLLBACK")
    assert await enqueued(kit) == []
    assert await due(kit) == found
    assert await kit.run(fire(kit.store, found)) == ["c"]


async def of_many_leaders_that_fire_at_once_one_does(kit: DatabaseKit) -> None:
    """At every isolation level; in whatever order they name the cron jobs."""
    names = [f"c{n}" for n in range(8)]
    await put(kit, *map(template, names))
    sessions = [kit.session() for _ in range(6)]
    entered: list[Session] = []
    fired: list[str] = []

    async def go(number: int, session: Session, found: list[Fire]) -> None:
        try:
            fired.extend(await session.run(fire(kit.store, found[::-1] if number % 2 else found)))
        except DatabaseError as error:
            assert error.failure is Failure.TRANSIENT, error

    try:
        for number, session in enumerate(sessions):
            entered.append(await session.__aenter__())
            level = ("read committed", "repeatable read", "serializable")[number % 3]
            await entered[-1].sql(f"SET default_transaction_isolation = '{level}'")
        for round in range(1, 6):  # noqa: A001
            found = await due(kit, round * MINUTE)
            fired.clear()
            await together(*(partial(go, n, session, found) for n, session in enumerate(entered)))
            assert sorted(fired) == names
            assert len(await enqueued(kit)) == 8 * round
    finally:
        for session in sessions[: len(entered)]:
            await session.__aexit__(None, None, None)
