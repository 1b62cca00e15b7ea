"""A world in virtual time: a MemoryStore, worker machines, handlers, producers, and everything that goes wrong.

One heap of things to come, one seed, no clock: the same seed gives the same trace, and a day passes as fast as it is
computed. What a driver does is done here as a driver does it (inbox, lanes, one timer), so the machines that run are the
ones that ship. `accounts` and `tokens` keep the books, `handlers` and `outside` are those who register callbacks and those who
use them, `faults` says what goes wrong, `scenarios` draws whole lives from a seed.
"""

from __future__ import annotations

import heapq
import itertools
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, TypeVar, assert_never

from awa_proto.errors import DatabaseError, SerializationError, TerminalError
from awa_proto.extra import encode
from awa_proto.followup import FollowUp, Registered
from awa_proto.job import JobRow, JobState
from awa_proto.options import EnqueueRequest
from awa_proto.outcome import Cancel, Completed, Outcome, Raised, RetryAfter, Returned, Snooze
from awa_proto.plan import Op
from awa_proto.store import Cancelled, NewJob
from awa_proto.task import Task
from awa_proto.testing.accounts import Accounts
from awa_proto.testing.booked import BookedStore
from awa_proto.testing.claims import Broken
from awa_proto.testing.faults import Fault, Faults
from awa_proto.worker.events import (
    Beat,
    CancelJob,
    Drained,
    Emit,
    Happened,
    Lane,
    Output,
    Ping,
    RunOp,
    StartJob,
    Stopped,
    WaitOver,
)

T = TypeVar("T")

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
KIND = "simulated"
FOLLOW = "follow"
"""The kind of follow-ups, which lie in a queue that nobody serves."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job of the simulation, and how its runs go: the last of `ends` stands for all runs after it.

    ends: ok, completed, error, terminal, retry, snooze, cancel, wrong, or what `handlers.SCRIPTS` names. timeout: seconds that
    its callbacks are waited for. patience: seconds after which a handler leaves that does not wait for long. expect: the state
    it must reach; None for any.
    is_poison: the database refuses its results. is_unreadable: its args do not decode. is_stubborn: its handler ignores
    a cancellation.
    """

    takes: float = 0.0
    ends: tuple[str, ...] = ("ok",)
    queue: str = "q"
    priority: int = 2
    max_attempts: int = 25
    delay: float = 0.0
    timeout: float = 5.0
    patience: float = 0.05
    deadline: float | None = None
    ordering: int | None = None
    kind: str = KIND
    expect: str | None = "completed"
    is_poison: bool = False
    is_unreadable: bool = False
    is_stubborn: bool = False


