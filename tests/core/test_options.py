"""Options of an enqueue: what is refused, by the name of the field, and what becomes of what is not."""

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from awa_proto import extra
from awa_proto.args import decoder
from awa_proto.errors import SerializationError, ValidationError
from awa_proto.options import EnqueueRequest, InsertOpts, Options
from awa_proto.store import NewJob
from awa_proto.task import Task
from awa_proto.unique import Uniqueness, UniqueOpts


@dataclass
class SendEmail:
    to: str


EMAIL = SendEmail("a")
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Queue(str, enum.Enum):  # noqa: UP042  what people had before StrEnum; it prints as Queue.EMAIL
    EMAIL = "email"


class NoZone(tzinfo):
    utcoffset = tzname = dst = None  # type: ignore[assignment]  # on purpose


def job(args: Any = EMAIL, tasks: Any = MappingProxyType({}), **options: Any) -> NewJob:
    return Options.of(InsertOpts(**options), lambda: NOW).new_job(args, tasks)  # type: ignore[typeddict-item]


def task(kind: str, args_type: type | None, queue: str | None = None) -> dict[str, Task]:
    return {kind: Task(kind, print, decoder(args_type), is_async=False, queue=queue, args_type=args_type)}


REFUSED = [
    ("queue", "", "0 characters; 1 to 200"),
    ("queue", "q" * 201, "201 characters; 1 to 200"),
    ("queue", "a\0b", "NUL"),
    ("queue", "\ud800", "surrogate"),
    ("queue", 5, "text is needed, not int"),
    ("queue", b"x", "text is needed, not bytes"),
    ("kind", "", "0 characters; 1 to 200"),
    ("kind", "k" * 201, "201 characters; 1 to 200"),
    ("kind", "a\0", "NUL"),
    ("kind", "\udfff", "surrogate"),
    ("priority", 0, "outside 1 … 4"),
    ("priority", 5, "outside 1 … 4"),
    pytest.param("priority", 10**5000, "outside 1 … 4", id="a number that cannot be printed"),
    ("priority", True, "whole number is needed, not bool"),
    ("priority", 2.0, "whole number is needed, not float"),
    ("priority", "1", "whole number is needed, not str"),
    ("max_attempts", 0, "outside 1 … 1000"),
    ("max_attempts", 1001, "outside 1 … 1000"),
    ("max_attempts", True, "not bool"),
    ("run_at", datetime(2026, 1, 1), "no time zone"),  # noqa: DTZ001  that is the point
    ("run_at", date(2026, 1, 1), "a datetime is needed, not date"),
    ("run_at", "2026-01-01", "a datetime is needed, not str"),
    ("run_at", datetime.min.replace(tzinfo=timezone(timedelta(hours=1))), "years 1 … 9999"),
    ("run_at", datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))), "years 1 … 9999"),
    ("run_at", datetime.min.replace(tzinfo=UTC), "infinity"),
    ("run_at", datetime.max.replace(tzinfo=UTC), "infinity"),
    ("run_at", datetime(2026, 1, 1, tzinfo=NoZone()), "its time zone does not work"),
    ("deadline_duration", 10**400, "outside"),
    ("deadline_duration", 0, "0 seconds is no time"),
    ("deadline_duration", -1, "outside 0 … 100 years"),
    ("deadline_duration", math.nan, "outside"),
    ("deadline_duration", math.inf, "outside"),
    ("deadline_duration", True, "not bool"),
    ("deadline_duration", timedelta(days=-1), "outside"),
    ("tags", [str(n) for n in range(21)], "21 tags; 20"),
    ("tags", "abc", "a sequence of text is needed, not str"),
    ("tags", ["a\0"], "NUL"),
    ("tags", ["\ud800"], "surrogate"),
    ("tags", [1], "text is needed, not int"),
    ("metadata", {"awa:x": 1}, "reserved"),
    ("metadata", {"_awa_x": 1}, "reserved"),
    ("metadata", {1: 1}, "keys are text"),
    ("metadata", {"a": "x" * 65536}, "65544 bytes of JSON; 65536"),
    ("metadata", {"a": "é" * 32768}, "65544 bytes of JSON; 65536"),
    ("metadata", {"a": [{"b": math.nan}]}, "a[0].b is not a finite number"),
    pytest.param("metadata", {"a": 10**5000}, "number out of range", id="metadata-huge"),
    ("metadata", {"a": {1: 1, "1": 2}}, "a has a key of type int"),
    ("metadata", {"a": {1}}, "a is a set"),
    ("metadata", {"a": "\0"}, "NUL"),
    ("metadata", {"a\0": 1}, "NUL"),
    ("metadata", {"a": "\ud800"}, "surrogate"),
    ("metadata", {"a": object()}, "cannot be written as JSON"),
    ("metadata", [1], "a mapping is needed, not list"),
    ("metadata", "", "a mapping is needed, not str"),
    ("ordering_key", 5, "text is needed, not int"),
    ("ordering_key", "\ud800", "surrogate"),
    ("notify", 1, "True or False is needed, not int"),
    ("uniqueness", {}, "no such option"),
    ("unique_opts", True, "a mapping of its fields"),
]


