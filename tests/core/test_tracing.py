"""What is known of a trace without any library: contexts as text, where an attempt belongs, what its span says."""

import json
from datetime import UTC, datetime
from random import random
from typing import Any

import pytest

from awa_proto import extra as extras
from awa_proto import tracing
from awa_proto.errors import StagingError, TerminalError
from awa_proto.job import Attempt
from awa_proto.operations import Operations
from awa_proto.options import EnqueueRequest
from awa_proto.outcome import Cancel, Ending, Raised, RetryAfter, Returned, Snooze, conclude
from awa_proto.recording import Recording
from awa_proto.store import Ended, Unique
from awa_proto.store.memory import MemoryStore
from awa_proto.store.queue import QueueStore
from awa_proto.tracing import Origin, SpanContext
from awa_proto.worker.events import Reason

AT = datetime(2026, 1, 1, tzinfo=UTC)
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TEXT = f"00-{TRACE}-{SPAN}-01"
CONTEXT = SpanContext(int(TRACE, 16), int(SPAN, 16), 1)


def attempt(extra: str | None = None, *, number: int = 1, of: int = 3) -> Attempt:
    return Attempt(0, 7, 0, 11, 5, "q", 2, "k", "{}", number, of, AT, AT, extra)


# contexts as text


def test_a_context_is_written_as_it_is_read() -> None:
    assert tracing.read(TEXT) == CONTEXT
    assert tracing.write(CONTEXT) == TEXT
    assert tracing.write(SpanContext(1, 2, 0)) == f"00-{'1':0>32}-{'2':0>16}-00"


@pytest.mark.parametrize(
    "text",
    [
        "", None, 7, {"a": 1}, TEXT.upper(), TEXT + "-more", TEXT + "\n", TEXT[:-1], f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE[1:]}-{SPAN}-01", f"0-{TRACE}-{SPAN}-01",
        TEXT.replace("0", "\N{ARABIC-INDIC DIGIT ZERO}"),
    ],
)  # fmt: skip
def test_what_is_no_context_is_none(text: object) -> None:
    assert tracing.read(text) is None


def test_a_later_version_may_say_more() -> None:
    assert tracing.read(f"01-{TRACE}-{SPAN}-01-more") == CONTEXT


# where it is kept


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"metadata": {"m": '"1"'}},
        {"tags": ("t",)},
        {"deadline": 2.5},
        {"metadata": {"m": 1}, "tags": ("t",), "deadline": 1},
    ],
)
def test_the_context_is_added_to_what_else_a_job_has(options: dict[str, Any]) -> None:
    plain = extras.encode(**options)
    traced = extras.with_traceparent(plain, TEXT)
    metadata = {"awa:traceparent": TEXT, **options.get("metadata", {})}
    assert extras.decode(traced) == {**extras.decode(plain), "metadata": metadata}
    assert extras.traceparent_of(traced) == TEXT
    assert extras.traceparent_of(plain) is None


def traced_calls() -> tuple[Operations[Any], list[int]]:
    """Operations inside of a span, and how often they asked for it."""
    asked: list[int] = []

    def traceparent() -> str:
        asked.append(1)
        return TEXT

    return Operations(
        MemoryStore(lambda: AT, lambda: 0.5), {}, "awa", lambda: AT, (), traceparent, random=random
    ), asked


def run(op: Any) -> Any:
    try:
        next(op.start())
    except StopIteration as done:
        return done.value
    raise AssertionError("the memory store asks for nothing")


def test_a_call_asks_once_for_the_context_of_all_its_jobs() -> None:
    calls, asked = traced_calls()
    jobs: list[Any] = [{"kind": "a"}, EnqueueRequest({"kind": "b"}).tags("t"), {"kind": "c"}]
    rows = run(calls.insert_many(jobs))
    assert [row.metadata for row in rows] == [{"awa:traceparent": TEXT}] * 3
    assert len(asked) == 1
    run(calls.enqueue_many(jobs))
    run(calls.enqueue_many([{"kind": "d"}] * 9))
    assert len(asked) == 3
    assert {row.metadata["awa:traceparent"] for row in run(calls.list_jobs())} == {TEXT}


def test_a_context_that_the_caller_gives_counts_more_and_none_is_one() -> None:
    calls, _ = traced_calls()
    own = TEXT.replace("b7", "c7")
    given = [
        run(calls.insert({"kind": "a"}, metadata={"awa:traceparent": own, "m": 1})),
        run(calls.insert({"kind": "a"}, metadata={"awa:traceparent": None})),
        *run(calls.insert_many([{"kind": "a"}, EnqueueRequest({"kind": "a"}).metadata({"awa:traceparent": own})])),
    ]
    assert [row.metadata["awa:traceparent"] for row in given] == [own, None, TEXT, own]


