"""Store: what an engine can do, as Ops. The worker machine and the operations of a client speak only to this.

`queue` is the append-only engine, `memory` the readable model that needs no database. The types here are what crosses:
plain data, the same for every engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from awa_proto.extra import afresh, after_attempt, with_result
from awa_proto.health import StoreHealth
from awa_proto.job import Attempt, DlqCursor, JobPage, JobRow, JobState
from awa_proto.outcome import DeadLetter, Transition, rfc3339
from awa_proto.plan import Op, Plan
from awa_proto.store.upkeep import Leadership, Probe, Pruned, Rotation

if TYPE_CHECKING:
    from awa_proto.cron.job import CronJob, CronTemplate, Fire
    from awa_proto.recording import Recording


class Unique(NamedTuple):
    """What keeps a second job of the same sort out.

    key: 16 bytes. states: a mask, bit i for the i-th of JobState: while the holder of the key is in one of them, no other
    job gets it.
    """

    key: bytes
    states: int


class Forgotten(NamedTuple):
    """Unique keys of jobs that are gone. keys: how many. last: where to go on, None at the end of all keys."""

    keys: int
    last: bytes | None


class NewJob(NamedTuple):
    """A job to be enqueued, validated and encoded: nothing in it can be refused any more.

    args, extra: JSON text. run_at: aware, or None for now. ordering: a number made of the ordering key, or None.
    A tuple, because a batch is turned into columns, and there may be very many.
    """

    kind: str
    queue: str
    args: str
    priority: int = 2
    max_attempts: int = 25
    run_at: datetime | None = None
    extra: str | None = None
    ordering: int | None = None
    unique: Unique | None = None


@dataclass(frozen=True, slots=True)
class Ring:
    """Which segments a claim looks into, oldest first. Opaque to everybody but the engine.

    version: changes whenever the segments do; each claim reports the newest one. canonical: canonical storage holds jobs of the
    queues that were asked about, which are claimed as well.
    """

    version: int
    segments: tuple[int, ...] = ()
    canonical: bool = False


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """What the database says about a queue: 1 stripe and not paused when it says nothing."""

    stripes: int = 1
    paused: bool = False


@dataclass(frozen=True, slots=True)
class Registration:
    """A worker as the database knows it.

    instance: its number, for ever its own. now: database time when it was asked.
    """

    instance: int
    ring: Ring
    queues: Mapping[str, QueueSettings]
    now: datetime


@dataclass(frozen=True, slots=True)
class Demand:
    """How much one queue of a worker wants.

    stripe: which part of the queue is asked. wanted: most jobs. aging: seconds of waiting that lift a job by one
    priority, 0 for never. deadline: seconds an attempt may take, or None. insist: ask even if somebody seems to be at it.
    """

    queue: str
    wanted: int
    stripe: int = 0
    aging: float = 60.0
    deadline: float | None = None
    insist: bool = False


@dataclass(frozen=True, slots=True)
class Claimed:
    """What a claim brought.

    again: queues (with stripe) whose turn another worker took: ask again soon, they are not empty.
    version: the newest version of the ring. now: database time of the claim.
    """

    attempts: Sequence[Attempt]
    version: int
    now: datetime
    again: frozenset[tuple[str, int]] = frozenset()


PROMOTE_HINT: Final = 5.0
"""Seconds. A deferred job due sooner is told to sleeping workers, which look at what is deferred about that often."""
EXPIRY_HINT: Final = 5.0
"""Seconds. A callback that is due sooner is told to the leader, which looks for those that are late about that often."""


class Waits(IntEnum):
    """How far an attempt has come with its callback."""

    REGISTERED = 0
    """Its handler runs, and may go on to either of the next two."""
    IN_HANDLER = 1
    """The handler waits, and keeps its slot."""
    PARKED = 2
    """The handler has returned WaitForCallback."""
    RESUMED = 3
    """The callback came; the token is used up."""


class Called(NamedTuple):
    """An attempt is ended by its callback, or for want of it: only as long as that still is as it was found.

    waits: how it may wait. due: only if its time is up. result: JSON text that the job is resumed with.
    """

    callback_id: str
    waits: tuple[Waits, ...]
    due: bool = False
    result: str | None = None


class Callback(NamedTuple):
    """A registered callback and the attempt that it can end.

    recorded: JSON text of the progress that has a row of its own, None when it has none. expressions: what was registered with
    it. at: when it was found, database time.
    """

    id: str
    waits: Waits
    attempt: Attempt
    recorded: str | None
    expressions: str | None
    timeout_at: datetime
    at: datetime


class Registered(NamedTuple):
    """A callback that was just registered."""

    id: str
    timeout_at: datetime


class Wait(NamedTuple):
    """A handler that waits. waited: seconds that its attempt has waited in all, by its worker's clock, until now or until it
    left: its deadline does not count them. 0 for one without a deadline.
    """

    attempt: Attempt
    callback_id: str
    waited: float = 0.0


class Waited(NamedTuple):
    """What a handler waits for. is_over: whether there is nothing to wait for any more; then result is the JSON text that the
    callback came with, None when it never will.
    """

    is_over: bool
    result: str | None = None


class Ended(NamedTuple):
    """An attempt that ended, on its way into the store.

    progress: JSON text the attempt recorded. output: JSON text that becomes the job's output, of a completed attempt.
    follow_ups: jobs that exist if and only if this is accepted; of those with a unique key only such as find it free.
    flushed: the attempt had its progress written while it ran. took: seconds the handler ran, 0 when it never
    began, for hooks and traces. recording: what all of this was made of, if it recorded anything, for whoever counts or
    concludes anew. A store writes these two nowhere. called: the callback that ends it.
    """

    attempt: Attempt
    transition: Transition
    progress: str | None = None
    output: str | None = None
    follow_ups: tuple[NewJob, ...] = ()
    flushed: bool = False
    took: float = 0.0
    recording: Recording | None = None
    called: Called | None = None

    @property
    def extra(self) -> str | None:
        """The job's new extra, or None when it keeps what it has."""
        transition, extra = self.transition, self.attempt.extra
        if self.called is not None and self.called.result is not None:
            return with_result(extra, self.called.result)
        is_done = transition.to is JobState.COMPLETED
        if transition.entry is None and self.progress is None and (is_done or extra is None):
            return None
        unseen = transition.entry is None and self.took > 0 and not is_done
        new = after_attempt(extra, transition.entry, self.progress, unseen=unseen)
        if self.called is None or transition.to is not JobState.AVAILABLE:
            return new
        found = extra if new is None else new
        anew = afresh(found)
        return new if anew == found else anew or "{}"

    @property
    def extra_of_duplicate(self) -> str | None:
        """The job's extra when it is cancelled instead, since a newer job has its unique key."""
        at = rfc3339(self.transition.at)
        entry = {"attempt": self.attempt.attempt, "at": at, "error": "rescheduled as duplicate"}
        return after_attempt(self.extra or self.attempt.extra, entry, None)


