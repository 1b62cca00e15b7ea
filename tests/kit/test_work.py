"""AwaTestClient.work_one and work_all: one job, the real way through claim, machine, handler and result, in every package."""

import logging
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest

import awa_proto as awa
from awa_proto.testing.client import NoJob
from awa_proto.testing.work import WorkOutcome
from tests.flavours import App

Run = Callable[..., None]
LATER = datetime(2120, 1, 1, tzinfo=UTC)


@dataclass
class Signup:
    user: int = 1
    how: str = "done"


@dataclass
class Welcome:
    user: int


class Receipt(NamedTuple):
    number: int


def ends(job: Any) -> Any:
    """Ends as its args say."""
    match job.args.how:
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
        case "wrong":
            return 5
        case "wait":
            return awa.WaitForCallback("nobody registered it")
        case _:
            return None


def test_it_works_one_job_and_tells_all_of_it(run: Run, engine: str) -> None:
    async def scenario(app: App) -> None:
        @app.task(Signup, queue="signups")
        def signup(job: Any) -> None:
            job.set_progress(50)
            job.set_output(Receipt(job.args.user))
            job.enqueue_on_completion(Welcome(job.args.user), queue="mail", tags=["t"])

        await app.client.insert(Signup(7))
        await app.client.insert(Welcome(8))
        result = await app.test.work_one(Signup)
        assert result.outcome == WorkOutcome.COMPLETED == "completed"  # type: ignore[comparison-overlap]
        assert (result.output, result.output_as(list), result.error, result.raised) == ([7], [7], None, None)
        assert result.follow_ups == [awa.EnqueueRequest(Welcome(7)).queue("mail").tags("t")]
        job = result.job
        assert (job.state, job.queue, job.attempt) == (awa.JobState.COMPLETED, "signups", 1)
        assert job.output == ([7] if engine == "queue" else None)
        assert job == await app.client.get_job(job.id)
        assert [type(event) for event in result.events] == [awa.events.Started, awa.events.Completed]
        assert [event.args for event in result.events] == [Signup(7)] * 2
        assert [(job.kind, job.queue, job.state) for job in await app.client.list_jobs()] == [
            ("welcome", "mail", "available"),
            ("welcome", "default", "available"),
            ("signup", "signups", "completed"),
        ]
        assert repr(result) == (
            f"<completed: job {job.id} 'signup', attempt 1 of 25, output=[7],"
            " follow_ups=[EnqueueRequest(args=Welcome(user=7), options={'queue': 'mail', 'tags': ('t',)})]>"
        )

    run(scenario)


@pytest.mark.parametrize(
    ("how", "options", "outcome", "state", "error", "event"),
    [
        ("done", {}, "completed", "completed", None, "Completed"),
        ("cancel", {}, "cancelled", "cancelled", "cancelled: enough", "Cancelled"),
        ("retry", {}, "retryable", "retryable", "retry requested", "Retried"),
        ("error", {}, "retryable", "retryable", "RuntimeError: boom", "Retried"),
        ("error", {"max_attempts": 1}, "failed", "failed", "RuntimeError: boom", "Exhausted"),
        ("terminal", {}, "failed", "failed", "TerminalError: no use", "Exhausted"),
        ("snooze", {}, "snoozed", "scheduled", None, None),
        ("wrong", {}, "failed", "failed", "the handler returned int; it may return", "Exhausted"),
        ("wait", {}, "failed", "failed", "the handler waits for a callback that is not registered (any more)", None),
    ],
)
def test_every_ending_is_that_of_a_worker(
    run: Run, how: str, options: Any, outcome: str, state: str, error: str | None, event: str | None
) -> None:
    async def scenario(app: App) -> None:
        app.task(Signup)(ends)
        for handler in (None, app.handler(ends)):
            await app.client.insert(Signup(how=how), **options)
            result = await app.test.work_one(Signup, handler)
            assert (result.outcome, result.job.state, result.job.attempt) == (outcome, state, how != "snooze")
            assert (result.error or "").startswith(error or "")
            assert (result.error is None) is (error is None)
            assert [type(e).__name__ for e in result.events] == ["Started", *([event] if event else [])]
            assert [entry["error"] for entry in result.job.errors] == ([result.error] if error else [])
            if how in {"error", "terminal"}:
                assert isinstance(result.raised, Exception)
                assert str(result.raised) in {"boom", "no use"}
            else:
                assert result.raised is None

    run(scenario)


