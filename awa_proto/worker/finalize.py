"""Results on their way into the database: batched by back-pressure, sent again until they are in.

One flush is under way at a time, and carries whatever gathered while the one before it was: nothing lingers.

A flush that failed           | what happens to it
------------------------------|-----------------------------------------------------------------------------
the database is away          | the lane waits (20 ms, doubling to 5 s), then the same batch, the same flush number
a lock is held                | split by claim, then what takes locks of its own, in halves: only what is held up waits
rolled back                   | that batch waits; others go on meanwhile
refused                       | split in halves, until the bad attempt stands alone: it fails with a clean error
refused again, alone          | dropped, with an error: rescue ends it one day

An attempt that was to wait for a callback which the database does not know is concluded anew, as one that broke its contract.

A batch keeps its flush number, also in halves, because an earlier sending may have been committed without an answer:
the store accepts what the same flush has ended before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from awa_proto.error_text import clean
from awa_proto.errors import DatabaseError, Failure
from awa_proto.flush import flush_number
from awa_proto.job import Attempt, JobState
from awa_proto.outcome import Ending, Outcome, Raised, Returned, Transition, conclude
from awa_proto.recording import Recording
from awa_proto.store import Ended, Verdict, Verdicts
from awa_proto.unique import must_win_again
from awa_proto.worker.backoff import Backoff
from awa_proto.worker.context import Context
from awa_proto.worker.endings import Endings, ResultRefused
from awa_proto.worker.events import Lane
from awa_proto.worker.report import ERROR, INFO, WARNING, about
from awa_proto.worker.tally import STALE
from awa_proto.worker.timers import Timer

MOST: Final = 1000
"""Most results in a flush."""
_FIRST, _LONGEST = 0.02, 5.0
_MOST_STUCK = 32
"""While so many batches wait to be sent again, no new one is begun."""
_REFUSALS = frozenset({Failure.REFUSED, Failure.UNIQUE_VIOLATION})
_PASSING = frozenset({Failure.TRANSIENT, Failure.TIMED_OUT, Failure.BUSY})
_HELD = frozenset({Failure.BUSY, Failure.TIMED_OUT})


@dataclass(slots=True)
class Batch:
    """Results that are sent together.

    flush: its number, the same for every sending. due: when it may be sent again.
    replaced: its one result stands in for one that was refused. unsure: an earlier sending may have written some of it, so
    that nobody knows which of their follow-ups were new.
    """

    ended: Sequence[Ended]
    flush: int
    backoff: Backoff
    due: float = 0.0
    replaced: bool = False
    unsure: bool = False


class Finalizer:
    """Holds results until they are written.

    unwritten: how many. retry_due: the earliest run_at that was written since somebody took note of it.
    """

    __slots__ = ("_backoff", "_completed", "_completed_at", "_context", "_endings", "_hold", "_pending", "_sent", "_stuck",
                 "_took_stuck", "retry_due", "unwritten")  # fmt: skip

    def __init__(self, context: Context) -> None:
        self._context = context
        self._endings = Endings(context)
        self._pending: list[Ended] = []
        self._stuck: list[Batch] = []
        self._sent: Batch | None = None
        self._took_stuck = False
        self._hold = 0.0
        self._backoff = Backoff(_FIRST, _LONGEST, context.random)
        self._completed: dict[int, Transition] = {}
        self._completed_at: datetime | None = None
        self.unwritten = 0
        self.retry_due: datetime | None = None

    @property
    def attempts(self) -> list[Attempt]:
        """Those whose results are not written yet."""
        sent = () if self._sent is None else self._sent.ended
        stuck = (ended for batch in self._stuck for ended in batch.ended)
        return [ended.attempt for ended in (*self._pending, *sent, *stuck)]

    def add(
        self,
        attempt: Attempt,
        ended: Returned | Raised | Ending,
        now: float,
        recording: Recording | None = None,
        took: float = 0.0,
    ) -> None:
        """An attempt ended; its result waits for the next flush.

        recording: what it recorded. took: seconds its handler ran.
        """
        at = self._context.clock.at(now)
        self.unwritten += 1
        is_refused = recording is not None and recording.refused is not None
        if type(ended) is not Returned or ended.value is not None or is_refused:
            self._pending.append(self._endings.of(attempt, ended, at, now, recording, took))
            return
        # The most frequent ending by far. Attempts that complete at the same moment share one transition.
        if at is not self._completed_at:
            self._completed.clear()
            self._completed_at = at
        transition = self._completed.get(attempt.attempt)
        if transition is None:
            transition = self._completed[attempt.attempt] = conclude(attempt, ended, at, self._context.random)
        if recording is None:
            completed = Ended(attempt, transition, None, None, (), False, took)
        else:
            completed = Ended(
                attempt, transition, None, recording.output, recording.staged, recording.is_flushed, took, recording
            )
        if self._context.follow_ups.wants(attempt.kind, Outcome.COMPLETED):
            completed = self._endings.followed(completed, at, now)
        self._pending.append(completed)

    def settle(self, now: float) -> None:
        """Send what can be sent."""
        if self._sent is not None or not self.unwritten:
            return
        timers = self._context.timers
        if now < self._hold:
            timers.set(Timer.FLUSH, self._hold)
            return
        batch = self._next(now)
        if batch is not None:
            timers.cancel(Timer.FLUSH)
            self._sent = batch
            self._context.lanes.run(
                Lane.FINALIZE, self._context.store.finalize(batch.ended, batch.flush), self._done, self._failed
            )
        elif self._stuck:
            timers.set(Timer.FLUSH, min(batch.due for batch in self._stuck))

    def _next(self, now: float) -> Batch | None:
        """Batches to be sent again and new ones take turns, so that neither holds up the other."""
        stuck = next((batch for batch in self._stuck if batch.due <= now), None)
        fresh = self._pending and len(self._stuck) < _MOST_STUCK
        if stuck is not None and not (fresh and self._took_stuck):
            self._stuck.remove(stuck)
            self._took_stuck = True
            return stuck
        self._took_stuck = False
        if not fresh:
            return None
        if len(self._pending) <= MOST:
            ended, self._pending = self._pending, []
        else:
            ended, self._pending = self._pending[:MOST], self._pending[MOST:]
        return self._batch(ended)

    def _batch(self, ended: Sequence[Ended]) -> Batch:
        random = self._context.random
        return Batch(ended, flush_number(random), Backoff(_FIRST, _LONGEST, random))

    def _take_sent(self) -> Batch:
        batch, self._sent = self._sent, None
        assert batch is not None
        return batch

    def _done(self, verdicts: Verdicts, now: float) -> None:
        batch = self._take_sent()
        self._backoff.reset()
        self._context.report.recovered("flush failed", "results are written again")
        again: list[Ended] = []
        otherwise: list[tuple[Ended, Verdict]] = []
        hooked = self._context.hooked
        kinds = hooked.kinds
        told: list[Ended] = []
        wanted = 0
        recorded: list[Ended] = []
        endings: Counter[tuple[str, str, Ending | None, JobState]] = Counter()
        for ended, verdict in zip(batch.ended, verdicts, strict=True):
            if verdict is Verdict.ACCEPTED:
                attempt, transition = ended.attempt, ended.transition
                endings[attempt.kind, attempt.queue, transition.ending, transition.to] += 1
                run_at = transition.run_at
                if run_at is not None and transition.to is not JobState.AVAILABLE:
                    self.retry_due = run_at if self.retry_due is None else min(self.retry_due, run_at)
                if transition.entry is not None:
                    self._tell(ended, now)
                if kinds and attempt.kind in kinds:
                    told.append(ended)
                if ended.recording is not None:
                    recorded.append(ended)
                wanted += len(ended.follow_ups)
            elif verdict is Verdict.AGAIN:
                again.append(ended)
            else:
                otherwise.append((ended, verdict))
        self.unwritten -= len(batch.ended) - len(again)
        for (kind, queue, ending, to), times in endings.items():
            self._endings.count(kind, queue, ending, to, times)
        self._endings.written(recorded, now)
        hooked.ended(told)
        if wanted:
            self._endings.followed_up(wanted, wanted if batch.unsure else verdicts.inserted)
        if otherwise:
            self._end_otherwise(otherwise, now)
        if again:
            # The closer that was faster may have been an earlier sending of this very flush, so the number stays.
            batch.ended = again
            batch.due = now
            self._stuck.insert(0, batch)

    def _end_otherwise(self, otherwise: Sequence[tuple[Ended, Verdict]], now: float) -> None:
        """Say which attempts did not end as their handlers meant. That a callback came before its job was parked is no news.

        Those that would wait for a callback which the database does not know are concluded anew, for another flush.
        """
        for ended, verdict in otherwise:
            attempt = ended.attempt
            if verdict is Verdict.UNREGISTERED:
                self._pending.append(self._endings.unregistered(ended, self._context.clock.at(now), now))
                self.unwritten += 1
                continue
            if verdict is Verdict.STALE and ended.transition.ending is Ending.WAIT:
                continue
            if verdict is Verdict.DUPLICATE:
                self._context.report.sample(
                    now, INFO, "rescheduled as duplicate",
                    "a job was cancelled instead of run again: a newer one has its unique key", **about(attempt),
                )  # fmt: skip
            else:
                self._context.tally.count(STALE, {"awa.job.kind": attempt.kind, "awa.job.queue": attempt.queue})
                self._context.report.sample(
                    now, WARNING, "stale result", "an attempt was ended by somebody else; its result was not written",
                    **about(attempt),
                )  # fmt: skip

    def _tell(self, ended: Ended, now: float) -> None:
        """Say that an attempt failed, now that it is written. What a handler asked for itself is no failure."""
        attempt, transition = ended.attempt, ended.transition
        entry = transition.entry
        assert entry is not None
        if transition.to is JobState.CANCELLED or ("retry_after" in entry and transition.to is JobState.RETRYABLE):
            return
        last = transition.to is JobState.FAILED
        self._context.report.sample(
            now, ERROR if last else WARNING, f"attempt failed: {attempt.kind}",
            "a job failed for good" if last else "an attempt failed and is retried",
            **about(attempt), error=entry["error"],
            **({"traceback": entry["traceback"]} if "traceback" in entry else {}),
        )  # fmt: skip

    def _failed(self, error: DatabaseError, now: float) -> None:
        batch = self._take_sent()
        self._context.last_error = error
        if error.failure not in _REFUSALS | _PASSING or len({e.transition.to for e in batch.ended}) > 1:
            batch.unsure = True  # the answer was lost, or what goes to other states was written before the failure
        if error.failure in _REFUSALS:
            self._refused(batch, error, now)
            return
        if error.failure in _HELD and (parts := _apart(batch.ended)):
            self._split(batch, parts, now)
            return
        if error.failure in _PASSING:
            batch.due = now + batch.backoff.next()
        else:
            self._hold = now + self._backoff.next()
            batch.due = self._hold
        self._stuck.insert(0, batch)
        self._context.report.warn(
            now,
            "flush failed",
            "results could not be written; they are sent again",
            error=str(error),
            results=self.unwritten,
        )

    def _split(self, batch: Batch, parts: Sequence[Sequence[Ended]], now: float) -> None:
        """Send the parts of a batch one after the other, each with the number of the whole."""
        random = self._context.random
        self._stuck[:0] = [
            Batch(part, batch.flush, Backoff(_FIRST, _LONGEST, random), now, unsure=batch.unsure) for part in parts
        ]

    def _refused(self, batch: Batch, error: DatabaseError, now: float) -> None:
        ended = batch.ended
        report = self._context.report
        if len(ended) > 1:
            self._split(batch, _halves(ended), now)
            return
        attempt = ended[0].attempt
        if batch.replaced:
            self.unwritten -= 1
            report.tell(
                ERROR, "result dropped", "the database refuses any result of this attempt; it runs until it is rescued",
                **about(attempt), error=str(error),
            )  # fmt: skip
            return
        report.warn(
            now, "result refused", "the database refused a result; the attempt fails instead",
            **about(attempt), error=str(error),
        )  # fmt: skip
        reason = ResultRefused(clean(f"the result could not be written: {error}"))
        failed = self._endings.refused(ended[0], reason, self._context.clock.at(now))
        # Another content is another flush: what an earlier sending may have written stays, and this one is then stale.
        instead = self._batch([failed])
        instead.replaced = True
        instead.due = now
        self._stuck.insert(0, instead)


def _apart(ended: Sequence[Ended]) -> list[Sequence[Ended]]:
    """The results in parts, so that those nobody holds up can go on; nothing when there is but one, or no telling."""
    by_claim: dict[tuple[int, int], list[Ended]] = {}
    for e in ended:
        by_claim.setdefault((e.attempt.segment, e.attempt.claim_id), []).append(e)
    if len(by_claim) > 1:
        return list(by_claim.values())
    locking = [e for e in ended if _locks(e)]
    if 0 < len(locking) < len(ended):
        return [[e for e in ended if not _locks(e)], locking]
    return _halves(locking) if len(locking) > 1 else []


def _locks(ended: Ended) -> bool:
    """Whether writing it may wait for a transaction of somebody who wants the same unique key, or uses its callback."""
    if ended.flushed or ended.transition.to is JobState.WAITING_EXTERNAL:
        return True
    return must_win_again(ended.attempt.extra, ended.transition.to) or any(new.unique for new in ended.follow_ups)


def _halves(ended: Sequence[Ended]) -> list[Sequence[Ended]]:
    half = len(ended) // 2
    return [ended[:half], ended[half:]]
