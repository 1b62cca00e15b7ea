"""What unique keys cost in statements, and that whoever does not use them sends the same text as before."""

import random
from datetime import UTC, datetime
from typing import Any

import pytest

from awa_proto.errors import UniqueConflict
from awa_proto.extra import with_unique
from awa_proto.job import Attempt, JobState
from awa_proto.outcome import Transition
from awa_proto.plan import Copy, Op, Statement, Step
from awa_proto.store import Ended, NewJob, Unique
from awa_proto.store.queue import QueueStore
from awa_proto.unique import DEFAULT_STATES, mask

STORE = QueueStore(random=random.random)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
PLAIN = NewJob("k", "q", "{}")
WAITING = mask((JobState.SCHEDULED, JobState.AVAILABLE, JobState.RETRYABLE))
JOB_ROW = (9, "k", "q", "{}", 1, 2, 0, 0, 25, NOW, NOW, *[None] * 9)


def keyed(name: bytes = b"a", states: int = mask(DEFAULT_STATES), **fields: Any) -> NewJob:
    unique = Unique(name * 16, states)
    return PLAIN._replace(extra=with_unique(None, *unique), unique=unique, **fields)


def steps(op: Op[Any], *answers: Any) -> list[Step]:
    """What a plan asks, when it is answered so, until it returns or raises."""
    plan = op.start()
    asked: list[Step] = []
    try:
        asked.append(next(plan))
        for answer in answers:
            asked.append(plan.send(answer))  # noqa: PERF401  extend would take the end of the plan for that of the answers
    except (StopIteration, UniqueConflict):
        return asked
    raise AssertionError(f"it asks for more: {asked}")


def names(op: Op[Any], *answers: Any) -> list[Any]:
    return [
        step.name if isinstance(step, (Statement, Copy)) else [s.name for s in step] for step in steps(op, *answers)
    ]


@pytest.mark.parametrize("skip", [False, True])
def test_an_insert_with_keys_is_one_statement(skip: bool) -> None:
    one = STORE.insert([keyed()], skip=skip)
    assert names(one, [([1], NOW, [None])]) == ["insert.unique.one"]
    many = STORE.insert([keyed(), PLAIN, keyed(b"b")], skip=skip)
    assert names(many, [([1, 2, 3], NOW, [None] * 3)]) == ["insert.unique"]
    assert names(STORE.insert([keyed(run_at=NOW)], notify=False), [([1], NOW, [None])]) == ["insert.unique.silent"]


def test_a_conflict_costs_nothing_more_and_a_skip_one_read_of_what_is_there() -> None:
    assert names(STORE.insert([keyed()]), [([None], NOW, [9])]) == ["insert.unique.one"]
    assert names(STORE.insert([keyed()], skip=True), [([None], NOW, [9])], [[JOB_ROW]]) == [
        "insert.unique.one",
        ["get_job"],
    ]
    batch = STORE.insert([keyed(), PLAIN, keyed(b"b"), keyed(b"c")], skip=True)
    answer = [([None, 2, None, 4], NOW, [9, None, 9, None])]
    assert names(batch, answer, [[JOB_ROW]]) == ["insert.unique", ["get_job"]]


def test_two_jobs_alike_are_refused_before_anything_is_sent() -> None:
    for op in (STORE.insert([keyed(), keyed()]), STORE.copy([keyed(), keyed()])):
        with pytest.raises(UniqueConflict, match=r"jobs\[1\]: an earlier job"):
            next(op.start())


def test_a_skip_asks_again_when_what_was_there_is_gone() -> None:
    one = STORE.insert([keyed()], skip=True)
    assert names(one, [([None], NOW, [9])], [[]], [([1], NOW, [None])]) == [
        "insert.unique.one",
        ["get_job"],
        "insert.unique.one",
    ]


def test_a_batch_of_which_a_part_could_be_written_twice_is_one_transaction() -> None:
    assert STORE.insert([keyed(), PLAIN], skip=True).atomic
    assert not STORE.insert([keyed(), PLAIN]).atomic
    assert not STORE.insert([keyed()], skip=True).atomic
    assert not STORE.insert([PLAIN, PLAIN], skip=True).atomic


def test_a_copy_with_keys_is_one_statement_more() -> None:
    prepared = [(False, 0, NOW, None, None)]
    assert names(STORE.copy([PLAIN], notify=False), prepared, [(1,)]) == ["copy.prepare", "copy.ready"]
    asked = names(STORE.copy([keyed(), PLAIN], notify=False), prepared, [([1, 2], None, None)], [(2,)])
    assert asked == ["copy.prepare", "copy.keys", "copy.ready"]


def test_only_jobs_whose_states_leave_out_running_are_asked_for_their_key_when_they_go_back() -> None:
    attempt = Attempt(0, 5, 0, 5, 50, "q", 2, "k", "{}", 1, 25, NOW, NOW, None)

    def closing(states: int | None, to: JobState) -> Any:
        extra = None if states is None else with_unique(None, b"a" * 16, states)
        return next(STORE.finalize([Ended(attempt._replace(extra=extra), Transition(to, 1, NOW, NOW))], 7).start())

    for to in (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.RETRYABLE, JobState.AVAILABLE):
        plain = closing(None, to)
        assert "unique" not in plain.sql
        assert (closing(mask(DEFAULT_STATES), to).name, closing(mask(DEFAULT_STATES), to).sql) == (
            plain.name,
            plain.sql,
        )
        goes_back = to in {JobState.RETRYABLE, JobState.AVAILABLE}
        assert (closing(WAITING, to).name != plain.name) is goes_back
