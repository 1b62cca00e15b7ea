"""What can be measured. A scenario is a function from a system to figures; the harness repeats it and takes medians."""

from collections.abc import Callable, Mapping

from benchmarks.arena import Arena
from benchmarks.scenarios.callbacks import callbacks
from benchmarks.scenarios.cost import cost
from benchmarks.scenarios.drain import drain
from benchmarks.scenarios.enqueue import enqueue
from benchmarks.scenarios.fleet import fleet
from benchmarks.scenarios.idle import idle
from benchmarks.scenarios.latency import latency
from benchmarks.scenarios.memory import memory
from benchmarks.scenarios.pinned import pinned
from benchmarks.scenarios.producers import producers
from benchmarks.scenarios.reads import reads
from benchmarks.scenarios.rescue import rescue
from benchmarks.systems import System
from benchmarks.trial import Figure, Options

Scenario = Callable[[Arena, System, Options], list[Figure]]

SCENARIOS: Mapping[str, Scenario] = {
    each.__name__: each
    for each in (drain, cost, latency, enqueue, producers, fleet, idle, pinned, memory, reads, rescue, callbacks)
}
ONLY_OF: Mapping[str, str] = {"reads": "awa-sync", "rescue": "awa-sync", "callbacks": "awa-sync"}
"""Scenarios that compare nothing, and the system they are measured on."""
