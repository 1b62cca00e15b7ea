"""Cron jobs through the clients of every package: what their calls return and refuse, and a worker that fires them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import awa_asyncio
import awa_proto as awa
from tests.clients.test_clients import Add, run
from tests.flavours import Scenario

__all__ = ["run"]


def test_a_cron_job_is_put_listed_edited_paused_resumed_triggered_and_deleted(run: Callable[[Scenario], None]) -> None:
    async def scenario(client: Any) -> None:
        made = await client.put_cron_job("c", "0 3 * * *", Add(2), timezone="Europe/Berlin", queue="q", tags=["t"])
        assert (made.name, made.cron, made.timezone, made.kind, made.queue) == (
            "c",
            "0 3 * * *",
            "Europe/Berlin",
            "add",
            "q",
        )
        assert await client.list_cron_jobs() == [made]
        edited = await client.edit_cron_job("c", cron="*/5 * * * *", timezone="UTC", priority=1, args={"n": 7})
        assert (edited.cron, edited.timezone, edited.priority, edited.args) == ("*/5 * * * *", "UTC", 1, {"n": 7})
        now = datetime.now(UTC)
        assert timedelta() < edited.next_fire(now) - now <= timedelta(minutes=5)
        paused = await client.pause_cron_job("c", by="me")
        assert (paused.is_paused, paused.paused_by) == (True, "me")
        job = await client.trigger_cron_job("c")
        assert (job.kind, job.queue, job.priority, job.args, job.tags) == ("add", "q", 1, {"n": 7}, ["t"])
        assert job.metadata == {"cron_name": "c", "triggered_manually": True}
        assert job.state is awa.JobState.AVAILABLE
        after = await client.resume_cron_job("c")
        assert (after.is_paused, after.last_fire_at, after.after) == (False, None, edited.after)
        assert await client.get_cron_job("c") == after
        assert await client.delete_cron_job("c") is True
        assert await client.delete_cron_job("c") is False
        assert (await client.get_job(job.id)).id == job.id

    run(scenario)


def test_a_cron_job_that_is_not_there_is_told_by_name(run: Callable[[Scenario], None]) -> None:
    async def scenario(client: Any) -> None:
        for call in ("get_cron_job", "pause_cron_job", "resume_cron_job", "trigger_cron_job", "edit_cron_job"):
            with pytest.raises(awa.CronJobNotFound, match="'nope'"):
                await getattr(client, call)("nope")

    run(scenario)


def test_what_is_wrong_with_a_cron_job_is_said_before_anything_is_written(run: Callable[[Scenario], None]) -> None:
    async def scenario(client: Any) -> None:
        await client.put_cron_job("c", "0 3 * * *", Add(1))
        before = await client.list_cron_jobs()
        refusals: dict[str, dict[str, Any]] = {
            "cron": {"cron": "x"}, "timezone": {"timezone": "x"}, "missed_fire_policy": {"missed_fire_policy": "x"},
            "queue": {"queue": ""}, "priority": {"priority": 9}, "args": {"args": 5},
        }  # fmt: skip
        for field, wrong in refusals.items():
            with pytest.raises(awa.ValidationError) as refused:
                await client.edit_cron_job("c", **wrong)
            assert refused.value.field == field
        with pytest.raises(awa.ValidationError):
            await client.put_cron_job("", "0 3 * * *", Add(1))
        assert await client.list_cron_jobs() == before

    run(scenario)


def test_a_triggered_job_that_is_there_already_is_refused(run: Callable[[Scenario], None]) -> None:
    async def scenario(client: Any) -> None:
        await client.put_cron_job("c", "0 3 * * *", Add(1), unique_opts={})
        job = await client.trigger_cron_job("c")
        with pytest.raises(awa.UniqueConflict) as conflict:
            await client.trigger_cron_job("c")
        assert conflict.value.job_id == job.id

    run(scenario)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_worker_fires_what_the_code_declares_and_a_refused_one_holds_up_no_other(database: str) -> None:
    """A real second is waited for: what fires is the clock."""
    async with awa_asyncio.Client(database) as client:
        await client.migrate()
        async with client.transaction() as tx:
            await tx.execute("ALTER TABLE awa.ready ADD CHECK (kind <> 'bad')")
        client.periodic("bad", "* * * * * *", {"kind": "bad"})
        client.periodic("good", "* * * * * *", Add(1), missed_fire_policy="catch_up")
        times: list[datetime] = []
        enough = asyncio.Event()

        @client.task(Add)
        async def add(job: awa_asyncio.Job[Add]) -> None:
            assert job.metadata["cron_name"] == "good"
            times.append(job.run_at)
            if len(times) == 3:
                enough.set()

        async with client.worker({"default": 5}):
            await enough.wait()
        assert times == sorted(set(times))
        assert {(later - earlier).total_seconds() for earlier, later in itertools.pairwise(times)} == {1.0}
        assert [job.last_fire_at is None for job in await client.list_cron_jobs()] == [True, False]
