"""The model: a Store without a database, to read and to compare with.

One dictionary of jobs and one of claims, and every Op acts when it is run, in one indivisible step. What an engine does
with logs, cursors and segments must look like this from outside. What a database adds (transactions that commit late,
turns lost to another worker) is not here: no claim and no closure is ever told *again*.

A job is claimed in the order: effective priority = max(1, priority - floor(waiting / aging)), then run_at, then
priority, then id. An attempt is known by (claim_id, idx) and fenced by run_lease; it ends once, by the first flush that
lists it, and the same flush may be sent again.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from awa_proto import extra as extras
from awa_proto.cron.job import BEFORE_FIRST, CronJob, CronTemplate, Fire
from awa_proto.cron.registration import digest
from awa_proto.cron.schedule import Schedule
from awa_proto.errors import UniqueConflict, ValidationError
from awa_proto.health import InstanceHealth, RingHealth, StoreHealth
from awa_proto.job import PARKED, Attempt, DlqCursor, JobPage, JobRow, JobState
from awa_proto.outcome import DeadLetter
from awa_proto.plan import Op, Plan
from awa_proto.store import (
    EXPIRY_HINT,
    PROMOTE_HINT,
    Callback,
    Called,
    Cancelled,
    Claimed,
    Demand,
    Ended,
    ExpiredPage,
    Forgotten,
    JobFilter,
    KindInfo,
    NewJob,
    Place,
    Progress,
    Promoted,
    QueueSettings,
    QueueStat,
    Registered,
    Registration,
    Ring,
    Selection,
    Stranded,
    StrandedPage,
    Verdict,
    Verdicts,
    Wait,
    Waited,
    Waits,
    WorkerInfo,
)
from awa_proto.store.upkeep import Leadership, Probe, Pruned, Rotation
from awa_proto.unique import keeps_out, must_win_after_waiting, must_win_again, refuse_repeated

T = TypeVar("T")

DEFERRED = frozenset({JobState.SCHEDULED, JobState.RETRYABLE})
_FAILED = frozenset({JobState.FAILED, JobState.CANCELLED})
_WAITING = DEFERRED | {JobState.AVAILABLE, JobState.WAITING_EXTERNAL}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BY_A_PERSON = -1
"""The flush of a closure that no worker wrote."""


def _op(name: str, act: Callable[[], T], *, atomic: bool = False, safe_to_retry: bool = False) -> Op[T]:
    def plan() -> Plan[T]:
        yield from ()
        return act()

    return Op(name, plan, atomic=atomic, safe_to_retry=safe_to_retry)


@dataclass(slots=True)
class MemoryJob:
    """A job as this store keeps it.

    recorded: the progress that its attempt has flushed. claim: while it runs, the number of its claim and its place there.
    deadline_at: without the seconds that its handler has `waited`.
    """

    id: int
    kind: str
    queue: str
    args: str
    state: JobState
    priority: int
    max_attempts: int
    run_at: datetime
    created_at: datetime
    extra: str | None
    stripe: int
    attempt: int = 0
    run_lease: int = 0
    attempted_at: datetime | None = None
    deadline_at: datetime | None = None
    waited: float = 0.0
    finalized_at: datetime | None = None
    output: str | None = None
    recorded: str | None = None
    dlq_reason: str | None = None
    dlq_at: datetime | None = None
    claim: tuple[int, int] | None = None
    callback: _Callback | None = None


@dataclass(slots=True)
class _Callback:
    """What a job's newest attempt has registered."""

    id: str
    timeout_at: datetime
    expressions: str | None
    waits: Waits = Waits.REGISTERED
    waits_since: datetime | None = None
    result: str | None = None


@dataclass(slots=True)
class _Claim:
    """Jobs taken together. closed: index -> the flush that ended it. duplicates: those it cancelled as such."""

    instance: int
    lease: int
    jobs: list[int]
    closed: dict[int, int] = field(default_factory=dict[int, int])
    duplicates: set[int] = field(default_factory=set[int])


@dataclass(slots=True)
class _Listening:
    """A listening connection: what hears its notifications, and the queues its worker sleeps on."""

    notified: Callable[[str | None], object]
    asleep: frozenset[str] = frozenset()
    is_open: bool = False


@dataclass(slots=True)
class _Tables:
    jobs: dict[int, MemoryJob] = field(default_factory=dict[int, MemoryJob])
    claims: dict[int, _Claim] = field(default_factory=dict[int, _Claim])
    settings: dict[str, QueueSettings] = field(default_factory=dict[str, QueueSettings])
    workers: dict[int, WorkerInfo] = field(default_factory=dict[int, WorkerInfo])
    beats: dict[int, datetime] = field(default_factory=dict[int, datetime])
    available: dict[str, set[int]] = field(default_factory=dict[str, set[int]])
    deferred: set[int] = field(default_factory=set[int])
    last_id: int = 0
    last_instance: int = 0
    ring: Ring = field(default_factory=lambda: Ring(1))
    keys: dict[bytes, tuple[int, int]] = field(default_factory=dict[bytes, tuple[int, int]])
    listening: list[_Listening] = field(default_factory=list[_Listening])
    leader: int | None = None
    term: int = 0
    led_until: datetime | None = None
    kinds: dict[str, KindInfo] = field(default_factory=dict[str, KindInfo])
    cron: dict[str, tuple[CronJob, str | None]] = field(default_factory=dict[str, tuple[CronJob, str | None]])


