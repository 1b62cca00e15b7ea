"""assert_enqueued, refute_enqueued and until: what they find, and what they say when it is not there."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pydantic
import pytest

import awa_proto as awa
from tests.flavours import App

Run = Callable[..., None]
LATER = datetime(2120, 1, 1, tzinfo=UTC)


@dataclass
class Welcome:
    user: int
    how: str = "mail"


class Invoice(pydantic.BaseModel):
    due: datetime
    lines: list[int]


async def message(call: Any) -> str:
    """What a call that must fail says."""
    with pytest.raises(AssertionError) as raised:
        await call
    return str(raised.value)


def test_jobs_are_found_by_class_kind_args_and_options(run: Run) -> None:
    async def scenario(app: App) -> None:
        test = app.test
        first = await app.client.insert(Welcome(1), queue="mail", priority=1, tags=["t"], metadata={"a": 1})
        second = await app.client.insert(Welcome(2), run_at=LATER, max_attempts=3)
        await app.client.insert(Invoice(due=LATER, lines=[1, 2]))
        found = await test.assert_enqueued(Welcome)
        assert [job.id for job in found] == [first.id, second.id]
        assert found[0] == await app.client.get_job(first.id)
        for call, id in (
            (test.assert_enqueued("welcome", args={"user": 2}), second.id),
            (test.assert_enqueued(Welcome, args=Welcome(2)), second.id),
            (test.assert_enqueued(Welcome(1)), first.id),
            (test.assert_enqueued(Welcome, queue="mail", priority=1, count=1), first.id),
            (test.assert_enqueued(Welcome, state="scheduled"), second.id),
            (test.assert_enqueued(awa.EnqueueRequest(Welcome(1)).queue("mail").tags("t").metadata({"a": 1})), first.id),
            (test.assert_enqueued(awa.EnqueueRequest(Welcome(2)).run_at(LATER).max_attempts(3)), second.id),
            (test.assert_enqueued({"kind": "welcome", "user": 1, "how": "mail"}), None),
        ):
            if id is None:  # a mapping is all of the args, and this one has a key "kind"
                assert "args have no kind" in await message(call)
            else:
                assert [job.id for job in await call] == [id]
        await test.assert_enqueued(Invoice(due=LATER, lines=[1, 2]))
        await test.assert_enqueued(Invoice, args={"lines": [1, 2]})
        await test.refute_enqueued(Invoice, args={"lines": [1]})
        await test.refute_enqueued(Welcome, queue="elsewhere")
        await test.refute_enqueued(Welcome(3))
        await test.refute_enqueued("welcome", state="completed")
        await test.refute_enqueued("never")

    run(scenario)


def test_what_has_run_is_not_enqueued_any_more(run: Run) -> None:
    async def scenario(app: App) -> None:
        app.task(Welcome)(lambda _job: None)
        await app.client.insert(Welcome(1))
        await app.test.work_one(Welcome)
        await app.test.refute_enqueued(Welcome)
        await app.test.assert_enqueued(Welcome(1), state="completed")
        assert await message(app.test.assert_enqueued(Welcome)) == (
            "expected a job of kind 'welcome', found none.\n"
            "Of that kind there are:\n"
            '  job 1  completed  queue \'default\'  {"user":1,"how":"mail"}: is completed'
        )

    run(scenario)


def test_the_message_shows_what_there_is_and_how_it_differs(run: Run) -> None:
    async def scenario(app: App) -> None:
        test = app.test
        assert await message(test.assert_enqueued(Welcome(1), queue="mail")) == (
            'expected a job of kind \'welcome\' with queue \'mail\' and args {"user":1,"how":"mail"}, found none.\n'
            "There is no job at all."
        )
        await app.client.insert({"kind": "other"})
        assert await message(test.assert_enqueued(Welcome, args={"user": 1})) == (
            "expected a job of kind 'welcome' with args with {\"user\":1}, found none.\n"
            "Of that kind there is no job at all; others are:\n"
            "  1 'other' available"
        )
        await app.client.insert_many([Welcome(1), Welcome(2, "phone"), {"kind": "welcome", "more": 1}])
        assert await message(test.assert_enqueued(Welcome(2), queue="mail")) == (
            'expected a job of kind \'welcome\' with queue \'mail\' and args {"user":2,"how":"mail"}, found none.\n'
            "Of that kind there are:\n"
            "  job 2  available  queue 'default'  {\"user\":1,\"how\":\"mail\"}: queue is 'default', not 'mail';"
            " args.user is 1, not 2\n"
            "  job 3  available  queue 'default'  {\"user\":2,\"how\":\"phone\"}: queue is 'default', not 'mail';"
            ' args.how is "phone", not "mail"\n'
            "  job 4  available  queue 'default'  {\"kind\":\"welcome\",\"more\":1}: queue is 'default', not 'mail';"
            " args have no how; args have kind too; args have more too; args have no user"
        )
        assert await message(test.assert_enqueued(Welcome, args={"how": "mail"}, count=2)) == (
            'expected 2 jobs of kind \'welcome\' with args with {"how":"mail"}, found 1.\n'
            "Of that kind there are:\n"
            '  job 2  available  queue \'default\'  {"user":1,"how":"mail"}\n'
            '  job 3  available  queue \'default\'  {"user":2,"how":"phone"}: args.how is "phone", not "mail"\n'
            '  job 4  available  queue \'default\'  {"kind":"welcome","more":1}: args have no how'
        )
        assert await message(test.refute_enqueued(Welcome, args={"how": "mail"})) == (
            'expected no job of kind \'welcome\' with args with {"how":"mail"}, found 1.\n'
            "Of that kind there are:\n"
            '  job 2  available  queue \'default\'  {"user":1,"how":"mail"}'
        )

    run(scenario)


def test_long_lists_and_long_args_are_cut(run: Run) -> None:
    async def scenario(app: App) -> None:
        await app.client.insert_many([Welcome(n, "x" * 1000) for n in range(30)])
        said = await message(app.test.assert_enqueued(Welcome, queue="q"))
        assert said.endswith("\n  and 20 more")
        assert len(said.splitlines()) == 13
        assert max(map(len, said.splitlines())) < 300

    run(scenario)


def test_more_jobs_than_a_list_holds_are_counted(run: Run) -> None:
    async def scenario(app: App) -> None:
        await app.client.enqueue_many([Welcome(n) for n in range(1234)])
        assert len(await app.test.assert_enqueued(Welcome, count=1234)) == 1234

    run(scenario)


def test_until_waits_for_what_a_worker_does(run: Run) -> None:
    async def scenario(app: App) -> None:

        @app.task(Welcome)
        def welcome(job: Any) -> None:
            if job.args.how == "fail":
                raise awa.TerminalError("no use")

        async with app.client.worker({"default": 3}):
            done = await app.client.insert(Welcome(1))
            assert (await app.test.until(done)).state is awa.JobState.COMPLETED
            assert (await app.test.until(done.id, "completed")).id == done.id
            failed = await app.client.insert(Welcome(2, "fail"))
            assert (await app.test.until(failed, awa.JobState.FAILED)).errors[0]["error"] == "TerminalError: no use"

    run(scenario)


def test_until_tells_the_life_of_a_job_that_went_another_way(run: Run) -> None:
    async def scenario(app: App) -> None:
        @app.task(Welcome)
        def welcome(job: Any) -> Any:
            if job.args.how == "fail":
                raise awa.TerminalError("no use")
            raise RuntimeError("boom")

        failed = await app.client.insert(Welcome(2, "fail"))
        again = await app.client.insert(Welcome(3))
        await app.test.work_all()
        said = await message(app.test.until(failed))
        assert said.startswith(f"job {failed.id} (welcome) is failed, not completed\n  attempt 1 of 25, due at 20")
        assert said.endswith("\n  attempt 1: TerminalError: no use")
        said = await message(app.test.until(again, timeout=0.01))
        assert said.startswith(f"job {again.id} (welcome) is retryable after 0.01 s, not completed\n")
        assert said.endswith("\n  attempt 1: RuntimeError: boom")
        assert await message(app.test.until(10**9)) == f"there is no job {10**9}"

    run(scenario)
