"""Endings: from how a handler ended, and what it recorded, to what is written.

What comes together here, for the attempts that do more than complete:

handler          | output               | staged follow-ups | registered follow-ups       | progress
-----------------|----------------------|-------------------|-----------------------------|---------
completes        | the job's            | inserted          | those of `completed`        | cleared
fails, cancels   | in the error entry   | discarded         | those of its outcome        | kept
snoozes, waits   | discarded, counted   | discarded         | those of its outcome if any | kept
is cut off       | abandoned, counted   | discarded         | those of its outcome if any | kept

A staging that failed fails the attempt for good, even if the handler swallowed the error. A registered function that
raises fails it too, retryable while attempts are left, and then runs no more of the functions of that outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from awa_proto.errors import SerializationError, TerminalError
from awa_proto.extra import compact
from awa_proto.followup import FollowUp, FollowUpError
from awa_proto.job import Attempt, JobState
from awa_proto.outcome import FAILED_METRIC, TABLE, Completed, Ending, Output, Raised, Returned, Transition, conclude
from awa_proto.recording import Recording
from awa_proto.store import Ended
from awa_proto.worker.context import Context
from awa_proto.worker.happened import job_after

MINUTE: Final = 60.0
"""Seconds between two warnings about dropped outputs of one kind, for one reason."""


class ResultRefused(TerminalError):
    """The database refused to store how an attempt ended."""


class Endings:
    """Makes what is written of an attempt, and counts it when it was."""

    __slots__ = ("_context",)

    def __init__(self, context: Context) -> None:
        self._context = context

    def of(
        self,
        attempt: Attempt,
        ended: Returned | Raised | Ending,
        at: datetime,
        now: float,
        recording: Recording | None,
        took: float,
    ) -> Ended:
        """What is written of an attempt that did more than complete."""
        output = None if recording is None else recording.output
        if recording is not None and recording.refused is not None and completes(ended):
            ended = Raised(recording.refused)
        transition = self._conclude(attempt, ended, at, now, output)
        ending = transition.ending or Ending.COMPLETED
        if recording is None:
            made = Ended(attempt, transition, took=took)
        else:
            is_done = transition.to is JobState.COMPLETED
            made = Ended(
                attempt,
                transition,
                None if is_done else recording.progress_json,
                output if TABLE[ending].output is Output.JOB else None,
                recording.staged if is_done else (),
                recording.is_flushed,
                took,
            )
            self._count(attempt, ending, recording, now)
        return self.followed(made, at, now)

    def completed(
        self, attempt: Attempt, transition: Transition, now: float, recording: Recording, took: float
    ) -> Ended:
        """What is written of an attempt that completed and recorded something, without registered follow-ups."""
        if recording.dropped:
            self._count(attempt, Ending.COMPLETED, recording, now)
        return Ended(attempt, transition, None, recording.output, recording.staged, recording.is_flushed, took)

    def followed(self, ended: Ended, at: datetime, now: float) -> Ended:
        """The same with the registered follow-ups of its outcome, or what stands in its place when one of them fails."""
        outcome = ended.transition.outcome
        if outcome is None or not self._context.follow_ups.wants(ended.attempt.kind, outcome):
            return ended
        try:
            return self._with_follow_ups(ended, now)
        except FollowUpError as error:
            entry = ended.transition.entry
            said = "" if entry is None else f"; the attempt itself: {entry['error']}"
            failed = self.refused(ended, FollowUpError(f"{error}{said}"), at)
        instead = failed.transition.outcome
        if instead is None or instead is outcome or not self._context.follow_ups.wants(ended.attempt.kind, instead):
            return failed
        try:
            return self._with_follow_ups(failed, now)
        except FollowUpError:
            return failed

    def refused(self, ended: Ended, error: Exception, at: datetime) -> Ended:
        """What stands in place of an ending that cannot be written: the attempt fails with the error, without follow-ups.

        Its output goes into the error entry.
        """
        entry = ended.transition.entry or {}
        transition = conclude(
            ended.attempt,
            Raised(error),
            at,
            self._context.random,
            output=ended.output or (compact(entry["output"]) if "output" in entry else None),
            dead_letters=self._context.config.keeps_dead_letters(ended.attempt.queue),
        )
        return ended._replace(transition=transition, output=None, follow_ups=())

    def written(self, accepted: Sequence[Ended], now: float) -> None:
        """These were accepted: count what became of their outputs."""
        sizes: dict[tuple[str, str, str], list[int]] = {}
        keeps = self._context.store.keeps_outputs
        for attempt, transition, _, text, *_ in accepted:
            entry = transition.entry
            if text is not None and (attempt.segment < 0 or not keeps):
                self._dropped(attempt, "canonical", 1, now)
                continue
            recorded = text or (compact(entry["output"]) if entry is not None and "output" in entry else None)
            if recorded is not None:
                outcome = "failed" if text is None else "completed"
                sizes.setdefault((attempt.kind, attempt.queue, outcome), []).append(len(recorded.encode()))
        for (kind, queue, outcome), of_each in sizes.items():
            attributes = {"awa.job.kind": kind, "awa.job.queue": queue, "awa.job.outcome": outcome}
            self._context.tally.count("awa.job.output_recorded", attributes, len(of_each))
            self._context.tally.count("awa.job.output_size", attributes, len(of_each), sum(of_each))

    def count(self, kind: str, queue: str, ending: Ending | None, to: JobState, times: int) -> None:
        """So many attempts ended so, and it was written."""
        rule = TABLE.get(ending) if ending is not None else None
        if rule is not None and (metric := rule.counted(to)) is not None:
            attributes = {"awa.job.kind": kind, "awa.job.queue": queue}
            if metric == FAILED_METRIC:
                attributes["awa.job.terminal"] = str(rule.terminal).lower()
            self._context.tally.count(metric, attributes, times)

    def followed_up(self, wanted: int, inserted: int) -> None:
        """A flush with so many follow-ups was accepted, and so many of them exist by it."""
        metric = "awa.job.staged_follow_ups_committed"
        if inserted:
            self._context.tally.count(metric, {"awa.follow_up.result": "inserted"}, inserted)
        if wanted > inserted:
            self._context.tally.count(metric, {"awa.follow_up.result": "duplicate"}, wanted - inserted)

    def _with_follow_ups(self, ended: Ended, now: float) -> Ended:
        def unread(follow_up: FollowUp, error: SerializationError) -> None:
            self._context.report.warn(
                now, f"follow-up unread: {follow_up.name}", "the args of a job do not fit what a follow-up function takes",
                job=ended.attempt.id, kind=ended.attempt.kind, function=follow_up.name, error=str(error),
            )  # fmt: skip

        registered = self._context.follow_ups.of(ended, job_after(ended), unread)
        if not registered:
            return ended
        attempt, transition, progress, output, staged, flushed, took = ended
        return Ended(attempt, transition, progress, output, registered + staged, flushed, took)

    def _conclude(
        self, attempt: Attempt, ended: Returned | Raised | Ending, at: datetime, now: float, output: str | None
    ) -> Transition:
        """What a handler returned or raised is a stranger's object; whatever it does here must not stop the worker."""
        random, buries = self._context.random, self._context.config.keeps_dead_letters(attempt.queue)
        try:
            return conclude(attempt, ended, at, random, output=output, dead_letters=buries)
        except Exception as error:  # noqa: BLE001
            self._context.report.warn(
                now, "ending unreadable", "how a handler ended could not be read; its job fails",
                job=attempt.id, kind=attempt.kind, error=type(error).__name__,
            )  # fmt: skip
            reason = ResultRefused(f"how the handler ended could not be read ({type(error).__name__})")
            return conclude(attempt, Raised(reason), at, random, output=output, dead_letters=buries)

    def _count(self, attempt: Attempt, ending: Ending, recording: Recording, now: float) -> None:
        """What of a recording is dropped."""
        for reason, times in recording.dropped.items():
            self._dropped(attempt, reason, times, now)
        if recording.output is not None:
            match TABLE[ending].output:
                case Output.DISCARDED:
                    self._dropped(attempt, "outcome", 1, now)
                case Output.ABANDONED:
                    self._dropped(attempt, "abandoned", 1, now)
                case _:
                    pass
        if recording.staged and ending is Ending.WAIT:
            self._context.tally.count("awa.job.staged_follow_ups_discarded", _of(attempt), len(recording.staged))
            self._context.report.warn(
                now, f"staged and waits: {attempt.kind}", "follow-ups that were staged before WaitForCallback are discarded",
                job=attempt.id, kind=attempt.kind, follow_ups=len(recording.staged),
            )  # fmt: skip

    def _dropped(self, attempt: Attempt, reason: str, times: int, now: float) -> None:
        self._context.tally.count("awa.job.output_dropped", _of(attempt) | {"awa.output.reason": reason}, times)
        self._context.report.warn(
            now, f"output dropped: {attempt.kind}: {reason}", "an output is not kept", quiet=MINUTE,
            job=attempt.id, kind=attempt.kind, queue=attempt.queue, reason=reason,
        )  # fmt: skip


def completes(ended: Returned | Raised | Ending) -> bool:
    """Whether the handler meant its job to complete."""
    return isinstance(ended, Returned) and (ended.value is None or isinstance(ended.value, Completed))


def _of(attempt: Attempt) -> dict[str, str]:
    return {"awa.job.kind": attempt.kind, "awa.job.queue": attempt.queue}
