"""What the code of a worker says of itself to the database: the kinds it runs, and its cron jobs.

Said when the worker starts and when the code has come to say more, which is looked for once a minute. Kinds are said again
every hour, so that those nobody runs any more can be told.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from awa_proto.cron.job import CronTemplate
from awa_proto.cron.registration import Periodic
from awa_proto.errors import DatabaseError, ValidationError
from awa_proto.plan import Op
from awa_proto.task import Task
from awa_proto.worker.backoff import Backoff
from awa_proto.worker.context import Context
from awa_proto.worker.events import Lane
from awa_proto.worker.timers import Timer

LOOK_EVERY: Final = 60.0
AGAIN_EVERY: Final = 3700.0
"""Seconds until kinds are said again; a little more than the hour in which that changes nothing."""
NO_CRON: Final[Mapping[str, Periodic]] = {}
"""An application without cron jobs."""


class Declarer:
    """Says it, kinds first.

    periodic, tasks: what there is, as it is now and as it becomes. describe: what is said of each kind, as JSON text.
    """

    __slots__ = ("_backoff", "_context", "_describe", "_is_open", "_kinds", "_names", "_periodic", "_said_at", "_tasks")

    def __init__(
        self,
        context: Context,
        periodic: Mapping[str, Periodic],
        tasks: Mapping[str, Task],
        describe: Callable[[], Mapping[str, str]],
    ) -> None:
        self._context = context
        self._periodic = periodic
        self._tasks = tasks
        self._describe = describe
        self._kinds: frozenset[str] = frozenset()
        self._names: frozenset[str] = frozenset()
        self._said_at = -math.inf
        self._backoff = Backoff(0.5, 30.0, context.random)
        self._is_open = False

    def open(self, now: float) -> None:
        """Registered: say it."""
        self._is_open = True
        self.look(now)

    def close(self) -> None:
        """Say no more."""
        self._is_open = False
        self._context.timers.cancel(Timer.DECLARE)

    def look(self, now: float) -> None:
        """The timer: is there more to say?"""
        if not self._is_open:
            return
        kinds, names, store = frozenset(self._tasks), frozenset(self._periodic), self._context.store
        described = self._describe() if kinds != self._kinds or now - self._said_at >= AGAIN_EVERY else None
        if described:

            def said_kinds(now: float) -> None:
                self._kinds, self._said_at = kinds, now

            self._say(store.put_kinds(described), said_kinds)
        elif names != self._names:

            def said_cron(_: float) -> None:
                self._names = names

            self._say(store.put_cron(self._templates(names - self._names, now), declared=True), said_cron)
        else:
            self._context.timers.set(Timer.DECLARE, now + LOOK_EVERY)

    def _templates(self, names: frozenset[str], now: float) -> list[CronTemplate]:
        found: list[CronTemplate] = []
        for name in sorted(names):
            try:
                found.append(self._periodic[name].template(self._tasks))
            except ValidationError as error:  # by a task that was registered after it
                self._context.report.warn(
                    now, f"cron job refused: {name}", "a cron job does not fit the task of its kind", name=name,
                    error=str(error),
                )  # fmt: skip
        return found

    def _say(self, op: Op[Any], said: Callable[[float], None]) -> None:
        def done(_: object, now: float) -> None:
            self._backoff.reset()
            self._context.report.recovered("declare failed", "what the code says of itself is known again")
            said(now)
            self.look(now)

        self._context.lanes.run(Lane.MAINTENANCE, op, done, self._failed)

    def _failed(self, error: DatabaseError, now: float) -> None:
        self._context.last_error = error
        self._context.report.warn(
            now, "declare failed", "kinds and cron jobs could not be made known; tried again", error=str(error)
        )
        if self._is_open:
            self._context.timers.set(Timer.DECLARE, now + self._backoff.next())
