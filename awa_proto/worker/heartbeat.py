"""The heartbeat: a machine of its own, in a thread and with a connection of its own, so that nothing a handler does stops it.

A handler that blocks the event loop blocks the worker's machine, its claims and its results; the heart beats on, and nobody
takes its jobs. But a loop that never comes back would keep them for ever. So each beat asks the worker's machine for an
answer, and when there has been none for the stall limit, the beats stop until there is one.

what                                    | what becomes of it
----------------------------------------|-------------------------------------------------------------------------
every `heartbeat_interval`              | a beat; then what handlers newly said of their progress, in one statement
a beat fails                            | again after 0.5 s, doubling to half the interval
none got through for nearly stale_after | the worker claims and starts nothing: others would be given it at once
the worker's machine does not answer    | after `stall_limit` no more beats, said once; others will run its jobs
it answers again                        | beats again, said once; its late results are stale
the last result is written              | no more beats: the worker says itself that it leaves

Its owner is one thread, which gives it what happened and carries out what it says, as a driver does with the worker's
machine. What crosses between the two machines is in `Living`, and by the event `Pinged`.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from awa_proto.errors import DatabaseError, SchemaNotMigrated
from awa_proto.extra import compact
from awa_proto.plan import Op
from awa_proto.recording import Recording
from awa_proto.store import Progress, Store, WorkerInfo
from awa_proto.worker.backoff import Backoff
from awa_proto.worker.config import Liveness
from awa_proto.worker.events import Emit, Lane, OpDone, OpFailed, Ping, RunOp
from awa_proto.worker.report import Report

LEAST_PATIENCE: Final = 1.0
"""Seconds a beat may take at least, however short the interval is; else it may take as long as that."""


@dataclass(slots=True)
class Living:
    """What the two machines tell each other; each field is written by one thread and read by the other.

    recordings: what handlers that run have recorded, by (id, run_lease). answered: the newest ping the worker's machine has
    seen. has_left: it has written its last result, and leaves. is_silent: for so long no beat has got through that others
    are about to take the worker as dead. beaten_at: when the newest beat arrived, by the clock of the heartbeat; is_stalled: as
    the heartbeat's. failed: how often a beat, or the progress that goes with it, could not be written.
    """

    recordings: dict[tuple[int, int], Recording] = field(default_factory=dict[tuple[int, int], Recording])
    answered: int = 0
    has_left: bool = False
    is_silent: bool = False
    beaten_at: float | None = None
    is_stalled: bool = False
    failed: int = 0


class Heartbeat:
    """The machine. Drain `poll_output` after each of the other calls; `now` is a monotonic clock in seconds."""

    __slots__ = (
        "_backoff", "_due", "_info", "_instance", "_is_busy", "_living", "_number", "_out", "_pinged", "_pinged_at",
        "_random", "_report", "_said", "_settings", "_store",
    )  # fmt: skip

    def __init__(
        self,
        store: Store,
        settings: Liveness,
        random: Callable[[], float],
        instance: int,
        info: WorkerInfo,
        living: Living,
    ) -> None:
        self._store = store
        self._settings = settings
        self._random = random
        self._instance = instance
        self._info = info
        self._living = living
        self._out: deque[RunOp | Ping | Emit] = deque()
        self._report = Report(self._out)
        self._backoff = Backoff(min(0.5, settings.heartbeat_interval / 4), settings.heartbeat_interval / 2, random)
        self._due: float | None = None
        self._is_busy = False
        self._number = 0
        self._pinged = 0
        self._pinged_at = 0.0
        self._said: list[tuple[Recording, Mapping[str, Any]]] = []

    @property
    def is_stalled(self) -> bool:
        """Whether it has stopped beating because the worker's machine does not answer."""
        return self._living.is_stalled

    # what the thread calls

    def start(self, now: float) -> None:
        """Begin. The registration counts as the first beat."""
        self._living.beaten_at = now
        self._wait(now)

    def handle(self, event: OpDone | OpFailed, now: float) -> None:
        """The answer to the one Op that was asked for."""
        self._is_busy = False
        match event:
            case OpDone():
                self._done(now)
            case OpFailed(error=error):
                self._failed(error, now)

    def handle_timeout(self, now: float) -> None:
        """The time `next_deadline` named has come."""
        if self._due is None or now < self._due:
            return
        if self._living.has_left:
            self._due = None
            return
        self._wait(now)
        self._ask(now)
        if not self.is_stalled and not self._is_busy:
            self._said = []
            self._run(self._store.beat(self._instance, self._info))

    def poll_output(self) -> RunOp | Ping | Emit | None:
        """The next thing to do; None when all is said."""
        return self._out.popleft() if self._out else None

    def next_deadline(self) -> float | None:
        """When `handle_timeout` is to be called; None for never again."""
        return self._due

    # inside

    def _wait(self, now: float) -> None:
        self._due = now + self._settings.heartbeat_interval * (1 - 0.1 * self._random())

    def _ask(self, now: float) -> None:
        """Ping the worker's machine when it has answered the last one, and see how long it has not."""
        if self._living.answered >= self._pinged:
            if self.is_stalled:
                self._living.is_stalled = False
                self._report.recovered(
                    "stalled", "the worker's loop is alive again; what it ran meanwhile others may have run"
                )
            self._pinged += 1
            self._pinged_at = now
            self._out.append(Ping(self._pinged))
        elif not self.is_stalled and now - self._pinged_at >= self._settings.stall_limit:
            self._living.is_stalled = True
            self._report.warn(
                now, "stalled", "the worker's loop is stuck, so its heartbeat stops: other workers will run its jobs",
                instance=self._instance, seconds=round(now - self._pinged_at, 1),
            )  # fmt: skip

    def _run(self, op: Op[Any]) -> None:
        self._is_busy = True
        self._number += 1
        patience = max(self._settings.heartbeat_interval, LEAST_PATIENCE)
        self._out.append(RunOp(self._number, dataclasses.replace(op, timeout=patience), Lane.HEARTBEAT))

    def _done(self, now: float) -> None:
        if self._said:
            for recording, progress in self._said:
                recording.flushed(progress)
            self._said = []
            return
        self._living.beaten_at = now
        self._living.is_silent = False
        self._backoff.reset()
        self._report.recovered("heartbeat failed", "the heartbeat reaches the database again")
        recordings = tuple(self._living.recordings.values())  # at once: handlers in other threads add to them
        new = [(r, r.progress) for r in recordings if r.is_new]
        self._said = [(r, progress) for r, progress in new if progress is not None]
        if self._said:
            self._run(self._store.record_progress([Progress(r.attempt, compact(said)) for r, said in self._said]))

    def _failed(self, error: DatabaseError | SchemaNotMigrated, now: float) -> None:
        self._living.failed += 1
        if self._said:
            self._said = []
            self._report.warn(
                now, "progress unwritten", "the progress of running jobs could not be written; with the next beat again",
                error=str(error),
            )  # fmt: skip
            return
        self._due = min(now + self._backoff.next(), self._due or now)
        silent = now - (now if self._living.beaten_at is None else self._living.beaten_at)
        self._living.is_silent = silent >= self._settings.stale_after - self._settings.heartbeat_interval
        self._report.warn(
            now, "heartbeat failed", "the heartbeat does not reach the database; tried again", error=str(error)
        )
