"""Jobs that wait for the outside world, in virtual time, arranged by hand; at random they do so in `test_simulator.py`."""

from collections.abc import Callable

import pytest

from awa_proto.job import JobState
from awa_proto.testing.faults import Fault, Faults, is_down
from awa_proto.testing.outside import Outside
from awa_proto.testing.process import Process
from awa_proto.testing.simulator import Job, Simulation, play
from awa_proto.testing.tokens import USES, Use
from awa_proto.worker.config import QueueConfig, WorkerConfig
from awa_proto.worker.events import Lane, RunOp
from awa_proto.worker.rescue import LOOK_EVERY
from tests.core.test_simulator import settled, states, worker

ONE_SLOT = QueueConfig(max_workers=1)
WAITING = JobState.WAITING_EXTERNAL


def first(fault: Fault, *names: str, times: int = 1) -> Callable[[int, RunOp], Fault | None]:
    """What happens to the first Ops of a name."""
    left = dict.fromkeys(names, times)

    def interfere(_number: int, run: RunOp) -> Fault | None:
        if left.get(run.op.name, 0):
            left[run.op.name] -= 1
            return fault
        return None

    return interfere


def shown(world: Simulation) -> list[JobState]:
    """The states of the jobs, as people see them."""
    return [row.state for row in world.rows]


# slots


def test_a_job_that_is_parked_leaves_its_slot_and_one_whose_handler_waits_keeps_it() -> None:
    world = Simulation(1)
    outside = Outside(world)
    world.insert(Job(ends=("park", "ok"), timeout=300.0), Job(ends=("wait",), timeout=300.0), Job(takes=0.1))
    process = worker(world, ONE_SLOT)
    settled(world, 20.0)
    assert shown(world) == [WAITING, WAITING, JobState.AVAILABLE]
    assert process.machine.queues["q"].running == 1
    outside.use("complete", world.ids[1])
    settled(world, 1.0)
    assert shown(world) == [WAITING, JobState.COMPLETED, JobState.COMPLETED]
    assert process.machine.queues["q"].running == 0
    outside.use("resume", world.ids[0])
    settled(world, 1.0)
    assert states(world) == {JobState.COMPLETED}
    assert {row.attempt for row in world.rows} == {1}


# what wakes a handler


@pytest.mark.parametrize("is_lost", [False, True], ids=["a notification", "none"])
def test_a_handler_goes_on_within_milliseconds_and_without_a_notification_within_a_poll(is_lost: bool) -> None:
    for seed in range(20):
        world = Simulation(seed, faults=Faults(latency=0.001, notice_lost=float(is_lost)))
        outside = Outside(world)
        worker(world)
        world.insert(Job(ends=("wait",), timeout=300.0))
        settled(world)
        at = world.now
        for number in range(3):
            assert outside.use("resume", world.ids[number])
            world.run_until(lambda: len(world.ids) > number + 1 or states(world) == {JobState.COMPLETED}, 2.2, 0.001)  # noqa: B023
        assert world.now - at < (6.6 if is_lost else 0.05)
        assert (world.rows[0].attempt, len(world.seen("start"))) == (1, 1)


def test_a_handler_waits_on_while_the_database_is_away_and_that_costs_few_statements() -> None:
    world = Simulation(1)
    outside = Outside(world)
    process = worker(world)
    world.insert(*[Job(ends=("wait, park", "ok"), timeout=300.0)] * 5)
    settled(world, 5.0)
    world.interfere = lambda _number, run: is_down() if run.lane in {Lane.MAINTENANCE, Lane.LISTEN} else None
    for id in world.ids[:5]:
        outside.use("resume", id)
    settled(world, 60.0)
    assert len([at for at in world.statements("wait") if at > 5.0]) < 60
    world.interfere = lambda _number, _run: None
    settled(world, 5.0)
    assert len(world.ids) == 10
    assert shown(world) == [WAITING] * 5
    process.check_looks()


# one has its way


@pytest.mark.parametrize("name", ["park", "wait"])
@pytest.mark.parametrize("early", [True, False], ids=["before it waits", "while it waits"])
def test_of_ten_who_use_a_callback_one_has_its_way(name: str, early: bool) -> None:
    for seed, use in enumerate(USES * 2):
        world = Simulation(seed)
        outside = Outside(world)
        worker(world)
        world.insert(Job(ends=(name, "ok"), takes=1.0, timeout=300.0))
        world.run(0.5 if early else 5.0)
        (id,) = world.ids
        used = [outside.use(each, id) for each in (use, *USES, *USES) if each != "heartbeat"]
        assert sum(used) == 1, (use, used)
        for other in world.ids[1:]:
            outside.use("complete", other)
        settled(world, 5.0)
        for other in world.ids[1:]:
            outside.use("complete", other)
        settled(world, 5.0)
        outside.close()