def test_the_handler_of_the_test_stands_in_for_the_registered_one(run: Run) -> None:
    async def scenario(app: App) -> None:
        seen: list[Any] = []
        app.task(Signup)(lambda job: seen.append("registered"))
        await app.client.insert_many([Signup(1), Signup(2), Signup(3)])
        await app.test.work_one(Signup, app.handler(lambda job: seen.append(job.args)))
        await app.test.work_one("signup", app.handler(lambda job: seen.append(job.args)))
        await app.test.work_one(Signup)
        assert seen == [Signup(1), {"user": 2, "how": "done"}, "registered"]
        row = await app.client.insert({"kind": "raw", "n": 1})
        await app.test.work_one(row, app.handler(lambda job: seen.append(job.args)))
        assert seen[3:] == [{"kind": "raw", "n": 1}]

    run(scenario)


def test_it_takes_the_best_job_of_the_kind_or_the_one_that_is_named(run: Run) -> None:
    async def scenario(app: App) -> None:
        app.task(Signup)(ends)
        await app.client.insert(Welcome(0), priority=1)
        first = await app.client.insert(Signup(1))
        second = await app.client.insert(Signup(2), queue="elsewhere")
        urgent = await app.client.insert(Signup(3), priority=1)
        assert (await app.test.work_one(second)).job.id == second.id
        assert (await app.test.work_one(Signup)).job.id == urgent.id
        third = await app.client.insert(Signup(4), queue="elsewhere")
        assert (await app.test.work_one(Signup, queue="elsewhere")).job.id == third.id
        assert (await app.test.work_one("signup")).job.id == first.id

    run(scenario)


def test_the_type_of_the_output_is_enforced(run: Run) -> None:
    async def scenario(app: App) -> None:
        app.task(Signup, output=Receipt)(lambda job: job.set_output([1]))
        await app.client.insert_many([Signup(n) for n in range(4)])
        result = await app.test.work_one(Signup)
        assert (result.outcome, result.output) == ("failed", None)
        assert result.error.startswith("Invalid: the output is a list; the task says output=Receipt")
        assert (await app.test.work_one(Signup, output=list)).output == [1]
        refused = await app.test.work_one(Signup, app.handler(lambda job: job.set_output({"a": 1})), output=Receipt)
        assert refused.outcome is WorkOutcome.FAILED
        with pytest.raises(awa.ValidationError, match="nothing is registered"):
            await app.test.work_one("raw", output=Receipt)

    run(scenario)


def test_what_a_failed_attempt_recorded_is_told_too(run: Run, engine: str) -> None:
    async def scenario(app: App) -> None:
        def fails(job: Any) -> Any:
            job.set_output({"rows": 3})
            job.enqueue_on_completion(Welcome(1))
            job.set_progress(30, "rows")
            return ends(job)

        app.task(Signup)(fails)
        for how in ("error", "snooze"):
            await app.client.insert(Signup(how=how))
            result = await app.test.work_one(Signup)
            assert (result.output, result.follow_ups) == ({"rows": 3}, [])
            assert result.job.progress == {"percent": 30, "message": "rows"}
            is_kept = how == "error" and engine == "queue"
            assert result.job.error_output_as(dict) == ({"rows": 3} if is_kept else None)

    run(scenario)


def test_a_job_that_no_worker_could_run_fails_as_on_one(run: Run) -> None:
    async def scenario(app: App) -> None:
        await app.client.insert({"kind": "unheard", "of": 1})
        result = await app.test.work_one("unheard")
        assert (result.outcome, result.error) == ("failed", "UnknownJobKind: unknown job kind: unheard")
        await app.client.insert({"user": "nobody"}, kind="signup")
        app.task(Signup)(ends)
        result = await app.test.work_one(Signup)
        assert result.outcome is WorkOutcome.FAILED
        assert result.error.startswith("ArgsRefused: ")

    run(scenario)


