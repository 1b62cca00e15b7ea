"""The life of a worker, in phases. Everything that moves it from one to the next is in this file.

phase      | ends when                                                    | next       | at the latest after (at once)
-----------|--------------------------------------------------------------|------------|--------------------
NEW        | start                                                        | STARTING   |
STARTING   | registered; failures are tried again (0.1 s doubling to 10 s)| RUNNING    |
RUNNING    | StopAsked: no new claims, buffered jobs go back              | DRAINING   |
DRAINING   | no handler runs                                              | WRITING    | grace (0 s): CANCELLING
CANCELLING | no handler runs; those that end now are released             | WRITING    | 5 s (1 s): WRITING, those are left
WRITING    | nothing is unwritten, no claim is under way                  | LEAVING    | 10 s (2 s): LEAVING, not clean
LEAVING    | unregistered, or that failed; and nothing is unwritten (again)| STOPPED    | 2 s (1 s)
STOPPED    | never; every input is ignored                                |            |

StopAsked before RUNNING goes to LEAVING (or STOPPED when nothing is registered). A second StopAsked may shorten the
grace while DRAINING, unless it names none; later ones change nothing, but for one that asks for an end at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from awa_proto.errors import DatabaseError, Failure
from awa_proto.store import Registration
from awa_proto.worker.backoff import Backoff
from awa_proto.worker.context import Context
from awa_proto.worker.dispatch import Dispatcher
from awa_proto.worker.events import CancelJob, Lane, Output, Reason, Stopped
from awa_proto.worker.finalize import Finalizer
from awa_proto.worker.heartbeat import Living
from awa_proto.worker.rebase import rebase
from awa_proto.worker.report import INFO, WARNING, about
from awa_proto.worker.running import Running
from awa_proto.worker.timers import Timer

AFTER_CANCELLING: Final = 5.0
FOR_WRITING: Final = 10.0
FOR_LEAVING: Final = 2.0
AT_ONCE: Final = {AFTER_CANCELLING: 1.0, FOR_WRITING: 2.0, FOR_LEAVING: 1.0}
"""Seconds instead of these, for one that was asked to end at once."""


class Phase(StrEnum):
    """Where in its life a worker is."""

    NEW = "new"
    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    CANCELLING = "cancelling"
    WRITING = "writing"
    LEAVING = "leaving"
    STOPPED = "stopped"


class Lifecycle:
    """Registers, and stops in stages. instance: the number registration gave, None before."""

    __slots__ = (
        "_at_once", "_backoff", "_context", "_dispatcher", "_finalizer", "_has_left", "_living", "_on_close", "_on_open",
        "_on_stopped", "_out", "_running", "_was_cut_short", "instance", "phase",
    )  # fmt: skip

    def __init__(
        self,
        context: Context,
        out: deque[Output],
        dispatcher: Dispatcher,
        finalizer: Finalizer,
        running: Running,
        living: Living,
        *,
        on_open: Callable[[Registration, float], None],
        on_close: Callable[[float], None],
        on_stopped: Callable[[], None],
    ) -> None:
        self._context = context
        self._out = out
        self._dispatcher = dispatcher
        self._finalizer = finalizer
        self._running = running
        self._living = living
        self._on_open = on_open
        self._on_close = on_close
        self._on_stopped = on_stopped
        self._backoff = Backoff(0.1, 10.0, context.random)
        self._was_cut_short = False
        self._has_left = False
        self._at_once = False
        self.instance: int | None = None
        self.phase = Phase.NEW

    @property
    def is_stopped(self) -> bool:
        """Whether the machine takes no more input."""
        return self.phase is Phase.STOPPED

    # the start

    def start(self) -> None:
        """Register. Once."""
        if self.phase is Phase.NEW:
            self.phase = Phase.STARTING
            self.register()

    def register(self) -> None:
        """The timer: try (again)."""
        worker = self._context.config.info
        self._context.lanes.run(
            Lane.MAINTENANCE, self._context.store.register(worker), self._registered, self._not_registered
        )

    def _registered(self, registration: Registration, now: float) -> None:
        self.instance = registration.instance
        if self.phase is Phase.STARTING:
            self.phase = Phase.RUNNING
            self._context.clock.learn(registration.now, now)
            self._context.report.recovered("register failed", "the database answers: the worker starts")
            queues = {name: queue.max_workers for name, queue in self._context.config.queues.items()}
            self._context.report.tell(INFO, "working", "the worker works", instance=self.instance, queues=queues)
            self._on_open(registration, now)
        elif self.phase is Phase.LEAVING:
            self._unregister(registration.instance)

    def _not_registered(self, error: DatabaseError, now: float) -> None:
        if self.phase is not Phase.STARTING:
            self._stopped()
            return
        self._context.last_error = error
        if error.failure is Failure.RESTORED:
            rebase(self._context, now)
        delay = self._backoff.next()
        self._context.report.warn(
            now,
            "register failed",
            "the worker cannot start yet; it tries again",
            error=str(error),
            failure=error.failure.value,
        )
        self._context.timers.set(Timer.REGISTER, now + delay)

    # the stop

    def stop(self, asked: float | None, now: float, *, at_once: bool = False) -> None:
        """StopAsked."""
        timers = self._context.timers
        if at_once:
            asked, self._at_once = 0.0, True
        grace = self._context.config.grace if asked is None else asked
        match self.phase:
            case Phase.NEW:
                self._stopped()
            case Phase.STARTING:
                timers.cancel(Timer.REGISTER)
                if self._context.lanes.is_busy(Lane.MAINTENANCE):
                    self.phase = Phase.LEAVING
                    self._end_by(now, FOR_LEAVING)
                else:
                    self._stopped()
            case Phase.RUNNING:
                self.phase = Phase.DRAINING
                timers.set(Timer.STOP, now + grace)
                self._on_close(now)
                self._context.report.tell(INFO, "stopping", "the worker stops", running=len(self._running), grace=grace)
            case Phase.DRAINING:
                set_to = timers.at(Timer.STOP)
                if asked is not None and set_to is not None and now + grace < set_to:
                    timers.set(Timer.STOP, now + grace)
            case Phase.CANCELLING | Phase.WRITING | Phase.LEAVING:
                stage = {Phase.CANCELLING: AFTER_CANCELLING, Phase.WRITING: FOR_WRITING}.get(self.phase, FOR_LEAVING)
                set_to = timers.at(Timer.STOP)
                if at_once and set_to is not None:
                    timers.set(Timer.STOP, min(set_to, now + AT_ONCE[stage]))
            case Phase.STOPPED:
                pass

    def settle(self, now: float) -> None:
        """Go on to the next phase when this one is over."""
        if self.phase in {Phase.DRAINING, Phase.CANCELLING} and not self._running:
            self._write(now)
        if self._has_left and not self._finalizer.unwritten:
            self._stopped()
        if self.phase is Phase.WRITING and not self._finalizer.unwritten and not self._dispatcher.is_claiming:
            self._leave(now)

    def time_is_up(self, now: float) -> None:
        """The timer: this phase has lasted long enough."""
        match self.phase:
            case Phase.DRAINING:
                self.phase = Phase.CANCELLING
                self._end_by(now, AFTER_CANCELLING)
                self._running.release_from_now_on()
                self._out.extend(CancelJob(attempt, Reason.SHUTDOWN) for attempt in self._running.attempts)
            case Phase.CANCELLING:
                for attempt in self._running.attempts:
                    self._context.report.sample(
                        now, WARNING, "left running", "a handler did not end when it was cancelled", **about(attempt)
                    )
                self._write(now)
            case Phase.WRITING:
                self._was_cut_short = True
                self._context.report.tell(
                    WARNING, "results lost", "results could not be written in time; rescue will run their jobs again",
                    results=self._finalizer.unwritten,
                )  # fmt: skip
                self._leave(now)
            case Phase.LEAVING:
                self._stopped()
            case Phase.NEW | Phase.STARTING | Phase.RUNNING | Phase.STOPPED:
                pass

    def _end_by(self, now: float, seconds: float) -> None:
        """This phase lasts at most so long."""
        self._context.timers.set(Timer.STOP, now + (AT_ONCE[seconds] if self._at_once else seconds))

    def _write(self, now: float) -> None:
        self.phase = Phase.WRITING
        self._end_by(now, FOR_WRITING)

    def _leave(self, now: float) -> None:
        self.phase = Phase.LEAVING
        self._living.has_left = True
        self._context.timers.cancel(Timer.FLUSH)
        self._end_by(now, FOR_LEAVING)
        assert self.instance is not None
        self._unregister(self.instance)

    def _unregister(self, instance: int) -> None:
        self._context.lanes.forget_waiting(Lane.MAINTENANCE)
        self._context.lanes.run(Lane.MAINTENANCE, self._context.store.unregister(instance), self._left, self._not_left)

    def _left(self, _: None, _now: float) -> None:
        self._has_left = True

    def _not_left(self, error: DatabaseError, _now: float) -> None:
        self._context.last_error = error
        self._has_left = True

    def _stopped(self) -> None:
        if self.phase is not Phase.STOPPED:
            self.phase = Phase.STOPPED
            self._context.timers.clear()
            self._on_stopped()
            left = self._running.ids
            self._out.append(Stopped(not left and not self._finalizer.unwritten and not self._was_cut_short, left))