def test_a_token_of_an_attempt_before_is_dead_whatever_the_job_does_now() -> None:
    for name in ("park", "wait"):
        world = Simulation(1)
        outside = Outside(world)
        worker(world)
        world.insert(Job(ends=(name,), timeout=300.0))
        settled(world, 2.0)
        outside.use("retry", world.ids[0])
        settled(world, 2.0)
        assert len(world.ids) == 2
        assert not any(outside.use(use, world.ids[0]) for use in USES)
        assert outside.use("complete", world.ids[1])
        settled(world, 2.0)
        assert states(world) == {JobState.COMPLETED}


@pytest.mark.parametrize("name", ["register_callback", "finalize", "wait"])
@pytest.mark.parametrize("fault", [Fault.ANSWER_LOST, Fault.DONE_LATER, Fault.REFUSED_ENTRY])
def test_an_answer_that_is_lost_leaves_nothing_waiting(name: str, fault: Fault) -> None:
    for end in ("park", "wait", "leave, park"):
        for seed in range(5):
            world = Simulation(seed, faults=Faults(latency=0.01))
            outside = Outside(world)
            world.interfere = first(fault, name, times=2)
            world.given = lambda id: outside.use("resume", id)  # noqa: B023
            worker(world)
            world.insert(Job(ends=(end, "ok"), timeout=2.0))
            world.run_until(lambda: states(world) == {JobState.COMPLETED}, at_most=30.0)  # noqa: B023
            outside.close()


# handlers that leave


def test_a_handler_that_has_left_may_park_although_that_is_not_written_yet() -> None:
    for seed in range(20):
        world = Simulation(seed, faults=Faults(latency=0.01))
        outside = Outside(world)
        worker(world)
        world.insert(Job(ends=("leave, park", "ok"), timeout=300.0))
        world.crawling[Lane.MAINTENANCE] = 0.02
        world.run(1.0)
        assert shown(world) == [WAITING]
        assert outside.use("resume", world.ids[0])
        settled(world, 5.0)
        assert states(world) == {JobState.COMPLETED}


def test_a_handler_that_has_left_may_register_another_callback_although_that_is_not_written_yet() -> None:
    for seed in range(20):
        world = Simulation(seed, faults=Faults(latency=0.01))
        outside = Outside(world)
        worker(world)
        world.insert(Job(ends=("leave, register",), timeout=300.0))
        world.crawling[Lane.MAINTENANCE] = 0.02
        world.run(2.0)
        assert len(world.ids) == 3
        assert [outside.use("resume", id) for id in world.ids] == [False, False, True]
        settled(world, 5.0)
        assert states(world) == {JobState.COMPLETED}


def test_a_callback_that_comes_as_its_handler_leaves_is_not_lost() -> None:
    for tenths in range(1, 60):
        world = Simulation(tenths, faults=Faults(latency=0.001), loop=0.005)
        outside = Outside(world)
        worker(world)
        world.given = lambda id: world.at(world.now + 0.045 + tenths / 1e4, lambda: outside.use("resume", id))  # noqa: B023
        world.insert(Job(ends=("leave, park", "ok"), timeout=300.0))
        settled(world, 5.0)
        assert states(world) == {JobState.COMPLETED}


# time


def test_the_deadline_of_a_handler_stands_still_while_it_waits() -> None:
    for takes, ends in ((0.3, JobState.COMPLETED), (0.4, JobState.FAILED)):
        world = Simulation(1)
        outside = Outside(world)
        worker(world)
        world.insert(Job(ends=("wait",), takes=takes, deadline=1.0, timeout=300.0, max_attempts=1))
        for number in range(3):
            settled(world, 30.0)
            assert len(world.ids) == number + 1
            outside.use("resume", world.ids[number])
        settled(world, 30.0)
        assert states(world) == {ends}
        assert [entry["error"] for entry in world.rows[0].errors] == ["hard deadline exceeded"] * (takes == 0.4)


def outage(world: Simulation, begins: float, lasts: float) -> None:
    """Nobody reaches the database for so long."""
    world.interfere = lambda _number, _run: is_down() if begins <= world.now < begins + lasts else None


