"""Health: what a client and its workers know of how they are, as plain data.

A worker's part is read off its machine, without a question to anybody, so it is there when the database is not. A client's
part asks the database once; that it does not answer is part of the answer.

What is wrong is said in `problems`, in words; nothing there is healthy. What is merely slower, such as polling where
notifications do not arrive, is shown and is no problem. Counts only rise, by the names of the metrics, over all attributes:

count                    | of what
-------------------------|--------------------------------------------------------------------------------------------
awa.op.failed            | an Op failed; also by failure, `awa.op.failed: connection lost`
awa.op.retried           | an Op was sent again after it had failed
awa.database.reconnected | a connection was of use again after the database had been away for it
awa.listen.lost          | the listening connection broke
awa.claim.adopted        | an attempt came from a claim whose answer was lost
awa.heartbeat.failed     | a sign of life, or the progress that goes with it, could not be written; another comes soon
awa.result.stale         | somebody else had ended the attempt; its result was not written
awa.rescue               | this worker, leading, ended an attempt of another that was silent or overdue
awa.hook.dropped         | an event was told to no hook, since hooks were too slow
awa.job...               | what became of attempts, see the matrix of outcomes
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from awa_proto.contact import Contact
from awa_proto.errors import Failure
from awa_proto.worker.tally import FAILED_OPS, Tally

if TYPE_CHECKING:
    from awa_proto.worker.lifecycle import Phase


SILENT: Final = 30.0
"""Seconds without a sign of life after which a worker is not counted as alive here, whatever its own settings say."""
LEADERLESS: Final = 30.0
"""Seconds a worker may have lived without anybody leading; an election takes at most 17."""


@dataclass(frozen=True, slots=True)
class DatabaseHealth:
    """Whether the database answers.

    away_for: seconds since it stopped to; None while it does, and before it was asked. last_error: the newest failure, however
    long ago; failure: what it means; error_age: seconds since.
    """

    connected: bool
    away_for: float | None = None
    last_error: str | None = None
    failure: Failure | None = None
    error_age: float | None = None


@dataclass(frozen=True, slots=True)
class QueueHealth:
    """What a worker does for one queue: handlers that run, jobs claimed but not started."""

    running: int
    buffered: int
    slots: int
    paused: bool


@dataclass(frozen=True, slots=True)
class ListenHealth:
    """Whether notifications can arrive. polls_because: why the queues are polled instead."""

    is_listening: bool
    polls_because: str | None = None


@dataclass(frozen=True, slots=True)
class LeaderHealth:
    """The upkeep, which one worker of a schema does for all.

    leads: whether it is this one. leader: the instance it heard of last, None when nobody leads. term: how often another has
    begun to. failing: its duties whose newest run failed. unknown_kinds: those of jobs it has rescued that its code does not
    know, so that the hooks and follow-ups others have for them were not run; in the order they were met.
    """

    leads: bool
    leader: int | None
    term: int
    failing: tuple[str, ...] = ()
    unknown_kinds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HeartbeatHealth:
    """Whether others know that the worker lives.

    alive: its newest beat is younger than `stale_after`, so nobody takes its jobs. age: seconds since; None before it works.
    is_stalled: it has stopped because the worker's own loop is stuck.
    """

    alive: bool
    age: float | None
    is_stalled: bool


@dataclass(frozen=True, slots=True)
class WorkerHealth:
    """A worker, as it is now. instance: its number in the database. unwritten: results that are not there yet."""

    phase: Phase
    instance: int | None
    database: DatabaseHealth
    queues: Mapping[str, QueueHealth]
    unwritten: int
    listening: ListenHealth
    upkeep: LeaderHealth
    heartbeat: HeartbeatHealth
    counts: Mapping[str, int]
    problems: tuple[str, ...]

    @property
    def is_healthy(self) -> bool:
        """Whether there is no problem."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class InstanceHealth:
    """A worker as the database knows it. age: seconds since it began. silent_for: seconds since its last sign of life."""

    instance: int
    hostname: str
    pid: int
    version: str
    queues: tuple[str, ...]
    started_at: datetime
    age: float
    silent_for: float


@dataclass(frozen=True, slots=True)
class RingHealth:
    """The segments of queue storage, by state. opened_at: since when the open one takes new jobs."""

    free: int
    open: int
    sealed: int
    opened_at: datetime | None


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """What the database says.

    schema_version: the newest migration. read_only: it is a standby, or takes no writes. leader: the instance that does the
    upkeep; None when nobody does. instances: all workers that have not left in good order.
    """

    server_version: str
    schema_version: int
    read_only: bool
    leader: int | None
    instances: tuple[InstanceHealth, ...]
    ring: RingHealth


