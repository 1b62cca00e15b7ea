"""How a worker is set up: its queues, and the few numbers that people may want to change. Checked when it is made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args

from awa_proto.dead_letters import DeadLetters, checked_dead_letters, said_of
from awa_proto.errors import ConfigurationError, ValidationError
from awa_proto.options import flag, name, positive_seconds, whole
from awa_proto.outcome import MAX_DELAY, Seconds, seconds
from awa_proto.retention import Retention
from awa_proto.store import WorkerInfo

MAX_WORKERS: Final = 100_000
"""Most handlers of one queue at the same time in one worker."""
MAX_RATE: Final = 1e9
MIN_RATE: Final = 1 / MAX_DELAY
"""Jobs a second: from one in a hundred years."""
MIN_INTERVAL, MAX_INTERVAL = 0.05, 3600.0
"""Seconds between two beats, or two looks."""
MIN_AGING: Final = 0.001
"""Least seconds for a priority, so that dividing the wait of years by them stays a number."""


@dataclass(frozen=True, slots=True, init=False)
class QueueConfig:
    """How a worker serves one queue. What is given as a timedelta is kept as seconds.

    max_workers: most handlers of this queue at the same time in this worker, 1 to 100,000.
    rate_limit: (jobs a second, burst) that this worker starts at most; a bare number has a burst of one second's worth.
    deadline: seconds (or a timedelta) an attempt may take unless the job says otherwise; None for no limit.
    aging: seconds (or a timedelta) of waiting that lift a job by one priority; 0 for never.
    dead_letters: whether a job that fails here goes to the dead letters; None for what the client says.

    Raises ValidationError naming the setting and its limit.
    """

    max_workers: int
    rate_limit: float | tuple[float, int] | None
    deadline: float | None
    aging: float
    dead_letters: bool | None

    def __init__(
        self,
        max_workers: int = 50,
        rate_limit: float | tuple[float, int] | None = None,
        deadline: Seconds | None = None,
        aging: Seconds = 60.0,
        dead_letters: bool | None = None,
    ) -> None:
        keep = object.__setattr__
        keep(self, "max_workers", whole("max_workers", max_workers, 1, MAX_WORKERS))
        keep(self, "rate_limit", _rate_limit(rate_limit))
        keep(self, "deadline", None if deadline is None else positive_seconds("deadline", deadline))
        keep(self, "aging", _aging(aging))
        keep(self, "dead_letters", None if dead_letters is None else flag("dead_letters", dead_letters))

    @property
    def rate(self) -> tuple[float, int]:
        """(jobs a second, burst); (inf, 1) when there is no limit."""
        match self.rate_limit:
            case None:
                return math.inf, 1
            case (rate, burst):
                return rate, burst
            case rate:
                return rate, max(1, math.ceil(rate))


@dataclass(frozen=True, slots=True, init=False)
class Liveness:
    """How a worker shows that it lives, and when it takes over what one that does not was running.

    Workers on one schema should agree on them. All in seconds, or timedeltas; kept as seconds.

    heartbeat_interval: between two signs of life, which come from a thread and a connection of their own; 0.05 to 3600.
    stale_after: silence after which the jobs of a worker are run by others; at least twice the interval.
    stall_limit: how long the worker's event loop may be blocked before the beats stop; at least the interval.
    rescue_interval: between two looks for jobs of workers that are silent; 0.05 to 3600.
    deadline_interval: between two looks for attempts beyond their deadline, which their own worker did not end.

    Raises ValidationError naming the setting and its limit.
    """

    heartbeat_interval: float
    stale_after: float
    stall_limit: float
    rescue_interval: float
    deadline_interval: float

    def __init__(
        self,
        heartbeat_interval: Seconds = 10.0,
        stale_after: Seconds = 30.0,
        stall_limit: Seconds = 300.0,
        rescue_interval: Seconds = 10.0,
        deadline_interval: Seconds = 3.0,
    ) -> None:
        keep = object.__setattr__
        keep(self, "heartbeat_interval", _interval("heartbeat_interval", heartbeat_interval))
        keep(self, "stale_after", _at_least("stale_after", stale_after, 2 * self.heartbeat_interval))
        keep(self, "stall_limit", _at_least("stall_limit", stall_limit, self.heartbeat_interval))
        keep(self, "rescue_interval", _interval("rescue_interval", rescue_interval))
        keep(self, "deadline_interval", _interval("deadline_interval", deadline_interval))


UnknownKinds: TypeAlias = Literal["fail", "put_back"]


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """The queues of a worker and its intervals, all in seconds.

    poll_interval: the longest an idle worker goes without looking, when no notification comes.
    grace: how long running handlers get at a stop before they are cancelled.
    max_unwritten: results that may wait for the database before nothing new is claimed or started; never taken as less
    than twice the slots, so that flushes have something to gather.
    unknown_kinds: what becomes of a job without a handler here: it fails for good ("fail"), or is put back for a minute
    without counting the attempt ("put_back"), for example because a newer worker knows it.
    dead_letters: whether a job that fails goes to the dead letters, or of which queues, where its queue does not say.
    retention: how long what has ended is kept, should this worker lead.
    liveness: heartbeats, and the rescue of what others ran.
    """

    queues: Mapping[str, QueueConfig]
    poll_interval: float = 2.0
    grace: float = 30.0
    max_unwritten: int = 2000
    unknown_kinds: UnknownKinds = "fail"
    dead_letters: DeadLetters = False
    retention: Retention = field(default_factory=Retention)
    liveness: Liveness = field(default_factory=Liveness)
    hostname: str = ""
    pid: int = 0
    version: str = ""

    def __post_init__(self) -> None:
        keep = object.__setattr__
        keep(self, "queues", {name("queue", queue): config for queue, config in self.queues.items()})
        if not self.queues:
            raise ConfigurationError("a worker needs at least one queue")
        keep(self, "poll_interval", positive_seconds("poll_interval", self.poll_interval))
        keep(self, "grace", seconds("grace", self.grace))
        if self.unknown_kinds not in get_args(UnknownKinds):
            raise ValidationError(
                "unknown_kinds", f'"fail" or "put_back" is needed, not {str(self.unknown_kinds)[:40]!r}'
            )
        keep(self, "dead_letters", checked_dead_letters(self.dead_letters))
        if not isinstance(self.liveness, Liveness):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValidationError("liveness", f"a Liveness is needed, not {type(self.liveness).__name__}")

    @property
    def info(self) -> WorkerInfo:
        """How the worker introduces itself."""
        return WorkerInfo(tuple(self.queues), self.hostname, self.pid, self.version)

    def keeps_dead_letters(self, queue: str) -> bool:
        """Whether a job of this queue that fails here goes to the dead letters: what its queue says, else the client."""
        served = self.queues.get(queue)
        if served is None or served.dead_letters is None:
            return said_of(self.dead_letters, queue)
        return served.dead_letters


def _interval(field: str, value: object) -> float:
    found = seconds(field, value)
    if not MIN_INTERVAL <= found <= MAX_INTERVAL:
        raise ValidationError(field, f"{found:g} seconds are outside {MIN_INTERVAL} … {MAX_INTERVAL:g}")
    return found


def _at_least(field: str, value: object, least: float) -> float:
    found = seconds(field, value)
    if found < least:
        raise ValidationError(field, f"{found:g} seconds are below {least:g}, which follows from heartbeat_interval")
    return found


def _aging(value: Seconds) -> float:
    found = seconds("aging", value)
    if 0 < found < MIN_AGING:
        raise ValidationError("aging", f"{found:g} seconds are below {MIN_AGING}; 0 is for never")
    return found


def _rate_limit(value: object) -> float | tuple[float, int] | None:
    match value:
        case None:
            return None
        case tuple() | list():
            if len(value) != 2:
                raise ValidationError("rate_limit", f"(jobs a second, burst) is a pair, not {len(value)} values")
            return _rate(value[0]), whole("rate_limit", value[1], 1, int(MAX_RATE))
        case _:
            return _rate(value)


def _rate(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValidationError("rate_limit", f"a number of jobs a second is needed, not {type(value).__name__}")
    if not MIN_RATE <= value <= MAX_RATE:  # which nan is not either
        raise ValidationError("rate_limit", f"{_shown(value)} jobs a second are outside {MIN_RATE:.2g} … {MAX_RATE:g}")
    return float(value)


def _shown(number: float) -> str:
    return f"{number:g}" if not isinstance(number, int) or abs(number) < 10**20 else "so many"