@pytest.mark.parametrize(("field", "value", "limit"), REFUSED)
def test_what_is_refused_names_its_field_and_its_limit(field: str, value: object, limit: str) -> None:
    with pytest.raises(ValidationError) as caught:
        job(**{field: value})
    assert caught.value.field == field
    assert limit in caught.value.reason
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("field", InsertOpts.__annotations__)
def test_none_means_the_default(field: str) -> None:
    assert job(**{field: None}) == job()


def test_the_defaults_are_those_of_the_documentation() -> None:
    assert job() == NewJob("send_email", "default", '{"to":"a"}', 2, 25, None, None, None)


def test_the_limits_themselves_are_allowed() -> None:
    made = job(
        kind="k" * 200,
        queue="\N{SNOWMAN}" * 200,
        priority=4,
        max_attempts=1000,
        tags=[str(n) for n in range(20)],
        metadata={"a": "x" * 65528},
    )
    assert (len(made.kind), len(made.queue), made.priority, made.max_attempts) == (200, 200, 4, 1000)
    assert len(extra.decode(made.extra)["tags"]) == 20


def test_what_few_jobs_have_goes_into_extra() -> None:
    made = job(
        tags={"a"}, metadata={"at": datetime(2026, 1, 1, tzinfo=UTC), "n": 1.0}, deadline_duration=timedelta(minutes=2)
    )
    assert extra.decode(made.extra) == {
        "metadata": {"at": "2026-01-01T00:00:00Z", "n": 1.0},
        "tags": ["a"],
        "deadline": 120.0,
    }


def test_the_trace_of_the_caller_is_the_one_reserved_key_that_may_be_given() -> None:
    assert extra.decode(job(metadata={"awa:traceparent": "00-a-b-01"}).extra)["metadata"] == {
        "awa:traceparent": "00-a-b-01"
    }


def test_instants_become_utc() -> None:
    local = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=5)))
    made = job(run_at=local).run_at
    assert made == local
    assert made is not None
    assert made.tzinfo is UTC


def test_an_enum_member_is_the_text_it_stands_for() -> None:
    made = job(queue=Queue.EMAIL).queue
    assert type(made) is str
    assert f"{made}" == "email"


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")) | st.binary())
def test_an_ordering_key_is_a_number_of_63_bits_and_always_the_same(key: str | bytes) -> None:
    first = job(ordering_key=key).ordering
    assert first is not None
    assert 0 <= first < 2**63
    assert job(ordering_key=key.encode() if isinstance(key, str) else key).ordering == first


def test_ordering_keys_do_not_change_between_versions() -> None:
    """Jobs of one key that two versions enqueue must meet in one stripe. The number is from coreutils: sha256sum."""
    assert job(ordering_key="customer 7").ordering == 6064984709968025903


@given(st.datetimes(timezones=st.timezones()))
def test_an_aware_datetime_is_kept_or_refused_but_never_moved(at: datetime) -> None:
    try:
        made = job(run_at=at).run_at
    except ValidationError:
        assert at.year in {1, 9999}
    else:
        assert made is not None
        assert made.timestamp() == at.timestamp()


def test_the_queue_is_the_options_or_the_kinds_or_default() -> None:
    tasks = task("send_email", SendEmail, "email")
    assert job(tasks=tasks, queue="x").queue == "x"
    assert job(tasks=tasks).queue == "email"
    assert job(tasks=tasks, kind="other").queue == "default"
    assert job(tasks=task("send_email", SendEmail)).queue == "default"


