"""An engine and the model in memory, told the same things, give the same answers.

State machines of Hypothesis do random things to both, and compare: `machine.py`, and on top of it `whole_machine.py` or
`callback_machine.py`, since nobody comes far with callbacks who does everything else as well.

AWA_MODEL_EXAMPLES: how many runs, of chance; EXAMPLES, always the same ones, unless said otherwise.
"""

import os
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from awa_proto.events import RescueReason
from awa_proto.job import JobState
from awa_proto.store import Unique
from awa_proto.store.queue import lists
from awa_proto.unique import DEFAULT_STATES, mask
from tests.store.callback_machine import CallbackMachine
from tests.store.machine import LONG_AGO, Machine
from tests.store.twins import NARROW, START, migrated
from tests.store.whole_machine import WholeMachine

pytestmark = pytest.mark.slow

EXAMPLES = 10


@pytest.fixture(scope="module")
def by_our_clock(module_database: str) -> str:
    migrated(module_database)
    return module_database


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lists whose statements look at very few rows."""
    cached = (lists.list_sql, lists._free_sql)
    for name, value in NARROW.items():
        monkeypatch.setattr(lists, name, value)
    for each in cached:
        each.cache_clear()
    yield
    for each in cached:
        each.cache_clear()


def machine(engine_name: str, server: str) -> type[WholeMachine]:
    class OnThisServer(WholeMachine):
        dsn = server
        engine = engine_name

    return OnThisServer


def callback_machine(engine_name: str, server: str) -> type[CallbackMachine]:
    class OnThisServer(CallbackMachine):
        dsn = server
        engine = engine_name

    return OnThisServer


ENGINES = pytest.mark.parametrize("name", ["queue", "canonical"])


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("made", [machine, callback_machine], ids=["all but callbacks", "callbacks"])
@ENGINES
def test_an_engine_answers_as_the_model_does(by_our_clock: str, name: str, made: Callable[..., type[Machine]]) -> None:
    run_state_machine_as_test(
        made(name, by_our_clock),
        settings=settings(
            max_examples=int(os.environ.get("AWA_MODEL_EXAMPLES", EXAMPLES)),
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
            derandomize="AWA_MODEL_EXAMPLES" not in os.environ,
            database=None,
        ),
    )


# what it has found


KEY = Unique(b"a" * 16, mask({JobState.SCHEDULED, JobState.AVAILABLE, JobState.RETRYABLE}))


@ENGINES
def test_progress_of_a_running_attempt_is_seen_by_who_asks_for_the_job_and_not_in_lists(
    by_our_clock: str, name: str
) -> None:
    both = machine(name, by_our_clock)()
    (claimed,) = both.a_newer_job_while_one_runs(KEY, "a").values
    both.record_progress([claimed], 40)
    both.every_job_is_the_same_on_both()
    both.get_job(0)
    both.teardown()


@ENGINES
def test_an_attempt_that_ends_as_a_duplicate_keeps_of_its_progress_what_its_end_says(
    by_our_clock: str, name: str
) -> None:
    for progress in (None, '{"percent":7}'):
        both = machine(name, by_our_clock)()
        (claimed,) = both.a_newer_job_while_one_runs(KEY, "a").values
        both.record_progress([claimed], 40)
        both.finalize([(claimed, JobState.RETRYABLE, LONG_AGO, True, (progress, None, False), ())], resend=True)
        both.every_job_is_the_same_on_both()
        both.get_job(0)
        both.teardown()


@ENGINES
def test_a_job_that_is_enqueued_again_is_shown_with_the_output_and_progress_it_has(
    by_our_clock: str, name: str
) -> None:
    key = Unique(KEY.key, mask(DEFAULT_STATES))
    both = machine(name, by_our_clock)()
    again = [("a", 1, None, None, "k", key)]
    both.insert(again, copied=False, skip=True)
    (claimed,) = both.claim(0, "a", 1, 0.0, None, advance=False).values
    both.record_progress([claimed], 40)
    both.insert(again, copied=False, skip=True)
    both.finalize([(claimed, JobState.COMPLETED, LONG_AGO, False, (None, "[1.0]", False), ())], resend=False)
    both.insert(again, copied=False, skip=True)
    both.teardown()


@ENGINES
def test_what_a_stale_attempt_and_a_late_leader_say_changes_nothing(by_our_clock: str, name: str) -> None:
    both = machine(name, by_our_clock)()
    both.declare()
    both.insert([("a", 1, None, None, "k", None)], copied=False, skip=False)
    (stale,) = both.claim(0, "a", 8, 0.0, None, advance=False).values
    both.finalize([(stale, JobState.AVAILABLE, LONG_AGO, False, (None, None, False), ())], resend=True)
    (_,) = both.claim(1, "a", 8, 0.0, None, advance=False).values
    both.record_progress([stale], 40)
    both.get_job(0)
    both.finalize([(stale, JobState.COMPLETED, LONG_AGO, False, (None, None, False), ())], resend=True)
    both.time_passes(3600.0)
    both.fire(stale=True)  # it has looked, and is late
    both.fire(stale=False)
    both.fire(stale=True)
    both.every_job_is_the_same_on_both()
    both.teardown()


@ENGINES
def test_both_delete_a_job_when_it_is_old_enough_and_hold_a_lease_until_it_is_over(
    by_our_clock: str, name: str
) -> None:
    both = machine(name, by_our_clock)()
    both.insert([("a", 1, None, None, "k", None)] * 3, copied=False, skip=False)
    ended = both.claim(0, "a", 8, 0.0, None, advance=False).values
    how = ((JobState.FAILED, False), (JobState.FAILED, True), (JobState.COMPLETED, False))
    bite = [(each, to, LONG_AGO, False, (None, None, dead), ()) for each, (to, dead) in zip(ended, how, strict=True)]
    both.finalize(bite, resend=False)
    both.lead(0)
    for _ in range(4):
        both.time_passes(6.0)
        for call in ("prune_failed", "prune_dlq", "prune_completed"):
            both.retention(call, 20.0, 5)
        both.lead(1)
        both.every_job_is_the_same_on_both()
    both.teardown()


@ENGINES
def test_both_promote_and_rescue_at_the_same_moment(by_our_clock: str, name: str) -> None:
    both = machine(name, by_our_clock)()
    both.insert([("a", 1, None, None, "k", None)] * 2 + [("b", 1, None, None, "k", None)], copied=False, skip=False)
    both.insert([("a", 2, START + timedelta(seconds=n), None, "k", None) for n in (5, 6, 40)], copied=False, skip=False)
    both.claim(0, "a", 2, 0.0, None, advance=False)
    both.claim(1, "b", 1, 0.0, 20.0, advance=False)
    for second in range(45):
        both.time_passes(1.0)
        both.promote(5)
        both.rescue(RescueReason.STALE_HEARTBEAT, 2)
        both.rescue(RescueReason.DEADLINE_EXCEEDED, 2)
        if second in {4, 10}:
            both.beat(0)
        both.every_job_is_the_same_on_both()
    both.teardown()
