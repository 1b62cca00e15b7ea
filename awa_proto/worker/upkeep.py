"""Upkeep: what one worker does for all, each duty by its own clock.

A duty is an Op that is run now and then while this worker leads. All are right when two leaders run them at once, and when
one is cut off anywhere. They share a connection, so one runs at a time, and none of them holds up a claim, a flush or a
promotion. One that fails waits longer each time, up to twice as long as it waits anyhow, and to a minute; the others go on.
Those that failed since the server was away are tried as soon as one of them succeeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from awa_proto.errors import OF_SERVER, DatabaseError
from awa_proto.plan import Op
from awa_proto.worker.backoff import Backoff
from awa_proto.worker.context import Context
from awa_proto.worker.events import Lane
from awa_proto.worker.timers import Timer

FIRST_WAIT: Final = 1.0
MOST_WAIT: Final = 60.0
"""Seconds until a duty that failed is tried again: from the one to the other, doubling; one that is frequent, sooner."""


class Duty(NamedTuple):
    """One thing to be done now and then.

    name: as the log shows it. every: seconds between two runs. op: makes the Op. said: told what it answered, and when;
    returns the seconds until the next run (0: at once, there is more of it), or None for `every`.
    """

    name: str
    every: float
    op: Callable[[], Op[Any]]
    said: Callable[[Any, float], float | None]


class _Turn:
    """A duty and its clock.

    is_running: its Op was asked for and not answered. hinted_at: when it is to run by what was heard since then, which the
    answer may not know. was_away: the server was, at its newest run.
    """

    __slots__ = ("at", "backoff", "duty", "hinted_at", "is_running", "runs", "was_away")

    def __init__(self, duty: Duty, random: Callable[[], float]) -> None:
        self.duty = duty
        self.backoff = Backoff(FIRST_WAIT, min(MOST_WAIT, max(2 * duty.every, FIRST_WAIT)), random)
        self.at = math.inf
        self.hinted_at = math.inf
        self.is_running = False
        self.runs = 0
        self.was_away = False


class Upkeep:
    """Runs the duties while it is told to."""

    __slots__ = ("_context", "_is_on", "_turns")

    def __init__(self, context: Context, duties: Sequence[Duty]) -> None:
        self._context = context
        self._turns = [_Turn(duty, context.random) for duty in duties]
        self._is_on = False

    @property
    def failing(self) -> list[str]:
        """The duties whose newest run failed."""
        return [turn.duty.name for turn in self._turns if turn.backoff.failures]

    def begin(self, now: float) -> None:
        """This worker leads: each duty soon, since nobody knows when it was last done."""
        self._is_on = True
        for turn in self._turns:
            turn.at = now + min(turn.duty.every, 1.0) * self._context.random()
        self._wait()

    def end(self) -> None:
        """It leads no more. What runs is answered to nobody."""
        self._is_on = False
        self._context.lanes.forget_waiting(Lane.UPKEEP)
        for turn in self._turns:
            turn.is_running = False
            turn.runs += 1
        self._context.timers.cancel(Timer.UPKEEP)

    def hint(self, name: str, at: float) -> None:
        """The duty of this name has something to do at a moment, and runs by then, if this worker leads."""
        if not self._is_on:
            return
        for turn in self._turns:
            if turn.duty.name == name:
                turn.hinted_at = min(turn.hinted_at, at)
                if not turn.is_running and not turn.backoff.failures:
                    turn.at = min(turn.at, at)
        self._wait()

    def tick(self, now: float) -> None:
        """The timer: run what is due."""
        if not self._is_on:
            return
        for turn in self._turns:
            if turn.at <= now and not turn.is_running:
                self._run(turn)
        self._wait()

    def _run(self, turn: _Turn) -> None:
        duty, context, run = turn.duty, self._context, turn.runs
        turn.is_running = True
        turn.at = turn.hinted_at = math.inf

        def done(answer: Any, now: float) -> None:
            if run != turn.runs:
                return
            turn.is_running = False
            turn.backoff.reset()
            turn.was_away = False
            self._is_back(now)
            context.report.recovered(f"upkeep failed: {duty.name}", f"upkeep goes on: {duty.name}")
            wait = duty.said(answer, now)
            turn.at = min(now + (duty.every * (1 - 0.1 * context.random()) if wait is None else wait), turn.hinted_at)
            self._wait()

        def failed(error: DatabaseError, now: float) -> None:
            if run != turn.runs:
                return
            turn.is_running = False
            turn.was_away = error.failure in OF_SERVER
            context.last_error = error
            context.report.warn(now, f"upkeep failed: {duty.name}", f"upkeep failed: {duty.name}", error=str(error))
            turn.at = now + turn.backoff.next()
            self._wait()

        context.lanes.run(Lane.UPKEEP, duty.op(), done, failed)

    def _is_back(self, now: float) -> None:
        """The server answers: what failed since it did not is tried now. Each once for each answer."""
        for turn in self._turns:
            if turn.was_away and not turn.is_running:
                turn.at = min(turn.at, now)

    def _wait(self) -> None:
        at = min((turn.at for turn in self._turns), default=math.inf)
        if self._is_on and at < math.inf:
            self._context.timers.set(Timer.UPKEEP, at)