def test_registered_follow_ups_come_before_staged_ones_and_are_in_the_database(run: Run) -> None:
    async def scenario(app: App) -> None:
        @app.task(Signup)
        def signup(job: Any) -> Any:
            job.enqueue_on_completion(Welcome(1), unique_opts={})
            return ends(job)

        app.task(Welcome, queue="mail")(lambda _job: None)

        @app.on_completed_enqueue(Signup)
        def registered(args: Signup, job: awa.JobRow) -> awa.EnqueueRequest:
            return awa.EnqueueRequest(Welcome(args.user)).priority(1)

        @app.on_exhausted_enqueue(Signup)
        def exhausted(args: Signup, job: awa.JobRow, error: str, attempt: int) -> Welcome:
            return Welcome(-1)

        await app.client.insert_many([Signup(7), Signup(8), Signup(9, "terminal")])
        staged = awa.EnqueueRequest(Welcome(1)).unique()
        results = [await app.test.work_one(Signup) for _ in range(3)]
        assert [result.follow_ups for result in results] == [
            [awa.EnqueueRequest(Welcome(7)).priority(1), staged],
            [awa.EnqueueRequest(Welcome(8)).priority(1), staged],
            [awa.EnqueueRequest(Welcome(-1))],
        ]
        there = await app.test.assert_enqueued(Welcome, queue="mail", count=4)
        assert [(job.args["user"], job.priority) for job in there] == [(7, 1), (1, 2), (8, 1), (-1, 2)]

    run(scenario)


def test_a_follow_up_function_that_raises_fails_the_attempt(run: Run) -> None:
    async def scenario(app: App) -> None:
        app.task(Signup)(ends)

        @app.on_completed_enqueue(Signup)
        def registered(args: Signup, job: awa.JobRow) -> Any:
            raise LookupError("nobody")

        await app.client.insert(Signup())
        result = await app.test.work_one(Signup)
        assert result.outcome is WorkOutcome.RETRYABLE
        assert "registered failed: LookupError: nobody" in result.error

    run(scenario)


def test_without_a_job_it_says_what_there_is(run: Run) -> None:
    async def scenario(app: App) -> None:
        app.task(Signup)(ends)
        with pytest.raises(NoJob, match=r"not a job of kind 'signup' to be worked\.\nThere is no job at all\."):
            await app.test.work_one(Signup)
        await app.client.insert(Welcome(1))
        with pytest.raises(
            AssertionError, match=r"\nOf that kind there is no job at all; others are:\n  1 'welcome' available"
        ):
            await app.test.work_one(Signup)
        row = await app.client.insert(Signup(5), run_at=LATER)
        message = (
            rf"there is not job {row.id} to be worked now \(early=True works one that is not due yet\)\.\n"
            rf"Of that kind there are:\n  job {row.id}  scheduled  queue 'default'  {{\"user\":5,\"how\":\"done\"}}$"
        )
        with pytest.raises(NoJob, match=message):
            await app.test.work_one(row)
        with pytest.raises(NoJob, match="in queue 'q' to be worked"):
            await app.test.work_one(Signup, queue="q", early=True)
        assert [job.state for job in await app.client.list_jobs()] == ["scheduled", "available"]

    run(scenario)


def test_a_paused_queue_is_not_worked(run: Run) -> None:
    async def scenario(app: App) -> None:
        app.task(Signup)(ends)
        await app.client.insert(Signup())
        await app.client.pause_queue("default")
        with pytest.raises(NoJob):
            await app.test.work_one(Signup)
        await app.client.resume_queue("default")
        assert (await app.test.work_one(Signup)).outcome is WorkOutcome.COMPLETED

    run(scenario)


