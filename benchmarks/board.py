"""The score board: a small file that all processes of one measurement map into memory.

Handlers of a worker mark here which job they ran; the harness reads how far they are without asking anybody. So
counting costs a handler well under a microsecond, is the same for every system, and works across processes. It also
shows a job that was run twice or never.

Standard library only: it is imported in the environments of the peers.
"""

import mmap
import threading
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Self

_HEAD = 2  # number of jobs, number of workers; all words are 64 bit


class Board:
    """Counters of each worker, and for each job the times (ns, monotonic) and how often it ran.

    CLOCK_MONOTONIC is one clock for all processes of a machine, so times of different processes may be compared.
    """

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        whole = memoryview(self._map)
        self.jobs, self.workers = (int(each) for each in whole[: 8 * _HEAD].cast("Q"))
        words = iter((self.workers, self.jobs, self.jobs, self.jobs))
        at = 8 * _HEAD
        views: list[memoryview[int]] = []
        for length in words:
            views.append(whole[at : at + 8 * length].cast("q"))
            at += 8 * length
        self.counters, self.called, self.committed, self.started = views
        self.seen = whole[at : at + self.jobs]
        self.path = path

    @classmethod
    def create(cls, path: Path, *, jobs: int, workers: int) -> Self:
        """Make an empty board in a new file."""
        words = _HEAD + workers + 3 * jobs
        path.write_bytes(array("Q", [jobs, workers]).tobytes() + bytes(8 * (words - _HEAD) + jobs))
        return cls(path)

    def handled(self) -> int:
        """How many times a handler has run."""
        return sum(self.counters)

    def faults(self, jobs: int) -> list[str]:
        """What is wrong with the first so many jobs: a sentence for each kind of fault, none if each ran exactly once."""
        seen = self.seen[:jobs].tobytes()
        faults = []
        if never := seen.count(0):
            faults.append(f"{never} of {jobs} jobs never ran")
        if often := len(seen) - never - seen.count(1):
            faults.append(f"{often} of {jobs} jobs ran more than once")
        if not faults and self.handled() != jobs:
            faults.append(f"handlers ran {self.handled()} times for {jobs} jobs")
        return faults


class Tally:
    """What the handlers of one worker call; after `expect` jobs it says so by `full`, once."""

    def __init__(self, board: Board, worker: int, expect: int | None) -> None:
        self._board = board
        self._worker = worker
        self._expect = expect
        self._lock = threading.Lock()  # handlers of blocking workers are threads
        self._times = board.started
        self.full: Callable[[], None] = lambda: None
        self.first = self.last = 0

    def __call__(self, job: int) -> None:
        """Note that this job's handler has started."""
        now = time.monotonic_ns()
        board = self._board
        with self._lock:
            board.seen[job] += 1
            self._times[job] = now
            count = board.counters[self._worker] + 1
            board.counters[self._worker] = count
        if count == 1:
            self.first = now
        if count == self._expect:
            self.last = now
            self.full()
