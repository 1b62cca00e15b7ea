"""A worker process of the simulated world: what a driver is around a machine, done in virtual time.

Handlers take as long as their job says, Ops as long as the faults say. After every turn the promises that hold at any
moment are checked.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, assert_never

from awa_proto.cron.registration import Periodic
from awa_proto.errors import DatabaseError
from awa_proto.followup import FollowUps
from awa_proto.intake import Intake
from awa_proto.job import Attempt
from awa_proto.options import EnqueueRequest
from awa_proto.outcome import Raised, Returned
from awa_proto.recording import Recording
from awa_proto.store import Claimed, Ended, Verdict, Verdicts
from awa_proto.testing.booked import BookedStore
from awa_proto.testing.claims import Broken, check
from awa_proto.testing.faults import Fault, refusal, silence
from awa_proto.testing.handlers import SCRIPTS, Script
from awa_proto.testing.heart import Heart
from awa_proto.testing.looks import LOOKS, Looks
from awa_proto.testing.simulator import FOLLOW_UPS, HOOKED, TASKS, Simulation, end_of, ending, follows, play
from awa_proto.worker.config import WorkerConfig
from awa_proto.worker.declare import NO_CRON
from awa_proto.worker.events import (
    Beat,
    CancelJob,
    Drained,
    Emit,
    Event,
    Happened,
    JobEnded,
    Lane,
    ListenLost,
    OpDone,
    OpFailed,
    RunOp,
    StartJob,
    StopAsked,
    Stopped,
    WaitAsked,
    WaitLeft,
    WaitOver,
    Woken,
)
from awa_proto.worker.worker import WorkerMachine

_ROUNDED = 1e-6
"""Seconds, more than what is lost where a clock that stood still is added and subtracted."""


class HandlerCancelled(BaseException):
    """What a native cancellation raises in a handler."""


@dataclass(slots=True)
class _Handler:
    attempt: Attempt
    is_stubborn: bool
    is_over: bool = False
    script: Script | None = None


class Process:
    """One worker process.

    handlers: those whose end the machine has not heard of. stopped: how it ended, when it did by itself. heart: the thread of
    its heartbeat, once it is registered. looks: what is asked and written for handlers that wait, and why.
    """

    def __init__(
        self,
        world: Simulation,
        config: WorkerConfig,
        number: int = 1,
        *,
        periodic: Mapping[str, Periodic] = NO_CRON,
        describe: Callable[[], Mapping[str, str]] = dict[str, str],
    ) -> None:
        self._world = world
        self._turn_is_due = False
        self._timer = 0
        self._timer_at = math.inf
        self._lanes: set[Lane] = set()
        self._is_half_open = False
        self._stuck_until = -math.inf
        self._frozen_until = -math.inf
        self._slept = 0.0
        self._missed: list[Callable[[], object]] = []
        self.number = number
        self.config = config
        self.store = BookedStore(world.time, world.random.random, shares=world.store, notified=self._notified)
        self.store.kept_for = config.retention
        self.machine = WorkerMachine(
            store=self.store,
            tasks=TASKS,
            config=config,
            random=world.random.random,
            hooked=HOOKED,
            follow_ups=FollowUps(FOLLOW_UPS, Intake(TASKS, world.time)),
            periodic=periodic,
            describe=describe,
        )
        self.inbox: list[Event] = []
        self.handlers: dict[tuple[int, int], _Handler] = {}
        self.drained: list[Any] = []
        self.stop_seen = False
        self.heart: Heart | None = None
        self.stopped: Stopped | None = None
        self.is_alive = True
        self.looks = Looks(config.poll_interval)
        self._claims: dict[int, Sequence[Attempt]] = {}
        self._is_claiming = False
        self._at_work: Counter[str] = Counter()
        self._is_changed = False
        slots = sum(queue.max_workers for queue in config.queues.values())
        self._most_unwritten = max(2 * slots, config.max_unwritten) + slots

    def start(self) -> Process:
        """The process starts."""
        self.machine.start(self.clock)
        self._perform()
        return self

    # its clock, and what holds it up

    @property
    def clock(self) -> float:
        """Its monotonic clock, which does not count while its host sleeps."""
        return self._world.now - self._slept

    def moment(self, clock: float) -> float:
        """When its clock shows that, or a little later."""
        return clock + self._slept + _ROUNDED if self._slept else clock

    @property
    def is_stuck(self) -> bool:
        """Whether its loop handles nothing."""
        return self._world.now < self._stuck_until

    def stick(self, seconds: float) -> None:
        """Something blocks its loop for so long. The heart beats on."""
        self._stuck_until = max(self._stuck_until, self._world.now + seconds)
        self._world.at(self._stuck_until, self._come_back)

    def freeze(self, seconds: float, *, sleeps: bool = False) -> None:
        """All of it stands still for so long. sleeps: its host does, so that its clock stands still too."""
        if self._world.now < self._frozen_until:
            return
        self._frozen_until = self._world.now + seconds
        self._stuck_until = max(self._stuck_until, self._frozen_until)
        self._world.at(self._frozen_until, partial(self._thaw, seconds if sleeps else 0.0))

    def goes_on(self, act: Callable[[], object]) -> bool:
        """Whether its threads run; what one of them was to do meanwhile is done when they do again."""
        if self._world.now < self._frozen_until:
            self._missed.append(act)
            return False
        return self.is_alive

    def _thaw(self, slept: float) -> None:
        self._slept += slept
        missed, self._missed = self._missed, []
        for act in missed:
            act()
        if self.heart is not None:
            self.heart.go_on()
        self._come_back()

    def _come_back(self) -> None:
        if not self.is_stuck and self.is_alive:
            self._timer_at = math.inf
            self.put()
            self._set_timer(self.machine.next_deadline())

    # the loop of a driver

    def put(self, *events: Event) -> None:
        """Something happened. A turn follows within the time a loop takes to come round."""
        self.inbox += events
        if not self._turn_is_due:
            self._turn_is_due = True
            self._world.at(self._world.now + self._world.loop_delay(), self._turn)

    def stop(self, grace: float) -> None:
        """It is asked to stop."""
        self.put(StopAsked(grace))

    def _turn(self) -> None:
        self._turn_is_due = False
        if not self.is_alive or self.stopped is not None or self.is_stuck:
            return
        events, self.inbox = self.inbox, []
        for event in events:
            if isinstance(event, StopAsked):
                self.stop_seen = True
            elif isinstance(event, JobEnded):
                self._is_changed = True
                if self.handlers.pop((event.attempt.id, event.attempt.run_lease), None) is not None:
                    self._at_work[event.attempt.queue] -= 1
            elif isinstance(event, OpDone) and event.id in self._claims:
                self._world.accounts.told(self._claims.pop(event.id))
            elif isinstance(event, OpFailed):
                self.looks.failed(event.id, self.clock)
        self.machine.handle(events, self.clock)
        self._perform()

    def _timeout(self, timer: int) -> None:
        if timer != self._timer or not self.is_alive or self.stopped is not None or self.is_stuck:
            return
        self._timer_at = math.inf
        due = self.machine.next_deadline()
        clock = self.clock
        if due is None or due > clock:
            self._set_timer(due)
            return
        self.machine.handle_timeout(clock)
        self._perform()
        deadline = self.machine.next_deadline()
        check(deadline is None or deadline > clock, "a timer that was handled is due again at once")

    def _perform(self) -> None:
        while (output := self.machine.poll_output()) is not None:
            check(self.stopped is None, "an output after Stopped")
            self._world.record(self.number, output)
            match output:
                case StartJob():
                    self._start(output)
                case RunOp():
                    self._run(output)
                case CancelJob():
                    self._cancel(output)
                case WaitOver():
                    self._wait_over(output)
                case Emit():
                    pass
                case Happened(events=told):
                    self._world.accounts.heard(self.number, told)
                case Beat(heartbeat=heartbeat):
                    self.heart = Heart(self._world, self, heartbeat)
                case Drained(token=token):
                    self.drained.append(token)
                case Stopped():
                    self._stopped(output)
                case _:
                    assert_never(output)
        self._check()
        if self.stopped is None:
            self._set_timer(self.machine.next_deadline())

    def _set_timer(self, deadline: float | None) -> None:
        """One timer: an earlier one that is set already will look again when it is due."""
        if deadline is not None and deadline < self._timer_at:
            self._timer += 1
            timer = self._timer
            self._timer_at = deadline
            self._world.at(max(self.moment(deadline), self._world.now), partial(self._timeout, timer))

    def _check(self) -> None:
        if self.stopped is not None:
            return
        if self._is_changed:
            self._is_changed = False
            for name, queue in self.machine.queues.items():
                if not queue.running == self._at_work[name] <= queue.slots:
                    raise Broken(f"{queue.running} of {queue.slots} slots in use, {self._at_work[name]} handlers run")
        if not self.stop_seen and self.machine.unwritten > self._most_unwritten:
            raise Broken(f"{self.machine.unwritten} results are unwritten, {self._most_unwritten} allowed")

    # handlers

    def _start(self, start: StartJob) -> None:
        check(not self.stop_seen, "a job was started after the stop")
        world, attempt, plan = self._world, start.attempt, start.args
        world.accounts.started(self.number, attempt)
        handler = _Handler(attempt, plan["stubborn"])
        self.handlers[attempt.id, attempt.run_lease] = handler
        self._at_work[attempt.queue] += 1
        self._is_changed = True
        if attempt.id % 5 == 0 or attempt.id % 7 == 0:
            start.recordings[attempt.id, attempt.run_lease] = _recorded(attempt)
        end = end_of(plan, world.accounts.runs[attempt.id])
        if end in SCRIPTS:
            handler.script = Script(world, self, start, end, partial(self._end, handler))
        else:
            world.at(world.now + plan["takes"], partial(self._end, handler, ending(end)))

    def _cancel(self, cancel: CancelJob) -> None:
        handler = self.handlers.get((cancel.attempt.id, cancel.attempt.run_lease))
        if handler is not None and handler.script is not None:
            handler.script.job.mark_cancelled(cancel.reason)
        if handler is not None and not handler.is_stubborn:
            after = 0.01 * self._world.random.random()
            self._world.at(self._world.now + after, partial(self._end, handler, Raised(HandlerCancelled())))

    def _end(self, handler: _Handler, how: Returned | Raised) -> None:
        if not handler.is_over and self.goes_on(partial(self._end, handler, how)):
            handler.is_over = True
            if handler.script is not None:
                handler.script.close()
            event = JobEnded(handler.attempt, how)
            self.put(event)
            if self._world.random.random() < self._world.faults.notice_twice:
                self.put(event)

    def carry(self, event: WaitAsked | WaitLeft) -> None:
        """A handler says that it waits, or waits no more."""
        self.looks.expected += 1
        self.put(event)

    def _wait_over(self, over: WaitOver) -> None:
        handler = self.handlers.get((over.attempt.id, over.attempt.run_lease))
        if handler is not None and handler.script is not None and not handler.is_over:
            handler.script.job.wait_over(over.result, over.callback_id)

    # lanes

    def _run(self, run: RunOp) -> None:
        world, name = self._world, run.op.name
        check(run.lane not in self._lanes, "two Ops at a time on one lane")
        check(not (name == "claim" and self.stop_seen), "a claim after the stop")
        self._lanes.add(run.lane)
        if name in LOOKS:
            self.looks.sent(run.id, self.clock)
        if run.lane is Lane.CLAIM:
            self._is_claiming = name in {"claim", "unknown"}
        ended, flush = self.store.flush_of(run.op)
        takes = world.takes(run.lane)
        answer = world.now + takes
        fault = world.interfere(self.number, run)
        if fault is None:
            fault = world.faults.strike(name, world.random)
        if run.lane is Lane.LISTEN and self._is_half_open:
            world.at(answer + 1.0, partial(self._failed, run, silence()))
        elif isinstance(fault, DatabaseError):
            world.at(answer, partial(self._failed, run, fault))
        elif fault is Fault.REFUSED_ENTRY:
            world.at(answer, partial(self._failed, run, refusal(world.random)))
        elif fault is Fault.DONE_LATER:
            world.at(answer, partial(self._failed, run, silence()))
            world.at(answer + takes * 3 * world.random.random(), partial(self._execute, run, fault, ended, flush))
        else:
            reached = world.now + takes * world.random.random()
            world.at(reached, partial(self._execute_and_answer, run, fault, ended, flush, answer))

    def _execute_and_answer(self, run: RunOp, fault: Fault, ended: Any, flush: int, at: float) -> None:
        world = self._world
        result = self._execute(run, fault, ended, flush)
        if isinstance(result, DatabaseError):
            world.at(at, partial(self._failed, run, result))
        elif fault in {Fault.ANSWER_LOST, Fault.HALF_DONE}:
            world.at(at, partial(self._failed, run, silence()))
        else:
            world.at(at, partial(self._done, run, result))

    def _execute(self, run: RunOp, fault: Fault, ended: Any, flush: int) -> Any:
        """The server does it."""
        world = self._world
        if run.lane is Lane.LISTEN and (not self.is_alive or fault is Fault.DONE_LATER):
            return None
        if run.op.name == "finalize":
            return self._execute_flush(ended, flush, fault)
        if run.op.name != "claim":
            try:
                return play(run.op)
            except DatabaseError as error:
                return error
        if fault is Fault.OUTRUN:
            return Claimed((), 1, world.time(), frozenset((queue, 0) for queue in self.config.queues))
        claimed: Claimed = play(run.op)
        world.accounts.claimed(self.number, claimed.attempts)
        return claimed

    def _execute_flush(self, ended: list[Ended], flush: int, fault: Fault) -> Verdicts | DatabaseError:
        if any(_is_poison(one) for one in ended):
            return DatabaseError("simulated: refused \0", "22P02")
        done = len(ended)
        if fault in {Fault.OUTRUN, Fault.HALF_DONE}:
            done = int(self._world.random.random() * len(ended))
        verdicts = play(self.store.finalize(ended[:done], flush))
        self._world.accounts.written(ended[:done], flush, verdicts)
        verdicts.extend([Verdict.AGAIN] * (len(ended) - done))
        return verdicts

    def _done(self, run: RunOp, result: Any) -> None:
        if self.is_alive:
            self._answered(run.lane)
            if run.op.name == "claim":
                self._claims[run.id] = result.attempts
            elif run.op.name == "unknown":
                self._claims[run.id] = result
            self.put(OpDone(run.id, result))
            world = self._world
            if world.random.random() < world.faults.deaf:
                self.go_deaf(is_noticed=world.random.random() < 0.5)
            if world.random.random() < world.faults.answer_twice:
                world.at(world.now + world.takes(run.lane), partial(self.put, OpDone(run.id, result)))

    def _failed(self, run: RunOp, error: DatabaseError) -> None:
        if self.is_alive:
            self._answered(run.lane)
            if run.lane is Lane.LISTEN:
                self._is_half_open = False
                self.store.disconnect()
            self.put(OpFailed(run.id, error))

    def _answered(self, lane: Lane) -> None:
        self._lanes.discard(lane)
        if lane is Lane.CLAIM:
            self._is_claiming = False

    # the listening connection

    def _notified(self, queue: str | None) -> None:
        faults, random = self._world.faults, self._world.random
        if self.is_alive and not self._is_half_open and random.random() >= faults.notice_lost:
            for _ in range(2 if random.random() < faults.notice_twice else 1):
                self.looks.expected += queue is not None and queue.startswith("^")
                self._world.at(self._world.now + faults.takes(random), partial(self.put, Woken(queue)))

    def go_deaf(self, *, is_noticed: bool) -> None:
        """The listening connection breaks; else nobody notices until something is sent on it."""
        self.store.disconnect()
        if is_noticed:
            self.put(ListenLost(silence()))
        else:
            self._is_half_open = True

    # the end

    def _stopped(self, stopped: Stopped) -> None:
        self.stopped = stopped
        self.store.disconnect()
        accounts = self._world.accounts
        left = tuple(sorted(handler.attempt.id for handler in self.handlers.values()))
        check(stopped.left_running == left, f"{stopped.left_running} are said to be left, {left} run")
        if stopped.clean:
            unfinished = accounts.unfinished(self.number)
            check(not self.machine.unwritten and not unfinished, f"a clean stop left {unfinished}")
            check(not self._is_claiming and not self._claims, "a clean stop left a claim under way")
            untold = accounts.untold(self.number)
            check(not untold, f"hooks were not told how {untold} ended")
        accounts.excuse(self.number, "stopped")
        self.is_alive = False

    def check_looks(self) -> None:
        """It has asked for what its handlers wait for no more often than there was reason to."""
        self.looks.check(self.clock)

    def die(self) -> None:
        """The process is killed."""
        self.is_alive = False
        self.store.disconnect()
        self._world.accounts.excuse(self.number, "killed")


def _recorded(attempt: Attempt) -> Recording:
    """What the handler of one in five, and of one in seven, has to say."""
    recording = Recording(attempt, None)
    if attempt.id % 5 == 0:
        recording.stage(follows(attempt.id), 1, EnqueueRequest({}))
    if attempt.id % 7 == 0:
        recording.set_progress(50, None)
    return recording


def _is_poison(one: Ended) -> bool:
    """Whether the database refuses this result: any of a poisoned job but the clean failure that stands in for it."""
    if one.attempt.extra is None or '"poison"' not in one.attempt.extra:
        return False
    entry = one.transition.entry
    return entry is None or not entry["error"].startswith(("ResultRefused", "rescued"))
