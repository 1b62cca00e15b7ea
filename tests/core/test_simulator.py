"""Lives of workers in virtual time: thousands drawn from seeds, and a few arranged by hand.

AWA_SIMULATOR_SEEDS: how many lives; 5000 unless said otherwise.
"""

import os
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from awa_proto.errors import DatabaseError
from awa_proto.job import JobState
from awa_proto.testing.faults import Fault, Faults, is_down
from awa_proto.testing.process import Process
from awa_proto.testing.scenarios import live
from awa_proto.testing.simulator import Job, Simulation, play
from awa_proto.worker.config import QueueConfig, WorkerConfig
from awa_proto.worker.events import DrainAsked, Lane, RunOp
from awa_proto.worker.lifecycle import Phase

SEEDS = int(os.environ.get("AWA_SIMULATOR_SEEDS", "5000"))
CHUNK = 50


def worker(world: Simulation, *queue: QueueConfig, number: int = 1) -> Process:
    """A worker of one queue, with ten slots unless it is said otherwise."""
    (config,) = queue or (QueueConfig(max_workers=10),)
    return Process(world, WorkerConfig({"q": config}), number).start()


def listens(process: Process) -> bool:
    return process.machine.is_listening


def settled(world: Simulation, seconds: float = 10.0) -> Simulation:
    world.run(world.now + seconds)
    return world


def states(world: Simulation) -> set[JobState]:
    return set(world.states.values())


def failing(name: str, error: Callable[[], DatabaseError], times: int) -> Callable[[int, RunOp], DatabaseError | None]:
    """Let the first Ops of a name fail."""
    errors: Iterator[DatabaseError] = (error() for _ in range(times))
    return lambda _number, run: next(errors, None) if run.op.name == name else None


# thousands


@pytest.mark.slow
@pytest.mark.no_cover  # which would take as long again, and show nothing that fifty lives do not
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_a_life_among_faults_keeps_every_promise(first: int) -> None:
    for seed in range(first, first + CHUNK):
        live(seed)


@pytest.mark.slow
def test_fifty_lives_keep_every_promise() -> None:
    for seed in range(SEEDS, SEEDS + 50):
        live(seed)


def test_equal_seeds_give_equal_traces() -> None:
    for seed in range(5):
        assert live(seed).trace == live(seed).trace
    assert live(1).trace != live(2).trace


# events


def test_hooks_are_told_of_each_attempt_once_as_it_starts_and_when_its_end_is_written() -> None:
    world = Simulation(1)
    worker(world)
    world.insert(Job(ends=("error", "snooze", "retry", "ok")), Job(ends=("cancel",)), Job(kind="nobody knows"))
    settled(world, 30)
    told = {id: [line[4] for line in world.trace if line[2:4] == ("happened", id)] for id in (1, 2, 3)}
    assert told == {
        1: ["Started", "Retried", "Started", "Started", "Retried", "Started", "Completed"],
        2: ["Started", "Cancelled"],
        3: ["Exhausted"],
    }


@pytest.mark.parametrize("fault", [Fault.ANSWER_LOST, Fault.DONE_LATER, Fault.HALF_DONE, Fault.OUTRUN])
def test_an_end_that_is_sent_again_is_told_once(fault: Fault) -> None:
    for seed in range(20):
        world = Simulation(seed)
        faults = iter([fault] * 3)
        world.interfere = lambda _number, run: next(faults, None) if run.op.name == "finalize" else None  # noqa: B023
        worker(world)
        world.insert(*[Job()] * 5)
        settled(world, 30)
        assert next(faults, None) is None
        assert len(world.seen("happened")) == 10
        assert all(claim.told == ["Started", "Completed"] for claim in world.accounts.claims.values())


# wake-ups and polls


def test_a_job_is_started_as_soon_as_its_notification_arrives() -> None:
    world = Simulation(1)
    worker(world)
    settled(world)
    world.insert(Job())
    world.run(world.now + 0.01)
    assert states(world) == {JobState.COMPLETED}


