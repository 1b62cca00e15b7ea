"""Rescue: ending attempts that their own worker does not end, since it is dead or stuck, they are beyond their deadline, or
their callback did not come in time.

Three duties of the leader. Each looks for a page of such attempts, ends them like any flush, and looks for the next page:

what was found                       | what becomes of it
-------------------------------------|--------------------------------------------------------------------------
an attempt                           | counts as failed: retryable with back-off, or failed for good on the last one
its result is refused by the database| it is taken out of its batch, in halves; the others are ended
somebody was faster                  | nothing: it is ended, or is found again
nothing could be written             | the same once more, twice; then it is found again

Whoever still runs such an attempt is told, and cancels its handler. Hooks are told `Rescued`, and `Exhausted` after it.
Follow-ups are best effort: in a transaction of their own after the commit, and what fails there is logged and leaves the
rescue as it is.

A database that was away has heard nobody: no heartbeat, no result, and not that a handler waits, which stops its deadline. So
after it was, nobody is taken as dead, and no attempt as overdue, before every worker has had the time to beat and to write.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from awa_proto.errors import OF_ONE, DatabaseError
from awa_proto.events import RescueReason
from awa_proto.flush import flush_number
from awa_proto.followup import FollowUp, FollowUpError
from awa_proto.job import Attempt, JobRow, JobState
from awa_proto.outcome import Outcome, conclude
from awa_proto.plan import Op
from awa_proto.store import Called, Ended, ExpiredPage, NewJob, Place, Stranded, StrandedPage, Verdict, Verdicts
from awa_proto.worker.context import Context
from awa_proto.worker.endings import Endings
from awa_proto.worker.events import Lane
from awa_proto.worker.happened import job_after, rescued
from awa_proto.worker.report import ERROR, INFO, WARNING, about
from awa_proto.worker.tally import RESCUED
from awa_proto.worker.upkeep import Duty

PAGE: Final = 500
"""Most attempts that one look finds; the next one follows at once."""
LATE: Final = 1.5
"""Seconds beyond its deadline until an attempt is ended from outside: its own worker does it at the moment itself."""
OF_CALLBACKS: Final = "rescue of expired callbacks"
LOOK_EVERY: Final = 5.0
"""Seconds between two looks for callbacks that are late, at most. That one is due sooner comes by notification."""
SOON: Final = 0.02
MOST_UNKNOWN: Final = 100
"""Most unknown kinds that health names."""
_TRIES: Final = 3


def rescues(context: Context, told: Callable[[tuple[int, int]], None]) -> list[Duty]:
    """The duties. told: called with the (id, run_lease) of each attempt that was ended, should this worker run it itself."""
    settings, store, lanes = context.config.liveness, context.store, context.lanes

    def stale(after: Place | None) -> Op[StrandedPage]:
        return store.find_stale(settings.stale_after, PAGE, after)

    def overdue(after: Place | None) -> Op[StrandedPage]:
        return store.find_overdue(LATE, PAGE, after)

    def heard_again() -> float:
        return lanes.back_at

    def written_again() -> float:
        """A deadline may have passed in an outage that is too short for a heartbeat to be missed."""
        return max(lanes.back_at, lanes.returned_at[Lane.UPKEEP])

    distrust = settings.heartbeat_interval
    of_silent = Abandoned(context, told, RescueReason.STALE_HEARTBEAT, stale, heard_again, distrust)
    of_overdue = Abandoned(context, told, RescueReason.DEADLINE_EXCEEDED, overdue, written_again, distrust)
    of_expired = Expired(context, told, RescueReason.EXPIRED_CALLBACK)
    return [
        Duty("rescue of silent workers", settings.rescue_interval, of_silent.look, of_silent.found),
        Duty("rescue of overdue attempts", settings.deadline_interval, of_overdue.look, of_overdue.found),
        Duty(OF_CALLBACKS, LOOK_EVERY, of_expired.look, of_expired.found),
    ]


class Rescue:
    """One reason to end attempts from outside, and the ending."""

    __slots__ = ("_context", "_endings", "_reason", "_told")

    def __init__(self, context: Context, told: Callable[[tuple[int, int]], None], reason: RescueReason) -> None:
        self._context = context
        self._endings = Endings(context)
        self._told = told
        self._reason = reason

    def _rescued(self, stranded: Stranded, called: Called | None = None) -> Ended:
        attempt, at = stranded
        context = self._context
        transition = conclude(
            attempt, self._reason, at, context.random, dead_letters=context.config.keeps_dead_letters(attempt.queue)
        )
        # whatever it has recorded and registered since it was looked at goes as well: it may be slow, and not dead
        return Ended(attempt, transition, flushed=True, called=called)

    def _end(self, ended: Sequence[Ended], tries: int, flush: int | None = None) -> None:
        """Write it. flush: that of an earlier sending, which may have been committed."""
        number = flush_number(self._context.random) if flush is None else flush

        def done(verdicts: Verdicts, now: float) -> None:
            self._written(ended, verdicts, now)

        def failed(error: DatabaseError, now: float) -> None:
            self._context.last_error = error
            if len(ended) > 1 and error.failure in OF_ONE:
                half = len(ended) // 2
                for part in (ended[:half], ended[half:]):
                    self._end(part, _TRIES, number)
            elif tries > 1 and error.failure not in OF_ONE:
                self._end(ended, tries - 1, number)
            else:
                self._context.report.warn(
                    now, "rescue failed", "attempts could not be rescued; they are found again",
                    jobs=[e.attempt.id for e in ended][:20], error=str(error),
                )  # fmt: skip

        self._context.lanes.run(Lane.UPKEEP, self._context.store.finalize(ended, number), done, failed)

    def _written(self, ended: Sequence[Ended], verdicts: Verdicts, now: float) -> None:
        context = self._context
        over: list[Attempt] = []
        for each, verdict in zip(ended, verdicts, strict=True):
            attempt, transition = each.attempt, each.transition
            if verdict in {Verdict.ACCEPTED, Verdict.DUPLICATE}:
                self._told((attempt.id, attempt.run_lease))
                over.append(attempt)
                attributes = {
                    "awa.job.kind": attempt.kind,
                    "awa.job.queue": attempt.queue,
                    "awa.rescue.reason": self._reason,
                }
                context.tally.count(RESCUED, attributes)
            if verdict is Verdict.DUPLICATE:
                context.report.sample(
                    now, INFO, "rescheduled as duplicate",
                    "a job was cancelled instead of run again: a newer one has its unique key", **about(attempt),
                )  # fmt: skip
            if verdict is not Verdict.ACCEPTED:
                continue
            is_last = transition.to is JobState.FAILED
            self._endings.count(attempt.kind, attempt.queue, transition.ending, transition.to, 1)
            context.report.sample(
                now, ERROR if is_last else WARNING, f"rescued: {attempt.kind}",
                "an attempt was rescued; its job fails for good" if is_last else "an attempt was rescued; its job runs again",
                **about(attempt), reason=str(self._reason),
            )  # fmt: skip
            if self._is_unknown(attempt.kind):
                context.report.warn(
                    now, f"rescued unknown kind: {attempt.kind}", "this worker leads and does not know the kind of a job it"
                    " rescued; hooks and follow-ups that others have registered for it are not run", quiet=math.inf,
                    job=attempt.id, kind=attempt.kind, queue=attempt.queue, attempt=attempt.attempt,
                )  # fmt: skip
            if attempt.kind in context.hooked.kinds:
                context.hooked.tell(rescued(each))
                if is_last:
                    context.hooked.ended((each,))
            self._follow_up(each, now)
        if over:
            context.lanes.run(Lane.UPKEEP, context.store.tell_ended(over), _ignore, _ignore)

    def _is_unknown(self, kind: str) -> bool:
        """Whether others may have hooks and follow-ups for it that are not known here. Health shows those of which it is so."""
        context = self._context
        if (
            context.kinds is None
            or kind in context.kinds
            or kind in context.hooked.kinds
            or context.follow_ups.knows(kind)
        ):
            return False
        if len(context.unknown_kinds) < MOST_UNKNOWN:
            context.unknown_kinds[kind] = None
        return True

    def _follow_up(self, ended: Ended, now: float) -> None:
        """Enqueue what follows from it, for each outcome by itself."""
        outcomes = (
            (Outcome.RESCUED, Outcome.EXHAUSTED) if ended.transition.to is JobState.FAILED else (Outcome.RESCUED,)
        )
        for outcome in outcomes:
            if not self._context.follow_ups.wants(ended.attempt.kind, outcome):
                continue

            def unread(follow_up: FollowUp, error: Exception) -> None:
                self._lost(ended, f"{follow_up.name}: {error}", now)

            try:
                jobs = self._context.follow_ups.of(ended, job_after(ended), unread, outcome)
            except FollowUpError as error:
                self._lost(ended, str(error), now)
                continue
            if jobs:
                self._insert(ended, jobs)

    def _insert(self, ended: Ended, jobs: Sequence[NewJob]) -> None:
        def done(rows: Sequence[JobRow], _: float) -> None:
            self._endings.followed_up(len(jobs), sum(not row.existed for row in rows))

        def failed(error: DatabaseError, now: float) -> None:
            self._lost(ended, str(error), now)

        self._context.lanes.run(Lane.UPKEEP, self._context.store.insert(jobs, skip=True), done, failed)

    def _lost(self, ended: Ended, error: str, now: float) -> None:
        self._context.report.sample(
            now, ERROR, f"follow-up of a rescue lost: {ended.attempt.kind}",
            "a follow-up of a rescued attempt could not be made; the rescue stands",
            **about(ended.attempt), error=error,
        )  # fmt: skip


class Abandoned(Rescue):
    """Ends attempts that their worker has given up, or is about to: `find` finds them, page by page.

    back_at: when the database was last back. distrust: seconds from then on in which nothing is ended.
    """

    __slots__ = ("_after", "_back_at", "_distrust", "_find")

    def __init__(
        self,
        context: Context,
        told: Callable[[tuple[int, int]], None],
        reason: RescueReason,
        find: Callable[[Place | None], Op[StrandedPage]],
        back_at: Callable[[], float],
        distrust: float,
    ) -> None:
        super().__init__(context, told, reason)
        self._find = find
        self._back_at = back_at
        self._distrust = distrust
        self._after: Place | None = None

    def look(self) -> Op[StrandedPage]:
        """The next page."""
        return self._find(self._after)

    def found(self, page: StrandedPage, now: float) -> float | None:
        """End what was found. Seconds until the next look: 0 when there is another page, None for the usual."""
        trusted_at = self._back_at() + self._distrust
        if now < trusted_at:
            self._after = None
            return trusted_at - now
        self._after = page.after
        if page.stranded:
            self._end([self._rescued(each) for each in page.stranded], _TRIES)
        return None if page.after is None else 0.0


class Expired(Rescue):
    """Ends attempts whose callback did not come in time, at the moment itself: each look says when the next one is due."""

    __slots__ = ()

    def look(self) -> Op[ExpiredPage]:
        """Those that are late."""
        return self._context.store.find_expired(PAGE)

    def found(self, page: ExpiredPage, _: float) -> float | None:
        """End them. Seconds until the next look."""
        if page.stranded:
            self._end([self._rescued(stranded, called) for stranded, called in page.stranded], _TRIES)
        return None if page.due_in is None else min(max(page.due_in, SOON), LOOK_EVERY)


def _ignore(_: object, _now: float) -> None:
    """Its result is stale in any case."""