def test_early_works_retries_and_scheduled_jobs_at_once(run: Run) -> None:
    async def scenario(app: App) -> None:
        attempts: list[Any] = []

        @app.task(Signup)
        def signup(job: Any) -> Any:
            attempts.append((job.attempt, [entry["attempt"] for entry in job.errors], job.progress))
            job.update_metadata({"seen": job.attempt})
            if job.attempt < 3:
                raise RuntimeError("not yet")

        await app.client.insert(Signup(), run_at=LATER)
        results = [await app.test.work_one(Signup, early=True) for _ in range(3)]
        assert [result.outcome for result in results] == ["retryable", "retryable", "completed"]
        assert [(attempt, errors) for attempt, errors, _ in attempts] == [(1, []), (2, [1]), (3, [1, 2])]
        assert attempts[2][2] == {"metadata": {"seen": 2}}

    run(scenario)


def test_work_all_works_until_nothing_is_left(run: Run) -> None:
    async def scenario(app: App) -> None:
        @app.task(Signup)
        def signup(job: Any) -> Any:
            job.enqueue_on_completion(Welcome(job.args.user))
            return ends(job)

        app.task(Welcome, queue="mail")(lambda _job: None)
        await app.client.insert_many([Signup(1), Signup(2, "error")], max_attempts=2)
        results = await app.test.work_all()
        assert [(result.job.kind, result.outcome) for result in results] == [
            ("signup", "completed"),
            ("signup", "retryable"),
            ("welcome", "completed"),
        ]
        assert [(result.outcome, result.job.attempt) for result in await app.test.work_all(early=True)] == [
            ("failed", 2)
        ]
        assert await app.test.work_all() == []
        await app.client.insert_many([Signup(3), Signup(4)])
        assert len(await app.test.work_all(Signup)) == 2
        assert len(await app.test.work_all("welcome", queue="nowhere")) == 0
        assert len(await app.test.work_all("welcome", queue="mail")) == 2

    run(scenario)


def test_work_all_ends_when_jobs_enqueue_each_other(run: Run) -> None:
    async def scenario(app: App) -> None:
        app.task(Signup)(lambda job: job.enqueue_on_completion(Signup(job.args.user + 1)))
        await app.client.insert(Signup())
        with pytest.raises(
            AssertionError, match=r"there are still jobs after 5 were worked; the last: <completed: job"
        ):
            await app.test.work_all(most=5)

    run(scenario)


def test_the_client_of_the_job_reads_and_enqueues(run: Run) -> None:
    async def scenario(app: App) -> None:
        seen: list[Any] = []

        def signup(job: Any) -> Generator[Any, Any, Any]:
            row: Any = yield job.client.get_job(job.id)
            job.set_progress(10)
            kept: Any = yield job.flush_progress()
            flushed: Any = yield job.client.get_job(job.id)
            seen.append((row.state, row.attempt, row.run_lease == job.run_lease, kept, flushed.progress))
            yield job.client.insert(Welcome(9))

        await app.client.insert(Signup())
        result = await app.test.work_one(Signup, app.handler(signup))
        assert result.outcome is WorkOutcome.COMPLETED, result.error
        assert seen == [("running", 1, True, True, {"percent": 10})]
        await app.test.assert_enqueued(Welcome(9))

    run(scenario)


def test_a_job_that_is_cancelled_meanwhile_is_stale(run: Run) -> None:
    async def scenario(app: App) -> None:
        def signup(job: Any) -> Generator[Any, Any, Any]:
            job.enqueue_on_completion(Welcome(1))
            yield job.client.cancel(job.id)

        await app.client.insert(Signup())
        result = await app.test.work_one(Signup, app.handler(signup))
        assert (result.outcome, result.job.state, result.error) == ("stale", "cancelled", None)
        assert [type(event).__name__ for event in result.events] == ["Started"]
        assert result.follow_ups == []
        await app.test.refute_enqueued(Welcome)

    run(scenario)