class Simulation:
    """The world: virtual time, the database, the processes, and people.

    seed: of all chance. faults: what goes wrong. interfere: decides over single Ops of a scenario (None: leave it to the
    faults). loop: the longest a driver takes to look into its inbox. skew: seconds by which the clock of the database was set,
    forward or back. crawling: seconds that every Op takes longer on a lane. ids: of callbacks that handlers have given to the
    outside world, in their order; given: called with each.
    """

    def __init__(self, seed: int, *, faults: Faults | None = None, loop: float = 0.0005) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.now = 0.0
        self.faults = Faults(latency=0.0) if faults is None else faults
        self.interfere: Callable[[int, RunOp], Fault | DatabaseError | None] = lambda _number, _run: None
        self.store = BookedStore(self.time, self.random.random)
        self.skew = 0.0
        self.crawling: dict[Lane, float] = {}
        self.accounts = Accounts(self.time, self.store.state_of)
        self.store.registered = self.accounts.tokens.registered
        self.ids: list[str] = []
        self.given: Callable[[str], object] = _unheard
        self.jobs: dict[int, Job] = {}
        self.trace: list[tuple[Any, ...]] = []
        self.beats: list[tuple[float, int, RunOp | Ping | Emit]] = []
        self.told: Counter[str] = Counter()
        self._loop = loop
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count(1)

    # time

    def time(self) -> datetime:
        """Database time."""
        return EPOCH + timedelta(seconds=self.now + self.skew)

    def at(self, at: float, act: Callable[[], object]) -> None:
        """Something to come."""
        heapq.heappush(self._heap, (at, next(self._numbers), act))

    def takes(self, lane: Lane) -> float:
        """Seconds until the answer of an Op."""
        takes = self.faults.takes(self.random)
        return takes + self.crawling.get(lane, 0.0) if self.crawling else takes

    def loop_delay(self) -> float:
        """How long a driver's loop takes to look into its inbox."""
        return self._loop * self.random.random()

    def run(self, until: float) -> None:
        """Let time pass."""
        heap = self._heap
        try:
            while heap and heap[0][0] <= until:
                at, _, act = heapq.heappop(heap)
                self.now = max(self.now, at)
                act()
        except Broken as broken:
            broken.add_note(f"seed {self.seed}, at {self.now:.6f} s")
            raise
        self.now = max(self.now, until)

    def run_until(self, holds: Callable[[], bool], at_most: float, step: float = 0.25) -> None:
        """Let time pass until something holds. Raises Broken when it does not come to pass."""
        end = self.now + at_most
        while not holds():
            if self.now >= end:
                raise Broken(f"seed {self.seed}: it did not come to pass within {at_most} s")
            self.run(self.now + step)

    def give(self, id: str) -> None:
        """A handler gives the id of a callback to the outside world."""
        self.ids.append(id)
        self.given(id)

    # people

    def insert(self, *jobs: Job, notify: bool = True) -> list[JobRow]:
        """A producer commits jobs now."""
        rows = play(self.store.insert([self._encode(job) for job in jobs], notify=notify))
        self.jobs.update((row.id, job) for row, job in zip(rows, jobs, strict=True))
        return rows

    def _encode(self, job: Job) -> NewJob:
        return NewJob(
            kind=job.kind,
            queue=job.queue,
            args="[]"
            if job.is_unreadable
            else json.dumps(
                {
                    "takes": job.takes,
                    "ends": job.ends,
                    "timeout": job.timeout,
                    "patience": job.patience,
                    "stubborn": job.is_stubborn,
                }
            ),
            priority=job.priority,
            max_attempts=job.max_attempts,
            run_at=self.time() + timedelta(seconds=job.delay) if job.delay else None,
            extra=encode(deadline=job.deadline, tags=["poison"] if job.is_poison else ()),
            ordering=job.ordering,
        )

    def cancel(self, id: int) -> Cancelled:
        """A person cancels a job now."""
        before = play(self.store.get_job(id))
        answer = play(self.store.cancel(id))
        if answer in {Cancelled.RUNNING, Cancelled.CANCELLED} and before is not None:
            self.accounts.cancelled(before)
        return answer

    @property
    def rows(self) -> list[JobRow]:
        """Every job that a producer committed; of one that retention has deleted, as it was then."""
        return [row for row in (*self.store.rows, *self.store.gone.values()) if row.id in self.jobs]

    @property
    def states(self) -> dict[int, JobState]:
        """Where each of them is."""
        found, gone = self.store.states, self.store.gone
        return {number: found[number] if number in found else gone[number].state for number in self.jobs}

    @property
    def followed(self) -> Counter[tuple[int, str]]:
        """How many follow-ups there are, by the job they follow and the way they were asked for."""
        return Counter((row.args["of"], row.args["how"]) for row in self.store.rows if row.kind == FOLLOW)

    # what is observed

    def record(self, number: int, output: Output) -> None:
        """A line of the trace; of what happened, one for each event."""
        match output:
            case RunOp(id=id, op=op, lane=lane):
                line: tuple[Any, ...] = ("run", id, op.name, lane)
            case StartJob(attempt=attempt):
                line = ("start", attempt.id, attempt.run_lease)
            case CancelJob(attempt=attempt, reason=reason):
                line = ("cancel", attempt.id, reason)
            case WaitOver(attempt=attempt, result=result):
                line = ("wait over", attempt.id, result)
            case Emit(key=key, fields=fields):
                self.told[key] += 1
                line = ("emit", key, fields)
            case Happened(events=told):
                for event in told:
                    self.trace.append((self.now, number, "happened", event.job.id, type(event).__name__))
                return
            case Beat():
                line = ("beat",)
            case Drained():
                line = ("drained",)
            case Stopped():
                line = ("stopped", output)
            case _:
                assert_never(output)
        self.trace.append((self.now, number, *line))

    def seen(self, kind: str, *facts: object) -> list[float]:
        """When an output of this kind, beginning with these facts, was seen."""
        return [line[0] for line in self.trace if line[2] == kind and line[3 : 3 + len(facts)] == facts]

    def statements(self, name: str) -> list[float]:
        """When Ops of this name were sent."""
        return [line[0] for line in self.trace if line[2] == "run" and line[4] == name]

    def upkeep(self, trace: Sequence[tuple[Any, ...]]) -> int:
        """How many Ops of a part of the trace some worker ran because it led, or asked whether it does."""
        return sum(line[2] == "run" and (line[4] == "lead" or line[5] == "upkeep") for line in trace)


def play(op: Op[T]) -> T:
    """Run an Op that has no statements."""
    plan = op.start()
    try:
        next(plan)
    except StopIteration as done:
        result: T = done.value
        return result
    raise Broken(f"{op.name} of a MemoryStore has a statement")


def end_of(plan: Mapping[str, Any], run: int) -> str:
    """How run number `run` of a job ends, from 1, by its name."""
    ends = plan["ends"]
    name: str = ends[min(run, len(ends)) - 1]
    return name


def ending(name: str) -> Returned | Raised:
    """How a handler ends that does nothing but work."""
    match name:
        case "ok":
            return Returned(None)
        case "completed":
            return Returned(Completed())
        case "error":
            return Raised(RuntimeError("simulated \0 failure"))
        case "terminal":
            return Raised(TerminalError("simulated"))
        case "retry":
            return Returned(RetryAfter(0.3))
        case "snooze":
            return Returned(Snooze(0.2))
        case "cancel":
            return Returned(Cancel("simulated"))
        case _:
            return Returned(object())


def _unheard(_: str) -> None:
    """Nobody outside."""


def _decode(args: str) -> dict[str, Any]:
    plan = json.loads(args)
    if not isinstance(plan, dict):
        raise SerializationError("args", "simulated: they do not fit")
    return plan


def _never_called(_: object) -> None:
    raise AssertionError("a simulated process plays its handlers itself")


TASKS: Mapping[str, Task] = {KIND: Task(KIND, _never_called, _decode, is_async=True)}


def follows(of: int) -> NewJob:
    """The follow-up that the handler of every fifth job stages."""
    return NewJob(FOLLOW, FOLLOW, json.dumps({"of": of, "how": "staged"}))


def _registered(_: Mapping[str, Any], job: JobRow) -> EnqueueRequest | None:
    """The follow-up of every third job that completes."""
    return EnqueueRequest({"of": job.id, "how": "registered"}).kind(FOLLOW).queue(FOLLOW) if job.id % 3 == 0 else None


FOLLOW_UPS: Registered = {
    KIND: {Outcome.COMPLETED: (FollowUp(Outcome.COMPLETED, KIND, None, _registered, lambda _: {}),)}
}
HOOKED = (KIND, "nobody knows")
"""Kinds that have hooks."""
