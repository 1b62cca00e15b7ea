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
from awa_proto.extra import compact, size_of
from awa_proto.followup import FollowUp, FollowUpError
from awa_proto.job import Attempt, JobState
from awa_proto.outcome import FAILED_METRIC, TABLE, Completed, Ending, Output, Raised, Returned, Transition, conclude
from awa_proto.recording import Recording
from awa_proto.store import Ended
from awa_proto.worker.context import Context
from awa_proto.worker.happened import job_after
from awa_proto.worker.report import Report, about
from awa_proto.worker.tally import Tally

MINUTE: Final = 60.0
"""Seconds between two warnings about dropped outputs of one kind, for one reason."""


_WAITS: Final = frozenset({Ending.WAIT, Ending.UNREGISTERED})


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
        if recording is not None and recording.refused is not None and completes(ended):
            ended = Raised(recording.refused)
        for_entry = recording.output if recording is not None and attempt.keeps_output else None
        callback = None if recording is None else recording.callback
        transition = self._conclude(attempt, ended, at, now, for_entry, callback)
        ending = transition.ending or Ending.COMPLETED
        if recording is None:
            made = Ended(attempt, transition, took=took)
        else:
            is_done = transition.to is JobState.COMPLETED
            made = Ended(
                attempt,
                transition,
                None if is_done else recording.progress_json,
                recording.output if TABLE[ending].output is Output.JOB else None,
                recording.staged if is_done else (),
                recording.is_flushed,
                took,
                recording,
            )
        return self.followed(made, at, now)

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

        Its progress is kept, and its output goes into the error entry.
        """
        attempt, recording = ended.attempt, ended.recording
        entry = ended.transition.entry or {}
        transition = conclude(
            attempt,
            Raised(error),
            at,
            self._context.random,
            output=(ended.output if attempt.keeps_output else None)
            or (compact(entry["output"]) if "output" in entry else None),
            dead_letters=self._context.config.keeps_dead_letters(attempt.queue),
        )
        progress = None if recording is None else recording.progress_json
        return ended._replace(transition=transition, progress=progress, output=None, follow_ups=())

    def unregistered(self, ended: Ended, at: datetime, now: float) -> Ended:
        """What stands in place of an attempt that was to wait for a callback which the database does not know (any more)."""
        return self.of(ended.attempt, Ending.UNREGISTERED, at, now, ended.recording, ended.took)

    def written(self, accepted: Sequence[Ended], now: float) -> None:
        """These recorded something and were accepted: count what became of it."""
        kept: dict[tuple[str, str, str], list[int]] = {}
        for ended in accepted:
            attempt, recording, output = ended.attempt, ended.recording, ended.output
            assert recording is not None
            outcome = "completed"
            if output is None or recording.dropped or not attempt.keeps_output:  # not as most are
                if self._loses(ended, recording, now) or recording.output is None:
                    continue
                if output is None:
                    output, outcome = recording.output, "failed"
            of_one = attempt.kind, attempt.queue, outcome
            sizes = kept.get(of_one)
            if sizes is None:
                sizes = kept[of_one] = []
            sizes.append(size_of(output))
        for (kind, queue, outcome), sizes in kept.items():
            count_outputs(self._context.tally, kind, queue, outcome, sizes)

    def count(self, kind: str, queue: str, ending: Ending | None, to: JobState, times: int) -> None:
        """So many attempts ended so, and it was written."""
        count_ended(self._context.tally, kind, queue, ending, to, times)

    def followed_up(self, wanted: int, inserted: int) -> None:
        """A flush with so many follow-ups was accepted, and so many of them exist by it."""
        count_follow_ups(self._context.tally, wanted, inserted)

    def _with_follow_ups(self, ended: Ended, now: float) -> Ended:
        def unread(follow_up: FollowUp, error: SerializationError) -> None:
            warn_unread(self._context.report, now, ended.attempt, follow_up, error)

        registered = self._context.follow_ups.of(ended, job_after(ended), unread)
        if not registered:
            return ended
        # _replace would take three times as long
        attempt, transition, progress, output, staged, flushed, took, recording, _ = ended
        return Ended(attempt, transition, progress, output, registered + staged, flushed, took, recording)

    def _conclude(
        self,
        attempt: Attempt,
        ended: Returned | Raised | Ending,
        at: datetime,
        now: float,
        output: str | None,
        callback: str | None,
    ) -> Transition:
        """What a handler returned or raised is a stranger's object; whatever it does here must not stop the worker."""
        random, buries = self._context.random, self._context.config.keeps_dead_letters(attempt.queue)
        try:
            return conclude(attempt, ended, at, random, output=output, dead_letters=buries, callback=callback)
        except Exception as error:  # noqa: BLE001
            self._context.report.warn(
                now, "ending unreadable", "how a handler ended could not be read; its job fails",
                **about(attempt), error=type(error).__name__,
            )  # fmt: skip
            reason = ResultRefused(f"how the handler ended could not be read ({type(error).__name__})")
            return conclude(attempt, Raised(reason), at, random, output=output, dead_letters=buries)

    def _why_dropped(self, ended: Ended) -> str | None:
        """Why the output of an attempt is stored nowhere; None when it is."""
        match TABLE[ended.transition.ending or Ending.COMPLETED].output:
            case Output.DISCARDED:
                return "outcome"
            case Output.ABANDONED:
                return "abandoned"
            case Output.JOB | Output.ENTRY:
                return None if ended.attempt.keeps_output else "canonical"

    def _loses(self, ended: Ended, recording: Recording, now: float) -> bool:
        """Tell what an attempt recorded that is kept nowhere. Whether its output is among that."""
        for reason, times in recording.dropped.items():
            self._dropped(ended.attempt, reason, times, now)
        if recording.staged and ended.transition.ending in _WAITS:
            self._staged_in_vain(ended.attempt, len(recording.staged), now)
        if recording.output is None or (why := self._why_dropped(ended)) is None:
            return False
        self._dropped(ended.attempt, why, 1, now)
        return True

    def _staged_in_vain(self, attempt: Attempt, follow_ups: int, now: float) -> None:
        self._context.tally.count("awa.job.staged_follow_ups_discarded", _of(attempt), follow_ups)
        self._context.report.warn(
            now, f"staged and waits: {attempt.kind}", "follow-ups that were staged before WaitForCallback are discarded",
            **about(attempt), follow_ups=follow_ups,
        )  # fmt: skip

    def _dropped(self, attempt: Attempt, reason: str, times: int, now: float) -> None:
        count_dropped(self._context.tally, attempt, reason, times)
        self._context.report.warn(
            now, f"output dropped: {attempt.kind}: {reason}", "an output is not kept", quiet=MINUTE,
            **about(attempt), reason=reason,
        )  # fmt: skip