@pytest.mark.parametrize("silence", [0.02, 0.1, 0.5, 5.0])
def test_a_lost_notification_costs_no_more_than_about_the_silence_before_it(silence: float) -> None:
    for seed in range(20):
        world = Simulation(seed)
        worker(world)
        settled(world)
        world.insert(Job())
        world.run(world.now + silence)
        at = world.now
        world.insert(Job(), notify=False)
        world.run(at + 10)
        assert world.seen("start")[-1] - at <= min(silence + 0.02, 2.2)


def test_an_idle_worker_sends_at_most_a_statement_a_second() -> None:
    for queues in (1, 2, 5):
        world = Simulation(queues)
        Process(world, WorkerConfig({f"q{i}": QueueConfig() for i in range(queues)})).start()
        settled(world, 60)
        before = len(world.trace)
        world.run(world.now + 300)
        since = world.trace[before:]
        assert sum(line[2] == "run" for line in since) - world.upkeep(since) <= 300
        assert world.upkeep(since) <= 1.8 * 300


def test_an_idle_worker_without_notifications_polls_and_says_so_once() -> None:
    world = Simulation(1)
    world.interfere = lambda _number, run: is_down() if run.op.name in {"announce", "withdraw"} else None
    process = worker(world)
    settled(world, 100)
    assert not listens(process)
    assert world.told["listen failed"] == 1
    assert sum(line[2] == "run" for line in world.trace) - world.upkeep(world.trace) <= 120
    at = world.now
    world.insert(Job())
    world.run(at + 3)
    assert world.seen("start")[-1] - at <= 2.2


def test_a_sleeping_worker_is_announced_and_looks_once_more() -> None:
    world = Simulation(1)
    worker(world)
    settled(world, 1)
    (announced,) = world.statements("announce")
    assert any(announced <= claim <= announced + 0.01 for claim in world.statements("claim"))


def test_a_job_committed_between_the_empty_claim_and_the_announcement_is_found_at_once() -> None:
    world = Simulation(1)
    inserted: list[float] = []

    def insert_just_before(_number: int, run: RunOp) -> None:
        if run.op.name == "announce" and not inserted:
            inserted.append(world.now)
            world.insert(Job())  # nobody is announced yet, so nobody is notified

    world.interfere = insert_just_before
    worker(world)
    settled(world)
    assert world.seen("start")[0] - inserted[0] <= 0.006


def test_busy_producers_are_not_made_to_notify_and_jobs_still_start_within_milliseconds() -> None:
    world = Simulation(1)
    process = worker(world)
    settled(world, 3)
    start = world.now
    for i in range(2000):
        world.at(start + i / 1000, lambda: world.insert(Job()))
    world.run(start + 1)
    (withdrawn,) = [at for at in world.statements("withdraw") if at > start]
    assert withdrawn - start < 0.06
    claims = sum(at >= withdrawn for at in world.statements("claim"))
    assert claims <= 1000 * (start + 1 - withdrawn) / 2
    world.run(start + 3)
    assert states(world) == {JobState.COMPLETED}
    assert listens(process)
    assert [at for at in world.statements("announce") if at > start + 2]
    starts = dict(zip([line[3] for line in world.trace if line[2] == "start"], world.seen("start"), strict=True))
    assert max(at - (start + (job - 1) / 1000) for job, at in starts.items()) < 0.012


def test_a_lost_listening_connection_is_opened_again_and_everything_is_looked_at() -> None:
    world = Simulation(1)
    process = worker(world)
    settled(world)
    process.go_deaf(is_noticed=True)
    world.run(world.now + 0.01)
    assert not listens(process)
    world.run(world.now + 0.5)
    assert listens(process)
    assert world.told["listen failed"] == world.told["listen failed: over"] == 1


