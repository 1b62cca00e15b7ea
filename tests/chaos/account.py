"""The account of a chaos: what the books of all processes say, held against the faults there were and the database at the end.

Jobs are counted from the handlers' own books. A job that ran twice wants a cause, and only a few are accepted:

cause    | its earlier run
---------|----------------------------------------------------------------------------------------------------------
retry    | ended so, as was planned: not counted as twice
killed   | was in a process that was killed before the later run began
crash    | was claimed before a crash of the server, which may forget a claim, and which takes a worker's answer with it

Ended connections and a server that is restarted in good order are no cause, and nothing is one once the completion of the
earlier run was acknowledged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

POISON = 1_000_000_000
"""From this number on jobs kill the worker that runs them."""
POISON_ATTEMPTS = 2


class Row(NamedTuple):
    """A job as the database has it."""

    n: int
    state: str
    attempt: int
    lease: int


@dataclass
class Run:
    """A handler's run, as its book has it. ended: None when it never did. how: done or retry. told: completion acknowledged."""

    n: int
    attempt: int
    lease: int
    began: float
    process: str
    ended: float | None = None
    how: str | None = None
    told: bool = False

    @property
    def claimed(self) -> float:
        """When, in seconds since 1970: a lease is the clock of its claim."""
        return self.lease / 1e6


@dataclass
class Account:
    """up: the processes that have begun. wanted: jobs somebody tried to enqueue. sure: those of them that were acknowledged.

    deaths: when a process was killed, by its name. crashes: from when to when the server was down.
    """

    up: set[str] = field(default_factory=set[str])
    wanted: set[int] = field(default_factory=set[int])
    sure: set[int] = field(default_factory=set[int])
    runs: dict[tuple[int, int], Run] = field(default_factory=dict[tuple[int, int], Run])
    wrong: list[str] = field(default_factory=list[str])
    deaths: dict[str, float] = field(default_factory=dict[str, float])
    crashes: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    ended: int = 0

    def read(self, process: str, lines: Iterable[str]) -> None:
        """What a book says next."""
        for line in lines:
            match line.split():
                case ["u"]:
                    self.up.add(process)
                case ["w", n]:
                    self.wanted.add(int(n))
                case ["c", n]:
                    self.sure.add(int(n))
                case [what, n, *more]:
                    self._ran(what, int(n), process, more)
                case _:
                    self.wrong.append(f"{process} wrote {line!r}")

    def _ran(self, what: str, n: int, process: str, more: list[str]) -> None:
        attempt, lease, at, *how = more
        fence = n, int(lease)
        if what == "b":
            if fence in self.runs:
                self.wrong.append(f"{self.runs[fence]} began twice, now in {process}")
            self.runs[fence] = Run(n, int(attempt), int(lease), float(at), process)
            if n >= POISON:
                self.deaths.setdefault(process, float(at))
        elif what == "e":
            self.runs[fence].ended = float(at)
            self.runs[fence].how = how[0]
            self.ended += 1
        else:
            self.runs[fence].told = True

    def check(self, rows: Iterable[Row]) -> Counter[str]:
        """How many runs there were twice, by their cause. Raises AssertionError that lists all that is wrong."""
        by_job: dict[int, list[Run]] = {n: [] for n in self.sure}
        for run in sorted(self.runs.values(), key=lambda run: run.lease):
            by_job.setdefault(run.n, []).append(run)
            if run.ended is None and run.process not in self.deaths:
                self.wrong.append(f"{run} never ended, and nobody killed it")
        twice: Counter[str] = Counter()
        for n, runs in by_job.items():
            twice.update(self._looked_at(n, runs))
        self._compare(rows, by_job)
        assert not self.wrong, f"{len(self.wrong)} wrong:\n" + "\n".join(self.wrong[:20])
        return twice

    def _looked_at(self, n: int, runs: list[Run]) -> Iterable[str]:
        """The causes for which one job ran again."""
        if n not in self.wanted:
            self.wrong.append(f"job {n} ran, and nobody enqueued it")
        if n in self.sure and n < POISON and not any(run.how == "done" for run in runs):
            self.wrong.append(f"job {n} is lost: {runs}")
        if runs and runs[0].attempt - 1 > self._died(0, runs[0].began):
            self.wrong.append(f"attempts were burned before {runs[0]}")
        for earlier, later in pairwise(runs):
            cause = self._cause(earlier, later)
            if cause is None or earlier.told:
                self.wrong.append(f"ran again without a cause: {earlier}, then {later}")
            elif cause != "retry":
                yield cause
            if later.attempt <= earlier.attempt and not self._crashed(earlier, later):
                self.wrong.append(f"attempt not counted: {earlier}, then {later}")
            if later.attempt - earlier.attempt - 1 > self._died(earlier.claimed, later.began):
                self.wrong.append(f"attempts were burned between {earlier} and {later}")

    def _cause(self, earlier: Run, later: Run) -> str | None:
        if earlier.how == "retry" and earlier.ended is not None and earlier.ended <= later.began:
            return "retry"
        if self.deaths.get(earlier.process, later.began + 1) <= later.began:
            return "killed"
        return "crash" if self._crashed(earlier, later) else None

    def _crashed(self, earlier: Run, later: Run) -> bool:
        return any(earlier.claimed <= over and begun <= later.began for begun, over in self.crashes)

    def _died(self, since: float, until: float) -> int:
        return sum(since <= at <= until for at in self.deaths.values())

    def _compare(self, rows: Iterable[Row], by_job: Mapping[int, list[Run]]) -> None:
        """The database against the books."""
        found: set[int] = set()
        for row in rows:
            if row.n in found:
                self.wrong.append(f"there twice: {row}")
            if row.n not in self.wanted:
                self.wrong.append(f"nobody enqueued {row}")
            found.add(row.n)
            runs = by_job.get(row.n, [])
            if row.n >= POISON:
                if (row.state, row.attempt) != ("failed", POISON_ATTEMPTS):
                    self.wrong.append(f"not ended by its max_attempts: {row}, {runs}")
                continue
            kept = self.runs.get((row.n, row.lease))
            if row.state != "completed" or kept is None or kept.how != "done" or kept.attempt != row.attempt:
                self.wrong.append(f"{row} is not what its handler did: {runs}")
            if any(run.told and run.lease != row.lease for run in runs):
                self.wrong.append(f"{row} contradicts a completion that was acknowledged: {runs}")
        if missing := self.sure - found:
            self.wrong.append(f"{len(missing)} acknowledged jobs are not in the database: {sorted(missing)[:10]}")
