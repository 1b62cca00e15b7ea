"""Operations: every call of a client, as an Op. Signature, types and docstring exist once, here.

A client method is a binding of one of these (`awa_proto.binding`). What a user passed is checked when the Op is made,
so nothing is sent of what is refused. `using=` puts the Op into the open transaction of a connection of the caller;
which types that may be is the driver's to say, and the core never looks at it.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Generic, Literal, NoReturn, TypeAlias, TypeVar, assert_never

from awa_proto import events
from awa_proto import schema as schema_
from awa_proto.args import JobArgs, to_object
from awa_proto.callbacks.books import Books
from awa_proto.callbacks.operations import CallbackOperations
from awa_proto.contact import Calls
from awa_proto.cron.operations import CronOperations
from awa_proto.dead_letters import DeadLetterPolicy
from awa_proto.errors import DatabaseError, JobNotFound, UniqueConflict, ValidationError
from awa_proto.events import AnyEvent
from awa_proto.extra import compact
from awa_proto.followup import NO_FOLLOW_UPS, FollowUps, Registered
from awa_proto.health import StoreHealth
from awa_proto.intake import Intake
from awa_proto.job import Attempt, DlqCursor, JobPage, JobRow, JobState, StateName
from awa_proto.options import EnqueueRequest, InsertOpts, flag, instant, name, text, whole
from awa_proto.outcome import DeadLetter, ReasonName, Seconds, seconds
from awa_proto.plan import Op, Plan
from awa_proto.recording import Recording
from awa_proto.schema.ring import LEAST, MOST
from awa_proto.store import Cancelled, JobFilter, KindInfo, Progress, QueueStat, Selection, Store
from awa_proto.store import Registered as CallbackRegistered
from awa_proto.task import Task
from awa_proto.unique import UniqueFields, UniqueOpts

_log = logging.getLogger("awa")

C = TypeVar("C")
T = TypeVar("T")
U = TypeVar("U")

OnConflict: TypeAlias = Literal["raise", "skip"]

MOST_LISTED: Final = 1000
MOST_STRIPES: Final = 64
_MOST_ASKS = 10
"""How often a job that moves while it is asked for is looked for again, before the whole Op is tried again."""
_BIGINT = 2**63 - 1


def _untraced() -> None:
    """The trace context where nothing is traced."""


class Operations(CronOperations, CallbackOperations[C], Generic[C]):
    """The calls of a client whose jobs are in one store, generic over the connections that `using=` takes.

    tasks: the kinds the client knows, as they are when a job is enqueued. schema: where `migrate` creates the store.
    now: the time of the host, for the periods of unique jobs.
    hooked: the kinds that have hooks, as they are when something is done to a job.
    traceparent: asked once a call for the trace context of its caller, which its jobs get; None for none.
    registered: the follow-ups of jobs that are ended by their callbacks. dead_letters: which of those that fail are kept apart.
    calls: what is counted, and by which clock. random: floats in [0, 1), other ones each time, for the numbers by which flushes
    are told apart.
    """

    def __init__(
        self,
        store: Store,
        tasks: Mapping[str, Task],
        schema: str,
        now: Callable[[], datetime],
        hooked: Collection[str] = (),
        traceparent: Callable[[], str | None] = _untraced,
        *,
        random: Callable[[], float],
        registered: Registered = NO_FOLLOW_UPS,
        dead_letters: DeadLetterPolicy | None = None,
        calls: Calls | None = None,
    ) -> None:
        self._store = store
        self.traceparent = traceparent
        self.intake = Intake(tasks, now)
        self._hooked = hooked
        self._schema = schema
        self._follow_ups = FollowUps(registered, self.intake)
        self._dead_letters = DeadLetterPolicy() if dead_letters is None else dead_letters
        self._books = Books(Calls(lambda: now().timestamp()) if calls is None else calls)
        self._random = random

    # enqueue

    def insert(
        self,
        args: JobArgs | EnqueueRequest,
        *,
        kind: str | None = None,
        queue: str | None = None,
        priority: int | None = 2,
        max_attempts: int | None = 25,
        run_at: datetime | None = None,
        deadline_duration: Seconds | None = None,
        metadata: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = (),
        unique_opts: UniqueOpts | UniqueFields | None = None,
        ordering_key: str | bytes | None = None,
        notify: bool | None = True,
        on_conflict: OnConflict = "raise",
        using: C | None = None,
    ) -> Op[JobRow]:
        """Enqueue one job, and return it.

        Args:
            args: A dataclass instance, a pydantic model, a mapping, or an EnqueueRequest, whose own options count.
            kind: Instead of the one a task of the class of `args` is registered for, or else the class's own; a mapping
                needs it, or a key "kind".
            queue: At most 200 characters; by default the queue of the kind's task, else "default".
            priority: 1 (first) to 4.
            max_attempts: 1 to 1000; a job whose last attempt fails has failed.
            run_at: When it is due, an aware datetime; now by default.
            deadline_duration: Seconds (or a timedelta) an attempt may run; by default what the worker's queue says.
            metadata: A JSON object of at most 64 KiB; keys beginning with awa: or _awa_ are reserved.
            tags: At most 20.
            unique_opts: What makes it the same as another job, of which there is then only one: UniqueOpts, or a mapping of
                their fields; `{}` means its kind and args.
            ordering_key: Jobs of one key go to one stripe of a striped queue.
            notify: False lets sleeping workers find the job by polling, which is cheaper.
            on_conflict: What to do when there is such a job already: "raise", or "skip", which returns that job, marked
                `existed`. Either leaves your transaction as it was; one that has enqueued such a job makes others wait for it.
            using: A connection of your own: the job exists if and only if its open transaction commits; in none it is
                refused.

        Raises:
            ValidationError: Before anything is sent, naming the field and its limit.
            UniqueConflict: There is such a job; its id is `error.job_id`.
            DatabaseError: Nothing was written, or (`error.failure` says so) the outcome is unknown.
        """
        options: InsertOpts = {
            "kind": kind, "queue": queue, "priority": priority, "max_attempts": max_attempts, "run_at": run_at,
            "deadline_duration": deadline_duration, "metadata": metadata, "tags": tags, "unique_opts": unique_opts,
            "ordering_key": ordering_key, "notify": notify,
        }  # fmt: skip
        skip = _skips(on_conflict)
        job, wake = self.intake.one(args, options, self.traceparent())
        return _only(self._store.insert([job], notify=wake, skip=skip)).on(using)

    def insert_many(
        self,
        jobs: Iterable[JobArgs | EnqueueRequest],
        *,
        kind: str | None = None,
        queue: str | None = None,
        priority: int | None = 2,
        max_attempts: int | None = 25,
        run_at: datetime | None = None,
        deadline_duration: Seconds | None = None,
        metadata: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = (),
        unique_opts: UniqueOpts | UniqueFields | None = None,
        ordering_key: str | bytes | None = None,
        notify: bool | None = True,
        on_conflict: OnConflict = "raise",
        using: C | None = None,
    ) -> Op[list[JobRow]]:
        """Enqueue many jobs in one statement, all or none, and return them in the order given.

        `jobs` are args as `insert` takes them, or EnqueueRequests with options of their own. The options given here are
        those of `insert`, for all jobs that do not say otherwise (None says nothing); workers are told when any of the jobs
        wants it. on_conflict="skip" enqueues the jobs that are not there already, of several alike the first, and returns in
        the place of each other one the job that is there.

        Raises:
            ValidationError: Before anything is sent, naming the job (`jobs[3].args`) and the limit.
            UniqueConflict: One of them is there already, or twice among them: `error.index` says which. None is enqueued.
            DatabaseError: As `insert`.
        """
        options: InsertOpts = {
            "kind": kind, "queue": queue, "priority": priority, "max_attempts": max_attempts, "run_at": run_at,
            "deadline_duration": deadline_duration, "metadata": metadata, "tags": tags, "unique_opts": unique_opts,
            "ordering_key": ordering_key, "notify": notify,
        }  # fmt: skip
        skip = _skips(on_conflict)
        new, wake = self.intake.many(jobs, options, self.traceparent())
        return self._store.insert(new, notify=wake, skip=skip).on(using)

    def enqueue_many(
        self,
        jobs: Iterable[JobArgs | EnqueueRequest],
        *,
        kind: str | None = None,
        queue: str | None = None,
        priority: int | None = 2,
        max_attempts: int | None = 25,
        run_at: datetime | None = None,
        deadline_duration: Seconds | None = None,
        metadata: Mapping[str, Any] | None = None,
        tags: Sequence[str] | None = (),
        unique_opts: UniqueOpts | UniqueFields | None = None,
        ordering_key: str | bytes | None = None,
        notify: bool | None = True,
        on_conflict: OnConflict = "raise",
    ) -> Op[int]:
        """Enqueue very many jobs by COPY, all or none, and return how many.

        Arguments as `insert_many`. Jobs that are due and have no options of their own are checked and encoded while
        those before them are on their way; what is refused ends the transaction, so nothing is written. With
        on_conflict="skip" the number is that of the jobs that were not there already.

        Raises:
            ValidationError: Naming the job (`jobs[3].args`) and the limit.
            UniqueConflict: As `insert_many`.
            DatabaseError: As `insert`.
        """
        options: InsertOpts = {
            "kind": kind, "queue": queue, "priority": priority, "max_attempts": max_attempts, "run_at": run_at,
            "deadline_duration": deadline_duration, "metadata": metadata, "tags": tags, "unique_opts": unique_opts,
            "ordering_key": ordering_key, "notify": notify,
        }  # fmt: skip
        skip = _skips(on_conflict)
        given = self.intake.listed(jobs)
        plain = run_at is None and unique_opts is None
        if given and plain and not any(isinstance(job, EnqueueRequest) for job in given):
            checked = self.intake.checked(options, self.traceparent())
            return self._store.copy(self.intake.on_the_way(given, checked), notify=checked.notify, skip=skip)
        new, wake = self.intake.many(given, options, self.traceparent())
        return self._store.copy(new, notify=wake, skip=skip)

    # what a handler says of its attempt

    def flush_progress(self, attempt: Attempt, recording: Recording | None) -> Op[bool]:
        """Write the progress of a running attempt now. Whether the attempt still is the job's newest, and runs."""
        if recording is None or recording.progress is None:
            return Op("record_progress", lambda: _return(True))
        progress = recording.progress

        def written(kept: list[int]) -> bool:
            recording.flushed(progress)
            return attempt.id in kept

        return _then(self._store.record_progress([Progress(attempt, compact(progress))], patient=True), written)

    def register_callback(
        self, attempt: Attempt, timeout: float, expressions: str | None, before: str | None = None
    ) -> Op[CallbackRegistered | None]:
        """Give a running attempt a callback, as `job.register_callback` does. None: it has ended.

        before: the id of the newest one that its handler was given.
        """
        return self._store.register_callback(attempt, timeout, expressions, before)

    # single jobs

    def get_job(self, id: int, /) -> Op[JobRow | None]:
        """The job with this id, or None when there is none (any more)."""
        return self._store.get_job(_id(id))

    def list_jobs(
        self,
        *,
        state: JobState | StateName | None = None,
        kind: str | None = None,
        queue: str | None = None,
        tag: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        limit: int = 100,
        before_id: int | None = None,
    ) -> Op[JobPage[int]]:
        """Jobs, newest first, without outputs. All conditions must hold; None is no condition.

        The result is a list that knows where the next page begins, `next`. One call looks at a bounded number of jobs: if
        few of very many meet the conditions, a page may be short, or empty, and not be the last. Go on while `next` is not
        None.

        Args:
            state: The state they are in.
            kind: Their kind.
            queue: Their queue.
            tag: A tag they have.
            metadata: What their metadata contain, as jsonb of PostgreSQL says it (`@>`): these keys with these values.
            limit: Most jobs returned, 1 to 1000.
            before_id: Only older jobs than this one: for the next page, `next` of this page.

        Raises:
            ValidationError: Naming the condition and its limit.
        """
        return self._store.list_jobs(
            JobFilter(
                state=None if state is None else _state(state),
                kind=None if kind is None else name("kind", kind),
                queue=None if queue is None else name("queue", queue),
                tag=None if tag is None else text("tag", tag),
                metadata=None if metadata is None else _contained(metadata),
                before_id=None if before_id is None else _id(before_id, "before_id"),
                limit=whole("limit", limit, 1, MOST_LISTED),
            )
        )

    def cancel(self, id: int, /, *, using: C | None = None) -> Op[bool]:
        """Cancel a job that has not ended. True when this call ended it, False when it had ended before.

        A running job is cancelled at once, as far as the database is concerned; its handler is told, and whatever it
        returns afterwards counts for nothing. Hooks of this client are told Cancelled, once it is committed.

        Args:
            id: The job's.
            using: A connection of your own, in whose open transaction this happens; until that ends, no worker claims
                from the lane of the job. No hook is told: whether you commit is not known here.

        Raises:
            JobNotFound: There is no such job.
        """
        op = self._store.cancel(_id(id))

        def plan() -> Plan[tuple[bool, list[AnyEvent]]]:
            for _ in range(_MOST_ASKS):
                answer = yield from op.start()
                match answer:
                    case Cancelled.CANCELLED | Cancelled.RUNNING:
                        return True, (yield from self._cancelled(id, using))
                    case Cancelled.ENDED:
                        return False, []
                    case Cancelled.NOT_FOUND:
                        raise JobNotFound(id)
                    case Cancelled.AGAIN:
                        continue
                    case _:
                        assert_never(answer)
            _moving(id)

        return _telling(_as(op, plan)).on(using)

    def _cancelled(self, id: int, using: C | None) -> Plan[list[AnyEvent]]:
        """The event of a job that was cancelled. It is read only if there is anybody to tell.

        A failure costs the event alone: what was done before it is done, and in a transaction its COMMIT says so again.
        """
        if using is not None or not self._hooked:
            return []
        try:
            job = yield from self._store.get_job(id).start()
        except DatabaseError as error:
            _log.warning(
                "hooks are not told that job %d was cancelled, since it could not be read: %s", id, error,
                extra={"awa": {"job": id, "error": str(error)}},
            )  # fmt: skip
            return []
        return [events.Cancelled(job, None, "")] if job is not None and job.kind in self._hooked else []

    def cancel_by_unique_key(
        self,
        *,
        kind: str | None = None,
        args: JobArgs | None = None,
        queue: str | None = None,
        by_period: Seconds | None = None,
        at: datetime | None = None,
        using: C | None = None,
    ) -> Op[int | None]:
        """Cancel, as `cancel`, the job that has a unique key, and return its id; None when there is none or it has ended.

        What is given repeats what its `unique_opts` chose: all of it, and nothing else.

        Args:
            kind: Its kind; by default that of `args`.
            args: Its args, unless it was enqueued with by_args=False.
            queue: Its queue, if it was enqueued with by_queue=True.
            by_period: The period, if it was enqueued with one.
            at: When it was due, for the period; now by default.
            using: A connection of your own, in whose open transaction this happens, as `cancel`.

        Raises:
            ValidationError: Naming the field and its limit.
        """
        key = self.intake.key(kind=kind, args=args, queue=queue, by_period=by_period, at=at)

        def plan() -> Plan[tuple[int | None, list[AnyEvent]]]:
            over: int | None = None
            for _ in range(_MOST_ASKS):
                id = yield from self._store.holder(key).start()
                if id is None or id == over:
                    return None, []
                answer = yield from self._store.cancel(id).start()
                if answer in {Cancelled.CANCELLED, Cancelled.RUNNING}:
                    return id, (yield from self._cancelled(id, using))
                if answer is not Cancelled.AGAIN:  # it had ended, and another one may have got the key since
                    over = id
            raise DatabaseError("the job that has the unique key kept moving while it was asked for", "40001")

        return _telling(Op("cancel_by_unique_key", plan, safe_to_retry=True)).on(using)

    def retry(self, id: int, /) -> Op[JobRow]:
        """Make a failed or cancelled job available again, from attempt 0, and return it. Dead letters as `retry_from_dlq`.

        A job that waits for a callback waits no more; the callback is dead.

        Raises:
            JobNotFound: There is no such job.
            ValidationError: It is in another state; the message says in which.
            UniqueConflict: Another job has its unique key meanwhile; nothing changed. One that waits is cancelled instead.
        """
        op = self._store.retry(_id(id))

        def plan() -> Plan[JobRow | None]:
            return (yield from op.start()) or (yield from self._retried_waiting(id))

        return self._or_why(
            _as(op, plan),
            id,
            lambda job: job.state in {JobState.FAILED, JobState.CANCELLED, JobState.WAITING_EXTERNAL},
            "only failed and cancelled jobs, and those that wait for a callback, can be retried",
        )

    # dead letters

    def list_dlq(
        self,
        *,
        kind: str | None = None,
        queue: str | None = None,
        tag: str | None = None,
        reason: DeadLetter | ReasonName | None = None,
        limit: int = 100,
        before: DlqCursor | None = None,
    ) -> Op[JobPage[DlqCursor]]:
        """Dead letters, those of last first. All conditions must hold; None is no condition.

        Their `dlq_reason` and `dlq_at` say why and since when. A dead letter is a failed job: `get_job` finds it, and lists
        and counts of failed jobs have it as well.

        Args:
            kind: Their kind.
            queue: Their queue.
            tag: A tag they have.
            reason: Why they are dead letters.
            limit: Most jobs returned, 1 to 1000.
            before: For the next page, `next` of this page. A page may be short, or empty, and not be the last.

        Raises:
            ValidationError: Naming the condition and its limit.
        """
        which = Selection(
            kind=None if kind is None else name("kind", kind),
            queue=None if queue is None else name("queue", queue),
            tag=None if tag is None else text("tag", tag),
            reason=None if reason is None else _reason(reason),
        )
        return self._store.list_dlq(
            which, limit=whole("limit", limit, 1, MOST_LISTED), before=None if before is None else _dlq_cursor(before)
        )

    def get_dlq_job(self, id: int, /) -> Op[JobRow | None]:
        """The dead letter with this id, or None when there is none."""
        return _then(self._store.get_job(_id(id)), lambda job: job if job is not None and job.dlq_at else None)

    def dlq_depth(self, queue: str | None = None) -> Op[int]:
        """How many dead letters there are, in a queue or in all of them."""
        return self._store.dlq_depth(None if queue is None else name("queue", queue))

    def retry_from_dlq(self, id: int, /, *, run_at: datetime | None = None) -> Op[JobRow]:
        """Make a dead letter run again, from attempt 0, and return it. Its errors are kept, its progress is not.

        Args:
            id: The job's.
            run_at: When it is due, an aware datetime; now by default.

        Raises:
            JobNotFound: There is no such job.
            ValidationError: It is no dead letter.
            UniqueConflict: Another job has its unique key meanwhile; nothing changed.
        """
        op = self._store.retry_from_dlq(_id(id), instant("run_at", run_at))
        return self._or_why(op, id, lambda job: job.dlq_at is not None, "only dead letters come from there")

    def retry_all_from_dlq(
        self,
        *,
        kind: str | None = None,
        queue: str | None = None,
        tag: str | None = None,
        reason: DeadLetter | ReasonName | None = None,
        older_than: Seconds | None = None,
        limit: int | None = None,
        allow_all: bool = False,
    ) -> Op[int]:
        """Make dead letters run again now, as `retry_from_dlq`, and return how many. All conditions must hold.

        Those whose unique key another job has stay where they are.
        It goes in batches, each a transaction of its own: after an error some are done, and calling it again goes on.

        Args:
            kind: Their kind.
            queue: Their queue.
            tag: A tag they have.
            reason: Why they are dead letters.
            older_than: Seconds (or a timedelta) since they became dead letters, at least.
            limit: Most jobs changed, those with the lowest ids; all by default.
            allow_all: Without any condition this has to be said.

        Raises:
            ValidationError: There is no condition, or naming the one that is wrong.
        """
        which = _selection(kind, queue, tag, older_than, limit, reason=reason, allow_all=allow_all)
        return self._store.retry_all_from_dlq(which)

    def move_to_dlq(self, id: int, /) -> Op[JobRow]:
        """Make a failed job a dead letter, reason "moved", and return it.

        Raises:
            JobNotFound: There is no such job.
            ValidationError: It has not failed, or is a dead letter already.
        """
        return self._or_why(
            self._store.move_to_dlq(_id(id)),
            id,
            lambda job: job.state is JobState.FAILED and job.dlq_at is None,
            "only failed jobs can be moved to the dead letters",
        )

    def move_failed_to_dlq(
        self,
        *,
        kind: str | None = None,
        queue: str | None = None,
        tag: str | None = None,
        older_than: Seconds | None = None,
        limit: int | None = None,
        allow_all: bool = False,
    ) -> Op[int]:
        """Make failed jobs dead letters, reason "moved", and return how many. Cancelled jobs have not failed.

        Conditions and batches as `retry_all_from_dlq`; `older_than` counts from when they failed.

        Raises:
            ValidationError: There is no condition, or naming the one that is wrong.
        """
        which = _selection(kind, queue, tag, older_than, limit, allow_all=allow_all)
        return self._store.move_failed_to_dlq(which)

    def purge_dlq_job(self, id: int, /) -> Op[bool]:
        """Delete a dead letter for good. False when there is none with this id."""
        return self._store.purge_dlq_job(_id(id))

    def purge_dlq(
        self,
        *,
        kind: str | None = None,
        queue: str | None = None,
        tag: str | None = None,
        reason: DeadLetter | ReasonName | None = None,
        older_than: Seconds | None = None,
        limit: int | None = None,
        allow_all: bool = False,
    ) -> Op[int]:
        """Delete dead letters for good, and return how many. Conditions and batches as `retry_all_from_dlq`.

        Raises:
            ValidationError: There is no condition, or naming the one that is wrong.
        """
        which = _selection(kind, queue, tag, older_than, limit, reason=reason, allow_all=allow_all)
        return self._store.purge_dlq(which)

    # many jobs at once

    def retry_failed(
        self,
        *,
        kind: str | None = None,
        queue: str | None = None,
        tag: str | None = None,
        older_than: Seconds | None = None,
        limit: int | None = None,
        allow_all: bool = False,
    ) -> Op[int]:
        """Make failed jobs available again, from attempt 0, and return how many. Not dead letters, nor what was cancelled.

        It goes in batches, each a transaction of its own: after an error some are done, and calling it again goes on.

        Args:
            kind: Their kind.
            queue: Their queue.
            tag: A tag they have.
            older_than: Seconds (or a timedelta) since they failed, at least.
            limit: Most jobs changed, those with the lowest ids; all by default.
            allow_all: Without any condition this has to be said.

        Raises:
            ValidationError: There is no condition, or naming the one that is wrong.
        """
        return self._store.retry_failed(_selection(kind, queue, tag, older_than, limit, allow_all=allow_all))

    def discard_failed(
        self,
        *,
        kind: str | None = None,
        queue: str | None = None,
        tag: str | None = None,
        older_than: Seconds | None = None,
        limit: int | None = None,
        allow_all: bool = False,
    ) -> Op[int]:
        """Delete failed jobs for good, and return how many. Not dead letters, nor what was cancelled.

        Conditions and batches as `retry_failed`.

        Raises:
            ValidationError: There is no condition, or naming the one that is wrong.
        """
        return self._store.discard_failed(_selection(kind, queue, tag, older_than, limit, allow_all=allow_all))

    def delete_job(self, id: int, /) -> Op[bool]:
        """Delete a job that has ended, with its output and errors, for every read at once. False when there is no such job.

        Of a completed job the bytes stay on disk until its segment is pruned.

        Raises:
            ValidationError: It has not ended.
        """
        op, look = self._store.delete_job(_id(id)), self._store.get_job(id)

        def plan() -> Plan[bool]:
            for _ in range(_MOST_ASKS):
                if (yield from op.start()):
                    return True
                job = yield from look.start()
                if job is None:
                    return False
                if not job.state.is_terminal:
                    raise ValidationError("id", f"job {id} is {job.state}; only jobs that have ended can be deleted")
            _moving(id)

        return _as(op, plan)

    def drain_queue(self, queue: str, /) -> Op[int]:
        """Cancel all jobs of a queue that wait, whether available, scheduled or to be retried, and return how many.

        Running jobs go on, and may be retried; pause the queue and cancel them to be rid of them too. Jobs enqueued meanwhile
        may be cancelled or not. It goes in batches, each a transaction of its own: after an error some are done, and calling
        it again goes on.

        Raises:
            ValidationError: The name cannot be that of a queue.
        """
        return self._store.drain_queue(name("queue", queue))

    def _or_why(self, op: Op[JobRow | None], id: int, fits: Callable[[JobRow], bool], only: str) -> Op[JobRow]:
        """The job an Op gives; when it gives none, an error that says why, unless the job has moved meanwhile."""
        look = self._store.get_job(id)

        def plan() -> Plan[JobRow]:
            for _ in range(_MOST_ASKS):
                job = yield from op.start()
                if job is not None:
                    return job
                job = yield from look.start()
                if job is None:
                    raise JobNotFound(id)
                if not fits(job):
                    what = "a dead letter" if job.dlq_at is not None else job.state
                    raise ValidationError("id", f"job {id} is {what}; {only}")
            _moving(id)

        return _as(op, plan)

    # queues and schema

    def list_kinds(self) -> Op[list[KindInfo]]:
        """The kinds of jobs that workers run or ran in the last thirty days, by name, and what they said of them.

        Raises:
            DatabaseError: See `error.failure`.
        """
        return self._store.list_kinds()

    def queue_stats(self) -> Op[list[QueueStat]]:
        """How many jobs of each queue are in each state, and how long the oldest has been waiting.

        Not of one moment: a job that changes its state meanwhile may be counted twice, or not at all.

        Raises:
            DatabaseError: See `error.failure`.
        """
        return self._store.queue_stats()

    def health(self) -> Op[StoreHealth]:
        """What the database says of how all is; the part of a client's `health()` that has to be asked for."""
        return self._store.health()

    def pause_queue(self, queue: str, /, *, by: str | None = None) -> Op[None]:
        """No worker takes jobs of this queue until it is resumed; enqueueing goes on, and so do running jobs.

        Args:
            queue: Its name; it need not have jobs yet.
            by: Who paused it, for the people who find it paused.
        """
        return self._store.pause_queue(name("queue", queue), None if by is None else text("by", by))

    def resume_queue(self, queue: str, /) -> Op[None]:
        """Workers take jobs of this queue again."""
        return self._store.resume_queue(name("queue", queue))

    def set_stripes(self, queue: str, stripes: int, /) -> Op[None]:
        """Spread new jobs of a queue over stripes, for more claims a second than one stripe allows (about 2,000).

        Jobs of one `ordering_key` stay in one stripe, in order; between stripes there is no order.

        Args:
            queue: Its name.
            stripes: 1 to 64.
        """
        return self._store.set_stripes(name("queue", queue), whole("stripes", stripes, 1, MOST_STRIPES))

    def migrate(self, *, segments: int | None = None) -> Op[int]:
        """Create the schema, or bring it to the version of this code. Returns how many migrations were applied.

        Safe when many processes do it at once.

        Args:
            segments: Of the ring, 4 to 32. A ring in use grows to that; it never gets smaller. By default as many as there
                are, and 8 in a new schema.

        Raises:
            SchemaNotMigrated: The database is newer than this code.
            ValidationError: `segments` is outside of its limits, or fewer than there are. Nothing was changed.
        """
        wanted = None if segments is None else whole("segments", segments, LEAST, MOST)
        return schema_.migrate(self._schema, wanted)