def test_a_half_open_listening_connection_is_found_within_seconds() -> None:
    world = Simulation(1)
    process = worker(world)
    settled(world)
    process.go_deaf(is_noticed=False)
    world.run(world.now + 17)
    assert listens(process)
    world.insert(Job())
    world.run(world.now + 0.01)
    assert states(world) == {JobState.COMPLETED}


# claims


def test_a_turn_lost_to_another_worker_is_followed_by_one_claim_for_all_that_became_free() -> None:
    world = Simulation(1)
    outruns = iter([Fault.OUTRUN])
    world.interfere = lambda _number, run: next(outruns, None) if run.op.name == "claim" else None
    world.insert(*[Job() for _ in range(10)])
    worker(world)
    settled(world)
    first, second = world.statements("claim")[:2]
    assert 0.005 <= second - first <= 0.021
    assert len(world.seen("start")) == 10


def test_quick_jobs_are_claimed_ahead_and_slow_ones_are_not() -> None:
    quick, slow = Simulation(1), Simulation(1)
    for world, takes in ((quick, 0.002), (slow, 2.0)):
        world.insert(*[Job(takes=takes) for _ in range(2000)])
        worker(world)
        world.run(1.9)
    assert len(quick.seen("start")) == 2000
    assert len(quick.statements("claim")) < 40
    health = worker(slow, number=2).machine
    assert len(slow.seen("start")) == 10
    assert {queue.buffered for queue in health.queues.values()} == {0}


def test_jobs_claimed_ahead_of_handlers_that_turn_out_slow_go_back() -> None:
    world = Simulation(1)
    world.insert(*[Job(takes=0.001) for _ in range(200)], *[Job(takes=20.0) for _ in range(100)])
    first = worker(world)
    world.run(0.9)
    assert first.machine.queues["q"].buffered > 0
    world.run(3.0)
    assert first.machine.queues["q"].buffered == 0
    worker(world, number=2)
    world.run(4.0)
    assert sum(line[1] == 2 and line[2] == "start" for line in world.trace) == 10
    world.run_until(lambda: states(world) == {JobState.COMPLETED}, at_most=300)
    assert all(row.attempt == 1 for row in world.rows)


def test_a_rate_limit_is_exact() -> None:
    world = Simulation(1, loop=0.0)
    world.insert(*[Job() for _ in range(30)])
    worker(world, QueueConfig(max_workers=50, rate_limit=(4.0, 5)))
    settled(world, 20)
    starts = world.seen("start")
    assert len(starts) == 30
    assert starts[:5] == [starts[0]] * 5
    assert starts[5:] == pytest.approx([starts[0] + (i + 1) / 4 for i in range(25)], abs=1e-6)


def test_a_high_rate_limit_holds_between_any_two_moments() -> None:
    world = Simulation(1)
    world.insert(*[Job() for _ in range(3000)])
    worker(world, QueueConfig(max_workers=1000, rate_limit=(1000.0, 50)))
    settled(world, 5)
    starts = world.seen("start")
    assert len(starts) == 3000
    assert all(
        starts[j] - starts[i] >= (j - i - 49) / 1000 - 0.002 for i in range(0, 3000, 7) for j in range(i, 3000, 13)
    )
    assert starts[-1] - starts[0] <= 2.97


def test_tokens_for_jobs_that_were_not_there_are_not_spent() -> None:
    world = Simulation(1)
    worker(world, QueueConfig(max_workers=50, rate_limit=(0.1, 10)))
    world.insert(*[Job() for _ in range(3)])
    world.run(1.0)
    world.insert(*[Job() for _ in range(9)])
    world.run(1.1)
    assert len(world.seen("start")) == 10


