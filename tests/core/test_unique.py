"""What makes two jobs the same: the key, and what is refused before there is one."""

from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from awa_proto.errors import ValidationError
from awa_proto.extra import with_unique
from awa_proto.job import JobState
from awa_proto.unique import HELD, Uniqueness, UniqueOpts, key, mask, must_win_again

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def of(opts: Any = None, kind: str = "k", queue: str = "q", args: str = '{"a":1}', at: datetime = NOON) -> bytes:
    return Uniqueness.of({} if opts is None else opts).of_job(kind, queue, args, at).key


def test_the_key_is_the_hash_that_the_documentation_says() -> None:
    """So that other languages can make it."""
    said = b'send\0qmail\0a{"a":[1,2.5,"\xc3\xbc"],"b":null}\0p' + (3_600_000_000).to_bytes(8, "little")
    said += (int(NOON.timestamp()) // 3600).to_bytes(8, "little", signed=True)
    made = key("send", queue="mail", args='{"b": null, "a": [1, 2.5, "\\u00fc"]}', period=HOUR, at=NOON)
    assert made == blake2b(said, digest_size=16).digest()
    assert key("send", queue=None, args=None, period=None, at=NOON) == blake2b(b"send", digest_size=16).digest()


def test_by_default_kind_and_args_count_and_neither_queue_nor_time() -> None:
    assert of() == of(UniqueOpts()) == of(queue="other") == of(at=NOON + HOUR)
    assert of() not in {of(kind="l"), of(args='{"a":2}')}


def test_the_order_of_keys_and_the_spaces_of_args_do_not_count() -> None:
    assert of(args='{"b":{"d":1,"c":[1]},"a":"\\u00e4"}') == of(args='{ "a": "ä", "b": {"c": [1], "d": 1} }')
    assert of(args='{"a":[1,2]}') != of(args='{"a":[2,1]}')
    assert of(args='{"a":1}') != of(args='{"a":1.0}')


def test_what_is_chosen_counts() -> None:
    assert of({"by_queue": True}) != of({"by_queue": True}, queue="other")
    assert of({"by_args": False}) == of({"by_args": False}, args='{"a":2}')
    hourly = {"by_period": 3600}
    assert of(hourly) == of({"by_period": HOUR}) == of(hourly, at=NOON + HOUR - timedelta(microseconds=1))
    assert of(hourly) not in {of(hourly, at=NOON + HOUR), of(hourly, at=NOON - timedelta(microseconds=1))}
    assert of(hourly) != of({"by_period": 60})
    in_tokyo = (NOON + HOUR / 2).astimezone(ZoneInfo("Asia/Tokyo"))
    assert of(hourly, at=in_tokyo) == of(hourly)
    assert of(hourly, at=datetime(1, 1, 1, 0, 0, 1, tzinfo=UTC)) != of(hourly, at=datetime(1, 1, 1, 1, tzinfo=UTC))


def test_different_choices_never_meet_in_one_text() -> None:
    same = ["k", '{"a":1}']
    made = [
        key("k", queue=queue, args=args, period=length, at=NOON)
        for queue in (None, *same)
        for args in (None, '{"a":1}')
        for length in (None, HOUR)
    ]
    assert len(set(made)) == len(made)


def test_the_states_are_a_mask_in_the_order_of_job_state() -> None:
    assert Uniqueness.of({}).states == 0b0001_1111
    assert Uniqueness.of(UniqueOpts(states=["available", JobState.WAITING_EXTERNAL])).states == 0b1000_0010
    assert Uniqueness.of({"states": {"running", JobState.RUNNING}}).states == 0b100
    assert mask(JobState) == 0b1111_1111


def test_only_a_job_that_leaves_its_states_while_it_runs_has_to_win_its_key_again() -> None:
    assert not any(must_win_again(with_unique(None, b"", Uniqueness.of({}).states), to) for to in JobState)
    assert not any(must_win_again(with_unique(None, b"", HELD), to) for to in JobState)
    assert not any(must_win_again(None, to) for to in JobState)
    waiting = with_unique('{"tags":["t"]}', b"", mask((JobState.SCHEDULED, JobState.AVAILABLE, JobState.FAILED)))
    back = [JobState.SCHEDULED, JobState.AVAILABLE, JobState.WAITING_EXTERNAL]  # a parked job may run again at once
    assert [to for to in JobState if must_win_again(waiting, to)] == back


@pytest.mark.parametrize(
    ("opts", "field"),
    [
        (True, "unique_opts"),
        ([], "unique_opts"),
        ({"by_arg": True}, "unique_opts.by_arg"),
        ({1: True}, "unique_opts.1"),
        ({"by_queue": 1}, "unique_opts.by_queue"),
        ({"by_args": None}, "unique_opts.by_args"),
        ({"by_period": "1 h"}, "unique_opts.by_period"),
        ({"by_period": 0.5}, "unique_opts.by_period"),
        ({"by_period": -1}, "unique_opts.by_period"),
        ({"by_period": float("nan")}, "unique_opts.by_period"),
        ({"by_period": True}, "unique_opts.by_period"),
        ({"states": []}, "unique_opts.states"),
        ({"states": "available"}, "unique_opts.states"),
        ({"states": ["avalable"]}, "unique_opts.states"),
        ({"states": [3]}, "unique_opts.states"),
        ({"states": [[]]}, "unique_opts.states"),
        ({"states": None}, "unique_opts.states"),
        (UniqueOpts(by_queue=None), "unique_opts.by_queue"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_is_refused_with_the_name_of_its_field(opts: Any, field: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        Uniqueness.of(opts)
    assert refusal.value.field == field
