"""A stop that arrives at every point of a worker's life: as each statement is sent, and as each is answered."""

from __future__ import annotations

import itertools

import pytest

from awa_proto.job import JobState
from awa_proto.testing.faults import Faults
from awa_proto.testing.process import Process
from awa_proto.testing.simulator import Job, Simulation
from awa_proto.worker.config import QueueConfig, WorkerConfig
from awa_proto.worker.events import RunOp

JOBS = 12


def stopped_at(point: int, later: float, grace: float) -> bool:
    """A worker that is asked to stop when it has sent so many statements, so much later. Whether it lived that long."""
    world = Simulation(point, faults=Faults(latency=0.01))
    world.insert(*[Job(takes=0.03 * (n % 4)) for n in range(JOBS)])
    process = Process(world, WorkerConfig({"q": QueueConfig(2)}))
    counts = itertools.count(1)

    def interfere(_: int, run: RunOp) -> None:
        if next(counts) == point:
            world.at(world.now + later, lambda: process.stop(grace))

    world.interfere = interfere
    process.start()
    world.run_until(
        lambda: process.stopped is not None or set(world.states.values()) == {JobState.COMPLETED}, at_most=60
    )
    if process.stopped is None:
        return False
    assert process.stopped.clean, point
    assert not process.stopped.left_running
    for row in world.rows:
        if row.state is JobState.COMPLETED:
            assert row.attempt == 1
        else:
            assert (row.state, row.attempt) == (JobState.AVAILABLE, 0), (
                f"point {point}: nothing running, no attempt burned"
            )
    Process(world, WorkerConfig({"q": QueueConfig(2)})).start()
    world.run_until(lambda: set(world.states.values()) == {JobState.COMPLETED}, at_most=60)
    assert {row.attempt for row in world.rows} == {1}
    return True


@pytest.mark.parametrize("grace", [0.0, 30.0])
@pytest.mark.parametrize("later", [0.0, 0.005, 0.02], ids=["sent", "under way", "answered"])
def test_a_stop_at_every_statement_loses_nothing_and_burns_no_attempt(later: float, grace: float) -> None:
    """Unstarted jobs, and with no grace those that are cancelled, are available again with their attempts unchanged."""
    points = list(itertools.takewhile(lambda point: stopped_at(point, later, grace), itertools.count(1)))
    assert len(points) > 10
