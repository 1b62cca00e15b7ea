"""Operations: what a client's calls make of what they are given, run against the memory model without a database."""

import contextlib
import dataclasses
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, get_args
from unittest import mock

import pytest
from typing_extensions import override

from awa_proto import events
from awa_proto.errors import DatabaseError, Failure, JobNotFound, SerializationError, ValidationError
from awa_proto.job import JobState
from awa_proto.operations import MOST_LISTED, Operations
from awa_proto.options import EnqueueRequest
from awa_proto.outcome import DeadLetter, ReasonName
from awa_proto.plan import Op, Plan, Statement
from awa_proto.registry import Registry
from awa_proto.schema import latest, migrate, migrations
from awa_proto.store import Cancelled, NewJob
from awa_proto.store.memory import MemoryStore

T = TypeVar("T")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class SendEmail:
    to: str


def run(op: Op[T]) -> T:
    """Run an Op that asks no database."""
    try:
        step = next(op.start())
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError(f"{op.name} asked for {step}")


class Recording(MemoryStore):
    """The memory model, and what was handed to it."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: NOW, random=random.Random(1).random)
        self.enqueued: list[tuple[str, list[NewJob], bool]] = []
        self.answers: list[Cancelled] = []

    @override
    def insert(self, jobs: Any, *, notify: bool = True, skip: bool = False) -> Op[Any]:
        self.enqueued.append(("insert", list(jobs), notify))
        return super().insert(jobs, notify=notify, skip=skip)

    @override
    def copy(self, jobs: Any, *, notify: bool = True, skip: bool = False) -> Op[int]:
        jobs = list(jobs)
        self.enqueued.append(("copy", jobs, notify))
        return super().copy(jobs, notify=notify, skip=skip)

    @override
    def cancel(self, id: int) -> Op[Cancelled]:
        op = super().cancel(id)

        def plan() -> Plan[Cancelled]:
            if self.answers:
                return self.answers.pop(0)
            return (yield from op.start())

        return dataclasses.replace(op, start=plan)


@pytest.fixture
def store() -> Recording:
    return Recording()


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def calls(store: Recording, registry: Registry) -> Operations[Any]:
    return Operations(store, registry.tasks, "awa", lambda: NOW, random=random.random)


def test_an_insert_returns_the_job_as_it_is_now(calls: Operations[Any]) -> None:
    job = run(calls.insert(SendEmail("a"), queue="q", priority=1, tags=["x"], metadata={"m": 1}))
    assert (job.kind, job.queue, job.args, job.state, job.priority, job.tags, job.metadata) == (
        "send_email", "q", {"to": "a"}, JobState.AVAILABLE, 1, ["x"], {"m": 1},
    )  # fmt: skip
    assert run(calls.get_job(job.id)) == job
    later = run(calls.insert(SendEmail("a"), run_at=NOW + timedelta(hours=1)))
    assert later.state is JobState.SCHEDULED


def test_a_task_that_is_registered_later_gives_its_queue(calls: Operations[Any], registry: Registry) -> None:
    assert run(calls.insert(SendEmail("a"))).queue == "default"
    registry.task(SendEmail, queue="email")(lambda job: None)
    assert run(calls.insert(SendEmail("a"))).queue == "email"


def test_the_options_of_a_request_count_more_than_those_of_the_call(calls: Operations[Any], store: Recording) -> None:
    request = EnqueueRequest(SendEmail("a")).queue("own").notify(False)
    run(calls.insert(request, queue="call", priority=3))
    rows = run(calls.insert_many([request, SendEmail("b"), {"kind": "x"}], queue="call", tags=["t"]))
    assert [(row.kind, row.queue, row.tags) for row in rows] == [
        ("send_email", "own", ["t"]), ("send_email", "call", ["t"]), ("x", "call", ["t"]),
    ]  # fmt: skip
    assert (
        run(calls.insert(EnqueueRequest(SendEmail("a"), {"queue": None, "priority": None}), priority=3)).priority == 3
    )
    del store.enqueued[-1]
    assert [(name, jobs[0].queue, notify) for name, jobs, notify in store.enqueued] == [
        ("insert", "own", False), ("insert", "own", True),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("jobs", "notify", "told"),
    [
        ([SendEmail("a")], True, True),
        ([SendEmail("a")], False, False),
        ([EnqueueRequest(SendEmail("a")).notify(False)], True, False),
        ([EnqueueRequest(SendEmail("a")).notify(True), SendEmail("a")], False, True),
    ],
)
def test_workers_are_told_when_any_job_of_a_batch_wants_it(
    calls: Operations[Any], store: Recording, jobs: list[Any], notify: bool, told: bool
) -> None:
    run(calls.insert_many(jobs, notify=notify))
    run(calls.enqueue_many(jobs, notify=notify))
    assert [(name, wake) for name, _, wake in store.enqueued] == [("insert", told), ("copy", told)]


def test_copy_takes_any_iterable_and_may_be_run_again(calls: Operations[Any]) -> None:
    op = calls.enqueue_many(SendEmail(str(n)) for n in range(5))
    assert run(op) == 5
    assert run(op) == 5  # as after a serialization failure: a generator would be empty by now
    assert len(run(calls.list_jobs())) == 10


def test_an_empty_batch_asks_nothing(calls: Operations[Any], store: Recording) -> None:
    assert run(calls.insert_many([])) == []
    assert run(calls.enqueue_many(iter(()))) == 0
    assert [jobs for _, jobs, _ in store.enqueued if jobs] == []


@pytest.mark.parametrize("call", ["insert_many", "enqueue_many"])
def test_one_bad_job_refuses_its_batch_and_is_named(calls: Operations[Any], store: Recording, call: str) -> None:
    many: Callable[..., Op[Any]] = getattr(calls, call)
    bad: list[tuple[Any, str, type[ValidationError]]] = [
        (SendEmail("\0"), "jobs[1].args", SerializationError),
        (5, "jobs[1].args", ValidationError),
        ({"a": 1}, "jobs[1].kind", ValidationError),
        (EnqueueRequest(SendEmail("a")).priority(9), "jobs[1].priority", ValidationError),
        (EnqueueRequest(SendEmail("a"), {5: 1}), "jobs[1].5", ValidationError),  # type: ignore[misc]
        (EnqueueRequest(SendEmail("a"), "abc"), "jobs[1].options", ValidationError),  # type: ignore[arg-type]
        (EnqueueRequest(SendEmail("a"), {"prio": 1}), "jobs[1].prio", ValidationError),  # type: ignore[typeddict-unknown-key]
    ]
    for job, field, kind in bad:
        with pytest.raises(ValidationError) as caught:
            many([SendEmail("a"), job])
        assert (caught.value.field, type(caught.value)) == (field, kind)
    for jobs in (SendEmail("a"), {"kind": "x"}, "text", None):
        with pytest.raises(ValidationError, match="jobs: a list or another iterable"):
            many(jobs)
    with pytest.raises(ValidationError, match="priority: 9 is outside"):
        many([], priority=9)
    assert store.enqueued == []


def test_using_puts_the_op_on_the_connection_of_the_caller(calls: Operations[Any]) -> None:
    connection = object()
    assert calls.insert(SendEmail("a"), using=connection).using is connection
    assert calls.insert_many([SendEmail("a")], using=connection).using is connection
    assert calls.cancel(1, using=connection).using is connection
    assert calls.insert(SendEmail("a")).using is None


def test_large_args_are_enqueued_with_one_warning_for_each_kind(
    calls: Operations[Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "awa"):
        run(calls.insert(SendEmail("é" * 32768)))
        run(calls.insert_many([SendEmail("x" * 70000), SendEmail("x" * 70000)]))
        run(calls.insert(SendEmail("x" * 65000)))
        run(calls.insert({"a": "x" * 70000}, kind="other"))
    assert [record.getMessage()[:58] for record in caplog.records] == [
        "the args of a job of kind 'send_email' are 65545 bytes of ",
        "the args of a job of kind 'other' are 70008 bytes of JSON,",
    ]


def test_cancel_says_whether_it_was_this_call(calls: Operations[Any]) -> None:
    job = run(calls.insert(SendEmail("a")))
    assert run(calls.cancel(job.id)) is True
    assert run(calls.cancel(job.id)) is False
    with pytest.raises(JobNotFound, match="no job has the id 999") as caught:
        run(calls.cancel(999))
    assert caught.value.id == 999


def test_a_running_job_is_cancelled_by_this_call(calls: Operations[Any], store: Recording) -> None:
    store.answers = [Cancelled.RUNNING]
    assert run(calls.cancel(1)) is True


def test_a_job_that_moves_is_asked_for_again(calls: Operations[Any], store: Recording) -> None:
    store.answers = [Cancelled.AGAIN, Cancelled.AGAIN, Cancelled.CANCELLED]
    assert run(calls.cancel(1)) is True


def test_a_job_that_keeps_moving_is_a_failure_that_is_tried_again(calls: Operations[Any], store: Recording) -> None:
    store.answers = [Cancelled.AGAIN] * 100
    with pytest.raises(DatabaseError, match="kept moving") as caught:
        run(calls.cancel(1))
    assert caught.value.failure is Failure.TRANSIENT
    assert len(store.answers) == 90


# what calls tell hooks


@pytest.fixture
def told(store: Recording) -> Operations[Any]:
    return Operations(store, Registry().tasks, "awa", lambda: NOW, {"send_email"}, random=random.random)


def test_a_cancellation_carries_the_event_to_tell_after_its_commit(told: Operations[Any]) -> None:
    job = run(told.insert(SendEmail("a")))
    op = told.cancel(job.id)
    assert list(op.events) == []
    assert run(op) is True
    row = run(told.get_job(job.id))
    assert row is not None
    assert list(op.events) == [events.Cancelled(row, None, "")]
    assert run(op) is False
    assert list(op.events) == []


def test_a_cancellation_of_a_kind_without_hooks_carries_none(told: Operations[Any]) -> None:
    op = told.cancel(run(told.insert({}, kind="other")).id)
    assert run(op) is True
    assert list(op.events) == []


@pytest.mark.parametrize("hooked", [(), ("send_email",)])
@pytest.mark.parametrize("using", [None, object()])
def test_the_job_is_read_only_if_there_are_hooks_and_its_commit_is_known_here(
    store: Recording, hooked: tuple[str, ...], using: object
) -> None:
    calls: Operations[Any] = Operations(store, Registry().tasks, "awa", lambda: NOW, hooked, random=random.random)
    job = run(calls.insert(SendEmail("a")))
    with mock.patch.object(store, "get_job", wraps=store.get_job) as get_job:
        op = calls.cancel(job.id, using=using)
        assert run(op) is True
    assert get_job.called is bool(hooked and using is None)
    assert len(op.events) == get_job.call_count


def test_an_event_is_lost_when_its_job_cannot_be_read_and_nothing_else_is(
    told: Operations[Any], store: Recording, caplog: pytest.LogCaptureFixture
) -> None:
    job = run(told.insert(SendEmail("a")))

    def plan() -> Plan[None]:
        yield from ()
        raise DatabaseError("gone", None)

    with mock.patch.object(store, "get_job", return_value=Op("get_job", plan)):
        op = told.cancel(job.id)
        assert run(op) is True
    assert list(op.events) == []
    assert f"hooks are not told that job {job.id} was cancelled" in caplog.text


def test_retry_makes_a_cancelled_job_available_again(calls: Operations[Any]) -> None:
    job = run(calls.insert(SendEmail("a")))
    run(calls.cancel(job.id))
    again = run(calls.retry(job.id))
    assert (again.id, again.state, again.attempt) == (job.id, JobState.AVAILABLE, 0)


def test_retry_of_another_state_says_which_and_changes_nothing(calls: Operations[Any]) -> None:
    job = run(calls.insert(SendEmail("a")))
    with pytest.raises(ValidationError, match=f"id: job {job.id} is available; only failed and cancelled"):
        run(calls.retry(job.id))
    assert run(calls.get_job(job.id)) == job
    with pytest.raises(JobNotFound):
        run(calls.retry(999))


def test_an_unknown_job_is_none(calls: Operations[Any]) -> None:
    assert run(calls.get_job(999)) is None


@pytest.mark.parametrize("call", ["get_job", "cancel", "retry"])
@pytest.mark.parametrize("id", [-1, 2**63, "1", True, 1.0, None])
def test_what_cannot_be_an_id_is_refused(calls: Operations[Any], call: str, id: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        getattr(calls, call)(id)
    assert caught.value.field == "id"


def test_lists_are_newest_first_in_pages(calls: Operations[Any]) -> None:
    ids = [job.id for job in run(calls.insert_many([SendEmail(str(n)) for n in range(5)]))]
    first = run(calls.list_jobs(limit=2))
    second = run(calls.list_jobs(limit=2, before_id=first[-1].id))
    assert [job.id for job in first + second] == sorted(ids, reverse=True)[:4]


def test_lists_take_a_state_by_value_or_by_name(calls: Operations[Any]) -> None:
    job, _ = run(calls.insert_many([SendEmail("a"), {"kind": "x"}]))
    run(calls.cancel(job.id))
    for state in (JobState.CANCELLED, "cancelled"):
        assert [found.id for found in run(calls.list_jobs(state=state))] == [job.id]
    assert [found.kind for found in run(calls.list_jobs(kind="x", queue="default"))] == ["x"]
    assert run(calls.list_jobs(queue="other")) == []


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("state", "avialable"), ("state", 5), ("state", []), ("state", 10**400), ("state", "x" * 999),
        ("limit", 0), ("limit", MOST_LISTED + 1), ("limit", True), ("kind", ""),
        ("queue", "a\0"), ("before_id", "1"), ("before_id", 2**63), ("tag", 5), ("tag", "\0"), ("metadata", "x"),
        ("metadata", {"a": "\0"}), ("metadata", {1: 2}),
    ],
)  # fmt: skip
def test_a_wrong_condition_of_a_list_is_named(calls: Operations[Any], option: str, value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        calls.list_jobs(**{option: value})
    assert caught.value.field == option


def test_queues_are_paused_resumed_striped_and_counted(calls: Operations[Any]) -> None:
    run(calls.insert(SendEmail("a"), queue="q"))
    run(calls.pause_queue("q", by="me"))
    run(calls.set_stripes("q", 4))
    (stat,) = run(calls.queue_stats())
    assert (stat.queue, stat.available, stat.paused, stat.stripes) == ("q", 1, True, 4)
    run(calls.resume_queue("q"))
    assert run(calls.queue_stats())[0].paused is False


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda calls: calls.pause_queue(""), "queue"),
        (lambda calls: calls.pause_queue("q", by="a\0"), "by"),
        (lambda calls: calls.resume_queue("q" * 201), "queue"),
        (lambda calls: calls.set_stripes("q", 0), "stripes"),
        (lambda calls: calls.set_stripes("q", 65), "stripes"),
        (lambda calls: calls.set_stripes("q", True), "stripes"),
    ],
)
def test_a_wrong_setting_of_a_queue_is_named(calls: Operations[Any], call: Any, field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        call(calls)
    assert caught.value.field == field


def test_a_job_that_moves_while_it_is_cancelled_by_its_key_is_looked_for_again(
    calls: Operations[Any], store: Recording
) -> None:
    job = run(calls.insert(SendEmail("a"), unique_opts={}))
    store.answers = [Cancelled.AGAIN, Cancelled.AGAIN]
    assert run(calls.cancel_by_unique_key(args=SendEmail("a"))) == job.id
    store.answers = [Cancelled.AGAIN] * 99
    with pytest.raises(DatabaseError) as moving:
        run(calls.cancel_by_unique_key(args=SendEmail("a")))
    assert moving.value.failure is Failure.TRANSIENT


def test_a_key_that_went_to_a_newer_job_while_the_older_one_ended_is_followed(
    calls: Operations[Any], store: Recording
) -> None:
    older = run(calls.insert(SendEmail("a"), unique_opts={}))
    run(calls.cancel(older.id))
    newer = run(calls.insert(SendEmail("a"), unique_opts={}))
    holders = [older.id, newer.id, newer.id, newer.id]
    store.holder = lambda key: Op("holder", lambda: _answering(holders.pop(0)))  # type: ignore[method-assign]
    assert run(calls.cancel_by_unique_key(args=SendEmail("a"))) == newer.id
    assert run(calls.cancel_by_unique_key(args=SendEmail("a"))) is None
    assert holders == []


def _answering(value: T) -> Plan[T]:
    yield from ()
    return value


def test_migrate_is_for_the_schema_of_the_client(store: Recording) -> None:
    op = Operations[Any](store, {}, "my schema", lambda: NOW, random=random.random).migrate()
    assert op.atomic
    assert (op.name, op.safe_to_retry) == ("migrate", True)


def test_migrations_are_numbered_without_a_gap_and_none_twice() -> None:
    assert [version for version, _, _ in migrations()] == list(range(1, latest() + 1))


def test_each_statement_of_a_migration_has_a_name_of_its_own() -> None:
    answers: dict[str, list[Any]] = {"migrate.known": [(False, False)], "migrate.version": [(0,)]}
    plan = migrate().start()
    texts: dict[str, str] = {}
    with contextlib.suppress(StopIteration):
        step = next(plan)
        while True:
            assert isinstance(step, Statement)
            assert texts.setdefault(step.name, step.sql) == step.sql
            step = plan.send(answers.get(step.name, []))
    assert {"migrate.prepare.1", "migrate.prepare.2", "migrate.0001.1", "migrate.0001.2"} < set(texts)


BULK = ["retry_all_from_dlq", "move_failed_to_dlq", "purge_dlq", "retry_failed", "discard_failed"]


@pytest.mark.parametrize("call", BULK)
def test_a_bulk_call_without_a_condition_has_to_say_that_it_means_all(calls: Operations[Any], call: str) -> None:
    for options in ({}, {"limit": 5}, {"allow_all": False}):
        with pytest.raises(ValidationError) as caught:
            getattr(calls, call)(**options)
        assert caught.value.field == "allow_all"
    assert run(getattr(calls, call)(allow_all=True)) == 0
    assert run(getattr(calls, call)(older_than=0)) == 0


@pytest.mark.parametrize("call", BULK)
@pytest.mark.parametrize(
    ("option", "value"),
    [("kind", ""), ("queue", "a\0"), ("tag", 5), ("older_than", -1), ("older_than", True), ("limit", 0), ("limit", 2.5),
     ("allow_all", 1)],
)  # fmt: skip
def test_a_wrong_condition_of_a_bulk_call_is_named(calls: Operations[Any], call: str, option: str, value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        getattr(calls, call)(**{"queue": "q", option: value})
    assert caught.value.field == option


@pytest.mark.parametrize(
    ("option", "value"),
    [("reason", "because"), ("reason", 5), ("limit", 0), ("limit", MOST_LISTED + 1), ("before", 5), ("before", (1, 2, 3)),
     ("before", ("x", 1)), ("before", (None, 1)), ("before", (NOW.replace(tzinfo=None), 1)), ("before", (NOW, "1"))],
)  # fmt: skip
def test_a_wrong_condition_of_a_list_of_dead_letters_is_named(calls: Operations[Any], option: str, value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        calls.list_dlq(**{option: value})
    assert caught.value.field == option


def test_a_reason_is_named_or_given(calls: Operations[Any]) -> None:
    assert run(calls.list_dlq(reason="terminal_error")) == run(calls.list_dlq(reason=DeadLetter.TERMINAL)) == []
    assert set(get_args(ReasonName)) == set(DeadLetter)


@pytest.mark.parametrize("call", ["retry_from_dlq", "move_to_dlq", "purge_dlq_job", "get_dlq_job", "delete_job"])
@pytest.mark.parametrize("id", [-1, 2**63, "1", True, None])
def test_what_cannot_be_the_id_of_a_dead_letter_is_refused(calls: Operations[Any], call: str, id: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        getattr(calls, call)(id)
    assert caught.value.field == "id"


def test_only_what_has_ended_can_be_deleted(calls: Operations[Any]) -> None:
    job = run(calls.insert(SendEmail("a")))
    with pytest.raises(ValidationError, match="is available; only jobs that have ended"):
        run(calls.delete_job(job.id))
    run(calls.cancel(job.id))
    assert [run(calls.delete_job(job.id)) for _ in range(2)] == [True, False]


def test_a_queue_to_drain_is_named(calls: Operations[Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        calls.drain_queue("")
    assert caught.value.field == "queue"


@pytest.mark.parametrize("segments", [3, 33, True, 8.0, "8"])
def test_a_ring_of_another_size_than_there_may_be_is_refused_before_anything_is_sent(
    calls: Operations[Any], segments: Any
) -> None:
    with pytest.raises(ValidationError) as refused:
        calls.migrate(segments=segments)
    assert refused.value.field == "segments"