@dataclass(frozen=True, slots=True)
class Health:
    """A client of this process, its workers in it, and what the database says; None while that does not answer.

    hooks_dropped: events that no hook was told, since hooks were too slow.
    """

    database: DatabaseHealth
    store: StoreHealth | None
    workers: tuple[WorkerHealth, ...]
    hooks_dropped: int
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    problems: tuple[str, ...] = ()

    @property
    def is_healthy(self) -> bool:
        """Whether there is no problem."""
        return not self.problems


def database_health(contacts: Sequence[Contact], now: float, reached_at: float | None) -> DatabaseHealth:
    """Of several connections to one database. reached_at: when one was last of use; None when none ever was.

    One that found the database away, and has not been asked since, does not outweigh another that was of use after it.
    """
    away = [
        at for c in contacts if (at := c.away_since) is not None and (reached_at is None or reached_at <= c.error_at)
    ]
    failed = [(c.error_at, c.error) for c in contacts if c.error is not None]
    if not failed:
        return DatabaseHealth(reached_at is not None)
    at, error = max(failed, key=itemgetter(0))
    return DatabaseHealth(
        reached_at is not None and not away, now - min(away) if away else None, str(error), error.failure, now - at
    )


def counted(tally: Tally, *, failed_beats: int = 0) -> dict[str, int]:
    """The counts by metric, those of failed Ops by failure too. May be called from another thread than the one that counts.

    failed_beats: of the heartbeat, which another thread counts.
    """
    found: Counter[str] = Counter({"awa.heartbeat.failed": failed_beats} if failed_beats else {})
    for (metric, labels), times in dict(tally.counts).items():
        found[metric] += times
        if metric == FAILED_OPS:
            found[f"{metric}: {dict(labels)['awa.failure']}"] += times
    return dict(sorted(found.items()))


def problems_of_worker(
    phase: Phase, database: DatabaseHealth, upkeep: LeaderHealth, heartbeat: HeartbeatHealth
) -> tuple[str, ...]:
    """What is wrong with it, in words."""
    if phase in {"new", "stopped"}:
        return (f"the worker is {phase}",)
    found: list[str] = []
    if not database.connected:
        found.append(_away(database))
    if heartbeat.is_stalled:
        found.append("the worker's loop is stuck, so its heartbeat has stopped")
    elif heartbeat.age is not None and not heartbeat.alive:
        found.append(f"the heartbeat has not reached the database for {heartbeat.age:.0f} s")
    if upkeep.failing:
        found.append(f"upkeep fails: {', '.join(upkeep.failing)}")
    if upkeep.leads:
        found += [
            f"it leads and does not know the kind {kind!r}: hooks and follow-ups of rescued jobs are not run"
            for kind in upkeep.unknown_kinds
        ]
    return tuple(found)


def problems_of_client(
    database: DatabaseHealth,
    store: StoreHealth | None,
    workers: Iterable[WorkerHealth],
    wanted: int,
    unknown_kinds: Iterable[str] = (),
) -> tuple[str, ...]:
    """What is wrong, in words: with the database, the workers of the process, and what callbacks ended here.

    wanted: version of the schema. unknown_kinds: those of jobs that were ended by callbacks and that the client does not know.
    """
    found: list[str] = []
    if not database.connected or store is None:
        found.append(_away(database))
    else:
        found += _problems_of_store(store, wanted)
    for worker in workers:
        for problem in worker.problems:
            said = f"worker {worker.instance}: {problem}" if worker.instance is not None else problem
            if said not in found:
                found.append(said)
    found += [
        f"callbacks ended jobs of the kind {kind!r}, which this client does not know: hooks and follow-ups of it are not run"
        for kind in unknown_kinds
    ]
    return tuple(found)


def _problems_of_store(store: StoreHealth, wanted: int) -> list[str]:
    found: list[str] = []
    if store.read_only:
        found.append("the server is read-only")
    if store.schema_version != wanted:
        remedy = "run `awa migrate`" if store.schema_version < wanted else "upgrade the package awa-queue"
        found.append(f"the schema is at version {store.schema_version}, this code wants {wanted}: {remedy}")
    alive = [each for each in store.instances if each.silent_for < SILENT]
    if store.instances and not alive:
        silent = min(each.silent_for for each in store.instances)
        found.append(f"no worker gives a sign of life; the last one did {silent:.0f} s ago")
    if store.leader is None and any(each.age > LEADERLESS for each in alive):
        found.append("workers are alive, but none of them does the upkeep")
    if not store.ring.free:
        found.append("the ring is full: no segment can be emptied")
    return found


def _away(database: DatabaseHealth) -> str:
    if database.last_error is None:
        return "the database has not answered yet"
    return f"the database is of no use ({database.failure}): {' '.join(database.last_error.split())}"
