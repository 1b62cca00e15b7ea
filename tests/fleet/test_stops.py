"""Processes that are stopped by signals: when they exit, with which code, and what becomes of their jobs.

The signals come at seeded points of start and of work. AWA_STOP_SEEDS says how many for each flavour.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

from tests.fleet.members import FLAVOURS, PATIENCE, Member
from tests.fleet.server import ask, until
from tests.fleet.test_liveness import QUICK, leader
from tests.test_cli import ROOT

SEEDS = int(os.environ.get("AWA_STOP_SEEDS", "7"))
JOBS = 40
AT_A_TIME = 4
TERM, INT = int(signal.SIGTERM), int(signal.SIGINT)
COMMANDS = ("run", "awa worker")
"""Both ways to have a worker as a process."""


@dataclass
class Stopping:
    """A worker process, and what it has said so far."""

    queue: str
    process: subprocess.Popen[str]
    said: list[str] = field(default_factory=list[str])

    def read(self) -> None:
        """In a thread of its own: take in what it says."""
        assert self.process.stdout is not None
        self.said.extend(line.strip() for line in self.process.stdout)

    def numbers(self, what: str) -> list[int]:
        """Of the jobs whose handlers began (`b`) or ended (`e`)."""
        return [int(number) for letter, _, number in (line.partition(" ") for line in self.said) if letter == what]

    def is_told_to_stop(self) -> bool:
        """Whether it has obeyed the first signal."""
        return any(line.startswith("l the worker stops") for line in self.said)

    def code(self) -> int | None:
        """Its exit code, waited for; None when it does not exit."""
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            return None


def start(
    stack: ExitStack,
    flavour: str,
    dsn: str,
    queue: str,
    *,
    command: str = "run",
    grace: float = 3600.0,
    bound: float | None = None,
) -> Stopping:
    """Start one; leaving the stack kills it."""
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "AWA_FLAVOUR": flavour, "AWA_DATABASE_URL": dsn, "AWA_QUEUE": queue,
        "AWA_GRACE": str(grace), **({} if bound is None else {"AWA_BOUND": str(bound)}),
    }  # fmt: skip
    program = ["-m", "tests.fleet.stopping"]
    if command == "awa worker":
        program = ["-m", "awa_sync", "worker", "tests.fleet.stopping:client", "-q", f"{queue}=4", "--grace", str(grace)]
    process = subprocess.Popen(
        [sys.executable, *program],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    stack.enter_context(process)
    stack.callback(process.kill)
    found = Stopping(queue, process)
    threading.Thread(target=found.read, daemon=True).start()
    return found


class Stop(NamedTuple):
    """When a process is sent which signal."""

    seed: int
    stopping: Stopping
    is_time: Callable[[Stopping], bool]
    number: int


@pytest.fixture
def other(database: str) -> Iterator[Member]:
    """A client of another process, on the migrated database."""
    with Member("sync", database) as found:
        found.call("migrate")
        yield found


def rows(dsn: str, queue: str) -> dict[int, tuple[str, int]]:
    """State and attempt of each job of a queue, by its number."""
    found = ask(dsn, "SELECT (args->>'n')::int, state, attempt::int FROM awa.jobs WHERE queue = %s", queue)
    return {n: (state, attempt) for n, state, attempt in found}


def work_the_rest(other: Member, queues: list[str]) -> None:
    """What a stopped worker left is worked by another."""
    for kind in ("short", "short in a thread"):
        other.handle(kind, lambda job: None)
    with other.worker(dict.fromkeys(queues, 8), poll_interval=0.1) as crew:
        crew.drained()


@pytest.mark.slow
@pytest.mark.timeout(60 + 30 * SEEDS)
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_signal_at_any_point_loses_no_job_burns_no_attempt_and_leaves_nothing_running(
    other: Member, database: str, flavour: str
) -> None:
    """A third of the points are in the start, the others after so many handlers began or ended; with and without a grace."""
    with ExitStack() as stack:
        stops: list[Stop] = []
        for seed in range(SEEDS):
            chance = random.Random(f"{seed} {flavour}")
            queue = f"stop {seed}"
            for n in range(JOBS):
                kind = chance.choice(["short", "short in a thread"])
                other.call("insert", {"n": n, "takes": chance.random() * 0.03}, kind=kind, queue=queue)
            command, grace = chance.choice(COMMANDS), chance.choice([0.0, 3600.0])
            stopping = start(stack, flavour, database, queue, command=command, grace=grace)
            number = chance.choice([TERM, INT])
            early = _early(chance.random()) if number == TERM else _just_up(chance.random() / 2)
            is_time = early if seed % 3 == 0 else _after(chance.choice("be"), chance.randint(1, JOBS))
            stops.append(Stop(seed, stopping, is_time, number))
            if len(stops) == AT_A_TIME or seed == SEEDS - 1:
                _stop(stops, database)
                stops.clear()
        queues = [f"stop {seed}" for seed in range(SEEDS)]
        before = {queue: rows(database, queue) for queue in queues}
        work_the_rest(other, queues)
        for queue in queues:
            assert rows(database, queue) == dict.fromkeys(range(JOBS), ("completed", 1)), f"{queue}: {before[queue]}"


def _early(seconds: float) -> Callable[[Stopping], bool]:
    """Somewhere in the start: as an interpreter begins, while modules are imported, as a worker registers."""
    at = time.monotonic() + seconds
    return lambda _: time.monotonic() >= at


def _just_up(seconds: float) -> Callable[[Stopping], bool]:
    """Soon after its modules are there; before that, Python itself may lose a KeyboardInterrupt."""
    at: list[float] = []

    def is_time(stopping: Stopping) -> bool:
        if not at and "up" in stopping.said:
            at.append(time.monotonic() + seconds)
        return bool(at) and time.monotonic() >= at[0]

    return is_time


def _after(what: str, count: int) -> Callable[[Stopping], bool]:
    return lambda stopping: len(stopping.numbers(what)) >= count


def _stop(stops: list[Stop], dsn: str) -> None:
    """Send each its signal when its moment has come, and look at what it leaves."""
    waiting = [*stops]

    def all_sent() -> bool:
        for each in [*waiting]:
            if each.is_time(each.stopping):
                each.stopping.process.send_signal(each.number)
                waiting.remove(each)
        return not waiting

    until(all_sent, "the moments of the signals")
    for seed, stopping, _, number in stops:
        code, found = stopping.code(), rows(dsn, stopping.queue)
        told = f"seed {seed}, signal {number}, exit code {code}: {stopping.said}, {found}"
        if code != 0:  # the signal came before there was a worker, and is what it is for every process
            assert code in {-number, 128 + number}, told
            assert not stopping.numbers("b"), told
        assert set(found.values()) <= {("completed", 1), ("available", 0)}, told
        done = {n for n, (state, _) in found.items() if state == "completed"}
        assert done <= set(stopping.numbers("e")), told
    assert ask(dsn, "SELECT count(*) FROM awa.instances") == [(0,)], "all of them took their leave"


IGNORING = [
    ("asyncio-asyncpg", "stubborn", "run"),
    ("asyncio-psycopg", "stubborn in a thread", "awa worker"),
    ("trio", "stubborn", "run"),
    ("trio", "stubborn", "awa worker"),
    ("trio", "stubborn in a thread", "run"),
    ("sync", "stubborn", "awa worker"),
]


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("cases", [IGNORING], ids=["asyncio, trio, sync"])
def test_a_handler_that_ignores_its_cancellation_is_left_and_rescued_elsewhere(
    other: Member, database: str, cases: list[tuple[str, str, str]]
) -> None:
    """The grace passes, and the process exits with 1, although asyncio.run and trio.run wait for such coroutines."""
    rescued: list[str] = []
    with ExitStack() as stack:
        left: list[Stopping] = []
        for flavour, kind, command in cases:
            queue = f"{flavour}, {kind}, {command}"
            other.call("insert", {"n": 1}, kind=kind, queue=queue)
            left.append(start(stack, flavour, database, queue, command=command, grace=0.0))
        for stopping in left:
            begun(stopping).process.send_signal(TERM)
        for stopping in left:
            assert stopping.code() == 1, stopping.queue
            assert rows(database, stopping.queue) == {1: ("running", 1)}, stopping.queue
        queues = [stopping.queue for stopping in left]
        for kind in ("stubborn", "stubborn in a thread"):
            other.handle(kind, lambda job: rescued.append(job.queue))
        with leader(database), other.worker(dict.fromkeys(queues, 1), poll_interval=0.1, liveness=QUICK) as crew:
            until(lambda: sorted(rescued) == sorted(queues), "all of them to be run again")
            crew.drained()
        assert [each for queue in queues for each in rows(database, queue).values()] == [("completed", 2)] * len(left)


HURRIED = [
    ("asyncio-asyncpg", "short", "run", TERM),
    ("asyncio-psycopg", "stubborn", "awa worker", INT),
    ("trio", "short", "awa worker", INT),
    ("trio", "stubborn", "run", TERM),
    ("sync", "stubborn", "run", TERM),
    ("sync", "stubborn", "awa worker", INT),
]


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("cases", [HURRIED], ids=["asyncio, trio, sync"])
def test_a_second_signal_ends_it_at_once_with_an_exit_code_of_its_own(
    other: Member, database: str, cases: list[tuple[str, str, str, int]]
) -> None:
    """Not after the grace of an hour, also when handlers ignore their cancellation: 128 and the number of that signal."""
    with ExitStack() as stack:
        ended: list[tuple[Stopping, int]] = []
        for flavour, kind, command, second in cases:
            queue = f"{flavour}, {kind}, {command}"
            other.call("insert", {"n": 1, "takes": 3600.0}, kind=kind, queue=queue)
            ended.append((start(stack, flavour, database, queue, command=command), second))
        for stopping, second in ended:
            begun(stopping).process.send_signal(TERM)
            until(stopping.is_told_to_stop, "the first signal to be obeyed")
            stopping.process.send_signal(second)
        for stopping, second in ended:
            assert stopping.code() == 128 + second, stopping.queue
            state = ("available", 0) if "short" in stopping.queue else ("running", 1)
            assert rows(database, stopping.queue) == {1: state}, stopping.queue


@pytest.mark.slow
@pytest.mark.parametrize("flavour", ["asyncio-asyncpg", "trio"])
def test_a_loop_that_a_handler_blocks_keeps_no_process_alive(other: Member, database: str, flavour: str) -> None:
    """After the grace and a bound, or after a second signal and a shorter one, it ends without cleaning up."""
    with ExitStack() as stack:
        once = start(stack, flavour, database, "once", grace=0.0, bound=0.5)
        twice = start(stack, flavour, database, "twice", bound=0.5)
        for queue in ("once", "twice"):
            other.call("insert", {"n": 1}, kind="stuck", queue=queue)
        for stopping in (once, twice):
            begun(stopping).process.send_signal(TERM)
        assert once.code() == 1
        twice.process.send_signal(INT)
        assert twice.code() == 128 + INT


def begun(stopping: Stopping) -> Stopping:
    """The same process, once its handler has begun."""
    until(lambda: stopping.numbers("b"), f"the handler of {stopping.queue}")
    return stopping