def test_every_stripe_of_a_queue_is_served() -> None:
    world = Simulation(1)
    play(world.store.set_stripes("q", 8))
    world.insert(*[Job(takes=0.01, ordering=i) for i in range(400)])
    worker(world)
    settled(world)
    assert states(world) == {JobState.COMPLETED}
    world.insert(Job(ordering=5))
    world.run(world.now + 0.02)
    assert states(world) == {JobState.COMPLETED}


def test_a_worker_with_one_slot_never_takes_a_job_of_each_stripe() -> None:
    world = Simulation(1)
    play(world.store.set_stripes("q", 8))
    world.insert(*[Job(takes=5.0, ordering=i) for i in range(8)])
    worker(world, QueueConfig(max_workers=1))
    world.run(2.0)
    assert list(world.states.values()).count(JobState.RUNNING) == 1


def test_a_paused_queue_is_left_alone_and_resumed_at_once() -> None:
    world = Simulation(1)
    play(world.store.pause_queue("q", "me"))
    world.insert(*[Job() for _ in range(5)])
    worker(world)
    settled(world, 30)
    assert states(world) == {JobState.AVAILABLE}
    assert not world.statements("claim")
    play(world.store.resume_queue("q"))
    world.run(world.now + 0.6)
    assert states(world) == {JobState.COMPLETED}


def test_a_pause_of_a_busy_queue_takes_effect_at_once() -> None:
    world = Simulation(1)
    world.insert(*[Job(takes=0.3) for _ in range(500)])
    worker(world)
    world.run(3.0)
    play(world.store.pause_queue("q", "me"))
    world.run(5.0)
    before = len(world.seen("start"))
    world.run(20.0)
    assert len(world.seen("start")) == before < 500


# deferred jobs


def test_deferred_jobs_run_at_their_moment() -> None:
    world = Simulation(1)
    worker(world)
    settled(world)
    at = world.now
    world.insert(Job(delay=0.5), Job(delay=7.25))
    world.run(at + 20)
    assert world.seen("start") == pytest.approx([at + 0.5, at + 7.25], abs=0.03)


def test_a_retry_of_this_worker_runs_at_its_moment_although_nobody_notified() -> None:
    world = Simulation(1)
    worker(world)
    settled(world)
    world.insert(Job(ends=("retry", "ok")))
    settled(world)
    first, second = world.seen("start")
    assert second - first == pytest.approx(0.3, abs=0.03)


# results


def test_fifty_handlers_that_end_together_are_one_flush() -> None:
    world = Simulation(1)
    world.insert(*[Job(takes=1.0) for _ in range(50)])
    worker(world, QueueConfig(max_workers=50))
    settled(world)
    assert len(world.statements("finalize")) == 1


def test_a_flush_whose_answer_was_lost_is_sent_again_and_accepted() -> None:
    world = Simulation(1)
    losses = iter([Fault.ANSWER_LOST] * 3)
    world.interfere = lambda _number, run: next(losses, None) if run.op.name == "finalize" else None
    world.insert(*[Job() for _ in range(5)])
    process = worker(world)
    settled(world)
    assert len(world.statements("finalize")) == 4
    assert states(world) == {JobState.COMPLETED}
    assert world.told["stale result"] == 0
    assert process.machine.unwritten == 0


def test_a_flush_backs_off_to_seconds_while_the_database_is_away_and_claims_pause_at_the_bound() -> None:
    world = Simulation(1)
    world.interfere = failing("finalize", is_down, 20)
    world.insert(*[Job() for _ in range(5000)])
    process = worker(world)
    world.run(30)
    sent = world.statements("finalize")
    gaps = [later - earlier for earlier, later in pairwise(sent)]
    assert gaps[0] <= 0.021
    assert max(gaps) <= 5.1
    assert gaps[8] > 3
    assert len(world.seen("start")) <= 2010
    settled(world, 120)
    assert states(world) == {JobState.COMPLETED}
    assert process.machine.last_error is not None


