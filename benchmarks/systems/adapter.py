"""What the harness asks of a system: the two things to do, and the module that can do them.

An adapter is a module of this package. It runs in its own process, in the environment where the system is installed
(`agent.py`), so only adapters import systems. Standard library only.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Literal, Protocol

from benchmarks.board import Board
from benchmarks.stage import Stage

Way = Literal["single", "many", "copy"]
Load = Literal["count", "sleep"]
Feature = Literal["hooks", "registered", "staged", "inserted", "output", "large_output"]

QUEUE = "bench"
AFTER = "after"
"""Where follow-ups go: nobody works there."""
_PAUSE = 0.002  # seconds between two looks at the board while there is enough work


@dataclass(frozen=True, slots=True, kw_only=True)
class Produce:
    """Enqueue `jobs` jobs, numbered from `first`.

    Attributes:
        way: One at a time, by the system's batch call, or by its COPY.
        batch: Jobs a call of the last two ways.
        producers: How many do this at once, each with a connection of its own.
        mean_gap: Seconds between two jobs of a producer, exponentially distributed (a Poisson process); 0 is none.
        backlog: Wait while more jobs than this are enqueued and not yet handled; None never waits.
        wake: Whether sleeping workers are told.
        seed: Of the gaps.
    """

    dsn: str
    jobs: int
    first: int = 0
    way: Way = "many"
    batch: int = 1000
    producers: int = 1
    mean_gap: float = 0.0
    backlog: int | None = None
    wake: bool = True
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Be a worker until told to stop, or until `expect` jobs are handled.

    Attributes:
        concurrency: Jobs at the same time.
        worker: The number of this worker, its place on the board.
        load: What a handler does: only count, or sleep `seconds` and count.
        feature: What it does besides, where the system has it; see `benchmarks.scenarios.cost`.
    """

    dsn: str
    concurrency: int
    worker: int = 0
    expect: int | None = None
    load: Load = "count"
    seconds: float = 0.0
    feature: Feature | None = None


class Adapter(Protocol):
    """The functions of an adapter module. Each blocks until it is done, and starts whatever event loop it needs."""

    def install(self, dsn: str) -> None:
        """Create what the system needs in an empty database."""

    def produce(self, order: Produce, stage: Stage) -> None:
        """Connect, `stage.ready()`, carry out `orders(...)`, `stage.finish(...)`."""

    def work(self, order: Work, stage: Stage) -> None:
        """Connect, `stage.ready()`, work until `stage.on_stop` calls, stop gracefully, `stage.finish(...)`."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """Do nothing for so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Insert:
    """Enqueue these jobs in one call; note on the board when it was made and when it returned."""

    jobs: range


def orders(order: Produce, producer: int, board: Board) -> Iterator[Sleep | Insert]:
    """What one of the producers does, step by step; a driver of any kind carries it out."""
    chance = Random(order.seed * 1000 + producer)
    size = 1 if order.way == "single" else order.batch
    share = range(order.first + producer, order.first + order.jobs, order.producers)
    for at in range(0, len(share), size):
        if order.mean_gap:
            yield Sleep(chance.expovariate(1 / order.mean_gap))
        chunk = share[at : at + size]
        while order.backlog is not None and chunk[-1] - order.first - board.handled() > order.backlog:
            yield Sleep(_PAUSE)
        yield Insert(chunk)
