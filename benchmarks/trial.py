"""One measurement of one system: a new database with the system installed, a score board, and the agents at work."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.arena import Arena, Database
from benchmarks.board import Board
from benchmarks.crew import Agent, AgentFailed
from benchmarks.systems import System
from benchmarks.systems.adapter import Feature, Load, Produce, Way, Work

_LOOK = 0.005  # seconds between two looks at the board


class WrongResult(AssertionError):
    """Jobs were lost, run twice, or not finished in the database."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A number a scenario has measured, once."""

    metric: str
    unit: str
    value: float


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for; `jobs` None leaves it to the scenario."""

    jobs: int | None = None
    concurrency: int = 50
    quick: bool = False
    show_statements: bool = False

    def amount(self, usual: int) -> int:
        """How many jobs."""
        return self.jobs or (min(usual, 500) if self.quick else usual)

    def seconds(self, usual: float) -> float:
        """How long to wait or to look."""
        return min(usual, 1.0) if self.quick else usual


class Site:
    """Where a measurement takes place."""

    def __init__(self, system: System, database: Database, board: Board, agents: ExitStack) -> None:
        self.system = system
        self.database = database
        self.board = board
        self._agents = agents

    def produce(
        self,
        jobs: int,
        *,
        way: Way = "many",
        first: int = 0,
        producers: int = 1,
        mean_gap: float = 0,
        backlog: int | None = None,
        wake: bool = True,
        batch: int = 1000,
    ) -> Agent:
        """Start a process that will enqueue."""
        order = Produce(
            dsn=self.database.dsn,
            jobs=jobs,
            first=first,
            way=way,
            batch=batch,
            producers=producers,
            mean_gap=mean_gap,
            backlog=backlog,
            wake=wake,
        )
        return self._agents.enter_context(Agent(self.system, "produce", order, self.board))

    def work(
        self,
        concurrency: int,
        *,
        worker: int = 0,
        expect: int | None = None,
        load: Load = "count",
        seconds: float = 0,
        feature: Feature | None = None,
    ) -> Agent:
        """Start a process that will be a worker."""
        order = Work(
            dsn=self.database.dsn,
            concurrency=concurrency,
            worker=worker,
            expect=expect,
            load=load,
            seconds=seconds,
            feature=feature,
        )
        return self._agents.enter_context(Agent(self.system, "work", order, self.board))

    def fill(self, jobs: int, first: int = 0) -> None:
        """Enqueue before the clock starts, the fastest way the system has."""
        agent = self.produce(jobs, first=first, way="copy" if self.system.copies else "many")
        agent.ready().go().finished(within=60 + jobs / 200)

    def until_handled(self, jobs: int, within: float, watch: Agent | None = None) -> None:
        """Wait until handlers have run so often."""
        self.until(lambda: self.board.handled() >= jobs, within, watch)

    def until(self, reached: Callable[[], bool], within: float, watch: Agent | None = None) -> None:
        """Wait, and raise if it takes longer than so many seconds or the watched agent dies."""
        end = time.monotonic() + within
        looks = 0
        while not reached():
            time.sleep(_LOOK)
            looks += 1
            if watch is not None and looks % 100 == 0:
                watch.check()
            if time.monotonic() > end:
                raise AgentFailed(f"{self.board.handled()} jobs were handled in {within:.0f} s, then we gave up")

    def check(self, jobs: int, follow_ups: int = 0) -> None:
        """Raise unless each of the jobs ran exactly once, and the database calls each completed; and those it has beside."""
        faults = self.board.faults(jobs)
        if (left := self.database.value(self.system.unfinished)) != follow_ups:
            faults.append(f"{left} jobs are not completed in the database, of which {follow_ups} should be there")
        if faults:
            raise WrongResult("; ".join(faults))


@contextmanager
def site(arena: Arena, system: System, *, jobs: int, workers: int = 1) -> Iterator[Site]:
    """Prepare a measurement, and clean up after it."""
    with arena.database() as database, tempfile.TemporaryDirectory(prefix="bench-") as directory, ExitStack() as agents:
        board = Board.create(Path(directory, "board"), jobs=max(jobs, 1), workers=workers)
        with Agent(system, "install", {"dsn": database.dsn}, board) as installer:
            installer.finished(within=120)
        database.checkpoint()
        yield Site(system, database, board, agents)
