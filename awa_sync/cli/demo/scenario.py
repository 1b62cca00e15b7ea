"""What the demo enqueues, what its handlers do, and what must become of each job."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from awa_proto.errors import TerminalError
from awa_proto.job import JobState
from awa_proto.options import EnqueueRequest
from awa_proto.outcome import Cancel, RetryAfter, Snooze

SOON: Final = 1.5
"""Seconds ahead that scheduled jobs are due."""
FAILS_ONCE, FAILS_LAST, FAILS_FOR_GOOD = (
    "the first attempt fails",
    "the only attempt fails",
    "it makes no sense to try again",
)
"""What handlers raise: it is meant, so nobody needs a traceback of it."""


class Fate(StrEnum):
    """What happens to a job of the demo."""

    COMPLETED = "completed"
    SCHEDULED = "scheduled"
    RETRIED = "retried"
    FAILED_ONCE = "failed once"
    SNOOZED = "snoozed"
    CANCELLED = "cancelled"
    TERMINAL = "terminal"
    EXHAUSTED = "exhausted"
    WITHDRAWN = "withdrawn"
    ROLLED_BACK = "rolled back"


BECOMES: Final[dict[Fate, tuple[int, JobState | None]]] = {
    Fate.COMPLETED: (1, JobState.COMPLETED),
    Fate.SCHEDULED: (1, JobState.COMPLETED),
    Fate.RETRIED: (2, JobState.COMPLETED),
    Fate.FAILED_ONCE: (2, JobState.COMPLETED),
    Fate.SNOOZED: (2, JobState.COMPLETED),
    Fate.CANCELLED: (1, JobState.CANCELLED),
    Fate.TERMINAL: (1, JobState.FAILED),
    Fate.EXHAUSTED: (1, JobState.FAILED),
    Fate.WITHDRAWN: (0, JobState.CANCELLED),
    Fate.ROLLED_BACK: (0, None),
}
"""How often the handler runs, and the state in the end; None: the job never existed."""

_PERCENT: Final = {
    Fate.SCHEDULED: 10,
    Fate.RETRIED: 5,
    Fate.SNOOZED: 5,
    Fate.CANCELLED: 3,
    Fate.TERMINAL: 2,
    Fate.EXHAUSTED: 2,
}


@dataclass(frozen=True, slots=True)
class Errand:
    """The args of the demo's jobs."""

    number: int
    fate: str


@dataclass(frozen=True, slots=True)
class Errands:
    """All jobs for one driver, by the way they are enqueued.

    immediate: due at once, in one statement. copied: due at once, by COPY. later: scheduled. withdrawn: cancelled by a
    person. rolled_back: enqueued in a transaction that fails.
    """

    queue: str
    immediate: Sequence[EnqueueRequest]
    copied: Sequence[EnqueueRequest]
    later: Sequence[EnqueueRequest]
    withdrawn: Sequence[EnqueueRequest]
    rolled_back: Sequence[EnqueueRequest]

    @property
    def every(self) -> list[Errand]:
        """The args of all of them."""
        lists = (self.immediate, self.copied, self.later, self.withdrawn, self.rolled_back)
        return [request.args for each in lists for request in each if isinstance(request.args, Errand)]


def mixed(queue: str, jobs: int) -> Errands:
    """A mix of about `jobs` jobs in all priorities."""
    counts = {fate: jobs * percent // 100 for fate, percent in _PERCENT.items()}
    counts |= {Fate.FAILED_ONCE: 5, Fate.WITHDRAWN: 5, Fate.ROLLED_BACK: 50}
    counts[Fate.COMPLETED] = jobs - sum(counts.values()) + counts[Fate.ROLLED_BACK]
    number = 0
    made: dict[Fate, list[EnqueueRequest]] = {}
    for fate, count in counts.items():
        made[fate] = [_request(Errand(number + i, fate), queue) for i in range(count)]
        number += count
    due = datetime.now(UTC) + timedelta(seconds=SOON)
    copied = made[Fate.COMPLETED][::2]
    return Errands(
        queue,
        immediate=[
            *made[Fate.COMPLETED][1::2],
            *made[Fate.RETRIED],
            *made[Fate.FAILED_ONCE],
            *made[Fate.SNOOZED],
            *made[Fate.CANCELLED],
            *made[Fate.TERMINAL],
            *(request.max_attempts(1) for request in made[Fate.EXHAUSTED]),
        ],
        copied=copied,
        later=[request.run_at(due) for request in made[Fate.SCHEDULED]],
        withdrawn=[request.run_at(due + timedelta(hours=1)) for request in made[Fate.WITHDRAWN]],
        rolled_back=made[Fate.ROLLED_BACK],
    )


def _request(errand: Errand, queue: str) -> EnqueueRequest:
    return EnqueueRequest(errand).queue(queue).priority(1 + errand.number % 4)


class Log:
    """What the handlers write down: which job ran when, in the order of the starts. Any thread may write."""

    def __init__(self, errands: Errands) -> None:
        self.expected = sum(BECOMES[Fate(errand.fate)][0] for errand in errands.every)
        self.runs: list[tuple[int, float]] = []
        self._times: Counter[int] = Counter()

    @property
    def is_complete(self) -> bool:
        """Whether as many runs were written down as there must be."""
        return len(self.runs) >= self.expected

    def handle(self, errand: Errand) -> RetryAfter | Snooze | Cancel | None:
        """What every handler does."""
        self.runs.append((errand.number, time.monotonic()))
        self._times[errand.number] += 1
        is_first = self._times[errand.number] == 1
        match Fate(errand.fate):
            case Fate.RETRIED if is_first:
                return RetryAfter(0.3)
            case Fate.SNOOZED if is_first:
                return Snooze(0.3)
            case Fate.CANCELLED:
                return Cancel("nobody wants it")
            case Fate.FAILED_ONCE if is_first:
                raise RuntimeError(FAILS_ONCE)
            case Fate.EXHAUSTED:
                raise RuntimeError(FAILS_LAST)
            case Fate.TERMINAL:
                raise TerminalError(FAILS_FOR_GOOD)
            case _:
                return None


class Undone(Exception):
    """Raised in a transaction so that it rolls back."""
