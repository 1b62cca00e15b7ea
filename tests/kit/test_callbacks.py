"""Jobs that wait for callbacks, in tests: what comes is said by the test, and a job that is parked is resumed by its client."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import pytest

import awa_proto as awa
from awa_proto.testing.work import WorkOutcome
from tests.flavours import App

Run = Callable[..., None]
Steps = Generator[Any, Any, Any]


@dataclass
class Charge:
    cents: int = 5


def events(result: Any) -> list[str]:
    return [type(event).__name__ for event in result.events]


def asks_twice(job: Any) -> Steps:
    answers: list[Any] = []
    for _ in range(2):
        token = yield job.register_callback(timeout=60)
        answers.append((yield job.wait_for_callback(token)))
    job.set_output(answers)


def test_a_handler_that_waits_is_given_what_the_test_delivers_in_its_order(run: Run) -> None:
    async def scenario(app: App) -> None:
        app.task(Charge)(asks_twice)
        await app.client.insert_many([Charge(n) for n in range(4)])
        result = await app.test.work_one(Charge, deliver=[{"paid": 1.0}, None])
        assert (result.outcome, result.output, events(result)) == (
            "completed",
            [{"paid": 1.0}, None],
            ["Started", "Completed"],
        )
        result = await app.test.work_one(
            Charge, app.handler(asks_twice), deliver=iter(["a", "b", "more than it takes"])
        )
        assert result.output == ["a", "b"]
        result = await app.test.work_one(Charge, deliver=["only one"])
        assert (result.outcome, type(result.raised)) == ("retryable", awa.ConfigurationError)
        assert "deliver=[payload]" in result.error
        for wrong, why in (("text", "a list of payloads"), ({"a": 1}, "a list of payloads"), ([{1}], "deliver")):
            with pytest.raises(awa.ValidationError, match=why):
                await app.test.work_one(Charge, deliver=wrong)
        assert (await app.test.work_one(Charge, deliver=[1, 2])).output == [1, 2]

    run(scenario)


def test_only_the_newest_callback_is_waited_for_and_once(run: Run) -> None:
    async def scenario(app: App) -> None:
        def replaces(job: Any) -> Steps:
            first = yield job.register_callback()
            yield job.register_callback()
            yield job.wait_for_callback(first)

        def again(job: Any) -> Steps:
            token = yield job.register_callback()
            yield job.wait_for_callback(token)
            yield job.wait_for_callback(token)

        def parks_what_was_used(job: Any) -> Steps:
            token = yield job.register_callback()
            yield job.wait_for_callback(token)
            return awa.WaitForCallback(token)

        for handler, outcome, error in (
            (replaces, "retryable", "CallbackNotFound"),
            (again, "retryable", "CallbackNotFound"),
            (parks_what_was_used, "failed", "not registered"),
        ):
            await app.client.insert(Charge())
            result = await app.test.work_one(Charge, app.handler(handler), deliver=[1, 2])
            assert (result.outcome, error in result.error) == (outcome, True), result

    run(scenario)


def test_a_parked_job_is_an_ending_and_runs_again_once_the_test_resumes_it(run: Run) -> None:
    async def scenario(app: App) -> None:
        def charge(job: Any) -> Steps:
            if job.was_resumed:
                job.set_output([job.attempt, job.callback_result])
                return None
            token = yield job.register_callback(timeout=60)
            try:
                yield job.wait_for_callback(token)
            except TimeoutError:
                return awa.WaitForCallback(token)

        app.task(Charge)(charge)
        job = await app.client.insert(Charge())
        result = await app.test.work_one(job, deliver=[TimeoutError()])
        assert (result.outcome, result.error, events(result)) == (
            WorkOutcome.WAITING_EXTERNAL,
            None,
            ["Started", "WaitingForCallback"],
        )
        assert result.job.state is awa.JobState.WAITING_EXTERNAL
        assert await app.test.work_all() == []
        await app.client.resume_external(result.job.callback_id, {"by": "Ada"})
        result = await app.test.work_one(job)
        assert (result.outcome, result.output) == ("completed", [1, {"by": "Ada"}])
        job = await app.client.insert(Charge())
        result = await app.test.work_one(job, deliver=[TimeoutError()])
        assert (await app.client.complete_external(result.job.callback_id)).state is awa.JobState.COMPLETED
        with pytest.raises(awa.CallbackNotFound):
            await app.client.resume_external(result.job.callback_id)

    run(scenario)
