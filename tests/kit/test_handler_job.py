"""HandlerJob: what a handler gets in a unit test, in every package and for both kinds of handlers."""

import asyncio
import inspect
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest
import trio

import awa_asyncio
import awa_asyncio.testing
import awa_proto as awa
import awa_sync
import awa_sync.testing
import awa_trio
import awa_trio.testing
from tests.flavours import App

PACKAGES = {"asyncio": awa_asyncio, "trio": awa_trio, "sync": awa_sync}
JOBS: dict[str, tuple[Any, Any]] = {
    "asyncio": (awa_asyncio.testing.HandlerJob, awa_asyncio.Job),
    "asyncio plain": (awa_asyncio.testing.BlockingHandlerJob, awa_asyncio.BlockingJob),
    "trio": (awa_trio.testing.HandlerJob, awa_trio.Job),
    "trio plain": (awa_trio.testing.BlockingHandlerJob, awa_trio.BlockingJob),
    "sync": (awa_sync.testing.HandlerJob, awa_sync.Job),
}
Make = Callable[..., Any]


@dataclass
class Resize:
    width: int
    at: datetime | None = None


@dataclass
class Audit:
    job: int


class Thumbnail(NamedTuple):
    width: int


@pytest.fixture(params=JOBS)
def flavour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(flavour: str) -> Make:
    made: Make = JOBS[flavour][0]
    return made


@pytest.fixture
def tasks(flavour: str) -> Any:
    return PACKAGES[flavour.partition(" ")[0]].Tasks()


def done(call: Any) -> Any:
    """The result of a call of any package; nothing here ever waits, so no event loop is needed."""
    if not inspect.iscoroutine(call):
        return call
    with pytest.raises(StopIteration) as end:
        call.send(None)
    return end.value.value


def handler(job: Any) -> None:
    job.set_progress(50, "rendered")
    job.set_output({"width": job.args.width, "sizes": (1, 2)})
    job.enqueue_on_completion(Audit(job.id), queue="audits", tags=["a"])


def test_it_is_the_job_of_the_package_with_what_the_test_says(flavour: str, make: Make) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    job = make(
        Resize(3, at), id=7, attempt=3, queue="images", priority=1, max_attempts=5, run_at=at, created_at=at, tags=["x"],
        metadata={"a": 1}, errors=[{"error": "boom", "attempt": 2}], progress={"percent": 9}, run_lease=12,
    )  # fmt: skip
    assert isinstance(job, JOBS[flavour][1])
    assert (job.args, job.id, job.kind, job.queue, job.attempt) == (Resize(3, at), 7, "resize", "images", 3)
    assert (job.priority, job.max_attempts, job.run_at, job.created_at, job.run_lease) == (1, 5, at, at, 12)
    assert (job.metadata, job.tags, job.errors) == ({"a": 1}, ["x"], [{"error": "boom", "attempt": 2}])
    assert (job.progress, job.output, job.staged, job.is_cancelled()) == ({"percent": 9}, None, [], False)


def test_it_records_output_progress_and_follow_ups(make: Make) -> None:
    job = make(Resize(3))
    handler(job)
    assert job.output == {"width": 3, "sizes": [1, 2]}
    assert job.progress == {"percent": 50, "message": "rendered"}
    assert job.staged == [awa.EnqueueRequest(Audit(1)).queue("audits").tags("a")]
    [staged] = job.staged
    assert (staged.args, staged.options["queue"]) == (Audit(1), "audits")


def test_a_request_that_is_staged_is_one_with_the_options_of_both(make: Make) -> None:
    job = make(Resize(3))
    job.enqueue_on_completion(awa.EnqueueRequest(Audit(1)).queue("own"), queue="common", priority=1, max_attempts=None)
    assert job.staged == [awa.EnqueueRequest(Audit(1)).queue("own").priority(1)]