class Verdict(StrEnum):
    """What became of an ended attempt."""

    ACCEPTED = "accepted"
    """Written now, or by an earlier sending of the same flush."""
    DUPLICATE = "duplicate"
    """Ended, but as cancelled: it would have gone back to a state in which a newer job with its unique key keeps it out."""
    STALE = "stale"
    """Somebody else ended it; nothing was written."""
    AGAIN = "again"
    """Another closer was faster with the same claim; nothing was written, send it again."""
    UNREGISTERED = "unregistered"
    """It would wait for a callback that is not its newest one, or is none; nothing was written, it is to end otherwise."""


class Verdicts(list[Verdict]):
    """The verdicts of a flush, in the order given. inserted: how many follow-ups exist by it now and did not before."""

    inserted: int = 0


class Progress(NamedTuple):
    """What a running attempt says of itself, as JSON text, to be kept before it ends."""

    attempt: Attempt
    progress: str


class Stranded(NamedTuple):
    """An attempt that its worker will not end, with the progress it recorded in its `extra`. at: when it was found, database
    time.
    """

    attempt: Attempt
    at: datetime


Place: TypeAlias = tuple[int, int, int]
"""Where a page of stranded attempts ended. Opaque to everybody but the engine."""


class ExpiredPage(NamedTuple):
    """A page of attempts whose callback did not come in time. due_in: seconds until the next one is late, None for none."""

    stranded: Sequence[tuple[Stranded, Called]]
    due_in: float | None = None