def test_jobs_of_a_batch_stay_alike_and_keep_their_unique_keys() -> None:
    store = QueueStore("awa", random=lambda: 0.5)
    calls: Operations[Any] = Operations(store, {}, "awa", lambda: AT, (), lambda: TEXT, random=random)
    alike: Any = next(calls.insert_many([{"kind": "a", "n": 1}, {"kind": "a", "n": 2}]).start())
    one: Any = next(calls.insert({"kind": "a"}).start())
    assert (alike.name, one.name) == ("insert.alike", "insert.one")
    new, _ = calls.intake.one({"kind": "a"}, {"unique_opts": {}}, TEXT)
    assert isinstance(new.unique, Unique)
    assert extras.unique_of(new.extra) == new.unique
    assert extras.traceparent_of(new.extra) == TEXT


# where an attempt belongs


def test_the_first_attempt_belongs_to_what_enqueued_its_job() -> None:
    assert tracing.origin(attempt(extras.with_traceparent(None, TEXT))) == Origin(CONTEXT, first=True)
    assert tracing.origin(attempt()) == Origin(None, first=True)
    assert tracing.origin(attempt('{"metadata":{"awa:traceparent":"?"}}')) == Origin(None, first=True)


@pytest.mark.parametrize(
    ("ended", "number"),
    [(Returned(Snooze(1)), 1), (Raised(RuntimeError()), 2), (Returned(RetryAfter(1)), 2), (Ending.RELEASED, 1)],
)
def test_a_later_attempt_is_known_however_the_one_before_ended(ended: Any, number: int) -> None:
    first = attempt(extras.with_traceparent(None, TEXT))
    after = Ended(first, conclude(first, ended, AT, lambda: 0.5), took=0.1).extra
    assert tracing.origin(attempt(after, number=number)) == Origin(CONTEXT, first=False)
    assert tracing.origin(attempt(after)) == Origin(CONTEXT, first=False)  # as after a retry by a person


def test_an_attempt_that_never_began_leaves_the_next_one_the_first() -> None:
    first = attempt(extras.with_traceparent(None, TEXT))
    ended = Ended(first, conclude(first, Ending.RELEASED, AT, lambda: 0.5))
    assert ended.extra is None


def test_a_job_without_a_context_is_not_marked() -> None:
    for extra in (None, '{"tags":["t"]}'):
        first = attempt(extra)
        assert Ended(first, conclude(first, Returned(Snooze(1)), AT, lambda: 0.5), took=0.1).extra is None


# what its span says at the end


def recorded(*, refused: bool = False) -> Recording:
    recording = Recording(attempt(), None)
    if refused:
        recording.refuse(StagingError.Invalid("no such option"))
    return recording


ERROR = RuntimeError("boom")


@pytest.mark.parametrize(
    ("ended", "reason", "number", "outcome", "error"),
    [
        (Returned(None), None, 1, "completed", None),
        (Raised(ERROR), None, 1, "retried", "RuntimeError: boom"),
        (Raised(ERROR), None, 3, "exhausted", "RuntimeError: boom"),
        (Raised(TerminalError("no")), None, 1, "exhausted", "TerminalError: no"),
        (Returned(RetryAfter(5)), None, 1, "retried", None),
        (Returned(RetryAfter(5)), None, 3, "exhausted", "attempts exhausted after 3; the handler asked for a retry in 5 s"),
        (Returned(Snooze(5)), None, 1, "snooze", None),
        (Returned(Cancel("enough")), None, 1, "cancelled", None),
        (Returned(RetryAfter(-1)), None, 1, "exhausted", "wrong return value: RetryAfter.delay: -1 is outside 0 … 100 years"),
        (Raised(ERROR), Reason.CANCELLED, 1, "cancelled", None),
        (Raised(ERROR), Reason.DEADLINE, 1, "retried", "hard deadline exceeded"),
        (Returned(None), Reason.DEADLINE, 3, "exhausted", "hard deadline exceeded"),
        (Raised(ERROR), Reason.SHUTDOWN, 1, "released", None),
    ],
)  # fmt: skip
def test_a_span_says_what_becomes_of_the_attempt(
    ended: Any, reason: Reason | None, number: int, outcome: str, error: str | None
) -> None:
    told = tracing.told(attempt(number=number), ended, reason, None)
    assert (told.outcome, told.error) == (outcome, error)
    is_failure = error is not None and isinstance(ended, Raised) and reason is None
    assert told.exception is (ended.error if is_failure else None)


def test_a_staging_that_was_refused_fails_the_span_too() -> None:
    recording = recorded(refused=True)
    told = tracing.told(attempt(), Returned(None), None, recording)
    assert (told.outcome, told.exception) == ("exhausted", recording.refused)
    assert tracing.told(attempt(), Returned(None), None, recorded()).outcome == "completed"
    assert tracing.told(attempt(), Returned(Snooze(1)), None, recording).outcome == "snooze"


def test_what_a_span_says_from_its_beginning_is_plain() -> None:
    said = tracing.attributes(attempt())
    assert said == json.loads(json.dumps(said))
    assert {
        "messaging.system",
        "messaging.destination.name",
        "awa.job.id",
        "awa.job.kind",
        "awa.job.attempt",
    } < said.keys()