def test_a_result_the_server_refuses_fails_alone_and_the_others_are_written() -> None:
    world = Simulation(1)
    jobs = [Job(takes=1.0, is_poison=i in {3, 40}) for i in range(50)]
    world.insert(*jobs)
    worker(world, QueueConfig(max_workers=50))
    settled(world)
    for row in world.rows:
        if row.tags == ["poison"]:
            assert row.state is JobState.FAILED
            assert row.errors[-1]["error"].startswith(
                "ResultRefused: the result could not be written: simulated: refused"
            )
            assert "\0" not in row.errors[-1]["error"]
        else:
            assert row.state is JobState.COMPLETED
    assert len(world.statements("finalize")) <= 2 * 2 * 7


def test_new_results_are_written_while_a_locked_batch_waits() -> None:
    world = Simulation(1)
    locked: list[int] = []

    def lock_first(_number: int, run: RunOp) -> DatabaseError | None:
        if run.op.name == "finalize" and len(world.accounts.claims) == 1 and world.now < 5:
            locked.append(run.id)
            return DatabaseError("locked", "55P03")
        return None

    world.interfere = lock_first
    world.insert(Job())
    worker(world)
    world.run(2.0)
    assert len(locked) > 3
    world.insert(Job())
    world.run(2.1)
    assert world.states[2] is JobState.COMPLETED
    settled(world)
    assert states(world) == {JobState.COMPLETED}


# deadlines and cancellations


def test_an_attempt_ends_at_its_deadline_and_its_slot_is_free_when_the_handler_is() -> None:
    world = Simulation(1)
    world.insert(Job(takes=9.0, deadline=1.0, max_attempts=1, is_stubborn=True), Job(takes=0.1))
    process = worker(world, QueueConfig(max_workers=1))
    world.run(3.0)
    assert world.states[1] is JobState.FAILED
    assert world.rows[0].errors[-1]["error"] == "hard deadline exceeded"
    assert world.seen("cancel", 1) == pytest.approx([1.0], abs=0.01)
    assert process.machine.queues["q"].running == 1
    world.run(12.0)
    assert world.states[2] is JobState.COMPLETED


def test_a_cancellation_reaches_the_running_handler_and_writes_nothing() -> None:
    world = Simulation(1)
    world.insert(Job(takes=9.0))
    worker(world)
    world.run(1.0)
    world.cancel(1)
    world.run(1.1)
    assert world.seen("cancel", 1)
    assert not world.statements("finalize")
    assert states(world) == {JobState.CANCELLED}


# lanes and clocks


@pytest.mark.parametrize("lane", [Lane.FINALIZE, Lane.MAINTENANCE, Lane.UPKEEP, Lane.LISTEN])
def test_a_slow_lane_holds_up_no_start(lane: Lane) -> None:
    world = Simulation(1)
    worker(world)
    world.run(5.0)
    world.crawling[lane] = 3.0
    for n in range(20):
        world.at(6.0 + n, lambda: world.insert(Job()))
    world.run(27.0)
    late = [start - 6.0 - n for n, start in enumerate(world.seen("start"))]
    assert len(late) == 20
    assert max(late) <= (2.2 if lane is Lane.LISTEN else 0.5)


def test_an_answer_that_comes_twice_counts_once() -> None:
    for seed in range(20):
        world = Simulation(seed, faults=Faults(answer_twice=1.0))
        world.insert(*[Job(takes=0.01)] * 30)
        process = worker(world)
        settled(world, 30)
        assert states(world) == {JobState.COMPLETED}
        assert all(claim.told == ["Started", "Completed"] for claim in world.accounts.claims.values())
        assert process.machine.unwritten == 0