def _id(value: object, field: str = "id") -> int:
    return whole(field, value, 0, _BIGINT)


def _state(value: object) -> JobState:
    if not isinstance(value, str) or value not in list(JobState):
        shown = repr(value[:40]) if isinstance(value, str) else f"a value of type {type(value).__name__}"
        raise ValidationError("state", f"{shown} is none of {', '.join(JobState)}")
    return JobState(value)


def _contained(value: object) -> str:
    if not isinstance(value, Mapping):
        raise ValidationError("metadata", f"a mapping is needed, not {type(value).__name__}")
    return to_object("metadata", value)[0]


def _reason(value: object) -> DeadLetter:
    if not isinstance(value, str) or value not in list(DeadLetter):
        shown = repr(value[:40]) if isinstance(value, str) else f"a value of type {type(value).__name__}"
        raise ValidationError("reason", f"{shown} is none of {', '.join(DeadLetter)}")
    return DeadLetter(value)


def _dlq_cursor(value: object) -> DlqCursor:
    if not isinstance(value, tuple) or len(value) != 2:
        raise ValidationError(
            "before", f"(dlq_at, id), as `next` of a page says, is needed, not {type(value).__name__}"
        )
    since = instant("before", value[0])
    if since is None:
        raise ValidationError("before", "has no time")
    return since, _id(value[1], "before")


