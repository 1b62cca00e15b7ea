"""The cron jobs of a simulated world, one of each policy, and what becomes of their moments."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final

from awa_proto.cron.job import CronTemplate, MissedFirePolicy
from awa_proto.cron.schedule import Schedule
from awa_proto.store import NewJob
from awa_proto.testing.claims import check
from awa_proto.testing.simulator import Simulation, play

EVERY: Final = 5
"""Seconds between two moments."""
TICK: Final = "tick"
"""The kind of their jobs, which lie in a queue that nobody serves."""
_POLICIES: Final[tuple[MissedFirePolicy, ...]] = ("coalesce", "catch_up")


class Ticks:
    """Cron jobs, made now."""

    def __init__(self, world: Simulation) -> None:
        self._world = world
        self._since = world.time()
        self._undisturbed: dict[str, int] = {}
        schedule = Schedule(f"*/{EVERY} * * * * *")
        templates = [CronTemplate(name, schedule, name, NewJob(TICK, TICK, "{}"), None) for name in _POLICIES]
        play(world.store.put_cron(templates, declared=True))

    def fires(self, policy: str) -> list[datetime]:
        """The moments of which there is a job, as they were enqueued."""
        return [
            row.run_at for row in self._world.store.rows if row.kind == TICK and row.metadata["cron_name"] == policy
        ]

    def nothing_is_in_the_way(self) -> None:
        """From now on, until the next check."""
        self._undisturbed = {policy: len(self.fires(policy)) for policy in _POLICIES}

    def check(self, *, late: float | None = None) -> None:
        """Every moment at most once, and in order; none left out by catch_up, nor by either while nothing was in the way.

        late: seconds by which the newest one may be; None when nobody may have been there since.
        """
        now = self._world.time()
        step = timedelta(seconds=EVERY)
        for policy in _POLICIES:
            fires = self.fires(policy)
            calm = self._undisturbed.get(policy, len(fires))
            for number, (before, fire) in enumerate(pairwise(fires)):
                check(fire > before, f"{policy} fires {fire} after {before}")
                check(not fire.timestamp() % EVERY, f"{policy} fires at {fire}")
                if policy == "catch_up" or number >= calm:
                    check(fire == before + step, f"{policy} leaves out what is between {before} and {fire}")
            if late is not None:
                due = now - step - timedelta(seconds=late)
                check(
                    due < self._since or (bool(fires) and fires[-1] >= due),
                    f"{policy} has fired {fires[-1:]} last, and it is {now}",
                )
        self._undisturbed = {}