def test_the_kind_a_class_is_registered_for_is_the_kind_of_its_jobs() -> None:
    tasks = task("mail", SendEmail, "email") | task("other", None)
    assert (job(tasks=tasks).kind, job(tasks=tasks).queue) == ("mail", "email")
    assert job(tasks=tasks, kind="send_email").kind == "send_email"
    assert job(tasks=task("x", dict[str, int])).kind == "send_email"
    with pytest.raises(ValidationError, match="SendEmail is registered for 'mail' and 'post'") as caught:
        job(tasks=tasks | task("post", SendEmail))
    assert caught.value.field == "kind"
    assert job(tasks=tasks | task("post", SendEmail), kind="post").kind == "post"


def test_a_mapping_needs_a_kind_from_somewhere() -> None:
    assert job({"a": 1}, kind="x").kind == "x"
    made = job({"kind": "x", "a": 1})
    assert (made.kind, made.args) == ("x", '{"kind":"x","a":1}')
    refused: list[Mapping[str, int]] = [{"a": 1}, {"kind": 5}, MappingProxyType({})]
    for without in refused:
        with pytest.raises(ValidationError, match="kind"):
            job(without)
    with pytest.raises(ValidationError, match="NUL"):
        job({"kind": "a\0"})


def test_args_that_the_handler_of_the_kind_could_not_read_are_refused() -> None:
    tasks = task("send_email", SendEmail)
    assert job({"to": "a"}, tasks, kind="send_email").args == '{"to":"a"}'
    with pytest.raises(SerializationError, match="to: Field required"):
        job({"too": "a"}, tasks, kind="send_email")


def test_a_request_is_made_in_steps_and_each_step_is_a_new_one() -> None:
    first = EnqueueRequest(SendEmail("a"))
    at = datetime(2026, 1, 1, tzinfo=UTC)
    second = (
        first.kind("k")
        .queue("x")
        .priority(1)
        .max_attempts(3)
        .run_at(at)
        .deadline_duration(5)
        .metadata({"a": 1})
        .tags("b", "c")
        .unique(by_queue=True)
        .ordering_key("o")
        .notify(False)
    )
    assert first.options == {}
    options = Options.of(second.options, lambda: NOW)
    assert options.notify is False
    keyword = job(
        kind="k", queue="x", priority=1, max_attempts=3, run_at=at, deadline_duration=5, metadata={"a": 1},
        tags=["b", "c"], unique_opts=UniqueOpts(by_queue=True), ordering_key="o",
    )  # fmt: skip
    assert options.new_job(second.args, {}) == keyword


def test_a_request_has_a_method_for_every_option() -> None:
    named = {option.removesuffix("_opts") for option in InsertOpts.__annotations__}
    assert named <= vars(EnqueueRequest).keys()


def test_a_request_is_unique_by_options_fields_or_both() -> None:
    request = EnqueueRequest(SendEmail("a"))
    for made, same in [
        (request.unique(), {}),
        (request.unique({"by_queue": True}), {"by_queue": True}),
        (request.unique(UniqueOpts(by_queue=True)), {"by_queue": True}),
        (request.unique(UniqueOpts(by_queue=True), by_args=False), {"by_queue": True, "by_args": False}),
        (request.unique({"by_queue": True}, by_period=60), {"by_queue": True, "by_period": 60}),
    ]:
        assert Options.of(made.options, lambda: NOW).unique == Uniqueness.of(same)


def test_the_key_of_a_job_travels_with_it_beside_what_else_it_has() -> None:
    plain, tagged = job(unique_opts={}), job(unique_opts={}, tags=["t"], metadata={"unique": ["x"]})
    assert plain.unique is not None
    assert plain.unique == tagged.unique == Uniqueness.of({}).of_job("send_email", "default", '{"to":"a"}', NOW)
    assert extra.decode(plain.extra) == {"unique": [plain.unique.key.hex(), 31]}
    assert extra.decode(tagged.extra) == {**extra.decode(plain.extra), "tags": ["t"], "metadata": {"unique": ["x"]}}
    for each in (plain, tagged):
        after = extra.after_attempt(each.extra, {"error": "x"}, '{"percent":1}')
        assert extra.unique_of(after) == extra.unique_of(each.extra) == plain.unique
    assert extra.unique_of(job(metadata={"unique": ["x"]}).extra) is None
    assert extra.unique_of(None) is None


def test_the_period_of_a_job_is_that_of_its_run_at_or_of_now() -> None:
    hourly = {"by_period": 3600}
    assert job(unique_opts=hourly).unique == job(unique_opts=hourly, run_at=NOW + timedelta(minutes=59)).unique
    assert job(unique_opts=hourly).unique != job(unique_opts=hourly, run_at=NOW + timedelta(minutes=60)).unique