def test_what_a_real_job_refuses_it_refuses(make: Make) -> None:
    job = make(Resize(3))
    with pytest.raises(awa.OutputError.Invalid):
        job.set_output({1, 2})
    with pytest.raises(awa.OutputError.TooLarge):
        job.set_output("x" * 5000)
    with pytest.raises(awa.StagingError.Invalid):
        job.enqueue_on_completion(Audit(1), priority=9)
    for n in range(16):
        job.enqueue_on_completion(Audit(n))
    with pytest.raises(awa.StagingError.TooMany):
        job.enqueue_on_completion(Audit(16))
    with pytest.raises(awa.ValidationError):
        job.set_progress(101)
    job.seal()
    with pytest.raises(awa.OutputError.Sealed):
        job.set_output(1)


def test_the_args_are_what_json_brings_back_and_what_it_cannot_hold_is_refused(make: Make) -> None:
    assert make({"kind": "raw", "pair": [1, 2]}).args == {"kind": "raw", "pair": [1, 2]}
    with pytest.raises(awa.SerializationError):
        make({"kind": "raw", "pair": (float("nan"),)})
    with pytest.raises(awa.ValidationError, match="kind"):
        make({"pair": 1})


def test_what_an_insert_would_refuse_and_what_no_job_has_is_refused(make: Make) -> None:
    for fields, name in (
        ({"priority": 9}, "priority"),
        ({"attempt": 0}, "attempt"),
        ({"id": "x"}, "id"),
        ({"colour": 1}, "colour"),
        ({"progress": [1]}, "progress"),
        ({"created_at": datetime(2026, 1, 1)}, "created_at"),  # noqa: DTZ001  the mistake
    ):
        with pytest.raises(awa.ValidationError, match=name):
            make(Resize(1), **fields)


def test_the_declared_output_is_enforced(make: Make, tasks: Any) -> None:
    job = make(Resize(3), output=Thumbnail)
    with pytest.raises(awa.OutputError.Invalid):
        job.set_output({"width": 3})
    job.set_output(Thumbnail(3))
    assert job.output == [3]
    tasks.task(Resize, output=Thumbnail)(lambda _job: None)
    with pytest.raises(awa.OutputError.Invalid):
        make(Resize(3), tasks=tasks).set_output({"width": 3})


def test_registrations_say_kind_and_queue(make: Make, tasks: Any) -> None:
    tasks.task(Resize, kind="resize_v2", queue="images")(lambda _job: None)
    tasks.task(Audit, queue="audits")(lambda _job: None)
    job = make(Resize(3), tasks=tasks)
    assert (job.kind, job.queue) == ("resize_v2", "images")
    assert done(job.client.insert(Audit(1))).queue == "audits"
    assert make(Resize(3), tasks=tasks, queue="other").queue == "other"


def test_cancel_lets_the_handler_know(make: Make) -> None:
    job = make(Resize(3))
    assert not job.is_cancelled()
    job.set_progress(1)
    assert done(job.flush_progress()) is True
    job.cancel()
    assert job.is_cancelled()
    assert done(job.flush_progress()) is False


def test_flushed_progress_is_remembered(make: Make) -> None:
    job = make(Resize(3))
    assert done(job.flush_progress()) is True
    job.set_progress(10)
    job.update_metadata({"row": 4})
    done(job.flush_progress())
    job.set_progress(20)
    assert job.flushed == [{"percent": 10, "metadata": {"row": 4}}]
    assert job.progress == {"percent": 20, "metadata": {"row": 4}}


def test_its_client_keeps_jobs_in_memory(make: Make) -> None:
    job = make(Resize(3))
    first = done(job.client.insert(Audit(1), unique_opts={}))
    with pytest.raises(awa.UniqueConflict):
        done(job.client.insert(Audit(1), unique_opts={}))
    done(job.client.insert_many([Audit(2), Audit(3)], queue="q"))
    assert done(job.client.cancel(first.id)) is True
    assert [(row.args["job"], row.queue, row.state) for row in job.enqueued] == [
        (1, "default", "cancelled"),
        (2, "q", "available"),
        (3, "q", "available"),
    ]
    assert done(job.client.get_job(first.id)).state is awa.JobState.CANCELLED