def completes(ended: Returned | Raised | Ending) -> bool:
    """Whether the handler meant its job to complete."""
    return isinstance(ended, Returned) and (ended.value is None or isinstance(ended.value, Completed))


def count_ended(tally: Tally, kind: str, queue: str, ending: Ending | None, to: JobState, times: int = 1) -> None:
    """So many attempts ended so, and it was written, whoever ended them."""
    rule = TABLE.get(ending) if ending is not None else None
    if rule is not None and (metric := rule.counted(to)) is not None:
        attributes = {"awa.job.kind": kind, "awa.job.queue": queue}
        if metric == FAILED_METRIC:
            attributes["awa.job.terminal"] = str(rule.terminal).lower()
        tally.count(metric, attributes, times)


def count_follow_ups(tally: Tally, wanted: int, inserted: int) -> None:
    """So many follow-ups were part of what was written, and so many of them exist by it."""
    metric = "awa.job.staged_follow_ups_committed"
    if inserted:
        tally.count(metric, {"awa.follow_up.result": "inserted"}, inserted)
    if wanted > inserted:
        tally.count(metric, {"awa.follow_up.result": "duplicate"}, wanted - inserted)


def count_outputs(tally: Tally, kind: str, queue: str, outcome: str, sizes: Sequence[int]) -> None:
    """Outputs of so many bytes were stored. outcome: "completed", or "failed" for those in error entries."""
    attributes = {"awa.job.kind": kind, "awa.job.queue": queue, "awa.job.outcome": outcome}
    tally.count("awa.job.output_recorded", attributes, len(sizes))
    tally.count("awa.job.output_size", attributes, len(sizes), sum(sizes))


def count_dropped(tally: Tally, attempt: Attempt, reason: str, times: int = 1) -> None:
    """So many outputs of an attempt are kept nowhere."""
    tally.count("awa.job.output_dropped", _of(attempt) | {"awa.output.reason": reason}, times)


def warn_unread(report: Report, now: float, attempt: Attempt, follow_up: FollowUp, error: Exception) -> None:
    """The args of an attempt do not fit what a follow-up function takes; say so."""
    report.warn(
        now, f"follow-up unread: {follow_up.name}", "the args of a job do not fit what a follow-up function takes",
        **about(attempt), function=follow_up.name, error=str(error),
    )  # fmt: skip


def _of(attempt: Attempt) -> dict[str, str]:
    return {"awa.job.kind": attempt.kind, "awa.job.queue": attempt.queue}