class MemoryStore:
    """A Store in memory.

    clock: database time, aware. random: floats in [0, 1), which spread jobs without an ordering key over stripes.
    shares: a store whose tables this one uses too. notified: what the listening connection of this one's worker calls
    with the payload of a notification (None: all queues); without it nothing is heard.
    """

    keeps_outputs = True

    def __init__(
        self,
        clock: Callable[[], datetime],
        random: Callable[[], float],
        *,
        shares: MemoryStore | None = None,
        notified: Callable[[str | None], object] | None = None,
    ) -> None:
        self._clock = clock
        self._random = random
        self._tables: _Tables = _Tables() if shares is None else shares._tables  # noqa: SLF001  it is the same class
        self._listening = None if notified is None else _Listening(notified)
        if self._listening is not None:
            self._tables.listening.append(self._listening)

    # the listening connection

    def disconnect(self) -> None:
        """The listening connection is gone, and with it what was announced on it."""
        if self._listening is not None:
            self._listening.is_open = False
            self._listening.asleep = frozenset()

    def announce(self, queues: Sequence[str], held: Sequence[str] = ()) -> Op[None]:  # noqa: ARG002  it knows
        """Say that this worker sleeps and wants to be woken for these queues."""
        return _op("announce", lambda: self._sleep(frozenset(queues)), safe_to_retry=True)

    def withdraw(self) -> Op[int | None]:
        """Say that it is awake again."""
        return _op("withdraw", lambda: self._sleep(frozenset()), safe_to_retry=True)

    def echo(self, payload: str) -> Op[None]:  # noqa: ARG002
        """Nobody is between a worker and this store, so nobody asks."""
        return _op("echo", lambda: None, safe_to_retry=True)

    def _sleep(self, queues: frozenset[str]) -> None:
        """Runs on the listening connection, which is opened for it when there is none."""
        if self._listening is not None:
            self._listening.is_open = True
            self._listening.asleep = queues

    def _wake(self, queues: Iterable[str], *, hint: bool = False) -> None:
        """NOTIFY about queues that somebody sleeps on. hint: not of work, but of a job that is due soon."""
        for queue in sorted(queues):
            if any(queue in listening.asleep for listening in self._tables.listening):
                self._tell(None if hint else queue)

    def _tell(self, payload: str | None) -> None:
        """NOTIFY: whoever listens hears it, asleep or not."""
        for listening in self._tables.listening:
            if listening.is_open:
                listening.notified(payload)

    # enqueue

    def insert(self, jobs: Sequence[NewJob], *, notify: bool = True, skip: bool = False) -> Op[list[JobRow]]:
        """Enqueue; the rows come back in the order given. skip: of a job whose key is taken, the row of the one it has."""

        def act() -> list[JobRow]:
            made = self._insert(jobs, notify, skip)
            return [self._row(job) if new else replace(self._whole(job), existed=True) for job, new in made]

        return _op("insert", act)

    def copy(self, jobs: Iterable[NewJob], *, notify: bool = True, skip: bool = False) -> Op[int]:
        """Enqueue many. Returns how many."""
        return _op("enqueue_many", lambda: sum(new for _, new in self._insert(tuple(jobs), notify, skip)), atomic=True)

    def _insert(self, jobs: Sequence[NewJob], notify: bool, skip: bool) -> list[tuple[MemoryJob, bool]]:
        """A job for each, and whether it is new. Raises UniqueConflict before anything is written."""
        if not skip:
            refuse_repeated(jobs)
            for index, new in enumerate(jobs):
                if new.unique is not None and (held := self._held_by_another(new.unique.key)) is not None:
                    raise UniqueConflict(held, index)
        now = self._clock()
        tables = self._tables
        found: list[tuple[MemoryJob, bool]] = []
        alike: dict[bytes, MemoryJob] = {}
        for new in jobs:
            if new.unique is not None:
                if new.unique.key in alike:
                    found.append((alike[new.unique.key], False))
                    continue
                if (held := self._held_by_another(new.unique.key)) is not None:
                    found.append((tables.jobs[held], False))
                    alike[new.unique.key] = tables.jobs[held]
                    continue
                tables.keys[new.unique.key] = tables.last_id + 1, new.unique.states
            due = new.run_at is None or new.run_at <= now
            job = MemoryJob(
                id=tables.last_id + 1,
                kind=new.kind,
                queue=new.queue,
                args=new.args,
                state=JobState.AVAILABLE if due else JobState.SCHEDULED,
                priority=new.priority,
                max_attempts=new.max_attempts,
                run_at=(new.run_at or now).astimezone(UTC),
                created_at=now,
                extra=new.extra,
                stripe=self._stripe(new.queue, int(self._random() * 2**31) if new.ordering is None else new.ordering),
            )
            tables.last_id = job.id
            tables.jobs[job.id] = job
            self._index(job)
            found.append((job, True))
            if new.unique is not None:
                alike[new.unique.key] = job
        if notify:
            made = [job for job, is_new in found if is_new]
            self._wake({job.queue for job in made if job.state is JobState.AVAILABLE})
            soon = now + timedelta(seconds=PROMOTE_HINT)
            self._wake({job.queue for job in made if job.state is JobState.SCHEDULED and job.run_at < soon}, hint=True)
        return found

    def _wins_again(self, job: MemoryJob, to: JobState) -> bool:
        """Whether a job may go to a state; it has its key then, if that matters in this state."""
        unique = extras.unique_of(job.extra)
        if unique is not None and keeps_out(unique[1], to):
            key, states = unique
            if self._held_by_another(key, job.id) is not None:
                return False
            self._tables.keys[key] = job.id, states
        return True

    def _held_by_another(self, key: bytes, id: int = 0) -> int | None:
        """The job that has a key and keeps the job `id` out, in whatever state that one is."""
        holder, states = self._tables.keys.get(key, (id, 0))
        job = self._tables.jobs.get(holder)
        return None if job is None or holder == id or not keeps_out(states, job.state) else holder

    def _stripe(self, queue: str, ordering: int) -> int:
        """Where a job goes when it is written; more stripes later do not move it."""
        return ordering % self._tables.settings.get(queue, QueueSettings()).stripes

    # the worker

    def register(self, worker: WorkerInfo) -> Op[Registration]:
        """Introduce a worker."""

        def act() -> Registration:
            tables = self._tables
            tables.last_instance += 1
            tables.workers[tables.last_instance] = worker
            tables.beats[tables.last_instance] = self._clock()
            return Registration(tables.last_instance, tables.ring, self._settings(worker.queues), self._clock())

        return _op("register", act, safe_to_retry=True)

    def unregister(self, instance: int) -> Op[None]:
        """A worker left in good order."""

        def act() -> None:
            self._tables.workers.pop(instance, None)
            self._tables.beats.pop(instance, None)

        return _op("unregister", act, safe_to_retry=True)

    def survey(self, queues: Sequence[str], *, glance: bool = False) -> Op[tuple[Ring, Mapping[str, QueueSettings]]]:  # noqa: ARG002
        """The ring and the settings of the queues."""
        return _op("survey", lambda: (self._tables.ring, self._settings(queues)), safe_to_retry=True)

    def _settings(self, queues: Sequence[str]) -> dict[str, QueueSettings]:
        return {queue: self._tables.settings[queue] for queue in queues if queue in self._tables.settings}

    def claim(self, instance: int, ring: Ring, demands: Sequence[Demand], *, advance: bool = False) -> Op[Claimed]:  # noqa: ARG002  no logs, so nothing to walk over
        """Take the best jobs of each queue; nothing of a paused one."""

        def act() -> Claimed:
            now = self._clock()
            attempts = [attempt for demand in demands for attempt in self._claim(instance, demand, now)]
            return Claimed(attempts, self._tables.ring.version, now)

        return _op("claim", act)

    def _claim(self, instance: int, demand: Demand, now: datetime) -> list[Attempt]:
        tables = self._tables
        if tables.settings.get(demand.queue, QueueSettings()).paused:
            return []
        jobs = (tables.jobs[job_id] for job_id in tables.available.get(demand.queue, ()))
        mine = [job for job in jobs if job.stripe == demand.stripe]
        best = heapq.nsmallest(demand.wanted, mine, key=lambda job: _urgency(job, demand.aging, now))
        lanes: dict[int, tuple[int, _Claim]] = {}
        attempts: list[Attempt] = []
        for priority in sorted({job.priority for job in best}):
            lane = [job for job in best if job.priority == priority]
            lanes[priority] = self._new_claim(instance, lane, now)
        for job in best:
            claim_id, claim = lanes[job.priority]
            attempts.append(self._taken(job, claim_id, claim, now, demand.deadline))
        return attempts

    def claim_one(
        self,
        instance: int,
        *,
        id: int | None = None,
        kind: str | None = None,
        queue: str | None = None,
        early: bool = False,
    ) -> Op[Claimed | None]:
        """Take the best job that meets every condition, due ones first."""

        def act() -> Claimed | None:
            tables, now = self._tables, self._clock()
            found = [
                (max(job.run_at, now) if job.state in DEFERRED else now, job.priority, job.run_at, job.id)
                for job in tables.jobs.values()
                if (job.state is JobState.AVAILABLE or (job.state in DEFERRED and (early or job.run_at <= now)))
                and _matches(job, JobFilter(kind=kind, queue=queue))
                and (id is None or job.id == id)
                and not tables.settings.get(job.queue, QueueSettings()).paused
            ]
            if not found:
                return None
            job = tables.jobs[min(found)[-1]]
            return Claimed([self._taken(job, *self._new_claim(instance, [job], now), now)], tables.ring.version, now)

        return _op("claim_one", act)

    def _new_claim(self, instance: int, jobs: Sequence[MemoryJob], now: datetime) -> tuple[int, _Claim]:
        """A claim of jobs of a lane, and its number."""
        lease = max(max(job.run_lease for job in jobs) + 1, (now - _EPOCH) // timedelta(microseconds=1))
        claim = _Claim(instance, lease, [job.id for job in jobs])
        number = len(self._tables.claims) + 1
        self._tables.claims[number] = claim
        return number, claim

    def _taken(
        self, job: MemoryJob, claim_id: int, claim: _Claim, now: datetime, deadline: float | None = None
    ) -> Attempt:
        """A job as part of a claim."""
        self._unindex(job)
        job.state = JobState.RUNNING
        job.attempt += 1
        job.run_lease = claim.lease
        job.attempted_at = now
        job.finalized_at = None
        seconds = extras.decode(job.extra).get("deadline", deadline)
        job.deadline_at = None if seconds is None else now + timedelta(seconds=seconds)
        job.waited = 0.0
        job.claim = claim_id, claim.jobs.index(job.id)
        return _attempt(job)

    def finalize(self, ended: Sequence[Ended], flush: int) -> Op[Verdicts]:
        """End attempts, each at most once."""

        def act() -> Verdicts:
            before = len(self._tables.jobs)
            # of attempts with one unique key that go back, the newest job has the first word
            back = [i for i, e in enumerate(ended) if must_win_again(e.attempt.extra, e.transition.to)]
            back.sort(key=lambda i: -ended[i].attempt.id)
            found = {i: self._end(ended[i], flush) for i in (*sorted(set(range(len(ended))) - set(back)), *back)}
            verdicts = Verdicts(found[i] for i in range(len(ended)))
            verdicts.inserted = len(self._tables.jobs) - before
            return verdicts

        return _op("finalize", act, safe_to_retry=True)

    def _end(self, ended: Ended, flush: int) -> Verdict:
        attempt, transition = ended.attempt, ended.transition
        may_end = ended.called is None or self._is_callable(attempt, ended.called)
        if attempt.segment == PARKED:
            if not may_end:
                return Verdict.STALE
            must_win = must_win_after_waiting(attempt.extra, transition.to)
            return self._go_on(self._tables.jobs[attempt.id], ended, must_win=must_win)
        claim = self._tables.claims.get(attempt.claim_id)
        if claim is None or claim.lease != attempt.run_lease or not 0 <= attempt.idx < len(claim.jobs):
            return Verdict.STALE
        by = claim.closed.get(attempt.idx)
        if by is not None:
            accepted = Verdict.DUPLICATE if attempt.idx in claim.duplicates else Verdict.ACCEPTED
            return accepted if by == flush else Verdict.STALE
        if not may_end:
            return Verdict.STALE
        job = self._tables.jobs[claim.jobs[attempt.idx]]
        if transition.to is JobState.WAITING_EXTERNAL and (
            job.callback is None or job.callback.id != transition.callback
        ):
            return Verdict.UNREGISTERED
        claim.closed[attempt.idx] = flush
        verdict = self._go_on(job, ended, must_win=must_win_again(job.extra, transition.to))
        if verdict is Verdict.DUPLICATE:
            claim.duplicates.add(attempt.idx)
        return verdict

    def _go_on(self, job: MemoryJob, ended: Ended, *, must_win: bool) -> Verdict:
        """What becomes of a job whose attempt ends, or has ended before it was parked."""
        transition = ended.transition
        job.attempt = transition.attempt
        job.recorded = None  # the worker knew it, and says it itself
        has_come = job.callback is not None and job.callback.waits is Waits.RESUMED
        to = JobState.AVAILABLE if transition.to is JobState.WAITING_EXTERNAL and has_come else transition.to
        if must_win and not self._wins_again(job, to):
            job.extra = ended.extra_of_duplicate
            self._move_to(job, JobState.CANCELLED, transition.at)
            return Verdict.DUPLICATE
        job.extra = ended.extra or job.extra
        if transition.to is JobState.COMPLETED:
            job.output = ended.output
        if transition.run_at is not None and (transition.to is not JobState.AVAILABLE or ended.called is not None):
            job.run_at = transition.run_at
        if transition.to is JobState.WAITING_EXTERNAL:
            self._park(job, ended)
        else:
            self._move_to(job, transition.to, transition.at)
        if transition.dead_letter is not None:
            job.dlq_reason, job.dlq_at = transition.dead_letter, transition.at
        if job.state is JobState.AVAILABLE:
            self._wake({job.queue})
        if ended.follow_ups:
            self._insert(ended.follow_ups, notify=True, skip=True)
        return Verdict.ACCEPTED

    def record_progress(self, records: Sequence[Progress], *, patient: bool = False) -> Op[list[int]]:  # noqa: ARG002
        """Keep what running attempts say of themselves, each if it still is what it was."""

        def act() -> list[int]:
            kept: list[int] = []
            for attempt, progress in records:
                job = self._tables.jobs[attempt.id]
                if job.state is JobState.RUNNING and job.run_lease == attempt.run_lease:
                    job.recorded = progress
                    kept.append(job.id)
            return kept

        return _op("record_progress", act, safe_to_retry=True)

    def beat(self, instance: int, worker: WorkerInfo) -> Op[None]:
        """A worker lives."""

        def act() -> None:
            self._tables.workers[instance] = worker
            self._tables.beats[instance] = self._clock()

        return _op("beat", act, safe_to_retry=True)

    def find_stale(self, silent: float, limit: int, after: Place | None = None) -> Op[StrandedPage]:
        """Running attempts whose worker has given no sign of life for so long."""
        ago = timedelta(seconds=silent)

        def is_stale(job: MemoryJob, now: datetime) -> bool:
            assert job.claim is not None
            assert job.attempted_at is not None
            if _is_waited_for(job):
                return False
            beat = self._tables.beats.get(self._tables.claims[job.claim[0]].instance, job.attempted_at)
            return max(beat, job.attempted_at) < now - ago

        return _op("find_stale", lambda: self._stranded(is_stale, limit, after), safe_to_retry=True)

    def find_overdue(self, late: float, limit: int, after: Place | None = None) -> Op[StrandedPage]:
        """Running attempts beyond their deadline by so many seconds."""
        ago = timedelta(seconds=late)

        def is_overdue(job: MemoryJob, now: datetime) -> bool:
            deadline_at = _deadline_at(job)
            return deadline_at is not None and deadline_at < now - ago

        return _op("find_overdue", lambda: self._stranded(is_overdue, limit, after), safe_to_retry=True)

    def _stranded(
        self, matches: Callable[[MemoryJob, datetime], bool], limit: int, after: Place | None
    ) -> StrandedPage:
        now = self._clock()
        found = sorted((*job.claim, job.id) for job in self._tables.jobs.values() if job.claim and matches(job, now))
        page = [place for place in found if after is None or place > after][:limit]
        jobs = [self._tables.jobs[id] for _, _, id in page]
        return StrandedPage([Stranded(_attempt(job), now) for job in jobs], page[-1] if len(page) >= limit else None)

    def unknown(self, instance: int, known: Sequence[int], since: int) -> Op[list[Attempt]]:
        """Running attempts of a worker that it does not know."""

        def act() -> list[Attempt]:
            return [
                _attempt(job)
                for number, claim in self._tables.claims.items()
                if claim.instance == instance and number > since and number not in known
                for job in map(self._tables.jobs.get, claim.jobs)
                if job is not None and job.claim is not None and job.claim[0] == number
            ]

        return _op("unknown", act, safe_to_retry=True)

    # callbacks

    def find_expired(self, limit: int) -> Op[ExpiredPage]:
        """Attempts that wait too long."""

        def act() -> ExpiredPage:
            now = self._clock()
            known = sorted(
                (
                    (job.callback, job)
                    for job in self._tables.jobs.values()
                    if job.callback is not None and job.callback.waits is not Waits.RESUMED
                ),
                key=lambda pair: (pair[0].timeout_at, pair[1].id),
            )
            found = [
                (Stranded(_waiting(job), now), Called(callback.id, (callback.waits,), due=True))
                for callback, job in known
                if callback.timeout_at <= now and callback.waits is not Waits.REGISTERED
            ][:limit]
            next_at = next((callback.timeout_at for callback, _ in known if callback.timeout_at > now), None)
            due_in = 0.0 if len(found) >= limit else None if next_at is None else (next_at - now).total_seconds()
            return ExpiredPage(found, due_in)

        return _op("find_expired", act, safe_to_retry=True)

    def register_callback(
        self, attempt: Attempt, timeout: float, expressions: str | None, before: str | None = None
    ) -> Op[Registered | None]:
        """A callback for a running attempt."""

        def act() -> Registered | None:
            job = self._tables.jobs.get(attempt.id)
            if job is None or job.claim is None or job.run_lease != attempt.run_lease:
                return None
            until = self._clock() + timedelta(seconds=timeout)
            known = job.callback
            if known is not None and known.id != before:
                if known.waits is Waits.REGISTERED:
                    known.timeout_at, known.expressions = until, expressions
                    self._hint(timeout)
                return Registered(known.id, known.timeout_at)
            if known is not None:
                self._waited(job)
            number = sum(int(self._random() * 2**32) << 32 * i for i in range(4))
            id = str(UUID(int=number % 2**128, version=4))
            job.callback = _Callback(id, until, expressions)
            self._hint(timeout)
            return Registered(id, until)

        return _op("register_callback", act, safe_to_retry=True)

    def find_callback(self, id: str) -> Plan[Callback | None]:
        """By its id."""
        yield from ()
        return self._callback(
            next((j for j in self._tables.jobs.values() if j.callback is not None and j.callback.id == id), None)
        )

    def find_waiting(self, id: int) -> Plan[Callback | None]:
        """That of a job that waits."""
        yield from ()
        found = self._callback(self._tables.jobs.get(id))
        return None if found is None or found.waits is Waits.REGISTERED else found

    def end_called(self, ended: Ended, flush: int) -> Plan[Verdicts]:
        """End its attempt."""
        yield from ()
        before = len(self._tables.jobs)
        verdict = self._end(ended, flush)
        attempt = ended.attempt
        if verdict in {Verdict.ACCEPTED, Verdict.DUPLICATE} and attempt.segment != PARKED:
            self._tell(f"!{attempt.id}:{attempt.run_lease}")
        verdicts = Verdicts([verdict])
        verdicts.inserted = len(self._tables.jobs) - before
        return verdicts

    def resume(self, callback: Callback, result: str) -> Plan[bool]:
        """Its handler goes on."""
        yield from ()
        called = Called(callback.id, (Waits.REGISTERED, Waits.IN_HANDLER))
        if not self._is_callable(callback.attempt, called):
            return False
        job = self._tables.jobs[callback.attempt.id]
        assert job.callback is not None
        self._waited(job)
        job.callback.waits, job.callback.result = Waits.RESUMED, result
        self._tell(f"^{job.id}:{job.run_lease}")
        return True

    def heartbeat_callback(self, callback: Callback, timeout: float) -> Plan[datetime | None]:
        """It is waited for longer."""
        yield from ()
        if not self._is_callable(callback.attempt, Called(callback.id, tuple(Waits)[:3])):
            return None
        job = self._tables.jobs[callback.attempt.id]
        assert job.callback is not None
        job.callback.timeout_at = self._clock() + timedelta(seconds=timeout)
        self._hint(timeout)
        return job.callback.timeout_at

    def _hint(self, timeout: float) -> None:
        """Tell whoever leads that a callback is due soon, if it is."""
        if timeout < EXPIRY_HINT:
            self._tell(f"@{timeout}")

    def wait(self, waits: Sequence[Wait]) -> Op[list[Waited]]:
        """Whether it has come."""

        def look(attempt: Attempt, id: str, waited: float) -> Waited:
            job = self._tables.jobs.get(attempt.id)
            callback = None if job is None or job.run_lease != attempt.run_lease else job.callback
            if job is None or callback is None or callback.id != id or callback.waits is Waits.PARKED:
                return Waited(is_over=True)
            if callback.waits is Waits.REGISTERED or self._counted(job) < waited - 1:
                job.waited = max(self._counted(job), waited)
                callback.waits_since = None if callback.waits is Waits.RESUMED else self._clock()
            if callback.waits is Waits.REGISTERED:
                callback.waits = Waits.IN_HANDLER
            return Waited(callback.waits is Waits.RESUMED, callback.result)

        return _op("wait", lambda: [look(*each) for each in waits], safe_to_retry=True)

    def leave(self, waits: Sequence[Wait]) -> Op[list[int]]:
        """They wait no more."""

        def act() -> list[int]:
            for attempt, id, waited in waits:
                job = self._tables.jobs.get(attempt.id)
                callback = None if job is None or job.run_lease != attempt.run_lease else job.callback
                if job is None or callback is None or callback.waits is Waits.PARKED:
                    continue
                job.waited = max(job.waited, waited)
                if callback.waits is Waits.IN_HANDLER and callback.id == id:
                    callback.waits, callback.waits_since = Waits.REGISTERED, None
            return []

        return _op("leave", act, safe_to_retry=True)

    def _waited(self, job: MemoryJob) -> None:
        """Its deadline goes on."""
        job.waited = self._counted(job)
        if job.callback is not None:
            job.callback.waits_since = None

    def _counted(self, job: MemoryJob) -> float:
        """Seconds that its handler has waited until now."""
        since = None if job.callback is None else job.callback.waits_since
        return job.waited if since is None else job.waited + (self._clock() - since).total_seconds()

    def _is_callable(self, attempt: Attempt, called: Called) -> bool:
        """Whether a callback still is as it was found."""
        job = self._tables.jobs.get(attempt.id)
        callback = None if job is None or job.run_lease != attempt.run_lease else job.callback
        return (
            callback is not None
            and callback.id == called.callback_id
            and callback.waits in called.waits
            and (not called.due or callback.timeout_at <= self._clock())
        )

    def _callback(self, job: MemoryJob | None) -> Callback | None:
        if job is None or job.callback is None or job.callback.waits is Waits.RESUMED:
            return None
        callback = job.callback
        return Callback(
            callback.id,
            callback.waits,
            _waiting(job),
            job.recorded,
            callback.expressions,
            callback.timeout_at,
            self._clock(),
        )

    def _park(self, job: MemoryJob, ended: Ended) -> None:
        """Let a job wait for its callback, which may have come already."""
        callback, at = job.callback, ended.transition.at
        assert callback is not None
        if callback.waits is Waits.RESUMED:
            job.extra = extras.with_result(job.extra, callback.result or "null")
            job.attempt -= 1
            self._move_to(job, JobState.AVAILABLE, at)
        else:
            self._move_to(job, JobState.WAITING_EXTERNAL, at)
            callback.waits = Waits.PARKED
            job.callback = callback

    def tell_ended(self, attempts: Sequence[Attempt]) -> Op[None]:
        """Notify those who listen."""

        def act() -> None:
            for attempt in attempts:
                self._tell(f"!{attempt.id}:{attempt.run_lease}")

        return _op("tell_ended", act, safe_to_retry=True)

    def replan(self) -> Op[None]:
        """There are no plans."""
        return _op("replan", lambda: None, safe_to_retry=True)

    def promote(self, limit: int, since: datetime | None = None, *, canonical: Sequence[str] = ()) -> Op[Promoted]:  # noqa: ARG002  there is but one engine
        """Make due deferred jobs available, at most `limit`."""

        def act() -> Promoted:
            now = self._clock()
            waiting = sorted(
                (self._tables.jobs[job_id] for job_id in self._tables.deferred), key=lambda job: (job.run_at, job.id)
            )
            due = [job for job in waiting if job.run_at <= now and (since is None or job.run_at >= since)][:limit]
            for job in due:
                self._move_to(job, JobState.AVAILABLE, now)
            queues = frozenset(job.queue for job in due)
            self._wake(queues)
            rest = [job for job in waiting if job.run_at > now]
            due_in = max(0.0, (rest[0].run_at - now).total_seconds()) if rest else None
            until = max((job.run_at for job in due), default=None)
            return Promoted(len(due), queues, 0.0 if len(due) >= limit else due_in, until)

        return _op("promote", act, safe_to_retry=True)

    # people

    def get_job(self, id: int) -> Op[JobRow | None]:
        """A job as it is now."""

        def act() -> JobRow | None:
            job = self._tables.jobs.get(id)
            if job is None:
                return None
            return self._whole(job)

        return _op("get_job", act, safe_to_retry=True)

    def list_jobs(self, filter: JobFilter) -> Op[JobPage[int]]:
        """Jobs that meet every condition, newest id first."""

        def act() -> JobPage[int]:
            found = [job for _, job in sorted(self._tables.jobs.items(), reverse=True) if _matches(job, filter)]
            page = JobPage[int](self._listed(job) for job in found[: filter.limit])
            page.next = page[-1].id if len(found) > filter.limit else None
            return page

        return _op("list_jobs", act, safe_to_retry=True)

    def cancel(self, id: int) -> Op[Cancelled]:
        """End a job for good, whatever it is doing."""

        def act() -> Cancelled:
            job = self._tables.jobs.get(id)
            if job is None:
                return Cancelled.NOT_FOUND
            if job.state.is_terminal:
                return Cancelled.ENDED
            if job.state is JobState.RUNNING:
                assert job.claim is not None
                claim_id, idx = job.claim
                self._tables.claims[claim_id].closed[idx] = _BY_A_PERSON
                job.extra = extras.after_attempt(job.extra, None, job.recorded) or job.extra
                job.recorded = None
                self._move_to(job, JobState.CANCELLED, self._clock())
                self._tell(f"!{job.id}:{job.run_lease}")
                return Cancelled.RUNNING
            self._move_to(job, JobState.CANCELLED, self._clock())
            return Cancelled.CANCELLED

        return _op("cancel", act, safe_to_retry=True)

    def holder(self, key: bytes) -> Op[int | None]:
        """The job that got a unique key last."""
        return _op("holder", lambda: self._tables.keys.get(key, (None, 0))[0], safe_to_retry=True)

    def forget_keys(self, limit: int, after: bytes = b"") -> Op[Forgotten]:
        """Forget the keys of jobs that are gone."""

        def act() -> Forgotten:
            keys = self._tables.keys
            looked = sorted(key for key in keys if key > after)[:limit]
            gone = [key for key in looked if keys[key][0] not in self._tables.jobs]
            for key in gone:
                del keys[key]
            return Forgotten(len(gone), looked[-1] if len(looked) == limit else None)

        return _op("forget_keys", act, safe_to_retry=True)

    def retry(self, id: int) -> Op[JobRow | None]:
        """Make a failed or cancelled job available again, attempt 0."""

        def act() -> JobRow | None:
            job = self._tables.jobs.get(id)
            if job is None or job.state not in {JobState.FAILED, JobState.CANCELLED}:
                return None
            self._regain(job, JobState.AVAILABLE)
            self._run_again([job])
            return self._row(job)

        return _op("retry", act)

    def _regain(self, job: MemoryJob, to: JobState) -> None:
        """Raise UniqueConflict unless a job may go to a state."""
        if not self._wins_again(job, to):
            key, _ = extras.unique_of(job.extra) or (b"", 0)
            raise UniqueConflict(self._tables.keys[key][0])

    def _run_again(self, jobs: Sequence[MemoryJob], run_at: datetime | None = None) -> None:
        """From attempt 0, now or at run_at. A dead letter loses its progress."""
        now = self._clock()
        due = run_at is None or run_at <= now
        for job in jobs:
            job.extra = extras.afresh(job.extra)
            if job.dlq_at is not None:
                job.extra = extras.without(job.extra, "progress")
            job.attempt = 0
            job.run_at = now if run_at is None else run_at
            job.attempted_at = None
            self._move_to(job, JobState.AVAILABLE if due else JobState.SCHEDULED, now)
        queues = {job.queue for job in jobs}
        if due:
            self._wake(queues)
        elif run_at is not None and run_at < now + timedelta(seconds=PROMOTE_HINT):
            self._wake(queues, hint=True)

    def move(self, id: int, *, queue: str | None = None, priority: int | None = None) -> Op[Cancelled]:
        """Put a job nobody has claimed into another queue or priority."""

        def act() -> Cancelled:
            job = self._tables.jobs.get(id)
            if job is None:
                return Cancelled.NOT_FOUND
            if job.state.is_terminal:
                return Cancelled.ENDED
            if job.state in {JobState.RUNNING, JobState.WAITING_EXTERNAL}:
                return Cancelled.RUNNING
            self._unindex(job)
            if queue is not None:
                job.queue = queue
                job.stripe = self._stripe(queue, id)
            job.priority = job.priority if priority is None else priority
            self._index(job)
            if job.state is JobState.AVAILABLE and queue is not None:
                self._wake({queue})
            return Cancelled.CANCELLED

        return _op("move", act)

    # dead letters

    def list_dlq(self, which: Selection, *, limit: int, before: DlqCursor | None = None) -> Op[JobPage[DlqCursor]]:
        """Dead letters, the newest first."""

        def act() -> JobPage[DlqCursor]:
            letters = sorted(((job.dlq_at, job.id, job) for job in self._letters(which) if job.dlq_at), reverse=True)
            found = [job for at, id, job in letters if before is None or (at, id) < before]
            page = JobPage[DlqCursor](self._listed(job) for job in found[:limit])
            last = page[-1] if len(found) > limit else None
            if last is not None and last.dlq_at is not None:
                page.next = last.dlq_at, last.id
            return page

        return _op("list_dlq", act, safe_to_retry=True)

    def dlq_depth(self, queue: str | None = None) -> Op[int]:
        """How many dead letters there are."""
        return _op("dlq_depth", lambda: len(self._letters(Selection(queue=queue))), safe_to_retry=True)

    def retry_from_dlq(self, id: int, run_at: datetime | None = None) -> Op[JobRow | None]:
        """A dead letter runs again."""

        def act() -> JobRow | None:
            job = self._tables.jobs.get(id)
            if job is None or job.dlq_at is None:
                return None
            due = run_at is None or run_at <= self._clock()
            self._regain(job, JobState.AVAILABLE if due else JobState.SCHEDULED)
            self._run_again([job], None if run_at is None else run_at.astimezone(UTC))
            return self._row(job)

        return _op("retry_from_dlq", act)

    def retry_all_from_dlq(self, which: Selection) -> Op[int]:
        """Dead letters run again, the lowest ids first."""
        return _op(
            "retry_all_from_dlq", lambda: self._retry_all(self._letters(which)[: which.limit]), safe_to_retry=True
        )

    def _retry_all(self, jobs: Sequence[MemoryJob]) -> int:
        """Those that get their unique keys again run again; of several with one key the newest does."""
        back: list[MemoryJob] = []
        taken: set[bytes] = set()
        for job in reversed(jobs):
            unique = extras.unique_of(job.extra)
            if unique is not None and keeps_out(unique[1], JobState.AVAILABLE):
                if unique[0] in taken or not self._wins_again(job, JobState.AVAILABLE):
                    continue
                taken.add(unique[0])
            back.append(job)
        self._run_again(back[::-1])
        return len(back)

    def move_to_dlq(self, id: int) -> Op[JobRow | None]:
        """A failed job becomes a dead letter."""

        def act() -> JobRow | None:
            job = self._tables.jobs.get(id)
            if job is None or job.state is not JobState.FAILED or job.dlq_at is not None:
                return None
            job.dlq_reason, job.dlq_at = DeadLetter.MOVED, self._clock()
            return self._row(job)

        return _op("move_to_dlq", act)

    def move_failed_to_dlq(self, which: Selection) -> Op[int]:
        """Failed jobs become dead letters."""

        def act() -> int:
            jobs = self._failed(which)[: which.limit]
            for job in jobs:
                job.dlq_reason, job.dlq_at = DeadLetter.MOVED, self._clock()
            return len(jobs)

        return _op("move_failed_to_dlq", act, safe_to_retry=True)

    def purge_dlq_job(self, id: int) -> Op[bool]:
        """A dead letter is gone for good."""

        def act() -> bool:
            job = self._tables.jobs.get(id)
            if job is None or job.dlq_at is None:
                return False
            self._forget([job])
            return True

        return _op("purge_dlq_job", act, safe_to_retry=True)

    def purge_dlq(self, which: Selection) -> Op[int]:
        """Dead letters are gone for good."""
        return _op("purge_dlq", lambda: self._forget(self._letters(which)[: which.limit]), safe_to_retry=True)

    def prune_dlq(self, older_than: float, limit: int) -> Op[int]:
        """The oldest dead letters are gone for good."""

        def act() -> int:
            letters = self._letters(Selection(older_than=older_than))
            return self._forget(sorted(letters, key=lambda job: (job.dlq_at, job.id))[:limit])

        return _op("prune_dlq", act, safe_to_retry=True)

    def rebase(self, *, thorough: bool = False) -> Op[bool]:  # noqa: ARG002
        """Nothing is numbered by a cluster."""
        return _op("rebase", lambda: False, safe_to_retry=True)

    def prune_completed(self, older_than: float, limit: int) -> Op[int]:
        """The oldest completed jobs are gone for good."""

        def act() -> int:
            since = self._clock() - timedelta(seconds=older_than)
            old = [
                job for job in self._tables.jobs.values()
                if job.state is JobState.COMPLETED and job.finalized_at is not None and job.finalized_at < since
            ]  # fmt: skip
            return self._forget(sorted(old, key=lambda job: (job.finalized_at, job.id))[:limit])

        return _op("prune_completed", act, safe_to_retry=True)

    def prune_failed(self, older_than: float, limit: int) -> Op[int]:
        """The oldest failed and cancelled jobs that are no dead letters are gone for good."""

        def act() -> int:
            which = Selection(older_than=older_than)
            over = [job for job in self._tables.jobs.values() if job.state in _FAILED and job.dlq_at is None]
            old = [job for job in over if self._long_ago(job.finalized_at, which)]
            return self._forget(sorted(old, key=lambda job: (job.finalized_at, job.id))[:limit])

        return _op("prune_failed", act, safe_to_retry=True)

    def prune_attempts(self, limit: int) -> Op[int]:  # noqa: ARG002
        """Nothing is left over: an attempt's progress goes when it ends."""
        return _op("prune_attempts", lambda: 0, safe_to_retry=True)

    # many failed jobs, and what ends or deletes any

    def retry_failed(self, which: Selection) -> Op[int]:
        """Failed jobs run again, the lowest ids first."""
        return _op("retry_failed", lambda: self._retry_all(self._failed(which)[: which.limit]), safe_to_retry=True)

    def discard_failed(self, which: Selection) -> Op[int]:
        """Failed jobs are gone for good."""
        return _op("discard_failed", lambda: self._forget(self._failed(which)[: which.limit]), safe_to_retry=True)

    def delete_job(self, id: int) -> Op[bool]:
        """A job that has ended is gone for good."""

        def act() -> bool:
            job = self._tables.jobs.get(id)
            return job is not None and job.state.is_terminal and self._forget([job]) == 1

        return _op("delete_job", act, safe_to_retry=True)

    def drain_queue(self, queue: str) -> Op[int]:
        """Cancel what waits for anything."""

        def act() -> int:
            now = self._clock()
            waiting = [job for job in self._tables.jobs.values() if job.queue == queue and job.state in _WAITING]
            for job in waiting:
                if job.state is JobState.AVAILABLE:  # the engine takes them like a claim
                    job.run_lease = max(job.run_lease + 1, (now - _EPOCH) // timedelta(microseconds=1))
                self._move_to(job, JobState.CANCELLED, now)
            return len(waiting)

        return _op("drain_queue", act, safe_to_retry=True)

    def _letters(self, which: Selection) -> list[MemoryJob]:
        return [job for job in self._selected(which) if job.dlq_at is not None and self._long_ago(job.dlq_at, which)]

    def _failed(self, which: Selection) -> list[MemoryJob]:
        """Failed jobs that are no dead letters."""
        return [
            job
            for job in self._selected(which)
            if job.state is JobState.FAILED and job.dlq_at is None and self._long_ago(job.finalized_at, which)
        ]

    def _selected(self, which: Selection) -> list[MemoryJob]:
        return [
            job
            for job in self._tables.jobs.values()
            if (which.kind is None or job.kind == which.kind)
            and (which.queue is None or job.queue == which.queue)
            and (which.tag is None or which.tag in extras.decode(job.extra).get("tags", ()))
            and (which.reason is None or job.dlq_reason == which.reason)
        ]

    def _long_ago(self, at: datetime | None, which: Selection) -> bool:
        if which.older_than is None:
            return True
        return at is not None and (self._clock() - at).total_seconds() > which.older_than

    def _forget(self, jobs: Sequence[MemoryJob]) -> int:
        for job in jobs:
            del self._tables.jobs[job.id]
        return len(jobs)

    def queue_stats(self) -> Op[list[QueueStat]]:
        """How many jobs of each queue are in each state, by name."""

        def act() -> list[QueueStat]:
            now = self._clock()
            jobs = list(self._tables.jobs.values())
            stats: list[QueueStat] = []
            for queue in sorted({job.queue for job in jobs} | set(self._tables.settings)):
                mine = [job for job in jobs if job.queue == queue]
                counts = {state.value: sum(_state(job) is state for job in mine) for state in JobState}
                oldest = min((job.run_at for job in mine if job.state is JobState.AVAILABLE), default=now)
                settings = self._tables.settings.get(queue, QueueSettings())
                lag = max(0.0, (now - oldest).total_seconds())
                dlq = sum(job.dlq_at is not None for job in mine)
                stats.append(
                    QueueStat(queue, **counts, dlq=dlq, lag=lag, paused=settings.paused, stripes=settings.stripes)
                )
            return stats

        return _op("queue_stats", act, safe_to_retry=True)

    def pause_queue(self, queue: str, by: str | None) -> Op[None]:  # noqa: ARG002  who did it is kept for people only
        """No claims of this queue from now on."""

        def act() -> None:
            self._tables.settings[queue] = replace(self._tables.settings.get(queue, QueueSettings()), paused=True)

        return _op("pause_queue", act, safe_to_retry=True)

    def resume_queue(self, queue: str) -> Op[None]:
        """Claims again; every worker is told."""

        def act() -> None:
            settings = self._tables.settings.get(queue)
            if settings is not None and settings.paused:
                self._tables.settings[queue] = replace(settings, paused=False)
                self._tell(queue)

        return _op("resume_queue", act, safe_to_retry=True)

    def set_stripes(self, queue: str, stripes: int) -> Op[None]:
        """Put new jobs into so many stripes. Only upwards: jobs beyond the number would never be claimed."""

        def act() -> None:
            settings = self._tables.settings.get(queue, QueueSettings())
            if stripes < settings.stripes:
                raise ValidationError(
                    "stripes", f"queue {queue!r} has {settings.stripes} already, and can only have more"
                )
            self._tables.settings[queue] = replace(settings, stripes=stripes)

        return _op("set_stripes", act, safe_to_retry=True)

    def health(self) -> Op[StoreHealth]:
        """A server that never fails, and the workers it knows."""

        def act() -> StoreHealth:
            tables, now = self._tables, self._clock()
            leads = tables.led_until is not None and tables.led_until > now
            instances = tuple(
                InstanceHealth(
                    number, info.hostname, info.pid, info.version, info.queues, tables.beats[number], 0.0,
                    max((now - tables.beats[number]).total_seconds(), 0.0),
                )
                for number, info in sorted(tables.workers.items())
            )  # fmt: skip
            return StoreHealth(
                "memory", 0, False, tables.leader if leads else None, instances, RingHealth(1, 1, 0, None)
            )

        return _op("health", act, safe_to_retry=True)

    # upkeep: nothing is kept in pieces, and completed jobs stay

    # kinds

    def put_kinds(self, descriptors: Mapping[str, str]) -> Op[None]:
        """What workers say of them."""

        def act() -> None:
            now = self._clock()
            for kind, text in descriptors.items():
                said, before = json.loads(text), self._tables.kinds.get(kind)
                changed = now if before is None or before.descriptor != said else before.changed_at
                self._tables.kinds[kind] = KindInfo(kind, said, changed, now)

        return _op("put_kinds", act, safe_to_retry=True)

    def list_kinds(self) -> Op[list[KindInfo]]:
        """By name."""
        return _op(
            "list_kinds", lambda: [self._tables.kinds[kind] for kind in sorted(self._tables.kinds)], safe_to_retry=True
        )

    def prune_kinds(self, older_than: float) -> Op[int]:
        """Those nobody spoke of."""

        def act() -> int:
            since = self._clock() - timedelta(seconds=older_than)
            gone = [kind for kind, info in self._tables.kinds.items() if info.seen_at < since]
            for kind in gone:
                del self._tables.kinds[kind]
            return len(gone)

        return _op("prune_kinds", act, safe_to_retry=True)

    # cron jobs, each with the digest of what the code said

    def put_cron(self, templates: Sequence[CronTemplate], *, declared: bool) -> Op[int]:
        """They are as these say."""

        def act() -> int:
            return sum(self._put_cron(template, declared=declared) for template in templates)

        return _op("put_cron", act, safe_to_retry=True)

    def _put_cron(self, template: CronTemplate, *, declared: bool) -> bool:
        cron, now = self._tables.cron, self._clock()
        said = digest(template) if declared else None
        if template.name not in cron:
            cron[template.name] = CronJob(template, now - BEFORE_FIRST, None, now, now, None, None), said
            return True
        job, before = cron[template.name]
        if declared and said == before:
            return False
        after = job.after if template.schedule == job.template.schedule else max(job.after, now)
        cron[template.name] = replace(job, template=template, after=after, updated_at=now), said or before
        return True

    def list_cron(self, name: str | None = None) -> Op[tuple[datetime, list[CronJob]]]:
        """All, or one."""

        def act() -> tuple[datetime, list[CronJob]]:
            found = sorted(job.name for job, _ in self._tables.cron.values())
            return self._clock(), [self._tables.cron[each][0] for each in found if name in {None, each}]

        return _op("list_cron", act, safe_to_retry=True)

    def pass_fires(self, fires: Sequence[Fire]) -> Plan[list[str]]:
        """Those that are still to come are past."""
        yield from ()
        mine: list[str] = []
        for fire in fires:
            job, said = self._tables.cron.get(fire.name, (None, None))
            if job is not None and job.after == fire.after and not job.is_paused:
                self._tables.cron[fire.name] = replace(job, after=fire.at, last_fire_at=fire.at), said
                mine.append(fire.name)
        return mine

    def pause_cron(self, name: str, by: str | None) -> Op[bool]:
        """It fires no more."""
        return self._change_cron("pause_cron", name, lambda job, now: replace(job, paused_at=now, paused_by=by))

    def resume_cron(self, name: str) -> Op[bool]:
        """It fires again."""
        return self._change_cron("resume_cron", name, lambda job, _: replace(job, paused_at=None, paused_by=None))

    def edit_cron(self, name: str, changes: Mapping[str, Any]) -> Op[bool]:
        """Some of it is another."""

        def changed(job: CronJob, now: datetime) -> CronJob:
            given = {column: value for column, value in changes.items() if value is not None}
            template, new = job.template, job.template.job
            schedule = Schedule(given.get("cron", job.cron), given.get("timezone", job.timezone))
            new = new._replace(**{column: given[column] for column in ("queue", "priority", "args") if column in given})
            policy = given.get("missed_fire_policy", job.missed_fire_policy)
            template = template._replace(schedule=schedule, missed_fire_policy=policy, job=new)
            after = job.after if schedule == job.template.schedule else max(job.after, now)
            return replace(job, template=template, after=after)

        return self._change_cron("edit_cron", name, changed)

    def delete_cron(self, name: str) -> Op[bool]:
        """There is none of that name."""
        return _op("delete_cron", lambda: self._tables.cron.pop(name, None) is not None)

    def _change_cron(self, called: str, name: str, change: Callable[[CronJob, datetime], CronJob]) -> Op[bool]:
        def act() -> bool:
            if name not in self._tables.cron:
                return False
            job, said = self._tables.cron[name]
            now = self._clock()
            self._tables.cron[name] = replace(change(job, now), updated_at=now), said
            return True

        return _op(called, act, safe_to_retry=True)

    def lead(self, instance: int, lease: float) -> Op[Leadership]:
        """The lease of who leads."""

        def act() -> Leadership:
            tables, now = self._tables, self._clock()
            left = 0.0 if tables.led_until is None else max((tables.led_until - now).total_seconds(), 0.0)
            is_mine = tables.leader == instance or not left
            if is_mine:
                tables.term += tables.leader != instance
                tables.leader, tables.led_until, left = instance, now + timedelta(seconds=lease), lease
            return Leadership(tables.leader, is_mine, tables.term, left)

        return _op("lead", act, safe_to_retry=True)

    def resign(self, instance: int) -> Op[None]:
        """The lease is free."""

        def act() -> None:
            if self._tables.leader == instance:
                self._tables.leader = self._tables.led_until = None

        return _op("resign", act, safe_to_retry=True)

    def sweep(self, most: int = 5000) -> Op[int]:  # noqa: ARG002
        return _op("sweep", lambda: 0, safe_to_retry=True)

    def rotate(self, retention: float | None = None, larger_than: int | None = None) -> Op[Rotation]:  # noqa: ARG002
        return _op("rotate", Rotation, safe_to_retry=True)

    def probe(self) -> Op[Probe]:
        return _op("probe", Probe, safe_to_retry=True)

    def prune(self, retention: float) -> Op[Pruned]:  # noqa: ARG002
        return _op("prune", Pruned, safe_to_retry=True)

    # for tests and the simulator

    def turn_ring(self) -> None:
        """The segments changed: the ring gets a new version."""
        self._tables.ring = Ring(self._tables.ring.version + 1)

    @property
    def rows(self) -> list[JobRow]:
        """Every job there is, oldest first."""
        return [self._row(job) for job in self._tables.jobs.values()]

    @property
    def states(self) -> dict[int, JobState]:
        """Where every job is, by id."""
        return {job.id: job.state for job in self._tables.jobs.values()}

    # inside

    def _move_to(self, job: MemoryJob, state: JobState, at: datetime) -> None:
        self._unindex(job)
        job.state = state
        job.claim = None
        job.callback = None
        job.deadline_at = None
        job.dlq_reason = job.dlq_at = None
        job.finalized_at = at if state.is_terminal or state is JobState.RETRYABLE else None
        if state is JobState.AVAILABLE:
            job.attempted_at = None
        self._index(job)

    def _index(self, job: MemoryJob) -> None:
        if job.state is JobState.AVAILABLE:
            self._tables.available.setdefault(job.queue, set()).add(job.id)
        elif job.state in DEFERRED:
            self._tables.deferred.add(job.id)

    def _unindex(self, job: MemoryJob) -> None:
        self._tables.available.get(job.queue, set[int]()).discard(job.id)
        self._tables.deferred.discard(job.id)

    def _whole(self, job: MemoryJob) -> JobRow:
        """As who asks for it sees it."""
        row = self._row(job)
        row.output_json = job.output
        return row

    def _listed(self, job: MemoryJob) -> JobRow:
        """As a list shows it: what an attempt that runs has flushed of its progress is seen by who asks for the job itself."""
        row = self._row(job)
        row.extra_json = extras.without_outputs(job.extra)
        return row

    def _row(self, job: MemoryJob) -> JobRow:
        callback = None if job.callback is None or job.callback.waits is Waits.RESUMED else job.callback
        return JobRow(
            id=job.id,
            kind=job.kind,
            queue=job.queue,
            args_json=job.args,
            state=_state(job),
            priority=job.priority,
            attempt=job.attempt,
            run_lease=job.run_lease,
            max_attempts=job.max_attempts,
            run_at=job.run_at,
            created_at=job.created_at,
            attempted_at=job.attempted_at,
            deadline_at=_deadline_at(job),
            finalized_at=job.finalized_at,
            extra_json=extras.after_attempt(job.extra, None, job.recorded) or job.extra,
            dlq_reason=job.dlq_reason,
            dlq_at=job.dlq_at,
            callback_id=None if callback is None else callback.id,
            callback_timeout_at=None if callback is None else callback.timeout_at,
        )


def _is_waited_for(job: MemoryJob) -> bool:
    """Whether a handler waits for its callback."""
    return job.callback is not None and job.callback.waits is Waits.IN_HANDLER


def _deadline_at(job: MemoryJob) -> datetime | None:
    """As it is known now: None while it stands still."""
    if job.deadline_at is None or _is_waited_for(job):
        return None
    return job.deadline_at + timedelta(seconds=job.waited)


def _state(job: MemoryJob) -> JobState:
    """As people see it."""
    return JobState.WAITING_EXTERNAL if _is_waited_for(job) else job.state


def _waiting(job: MemoryJob) -> Attempt:
    """The attempt of a job that waits, or may."""
    if job.claim is not None:
        return _attempt(job)
    return Attempt(
        PARKED, job.run_lease, 0, job.run_lease, job.id, job.queue, job.priority, job.kind, job.args, job.attempt,
        job.max_attempts, job.run_at, job.created_at, job.extra,
    )  # fmt: skip


def _attempt(job: MemoryJob) -> Attempt:
    """The attempt of a job that runs, with what it has recorded."""
    assert job.claim is not None
    return Attempt(
        0,
        *job.claim,
        job.run_lease,
        job.id,
        job.queue,
        job.priority,
        job.kind,
        job.args,
        job.attempt,
        job.max_attempts,
        job.run_at,
        job.created_at,
        extras.after_attempt(job.extra, None, job.recorded) or job.extra,
    )


def _urgency(job: MemoryJob, aging: float, now: datetime) -> tuple[int, datetime, int, int]:
    """What is claimed first: the smallest."""
    lifted = math.floor((now - job.run_at).total_seconds() / aging) if aging > 0 else 0
    return max(1, job.priority - lifted), job.run_at, job.priority, job.id


def _matches(job: MemoryJob, wanted: JobFilter) -> bool:
    return (
        (wanted.state is None or _state(job) is wanted.state)
        and (wanted.kind is None or job.kind == wanted.kind)
        and (wanted.queue is None or job.queue == wanted.queue)
        and (wanted.tag is None or wanted.tag in extras.decode(job.extra).get("tags", ()))
        and (
            wanted.metadata is None or _contains(extras.decode(job.extra).get("metadata"), json.loads(wanted.metadata))
        )
        and (wanted.before_id is None or job.id < wanted.before_id)
    )


def _contains(whole: object, part: object) -> bool:
    """Whether JSON contains other JSON, as `@>` of jsonb says it: objects key by key, lists in any order."""
    match whole, part:
        case dict(), dict():
            return all(key in whole and _contains(whole[key], value) for key, value in part.items())
        case list(), list():
            return all(any(_contains(each, value) for each in whole) for value in part)
        case (bool(), _) | (_, bool()):
            return whole is part
        case _:
            return whole == part
