"""The worker machine: every decision of a worker, and nothing else.

It never reads a clock, never draws its own chance, never waits. A driver gives it what happened and the time, carries
out what it says, and asks when to come back:

    machine.start(now)
    while True:
        while (output := machine.poll_output()) is not None:
            perform(output)                                    # never inside handle
        events = inbox.take_all(until=machine.next_deadline())
        machine.handle(events, now()) if events else machine.handle_timeout(now())

It is one object made of components, each with its own file, its own table, and one or two timers:

component   | decides                                        | timers
------------|------------------------------------------------|-------------------
lifecycle   | phases: registration, stages of the stop       | REGISTER, STOP
dispatch    | claims and starts (served: how much, and when) | CLAIM, BUFFER
waits       | handlers that wait for callbacks               | WAIT
adopt       | what claims took whose answers were lost       | ADOPT
running     | slots in use, one end per attempt              | DEADLINE
finalize    | batches of results, sent until they are in     | FLUSH
promote     | deferred jobs                                  | PROMOTE
survey      | segments, pauses, stripes                      | SURVEY
listen      | notifications: announce, withdraw, probe       | LISTEN
heartbeat   | signs of life, and progress: in its own thread | its own
declare     | what the code says of kinds and cron jobs      | DECLARE
leader      | whether this worker does the upkeep (upkeep)   | LEAD, UPKEEP
drain       | whether there is nothing left to do            |

After each input every component settles, in order of dependence, so events that arrived together are one input: fifty
handlers that ended become one flush and one claim. After `Stopped` every input is ignored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import assert_never

from awa_proto.cron.registration import Periodic
from awa_proto.errors import DatabaseError
from awa_proto.followup import FollowUps
from awa_proto.health import (
    HeartbeatHealth,
    LeaderHealth,
    ListenHealth,
    QueueHealth,
    WorkerHealth,
    counted,
    database_health,
    problems_of_worker,
)
from awa_proto.job import Attempt
from awa_proto.store import Registration, Store
from awa_proto.task import Task
from awa_proto.worker.adopt import Adopter
from awa_proto.worker.clock import DatabaseClock
from awa_proto.worker.config import WorkerConfig
from awa_proto.worker.context import Context
from awa_proto.worker.declare import NO_CRON, Declarer
from awa_proto.worker.dispatch import Dispatcher
from awa_proto.worker.drain import Drain
from awa_proto.worker.duties import duties
from awa_proto.worker.events import (
    Beat,
    DrainAsked,
    Event,
    JobEnded,
    Lane,
    ListenLost,
    ListenOpened,
    OpDone,
    OpFailed,
    Output,
    Pinged,
    StopAsked,
    WaitAsked,
    WaitLeft,
    Woken,
)
from awa_proto.worker.finalize import Finalizer
from awa_proto.worker.happened import Hooked
from awa_proto.worker.heartbeat import Heartbeat
from awa_proto.worker.lanes import Lanes
from awa_proto.worker.leader import Leader
from awa_proto.worker.lifecycle import Lifecycle, Phase
from awa_proto.worker.listen import Line, Listener
from awa_proto.worker.promote import Promoter
from awa_proto.worker.report import DEBUG, Report, about
from awa_proto.worker.rescue import OF_CALLBACKS
from awa_proto.worker.running import Running
from awa_proto.worker.served import ServedQueue
from awa_proto.worker.survey import Surveyor
from awa_proto.worker.tally import Tally
from awa_proto.worker.timers import Timer, Timers
from awa_proto.worker.upkeep import Upkeep
from awa_proto.worker.waits import Waiter


class WorkerMachine:
    """A worker without I/O. One owner calls it; everybody else puts events in the owner's inbox."""

    __slots__ = (
        "_adopter", "_context", "_declarer", "_dispatcher", "_drain", "_finalizer", "_lanes", "_leader", "_lifecycle",
        "_listener", "_living", "_out", "_promoter", "_queues", "_report", "_rings", "_running", "_surveyor", "_tally",
        "_timers", "_upkeep", "_waiter",
    )  # fmt: skip

    def __init__(
        self,
        *,
        store: Store,
        tasks: Mapping[str, Task],
        config: WorkerConfig,
        random: Callable[[], float],
        hooked: Collection[str] = (),
        follow_ups: FollowUps | None = None,
        periodic: Mapping[str, Periodic] = NO_CRON,
        describe: Callable[[], Mapping[str, str]] = dict[str, str],
    ) -> None:
        """A worker that has not started.

        Args:
            store: The Ops of the engine.
            tasks: The handlers, by kind.
            config: Queues and intervals.
            random: Floats in [0, 1): jitter, back-off, flush numbers.
            hooked: The kinds that have hooks, as they are now and as they become.
            follow_ups: Makes those that are registered.
            periodic: The cron jobs that the code declares, by name, as they are now and as they become.
            describe: What people are told of each kind, as JSON text.
        """
        self._out: deque[Output] = deque()
        self._tally = Tally()
        self._lanes = Lanes(self._out, store.replan, self._tally)
        self._lanes.silence = (config.liveness.stale_after - config.liveness.heartbeat_interval) / 2
        self._timers = Timers()
        self._report = Report(self._out)
        self._context = Context(
            store, config, random, self._lanes, self._timers, self._report, DatabaseClock(), Hooked(hooked, self._out),
            follow_ups or FollowUps.none(), self._tally,
        )  # fmt: skip
        self._context.kinds = tasks
        self._queues = {
            name: ServedQueue(name, queue, config.poll_interval, random) for name, queue in config.queues.items()
        }
        self._finalizer = Finalizer(self._context)
        self._living = self._context.living
        self._running = Running(self._finalizer, self._living.recordings)
        self._dispatcher = Dispatcher(self._context, self._out, tasks, self._queues, self._finalizer, self._running)
        self._adopter = Adopter(self._context, self._dispatcher, self._finalizer, self._running)
        self._waiter = Waiter(self._context, self._out, self._running, self._dispatcher.watch_deadlines)
        self._surveyor = Surveyor(self._context, self._dispatcher)
        self._promoter = Promoter(self._context, self._dispatcher, self._finalizer, lambda: self._leader.leads)
        self._listener = Listener(self._context, self._queues)
        self._declarer = Declarer(self._context, periodic, tasks, describe)
        self._upkeep = Upkeep(self._context, duties(self._context, self._dispatcher.cancelled))
        self._leader = Leader(self._context, self._upkeep)
        self._drain = Drain(
            self._out, self._queues, self._dispatcher, self._finalizer, self._running, self._promoter, self._surveyor
        )
        self._lifecycle = Lifecycle(
            self._context, self._out, self._dispatcher, self._finalizer, self._running, self._living,
            on_open=self._open, on_close=self._close, on_stopped=self._drain.answer,
        )  # fmt: skip

        self._rings: dict[Timer, Callable[[float], None]] = {
            Timer.STOP: self._lifecycle.time_is_up,
            Timer.DEADLINE: self._dispatcher.end_overdue,
            Timer.FLUSH: _settles,
            Timer.REGISTER: lambda _: self._lifecycle.register(),
            Timer.BUFFER: self._dispatcher.release_stuck,
            Timer.CLAIM: _settles,
            Timer.PROMOTE: self._promoter.ask,
            Timer.SURVEY: self._surveyor.ask,
            Timer.LISTEN: self._listener.tick,
            Timer.ADOPT: lambda _: self._adopter.ask(),
            Timer.LEAD: self._leader.ask,
            Timer.DECLARE: self._declarer.look,
            Timer.UPKEEP: self._upkeep.tick,
            Timer.WAIT: self._waiter.tick,
        }

    # what a driver calls

    def start(self, now: float) -> None:
        """Begin: register, then work. Once."""
        self._lanes.now = now
        self._lifecycle.start()

    def handle(self, events: Sequence[Event], now: float) -> None:
        """Everything that was in the inbox, in the order it arrived."""
        if self._lifecycle.is_stopped:
            return
        self._lanes.now = now
        ended = self._running.ended
        for event in events:
            if type(event) is JobEnded:
                if not ended(event, now):
                    self._report.tell(
                        DEBUG, "late end", "a handler ended that was not known to run", **about(event.attempt)
                    )
            else:
                self._hear(event, now)
        if not self._lifecycle.is_stopped:
            self._settle(now)

    def handle_timeout(self, now: float) -> None:
        """The time `next_deadline` named has come."""
        if self._lifecycle.is_stopped:
            return
        self._lanes.now = now
        for timer in self._timers.take_due(now):
            self._rings[timer](now)
        if not self._lifecycle.is_stopped:
            self._settle(now)

    def poll_output(self) -> Output | None:
        """The next thing to do; None when all is said."""
        return self._out.popleft() if self._out else None

    def next_deadline(self) -> float | None:
        """When `handle_timeout` is to be called, unless events come first."""
        return self._timers.next()

    # what health shows

    @property
    def phase(self) -> Phase:
        """Where in its life the worker is."""
        return self._lifecycle.phase

    @property
    def instance(self) -> int | None:
        """The number registration gave; None before."""
        return self._lifecycle.instance

    @property
    def queues(self) -> dict[str, QueueHealth]:
        """What is being done, per queue."""
        return {
            name: QueueHealth(queue.running, len(queue.buffer), queue.slots, queue.paused)
            for name, queue in self._queues.items()
        }

    @property
    def running(self) -> list[Attempt]:
        """The attempts whose handlers run and that have not been ended."""
        return self._running.attempts

    @property
    def unwritten(self) -> int:
        """Results that are not in the database yet."""
        return self._finalizer.unwritten

    @property
    def tally(self) -> Tally:
        """What it has counted."""
        return self._tally

    @property
    def leads(self) -> bool:
        """Whether it does the upkeep."""
        return self._leader.leads

    @property
    def is_listening(self) -> bool:
        """Whether notifications can arrive."""
        return self._listener.line is Line.OPEN

    @property
    def last_error(self) -> DatabaseError | None:
        """The newest failure of an Op, however long ago."""
        return self._context.last_error

    def health(self, now: float, heart: float) -> WorkerHealth:
        """How it is. May be called from any thread.

        now: by the clock of the machine's own loop. heart: by that of the heartbeat's thread.
        """
        lanes, living, listener = self._lanes, self._living, self._listener
        closed = None if listener.error is None else " ".join(str(listener.error).split())
        beaten_at, leads = living.beaten_at, self._leader.leads
        own = [lane for lane in Lane if lane is not Lane.LISTEN and (leads or lane is not Lane.UPKEEP)]
        database = database_health([lanes.contacts[lane] for lane in own], now, lanes.reached_at)
        upkeep = LeaderHealth(
            leads,
            self._leader.leader,
            self._leader.term,
            tuple(self._upkeep.failing) if leads else (),
            tuple(self._context.unknown_kinds),
        )
        heartbeat = HeartbeatHealth(
            beaten_at is not None and heart - beaten_at < self._context.config.liveness.stale_after,
            None if beaten_at is None else heart - beaten_at,
            living.is_stalled,
        )
        return WorkerHealth(
            self.phase,
            self.instance,
            database,
            self.queues,
            self.unwritten,
            ListenHealth(self.is_listening, None if self.is_listening else closed or "it is not connected yet"),
            upkeep,
            heartbeat,
            counted(self._tally, failed_beats=living.failed),
            problems_of_worker(self.phase, database, upkeep, heartbeat),
        )

    # inside

    def _hear(self, event: Event, now: float) -> None:
        match event:
            case OpDone(id=id, result=result):
                self._lanes.done(id, result, now)
            case OpFailed(id=id, error=error):
                self._lanes.failed(id, error, now)
            case Woken(queue=name):
                self._woken(name, now)
            case ListenLost(error=error):
                self._listener.lost(error, now)
            case ListenOpened(pid=pid):
                self._listener.opened(pid)
            case StopAsked(grace=grace, at_once=at_once):
                self._lifecycle.stop(grace, now, at_once=at_once)
            case DrainAsked(token=token):
                self._drain.ask(token, now)
            case WaitAsked():
                self._waiter.ask(event, now)
            case WaitLeft():
                self._waiter.leave(event, now)
            case Pinged(number=number):
                self._living.answered = number
            case JobEnded():
                self._running.ended(event, now)
            case _:
                assert_never(event)

    def _woken(self, name: str | None, now: float) -> None:
        if name is None:
            self._promoter.look(now, after_hint=True)
            for queue in self._queues.values():
                queue.wake(now)
        elif name in self._queues:
            self._queues[name].hear(now)
        elif self._listener.hears(name, now):
            return
        elif (fence := Woken.cancelled_attempt(name)) is not None:
            self._dispatcher.cancelled(fence)
            return
        elif (fence := Woken.resumed_attempt(name)) is not None:
            self._waiter.woken(fence)
            return
        elif (seconds := Woken.callback_due_in(name)) is not None:
            self._upkeep.hint(OF_CALLBACKS, now + seconds)
            return
        self._surveyor.woken(name, now)

    def _settle(self, now: float) -> None:
        self._adopter.settle(now)
        self._dispatcher.settle(now)
        self._finalizer.settle(now)
        self._waiter.settle(now)
        self._promoter.settle(now)
        self._surveyor.settle(now)
        self._listener.settle()
        self._drain.settle()
        self._lifecycle.settle(now)

    def _open(self, registration: Registration, now: float) -> None:
        self._dispatcher.open(registration.instance, registration.ring)
        self._adopter.open(registration.instance)
        self._surveyor.open(registration.queues, now)
        self._promoter.open(now)
        self._listener.open()
        context, instance = self._context, registration.instance
        self._out.append(
            Beat(
                Heartbeat(
                    context.store, context.config.liveness, context.random, instance, context.config.info, self._living
                )
            )
        )
        self._declarer.open(now)
        self._leader.open(registration.instance, now)

    def _close(self, now: float) -> None:
        self._dispatcher.close(now)
        self._adopter.close()
        self._surveyor.close()
        self._promoter.close()
        self._declarer.close()
        self._leader.close()
        self._listener.close()


def _settles(_: float) -> None:
    """What such a timer is for is done by settling, as after every input."""