def test_hooks_have_been_called_when_it_returns(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(app: App) -> None:
        told: list[Any] = []
        app.task(Signup)(lambda _job: told.append("handler"))
        app.on_event(Signup)(lambda event: told.append((type(event).__name__, event.args)))

        @app.on_event("signup")
        def broken(event: Any) -> None:
            told.append(event.args)
            raise RuntimeError("a hook that fails")

        await app.client.insert(Signup(7))
        await app.test.work_one(Signup)
        plain = {"user": 7, "how": "done"}
        assert told == [("Started", Signup(7)), plain, "handler", ("Completed", Signup(7)), plain]

    with caplog.at_level(logging.ERROR, "awa"):
        run(scenario)
    assert "a hook failed" in caplog.text


def test_dead_letters_are_those_of_the_client(run: Run) -> None:
    async def scenario(app: App) -> None:
        app.task(Signup)(ends)
        await app.client.insert(Signup(how="terminal"))
        result = await app.test.work_one(Signup)
        assert (result.outcome, result.job.dlq_reason) == ("failed", "terminal_error")
        assert await app.client.dlq_depth() == 1

    run(scenario, dead_letters=True)


def test_a_duplicate_is_told_as_such(run: Run) -> None:
    async def scenario(app: App) -> None:
        app.task(Signup)(ends)
        states = [awa.JobState.AVAILABLE, awa.JobState.RETRYABLE, awa.JobState.SCHEDULED]
        opts = awa.UniqueOpts(states=states, by_args=False)
        await app.client.insert(Signup(how="retry"), unique_opts=opts)

        def signup(job: Any) -> Generator[Any, Any, Any]:
            yield job.client.insert(Signup(how="other"), unique_opts=opts)
            return ends(job)

        result = await app.test.work_one(Signup, app.handler(signup))
        assert (result.outcome, result.job.state) == ("duplicate", "cancelled")
        assert result.error == "rescheduled as duplicate"

    run(scenario)


def test_what_is_no_exception_of_a_job_leaves_the_call(run: Run) -> None:
    class Interrupt(BaseException):
        pass

    async def scenario(app: App) -> None:
        def interrupted(_job: Any) -> None:
            raise Interrupt

        def leaves(_job: Any) -> None:
            raise SystemExit(1)

        await app.client.insert_many([Signup(1), Signup(2)])
        with pytest.raises(Interrupt):
            await app.test.work_one(Signup, app.handler(interrupted))
        assert (await app.test.work_one(Signup, app.handler(leaves))).error == "SystemExit: 1"

    run(scenario)


def test_workers_beside_it_run_every_other_job(run: Run) -> None:
    async def scenario(app: App) -> None:
        ran: list[int] = []
        app.task(Signup)(lambda job: ran.append(job.args.user))
        rows = await app.client.insert_many([Signup(n) for n in range(20)])
        await app.test.work_one(rows[11])
        async with app.client.worker({"default": 3}) as worker:
            await app.test.work_one(await app.client.insert(Signup(20), queue="own"))
            await worker.drained()
        assert sorted(ran) == list(range(21))
        assert {job.state for job in await app.client.list_jobs()} == {awa.JobState.COMPLETED}

    run(scenario)


def test_arguments_that_mean_nothing_are_refused_before_anything_is_done(run: Run) -> None:
    async def scenario(app: App) -> None:
        await app.client.insert(Signup())
        calls: list[Callable[[], Any]] = [
            lambda: app.test.work_one(Signup, 5),
            lambda: app.test.work_one("x" * 300),
            lambda: app.test.work_one(Signup, queue=""),
            lambda: app.test.work_one(Signup, lambda: None),
            lambda: app.test.work_all(most=0),
            lambda: app.test.until(1, "done"),
            lambda: app.test.until(1, timeout=-1),
            lambda: app.test.assert_enqueued(Signup(1), args=Signup(1)),
            lambda: app.test.assert_enqueued(Signup, state="done"),
            lambda: app.test.assert_enqueued(Signup, count=0),
        ]
        for call in calls:
            with pytest.raises(awa.ValidationError):
                await call()
        assert (await app.test.work_one(Signup, app.handler(ends))).outcome is WorkOutcome.COMPLETED

    run(scenario)


def test_times_are_in_order(run: Run) -> None:
    async def scenario(app: App) -> None:
        row = await app.client.insert(Signup())
        result = await app.test.work_one(Signup, app.handler(ends))
        assert timedelta(0) <= result.events[1].duration < timedelta(seconds=30)
        assert row.created_at <= result.job.attempted_at <= result.job.finalized_at

    run(scenario)
