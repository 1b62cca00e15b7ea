"""Hooks of clients on a real database: what a call tells them, when, and what it does not tell."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import anyio.to_thread
import asyncpg
import pytest

import awa_asyncio
import awa_proto as awa
import awa_sync
from awa_proto import events
from awa_proto.events import AnyEvent
from awa_proto.plan import Op, Plan, Statement
from tests.clients.test_clients import _own
from tests.flavours import FLAVOURS, Awaited, Scenario


@dataclass
class SendEmail:
    to: str


@pytest.fixture(params=FLAVOURS)
def run(request: pytest.FixtureRequest, database: str) -> Callable[[Scenario], None]:
    """Runs a scenario with a client on a migrated database."""
    return lambda scenario: FLAVOURS[request.param](database, scenario)


class Ear:
    """A plain hook that remembers what it heard."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self.events: list[AnyEvent] = []

    def __call__(self, event: AnyEvent) -> None:
        with self._change:
            self.events.append(event)
            self._change.notify_all()

    async def hears(self, count: int, client: object) -> list[AnyEvent]:
        """Wait until so many events were heard; they are returned."""

        def wait() -> bool:
            with self._change:
                return self._change.wait_for(lambda: len(self.events) >= count, 1.0)

        if isinstance(client, Awaited):
            while not wait():
                pass
        else:
            while not await anyio.to_thread.run_sync(wait):
                pass
        return self.events


def test_cancel_tells_the_hooks_of_its_client_once_it_is_committed(run: Callable[[Scenario], None]) -> None:
    async def scenario(client: Any) -> None:
        ear = Ear()
        client.on_event(SendEmail)(ear)
        available = await client.insert(SendEmail("available"), tags=["t"])
        deferred = await client.insert(SendEmail("deferred"), run_at=available.created_at.replace(year=9000))
        other = await client.insert({"n": 1}, kind="other")
        for job in (available, deferred, other):
            assert await client.cancel(job.id) is True
        assert await client.cancel(available.id) is False
        with pytest.raises(awa.JobNotFound):
            await client.cancel(2**62)
        first, second = sorted(await ear.hears(2, client), key=lambda event: event.job.id)
        assert [first.args, second.args] == [SendEmail("available"), SendEmail("deferred")]
        for event, job in ((first, available), (second, deferred)):
            assert isinstance(event, events.Cancelled)
            assert event.reason == ""
            assert event.job == await client.get_job(job.id)
            assert event.job.state is awa.JobState.CANCELLED

    run(scenario)


def test_cancel_by_unique_key_tells_them_too(run: Callable[[Scenario], None]) -> None:
    async def scenario(client: Any) -> None:
        ear = Ear()
        client.on_event("send_email")(ear)
        job = await client.insert(SendEmail("a"), unique_opts={})
        assert await client.cancel_by_unique_key(args=SendEmail("b")) is None
        assert await client.cancel_by_unique_key(args=SendEmail("a")) == job.id
        (event,) = await ear.hears(1, client)
        assert (type(event), event.job.id, event.args) == (events.Cancelled, job.id, {"to": "a"})

    run(scenario)


def test_a_cancellation_in_a_transaction_is_told_after_its_commit_and_never_after_a_rollback(
    run: Callable[[Scenario], None],
) -> None:
    async def scenario(client: Any) -> None:
        ear = Ear()
        client.on_event(SendEmail)(ear)
        kept, gone = await client.insert_many([SendEmail("kept"), SendEmail("gone")])
        last = await client.insert(
            SendEmail("last"), queue="another"
        )  # lanes wait for the transaction of a cancellation
        with pytest.raises(KeyError):  # noqa: PT012  the block is the transaction
            async with client.transaction() as tx:
                assert await tx.cancel(kept.id)
                raise KeyError
        async with client.transaction() as tx:
            assert await tx.cancel(gone.id)
            assert await client.cancel(last.id)
            await ear.hears(1, client)
            assert [event.args.to for event in ear.events] == ["last"]
        await ear.hears(2, client)
        assert [event.args.to for event in ear.events] == ["last", "gone"]
        assert ear.events[1].job == await client.get_job(gone.id)
        assert (await client.get_job(kept.id)).state is awa.JobState.AVAILABLE

    run(scenario)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_cancellation_on_a_connection_of_the_caller_tells_nothing(flavour: str, database: str) -> None:
    library = {"asyncio-asyncpg": "asyncpg", "asyncio-psycopg": "psycopg", "trio-psycopg": "trio"}.get(flavour, "sync")

    async def scenario(client: Any) -> None:
        ear = Ear()
        client.on_event(SendEmail)(ear)
        first, last = await client.insert_many([SendEmail("first"), SendEmail("last")])
        async with _own(library, database) as connection:
            assert await client.cancel(first.id, using=connection)
        assert await client.cancel(last.id)
        await ear.hears(1, client)
        assert [event.args.to for event in ear.events] == ["last"]

    FLAVOURS[flavour](database, scenario)