class StrandedPage(NamedTuple):
    """A page of stranded attempts. after: what the next page begins after, None when this is the last one."""

    stranded: Sequence[Stranded]
    after: Place | None


@dataclass(frozen=True, slots=True)
class Promoted:
    """Deferred jobs that became due.

    count: how many were moved. queues: the queues they went to.
    due_in: seconds until the next one is due, None when none is waiting; 0 when more are due already.
    until: the latest moment that one of them was due, None when none was.
    """

    count: int
    queues: frozenset[str] = frozenset()
    due_in: float | None = None
    until: datetime | None = None


class Cancelled(StrEnum):
    """The answer to a cancellation."""

    CANCELLED = "cancelled"
    RUNNING = "running"
    """It was running: its attempt is ended, the handler is told when it next asks."""
    ENDED = "ended"
    """It had ended before; nothing changed."""
    AGAIN = "again"
    """Somebody moved it meanwhile; ask again."""
    NOT_FOUND = "not found"


@dataclass(frozen=True, slots=True)
class QueueStat:
    """How many jobs of a queue are in each state. `available` and `completed` are capped counts of what is kept.

    dlq: how many of the failed ones are dead letters.
    lag: seconds the oldest available job has been waiting, 0 when there is none.
    """

    queue: str
    scheduled: int = 0
    available: int = 0
    running: int = 0
    completed: int = 0
    retryable: int = 0
    failed: int = 0
    cancelled: int = 0
    waiting_external: int = 0
    dlq: int = 0
    lag: float = 0.0
    paused: bool = False
    stripes: int = 1


