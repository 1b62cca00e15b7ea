"""Progress: said by a handler, carried by the heartbeat and by the transition, kept for the next attempt, on every driver."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import awa_proto as awa
from awa_proto.recording import MAX_PROGRESS_BYTES
from awa_sync.testing import HandlerJob
from tests.flavours import App

Run = Callable[..., None]


@dataclass
class Import:
    how: str = "done"


def ends(how: str) -> Any:
    match how:
        case "cancel":
            return awa.Cancel("enough")
        case "retry":
            return awa.RetryAfter(1000)
        case "snooze":
            return awa.Snooze(1000)
        case "error":
            raise RuntimeError("boom")
        case "terminal":
            raise awa.TerminalError("no use")
        case _:
            return None


def test_it_is_kept_by_every_ending_and_cleared_by_success(run: Run) -> None:
    async def scenario(app: App) -> None:
        @app.task(Import)
        def import_(job: Any) -> Any:
            assert not job.progress
            job.set_progress(40, "half way, nearly")
            job.update_metadata({"page": 3})
            job.update_metadata({"row": [1.5, "ü"]})
            assert job.progress == {
                "percent": 40,
                "message": "half way, nearly",
                "metadata": {"page": 3, "row": [1.5, "ü"]},
            }
            return ends(job.args.how)

        hows = ("cancel", "retry", "snooze", "error", "terminal", "done")
        rows = await app.run(*map(Import, hows))
        kept = {"percent": 40, "message": "half way, nearly", "metadata": {"page": 3, "row": [1.5, "ü"]}}
        assert {how: row.progress for how, row in zip(hows, rows, strict=True)} == dict.fromkeys(hows[:-1], kept) | {
            "done": None
        }

    run(scenario)


def test_the_next_attempt_finds_what_the_one_before_said(run: Run) -> None:
    async def scenario(app: App) -> None:
        seen: list[Any] = []

        @app.task(Import)
        def import_(job: Any) -> Any:
            seen.append(job.progress)
            if job.attempt == 1:
                job.update_metadata({"page": 3})
                return awa.RetryAfter(0)
            if job.attempt == 2:
                job.set_progress(50)
                return awa.RetryAfter(0)
            return None

        row = await app.client.insert(Import())
        while not row.state.is_terminal:
            await app.work()
            row = await app.client.get_job(row.id)
        assert seen == [None, {"metadata": {"page": 3}}, {"percent": 50, "metadata": {"page": 3}}]
        assert (row.state, row.progress) == (awa.JobState.COMPLETED, None)

    run(scenario)


def test_flush_progress_writes_it_while_the_handler_runs(run: Run) -> None:
    async def scenario(app: App) -> None:
        seen: list[Any] = []

        async def flushed(job: Any) -> Any:
            answer = job.flush_progress()
            return await answer if inspect.isawaitable(answer) else answer

        async def body(job: Any) -> Any:
            assert await flushed(job) is True
            job.set_progress(10, "began")
            assert await flushed(job) is True
            found = job.client.get_job(job.id)
            seen.append(await found if inspect.isawaitable(found) else found)
            job.set_progress(20)
            assert await flushed(job) is True
            raise RuntimeError("boom")

        def blocking(job: Any) -> Any:
            return body(job).send(None)

        app.task(Import)(body if app.is_async else blocking)
        [row] = await app.run(Import())
        assert (seen[0].state, seen[0].progress) == (awa.JobState.RUNNING, {"percent": 10, "message": "began"})
        assert row.progress == {"percent": 20}

    run(scenario)


def test_a_person_who_cancels_keeps_what_was_flushed_and_the_attempt_is_fenced(run: Run) -> None:
    async def scenario(app: App) -> None:
        async def call(answer: Any) -> Any:
            return await answer if inspect.isawaitable(answer) else answer

        async def body(job: Any) -> Any:
            job.set_progress(10)
            await call(job.flush_progress())
            await call(job.client.cancel(job.id))
            job.set_progress(90)
            assert await call(job.flush_progress()) is False

        def blocking(job: Any) -> Any:
            with pytest.raises(StopIteration):
                body(job).send(None)

        app.task(Import)(body if app.is_async else blocking)
        [row] = await app.run(Import())
        assert (row.state, row.progress) == (awa.JobState.CANCELLED, {"percent": 10})

    run(scenario)


def test_after_the_handler_has_returned_it_is_ignored(run: Run) -> None:
    async def scenario(app: App) -> None:
        jobs: list[Any] = []

        @app.task(Import)
        def import_(job: Any) -> Any:
            jobs.append(job)
            job.set_progress(1)
            return awa.Cancel("enough")

        [row] = await app.run(Import())
        jobs[0].set_progress(99)
        jobs[0].update_metadata({"late": True})
        assert (await app.client.get_job(row.id)).progress == {"percent": 1}

    run(scenario)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda job: job.set_progress(101), "percent: 101 is outside 0 … 100"),
        (lambda job: job.set_progress(-1), "percent"),
        (lambda job: job.set_progress(0.5), "percent: a whole number"),
        (lambda job: job.set_progress(1, "\0"), "message: contains a NUL"),
        (lambda job: job.set_progress(1, 5), "message: text is needed"),
        (lambda job: job.update_metadata(5), "metadata: a mapping is needed"),
        (lambda job: job.update_metadata({1: 2}), "metadata: has a key of type int"),
        (lambda job: job.update_metadata({"a": float("nan")}), "metadata: a is not a finite number"),
        (
            lambda job: job.update_metadata({"a": "x" * MAX_PROGRESS_BYTES}),
            "; 65536 are allowed",
        ),
    ],
)
def test_what_it_cannot_hold_is_refused_and_changes_nothing(call: Callable[[Any], object], field: str) -> None:
    job = HandlerJob(Import())
    job.set_progress(5)
    with pytest.raises(awa.ValidationError, match=field):
        call(job)
    assert job.progress == {"percent": 5}