def test_a_worker_tells_the_hooks_of_its_client_with_the_rows_that_reads_show(run: Callable[[Scenario], None]) -> None:
    async def scenario(client: Any) -> None:
        ear = Ear()
        client.on_event(SendEmail)(ear)

        def work(job: Any) -> awa.Result:
            job.set_output({"done": 1.0})
            if job.args.to == "bad":
                raise ValueError("no such address")
            return awa.Cancel("not wanted") if job.args.to == "never" else None

        client.task(SendEmail)(work)
        for to in ("good", "bad", "never"):
            await client.insert(SendEmail(to), metadata={"m": 1}, tags=["t"], priority=3)
        async with client.worker({"default": 3}) as worker:
            await worker.drained()
        await ear.hears(6, client)
        outcomes = {event.args.to: event for event in ear.events if not isinstance(event, events.Started)}
        good, bad, never = outcomes["good"], outcomes["bad"], outcomes["never"]
        assert isinstance(good, events.Completed)
        assert good.job.output == {"done": 1.0}
        assert isinstance(bad, events.Retried)
        assert (bad.error, bad.attempt) == ("ValueError: no such address", 1)
        assert bad.job.errors[0]["output"] == {"done": 1.0}
        assert isinstance(never, events.Cancelled)
        assert never.reason == "not wanted"
        apart: Any = dict.fromkeys(("attempted_at", "finalized_at", "extra_json", "output_json"))
        for job in (good.job, bad.job, never.job):
            row = await client.get_job(job.id)
            assert replace(job, **apart) == replace(row, **apart)
            assert (job.metadata, job.tags, job.errors, job.progress) == ({"m": 1}, ["t"], row.errors, row.progress)
            assert job.attempted_at is not None
            assert job.finalized_at is not None
            assert (
                abs((job.attempted_at - row.attempted_at).total_seconds()) < 60
            )  # one is of the statement's transaction
            assert abs((job.finalized_at - row.finalized_at).total_seconds()) < 60
        started = [event.job for event in ear.events if isinstance(event, events.Started)]
        assert [(job.state, job.attempt) for job in started] == [(awa.JobState.RUNNING, 1)] * 3

    run(scenario)


def test_cancelling_a_running_job_is_told_once_and_its_handler_ends_without_an_event(
    run: Callable[[Scenario], None],
) -> None:
    async def scenario(client: Any) -> None:
        ear, began, end = Ear(), threading.Event(), threading.Event()
        client.on_event("long")(ear)
        client.on_event("last")(ear)

        def long(job: Any) -> None:
            began.set()
            end.wait()

        client.task(kind="long")(long)
        client.task(kind="last")(lambda _: None)
        job = await client.insert({}, kind="long")
        async with client.worker({"default": 3}) as worker:
            await ear.hears(1, client)
            assert await client.cancel(job.id) is True
            await ear.hears(2, client)
            end.set()
            await client.insert({}, kind="last")
            await worker.drained()
        await ear.hears(4, client)
        assert [type(event) for event in ear.events if event.job.id == job.id] == [events.Started, events.Cancelled]

    run(scenario)


def test_leaving_the_client_does_not_wait_for_hooks(run: Callable[[Scenario], None]) -> None:
    begun, end, over = threading.Event(), threading.Event(), threading.Event()

    async def scenario(client: Any) -> None:
        def slow(_: AnyEvent) -> None:
            begun.set()
            end.wait()
            over.set()

        client.on_event(SendEmail)(slow)
        job = await client.insert(SendEmail("a"))
        await client.cancel(job.id)
        begun.wait()

    run(scenario)
    assert not over.is_set()
    end.set()
    over.wait()


