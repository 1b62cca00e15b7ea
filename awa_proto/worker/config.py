"""How a worker is set up: its queues, and the few numbers that people may want to change. Checked when it is made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from awa_proto.errors import ConfigurationError, ValidationError


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """How a worker serves one queue.

    max_workers: most handlers of this queue at the same time in this worker, from 1.
    rate_limit: (jobs a second, burst) that this worker starts at most; a bare number has a burst of one second's worth.
    deadline: seconds an attempt may take unless the job says otherwise; None for no limit.
    aging: seconds of waiting that lift a job by one priority; 0 for never.
    """

    max_workers: int = 50
    rate_limit: float | tuple[float, int] | None = None
    deadline: float | None = None
    aging: float = 60.0

    def __post_init__(self) -> None:
        workers: object = self.max_workers  # whatever the caller passed
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
            raise ValidationError("max_workers", f"{self.max_workers!r} is not a whole number from 1")
        rate, burst = self.rate
        if not (math.isfinite(rate) and rate > 0) and self.rate_limit is not None:
            raise ValidationError("rate_limit", f"{rate!r} jobs a second is not a finite number above 0")
        if burst < 1:
            raise ValidationError("rate_limit", f"a burst of {burst!r} is below 1")
        if self.deadline is not None and not (math.isfinite(self.deadline) and self.deadline > 0):
            raise ValidationError("deadline", f"{self.deadline!r} seconds is not a finite number above 0")
        if not math.isfinite(self.aging) or self.aging < 0:
            raise ValidationError("aging", f"{self.aging!r} seconds is not a finite number from 0")

    @property
    def rate(self) -> tuple[float, int]:
        """(jobs a second, burst); (inf, 1) when there is no limit."""
        match self.rate_limit:
            case None:
                return math.inf, 1
            case (rate, burst):
                return rate, burst
            case rate:
                return rate, max(1, math.ceil(rate) if math.isfinite(rate) else 1)


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """The queues of a worker and its intervals, all in seconds.

    poll_interval: the longest an idle worker goes without looking, when no notification comes.
    grace: how long running handlers get at a stop before they are cancelled.
    max_unwritten: results that may wait for the database before nothing new is claimed or started; never taken as less
    than twice the slots, so that flushes have something to gather.
    """

    queues: Mapping[str, QueueConfig]
    poll_interval: float = 2.0
    grace: float = 30.0
    max_unwritten: int = 2000
    hostname: str = ""
    pid: int = 0
    version: str = ""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        if not self.queues:
            raise ConfigurationError("a worker needs at least one queue")
        for queue in self.queues:
            if not queue or len(queue) > 200:
                raise ValidationError("queue", f"{queue[:40]!r} is empty or longer than 200 characters")
        if not (math.isfinite(self.poll_interval) and self.poll_interval > 0):
            raise ValidationError("poll_interval", f"{self.poll_interval!r} seconds is not a finite number above 0")
        if not math.isfinite(self.grace) or self.grace < 0:
            raise ValidationError("grace", f"{self.grace!r} seconds is not a finite number from 0")
