"""Cron in a worker: it declares the cron jobs of its application, and, while it leads, enqueues what is due.

Which fires are due is found from what the database says, and its clock; then they are enqueued in a transaction that makes
sure that nobody else does. An answer that is lost, or a leader that dies in between, leaves fires that are due, or none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from awa_proto.cron.job import CronJob, Fire, fire_of
from awa_proto.cron.operations import fire
from awa_proto.cron.registration import Periodic
from awa_proto.error_text import describe
from awa_proto.errors import ConfigurationError, DatabaseError, Failure
from awa_proto.task import Task
from awa_proto.worker.backoff import Backoff
from awa_proto.worker.context import Context
from awa_proto.worker.events import Lane
from awa_proto.worker.timers import Timer
from awa_proto.worker.upkeep import Duty

LOOK_EVERY: Final = 5.0
"""Seconds until a cron job that somebody has just made or changed is known to the leader."""
SOON: Final = 0.005
DECLARE_EVERY: Final = 60.0
"""Seconds between two looks whether the code has come to say more."""
_SILENCE: Final = 3600.0


class Cron:
    """Declares, and finds what is due."""

    __slots__ = ("_backoff", "_context", "_declared", "_is_open", "_periodic", "_tasks")

    def __init__(self, context: Context, periodic: Mapping[str, Periodic], tasks: Mapping[str, Task]) -> None:
        self._context = context
        self._periodic = periodic
        self._tasks = tasks
        self._declared: frozenset[str] = frozenset()
        self._backoff = Backoff(0.5, 30.0, context.random)
        self._is_open = False

    # what the code says

    def open(self, now: float) -> None:
        """Registered: declare."""
        self._is_open = True
        self.declare(now)

    def close(self) -> None:
        """Declare no more."""
        self._is_open = False
        self._context.timers.cancel(Timer.CRON)

    def declare(self, now: float) -> None:
        """The timer: tell the database what the code has come to say."""
        if not self._is_open:
            return
        names = frozenset(self._periodic)
        if names == self._declared:
            self._context.timers.set(Timer.CRON, now + DECLARE_EVERY)
            return
        templates = [self._periodic[name].template(self._tasks) for name in sorted(names - self._declared)]

        def done(_: int, now: float) -> None:
            self._declared |= names
            self._backoff.reset()
            self._again(now + DECLARE_EVERY)

        self._context.lanes.run(
            Lane.MAINTENANCE, self._context.store.put_cron(templates, declared=True), done, self._failed
        )

    def _failed(self, error: DatabaseError, now: float) -> None:
        self._context.last_error = error
        self._context.report.warn(now, "declare failed", "cron jobs could not be declared", error=str(error))
        self._again(now + self._backoff.next())

    def _again(self, at: float) -> None:
        if self._is_open:
            self._context.timers.set(Timer.CRON, at)

    # what is due

    def duty(self) -> Duty:
        """The leader's part."""
        return Duty("cron", LOOK_EVERY, self._context.store.list_cron, self._look)

    def _look(self, listed: tuple[datetime, Sequence[CronJob]], now: float) -> float | None:
        at, jobs = listed
        fires: list[Fire] = []
        wait = LOOK_EVERY
        for job in jobs:
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
            wait = SOON if any(len(each.jobs) > 1 for each in fires) else wait  # there may be more to make up for
        return max(wait, SOON)

    def _fire(self, fires: Sequence[Fire]) -> None:
        def done(_: list[str], _now: float) -> None:
            self._context.report.recovered("cron failed", "cron jobs are enqueued again")

        def failed(error: DatabaseError, now: float) -> None:
            self._not_fired(fires, error, now)

        self._context.lanes.run(Lane.UPKEEP, fire(self._context.store, fires), done, failed)

    def _not_fired(self, fires: Sequence[Fire], error: DatabaseError, now: float) -> None:
        """They are still due. One that the database refuses does not hold up the others."""
        if len(fires) > 1 and error.failure is Failure.REFUSED:
            for each in fires:
                self._fire([each])
            return
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


NO_CRON: Final[Mapping[str, Periodic]] = {}
"""An application without cron jobs."""