def test_a_plain_handler_of_an_async_package_tells_the_hooks_of_its_client(database: str) -> None:
    async def scenario(client: Any) -> None:
        ear = Ear()
        client.on_event(SendEmail)(ear)
        job = await client.insert(SendEmail("a"), queue="nobody serves this")

        def cancel(job_: Any) -> None:
            assert job_.client.cancel(job.id)

        client.task(kind="cancel")(cancel)
        await client.insert({}, kind="cancel")
        async with client.worker({"default": 1}) as worker:
            await worker.drained()
        (event,) = await ear.hears(1, client)
        assert isinstance(event, events.Cancelled)

    FLAVOURS["asyncio-asyncpg"](database, scenario)


def test_async_hooks_run_on_the_event_loop_of_whoever_told_them(database: str) -> None:
    client = awa_asyncio.Client(database)
    loops: list[asyncio.AbstractEventLoop] = []

    async def cancel_one() -> None:
        heard = asyncio.Event()

        @client.on_event(SendEmail)
        async def hook(event: awa.JobEvent[SendEmail]) -> None:
            loops.append(asyncio.get_running_loop())
            heard.set()

        async with client:
            await client.migrate()
            job = await client.insert(SendEmail("a"))
            await client.cancel(job.id)
            await heard.wait()
        assert loops[-1] is asyncio.get_running_loop()

    asyncio.run(cancel_one())
    asyncio.run(cancel_one())


def test_hooks_of_tasks_that_a_client_takes_count_also_those_that_come_later(database: str) -> None:
    tasks = awa_sync.Tasks()
    first, second = Ear(), Ear()
    tasks.on_event(SendEmail)(first)

    async def scenario(client: Any) -> None:
        mine = awa_sync.Client(database, tasks=[tasks])
        tasks.on_event("send_email")(second)
        with mine:
            job = mine.insert(SendEmail("a"))
            mine.cancel(job.id)
        (typed,) = await first.hears(1, client)
        (untyped,) = await second.hears(1, client)
        assert (typed.args, untyped.args) == (SendEmail("a"), {"to": "a"})

    FLAVOURS["sync-psycopg"](database, scenario)


async def _hook(event: AnyEvent) -> None: ...


def test_a_coroutine_function_is_no_hook_of_blocking_code() -> None:
    hook: Any = _hook
    with pytest.raises(awa.ValidationError, match="coroutine function"):
        awa_sync.Client().on_event(SendEmail)(hook)
    tasks = awa_asyncio.Tasks()
    tasks.on_event(SendEmail)(_hook)
    given: Any = [tasks]
    with pytest.raises(awa.ValidationError, match="coroutine function"):
        awa_sync.Client(tasks=given)


def test_a_failed_commit_tells_nothing(database: str) -> None:
    """The session is ended before the COMMIT, which the server answers with an error."""

    async def scenario(client: Any) -> None:
        ear = Ear()
        client.on_event(SendEmail)(ear)
        lost, last = await client.insert_many([SendEmail("lost"), SendEmail("last")])
        with pytest.raises(awa.DatabaseError):  # noqa: PT012  the block is the transaction
            async with client.transaction() as tx:
                await tx.cancel(lost.id)
                ((pid,),) = await tx.fetch("SELECT pg_backend_pid()")
                own = await asyncpg.connect(database)
                await own.execute("SELECT pg_terminate_backend($1::int, 10000)", pid)
                await own.close()
        await client.cancel(last.id)
        await ear.hears(1, client)
        assert [event.args.to for event in ear.events] == ["last"]

    FLAVOURS["asyncio-asyncpg"](database, scenario)


def test_a_connection_that_breaks_after_the_cancellation_costs_its_event_and_nothing_else(
    run: Callable[[Scenario], None], caplog: pytest.LogCaptureFixture
) -> None:
    def die() -> Plan[None]:
        yield Statement("kill", "SELECT pg_terminate_backend(pg_backend_pid())")

    async def scenario(client: Any) -> None:
        ear = Ear()
        client.on_event(SendEmail)(ear)
        first, last = await client.insert_many([SendEmail("first"), SendEmail("last")])
        application = (client.blocking if isinstance(client, Awaited) else client)._application
        with mock.patch.object(application.store, "get_job", return_value=Op("get_job", die)):
            assert await client.cancel(first.id) is True
        assert (await client.get_job(first.id)).state is awa.JobState.CANCELLED
        assert await client.cancel(last.id) is True
        await ear.hears(1, client)
        assert [event.args.to for event in ear.events] == ["last"]

    run(scenario)
    assert sum("hooks are not told that job" in record.getMessage() for record in caplog.records) == 1
