"""The leader of a calm world goes, and what it did for all goes on."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from awa_proto.job import JobState
from awa_proto.testing.claims import check
from awa_proto.testing.process import Process
from awa_proto.testing.simulator import Job, Simulation, play
from awa_proto.testing.ticks import Ticks
from awa_proto.worker.rescue import LATE

WITHIN: Final = 20.0
"""Seconds by which the death of a leader delays its duties at most."""
_STILL: Final = 60.0
"""Seconds for which one that does not die stands still."""


def succeed(world: Simulation, workers: Sequence[Process], queues: Sequence[str], ticks: Ticks) -> None:
    """One of several workers leads; it dies, stops, or stands still, with jobs in its hands. Raises Broken."""
    random = world.random
    world.run_until(lambda: any(worker.machine.leads for worker in workers), at_most=80.0)
    world.run(world.now + 5.0 * random.random())
    world.skew += random.choice((0.0, 0.0, 0.0, -40.0, -3600.0, 40.0))
    world.run(world.now + WITHIN / 2)
    ticks.check(late=0.5)
    ticks.nothing_is_in_the_way()
    world.run(world.now + WITHIN / 2)
    world.run(world.now + 10.0 * random.random())
    leaders = [worker for worker in workers if worker.machine.leads]
    check(len(leaders) == 1, f"of {len(workers)} workers {len(leaders)} lead")
    (leader,) = leaders
    ticks.check(late=0.5)
    overdue = world.insert(*[Job(takes=3.0, deadline=1.0, max_attempts=1, queue=q, expect="failed") for q in queues])
    deferred = world.insert(
        *[Job(delay=6.0 * random.random() + 0.01, queue=q, expect=None) for q in queues], notify=False
    )
    world.run(world.now + random.random() * 0.4)
    steady = world.insert(*[Job(takes=25.0, queue=q, expect=None) for q in queues for _ in range(3)])
    world.run(world.now + random.random() * 0.4)
    went, before = world.now, len(world.trace)
    match random.choice(("die", "die", "stop", "freeze", "sleep")):
        case "die":
            leader.die()
        case "stop":
            leader.stop(random.choice((0.0, 5.0)))
        case how:
            leader.freeze(_STILL, sleeps=how == "sleep")
    world.run(went + WITHIN)
    done = [
        line for line in world.trace[before:] if line[2] == "run" and line[5] == "upkeep" and line[1] != leader.number
    ]
    check(bool(done), f"nobody did the upkeep for {WITHIN} s after the leader went")
    world.run(went + WITHIN + 1.0 + LATE + leader.config.liveness.deadline_interval)
    before_it_went = world.time() - timedelta(seconds=world.now - went)
    found = [play(world.store.get_job(row.id)) for row in overdue]
    late = [
        job for job in found
        if job is not None and job.state is JobState.RUNNING and job.attempted_at and job.attempted_at < before_it_went
    ]  # fmt: skip
    check(not late, f"{late} still run {world.now - went} s after their worker went, with deadlines of 1 s")
    ticks.check(late=0.5)
    world.run(went + 6.0 + WITHIN)
    states = world.states
    waiting = [row.id for row in deferred if states[row.id] is JobState.SCHEDULED]
    check(not waiting, f"jobs {waiting} are still deferred though they were due {WITHIN} s ago")
    long = {row.id for row in steady}
    for claim in world.accounts.claims.values():
        if claim.attempt.id in long and claim.worker != leader.number:
            check(claim.rescue is None, f"worker {claim.worker} was there all the time, and of it was rescued {claim}")
    if leader.is_alive and leader.is_stuck:  # when it goes on, two may believe that they lead
        world.run(went + _STILL + 6.0)
        ticks.check(late=0.5)