@dataclass(frozen=True, slots=True)
class KindInfo:
    """What workers have said of a kind of job.

    descriptor: `{"args": {"name": …}, "queue": …, "output": {"name": …, "schema": …}}`, each only where the task says so.
    changed_at: when it was last something else. seen_at: when a worker said so last, to the hour.
    """

    kind: str
    descriptor: dict[str, Any]
    changed_at: datetime
    seen_at: datetime


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs a list shows: all conditions must hold; None is no condition.

    metadata: JSON text of an object that theirs contains, as jsonb of PostgreSQL says it.
    """

    state: JobState | None = None
    kind: str | None = None
    queue: str | None = None
    tag: str | None = None
    metadata: str | None = None
    before_id: int | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True)
class Selection:
    """Which jobs of a table a bulk call or a list means: all conditions must hold; None is no condition.

    reason: why they are dead letters (of those only). older_than: seconds since they failed, or became dead letters.
    limit: most jobs changed; None for all.
    """

    kind: str | None = None
    queue: str | None = None
    tag: str | None = None
    reason: DeadLetter | None = None
    older_than: float | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """How a worker introduces itself."""

    queues: tuple[str, ...]
    hostname: str = ""
    pid: int = 0
    version: str = ""


class Store(Protocol):
    """The Ops of one engine. Every one is right at every isolation level a role may default to.

    keeps_outputs: whether outputs of completed attempts are stored; else they are dropped.
    """

    keeps_outputs: bool

    # enqueue
    def insert(self, jobs: Sequence[NewJob], *, notify: bool = True, skip: bool = False) -> Op[list[JobRow]]:
        """Enqueue in one statement; the rows come back in the order given. Jobs not yet due are deferred.

        A job whose unique key is taken raises UniqueConflict, which leaves a caller's transaction as it was; nothing is
        written. skip: instead it is left out, and the row in its place is that of the job that has the key.
        """
        ...

    def copy(self, jobs: Iterable[NewJob], *, notify: bool = True, skip: bool = False) -> Op[int]:
        """Enqueue by COPY, all or none. Returns how many; skip: without those whose unique key is taken.

        jobs: a sequence; or any iterable that can be gone through again, of jobs that are all due and have no unique keys,
        which are then made while others are on their way. What it raises ends the transaction.
        """
        ...

    # the worker
    def register(self, worker: WorkerInfo) -> Op[Registration]:
        """Introduce a worker, and learn what it needs to start."""
        ...

    def unregister(self, instance: int) -> Op[None]: ...

    def survey(self, queues: Sequence[str], *, glance: bool = False) -> Op[tuple[Ring, Mapping[str, QueueSettings]]]:
        """The segments and the settings of the queues as they are now.

        glance: of canonical storage it is only told whether it may hold anything at all, which is one cheap statement.
        """
        ...

    def claim(self, instance: int, ring: Ring, demands: Sequence[Demand], *, advance: bool = False) -> Op[Claimed]:
        """Take the best jobs of each queue, in one statement that commits alone.

        advance: move past what an empty poll had to walk over (rows of transactions that are open or were rolled back).
        """
        ...

    def claim_one(
        self,
        instance: int,
        *,
        id: int | None = None,
        kind: str | None = None,
        queue: str | None = None,
        early: bool = False,
    ) -> Op[Claimed | None]:
        """Take the best job that meets every condition, by priority, run_at, id; None when there is none.

        Not for workers: for who works one job alone. It may run in a transaction that has written, sees what that wrote, and
        is undone with it. A paused queue gives nothing. early: jobs that are not due yet count too, after all others, the one
        that is due first before the rest.
        """
        ...

    def record_progress(self, records: Sequence[Progress], *, patient: bool = False) -> Op[list[int]]:
        """Keep what running attempts say of themselves. The ids of the jobs whose attempts still were what they were.

        An attempt that somebody is about to end, in a transaction that is open, is left out; who is patient waits for that.
        """
        ...

    def beat(self, instance: int, worker: WorkerInfo) -> Op[None]:
        """A worker lives. The attempts of one that is silent for long are found by `find_stale`."""
        ...

    def find_stale(self, silent: float, limit: int, after: Place | None = None) -> Op[StrandedPage]:
        """Open attempts whose worker has given no sign of life for so many seconds: no beat, and no claim that it has.

        limit: most of a page. after: where the page before ended; only from None on is everything looked at.
        """
        ...

    def find_overdue(self, late: float, limit: int, after: Place | None = None) -> Op[StrandedPage]:
        """The same of those beyond the deadline, the job's own or else that of its claim, by so many seconds."""
        ...

    def unknown(self, instance: int, known: Sequence[int], since: int) -> Op[list[Attempt]]:
        """Open attempts of a worker that it does not know, since the answer to its claim was lost.

        known: the claim ids of attempts it knows and has not ended. since: the claim id before which none can be unknown.
        """
        ...

    def find_expired(self, limit: int) -> Op[ExpiredPage]:
        """Attempts that wait for a callback whose time is up."""
        ...

    # callbacks
    def register_callback(
        self, attempt: Attempt, timeout: float, expressions: str | None, before: str | None = None
    ) -> Op[Registered | None]:
        """Give a running attempt a callback, instead of one it may have. None: the attempt has ended.

        It is decided by what is committed: whoever ends the attempt at the same moment wins, and the callback is dead.
        timeout: seconds that a job waits for it, from now. before: the id of the newest one that its handler was given: if it
        has another one, of a registration whose answer was lost, that is the answer.
        """
        ...

    def find_callback(self, id: str) -> Plan[Callback | None]:
        """Part of an Op: a callback that can still be used, with its attempt; None when there is none."""
        ...

    def find_waiting(self, id: int) -> Plan[Callback | None]:
        """The same of the job of that id, which must wait."""
        ...

    def end_called(self, ended: Ended, flush: int) -> Plan[Verdicts]:
        """Part of an Op: end an attempt whose callback came; its one verdict. STALE: it was used meanwhile. AGAIN: look again.

        It has the caller's patience for locks. Whoever runs the attempt is told.
        """
        ...

    def resume(self, callback: Callback, result: str) -> Plan[bool]:
        """Part of an Op: a handler that waits, or is about to, gets JSON text. Whether the callback still could be used."""
        ...

    def heartbeat_callback(self, callback: Callback, timeout: float) -> Plan[datetime | None]:
        """Part of an Op: its job waits for so many seconds from now. Until when; None: it was used meanwhile."""
        ...

    def wait(self, waits: Sequence[Wait]) -> Op[list[Waited]]:
        """Say that handlers wait, and ask whether what they wait for has come. In the order given, any number of times.

        The deadlines count neither what is said to have been waited nor what passes from then on, whichever comes to more.
        A callback that somebody uses in a transaction that is open has not come, and is not waited for: it is for another time
        to say so.
        """
        ...

    def leave(self, waits: Sequence[Wait]) -> Op[list[int]]:
        """Say that handlers wait no more; their callbacks stay. Once for each attempt, any number of times.

        How long they have waited counts as it is said, also of those whose waiting was never written. The places of those to be
        said again, since somebody uses the callback in a transaction that is open.
        """
        ...

    def tell_ended(self, attempts: Sequence[Attempt]) -> Op[None]:
        """Tell whoever still runs these attempts that somebody else has ended them."""
        ...

    def finalize(self, ended: Sequence[Ended], flush: int) -> Op[Verdicts]:
        """End attempts, one statement per kind of outcome. Verdicts come in the order given.

        flush: a random number below 2**62, the same when the same flush is sent again after an unknown outcome.
        """
        ...

    def promote(self, limit: int, since: datetime | None = None, *, canonical: Sequence[str] = ()) -> Op[Promoted]:
        """Make due deferred jobs available, at most `limit`.

        since: look only at jobs that are due at that moment or later; None for all. canonical: queues whose deferred jobs are
        taken over from canonical storage.
        """
        ...

    def replan(self) -> Op[None]:
        """Let the plans of this connection's statements be made anew: they may be of a time when a log was empty."""
        ...

    def announce(self, queues: Sequence[str], held: Sequence[str] = ()) -> Op[None]:
        """Say on this (listening) connection that its worker sleeps and wants to be woken for these queues, and no others.

        held: what is announced on this connection already.
        """
        ...

    def withdraw(self) -> Op[int | None]:
        """Say that it is awake again and polls by itself. The number of the server process that heard it, if there is one."""
        ...

    def echo(self, payload: str) -> Op[None]:
        """Send a notification that no queue is named by, for who wants to know whether it arrives."""
        ...

    # people
    def get_job(self, id: int) -> Op[JobRow | None]: ...
    def list_jobs(self, filter: JobFilter) -> Op[JobPage[int]]:
        """Jobs, the newest id first; the page knows what `before_id` begins the next one."""
        ...

    def cancel(self, id: int) -> Op[Cancelled]: ...

    def holder(self, key: bytes) -> Op[int | None]:
        """The id of the job that got a unique key last, whatever its state; it may be gone. None when no job did."""
        ...

    def forget_keys(self, limit: int, after: bytes = b"") -> Op[Forgotten]:
        """Forget the keys of jobs that are gone, which keep nobody out: of the next `limit` keys after that one."""
        ...

    def retry(self, id: int) -> Op[JobRow | None]:
        """Make a failed or cancelled job available again, attempt 0. None when it is in no such state.

        A dead letter goes the way of `retry_from_dlq`. Raises UniqueConflict when another job has its unique key meanwhile;
        nothing changed.
        """
        ...

    def move(self, id: int, *, queue: str | None = None, priority: int | None = None) -> Op[Cancelled]:
        """Put a job nobody has claimed into another queue or priority (CANCELLED says that it was moved)."""
        ...

    # dead letters. A bulk call is a statement for each bounded batch, committed by itself; it says how many it changed.
    def list_dlq(self, which: Selection, *, limit: int, before: DlqCursor | None = None) -> Op[JobPage[DlqCursor]]:
        """Dead letters, the newest first by (dlq_at, id)."""
        ...

    def dlq_depth(self, queue: str | None = None) -> Op[int]: ...

    def retry_from_dlq(self, id: int, run_at: datetime | None = None) -> Op[JobRow | None]:
        """A dead letter runs again, attempt 0, now or at run_at; errors are kept, progress is not. None: it is none."""
        ...

    def retry_all_from_dlq(self, which: Selection) -> Op[int]: ...

    def move_to_dlq(self, id: int) -> Op[JobRow | None]:
        """Make a failed job a dead letter. None when it is none that failed (cancelled ones did not)."""
        ...

    def move_failed_to_dlq(self, which: Selection) -> Op[int]: ...
    def purge_dlq_job(self, id: int) -> Op[bool]: ...
    def purge_dlq(self, which: Selection) -> Op[int]: ...

    def prune_dlq(self, older_than: float, limit: int) -> Op[int]:
        """Delete the oldest dead letters, at most `limit`, of those that became so longer ago than so many seconds."""
        ...

    def rebase(self, *, thorough: bool = False) -> Op[bool]:
        """Make a dump that was restored into another cluster right for that; whether it was one.

        `register` and `claim` fail as RESTORED until it is done. thorough: to be said after a claim has.
        """
        ...

    def prune_completed(self, older_than: float, limit: int) -> Op[int]:
        """Forget the oldest completed jobs that are rows, at most `limit`, that ended longer ago than so many seconds."""
        ...

    def prune_failed(self, older_than: float, limit: int) -> Op[int]:
        """The same of failed and cancelled jobs, from when they ended. Both with their unique keys."""
        ...

    def prune_attempts(self, limit: int) -> Op[int]:
        """Delete what is left of attempts that have ended, at most so many."""
        ...

    # failed jobs in bulk (not dead letters, not what was cancelled), and what ends or deletes any
    def retry_failed(self, which: Selection) -> Op[int]: ...
    def discard_failed(self, which: Selection) -> Op[int]: ...

    def delete_job(self, id: int) -> Op[bool]:
        """Hide a job that has ended from every read, for good. False when there is no such job, or it has not ended."""
        ...

    def drain_queue(self, queue: str) -> Op[int]:
        """Cancel all jobs of a queue that wait for anything; running ones go on. How many."""
        ...

    # queues
    def queue_stats(self) -> Op[list[QueueStat]]: ...
    def pause_queue(self, queue: str, by: str | None) -> Op[None]: ...
    def resume_queue(self, queue: str) -> Op[None]: ...
    def set_stripes(self, queue: str, stripes: int) -> Op[None]: ...

    def health(self) -> Op[StoreHealth]:
        """How the database says all is: itself, the workers, who leads, the ring."""
        ...

    # upkeep: what one process does for all of them, now and then. Two that do it at once are both right.
    def lead(self, instance: int, lease: float) -> Op[Leadership]:
        """Be who does it for so many seconds, when nobody is; stay it, when it is this worker; else learn who is."""
        ...

    def resign(self, instance: int) -> Op[None]:
        """Be it no longer."""
        ...

    def put_kinds(self, descriptors: Mapping[str, str]) -> Op[None]:
        """Say of kinds what they are, as JSON text."""
        ...

    def list_kinds(self) -> Op[list[KindInfo]]: ...
    def prune_kinds(self, older_than: float) -> Op[int]:
        """Forget kinds of which no worker has said anything for so many seconds."""
        ...

    def put_cron(self, templates: Sequence[CronTemplate], *, declared: bool) -> Op[int]:
        """Make cron jobs, or make those of the same names like these; how many were made or changed.

        declared: by code, which changes only what it did not say before.
        """
        ...

    def list_cron(self, name: str | None = None) -> Op[tuple[datetime, list[CronJob]]]:
        """The time of the database, and all cron jobs by name, or the one of a name."""
        ...

    def pass_fires(self, fires: Sequence[Fire]) -> Plan[list[str]]:
        """Part of an atomic Op: of which cron jobs this transaction enqueues the fires, since nobody else has. By name."""
        ...

    def pause_cron(self, name: str, by: str | None) -> Op[bool]: ...
    def resume_cron(self, name: str) -> Op[bool]: ...
    def edit_cron(self, name: str, changes: Mapping[str, Any]) -> Op[bool]: ...
    def delete_cron(self, name: str) -> Op[bool]: ...

    def sweep(self, most: int = 5000) -> Op[int]:
        """Note how far down the claims of each lane all is over; `most` claims of a lane in a statement. How many were new."""
        ...

    def rotate(self, retention: float | None = None, larger_than: int | None = None) -> Op[Rotation]:
        """Let another segment take new jobs, when it is time.

        retention: seconds that completed jobs are kept; what is open takes new jobs for its share of them, unless it is empty.
        larger_than: bytes at which it is time whatever the age. None: that is no reason.
        """
        ...

    def probe(self) -> Op[Probe]:
        """Look into every segment, so that workers look into those that have something to claim, and into no others.

        To be run every few seconds: so long may it take until a row is found that a transaction has committed late.
        """
        ...

    def prune(self, retention: float) -> Op[Pruned]:
        """Empty the oldest segment whose last attempt ended longer ago than so many seconds, and whose attempts all have.

        To be run again while it says that there may be more. `sweep` before keeps it cheap.
        """
        ...