@pytest.mark.parametrize("sleeps", [False, True], ids=["its clock goes on", "its clock stands still"])
def test_a_worker_that_stood_still_works_on_and_what_others_ran_meanwhile_is_stale(sleeps: bool) -> None:
    for seed in range(10):
        world = Simulation(seed)
        first = worker(world)
        world.insert(*[Job(takes=5.0)] * 3)
        world.run(2.0)
        worker(world, number=2)
        first.freeze(120.0, sleeps=sleeps)
        world.run(119.0)
        assert states(world) == {JobState.COMPLETED}
        assert {row.attempt for row in world.rows} == {2}
        world.insert(*[Job(takes=60.0)] * 15)  # more than the other one takes
        settled(world, 180.0)
        assert {line[1] for line in world.trace if line[2] == "start" and line[0] > 118.0} == {1, 2}
        assert {row.attempt for row in world.rows} == {1, 2}
        assert states(world) == {JobState.COMPLETED}


@pytest.mark.parametrize("seconds", [-300.0, -5.0, 5.0, 300.0])
def test_a_clock_of_the_database_that_is_set_loses_no_job_and_moves_what_is_deferred_by_as_much(seconds: float) -> None:
    world = Simulation(1)
    worker(world)
    world.run(5.0)
    world.insert(Job(delay=350.0), Job(ends=("error", "ok")), Job(takes=1.0))
    world.run(5.5)
    world.skew += seconds
    world.run(355.0 - seconds - 1.0)
    assert world.states[1] is JobState.SCHEDULED
    world.run(355.0 - seconds + 5.0)
    assert states(world) == {JobState.COMPLETED}


def test_after_the_clock_of_the_database_was_set_back_deferred_jobs_are_as_prompt_as_before() -> None:
    world = Simulation(1)
    worker(world)
    world.insert(Job(delay=3.0))
    world.run(5.0)
    world.skew -= 3600.0
    world.run(15.0)
    late: list[float] = []
    for _ in range(5):
        world.insert(Job(delay=0.5), Job(ends=("retry", "ok")))
        at = world.now
        world.run(at + 20.0)
        late += [start - at for start in world.seen("start") if start > at]
    assert len(late) == 15
    assert max(late) < 0.6


# start and stop


def test_a_worker_waits_for_a_database_that_is_down_and_says_so() -> None:
    world = Simulation(1)
    world.interfere = lambda _number, _run: is_down() if world.now < 60 else None
    world.insert(Job())
    process = worker(world)
    world.run(55.0)
    tries = world.statements("register")
    gaps = [later - earlier for earlier, later in pairwise(tries)]
    assert gaps[0] <= 0.101
    assert 7 < max(gaps) <= 10.01
    assert process.machine.phase is Phase.STARTING
    assert 2 <= world.told["register failed"] <= 8
    world.run(75.0)
    assert states(world) == {JobState.COMPLETED}


def test_an_unmigrated_database_is_waited_for_too() -> None:
    world = Simulation(1)
    world.interfere = failing("register", lambda: DatabaseError("no table", "42P01"), 3)
    process = worker(world)
    settled(world)
    assert process.machine.phase is Phase.RUNNING


def test_a_stop_gives_back_what_has_not_started_and_lets_the_rest_finish() -> None:
    world = Simulation(1)
    world.insert(*[Job(takes=0.02) for _ in range(50)])
    process = worker(world)
    world.run(0.05)
    assert process.machine.queues["q"].buffered > 0
    process.stop(5.0)
    settled(world)
    assert process.stopped is not None
    assert process.stopped.clean
    assert states(world) == {JobState.COMPLETED, JobState.AVAILABLE}
    assert all(row.attempt == (row.state is JobState.COMPLETED) for row in world.rows)
    assert len(world.statements("unregister")) == 1


def test_running_jobs_get_the_grace_and_are_then_cancelled_and_released() -> None:
    world = Simulation(1)
    world.insert(Job(takes=1.0), Job(takes=60.0))
    process = worker(world)
    world.run(0.5)
    process.stop(2.0)
    world.run(5.0)
    assert world.seen("cancel", 2) == pytest.approx([2.5], abs=0.01)
    assert not world.seen("cancel", 1)
    assert process.stopped is not None
    assert process.stopped.clean
    assert [(row.state, row.attempt) for row in world.rows] == [(JobState.COMPLETED, 1), (JobState.AVAILABLE, 0)]