@pytest.mark.parametrize("is_written", [False, True], ids=["before it waits", "while it waits"])
@pytest.mark.parametrize(("takes", "deadline", "lasts"), [(1.0, 3.5, 6.0), (2.5, 8.5, 12.0), (2.5, 20.0, 30.0)])
def test_the_deadline_of_a_handler_stands_still_also_where_that_is_written_late(
    takes: float, deadline: float, lasts: float, is_written: bool
) -> None:
    for seed in range(10):
        world = Simulation(seed, faults=Faults(latency=0.002))
        outside = Outside(world)
        worker(world)
        worker(world, number=2)
        settled(world, 15.0)
        world.insert(Job(ends=("wait",), takes=takes, deadline=deadline, timeout=300.0, max_attempts=1))
        world.run_until(lambda: bool(world.ids), at_most=5.0, step=0.001)  # noqa: B023
        outage(world, world.now + (takes + 0.5 if is_written else 0.0), lasts)
        for number in range(3):
            settled(world, 45.0)
            assert (shown(world), len(world.ids)) == ([WAITING], number + 1)
            outside.use("resume", world.ids[number])
        settled(world, 30.0)
        (row,) = world.rows
        assert (row.state, row.attempt, row.errors) == (JobState.COMPLETED, 1, [])


def test_a_wait_that_began_and_ended_while_the_database_was_away_has_stopped_the_deadline() -> None:
    for seed in range(10):
        world = Simulation(seed, faults=Faults(latency=0.002))
        worker(world)
        worker(world, number=2)
        settled(world, 15.0)
        world.given = lambda _: outage(world, world.now, 12.0)  # noqa: B023
        job = Job(ends=("leave, work",), patience=10.0, takes=18.0, deadline=20.0, timeout=300.0, max_attempts=1)
        world.insert(job)
        settled(world, 60.0)
        (row,) = world.rows
        assert (row.state, row.attempt, row.errors) == (JobState.COMPLETED, 1, [])


def test_a_handler_that_left_while_the_database_was_away_is_given_no_more_than_it_waited() -> None:
    world = Simulation(1, faults=Faults(latency=0.002))
    worker(world)
    settled(world, 15.0)
    world.given = lambda _: outage(world, world.now + 5.0, 30.0)
    job = Job(ends=("leave, work",), patience=10.0, takes=300.0, deadline=60.0, timeout=300.0, max_attempts=1)
    world.insert(job)
    settled(world, 40.0)
    (row,) = world.rows
    assert row.attempted_at is not None
    assert row.deadline_at is not None
    assert (row.deadline_at - row.attempted_at).total_seconds() == pytest.approx(70.0, abs=0.1)
    settled(world, 60.0)
    assert [entry["error"] for row in world.rows for entry in row.errors] == ["hard deadline exceeded"]


@pytest.mark.parametrize("name", ["park", "wait"])
@pytest.mark.parametrize("timeout", [0.5, 4.9, 5.0, 30.0])
def test_who_waits_too_long_is_rescued_at_the_moment_itself(name: str, timeout: float) -> None:
    """Whichever worker it runs on: another one may lead, and looks now and then."""
    for seed in range(8):
        world = Simulation(seed)
        leader = Process(world, WorkerConfig({"q" if seed % 2 else "other": ONE_SLOT})).start()
        settled(world, 2.0)
        if not seed % 2:
            worker(world, number=2)
        settled(world, 2.0 + seed)
        assert leader.machine.leads
        at = world.now
        world.insert(Job(ends=(name,), timeout=timeout, max_attempts=1))
        world.run(at + timeout - 0.01)
        assert shown(world) == [WAITING]
        world.run(at + timeout + 0.1)
        row = world.rows[-1]
        assert (row.state, row.errors[-1]["error"]) == (JobState.FAILED, "rescued: callback timed out")
        told = [line[4] for line in world.trace if line[2] == "happened"]
        assert sorted(told) == sorted(["Started", "Rescued", "Exhausted", *(["WaitingForCallback"] * (name == "park"))])


@pytest.mark.parametrize("name", ["park", "wait"])
def test_who_begins_to_wait_when_little_time_is_left_is_rescued_at_the_moment_itself(name: str) -> None:
    for left in (0.05, 3.0):
        world = Simulation(1)
        worker(world)
        settled(world, 2.0)
        at = world.now
        world.insert(Job(ends=(name,), takes=30.0 - left, timeout=30.0, max_attempts=1))
        world.run(at + 29.99)
        assert shown(world) == [WAITING]
        world.run(at + 30.1)
        assert shown(world) == [JobState.FAILED]


def test_who_is_given_less_time_is_rescued_then_and_where_nobody_heard_of_it_soon_after() -> None:
    for is_lost in (False, True):
        world = Simulation(1, faults=Faults(latency=0.001, notice_lost=float(is_lost)))
        outside = Outside(world)
        worker(world)
        world.insert(Job(ends=("park",), timeout=300.0, max_attempts=1))
        settled(world, 60.0)
        assert outside.use("heartbeat", world.ids[0], more=1.0)
        settled(world, LOOK_EVERY + 0.1 if is_lost else 1.1)
        assert shown(world) == [JobState.FAILED]


