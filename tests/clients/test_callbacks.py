"""Callbacks on a real database, from the handler that registers one to the client that uses it, in every package."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

import awa_proto as awa
from awa_proto import events
from awa_proto.job import JobState
from awa_proto.worker.tally import Tally
from tests.clients.test_clients import _own
from tests.clients.test_hooks import Ear
from tests.flavours import FLAVOURS, App, Awaited

WAITS, COMPLETED = JobState.WAITING_EXTERNAL, JobState.COMPLETED


@dataclass
class Pay:
    amount: int


@dataclass
class Receipt:
    number: int


@dataclass
class Paid:
    amount: int


@dataclass
class Other:
    name: str = ""


@pytest.fixture(params=["queue", "canonical"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=FLAVOURS)
def run(request: pytest.FixtureRequest, database: str, engine: str) -> Callable[..., None]:
    """Runs a scenario with an application on a migrated database."""

    def run(scenario: Callable[[App], Any], **options: Any) -> None:
        async def within(client: Any) -> None:
            await scenario(App(client, is_async=not isinstance(client, Awaited)))

        FLAVOURS[request.param](database, within, engine=engine, **options)

    return run


def parks(app: App, *, ids: list[str], **options: Any) -> None:
    """Register a handler that parks its job, and completes it when it was resumed."""

    def pay(job: Any) -> Generator[Any, Any, Any]:
        if job.was_resumed:
            return None
        token = yield job.register_callback(**options)
        ids.append(token.id)
        return awa.WaitForCallback(token)

    app.task(Pay, output=Receipt)(pay)


def test_a_parked_job_is_completed_from_outside_with_its_follow_ups_and_events(
    run: Callable[..., None], engine: str
) -> None:
    async def scenario(app: App) -> None:
        ids: list[str] = []
        parks(app, ids=ids)
        ear = Ear()
        app.on_event(Pay)(ear)
        app.on_completed_enqueue(Pay)(lambda args, job: Paid(args.amount + job.attempt))
        app.on_waiting_for_callback_enqueue(Pay)(
            lambda args, job: Other(f"waits with {args.amount} for {job.callback_id} until {job.callback_timeout_at}")
        )
        (job,) = await app.run(Pay(5))
        assert (job.state, job.callback_id) == (WAITS, ids[0])
        assert [each.args["name"] for each in await app.client.list_jobs(kind="other")] == [
            f"waits with 5 for {ids[0]} until {job.callback_timeout_at}"
        ]
        done = await app.client.complete_external(ids[0], {"ok": True}, output=Receipt(7), output_for=Pay)
        assert (done.id, done.state) == (job.id, COMPLETED)
        row = await app.client.get_job(job.id)
        assert (row.state, row.output_as(Receipt)) == (
            COMPLETED,
            Receipt(7) if engine == "queue" else None,
        )
        assert [each.args for each in await app.client.list_jobs(kind="paid")] == [{"amount": 6}]
        with pytest.raises(awa.CallbackNotFound):
            await app.client.complete_external(ids[0])
        first, second, third = await ear.hears(3, app.client)
        assert isinstance(first, events.Started)
        assert isinstance(second, events.WaitingForCallback)
        assert (second.job.state, second.job.callback_id) == (WAITS, ids[0])
        assert second.job.callback_timeout_at == job.callback_timeout_at
        assert isinstance(third, events.Completed)
        assert (third.args, third.duration.total_seconds(), third.job.state) == (Pay(5), 0.0, COMPLETED)

    run(scenario)


def test_a_follow_up_that_raises_undoes_everything_and_the_sender_can_try_again(run: Callable[..., None]) -> None:
    async def scenario(app: App) -> None:
        ids: list[str] = []
        parks(app, ids=ids)
        broken = [True]

        def follow(args: Pay, _: Any) -> Paid:
            if broken:
                raise RuntimeError("not today")
            return Paid(args.amount)

        app.on_completed_enqueue(Pay)(follow)
        (job,) = await app.run(Pay(1))
        with pytest.raises(awa.FollowUpError, match="not today"):
            await app.client.complete_external(ids[0])
        assert (await app.client.get_job(job.id)).state is WAITS
        with pytest.raises(awa.ValidationError, match="output_for"):
            await app.client.complete_external(ids[0], output_for=Other)
        with pytest.raises(awa.OutputError):
            await app.client.complete_external(ids[0], output={"a": {1, 2}})
        broken.clear()
        await app.client.complete_external(ids[0])
        assert (await app.client.get_job(job.id)).state is COMPLETED
        assert len(await app.client.list_jobs(kind="paid")) == 1

    run(scenario)


def test_failing_and_retrying_from_outside_tell_hooks_and_follow_ups(run: Callable[..., None]) -> None:
    async def scenario(app: App) -> None:
        ids: list[str] = []
        parks(app, ids=ids)
        ear = Ear()
        app.on_event(Pay)(ear)
        app.on_retried_enqueue(Pay)(lambda _, __, error, attempt, ___: Other(f"retried {error!r} {attempt}"))
        app.on_exhausted_enqueue(Pay)(lambda _, __, error, attempt: Other(f"exhausted {error!r} {attempt}"))
        (job,) = await app.run(Pay(1))
        again = await app.client.retry_external(ids[0])
        assert (again.state, again.attempt) == (JobState.AVAILABLE, 0)
        await app.work()
        failed = await app.client.fail_external(ids[1], "declined")
        assert (failed.id, failed.state, failed.dlq_reason) == (job.id, JobState.FAILED, "terminal_error")
        row = await app.client.get_job(job.id)
        assert (row.state, row.errors[-1]["error"], row.dlq_reason) == (JobState.FAILED, "declined", "terminal_error")
        others = [each.args["name"] for each in await app.client.list_jobs(kind="other")]
        assert others == ["exhausted 'declined' 1", "retried '' 1"]
        heard = await ear.hears(6, app.client)
        assert [type(event).__name__ for event in heard] == [
            "Started", "WaitingForCallback", "Retried", "Started", "WaitingForCallback", "Exhausted"
        ]  # fmt: skip
        retried = heard[2]
        assert isinstance(retried, events.Retried)
        assert (retried.error, retried.attempt) == ("", 1)

    run(scenario, dead_letters=True)


@pytest.mark.parametrize(
    ("client", "queue", "letter"),
    [(False, True, True), (True, False, False), ({"default": True}, None, True), ({"other": True}, None, False)],
)
def test_a_job_that_is_failed_from_outside_is_a_dead_letter_as_one_that_its_handler_fails(
    run: Callable[..., None], client: Any, queue: bool | None, letter: bool
) -> None:
    async def scenario(app: App) -> None:
        ids: list[str] = []
        parks(app, ids=ids, on_fail="payload.no")

        def other(job: Any) -> None:
            raise awa.TerminalError("no")

        app.task(Other)(other)
        rows = [await app.client.insert(job) for job in (Pay(1), Pay(2), Other())]
        async with app.client.worker({"default": awa.QueueConfig(3, dead_letters=queue)}) as worker:
            await worker.drained()
        await app.client.fail_external(ids[0], "no")
        await app.client.resolve_callback(ids[1], {"no": True})
        found = [(await app.client.get_job(row.id)).dlq_reason for row in rows]
        assert found == ["terminal_error" if letter else None] * 3

    run(scenario, dead_letters=client)


def tally(app: App) -> Tally:
    """What the client has counted."""
    client = app.client.blocking if isinstance(app.client, Awaited) else app.client
    found: Tally = client._application.calls.tally
    return found


def test_what_is_done_from_outside_is_counted_and_warned_about_as_of_a_worker(
    run: Callable[..., None], engine: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(app: App) -> None:
        ids: list[str] = []
        parks(app, ids=ids)
        await app.run(Pay(1), Pay(2), Pay(3), Pay(4))
        await app.client.complete_external(ids[0], output={"number": 1})
        await app.client.complete_external(ids[1], output={"number": 10})
        await app.client.complete_external(ids[2])
        await app.client.fail_external(ids[3], "no")
        with pytest.raises(awa.CallbackNotFound):
            await app.client.fail_external(ids[3], "no")
        counts = (await app.client.health()).counts
        kept = engine == "queue"
        assert (counts["awa.job.completed"], counts["awa.job.failed"]) == (3, 1)
        assert (counts.get("awa.job.output_recorded"), counts.get("awa.job.output_dropped")) == (
            (2, None) if kept else (None, 2)
        )
        labels = {"awa.job.kind": "pay", "awa.job.queue": "default"}
        assert tally(app).total("awa.job.failed", labels | {"awa.job.terminal": "true"}) == 1
        assert tally(app).total("awa.job.output_dropped", labels | {"awa.output.reason": "canonical"}) == (
            0 if kept else 2
        )
        assert sum(tally(app).sums.values()) == (len('{"number":1}{"number":10}') if kept else 0)

    run(scenario)
    said = [
        record for record in caplog.records if "the output of an external completion is not kept" in record.getMessage()
    ]
    assert len(said) == (engine != "queue")


def test_a_unique_follow_up_of_what_is_done_from_outside_is_made_once_and_then_skipped_and_counted(
    run: Callable[..., None],
) -> None:
    """Of jobs that are parked and of jobs whose handlers wait."""

    async def scenario(app: App) -> None:
        ids: dict[int, str] = {}

        def pay(job: Any) -> Generator[Any, Any, Any]:
            if job.args.amount in ids:
                return None  # retried
            token = yield job.register_callback()
            ids[job.args.amount] = token.id
            if job.args.amount % 2:
                yield job.wait_for_callback(token)
            return awa.WaitForCallback(token)

        app.task(Pay)(pay)
        once = awa.EnqueueRequest(Paid(7)).queue("other").unique()
        for register in (app.on_completed_enqueue, app.on_exhausted_enqueue, app.on_retried_enqueue):
            register(Pay)(lambda _, __, *___: once)
        async with app.client.worker({"default": 10}) as worker:
            jobs = [await app.client.insert(Pay(amount)) for amount in range(6)]
            for job in jobs:
                await app.test.until(job, WAITS)
            for amount in (0, 1):
                assert (await app.client.complete_external(ids[amount])).state is COMPLETED
                assert len(await app.client.list_jobs(kind="paid")) == 1
            for amount in (2, 3):
                assert (await app.client.fail_external(ids[amount], "no")).state is JobState.FAILED
            for amount in (4, 5):
                assert (await app.client.retry_external(ids[amount])).state is JobState.AVAILABLE
            await worker.drained()
        states = [(await app.client.get_job(job.id)).state for job in jobs]
        assert states == [COMPLETED, COMPLETED, JobState.FAILED, JobState.FAILED, COMPLETED, COMPLETED]
        assert len(await app.client.list_jobs(kind="paid")) == 1
        committed = "awa.job.staged_follow_ups_committed"
        assert tally(app).total(committed, {"awa.follow_up.result": "inserted"}) == 1
        assert tally(app).total(committed, {"awa.follow_up.result": "duplicate"}) == 5
        counted = [tally(app).total(f"awa.job.{how}") for how in ("completed", "failed", "retried")]
        assert counted == [2, 2, 2]

    run(scenario)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_call_in_a_transaction_of_the_caller_is_part_of_it_and_tells_and_counts_nothing(
    flavour: str, database: str, engine: str
) -> None:
    library = {"asyncio-asyncpg": "asyncpg", "asyncio-psycopg": "psycopg", "trio-psycopg": "trio"}.get(flavour, "sync")

    async def scenario(client: Any) -> None:
        app = App(client, is_async=not isinstance(client, Awaited))
        ids: list[str] = []
        parks(app, ids=ids)
        ear = Ear()
        app.on_event(Pay)(ear)
        app.on_completed_enqueue(Pay)(lambda args, _: awa.EnqueueRequest(Paid(args.amount)).queue("other"))
        (job,) = await app.run(Pay(1))
        for call, given, state in (
            (client.complete_external, (), COMPLETED),
            (client.fail_external, ("no",), JobState.FAILED),
            (client.retry_external, (), JobState.AVAILABLE),
            (client.resume_external, ("go",), JobState.AVAILABLE),
            (client.heartbeat_callback, (7200,), WAITS),
        ):
            with pytest.raises(KeyError):  # noqa: PT012  the block is the transaction
                async with _own(library, database) as connection:
                    assert (await call(ids[0], *given, using=connection)).state is state
                    assert (await client.get_job(job.id)).state is WAITS
                    raise KeyError
            assert (await client.get_job(job.id)).state is WAITS
        assert await client.list_jobs(kind="paid") == []
        async with _own(library, database) as connection:
            await client.complete_external(ids[0], using=connection)
        assert (await client.get_job(job.id)).state is COMPLETED
        assert len(await client.list_jobs(kind="paid")) == 1
        assert tally(app).total("awa.job.completed") == 0
        await app.run(Pay(2))
        await client.complete_external(ids[1])
        heard = [event for event in await ear.hears(5, client) if isinstance(event, events.Completed)]
        assert [event.args for event in heard] == [Pay(2)]
        assert tally(app).total("awa.job.completed") == 1

    FLAVOURS[flavour](database, scenario, engine=engine)


def test_what_a_database_cannot_hold_of_an_error_from_outside_is_replaced(run: Callable[..., None]) -> None:
    async def scenario(app: App) -> None:
        ids: list[str] = []
        parks(app, ids=ids)
        (job,) = await app.run(Pay(1))
        with pytest.raises(awa.ValidationError, match="error: text is needed, not bytes"):
            await app.client.fail_external(ids[0], b"no")
        await app.client.fail_external(ids[0], "they said: \0\ud800" + "é" * 5000)
        (entry,) = (await app.client.get_job(job.id)).errors
        assert entry["error"].startswith("they said: \N{REPLACEMENT CHARACTER}?é")
        assert len(entry["error"].encode()) <= 8192

    run(scenario)


def test_a_parked_job_that_is_resumed_runs_again_and_knows_what_came(run: Callable[..., None]) -> None:
    async def scenario(app: App) -> None:
        ids: list[str] = []
        found: list[tuple[int, Any]] = []

        def pay(job: Any) -> Generator[Any, Any, Any]:
            if job.was_resumed:
                found.append((job.attempt, job.callback_result))
                return None
            token = yield job.register_callback(timeout=60)
            ids.append(token.id)
            return awa.WaitForCallback(token.id)

        app.task(Pay)(pay)
        (job,) = await app.run(Pay(1), max_attempts=1)
        assert (await app.client.resume_external(ids[0], {"by": ["card"]})).state is JobState.AVAILABLE
        await app.work()
        assert found == [(1, {"by": ["card"]})]
        assert (await app.client.get_job(job.id)).state is COMPLETED

    run(scenario)


def test_a_handler_waits_several_times_and_goes_on_with_each_answer(run: Callable[..., None]) -> None:
    async def scenario(app: App) -> None:
        ids: list[str] = []
        answers: list[Any] = []

        def pay(job: Any) -> Generator[Any, Any, Any]:
            for _ in range(3):
                token = yield job.register_callback()
                ids.append(token.id)
                answers.append((yield job.wait_for_callback(token)))
            return None

        app.task(Pay)(pay)
        ear = Ear()
        app.on_event(Pay)(ear)
        job = await app.client.insert(Pay(1))
        async with app.client.worker({"default": 1}) as worker:
            for number in range(3):
                while len(ids) <= number:
                    await app.client.get_job(job.id)
                if number:  # the first one may come before it waits
                    await app.test.until(job, WAITS)
                await app.client.resume_external(ids[number], {"number": number})
                with pytest.raises(awa.CallbackNotFound):
                    await app.client.resume_external(ids[number])
            await worker.drained()
        assert answers == [{"number": number} for number in range(3)]
        assert (await app.client.get_job(job.id)).state is COMPLETED
        heard = await ear.hears(2, app.client)
        assert [type(event).__name__ for event in heard] == ["Started", "Completed"]

    run(scenario)


def test_a_handler_that_waits_is_ended_with_its_job(run: Callable[..., None]) -> None:
    """A coroutine is cancelled, so that no `except Exception` of its own takes that for a failure; a thread is told."""

    async def scenario(app: App) -> None:
        ids: list[str] = []
        raised: list[type[Exception]] = []

        def pay(job: Any) -> Generator[Any, Any, Any]:
            token = yield job.register_callback()
            ids.append(token.id)
            try:
                yield job.wait_for_callback(token)
            except Exception as error:
                raised.append(type(error))
                raise

        app.task(Pay)(pay)
        async with app.client.worker({"default": 1}) as worker:
            cancelled = await app.client.insert(Pay(1))
            await app.test.until(cancelled, WAITS)
            assert await app.client.cancel(cancelled.id) is True
            completed = await app.client.insert(Pay(2))
            await app.test.until(completed, WAITS)
            await app.client.complete_external(ids[1])
            failed = await app.client.insert(Pay(3))
            await app.test.until(failed, WAITS)
            await app.client.fail_external(ids[2], "no")
            await worker.drained()
        found = [(await app.client.get_job(job.id)).state for job in (cancelled, completed, failed)]
        assert found == [JobState.CANCELLED, COMPLETED, JobState.FAILED]
        assert raised == ([] if app.is_async else [awa.WaitCancelled] * 3)

    run(scenario)


def test_a_token_that_was_replaced_is_waited_for_in_vain(run: Callable[..., None]) -> None:
    async def scenario(app: App) -> None:
        def pay(job: Any) -> Generator[Any, Any, Any]:
            first = yield job.register_callback()
            yield job.register_callback()
            yield job.wait_for_callback(first)

        def other(job: Any) -> Generator[Any, Any, Any]:
            first = yield job.register_callback()
            yield job.register_callback()
            return awa.WaitForCallback(first)

        app.task(Pay)(pay)
        app.task(Other)(other)
        waited, parked = await app.run(Pay(1), Other())
        assert (waited.state, "CallbackNotFound" in waited.errors[-1]["error"]) == (JobState.RETRYABLE, True)
        assert (parked.state, "not registered" in parked.errors[-1]["error"]) == (JobState.FAILED, True)

    run(scenario)


def test_a_job_does_not_wait_for_a_token_that_nobody_has(run: Callable[..., None]) -> None:
    """Its handler registered once more, and gave up before it was answered."""

    async def scenario(app: App) -> None:
        ids: list[str] = []

        def pay(job: Any) -> Generator[Any, Any, Any]:
            token = yield job.register_callback()
            yield job.client.perform(job.client.operations.register_callback(job._attempt, 3600.0, None, token.id))
            if job.args.amount == 2:
                token = yield job.register_callback()
            ids.append(token.id)
            return awa.WaitForCallback(token)

        app.task(Pay)(pay)
        app.on_waiting_for_callback_enqueue(Pay)(lambda args, _: Paid(args.amount))
        ear = Ear()
        app.on_event(Pay)(ear)
        (first,) = await app.run(Pay(1))
        assert (first.state, first.dlq_reason) == (JobState.FAILED, "wait_for_callback_contract_violation")
        assert (first.errors[-1]["terminal"], "not registered" in first.errors[-1]["error"]) == (True, True)
        with pytest.raises(awa.CallbackNotFound):
            await app.client.complete_external(ids[0])
        (second,) = await app.run(Pay(2))
        assert (second.state, second.callback_id) == (WAITS, ids[1])
        assert (await app.client.complete_external(ids[1])).state is COMPLETED
        assert [each.args for each in await app.client.list_jobs(kind="paid")] == [{"amount": 2}]
        heard = await ear.hears(4, app.client)
        assert [type(event).__name__ for event in heard] == ["Started", "Started", "WaitingForCallback", "Completed"]

    run(scenario, dead_letters=True)


class Slow:
    """A database over whose lane for such things nothing is written of handlers that wait no more, until `word` is set."""

    def __init__(self, database: Any, word: anyio.Event) -> None:
        self._database = database
        self._word = word

    def lane(self, name: str, **options: Any) -> Any:
        lane = self._database.lane(name, **options)

        async def run(op: Any) -> Any:
            if op.name == "leave":
                await self._word.wait()
            return await lane.run(op)

        return SimpleNamespace(run=run, close=lane.close)


@pytest.mark.parametrize("run", [flavour for flavour in FLAVOURS if flavour != "sync-psycopg"], indirect=True)
def test_a_handler_that_gave_up_waiting_registers_anew_or_parks_before_that_is_written(
    run: Callable[..., None],
) -> None:
    async def scenario(app: App) -> None:
        ids: list[str] = []

        async def pay(job: Any) -> Any:
            token = await job.register_callback()
            async with anyio.create_task_group() as group:
                group.start_soon(job.wait_for_callback, token)
                while (await job.client.get_job(job.id)).state is not WAITS:
                    pass
                group.cancel_scope.cancel()
            if job.args.amount == 1:
                token = await job.register_callback()
            ids.append(token.id)
            return awa.WaitForCallback(token)

        app.task(Pay)(pay)
        ear = Ear()
        app.on_event(Pay)(ear)
        for amount in (1, 2):
            job = await app.client.insert(Pay(amount), max_attempts=1)
            worker, word = app.client.worker({"default": 1}), anyio.Event()
            worker._database = Slow(worker._database, word)
            async with worker:
                heard = await ear.hears(3 * amount - 1, app.client)
                assert isinstance(heard[-1], events.WaitingForCallback)
                word.set()
                await app.client.complete_external(ids[-1])
                await ear.hears(3 * amount, app.client)
            assert (await app.client.get_job(job.id)).state is COMPLETED

    run(scenario)


def test_a_callback_is_gone_on_with_once(run: Callable[..., None]) -> None:
    async def scenario(app: App) -> None:
        answers: list[Any] = []

        def pay(job: Any) -> Generator[Any, Any, Any]:
            token = yield job.register_callback()
            yield job.client.resume_external(token, "once")
            answers.append((yield job.wait_for_callback(token)))
            try:
                answers.append((yield job.wait_for_callback(token)))
            except awa.CallbackNotFound:
                answers.append("not found")

        app.task(Pay)(pay)
        await app.run(Pay(1))
        assert answers == ["once", "not found"]

    run(scenario)


class Held:
    """A database whose lane keeps the first answer to whoever asks for callbacks, until `word` is set."""

    def __init__(self, database: Any, has_come: asyncio.Event, word: asyncio.Event) -> None:
        self._database = database
        self._has_come = has_come
        self._word = word

    def lane(self, name: str, **options: Any) -> Any:
        lane = self._database.lane(name, **options)

        async def run(op: Any) -> Any:
            answer = await lane.run(op)
            if op.name == "wait":
                self._has_come.set()
                await self._word.wait()
            return answer

        return SimpleNamespace(run=run, close=lane.close)


@pytest.mark.parametrize("run", ["asyncio-asyncpg"], indirect=True)  # the one that runs its tasks in a known order
def test_what_came_for_one_callback_is_not_given_to_who_has_begun_to_wait_for_another(run: Callable[..., None]) -> None:
    """The answer, that its handler waits no more, and what it waits for instead reach the worker at the same moment."""

    async def scenario(app: App) -> None:
        has_come, word = asyncio.Event(), asyncio.Event()
        answers: list[Any] = []

        async def pay(job: Any) -> None:
            first = await job.register_callback()
            await job.client.resume_external(first, "for the first")
            waits = asyncio.ensure_future(job.wait_for_callback(first))
            await has_come.wait()
            second = await job.register_callback()
            word.set()
            waits.cancel()
            waits_now = asyncio.ensure_future(job.wait_for_callback(second))
            await asyncio.gather(waits, return_exceptions=True)
            await job.client.resume_external(second, "for the second")
            answers.append(await waits_now)

        app.task(Pay)(pay)
        await app.client.insert(Pay(1), max_attempts=1)
        worker = app.client.worker({"default": 1})
        worker._database = Held(worker._database, has_come, word)
        async with worker:
            await worker.drained()
        assert answers == ["for the second"]

    run(scenario)


def test_who_waits_longer_than_it_may_is_rescued_and_not_before(run: Callable[..., None]) -> None:
    """How soon after is shown in virtual time, by the simulator."""

    async def scenario(app: App) -> None:
        ids: list[str] = []
        until: dict[int, datetime] = {}

        def pay(job: Any) -> Generator[Any, Any, Any]:
            token = yield job.register_callback(timeout=0.05)
            ids.append(token.id)
            until[job.id] = (yield job.client.get_job(job.id)).callback_timeout_at
            if isinstance(job.args, Other):
                yield job.wait_for_callback(token)
            return awa.WaitForCallback(token)

        app.task(Pay)(pay)
        app.task(Other)(pay)
        ear = Ear()
        app.on_event(Pay)(ear)
        app.on_rescued_enqueue(Pay)(lambda _, __, reason: Paid(len(reason)))
        last = await app.client.insert(Pay(1), max_attempts=1)
        waited = await app.client.insert(Other(), max_attempts=1)
        async with app.client.worker({"default": 3}):
            for job in (last, waited):
                row = await app.test.until(job, JobState.FAILED)
                assert "callback timed out" in row.errors[-1]["error"]
                assert row.dlq_reason == "callback_timeout"
                assert datetime.fromisoformat(row.errors[-1]["at"]) >= until[row.id]
            heard = await ear.hears(4, app.client)
        assert {type(event).__name__ for event in heard} == {"Started", "WaitingForCallback", "Rescued", "Exhausted"}
        with pytest.raises(awa.CallbackNotFound):
            await app.client.complete_external(ids[0])

    run(scenario, dead_letters=True)


def test_expressions_say_what_a_payload_means(run: Callable[..., None]) -> None:
    async def scenario(app: App) -> None:
        ids: list[str] = []
        said = {
            "filter": "payload.kind == 'payment'",
            "on_complete": "payload.status == 'paid'",
            "on_fail": "payload.status == 'declined'",
            "transform": "payload.number",
        }
        parks(app, ids=ids, **said)
        first, second = await app.run(Pay(1), Pay(2))
        by_job = {(await app.client.get_job(job.id)).callback_id: job for job in (first, second)}
        ignored = await app.client.resolve_callback(ids[0], {"kind": "chat"}, "complete")
        assert (ignored.outcome, ignored.job.state) == ("ignored", WAITS)
        undecided = await app.client.resolve_callback(ids[0], {"kind": "payment", "status": "pending"})
        assert undecided.outcome == "ignored"
        paid = await app.client.resolve_callback(ids[0], {"kind": "payment", "status": "paid", "number": 9})
        assert (paid.outcome, paid.payload, paid.job.state) == ("completed", 9, COMPLETED)
        assert paid.job.id == by_job[ids[0]].id
        declined = await app.client.resolve_callback(ids[1], {"kind": "payment", "status": "declined"})
        assert (declined.outcome, declined.job.state) == ("failed", JobState.FAILED)
        row = await app.client.get_job(declined.job.id)
        assert row.errors[-1]["expression"] == said["on_fail"]
        with pytest.raises(awa.CallbackNotFound):
            await app.client.resolve_callback(ids[1], {}, "complete")

    run(scenario)