def test_a_handler_that_ignores_its_cancellation_is_left_after_five_seconds() -> None:
    world = Simulation(1)
    world.insert(Job(takes=60.0, is_stubborn=True))
    process = worker(world)
    world.run(0.5)
    process.stop(1.0)
    world.run(20.0)
    ((at, _, _, stopped),) = [line for line in world.trace if line[2] == "stopped"]
    assert at == pytest.approx(6.5, abs=0.1)
    assert (stopped.clean, stopped.left_running) == (False, (1,))
    assert states(world) == {JobState.RUNNING}


def test_a_second_stop_with_less_grace_shortens_the_first_and_one_with_more_does_not() -> None:
    for second, end in ((1.0, 2.0), (50.0, 11.0)):
        world = Simulation(1)
        world.insert(Job(takes=60.0))
        process = worker(world)
        world.run(0.5)
        process.stop(10.0)
        world.run(1.0)
        process.stop(second)
        world.run(30.0)
        assert world.seen("cancel", 1) == pytest.approx([end], abs=0.6)


def test_a_stop_ends_though_the_database_is_down_and_says_that_it_is_not_clean() -> None:
    world = Simulation(1)
    world.interfere = lambda _number, _run: is_down() if world.now > 0.5 else None
    world.insert(Job(takes=1.0))
    process = worker(world)
    world.run(0.7)
    process.stop(30.0)
    world.run(60.0)
    ((at, *_),) = [line for line in world.trace if line[2] == "stopped"]
    assert at <= 1.0 + 10 + 2 + 0.1
    assert process.stopped is not None
    assert not process.stopped.clean
    assert not process.stopped.left_running


def test_the_jobs_of_a_claim_that_was_under_way_at_the_stop_go_back() -> None:
    world = Simulation(1, faults=Faults(latency=0.1))
    world.insert(*[Job() for _ in range(5)])
    process = worker(world)
    world.run_until(lambda: bool(world.statements("claim")), at_most=1, step=0.001)
    process.stop(1.0)
    settled(world)
    assert process.stopped is not None
    assert process.stopped.clean
    assert not world.seen("start")
    assert len(world.accounts.claims) == 5
    assert {(row.state, row.attempt) for row in world.rows} == {(JobState.AVAILABLE, 0)}


def test_a_worker_that_is_stopped_before_it_could_start_stops_at_once() -> None:
    world = Simulation(1)
    world.interfere = failing("register", is_down, 10**6)
    process = worker(world)
    world.run(20.0)
    process.stop(30.0)
    world.run(20.1)
    assert process.stopped is not None
    assert process.stopped.clean


# drain


def test_drained_is_said_when_everything_due_is_done_and_not_before() -> None:
    world = Simulation(1)
    world.insert(*[Job(takes=0.5) for _ in range(25)], Job(delay=100.0))
    process = worker(world)
    process.put(DrainAsked("a"), DrainAsked("b"))
    world.run_until(lambda: process.drained == ["a", "b"], at_most=10, step=0.01)
    assert list(world.states.values()).count(JobState.COMPLETED) == 25
    world.insert(Job(takes=0.5))
    process.put(DrainAsked("c"))
    world.run(world.now + 0.4)
    assert process.drained == ["a", "b"]
    settled(world)
    assert process.drained == ["a", "b", "c"]


def test_drained_is_said_at_the_latest_before_stopped() -> None:
    world = Simulation(1)
    world.insert(Job(takes=50.0))
    process = worker(world)
    world.run(0.5)
    process.put(DrainAsked("a"))
    process.stop(1.0)
    settled(world)
    assert [line[2] for line in world.trace][-2:] == ["drained", "stopped"]