def test_who_is_given_more_time_is_rescued_later() -> None:
    world = Simulation(1)
    outside = Outside(world)
    worker(world)
    world.insert(Job(ends=("park",), timeout=20.0, max_attempts=1))
    for _ in range(5):
        settled(world, 15.0)
        assert outside.use("heartbeat", world.ids[0], more=20.0)
    settled(world, 19.9)
    assert shown(world) == [WAITING]
    settled(world, 0.3)
    assert shown(world) == [JobState.FAILED]


def test_who_is_given_more_time_while_it_is_rescued_waits_on() -> None:
    for name in ("park", "wait"):
        world = Simulation(1)
        outside = Outside(world)
        given: list[float] = []

        def give_more(_number: int, run: RunOp) -> None:
            if run.op.name == "finalize" and run.lane is Lane.UPKEEP:
                given.append(world.now)  # noqa: B023
                assert outside.use("heartbeat", world.ids[0], more=20.0)  # noqa: B023

        world.interfere = give_more
        worker(world)
        world.insert(Job(ends=(name,), timeout=20.0))
        settled(world, 70.0)
        assert len(given) == 3
        assert shown(world) == [WAITING]


# workers that go


def test_a_handler_that_waits_and_whose_worker_died_is_rescued_when_its_time_is_up_or_it_was_resumed() -> None:
    world = Simulation(1)
    outside = Outside(world)
    died = worker(world, QueueConfig(max_workers=3))
    world.insert(*[Job(ends=("wait", "ok"), timeout=200.0)] * 3)
    settled(world, 5.0)
    died.die()
    worker(world, number=2)
    settled(world, 100.0)
    assert shown(world) == [WAITING] * 3
    assert outside.use("complete", world.ids[0])
    assert outside.use("resume", world.ids[1])
    settled(world, 60.0)
    assert shown(world) == [JobState.COMPLETED, JobState.COMPLETED, WAITING]
    settled(world, 60.0)
    assert [(row.state, row.attempt) for row in world.rows] == [
        (JobState.COMPLETED, 1), (JobState.COMPLETED, 2), (JobState.COMPLETED, 2)
    ]  # fmt: skip


@pytest.mark.parametrize("sleeps", [False, True], ids=["its clock goes on", "its clock stands still"])
@pytest.mark.parametrize("use", USES)
def test_a_worker_that_stood_still_learns_what_came_of_its_handlers_that_wait(sleeps: bool, use: Use) -> None:
    world = Simulation(1)
    outside = Outside(world)
    process = worker(world)
    world.insert(Job(ends=("wait", "ok"), timeout=60.0))
    settled(world, 5.0)
    worker(world, number=2)
    process.freeze(120.0, sleeps=sleeps)
    settled(world, 30.0)
    assert outside.use(use, world.ids[0], more=60.0)
    settled(world, 120.0)
    world.run_until(lambda: process.machine.queues["q"].running == 0 or len(world.ids) > 1, at_most=30.0)
    for id in world.ids[1:]:
        outside.use("complete", id)
    settled(world, 10.0)
    assert all(state.is_terminal for state in states(world))
    assert process.machine.queues["q"].running == 0


def test_a_stop_ends_handlers_that_wait_when_the_grace_is_over_and_nothing_is_left_of_them() -> None:
    world = Simulation(1)
    outside = Outside(world)
    process = worker(world)
    world.insert(*[Job(ends=("wait",), timeout=300.0)] * 3, Job(ends=("park",), timeout=300.0))
    settled(world, 5.0)
    process.stop(2.0)
    settled(world, 1.0)
    assert outside.use("complete", world.ids[0])
    settled(world, 20.0)
    assert process.stopped is not None
    assert process.stopped.clean
    assert shown(world) == [JobState.COMPLETED, JobState.AVAILABLE, JobState.AVAILABLE, WAITING]
    assert not any(outside.use(use, id) for use in USES for id in world.ids[1:3])


# people


@pytest.mark.parametrize("name", ["park", "wait"])
def test_a_person_cancels_or_retries_a_job_that_waits(name: str) -> None:
    world = Simulation(1)
    outside = Outside(world)
    process = worker(world)
    cancelled, retried = world.insert(*[Job(ends=(name, "ok"), timeout=300.0)] * 2)
    settled(world, 5.0)
    world.cancel(cancelled.id)
    outside.retry(retried.id)
    settled(world, 5.0)
    assert [(row.state, row.attempt) for row in world.rows] == [(JobState.CANCELLED, 1), (JobState.COMPLETED, 1)]
    assert process.machine.queues["q"].running == 0
    outside.close()


def test_a_job_that_waits_for_nothing_fails() -> None:
    world = Simulation(1)
    worker(world)
    (row,) = world.insert(Job(ends=("park for nothing",)))
    settled(world)
    job = play(world.store.get_job(row.id))
    assert job is not None
    assert (job.state, job.errors[-1]["terminal"]) == (JobState.FAILED, True)
