"""The outcome matrix, row by row."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Never
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from awa_proto.callbacks.token import CallbackToken
from awa_proto.error_text import MAX_ERROR_BYTES, clean, describe
from awa_proto.errors import TerminalError
from awa_proto.job import Attempt, JobState
from awa_proto.outcome import (
    MAX_DELAY,
    TABLE,
    Cancel,
    Completed,
    Ending,
    Outcome,
    Raised,
    RetryAfter,
    Returned,
    Snooze,
    Transition,
    WaitForCallback,
    backoff,
    conclude,
)

AT = datetime(2026, 1, 31, 23, 59, 59, 1, tzinfo=UTC)


def attempt(number: int = 1, of: int = 3) -> Attempt:
    return Attempt(0, 1, 0, 7, 1, "q", 2, "k", "{}", number, of, AT, AT, None)


def end(ended: Returned | Raised | Ending, number: int = 1, of: int = 3) -> Transition:
    return conclude(attempt(number, of), ended, AT, lambda: 0.5)


class Refused(TerminalError):
    pass


def test_every_ending_has_a_row() -> None:
    assert set(TABLE) == set(Ending)


@pytest.mark.parametrize("value", [None, Completed()])
@pytest.mark.parametrize("number", [1, 3])
def test_none_and_completed_complete(value: object, number: int) -> None:
    assert end(Returned(value), number) == Transition(
        JobState.COMPLETED, number, AT, None, None, Outcome.COMPLETED, None, Ending.COMPLETED
    )


def test_retry_after_with_attempts_left_is_retryable_at_that_time() -> None:
    for delay in (2, 2.0, timedelta(seconds=2)):
        got = end(Returned(RetryAfter(delay)))
        assert (got.to, got.attempt, got.run_at) == (JobState.RETRYABLE, 1, AT + timedelta(seconds=2))
        assert got.entry == {
            "error": "retry requested",
            "attempt": 1,
            "at": "2026-01-31T23:59:59.000001Z",
            "retry_after": 2.0,
        }


def test_retry_after_on_the_last_attempt_fails_and_names_the_delay() -> None:
    got = end(Returned(RetryAfter(90)), 3)
    assert (got.to, got.attempt, got.run_at) == (JobState.FAILED, 3, None)
    assert got.entry is not None
    assert got.entry["error"] == "attempts exhausted after 3; the handler asked for a retry in 90 s"
    assert "terminal" not in got.entry


def test_an_exception_with_attempts_left_is_retryable_after_the_back_off() -> None:
    got = end(Raised(ValueError("no")), 2)
    assert (got.to, got.attempt, got.run_at) == (JobState.RETRYABLE, 2, AT + timedelta(seconds=4 * 1.125))
    assert got.entry is not None
    assert got.entry["error"] == "ValueError: no"
    assert got.entry["attempt"] == 2
    assert "ValueError: no" in got.entry["traceback"]


def test_an_exception_on_the_last_attempt_fails() -> None:
    got = end(Raised(ValueError("no")), 3)
    assert (got.to, got.run_at) == (JobState.FAILED, None)
    assert got.entry is not None
    assert "terminal" not in got.entry


@pytest.mark.parametrize("error", [TerminalError("never"), Refused("never")])
def test_a_terminal_error_fails_whatever_attempts_are_left(error: TerminalError) -> None:
    got = end(Raised(error))
    assert (got.to, got.attempt, got.run_at) == (JobState.FAILED, 1, None)
    assert got.entry is not None
    assert got.entry["terminal"] is True
    assert got.entry["error"] == f"{type(error).__name__}: never"


@pytest.mark.parametrize("value", [42, "done", Completed, RetryAfter, object(), True, [], Cancel(reason=5)])  # type: ignore[arg-type]  # wrong on purpose
def test_a_wrong_return_value_fails_loudly(value: object) -> None:
    got = end(Returned(value))
    assert got.to is JobState.FAILED
    assert got.entry is not None
    assert got.entry["terminal"] is True
    assert type(value).__name__ in got.entry["error"]


@pytest.mark.parametrize(
    "delay",
    [-1, float("nan"), float("inf"), MAX_DELAY * 1.01, "5", True, None]
    + [pytest.param(n, id="huge") for n in (10**400, -(10**400), 10**5000)],  # no float; the last has no text either
)
@pytest.mark.parametrize("result", [RetryAfter, Snooze])
def test_a_delay_out_of_range_is_a_wrong_return_value(result: type[RetryAfter] | type[Snooze], delay: float) -> None:
    got = end(Returned(result(delay)))
    assert got.to is JobState.FAILED
    assert got.entry is not None
    assert f"{result.__name__}.delay" in got.entry["error"]


def test_a_wait_for_what_is_no_token_says_so_and_asks_for_the_await_that_is_missing() -> None:
    async def register_callback() -> str:
        return "token"

    coroutine = register_callback()
    for token, said in (
        (coroutine, "the handler waits for a coroutine, not for what register_callback gave: is an await missing?"),
        (None, "the handler waits for a NoneType, not for what register_callback gave"),
    ):
        transition = end(Returned(WaitForCallback(token)))  # type: ignore[arg-type]
        assert transition.entry is not None
        assert (transition.to, transition.ending, transition.entry["error"]) == (
            JobState.FAILED, Ending.UNREGISTERED, said,
        )  # fmt: skip
    coroutine.close()


def test_a_job_waits_for_its_callback_in_whatever_form_the_id_is_given() -> None:
    id = "0b0f5b5e-6d3c-4b39-9a55-3f1e0c6a7d21"
    for token in (CallbackToken(id), id, id.upper(), UUID(id), f"{{{id}}}", CallbackToken(id.upper())):
        found = conclude(attempt(), Returned(WaitForCallback(token)), AT, lambda: 0.0, callback=id)
        assert (found.ending, found.callback) == (Ending.WAIT, id)


@pytest.mark.parametrize("number", [1, 3])
def test_a_snooze_gives_the_attempt_back_and_adds_no_entry(number: int) -> None:
    expected = Transition(
        JobState.SCHEDULED, number - 1, AT, AT + timedelta(seconds=5), None, None, None, Ending.SNOOZE
    )
    assert end(Returned(Snooze(5)), number) == expected


@pytest.mark.parametrize("number", [1, 3])
def test_a_cancel_is_final_and_keeps_its_reason(number: int) -> None:
    got = end(Returned(Cancel("not \0 wanted")), number)
    assert (got.to, got.attempt, got.run_at) == (JobState.CANCELLED, number, None)
    assert got.entry is not None
    assert got.entry["error"] == "cancelled: not \N{REPLACEMENT CHARACTER} wanted"


def test_a_deadline_counts_as_a_failed_attempt() -> None:
    assert end(Ending.DEADLINE).to is JobState.RETRYABLE
    got = end(Ending.DEADLINE, 3)
    assert got.to is JobState.FAILED
    assert got.entry is not None
    assert got.entry["error"] == "hard deadline exceeded"


@pytest.mark.parametrize("number", [1, 3])
def test_a_release_gives_the_attempt_back_and_leaves_the_job_available(number: int) -> None:
    expected = Transition(JobState.AVAILABLE, number - 1, AT, AT, None, None, None, Ending.RELEASED)
    assert end(Ending.RELEASED, number) == expected


@pytest.mark.parametrize(
    ("number", "chance", "expected"),
    [(1, 0.0, 2), (1, 1.0, 2.5), (4, 0.5, 18), (16, 0.0, 65536), (17, 0.0, 86400), (1000, 0.9, 86400)],
)
def test_the_back_off_doubles_with_jitter_up_to_a_day(number: int, chance: float, expected: float) -> None:
    assert backoff(number, lambda: chance) == expected


def test_error_texts_are_what_a_database_can_hold() -> None:
    class Unspeakable(Exception):
        @override
        def __str__(self) -> str:
            raise RuntimeError

    assert describe(Unspeakable()) == "Unspeakable: (the message could not be made)"
    assert describe(ValueError()) == "ValueError"
    assert clean("a\0b\ud800c") == "a\N{REPLACEMENT CHARACTER}b?c"
    long = clean("\N{GRINNING FACE}" * MAX_ERROR_BYTES)
    assert MAX_ERROR_BYTES - 4 < len(long.encode()) <= MAX_ERROR_BYTES
    json.dumps(long).encode()


def test_only_the_last_lines_of_a_traceback_are_kept() -> None:
    def deep(n: int) -> None:
        if n == 0:
            raise ValueError("at the bottom")
        deep(n - 1)

    try:
        deep(50)
    except ValueError as error:
        got = end(Raised(error))
        assert got.entry is not None
        lines = got.entry["traceback"].splitlines()
        assert len(lines) == 10
        assert lines[-1] == "ValueError: at the bottom"


def _broken(*_: object) -> Never:
    raise ValueError("broken on purpose")


def _exits(*_: object) -> Never:
    raise SystemExit


_OBJECTS = ("__len__", "__bool__", "__getitem__", "__format__", "__str__", "encode", "replace")


# Named, for Hypothesis takes a property of a lambda for a lambda (Python 3.13).
def _surrogates(_: object) -> list[str]:
    return ["\ud800" * 9999]


def _itself(self: object) -> object:
    return self


def _another_class(_: object) -> type:
    return int


_Text: Any = type("_Text", (str,), dict.fromkeys(_OBJECTS, _broken))
_Nameless: Any = type("_Nameless", (type,), {"__name__": property(_broken)})
_BAD_MEMBERS: dict[str, list[Any]] = {
    "__str__": [
        _broken,
        _exits,
        lambda _: 5,
        lambda _: _Text("a"),
        lambda _: "\0\ud800" * 9999,
        lambda _: "a\n" * 9999,
    ],
    "__repr__": [_broken, _exits, lambda _: 5, lambda _: _Text("a")],
    "__notes__": [property(_broken), property(_exits), 5, [_Text("a"), 5], property(_surrogates)],
    "__cause__": [property(_broken), property(_itself), 5],
    "__context__": [property(_broken), property(_itself)],
    "__class__": [property(_broken), property(_another_class)],
    "__traceback__": [property(_broken), 5],
    "__getattribute__": [_broken],
    "__eq__": [_broken],
    "__hash__": [_broken, None],
    "__bool__": [_broken],
}
_members = st.fixed_dictionaries({}, optional={name: st.sampled_from(bad) for name, bad in _BAD_MEMBERS.items()})
_bases = st.sampled_from([Exception, ValueError, KeyError, SyntaxError, OSError, TerminalError, BaseException])


def _error(members: dict[str, Any], base: type[BaseException], args: tuple[Any, ...], nameless: bool) -> BaseException:
    metaclass = _Nameless if nameless else type
    made: BaseException = metaclass("Bad" * 9, (base,), members)(*args)
    return made


def _chained(errors: list[BaseException], circle: bool) -> BaseException:
    for outer, inner in zip(errors, errors[1:] + errors[:circle], strict=False):
        vars(BaseException)["__cause__"].__set__(outer, inner)
    return errors[0]


def _grouped(errors: list[BaseException]) -> BaseException:
    try:
        return BaseExceptionGroup("\0", errors)
    except (ValueError, TypeError):  # one whose __class__ is broken cannot be in a group
        return errors[0]


_errors = st.recursive(
    st.builds(_error, _members, _bases, st.sampled_from([(), ("\0",), (5,)]), st.booleans()),
    lambda inner: (
        st.builds(_chained, st.lists(inner, min_size=1, max_size=4), st.booleans())
        | st.builds(_grouped, st.lists(inner, min_size=1, max_size=4))
    ),
    max_leaves=6,
)
_ODD: list[Any] = [10**400, -(10**5000), timedelta.max, _Text("a"), object(), b"", float("nan"), Never, Exception]
_odd = (
    st.sampled_from(range(len(_ODD))).map(lambda number: _ODD[number])  # some of them have no repr
    | st.floats()
    | st.builds(lambda members: _Nameless("Odd", (), members)(), _members)
    | st.builds(lambda members: type("Odd", (int,), members)(3), _members)
    | _errors
)
_values = _odd | st.builds(
    lambda result, value: result(value), st.sampled_from([RetryAfter, Snooze, Cancel, WaitForCallback]), _odd
) | st.builds(
    lambda base, bad: type("Mine", (base,), dict.fromkeys(("delay", "reason"), property(bad, lambda *_: None)))(1),
    st.sampled_from([RetryAfter, Snooze, Cancel]),
    st.sampled_from([_broken, lambda _: 5]),
)  # fmt: skip


@given(st.builds(Returned, _values) | st.builds(Raised, _errors), st.sampled_from([1, 3]))
def test_whatever_a_handler_returns_or_raises_is_an_ending_that_a_database_can_hold(
    ended: Returned | Raised, number: int
) -> None:
    got = end(ended, number)
    if got.entry is not None:
        written = json.dumps(got.entry, ensure_ascii=False, allow_nan=False).encode()
        assert b"\\u0000" not in written
        assert all(len(text.encode()) <= MAX_ERROR_BYTES for text in got.entry.values() if isinstance(text, str))


def _looped() -> BaseException:
    error = ValueError("round and round")
    error.__cause__ = KeyError("and")
    error.__cause__.__cause__ = error
    return error


def _deep_group() -> BaseException:
    error: Exception = ValueError("at the bottom")
    for _ in range(3000):
        error = ExceptionGroup[Exception]("more", [error])
    return error


def _recursion() -> BaseException:
    def down() -> None:
        down()

    try:
        down()
    except RecursionError as error:
        return error
    raise AssertionError


@pytest.mark.parametrize("make", [_looped, _deep_group, _recursion])
def test_an_odd_shape_of_exceptions_is_told_like_any_other(make: Callable[[], BaseException]) -> None:
    error = make()
    entry = end(Raised(error)).entry
    assert entry is not None
    assert entry["error"].startswith(type(error).__name__)
    assert 1 <= len(entry["traceback"].splitlines()) <= 10
