"""Cron, of the worker that leads: it enqueues what is due.

Which fires are due is found from what the database says, and its clock; then they are enqueued in a transaction that makes
sure that nobody else does. An answer that is lost, or a leader that dies in between, leaves fires that are due, or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from awa_proto.cron.job import MOST_AT_ONCE, CronJob, Fire, fire_of
from awa_proto.cron.operations import fire
from awa_proto.error_text import describe
from awa_proto.errors import OF_ONE, ConfigurationError, DatabaseError
from awa_proto.worker.backoff import Backoff
from awa_proto.worker.context import Context
from awa_proto.worker.events import Lane
from awa_proto.worker.upkeep import FIRST_WAIT, MOST_WAIT, Duty

LOOK_EVERY: Final = 5.0
"""Seconds until a cron job that somebody has just made or changed is known to the leader."""
SOON: Final = 0.005
_SILENCE: Final = 3600.0


@dataclass(slots=True)
class _Held:
    """A cron job whose fires could not be enqueued, until when it is left alone."""

    backoff: Backoff
    until: float = 0.0


class Cron:
    """Finds what is due, and enqueues it.

    What cannot be enqueued stays due, and is tried less and less often; the database may refuse it, or somebody hold its key.
    """

    __slots__ = ("_context", "_held")

    def __init__(self, context: Context) -> None:
        self._context = context
        self._held: dict[str, _Held] = {}

    def duty(self) -> Duty:
        """Looking."""
        return Duty("cron", LOOK_EVERY, self._context.store.list_cron, self._look)

    def _look(self, listed: tuple[datetime, Sequence[CronJob]], now: float) -> float | None:
        at, jobs = listed
        fires: list[Fire] = []
        wait = LOOK_EVERY
        for job in jobs:
            held = self._held.get(job.name)
            if held is not None and held.until > now:
                wait = min(wait, held.until - now)
                continue
            try:
                found = fire_of(job, at)
                next_fire = None if job.is_paused else job.next_fire(at)
            except Exception as error:  # noqa: BLE001  a zone or an expression that is unknown here, or no library
                self._cannot(job, error, now)
                continue
            if found is not None:
                fires.append(found)
            if next_fire is not None:
                wait = min(wait, (next_fire - at).total_seconds())
        if fires:
            self._fire(fires)
            wait = SOON if any(len(each.jobs) == MOST_AT_ONCE for each in fires) else wait  # there may be more of it
        return max(wait, SOON)

    def _fire(self, fires: Sequence[Fire]) -> None:
        def done(_: list[str], _now: float) -> None:
            for each in fires:
                self._held.pop(each.name, None)
            self._context.report.recovered("cron failed", "cron jobs are enqueued again")

        def failed(error: DatabaseError, now: float) -> None:
            self._not_fired(fires, error, now)

        self._context.lanes.run(Lane.UPKEEP, fire(self._context.store, fires), done, failed)

    def _not_fired(self, fires: Sequence[Fire], error: DatabaseError, now: float) -> None:
        """They are still due. One that cannot be enqueued does not hold up the others."""
        if len(fires) > 1 and error.failure in OF_ONE:
            for each in fires:
                self._fire([each])
            return
        for each in fires:
            held = self._held.setdefault(each.name, _Held(Backoff(FIRST_WAIT, MOST_WAIT, self._context.random)))
            held.until = now + held.backoff.next()
        self._context.last_error = error
        self._context.report.warn(
            now, "cron failed", "cron jobs could not be enqueued; they stay due", error=str(error)
        )

    def _cannot(self, job: CronJob, error: Exception, now: float) -> None:
        why = str(error) if isinstance(error, ConfigurationError) else describe(error)
        self._context.report.warn(
            now, f"cron job unread: {job.name}", "the leader cannot tell when a cron job fires", quiet=_SILENCE,
            name=job.name, cron=job.cron, timezone=job.timezone, error=why,
        )  # fmt: skip
