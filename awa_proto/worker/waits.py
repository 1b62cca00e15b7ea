"""Handlers that wait for their callbacks: each keeps its slot, its deadline stands still, and a word wakes it.

what                                    | what becomes of it
----------------------------------------|--------------------------------------------------------------------------
a handler begins to wait                | its deadline stands still; that is written, and whether the callback has come
                                        | already is the answer
a notification names its attempt        | it is looked for at once
none comes                              | all that wait are looked for, in one statement, as often as a queue is polled
the callback has come                   | WaitOver with what it came with; the deadline goes on with what was left of it
it never will: replaced, used, ended    | WaitOver without
the handler leaves (its own timeout)    | that is written; the deadline goes on
it registers anew, or parks the job     | it may, whether its leaving is written so far or not
the database is away                    | it goes on to wait; whatever is to be asked or written is tried with back-off,
                                        | each time with how long it has waited, which the deadline does not count
somebody's open transaction has used one| that one is asked for, or its leaving written, with the next look for all
the handler ended, was cancelled        | forgotten: whatever ends the attempt takes the callback along
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from awa_proto.errors import DatabaseError
from awa_proto.plan import Op
from awa_proto.store import Wait, Waited
from awa_proto.worker.backoff import Backoff
from awa_proto.worker.context import Context
from awa_proto.worker.deadlines import Fence
from awa_proto.worker.events import Lane, Output, WaitAsked, WaitLeft, WaitOver
from awa_proto.worker.running import Running
from awa_proto.worker.timers import Timer

MOST: Final = 1000
"""Most handlers that one statement asks for."""


class Waiter:
    """Asks for what handlers wait for. watch: called when a deadline goes on."""

    __slots__ = (
        "_backoff",
        "_context",
        "_is_away",
        "_is_busy",
        "_late",
        "_leaving",
        "_look",
        "_out",
        "_running",
        "_waits",
        "_watch",
    )

    def __init__(self, context: Context, out: deque[Output], running: Running, watch: Callable[[], None]) -> None:
        self._context = context
        self._out = out
        self._running = running
        self._watch = watch
        self._waits: dict[Fence, Wait] = {}
        self._look: dict[Fence, None] = {}
        self._leaving: dict[Fence, Wait] = {}
        self._late: dict[Fence, Wait] = {}  # of those who left, what is to be written with the next look
        self._is_busy = False
        self._is_away = False
        # after the database was away, what is overdue by its count is left alone for one heartbeat: time for two tries
        most = min(config_poll(context), context.config.liveness.heartbeat_interval / 2)
        self._backoff = Backoff(min(0.02, most), most, context.random)

    def ask(self, event: WaitAsked, now: float) -> None:
        """A handler begins to wait."""
        attempt = event.attempt
        fence = attempt.id, attempt.run_lease
        if not self._running.runs(fence):
            self._out.append(WaitOver(attempt, event.callback_id, None))
            return
        self._waits[fence] = Wait(attempt, event.callback_id)
        self._look[fence] = None
        self._late.pop(fence, None)  # so late it would say so of this wait
        self._running.deadlines.stop(attempt, now)

    def leave(self, event: WaitLeft, now: float) -> None:
        """A handler waits no more, whatever comes."""
        fence = event.attempt.id, event.attempt.run_lease
        wait = self._waits.get(fence)
        if wait is not None and wait.callback_id == event.callback_id:
            self._forget(fence, now)
            self._leaving[fence] = self._counted(wait, now)

    def woken(self, fence: Fence) -> None:
        """A notification: the callback of an attempt has come."""
        if fence in self._waits:
            self._look[fence] = None

    def tick(self, _: float) -> None:
        """The timer: look for all, since notifications may be lost; or, since the database was away, ask again."""
        self._is_away = False
        self._waits = self._open(self._waits)
        self._look = dict.fromkeys(self._waits)
        self._leaving, self._late = self._open(self._late) | self._leaving, {}

    def settle(self, now: float) -> None:
        """Ask, and see to the timer."""
        if not self._waits and not self._leaving and not self._late:
            if not self._is_away:  # else who begins to wait now would make it asked at once
                self._context.timers.cancel(Timer.WAIT)
            return
        if not self._is_busy and not self._is_away:
            if self._leaving:
                self._leave()
            elif self._look:
                self._ask()
        timers = self._context.timers
        if (self._waits or self._late) and timers.at(Timer.WAIT) is None:
            timers.set(Timer.WAIT, now + config_poll(self._context))

    def _ask(self) -> None:
        asked = list(self._look)[:MOST]
        for fence in asked:
            del self._look[fence]
        waits = [self._waits[fence] for fence in asked if self._running.runs(fence)]
        if not waits:
            return
        self._is_busy = True

        def done(answers: list[Waited], now: float) -> None:
            self._is_busy = False
            self._backoff.reset()
            for wait, answer in zip(waits, answers, strict=True):
                if answer.is_over:
                    self._over(wait, answer.result, now)

        def asking(now: float) -> Op[list[Waited]]:
            return self._context.store.wait([self._counted(wait, now) for wait in waits])

        self._context.lanes.run(Lane.MAINTENANCE, asking, done, self._failed)

    def _leave(self) -> None:
        self._is_busy = True
        left, self._leaving = self._leaving, {}

        def done(held: list[int], _: float) -> None:
            self._is_busy = False
            self._backoff.reset()
            asked = list(left.items())
            self._late |= {fence: wait for fence, wait in map(asked.__getitem__, held) if self._has_left(fence)}

        def failed(error: DatabaseError, now: float) -> None:
            self._leaving = left | self._leaving
            self._failed(error, now)

        op = self._context.store.leave(list(left.values()))
        self._context.lanes.run(Lane.MAINTENANCE, op, done, failed)

    def _failed(self, error: DatabaseError, now: float) -> None:
        self._is_busy = False
        self._is_away = True
        self._context.last_error = error
        self._context.report.warn(
            now, "wait failed", "it could not be asked whether callbacks have come; asked again", error=str(error)
        )
        self._context.timers.set(Timer.WAIT, now + self._backoff.next())

    def _over(self, wait: Wait, result: str | None, now: float) -> None:
        attempt, callback_id, _ = wait
        fence = attempt.id, attempt.run_lease
        if self._waits.get(fence) != wait:
            return
        self._forget(fence, now)
        self._out.append(WaitOver(attempt, callback_id, result))

    def _open(self, waits: dict[Fence, Wait]) -> dict[Fence, Wait]:
        """Those whose attempts have not been ended. It is not asked at each input, since there may be a thousand."""
        return {fence: wait for fence, wait in waits.items() if self._running.runs(fence)}

    def _has_left(self, fence: Fence) -> bool:
        """Whether its handler runs and does not wait, nor is about to say of a newer wait that it has left."""
        return self._running.runs(fence) and fence not in self._waits and fence not in self._leaving

    def _forget(self, fence: Fence, now: float) -> None:
        attempt = self._waits.pop(fence).attempt
        self._look.pop(fence, None)
        if self._running.deadlines.go_on(attempt, now):
            self._watch()

    def _counted(self, wait: Wait, now: float) -> Wait:
        """With how long its handler has waited until now, by the clock that its deadline goes by."""
        return wait._replace(waited=self._running.deadlines.stood(wait.attempt, now))


def config_poll(context: Context) -> float:
    """Seconds between two looks without a notification."""
    return context.config.poll_interval