def _selection(
    kind: str | None,
    queue: str | None,
    tag: str | None,
    older_than: Seconds | None,
    limit: int | None,
    *,
    reason: DeadLetter | ReasonName | None = None,
    allow_all: bool,
) -> Selection:
    """The conditions of a bulk call, of which there must be one, or the word that none is meant."""
    found = Selection(
        kind=None if kind is None else name("kind", kind),
        queue=None if queue is None else name("queue", queue),
        tag=None if tag is None else text("tag", tag),
        reason=None if reason is None else _reason(reason),
        older_than=None if older_than is None else seconds("older_than", older_than),
        limit=None if limit is None else whole("limit", limit, 1, _BIGINT),
    )
    if not flag("allow_all", allow_all) and dataclasses.replace(found, limit=None) == Selection():
        raise ValidationError(
            "allow_all", "no condition says which jobs are meant; if it is all of them, say allow_all=True"
        )
    return found


def _as(op: Op[Any], plan: Callable[[], Plan[T]]) -> Op[T]:
    """An Op of the same name and facts with another plan around it."""
    return dataclasses.replace(op, start=plan)


def _telling(op: Op[tuple[T, Sequence[AnyEvent]]]) -> Op[T]:
    """An Op whose plan gives its result, and beside it the events to tell after the commit."""
    told: list[AnyEvent] = []

    def plan() -> Plan[T]:
        told.clear()  # of a run before, which was undone
        result, found = yield from op.start()
        told.extend(found)
        return result

    return dataclasses.replace(_as(op, plan), events=told)


def _then(op: Op[T], change: Callable[[T], U]) -> Op[U]:
    def plan() -> Plan[U]:
        return change((yield from op.start()))

    return _as(op, plan)


def _only(op: Op[list[JobRow]]) -> Op[JobRow]:
    def plan() -> Plan[JobRow]:
        try:
            return (yield from op.start())[0]
        except UniqueConflict as conflict:
            raise UniqueConflict(conflict.job_id) from None

    return _as(op, plan)


def _return(value: T) -> Plan[T]:
    yield from ()
    return value


def _skips(on_conflict: object) -> bool:
    """Whether jobs that are there already are left out."""
    if not isinstance(on_conflict, str) or on_conflict not in {"raise", "skip"}:
        shown = (
            repr(on_conflict[:40]) if isinstance(on_conflict, str) else f"a value of type {type(on_conflict).__name__}"
        )
        raise ValidationError("on_conflict", f'{shown} is neither "raise" nor "skip"')
    return on_conflict == "skip"


def _moving(id: int) -> NoReturn:
    """After too many asks: as a serialization failure, so the Op is tried again after a pause, or by the caller."""
    raise DatabaseError(f"job {id} kept moving while it was asked for", "40001")
