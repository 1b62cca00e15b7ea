"""The memory store is the model: what it does is what semantics.md says."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from awa_proto.errors import ValidationError
from awa_proto.extra import encode
from awa_proto.job import Attempt, JobRow, JobState
from awa_proto.outcome import Cancel, Ending, Raised, RetryAfter, Returned, Snooze, conclude
from awa_proto.store import Cancelled, Demand, Ended, JobFilter, NewJob, Ring, Store, Verdict, WorkerInfo
from awa_proto.store.memory import MemoryStore
from awa_proto.testing.simulator import play

DONE = Returned(None)
START = datetime(2026, 1, 1, tzinfo=UTC)


class World:
    """A store and a clock that is set by hand."""

    def __init__(self) -> None:
        self.now = START
        self.heard: list[str | None] = []
        self.store = MemoryStore(lambda: self.now, Random(1).random, notified=self.heard.append)

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def insert(self, *jobs: NewJob) -> list[JobRow]:
        return play(self.store.insert(jobs or [NewJob("k", "q", "{}")]))

    def claim(self, wanted: int = 100, queue: str = "q", **options: float) -> Sequence[Attempt]:
        demand = Demand(
            queue, wanted, int(options.get("stripe", 0)), options.get("aging", 60.0), options.get("deadline")
        )
        return play(self.store.claim(1, Ring(1), [demand])).attempts

    def end(self, attempt: Attempt, ended: Returned | Raised | Ending = DONE, flush: int = 1) -> Verdict:
        transition = conclude(attempt, ended, self.now, lambda: 0.0)
        return play(self.store.finalize([Ended(attempt, transition)], flush))[0]

    def job(self, id: int = 1) -> JobRow:
        row = play(self.store.get_job(id))
        assert row is not None
        return row


@pytest.fixture
def world() -> World:
    return World()


def test_it_is_a_store(world: World) -> None:
    store: Store = world.store
    assert play(store.register(WorkerInfo(("q",)))).instance == 1
    assert play(store.register(WorkerInfo(("q",)))).instance == 2
    play(store.unregister(1))


def test_jobs_come_out_by_priority_then_run_at_then_id(world: World) -> None:
    world.insert(NewJob("k", "q", "{}", priority=3), NewJob("k", "q", "{}", priority=1))
    world.insert(NewJob("k", "q", "{}", run_at=START - timedelta(seconds=5)), NewJob("k", "q", "{}"))
    assert [a.id for a in world.claim()] == [2, 3, 4, 1]


def test_waiting_lifts_a_job_by_one_priority_each_time(world: World) -> None:
    world.insert(NewJob("k", "q", "{}", priority=4))
    world.wait(119)
    world.insert(NewJob("k", "q", "{}", priority=2))
    assert [a.id for a in world.claim(1)] == [2]
    world.insert(NewJob("k", "q", "{}", priority=2))
    world.wait(1)
    assert [a.id for a in world.claim(1)] == [1]


def test_without_aging_nothing_is_lifted(world: World) -> None:
    world.insert(NewJob("k", "q", "{}", priority=4))
    world.wait(10_000)
    world.insert(NewJob("k", "q", "{}", priority=3))
    assert [a.id for a in world.claim(1, aging=0)] == [2]


def test_a_claim_counts_the_attempt_and_raises_the_lease_even_if_the_clock_goes_back(world: World) -> None:
    world.insert()
    (first,) = world.claim()
    assert (first.attempt, first.run_lease) == (1, 1767225600000000)
    world.end(first, Ending.RELEASED)
    world.wait(-3600)
    (second,) = world.claim()
    assert (second.attempt, second.run_lease) == (1, first.run_lease + 1)


def test_an_attempt_ends_once_and_the_same_flush_may_be_sent_again(world: World) -> None:
    world.insert()
    (attempt,) = world.claim()
    assert world.end(attempt, flush=5) is Verdict.ACCEPTED
    assert world.end(attempt, flush=5) is Verdict.ACCEPTED
    assert world.end(attempt, Ending.RELEASED, flush=6) is Verdict.STALE
    assert world.job().state is JobState.COMPLETED


@pytest.mark.parametrize("wrong", [{"run_lease": 1}, {"claim_id": 99}, {"idx": 1}, {"idx": -1}])
def test_a_wrong_fence_is_stale(world: World, wrong: dict[str, int]) -> None:
    world.insert()
    (attempt,) = world.claim()
    assert world.end(attempt._replace(**wrong)) is Verdict.STALE  # type: ignore[arg-type]  # numbers all of them
    assert world.job().state is JobState.RUNNING


def test_the_end_of_an_attempt_makes_the_row_the_matrix_says(world: World) -> None:
    for ended, state, attempt in (
        (Returned(RetryAfter(60)), JobState.RETRYABLE, 1),
        (Returned(Snooze(60)), JobState.SCHEDULED, 0),
        (Returned(Cancel("x")), JobState.CANCELLED, 1),
        (Raised(ValueError("x")), JobState.RETRYABLE, 1),
        (Ending.RELEASED, JobState.AVAILABLE, 0),
    ):
        (row,) = world.insert()
        (claimed,) = [a for a in world.claim() if a.id == row.id]
        world.end(claimed, ended)
        after = world.job(row.id)
        assert (after.state, after.attempt) == (state, attempt)
        assert (after.finalized_at is not None) == (state.is_terminal or state is JobState.RETRYABLE)
        assert len(after.errors) == (state not in {JobState.SCHEDULED, JobState.AVAILABLE})
        play(world.store.cancel(row.id))


def test_deferred_jobs_wait_for_promotion_and_the_answer_says_when_the_next_is_due(world: World) -> None:
    world.insert(*[NewJob("k", "q", "{}", run_at=START + timedelta(seconds=s)) for s in (10, 20, 30)])
    assert world.job().state is JobState.SCHEDULED
    assert play(world.store.promote(10)).due_in == 10
    world.wait(20)
    assert not world.claim()
    assert play(world.store.promote(1)).due_in == 0
    promoted = play(world.store.promote(10))
    assert (promoted.count, promoted.queues, promoted.due_in) == (1, frozenset({"q"}), 10.0)
    assert [a.id for a in world.claim()] == [1, 2]


def test_a_run_at_that_is_already_due_starts_as_available(world: World) -> None:
    (row,) = world.insert(NewJob("k", "q", "{}", run_at=START))
    assert row.state is JobState.AVAILABLE


def test_cancel_ends_a_job_wherever_it_is(world: World) -> None:
    world.insert(NewJob("k", "q", "{}"), NewJob("k", "q", "{}", run_at=START + timedelta(1)))
    assert play(world.store.cancel(2)) is Cancelled.CANCELLED
    (attempt,) = world.claim()
    assert play(world.store.cancel(1)) is Cancelled.RUNNING
    assert world.heard == [f"!1:{attempt.run_lease}"] or not world.heard
    assert world.end(attempt) is Verdict.STALE
    assert world.job().state is JobState.CANCELLED
    assert play(world.store.cancel(1)) is Cancelled.ENDED
    assert play(world.store.cancel(3)) is Cancelled.NOT_FOUND
    play(world.store.retry(2))
    assert play(world.store.cancel(2)) is Cancelled.CANCELLED


def test_retry_brings_failed_and_cancelled_jobs_back_from_attempt_0(world: World) -> None:
    world.insert()
    (attempt,) = world.claim()
    assert play(world.store.retry(1)) is None
    world.end(attempt, Returned(Cancel()))
    row = play(world.store.retry(1))
    assert row is not None
    assert (row.state, row.attempt, row.run_lease) == (JobState.AVAILABLE, 0, attempt.run_lease)
    (again,) = world.claim()
    assert (again.attempt, again.run_lease) == (1, attempt.run_lease + 1)


def test_move_changes_queue_and_priority_of_what_nobody_has_claimed(world: World) -> None:
    world.insert(NewJob("k", "q", "{}"), NewJob("k", "q", "{}"))
    assert play(world.store.move(1, queue="r", priority=1)) is Cancelled.CANCELLED
    assert [a.id for a in world.claim()] == [2]
    assert [(a.id, a.priority) for a in world.claim(queue="r")] == [(1, 1)]
    assert play(world.store.move(1, queue="q")) is Cancelled.RUNNING
    assert play(world.store.move(9)) is Cancelled.NOT_FOUND


def test_a_paused_queue_gives_nothing(world: World) -> None:
    world.insert()
    play(world.store.pause_queue("q", None))
    assert not world.claim()
    assert play(world.store.survey(["q", "r"]))[1]["q"].paused
    play(world.store.resume_queue("q"))
    assert len(world.claim()) == 1


def test_stripes_part_a_queue_and_only_grow(world: World) -> None:
    play(world.store.set_stripes("q", 4))
    world.insert(*[NewJob("k", "q", "{}", ordering=i) for i in range(8)])
    assert [a.id for a in world.claim(stripe=3)] == [4, 8]
    with pytest.raises(ValidationError, match="stripes"):
        play(world.store.set_stripes("q", 2))


def test_a_deadline_of_the_job_goes_before_that_of_the_queue(world: World) -> None:
    world.insert(NewJob("k", "q", "{}", extra=encode(deadline=5)), NewJob("k", "q", "{}"))
    world.claim(deadline=60)
    assert [row.deadline_at for row in world.store.rows] == [
        START + timedelta(seconds=5),
        START + timedelta(seconds=60),
    ]


def test_lists_are_newest_first_and_paged_by_id(world: World) -> None:
    world.insert(*[NewJob("k" if i % 2 else "l", "q", "{}") for i in range(6)])
    assert [row.id for row in play(world.store.list_jobs(JobFilter(limit=2)))] == [6, 5]
    assert [row.id for row in play(world.store.list_jobs(JobFilter(limit=2, before_id=5)))] == [4, 3]
    assert [row.id for row in play(world.store.list_jobs(JobFilter(kind="k", state=JobState.AVAILABLE)))] == [6, 4, 2]
    assert not play(world.store.list_jobs(JobFilter(queue="r")))


def test_stats_count_states_and_the_lag(world: World) -> None:
    world.insert(NewJob("k", "q", "{}"), NewJob("k", "q", "{}"), NewJob("k", "r", "{}", run_at=START + timedelta(1)))
    world.claim(1)
    world.wait(7)
    q, r = play(world.store.queue_stats())
    assert (q.queue, q.available, q.running, q.lag) == ("q", 1, 1, 7.0)
    assert (r.queue, r.scheduled, r.lag) == ("r", 1, 0.0)


def test_only_announced_queues_are_notified_and_every_listener_hears_it(world: World) -> None:
    other: list[str | None] = []
    second = MemoryStore(lambda: world.now, Random(2).random, shares=world.store, notified=other.append)
    world.insert()
    assert not world.heard
    play(world.store.announce(["q"]))
    play(second.withdraw())
    world.insert()
    world.insert(NewJob("k", "r", "{}"))
    world.insert(NewJob("k", "q", "{}", run_at=START + timedelta(seconds=2)))
    world.insert(NewJob("k", "q", "{}", run_at=START + timedelta(seconds=20)))
    assert world.heard == other == ["q", None]
    world.store.disconnect()
    world.insert()
    assert len(other) == 2


def test_an_insert_that_runs_twice_makes_two_jobs(world: World) -> None:
    op = world.store.insert([NewJob("k", "q", "{}")])
    assert [play(op)[0].id, play(op)[0].id] == [1, 2]
