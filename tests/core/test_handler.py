"""What a handler gets of its attempt."""

from datetime import UTC, datetime

import pytest

from awa_proto.handler import JobBase
from awa_proto.job import Attempt
from awa_proto.task import Task
from awa_proto.worker.events import Reason, StartJob

AT = datetime(2026, 1, 1, tzinfo=UTC)
TASK = Task("send_email", print, lambda text: text, is_async=False)


def attempt(extra: str | None = None) -> Attempt:
    return Attempt(0, 7, 0, 11, 5, "q", 2, "send_email", '{"to":"a"}', 3, 25, AT, AT, extra)


def test_a_job_shows_its_attempt_its_args_and_its_client() -> None:
    args, client = object(), object()
    job: JobBase[object, object] = JobBase(StartJob(attempt(), TASK, args), client)
    assert (job.id, job.kind, job.queue, job.priority, job.attempt, job.max_attempts, job.run_lease) == (
        5, "send_email", "q", 2, 3, 25, 11,
    )  # fmt: skip
    assert job.run_at == job.created_at == AT
    assert job.args is args
    assert job.client is client
    assert repr(job) == "<JobBase 5 'send_email' attempt 3 of 25>"


def test_a_plain_job_has_nothing_extra() -> None:
    job: JobBase[object, object] = JobBase(StartJob(attempt(), TASK, None), None)
    assert (job.metadata, job.tags, job.errors) == ({}, [], [])


def test_what_few_jobs_have_is_decoded_once_and_only_when_asked() -> None:
    job: JobBase[object, object] = JobBase(
        StartJob(attempt('{"metadata":{"a":1},"tags":["x"],"errors":[{"error":"e"}]}'), TASK, None), None
    )
    assert (job.metadata, job.tags, job.errors) == ({"a": 1}, ["x"], [{"error": "e"}])
    assert job.metadata is job.metadata
    broken: JobBase[object, object] = JobBase(StartJob(attempt("{"), TASK, None), None)
    with pytest.raises(ValueError, match="Expecting"):
        _ = broken.tags


def test_a_job_is_told_that_it_is_cancelled() -> None:
    job: JobBase[object, object] = JobBase(StartJob(attempt(), TASK, None), None)
    assert not job.is_cancelled()
    job.mark_cancelled(Reason.DEADLINE)
    assert job.is_cancelled()


def test_nothing_of_a_job_can_be_set() -> None:
    job: JobBase[object, object] = JobBase(StartJob(attempt(), TASK, None), None)
    for name in ("id", "args", "client", "anything"):
        with pytest.raises(AttributeError):
            setattr(job, name, 1)
