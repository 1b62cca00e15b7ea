"""The page on follow-ups, registered and staged, from top to bottom: a test for each of its promises, on every driver."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

import awa_proto as awa
import awa_sync
from awa_proto.recording import MAX_STAGED_BYTES, MAX_STAGED_FOLLOW_UPS
from awa_sync.testing import HandlerJob
from tests.flavours import App

Run = Callable[..., None]


@dataclass
class Signup:
    user: int = 1
    how: str = "done"


@dataclass
class Welcome:
    user: int
    said: list[Any] = field(default_factory=list[Any])


async def enqueued(app: App, kind: str = "welcome") -> list[Any]:
    """The jobs of a kind, oldest first."""
    return list(reversed(list(await app.client.list_jobs(kind=kind))))


def mail(app: App) -> None:
    """Welcomes go to a queue that nobody works."""
    app.task(Welcome, queue="mail")(lambda _job: None)


def ends(job: Any) -> Any:
    """Ends as its args say."""
    match job.args.how:
        case "cancel":
            return awa.Cancel("enough")
        case "retry":
            return awa.RetryAfter(1000)
        case "error":
            raise RuntimeError("boom")
        case "terminal":
            raise awa.TerminalError("no use")
        case "snooze":
            return awa.Snooze(1000)
        case _:
            return None


# Durable follow-up jobs: one builder per outcome


def test_on_completed_enqueue_is_called_with_args_and_the_row_after(run: Run) -> None:
    async def scenario(app: App) -> None:
        mail(app)
        app.task(Signup)(ends)
        seen: list[Any] = []

        @app.on_completed_enqueue(Signup)
        def welcome(args: Signup, job: awa.JobRow) -> Welcome:
            seen.append((args, job.state, job.attempt, job.output, job.finalized_at is not None))
            return Welcome(args.user, [job.id])

        [row] = await app.run(Signup(7))
        [follow] = await enqueued(app)
        assert seen == [(Signup(7), awa.JobState.COMPLETED, 1, None, True)]
        assert (follow.args, follow.state, follow.queue) == (
            {"user": 7, "said": [row.id]},
            awa.JobState.AVAILABLE,
            "mail",
        )
        assert (follow.priority, follow.max_attempts, follow.attempt) == (2, 25, 0)

    run(scenario)


def test_the_row_has_no_output_of_any_attempt(run: Run) -> None:
    async def scenario(app: App) -> None:
        seen: list[Any] = []

        @app.task(Signup)
        def signup(job: Any) -> Any:
            job.set_output({"secret": job.attempt})
            if job.attempt == 1:
                return awa.RetryAfter(0)
            raise awa.TerminalError("no use")

        def noted(_args: Signup, job: awa.JobRow, *_said: object) -> None:
            seen.append((job.output, [sorted(entry.keys() & {"attempt", "output"}) for entry in job.errors]))

        app.client.on_retried_enqueue(Signup)(noted)
        app.client.on_exhausted_enqueue(Signup)(noted)
        row = await app.client.insert(Signup())
        while not (await app.client.get_job(row.id)).state.is_terminal:
            await app.work()
        assert seen == [(None, [["attempt"]]), (None, [["attempt"], ["attempt"]])]

    run(scenario)


def test_each_outcome_has_a_builder_with_what_it_has_to_say(run: Run) -> None:
    async def scenario(app: App) -> None:
        app.task(Signup)(ends)

        @app.on_cancelled_enqueue(Signup)
        def cancelled(args: Signup, job: awa.JobRow, reason: str) -> Welcome:
            return Welcome(1, ["cancelled", job.state, reason])

        @app.on_retried_enqueue(Signup)
        def retried(args: Signup, job: awa.JobRow, error: str, attempt: int, next_run_at: datetime) -> Welcome:
            assert job.run_at == next_run_at > datetime.now(UTC)
            return Welcome(2, ["retried", job.state, error, attempt])

        @app.on_exhausted_enqueue(Signup)
        def exhausted(args: Signup, job: awa.JobRow, error: str, attempt: int) -> Welcome:
            return Welcome(3, ["exhausted", job.state, error.partition(";")[0], attempt])

        for how, options, said in (
            ("cancel", {}, ["cancelled", "cancelled", "enough"]),
            ("retry", {}, ["retried", "retryable", "", 1]),
            ("error", {}, ["retried", "retryable", "RuntimeError: boom", 1]),
            ("error", {"max_attempts": 1}, ["exhausted", "failed", "RuntimeError: boom", 1]),
            ("retry", {"max_attempts": 1}, ["exhausted", "failed", "attempts exhausted after 1", 1]),
            ("terminal", {}, ["exhausted", "failed", "TerminalError: no use", 1]),
        ):
            before = len(await enqueued(app))
            await app.run(Signup(how=how), **options)
            follow = (await enqueued(app))[before:]
            assert [job.args["said"] for job in follow] == [said], how
        before = len(await enqueued(app))
        await app.run(Signup(how="snooze"), Signup(how="done"))
        assert len(await enqueued(app)) == before

    run(scenario)


def test_with_opts_replaces_every_option_that_was_said_before(run: Run) -> None:
    async def scenario(app: App) -> None:
        app.task(Signup)(ends)

        @app.on_completed_enqueue_with(Signup)
        def welcome(args: Signup, job: awa.JobRow) -> awa.EnqueueRequest:
            request = awa.EnqueueRequest(Welcome(args.user)).queue("mail").priority(1).tags("t")
            return request.with_opts(max_attempts=3, metadata={"m": 1}).tags("u")

        await app.run(Signup())
        [follow] = await enqueued(app)
        assert (follow.queue, follow.priority, follow.max_attempts) == ("default", 2, 3)
        assert (follow.metadata, follow.tags) == ({"m": 1}, ["u"])

    run(scenario)


def test_a_function_over_a_kind_gets_a_dict(run: Run) -> None:
    async def scenario(app: App) -> None:
        app.task(Signup)(ends)

        @app.on_completed_enqueue("signup")
        def welcome(args: dict[str, Any], job: awa.JobRow) -> Welcome:
            return Welcome(args["user"] + 1)

        await app.run(Signup(7))
        assert [job.args["user"] for job in await enqueued(app)] == [8]

    run(scenario)


def test_several_functions_of_an_outcome_run_in_order(run: Run) -> None:
    async def scenario(app: App) -> None:
        app.task(Signup)(ends)
        for number in range(3):
            app.client.on_completed_enqueue(Signup)(lambda _args, _job, number=number: Welcome(number))
        await app.run(Signup())
        assert [job.args["user"] for job in await enqueued(app)] == [0, 1, 2]

    run(scenario)


def test_a_request_has_all_options_of_an_insert(run: Run) -> None:
    async def scenario(app: App) -> None:
        app.task(Signup)(ends)
        due = datetime.now(UTC) + timedelta(hours=1)

        @app.on_completed_enqueue_with(Signup)
        def welcome(args: Signup, job: awa.JobRow) -> awa.EnqueueRequest:
            return (
                awa.EnqueueRequest(Welcome(args.user))
                .queue("email")
                .priority(1)
                .max_attempts(3)
                .metadata({"from": job.id})
                .tags("a", "b")
                .run_at(due)
                .deadline_duration(60)
                .ordering_key("k")
            )

        [row] = await app.run(Signup())
        [follow] = await enqueued(app)
        assert (follow.queue, follow.priority, follow.max_attempts) == ("email", 1, 3)
        assert (follow.metadata, follow.tags) == ({"from": row.id}, ["a", "b"])
        assert (follow.state, follow.run_at) == (awa.JobState.SCHEDULED, due)

    run(scenario)


def test_a_class_stands_for_the_kinds_of_its_tasks_whenever_they_are_registered(run: Run) -> None:
    async def scenario(app: App) -> None:
        mail(app)
        app.on_completed_enqueue(Signup)(lambda args, job: Welcome(args.user, [job.kind]))
        app.on_completed_enqueue(Signup, kind="late")(lambda args, job: Welcome(args.user, ["only", job.kind]))
        app.task(Signup, kind="early")(ends)
        app.task(Signup, kind="late")(ends)
        await app.run(Signup(1), kind="early")
        await app.run(Signup(2), kind="late")
        assert [job.args["said"] for job in await enqueued(app)] == [["early"], ["late"], ["only", "late"]]

    run(scenario)


# Conditional follow-ups


def test_none_enqueues_nothing_and_the_transition_commits(run: Run) -> None:
    async def scenario(app: App) -> None:
        app.task(Signup)(ends)

        @app.on_exhausted_enqueue_with(Signup)
        def rich(args: Signup, job: awa.JobRow, error: str, attempt: int) -> Welcome | None:
            return Welcome(args.user) if args.user >= 100 else None

        rows = await app.run(Signup(1, "terminal"), Signup(100, "terminal"))
        assert [row.state for row in rows] == [awa.JobState.FAILED] * 2
        assert [job.args["user"] for job in await enqueued(app)] == [100]

    run(scenario)


# Deduplicating follow-ups


def test_the_first_of_several_with_one_key_wins_and_each_trigger_completes(run: Run) -> None:
    async def scenario(app: App) -> None:
        mail(app)
        app.task(Signup)(ends)

        @app.on_completed_enqueue(Signup)
        def welcome(args: Signup, job: awa.JobRow) -> awa.EnqueueRequest:
            return awa.EnqueueRequest(Welcome(args.user)).unique(awa.UniqueOpts())

        rows = await app.run(*(Signup(n % 2) for n in range(10)))
        assert [row.state for row in rows] == [awa.JobState.COMPLETED] * 10
        assert sorted(job.args["user"] for job in await enqueued(app)) == [0, 1]
        await app.run(Signup(0))
        assert len(await enqueued(app)) == 2

    run(scenario)


def test_the_states_of_a_key_decide_how_long_it_deduplicates(run: Run) -> None:
    async def scenario(app: App) -> None:
        app.task(Signup, queue="signups")(ends)
        app.task(Welcome)(lambda _job: None)
        until_done = awa.UniqueOpts(states=["scheduled", "available", "running", "retryable"])

        @app.on_completed_enqueue(Signup)
        def welcome(args: Signup, job: awa.JobRow) -> awa.EnqueueRequest:
            return awa.EnqueueRequest(Welcome(args.user)).unique(until_done)

        for expected in (1, 2):
            for _ in range(2):
                await app.client.insert(Signup())
            await app.work(["signups"])
            assert len(await enqueued(app)) == expected
            await app.work(["default"])

    run(scenario)


def test_a_key_may_leave_the_args_out_and_take_the_queue_in(run: Run) -> None:
    async def scenario(app: App) -> None:
        app.task(Signup)(ends)
        mail(app)

        @app.on_completed_enqueue(Signup)
        def welcome(args: Signup, job: awa.JobRow) -> awa.EnqueueRequest:
            opts = awa.UniqueOpts(by_args=False, by_queue=True)
            return awa.EnqueueRequest(Welcome(args.user)).queue(args.how).unique(opts)

        await app.run(*(Signup(user, how) for how in ("letters", "calls") for user in (1, 2, 3)))
        assert sorted(job.queue for job in await enqueued(app)) == ["calls", "letters"]

    run(scenario)


# what a function must not do


def test_a_function_that_raises_makes_the_attempt_retryable_and_names_itself(run: Run) -> None:
    async def scenario(app: App) -> None:
        app.task(Signup)(ends)

        @app.on_completed_enqueue(Signup)
        def bad(args: Signup, job: awa.JobRow) -> Welcome:
            raise LookupError("not there")

        for options, state in (({}, awa.JobState.RETRYABLE), ({"max_attempts": 1}, awa.JobState.FAILED)):
            [row] = await app.run(Signup(), **options)
            assert row.state is state
            assert "bad failed: LookupError: not there" in row.errors[0]["error"]
        assert await enqueued(app) == []

    run(scenario)


@pytest.mark.parametrize("is_flushed", [False, True], ids=["said", "flushed"])
def test_progress_is_kept_when_a_function_raises_after_the_handler_completed(run: Run, is_flushed: bool) -> None:
    async def scenario(app: App) -> None:
        def signup(job: Any) -> Iterator[Any]:
            job.set_progress(40)
            if is_flushed:
                yield job.flush_progress()

        app.task(Signup)(signup)

        @app.on_completed_enqueue(Signup)
        def bad(args: Signup, job: awa.JobRow) -> Welcome:
            raise LookupError("not there")

        [row] = await app.run(Signup())
        assert (row.state, row.progress) == (awa.JobState.RETRYABLE, {"percent": 40})

    run(scenario)


def test_a_request_an_insert_would_refuse_is_a_function_that_raises(run: Run) -> None:
    async def scenario(app: App) -> None:
        app.task(Signup)(ends)

        @app.on_completed_enqueue(Signup)
        def bad(args: Signup, job: awa.JobRow) -> awa.EnqueueRequest:
            return awa.EnqueueRequest(Welcome(1)).priority(9)

        [row] = await app.run(Signup())
        assert row.state is awa.JobState.RETRYABLE
        assert "priority: 9 is outside 1 … 4" in row.errors[0]["error"]

    run(scenario)


def test_when_the_function_of_a_failure_raises_the_failure_is_told_too(run: Run) -> None:
    async def scenario(app: App) -> None:
        app.task(Signup)(ends)

        calls: list[int] = []

        @app.on_exhausted_enqueue(Signup)
        def bad(args: Signup, job: awa.JobRow, error: str, attempt: int) -> Welcome:
            calls.append(attempt)
            raise LookupError("not there")

        [row] = await app.run(Signup(how="error"), max_attempts=1)
        assert row.state is awa.JobState.FAILED
        assert calls == [1], "what takes its place has the same outcome, whose functions are left out"
        assert "LookupError: not there" in row.errors[0]["error"]
        assert "RuntimeError: boom" in row.errors[0]["error"]

    run(scenario)


def test_one_bad_follow_up_in_a_batch_leaves_the_others_untouched(run: Run) -> None:
    async def scenario(app: App) -> None:
        app.task(Signup)(ends)

        @app.on_completed_enqueue(Signup)
        def welcome(args: Signup, job: awa.JobRow) -> Welcome:
            if args.user == 13:
                raise LookupError("unlucky")
            return Welcome(args.user)

        rows = await app.client.insert_many([Signup(n) for n in range(50)])
        await app.work()
        states = [(await app.client.get_job(row.id)).state for row in rows]
        assert [n for n, state in enumerate(states) if state is not awa.JobState.COMPLETED] == [13]
        assert sorted(job.args["user"] for job in await enqueued(app)) == [n for n in range(50) if n != 13]

    run(scenario)


def test_args_that_do_not_decode_skip_a_typed_function(run: Run) -> None:
    async def scenario(app: App) -> None:
        app.task(kind="signup")(lambda _job: None)

        @app.on_completed_enqueue(Signup)
        def welcome(args: Signup, job: awa.JobRow) -> Welcome:
            return Welcome(args.user)

        rows = await app.run({"kind": "signup", "user": "no number"}, {"kind": "signup", "user": 3})
        assert [row.state for row in rows] == [awa.JobState.COMPLETED] * 2
        assert [job.args["user"] for job in await enqueued(app)] == [3]

    run(scenario)


def test_a_coroutine_function_cannot_be_a_follow_up(run: Run) -> None:
    async def scenario(app: App) -> None:
        async def later(args: Signup, job: awa.JobRow) -> None: ...

        for function in (later, 5):
            with pytest.raises(awa.ValidationError, match="function: a"):
                app.client.on_completed_enqueue(Signup)(function)
        with pytest.raises(awa.ValidationError, match="args_type: a class or a kind"):
            app.client.on_completed_enqueue(5)

    run(scenario)


def test_an_included_registry_brings_its_follow_ups_also_later_ones(run: Run) -> None:
    async def scenario(app: App) -> None:
        app.task(Signup)(ends)

        module, other = awa_sync.Tasks(), awa_sync.Tasks()
        module.on_completed_enqueue(Signup)(lambda _args, _job: Welcome(1))
        app.client.registry.include(module.registry)
        other.registry.include(module.registry)
        app.client.registry.include(other.registry)  # by two ways, and counted once
        module.on_completed_enqueue(Signup)(lambda _args, _job: Welcome(2))
        await app.run(Signup())
        assert [job.args["user"] for job in await enqueued(app)] == [1, 2]

    run(scenario)


# Handler-staged follow-ups


def test_a_staged_follow_up_is_inserted_with_the_completion_after_registered_ones(run: Run) -> None:
    async def scenario(app: App) -> None:
        @app.task(Signup)
        def signup(job: Any) -> None:
            job.enqueue_on_completion(Welcome(2), queue="email", priority=3, tags=["x"], metadata={"a": 1})
            job.enqueue_on_completion(awa.EnqueueRequest(Welcome(3)).priority(1))

        app.client.on_completed_enqueue(Signup)(lambda _args, _job: Welcome(1))
        await app.run(Signup())
        follow = await enqueued(app)
        assert [job.args["user"] for job in follow] == [1, 2, 3]
        assert (follow[1].queue, follow[1].priority, follow[1].tags, follow[1].metadata) == (
            "email",
            3,
            ["x"],
            {"a": 1},
        )
        assert follow[2].priority == 1

    run(scenario)


def test_only_completed_inserts_them(run: Run) -> None:
    async def scenario(app: App) -> None:
        @app.task(Signup)
        def signup(job: Any) -> Any:
            job.enqueue_on_completion(Welcome(job.attempt))
            if job.args.how == "again" and job.attempt == 1:
                return awa.RetryAfter(0)
            return ends(job)

        await app.run(*(Signup(how=how) for how in ("cancel", "retry", "error", "terminal", "snooze")))
        assert await enqueued(app) == []
        row = await app.client.insert(Signup(how="again"))
        while not (await app.client.get_job(row.id)).state.is_terminal:
            await app.work()
        assert [job.args["user"] for job in await enqueued(app)] == [2], "a retried attempt starts empty"

    run(scenario)


def test_an_attempt_that_is_not_the_jobs_any_more_inserts_none(run: Run) -> None:
    async def scenario(app: App) -> None:
        def signup(job: Any) -> Iterator[Any]:
            job.enqueue_on_completion(Welcome(1))
            yield job.client.cancel(job.id)

        app.task(Signup)(signup)
        app.on_completed_enqueue(Signup)(lambda args, job: Welcome(2))
        [row] = await app.run(Signup())
        assert row.state is awa.JobState.CANCELLED
        assert await enqueued(app) == []

    run(scenario)


@pytest.mark.parametrize(
    ("args", "options", "message"),
    [
        (Welcome(1), {"priority": 5}, "priority: 5 is outside 1 … 4"),
        (Welcome(1), {"max_attempts": 1001}, "max_attempts"),
        (Welcome(1), {"queue": "x" * 201}, "queue"),
        (Welcome(1), {"kind": "x" * 201}, "kind"),
        (Welcome(1), {"tags": [str(n) for n in range(21)]}, "tags"),
        (Welcome(1), {"run_at": datetime(2026, 1, 1)}, "run_at"),  # noqa: DTZ001  that it is naive is the point
        (Welcome(1, ["\0"]), {}, "NUL"),
        (Welcome(1, [float("nan")]), {}, "finite"),
        ("text", {}, "args"),
        (Welcome(1), {"colour": "red"}, "colour"),
    ],
)
def test_what_an_insert_would_refuse_raises_a_staging_error(args: Any, options: Any, message: str) -> None:
    job = HandlerJob(Signup())
    with pytest.raises(awa.StagingError.Invalid, match=message) as caught:
        job.enqueue_on_completion(args, **options)
    assert isinstance(caught.value, awa.TerminalError)


def test_a_swallowed_staging_error_fails_the_attempt_terminally(run: Run, engine: str) -> None:
    async def scenario(app: App) -> None:
        @app.task(Signup)
        def signup(job: Any) -> None:
            job.enqueue_on_completion(Welcome(1))
            with pytest.raises(awa.StagingError):
                job.enqueue_on_completion(Welcome(2), priority=9)
            job.set_output("what was done")

        [row] = await app.run(Signup())
        assert row.state is awa.JobState.FAILED
        assert row.errors[0]["terminal"] is True
        assert row.errors[0]["error"].startswith(
            "Invalid: the follow-up cannot be staged: ValidationError: priority: 9"
        )
        assert row.errors[0].get("output") == ("what was done" if engine == "queue" else None)
        assert await enqueued(app) == []

    run(scenario)


def test_staging_closes_when_the_handler_returns(run: Run) -> None:
    async def scenario(app: App) -> None:
        jobs: list[Any] = []

        @app.task(Signup)
        def signup(job: Any) -> None:
            jobs.append(job)

        [row] = await app.run(Signup())
        with pytest.raises(awa.StagingError.Sealed):
            jobs[0].enqueue_on_completion(Welcome(1))
        assert row.state is awa.JobState.COMPLETED
        assert await enqueued(app) == []

    run(scenario)


def test_the_limits_are_16_follow_ups_and_64_kib(run: Run) -> None:
    assert (MAX_STAGED_FOLLOW_UPS, MAX_STAGED_BYTES) == (16, 65536)

    async def scenario(app: App) -> None:
        @app.task(kind="many")
        def many(job: Any) -> None:
            for n in range(job.args["count"]):
                job.enqueue_on_completion(Welcome(n))

        rows = await app.run({"kind": "many", "count": 16}, {"kind": "many", "count": 17})
        assert [row.state for row in rows] == [awa.JobState.COMPLETED, awa.JobState.FAILED]
        assert rows[1].errors[0]["error"].startswith("TooMany: 16 follow-ups are allowed")
        assert len(await enqueued(app)) == 16

    run(scenario)


# what is as long as said, and the bytes that the rest of such a follow-up has
COUNTED: dict[str, tuple[Callable[[str], tuple[dict[str, Any], dict[str, Any]]], int]] = {
    "kind": (lambda text: ({}, {"kind": text, "queue": "q"}), len("q{}")),
    "queue": (lambda text: ({}, {"kind": "k", "queue": text}), len("k{}")),
    "args": (lambda text: ({"a": text}, {"kind": "k", "queue": "q"}), len('kq{"a":""}')),
    "metadata": (
        lambda text: ({}, {"kind": "k", "queue": "q", "metadata": {"a": text}}),
        len('kq{}{"metadata":{"a":""}}'),
    ),
    "tags": (lambda text: ({}, {"kind": "k", "queue": "q", "tags": [text]}), len('kq{}{"tags":[""]}')),
    "ordering_key": (lambda text: ({}, {"kind": "k", "queue": "q", "ordering_key": text}), len("kq{}")),
}


@pytest.mark.parametrize("part", COUNTED)
def test_the_bytes_counted_are_kind_queue_args_metadata_tags_and_ordering_key(part: str) -> None:
    made, rest = COUNTED[part]
    left = rest + 100
    fixed = len("welcome") + len("q") + len('{"user":1,"said":["') + len('"]}')
    for text, fits in (("ü" * 50, True), ("ü" * 50 + "x", False)):
        job = HandlerJob(Signup())
        job.enqueue_on_completion(Welcome(1, ["x" * (MAX_STAGED_BYTES - fixed - left)]), queue="q")
        args, options = made(text)
        if fits:
            job.enqueue_on_completion(args, **options)
            continue
        with pytest.raises(
            awa.StagingError.TooLarge, match=rf"{MAX_STAGED_BYTES + 1} .*; {MAX_STAGED_BYTES} are allowed"
        ):
            job.enqueue_on_completion(args, **options)


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
def test_a_key_in_a_strangers_open_transaction_holds_up_the_one_completion_that_wants_it(
    run: Run, database: str, engine: Any, commits: bool
) -> None:
    async def scenario(app: App) -> None:
        mail(app)
        app.task(Signup)(ends)

        @app.on_completed_enqueue(Signup)
        def welcome(args: Signup, job: awa.JobRow) -> awa.EnqueueRequest | None:
            return awa.EnqueueRequest(Welcome(args.user)).unique() if args.user < 3 else None

        first, *others = [(await app.client.insert(Signup(user))).id for user in (1, 2, 3, 4)]
        with psycopg.connect(database) as connection:
            with awa_sync.Client(database, engine=engine) as stranger:
                stranger.insert(Welcome(1), queue="mail", unique_opts={}, using=connection)
            async with app.client.worker({"default": 10}) as worker:
                for id in others:
                    while (await app.client.get_job(id)).state is not awa.JobState.COMPLETED:
                        pass
                assert (await app.client.get_job(first)).state is awa.JobState.RUNNING
                (connection.commit if commits else connection.rollback)()
                await worker.drained()
                tally = worker.tally
        assert (await app.client.get_job(first)).state is awa.JobState.COMPLETED
        assert [job.args["user"] for job in await enqueued(app)] == ([1, 2] if commits else [2, 1])
        metric = "awa.job.staged_follow_ups_committed"
        assert tally.total(metric, {"awa.follow_up.result": "duplicate"}) == commits

    run(scenario)


def test_a_staged_unique_follow_up_that_exists_is_skipped_and_counted(run: Run) -> None:
    async def scenario(app: App) -> None:
        @app.task(Signup)
        def signup(job: Any) -> None:
            job.enqueue_on_completion(Welcome(job.args.user), unique_opts={})

        for n in (1, 1, 2):
            await app.client.insert(Signup(n))
        async with app.client.worker({"default": 5}) as worker:
            await worker.drained()
            tally = worker.tally
        assert len(await enqueued(app)) == 2
        metric = "awa.job.staged_follow_ups_committed"
        assert tally.total(metric, {"awa.follow_up.result": "inserted"}) == 2
        assert tally.total(metric, {"awa.follow_up.result": "duplicate"}) == 1

    run(scenario)


def test_waiting_for_a_callback_discards_staged_follow_ups_with_a_warning(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """The wait itself, which nothing registered, fails the attempt for good, and nothing is inserted for that either."""

    async def scenario(app: App) -> None:
        @app.task(Signup)
        def signup(job: Any) -> Any:
            job.enqueue_on_completion(Welcome(1))
            return awa.WaitForCallback("nobody registered it")

        row = await app.client.insert(Signup())
        async with app.client.worker({"default": 5}) as worker:
            await worker.drained()
            assert worker.tally.total("awa.job.staged_follow_ups_discarded", {"awa.job.kind": "signup"}) == 1
        row = await app.client.get_job(row.id)
        assert row.state is awa.JobState.FAILED
        assert row.errors[0]["error"] == "the handler waits for a callback that is not registered (any more)"
        assert await enqueued(app) == []

    with caplog.at_level(logging.WARNING, "awa"):
        run(scenario)
    assert "follow-ups that were staged before WaitForCallback are discarded" in caplog.text
