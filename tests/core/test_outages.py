"""A database that is away for long, in virtual time: how often a worker asks it, what it logs, and what it counts."""

from __future__ import annotations

from collections import Counter

import pytest

from awa_proto.testing.faults import Faults
from awa_proto.testing.process import Process
from awa_proto.testing.simulator import Job, Simulation
from awa_proto.worker.config import QueueConfig, WorkerConfig
from awa_proto.worker.report import QUIET
from awa_proto.worker.tally import FAILED_OPS, RETRIED_OPS

LONG = 900.0
SETTLED = 120.0
"""Seconds after which each kind of Op waits as long as it ever does."""
SELDOM = 1.0
"""Seconds from one try of an Op to the next then, on average, at least."""


@pytest.mark.parametrize("seed", range(2))
def test_an_outage_is_asked_about_ever_more_seldom_and_logged_once_in_ten_seconds_for_each_thing(seed: int) -> None:
    """What runs and what waits to be written meanwhile makes no difference; every failure and every retry is counted."""
    world = Simulation(seed, faults=Faults(latency=0.01))
    process = Process(world, WorkerConfig({"q": QueueConfig(4), "r": QueueConfig(4)})).start()
    world.insert(*[Job(takes=0.3 * (n % 4)) for n in range(40)])
    world.run_until(lambda: len(world.seen("start")) > 10, at_most=60)
    tally, begun, said = process.machine.tally, world.now, len(world.trace)
    before = tally.total(FAILED_OPS), tally.total(RETRIED_OPS)
    world.faults = Faults(entry=1.0, latency=0.01)
    world.run(begun + LONG)
    part = world.trace[said:]

    lines = Counter(line[3] for line in part if line[2] == "emit")
    assert lines["flush failed"] > 1
    assert {key: count for key, count in lines.items() if count > 1 + LONG / QUIET} == {}
    tries: dict[str, list[float]] = {}
    for line in part:
        if line[2] == "run":
            tries.setdefault(line[4], []).append(line[0])
    asked = sum(map(len, tries.values()))
    assert sum(lines.values()) < asked / 2
    for op, times in tries.items():
        assert sum(at > begun + SETTLED for at in times) <= (LONG - SETTLED) / SELDOM, op
    failed, retried = tally.total(FAILED_OPS) - before[0], tally.total(RETRIED_OPS) - before[1]
    assert asked - len(tries) <= failed <= asked + 5  # those under way at both ends
    assert failed - 2 * len(tries) <= retried <= failed

    world.faults = Faults(latency=0.01)
    world.run_until(lambda: len([row for row in world.rows if row.state == "completed"]) == 40, at_most=60)
    over = Counter(line[3] for line in world.trace[said + len(part) :] if line[2] == "emit")
    assert over["flush failed: over"] == 1
    assert max(over.values()) == 1
