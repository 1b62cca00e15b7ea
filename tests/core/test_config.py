"""How a worker is set up: what is refused by name, and what becomes of what is not."""

import dataclasses
import math
import re
from datetime import timedelta
from typing import Any

import pytest

from awa_proto.dead_letters import DeadLetterPolicy
from awa_proto.errors import ConfigurationError, ValidationError
from awa_proto.retention import Retention
from awa_proto.worker.config import MAX_WORKERS, Liveness, QueueConfig, WorkerConfig

HUGE = pytest.param(10**5000, id="a number without text")


def refused(field: str, **settings: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        QueueConfig(**settings)
    assert caught.value.field == field
    return caught.value.reason


@pytest.mark.parametrize("value", [0, -1, MAX_WORKERS + 1, True, 2.0, "1", None, math.nan, HUGE])
def test_slots_are_a_whole_number(value: Any) -> None:
    refused("max_workers", max_workers=value)


@pytest.mark.parametrize(
    "value",
    [0, -1, math.nan, math.inf, 1e300, 1e-300, True, "5", b"5", timedelta(1), {}, (), (1,), (1, 2, 3), (0, 1), (1, 0),
     (5, 2.5), (5, True), (True, 5), (5, "1"), ("5", 1), (5, 10**400), [5, None], (10**400, 1), HUGE],
)  # fmt: skip
def test_a_rate_limit_is_a_rate_or_a_rate_and_a_burst(value: Any) -> None:
    refused("rate_limit", rate_limit=value)


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, 1e300, True, "5", timedelta.max, timedelta(-1), [], HUGE])
@pytest.mark.parametrize("setting", ["deadline", "aging"])
def test_times_are_seconds_or_timedeltas_up_to_a_hundred_years(setting: str, value: Any) -> None:
    refused(setting, **{setting: value})


def test_no_time_is_no_deadline_and_aging_by_nearly_nothing_is_refused() -> None:
    refused("deadline", deadline=0)
    refused("aging", aging=None)
    assert "0 is for never" in refused("aging", aging=1e-300)


def test_times_are_kept_as_seconds() -> None:
    config = QueueConfig(2, deadline=timedelta(minutes=5), aging=timedelta(0))
    assert (config.deadline, config.aging) == (300.0, 0.0)
    assert dataclasses.replace(config, max_workers=3) == QueueConfig(3, deadline=300, aging=0)


@pytest.mark.parametrize(
    ("limit", "rate"),
    [(None, (math.inf, 1)), (50, (50.0, 50)), (0.5, (0.5, 1)), ((50, 100), (50.0, 100)), ([2, 1], (2.0, 1))],
)
def test_a_bare_rate_has_a_burst_of_one_second(limit: Any, rate: tuple[float, int]) -> None:
    assert QueueConfig(rate_limit=limit).rate == rate


@pytest.mark.parametrize("queue", ["", "q" * 201, "a\0b", "\ud800", 1, None, b"q"])
def test_a_queue_that_cannot_be_is_named(queue: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        WorkerConfig({queue: QueueConfig()})
    assert caught.value.field == "queue"


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, 1e300, True, "5", None, HUGE])
@pytest.mark.parametrize("setting", ["poll_interval", "grace"])
def test_an_interval_of_a_worker_is_some_seconds(setting: str, value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        WorkerConfig({"q": QueueConfig()}, **{setting: value})
    assert caught.value.field == setting


@pytest.mark.parametrize("value", [0, 1, "yes", 1.0, [], {"q": 1}, {"q": None}, {5: True}, {"q" * 201: True}])
def test_dead_letters_are_on_or_off(value: Any) -> None:
    refused("dead_letters", dead_letters=value)
    with pytest.raises(ValidationError) as caught:
        WorkerConfig({"q": QueueConfig()}, dead_letters=value)
    assert caught.value.field == "dead_letters"


@pytest.mark.parametrize("client", [True, False])
def test_a_queue_keeps_dead_letters_as_it_says_and_else_as_the_client_says(client: bool) -> None:
    queues = {"on": QueueConfig(dead_letters=True), "off": QueueConfig(dead_letters=False), "unsaid": QueueConfig()}
    config = WorkerConfig(queues, dead_letters=client)
    assert [config.keeps_dead_letters(queue) for queue in queues] == [True, False, client]


def test_dead_letters_are_kept_of_the_queues_that_a_client_names_and_of_those_that_its_workers_say() -> None:
    named = {"named": True, "off": True}
    config = WorkerConfig({"off": QueueConfig(dead_letters=False), "unsaid": QueueConfig()}, dead_letters=named)
    queues = ("named", "off", "unsaid", "another")
    assert [config.keeps_dead_letters(queue) for queue in queues] == [True, False, False, False]
    policy = DeadLetterPolicy(named)
    assert [policy.keeps(queue) for queue in queues] == [True, True, False, False]
    policy.serve({"off": False, "unsaid": None, "another": True})
    assert [policy.keeps(queue) for queue in queues] == [True, False, False, True]
    policy.serve({"another": None})
    assert policy.keeps("another")


def test_a_worker_may_have_no_grace_but_not_poll_without_a_pause() -> None:
    assert WorkerConfig({"q": QueueConfig()}, grace=0).grace == 0.0
    with pytest.raises(ValidationError, match="poll_interval"):
        WorkerConfig({"q": QueueConfig()}, poll_interval=0)
    with pytest.raises(ConfigurationError, match="at least one queue"):
        WorkerConfig({})


@pytest.mark.parametrize(
    ("field", "value", "limit"),
    [
        ("heartbeat_interval", 0.01, "0.01 seconds are outside 0.05 … 3600"),
        ("heartbeat_interval", timedelta(hours=2), "7200 seconds are outside"),
        ("heartbeat_interval", "10", "a number of seconds or a timedelta is needed, not str"),
        ("stale_after", 19, "19 seconds are below 20, which follows from heartbeat_interval"),
        ("stall_limit", 9.9, "9.9 seconds are below 10"),
        ("rescue_interval", 0, "0 seconds are outside"),
        ("deadline_interval", float("nan"), "nan is outside"),
    ],
)
def test_a_setting_of_liveness_out_of_its_limits_is_named(field: str, value: Any, limit: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(limit)) as caught:
        Liveness(**{field: value})
    assert caught.value.field == field


@pytest.mark.parametrize("field", ["completed", "failed", "dead_letters"])
def test_a_retention_out_of_its_limits_is_named(field: str) -> None:
    assert getattr(Retention(**{field: timedelta(hours=1)}), field) == 3600.0
    for value in (0, -1, float("nan"), "a day", 101 * 366 * 86400):
        wrong: Any = {field: value}
        with pytest.raises(ValidationError) as caught:
            Retention(**wrong)
        assert caught.value.field == f"retention.{field}"


def test_liveness_of_another_type_is_refused() -> None:
    wrong: Any = {"stale_after": 30}
    with pytest.raises(ValidationError, match="a Liveness is needed, not dict"):
        WorkerConfig({"q": QueueConfig()}, liveness=wrong)
