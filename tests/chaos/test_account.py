"""The verdict on a chaos by itself: what it lets pass, and what it must not."""

from __future__ import annotations

import pytest

from tests.chaos.account import POISON, POISON_ATTEMPTS, Account, Row

ENQUEUED = ["w 7", "c 7"]


def lease(at: float) -> int:
    return int(at * 1e6)


def began(attempt: int, at: float, n: int = 7) -> str:
    return f"b {n} {attempt} {lease(at)} {at}"


def ran(attempt: int, at: float, how: str = "done") -> list[str]:
    return [began(attempt, at), f"e 7 {attempt} {lease(at)} {at + 1} {how}"]


def told(attempt: int, at: float) -> str:
    return f"a 7 {attempt} {lease(at)} {at + 2}"


def row(attempt: int, at: float, state: str = "completed") -> Row:
    return Row(7, state, attempt, lease(at))


def account(**books: list[str]) -> Account:
    found = Account()
    found.read("producer", ENQUEUED)
    for process, lines in books.items():
        found.read(process, lines)
    return found


def test_a_job_that_ran_once_and_one_that_was_retried_as_planned_are_right() -> None:
    assert not account(one=[*ran(1, 100.0), told(1, 100.0)]).check([row(1, 100.0)])
    assert not account(one=ran(1, 100.0, "retry"), two=ran(2, 110.0)).check([row(2, 110.0)])


def test_an_acknowledged_job_without_an_end_is_lost() -> None:
    with pytest.raises(AssertionError, match="job 7 is lost"):
        account().check([row(0, 0.0, "available")])
    with pytest.raises(AssertionError, match="not in the database"):
        account(one=ran(1, 100.0)).check([])


def test_a_second_run_wants_the_death_of_the_first_ones_process_before_it() -> None:
    books = {"one": ran(1, 100.0), "two": ran(2, 110.0)}
    with pytest.raises(AssertionError, match="without a cause"):
        account(**books).check([row(2, 110.0)])
    dead = account(**books)
    dead.deaths["one"] = 105.0
    assert dead.check([row(2, 110.0)]) == {"killed": 1}
    later = account(**books)
    later.deaths["one"] = 115.0
    with pytest.raises(AssertionError, match="without a cause"):
        later.check([row(2, 110.0)])


def test_a_crash_explains_the_run_of_a_claim_that_it_made_the_server_forget() -> None:
    forgotten = account(one=ran(1, 100.0), two=ran(1, 110.0))
    with pytest.raises(AssertionError, match="attempt not counted"):
        forgotten.check([row(1, 110.0)])
    forgotten = account(one=ran(1, 100.0), two=ran(1, 110.0))
    forgotten.crashes.append((104.0, 106.0))
    assert forgotten.check([row(1, 110.0)]) == {"crash": 1}
    before = account(one=ran(1, 100.0), two=ran(2, 110.0))
    before.crashes.append((90.0, 95.0))
    with pytest.raises(AssertionError, match="without a cause"):
        before.check([row(2, 110.0)])


def test_nothing_explains_a_run_after_a_completion_that_was_acknowledged() -> None:
    contradicted = account(one=[*ran(1, 100.0), told(1, 100.0)], two=ran(2, 110.0))
    contradicted.deaths["one"] = 105.0
    contradicted.crashes.append((104.0, 106.0))
    with pytest.raises(AssertionError, match="without a cause"):
        contradicted.check([row(2, 110.0)])


def test_attempts_are_burned_by_deaths_only() -> None:
    with pytest.raises(AssertionError, match="attempts were burned before"):
        account(one=ran(2, 100.0)).check([row(2, 100.0)])
    claimed = account(one=ran(2, 100.0))
    claimed.deaths["other"] = 95.0
    assert not claimed.check([row(2, 100.0)])


def test_the_database_must_have_what_the_handler_did_and_have_it_once() -> None:
    for wrong in ([row(1, 100.0, "failed")], [row(2, 100.0)], [row(1, 99.0)], [row(1, 100.0)] * 2):
        with pytest.raises(AssertionError, match=r"not what its handler did|there twice"):
            account(one=ran(1, 100.0)).check(wrong)


def test_a_handler_that_nobody_killed_ends_and_a_fence_is_used_once() -> None:
    with pytest.raises(AssertionError, match="nobody killed it"):
        account(one=[began(1, 100.0)], two=ran(2, 110.0)).check([row(2, 110.0)])
    with pytest.raises(AssertionError, match="began twice"):
        account(one=ran(1, 100.0), two=ran(1, 100.0)).check([row(1, 100.0)])


def test_a_poisoned_job_ends_by_its_attempts_each_in_another_process() -> None:
    def poisoned() -> Account:
        found = Account()
        found.read("producer", [f"w {POISON}", f"c {POISON}"])
        for attempt in range(1, POISON_ATTEMPTS + 1):
            found.read(f"victim {attempt}", [began(attempt, 100.0 * attempt, POISON)])
        return found

    assert poisoned().check([Row(POISON, "failed", POISON_ATTEMPTS, 0)]) == {"killed": POISON_ATTEMPTS - 1}
    with pytest.raises(AssertionError, match="not ended by its max_attempts"):
        poisoned().check([Row(POISON, "retryable", POISON_ATTEMPTS, 0)])
