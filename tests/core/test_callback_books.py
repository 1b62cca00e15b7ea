"""What callbacks did is counted as a worker counts it, and said as often as somebody may want to read it. No database."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import pytest

from awa_proto.callbacks.books import Books
from awa_proto.contact import Calls
from awa_proto.followup import follow_up
from awa_proto.job import Attempt, JobState
from awa_proto.operations import Operations
from awa_proto.outcome import Ending, Outcome, Transition
from awa_proto.registry import Registry
from awa_proto.store import Demand, Ended, NewJob, Ring, WorkerInfo
from awa_proto.store.memory import MemoryStore
from awa_proto.worker.rescue import MOST_UNKNOWN
from tests.core.test_operations import run

AT = datetime(2026, 1, 1, tzinfo=UTC)
ATTEMPT = Attempt(0, 1, 0, 9, 5, "q", 2, "pay", "{}", 1, 25, AT, AT, None)
DONE = Transition(JobState.COMPLETED, 1, AT, outcome=Outcome.COMPLETED, ending=Ending.COMPLETED)
FAILED = Transition(JobState.FAILED, 1, AT, entry={"error": "no"}, outcome=Outcome.EXHAUSTED, ending=Ending.TERMINAL)
OF = {"awa.job.kind": "pay", "awa.job.queue": "q"}


class Bench:
    """Books whose clock is turned by the test."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls = Calls(lambda: self.now)
        self.books = Books(self.calls)


def test_endings_follow_ups_and_outputs_are_counted_by_the_names_a_worker_gives_them() -> None:
    bench = Bench()
    follow_ups = (NewJob("paid", "q", "{}"),) * 3
    bench.books.ended(Ended(ATTEMPT, DONE, output='"four"', follow_ups=follow_ups), 2, None)
    bench.books.ended(Ended(ATTEMPT, FAILED), 0, None)
    bench.books.ended(Ended(ATTEMPT, DONE), 0, "1")
    tally = bench.calls.tally
    assert tally.total("awa.job.completed", OF) == 2
    assert tally.total("awa.job.failed", OF | {"awa.job.terminal": "true"}) == 1
    committed = "awa.job.staged_follow_ups_committed"
    assert tally.total(committed, {"awa.follow_up.result": "inserted"}) == 2
    assert tally.total(committed, {"awa.follow_up.result": "duplicate"}) == 1
    assert tally.total("awa.job.output_recorded", OF | {"awa.job.outcome": "completed"}) == 1
    assert [amount for (metric, _), amount in tally.sums.items() if metric == "awa.job.output_size"] == [6]
    assert tally.total("awa.job.output_dropped", OF | {"awa.output.reason": "canonical"}) == 1


def test_outputs_that_are_not_kept_are_warned_about_once_a_minute_and_counted_each(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    for second in range(120):
        bench.now = float(second)
        bench.books.ended(Ended(ATTEMPT._replace(kind=f"kind {second % 7}"), DONE), 0, "1")
    assert bench.calls.tally.total("awa.job.output_dropped") == 120
    said = [vars(record)["awa"] for record in caplog.records if "is not kept" in record.getMessage()]
    assert [fields.get("held_back") for fields in said] == [None, 59]


def test_a_kind_that_is_not_known_is_said_once_and_of_any_number_only_so_many(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    for _ in range(2):
        for number in range(MOST_UNKNOWN + 50):
            bench.now += 3600.0
            bench.books.unknown(ATTEMPT._replace(kind=f"kind {number}"))
    assert len(bench.books.unknown_kinds) == len(caplog.records) == MOST_UNKNOWN


@pytest.mark.parametrize("known", ["nothing", "hook", "follow-up", "task"])
def test_a_client_that_has_hooks_or_follow_ups_of_a_kind_knows_it(known: str, caplog: pytest.LogCaptureFixture) -> None:
    """It may be a process that only takes callbacks."""
    store = MemoryStore(lambda: AT, random.random)
    registry = Registry()
    if known == "task":
        registry.task(None, kind="pay")(print)
    registered = {"pay": {Outcome.EXHAUSTED: [follow_up(Outcome.EXHAUSTED, "pay", lambda *_: None)]}}
    calls: Operations[Any] = Operations(
        store,
        registry.tasks,
        "awa",
        lambda: AT,
        {"pay"} if known == "hook" else (),
        random=random.random,
        registered=registered if known == "follow-up" else {},
    )
    run(store.insert([NewJob("pay", "q", "{}")]))
    instance = run(store.register(WorkerInfo(("q",), "", 0, ""))).instance
    (attempt,) = run(store.claim(instance, Ring(0), [Demand("q", 1)])).attempts
    callback = run(store.register_callback(attempt, 60.0, None))
    assert callback is not None
    run(calls.complete_external(callback.id))
    assert calls.unknown_kinds == (("pay",) if known == "nothing" else ())
    assert len(caplog.records) == (known == "nothing")


def test_whoever_sends_what_no_expression_answers_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    for number in range(1000):
        bench.now = number * 0.01
        bench.books.unanswered(
            ATTEMPT, [("filter", "filter of a callback counts as not there"), ("on_fail", "nor on_fail")]
        )
    assert len(caplog.records) == 2
