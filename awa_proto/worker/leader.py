"""Which worker does the upkeep: the one that holds a lease on the row `leader`.

state    | what it does                                              | becomes the other when
---------|-----------------------------------------------------------|---------------------------------------------------
follower | asks when the lease of the leader expires                  | it gets the lease
leader   | renews every `RENEW_EVERY` seconds, and lets upkeep be done| somebody else has it, or it expired by its own clock

A leader whose database does not answer stops at the moment its lease ends by its own clock, counted from before it was
asked for, so at the latest when others may begin. One that stops in good order gives the lease up.
"""

from __future__ import annotations

import math
from typing import Final

from awa_proto.errors import DatabaseError
from awa_proto.store.upkeep import Leadership
from awa_proto.worker.backoff import Backoff
from awa_proto.worker.context import Context
from awa_proto.worker.events import Lane
from awa_proto.worker.report import INFO
from awa_proto.worker.timers import Timer
from awa_proto.worker.upkeep import Upkeep

LEASE: Final = 15.0
"""Seconds after which somebody else may lead, when the leader says nothing."""
RENEW_EVERY: Final = 5.0
"""Seconds between two words of the leader."""
SPREAD: Final = 1.0
"""Seconds over which followers spread when they ask for a lease that has expired."""
SHORTLY: Final = 0.5
"""Seconds until a follower asks again for a lease that was free, and that it did not get."""


class Leader:
    """Holds the lease, or waits for it. leads: whether it holds it. term: the newest one it has heard of."""

    __slots__ = (
        "_asked", "_asked_at", "_backoff", "_context", "_instance", "_is_open", "_until", "_upkeep", "leader", "term",
    )  # fmt: skip

    def __init__(self, context: Context, upkeep: Upkeep) -> None:
        self._context = context
        self._upkeep = upkeep
        self._backoff = Backoff(SHORTLY, RENEW_EVERY / 2, context.random)
        self._instance = 0
        self._is_open = False
        self._asked = False
        self._asked_at = -math.inf
        self._until = -math.inf
        self.leader: int | None = None
        self.term = 0

    @property
    def leads(self) -> bool:
        """Whether this worker does the upkeep."""
        return self._until > -math.inf

    def open(self, instance: int, now: float) -> None:
        """Registered: ask."""
        self._is_open = True
        self._instance = instance
        self.ask(now)

    def close(self) -> None:
        """Lead no more, and let somebody else at once."""
        self._is_open = False
        self._context.timers.cancel(Timer.LEAD)
        if self.leads:
            self._stand_down()
            self._context.lanes.run(Lane.MAINTENANCE, self._context.store.resign(self._instance), _given_up, _kept)

    def ask(self, now: float) -> None:
        """The timer: renew, or try."""
        if not self._is_open:
            return
        if self.leads and now >= self._until:
            self._stand_down()
            self._context.report.warn(now, "lease expired", "this worker could not say in time that it leads")
        if self._asked:
            self._look_at(self._until if self.leads else now + LEASE)
            return
        self._asked = True
        self._asked_at = now
        if self.leads:
            self._look_at(self._until)
        self._context.lanes.run(
            Lane.MAINTENANCE, self._context.store.lead(self._instance, LEASE), self._answered, self._failed
        )

    def _answered(self, leadership: Leadership, now: float) -> None:
        self._asked = False
        self._backoff.reset()
        self._context.report.recovered("lead failed", "who leads is known again")
        self.leader, self.term = leadership.instance, leadership.term
        if not self._is_open:
            if leadership.is_mine:
                self._context.lanes.run(Lane.MAINTENANCE, self._context.store.resign(self._instance), _given_up, _kept)
            return
        until = self._asked_at + LEASE
        if leadership.is_mine and now < until:
            is_new = not self.leads
            self._until = until
            self._look_at(min(self._asked_at + RENEW_EVERY, until))
            if is_new:
                self._context.report.tell(INFO, "leads", "this worker does the upkeep", term=self.term)
                self._upkeep.begin(now)
            return
        if self.leads:
            self._stand_down()
        # One that lasts longer than leases do was given before the clock of the database was set back.
        wait = min(leadership.expires_in, LEASE) if leadership.expires_in > 0 and not leadership.is_mine else SHORTLY
        self._look_at(now + wait + SPREAD * self._context.random())

    def _failed(self, error: DatabaseError, now: float) -> None:
        self._asked = False
        if not self._is_open:
            return
        self._context.last_error = error
        self._context.report.warn(now, "lead failed", "who leads could not be asked", error=str(error))
        again = now + self._backoff.next()
        self._look_at(min(again, self._until) if self.leads else again)

    def _stand_down(self) -> None:
        self._until = -math.inf
        self._upkeep.end()

    def _look_at(self, at: float) -> None:
        self._context.timers.set(Timer.LEAD, at)


def _given_up(_: None, _now: float) -> None:
    """Somebody else may lead."""


def _kept(_: DatabaseError, _now: float) -> None:
    """It expires by itself."""
