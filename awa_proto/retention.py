"""Retention: how long what has ended is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from awa_proto.options import positive_seconds
from awa_proto.outcome import Seconds

DAY: Final = 86400.0


@dataclass(frozen=True, slots=True, init=False)
class Retention:
    """How long jobs are kept after they ended. What is given as a timedelta is kept as seconds.

    The worker that leads goes by its own, so all workers of a schema should say the same.

    completed: seconds that a completed job and its output are kept at the least; they go with the segment they are in.
    failed: seconds that failed and cancelled jobs are kept. dead_letters: seconds that dead letters are.

    Raises ValidationError naming the setting and its limit: above 0 and up to 100 years.
    """

    completed: float
    failed: float
    dead_letters: float

    def __init__(self, completed: Seconds = DAY, failed: Seconds = 3 * DAY, dead_letters: Seconds = 30 * DAY) -> None:
        keep = object.__setattr__
        keep(self, "completed", positive_seconds("retention.completed", completed))
        keep(self, "failed", positive_seconds("retention.failed", failed))
        keep(self, "dead_letters", positive_seconds("retention.dead_letters", dead_letters))
