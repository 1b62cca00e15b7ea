"""Claims: one under way per worker, covering every queue that wants jobs, and the start of what they bring.

A job that is claimed waits in the buffer of its queue for a slot; a slot is free when a handler ended, before its
result is written. Unwritten results are bounded: at the bound neither claims nor starts happen until a flush comes back.

A claim that failed       | what happens then
--------------------------|-------------------------------------------------------------------------
the database is away      | all claims wait: 0.1 s, doubling to 10 s
refused, or a lock is held| its queues are asked one by one, and only the one that is at fault waits
nobody knows              | the same; and it is asked what it took (`adopt`)
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from awa_proto import errors
from awa_proto.error_text import describe
from awa_proto.errors import DatabaseError, Failure, TerminalError
from awa_proto.events import AnyEvent
from awa_proto.job import Attempt
from awa_proto.outcome import Ending, Raised, Returned, Snooze
from awa_proto.store import Claimed, Demand, Ring
from awa_proto.task import Task
from awa_proto.worker.backoff import Backoff
from awa_proto.worker.context import Context
from awa_proto.worker.deadlines import Fence
from awa_proto.worker.events import CancelJob, Lane, Output, Reason, StartJob
from awa_proto.worker.finalize import Finalizer
from awa_proto.worker.happened import started
from awa_proto.worker.rebase import rebase
from awa_proto.worker.report import about
from awa_proto.worker.running import Running
from awa_proto.worker.served import ServedQueue
from awa_proto.worker.timers import Timer

PATIENCE: Final = 1.0
"""Seconds a buffer may stand still. Then its jobs go back: another worker may be idle."""
PUT_BACK: Final = 60.0
"""Seconds until a job that has no handler here is offered again."""
_SLOW, _ADVANCE_EVERY = 0.02, 10.0
"""An empty claim that took so long walked over rows it could not take; the next one moves past them, not too often."""
_OF_A_QUEUE = frozenset({Failure.BUSY, Failure.REFUSED, Failure.TIMED_OUT})
"""Failures that one queue may cause, for example by a transaction of somebody that holds the turn of a lane."""


class UnknownJobKind(errors.UnknownJobKind, TerminalError):
    """No handler is registered for the kind of the job: it fails for good."""


class ArgsRefused(TerminalError):
    """The args of the job do not fit what its handler takes: it fails for good."""


class Dispatcher:
    """Keeps slots filled.

    ring: the segments to claim from. version: the newest version of the ring that a claim has seen.
    is_open: whether new claims are made. newest_claim: one that was answered, of the last ones.
    is_in_doubt: a claim may have been made whose answer was lost; until somebody takes note of it. is_held: no claim is begun,
    since somebody wants their connection.
    """

    __slots__ = (
        "_advance",
        "_advanced_at",
        "_apart",
        "_asked",
        "_backoff",
        "_bound",
        "_cancelled",
        "_context",
        "_fastest",
        "_finalizer",
        "_hold",
        "_instance",
        "_out",
        "_overdue",
        "_running",
        "_sent_at",
        "_tasks",
        "_turn_apart",
        "is_held",
        "is_in_doubt",
        "is_open",
        "newest_claim",
        "queues",
        "ring",
        "version",
    )  # fmt: skip

    def __init__(
        self,
        context: Context,
        out: deque[Output],
        tasks: Mapping[str, Task],
        queues: Mapping[str, ServedQueue],
        finalizer: Finalizer,
        running: Running,
    ) -> None:
        self._context = context
        self._out = out
        self._tasks = tasks
        self._finalizer = finalizer
        self._running = running
        self._bound = max(2 * sum(queue.slots for queue in queues.values()), context.config.max_unwritten)
        self._backoff = Backoff(0.1, 10.0, context.random)
        self._hold = -math.inf
        self._asked: list[ServedQueue] = []
        self._apart: dict[str, Backoff] = {}
        self._turn_apart = False
        self._cancelled: set[Fence] = set()
        self._overdue: set[Fence] = set()
        self._sent_at = 0.0
        self._fastest = math.inf
        self._advance = False
        self._advanced_at = -math.inf
        self._instance = 0
        self.queues = queues
        self.ring = Ring(0)
        self.version = 0
        self.is_open = False
        self.is_held = False
        self.is_in_doubt = False
        self.newest_claim = 0

    @property
    def is_claiming(self) -> bool:
        """Whether a claim is under way, or what one has brought is asked for."""
        return bool(self._asked) or self.is_held

    def open(self, instance: int, ring: Ring) -> None:
        """Registered: begin to claim."""
        self._instance = instance
        self.ring = ring
        self.version = ring.version
        self.is_open = True

    def close(self, now: float) -> None:
        """Claim and start nothing more; what was claimed and not started goes back."""
        self.is_open = False
        self._context.timers.cancel(Timer.CLAIM)
        self._context.timers.cancel(Timer.BUFFER)
        for queue in self.queues.values():
            self._release(queue, now, most=len(queue.buffer))

    def settle(self, now: float) -> None:
        """Start what can be started, then ask for what is wanted."""
        if not self.is_open or self._finalizer.unwritten >= self._bound or self._context.living.is_silent:
            return
        for queue in self.queues.values():
            if queue.buffer and queue.running < queue.slots:
                self._start(queue, now)
        if not self._asked and not self.is_held and not self._context.lanes.is_busy(Lane.CLAIM):
            self._claim(now)

    # claims

    def _claim(self, now: float) -> None:
        timers = self._context.timers
        if now < self._hold:
            timers.set(Timer.CLAIM, self._hold)
            return
        soonest = math.inf
        for queue in self.queues.values():
            at = queue.when(now)
            if at is not None and at < soonest:
                soonest = at
        if soonest > now:
            if soonest < math.inf:
                timers.set(Timer.CLAIM, soonest)
            else:
                timers.cancel(Timer.CLAIM)
            return
        timers.cancel(Timer.CLAIM)
        demands: list[Demand] = []
        for queue in self._due(now):
            demands += queue.ask(now)
            self._asked.append(queue)
        advance = self._advance
        if advance:
            self._advance = False
            self._advanced_at = now
        self._sent_at = now
        self._context.lanes.run(
            Lane.CLAIM,
            self._context.store.claim(self._instance, self.ring, demands, advance=advance),
            self._claimed,
            self._claim_failed,
        )

    def _due(self, now: float) -> list[ServedQueue]:
        """The queues a claim made now asks: all that are due, but each by itself of those that were part of a failure."""
        due = [queue for queue in self.queues.values() if queue.is_due(now)]
        if not self._apart:
            return due
        together = [queue for queue in due if queue.name not in self._apart]
        if together and not self._turn_apart:
            self._turn_apart = True
            return together
        self._turn_apart = False
        apart = [queue for queue in due if queue.name in self._apart]
        return [min(apart, key=lambda queue: queue.asked_at)] if apart else together

    def _claimed(self, claimed: Claimed, now: float) -> None:
        asked, self._asked = self._asked, []
        for queue in asked if self._apart else ():
            if self._apart.pop(queue.name, None):
                self._context.report.recovered(f"queue held up: {queue.name}", f"queue {queue.name} is claimed again")
        context = self._context
        context.clock.learn(claimed.now, now)
        self._backoff.reset()
        context.report.recovered("claim failed", "jobs are claimed again")
        self.version = claimed.version
        attempts = claimed.attempts
        if attempts:
            own = (attempt.claim_id for attempt in attempts if attempt.segment >= 0)  # others are numbered otherwise
            self.newest_claim = next(own, self.newest_claim)
        again = {name for name, _ in claimed.again}
        for queue in asked:
            mine = attempts if len(asked) == 1 else [attempt for attempt in attempts if attempt.queue == queue.name]
            queue.answered(len(mine), again=queue.name in again, now=now)
            if mine:
                self._take(queue, mine, now)
        self._cancelled.clear()
        took = now - self._sent_at
        self._fastest = min(self._fastest, took)
        if (
            not attempts
            and not again
            and took > max(_SLOW, 3 * self._fastest)
            and now - self._advanced_at > _ADVANCE_EVERY
        ):
            self._advance = True

    def _take(self, queue: ServedQueue, attempts: Sequence[Attempt], now: float) -> None:
        if not self.is_open:
            for attempt in attempts:
                self._finalizer.add(attempt, Ending.RELEASED, now)
            return
        if self._cancelled:
            attempts = [a for a in attempts if (a.id, a.run_lease) not in self._cancelled]
        if not queue.buffer:
            queue.moved_at = now
            self._watch_buffers(now)
        queue.buffer.extend(attempts)
        default = queue.config.deadline
        for attempt in attempts:
            if attempt.extra is not None or default is not None:
                self._running.claimed(attempt, queue, now)
        self.watch_deadlines()

    def adopt(self, attempts: Sequence[Attempt], now: float) -> None:
        """Jobs that were claimed by a claim without an answer."""
        for queue in self.queues.values():
            if mine := [attempt for attempt in attempts if attempt.queue == queue.name]:
                self._take(queue, mine, now)

    def _claim_failed(self, error: DatabaseError, now: float) -> None:
        asked, self._asked = self._asked, []
        unknown = error.failure is Failure.OUTCOME_UNKNOWN
        self.is_in_doubt |= unknown
        self._cancelled.clear()
        for queue in asked:
            queue.claim_failed(nothing_came=not unknown)
        if error.failure in _OF_A_QUEUE:
            self._set_apart(asked, error, now)
            return
        if error.failure is Failure.RESTORED:
            rebase(self._context, now)
        self._hold = now + self._backoff.next()
        self._context.last_error = error
        self._context.report.warn(now, "claim failed", "jobs could not be claimed; tried again", error=str(error))

    def _set_apart(self, asked: Sequence[ServedQueue], error: DatabaseError, now: float) -> None:
        if len(asked) > 1:
            for queue in asked:
                self._apart.setdefault(queue.name, Backoff(0.1, 2.0, self._context.random))
            return
        (queue,) = asked
        backoff = self._apart.setdefault(queue.name, Backoff(0.1, 2.0, self._context.random))
        queue.wait_until(now + backoff.next())
        self._context.last_error = error
        if backoff.failures > 1:
            self._context.report.warn(
                now, f"queue held up: {queue.name}", f"queue {queue.name} cannot be claimed from; others go on",
                error=str(error),
            )  # fmt: skip

    # starts

    def _start(self, queue: ServedQueue, now: float) -> None:
        buffer, tasks, running, finalizer = queue.buffer, self._tasks, self._running, self._finalizer
        hooked = self._context.hooked
        kinds = hooked.kinds
        at, default = self._context.clock.at(now), queue.config.deadline
        told: list[AnyEvent] | None = None
        while buffer and queue.running < queue.slots and finalizer.unwritten < self._bound:
            attempt = buffer.popleft()
            if self._overdue and (attempt.id, attempt.run_lease) in self._overdue:
                self._give_back(attempt, now)
                continue
            task = tasks.get(attempt.kind)
            if task is None:
                self._unknown(attempt, now)
                continue
            try:
                args = task.decode(attempt.args)
            except Exception as error:  # noqa: BLE001  whatever a decoder raises, the args are what it cannot read
                self._refuse(attempt, ArgsRefused(describe(error)), now)
                continue
            running.start(attempt, queue, now)
            if kinds and attempt.kind in kinds:
                if told is None:
                    told = hooked.begin()
                told.append(started(attempt, at, default))
            self._out.append(StartJob(attempt, task, args, running.recordings))
        queue.moved_at = now
        self._watch_buffers(now)

    def _unknown(self, attempt: Attempt, now: float) -> None:
        if self._context.config.unknown_kinds == "fail":
            self._refuse(attempt, UnknownJobKind(f"unknown job kind: {attempt.kind}"), now)
            return
        self._running.deadlines.forget(attempt)
        self._context.report.warn(
            now, f"unknown kind: {attempt.kind}", "a job has no handler here and is put back",
            **about(attempt),
        )  # fmt: skip
        self._finalizer.add(attempt, Returned(Snooze(PUT_BACK)), now)

    def _refuse(self, attempt: Attempt, error: TerminalError, now: float) -> None:
        self._running.deadlines.forget(attempt)
        self._finalizer.add(attempt, Raised(error), now)

    # what waits too long, and what takes too long

    def _watch_buffers(self, now: float) -> None:
        """A lazy timer: it is set while something is buffered, and looks again when it is due."""
        timers = self._context.timers
        if timers.at(Timer.BUFFER) is None and any(queue.buffer for queue in self.queues.values()):
            timers.set(Timer.BUFFER, now + PATIENCE)

    def release_stuck(self, now: float) -> None:
        """Give back what was claimed ahead of handlers that turned out slow."""
        next_look = math.inf
        for queue in self.queues.values():
            if not queue.buffer:
                continue
            stuck = now - queue.moved_at
            if stuck >= PATIENCE:
                queue.slowed_down(stuck)
                self._release(queue, now, most=self._bound - self._finalizer.unwritten)
            if queue.buffer:
                next_look = min(next_look, max(queue.moved_at, now - PATIENCE / 2) + PATIENCE)
        if next_look < math.inf:
            self._context.timers.set(Timer.BUFFER, next_look)

    def _release(self, queue: ServedQueue, now: float, *, most: int) -> None:
        """Give back buffered jobs, the least urgent ones first."""
        for _ in range(min(most, len(queue.buffer))):
            self._give_back(queue.buffer.pop(), now)

    def _give_back(self, attempt: Attempt, now: float) -> None:
        self._overdue.discard((attempt.id, attempt.run_lease))
        self._running.deadlines.forget(attempt)
        self._finalizer.add(attempt, Ending.RELEASED, now)

    def cancelled(self, fence: Fence) -> None:
        """A person cancelled an attempt, which is thereby ended: nothing is written for it any more."""
        attempt = self._running.cancelled(fence)
        if attempt is not None:
            self._out.append(CancelJob(attempt, Reason.CANCELLED))
            return
        if self._asked:
            self._cancelled.add(fence)  # it may be among what the claim under way brings
        for queue in self.queues.values():
            for attempt in queue.buffer:
                if (attempt.id, attempt.run_lease) == fence:
                    queue.buffer.remove(attempt)
                    self._overdue.discard(fence)
                    self._running.deadlines.forget(attempt)
                    return

    def watch_deadlines(self) -> None:
        """Keep the timer at the next deadline."""
        at = self._running.deadlines.next()
        if at is not None:
            self._context.timers.set(Timer.DEADLINE, at)

    def end_overdue(self, now: float) -> None:
        """End attempts at their deadline; those that have not even started go back uncounted when their turn comes."""
        for attempt in self._running.deadlines.take_due(now):
            if self._running.overdue(attempt, now):
                self._out.append(CancelJob(attempt, Reason.DEADLINE))
                continue
            if attempt in self.queues[attempt.queue].buffer:
                self._overdue.add((attempt.id, attempt.run_lease))
        self.watch_deadlines()