def test_what_needs_a_database_says_so(flavour: str, make: Make) -> None:
    job = make(Resize(3))
    with pytest.raises(awa.ConfigurationError, match="no database"):
        done(job.client.insert(Audit(1), using=object()))
    if "plain" not in flavour:
        with pytest.raises(awa.ConfigurationError, match="no database"):
            job.client.transaction()


@pytest.mark.parametrize("package", PACKAGES.values(), ids=PACKAGES)
def test_a_client_of_the_tests_own_is_used_and_its_registrations_count(package: Any) -> None:
    client = package.Client("postgresql://nowhere/x")
    client.task(Resize, queue="images")(lambda _job: None)
    job = vars(package)["testing"].HandlerJob(Resize(3), client=client)
    assert job.client is client
    assert job.queue == "images"
    with pytest.raises(awa.ConfigurationError, match="was given a client"):
        _ = job.enqueued


def test_importing_a_package_brings_in_nothing_for_tests() -> None:
    import subprocess
    import sys

    program = (
        "import sys, awa_asyncio, awa_trio, awa_sync; print([m for m in sys.modules if '.testing' in m and 'awa' in m])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def waited(flavour: str, make: Make, scenario: Callable[[Any], Generator[Any, Any, Any]]) -> Any:
    """What a handler returns that waits: on the event loop of its package, if there is one. It yields calls of its job."""
    package = flavour.partition(" ")[0]
    handler: Any = App(None, is_async=package == flavour != "sync").handler(scenario)

    async def awaited() -> Any:
        return await handler(make(Resize(3)))

    if package != flavour or package == "sync":
        return handler(make(Resize(3)))
    return asyncio.run(awaited()) if package == "asyncio" else trio.run(awaited)


def test_callbacks_are_recorded_and_what_is_delivered_is_waited_for(flavour: str, make: Make) -> None:
    def scenario(job: Any) -> Generator[Any, Any, Any]:
        first = yield job.register_callback(timeout=5)
        job.deliver({"a": 1}, TimeoutError("too long"), None)
        answers = [(yield job.wait_for_callback(first))]
        second = yield job.register_callback()
        assert job.callbacks == [first, second]
        with pytest.raises(TimeoutError, match="too long"):
            yield job.wait_for_callback(second)
        answers.append((yield job.wait_for_callback(second.id)))
        third = yield job.register_callback()
        with pytest.raises(awa.ConfigurationError, match="deliver"):
            yield job.wait_for_callback(third)
        with pytest.raises(awa.ValidationError):
            job.deliver({1, 2})
        return answers

    assert waited(flavour, make, scenario) == [{"a": 1}, None]


def test_a_callback_that_was_replaced_used_or_never_registered_is_waited_for_in_vain(flavour: str, make: Make) -> None:
    def scenario(job: Any) -> Generator[Any, Any, Any]:
        job.deliver(1, 2)
        with pytest.raises(awa.CallbackNotFound):
            yield job.wait_for_callback("00000000-0000-4000-8000-000000000000")
        first = yield job.register_callback()
        second = yield job.register_callback()
        with pytest.raises(awa.CallbackNotFound):
            yield job.wait_for_callback(first)
        assert (yield job.wait_for_callback(second)) == 1
        with pytest.raises(awa.CallbackNotFound):
            yield job.wait_for_callback(second)
        job.cancel()
        with pytest.raises(awa.WaitCancelled):
            yield job.wait_for_callback(second)
        with pytest.raises(awa.AttemptEnded):
            yield job.register_callback()

    waited(flavour, make, scenario)


def test_a_job_may_be_one_that_was_parked_and_resumed(make: Make) -> None:
    job = make(Resize(3))
    assert (job.was_resumed, job.callback_result) == (False, None)
    for came in ({"by": ["Ada"]}, None):
        job = make(Resize(3), callback_result=came, tags=["x"])
        assert (job.was_resumed, job.callback_result, job.tags) == (True, came, ["x"])
    with pytest.raises(awa.ValidationError, match="callback_result"):
        make(Resize(3), callback_result={1})
