"""Books: what callbacks did to jobs, counted as a worker counts it, and what people should know of it, once a while.

Only what is committed is counted; in a caller's transaction that is not known here, so nothing is. Counts are a client's own,
in its health.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Final

from awa_proto.contact import Calls
from awa_proto.extra import size_of
from awa_proto.followup import FollowUp
from awa_proto.job import Attempt
from awa_proto.store import Ended
from awa_proto.worker.endings import MINUTE, count_dropped, count_ended, count_follow_ups, count_outputs, warn_unread
from awa_proto.worker.events import Emit
from awa_proto.worker.report import Report, about
from awa_proto.worker.rescue import MOST_UNKNOWN

_log: Final = logging.getLogger("awa")


class _Log:
    """The log, as a stream of outputs."""

    def append(self, emit: Emit, /) -> None:
        _log.log(emit.level, "%s", emit.text, extra={"awa": emit.fields})


class Books:
    """Those of one client, whose threads may all write in them. calls: its tally and its clock."""

    __slots__ = ("_calls", "_report", "_unknown")

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._report = Report(_Log())
        self._unknown: dict[str, None] = {}

    @property
    def unknown_kinds(self) -> tuple[str, ...]:
        """Kinds of jobs that were ended and that the client does not know."""
        return tuple(sorted(self._unknown.copy()))

    def ended(self, ended: Ended, inserted: int, dropped: str | None) -> None:
        """An attempt was ended, and that is committed.

        inserted: how many of its follow-ups exist by it. dropped: the output that came with it, if it is kept nowhere.
        """
        attempt, transition, tally = ended.attempt, ended.transition, self._calls.tally
        count_ended(tally, attempt.kind, attempt.queue, transition.ending, transition.to)
        if ended.follow_ups:
            count_follow_ups(tally, len(ended.follow_ups), inserted)
        if ended.output is not None:
            count_outputs(tally, attempt.kind, attempt.queue, "completed", [size_of(ended.output)])
        if dropped is not None:
            count_dropped(tally, attempt, "canonical")
            self._report.warn(
                self._calls.clock(), "output dropped", "the output of an external completion is not kept", quiet=MINUTE,
                **about(attempt), reason="canonical",
            )  # fmt: skip

    def unknown(self, attempt: Attempt) -> None:
        """It was of a kind that the client does not know. Said once for each kind."""
        if attempt.kind in self._unknown or len(self._unknown) >= MOST_UNKNOWN:
            return
        self._unknown[attempt.kind] = None
        self._report.warn(
            self._calls.clock(), f"unknown kind: {attempt.kind}",
            f"this client does not know the kind {attempt.kind!r} of a job whose callback it was given; hooks and follow-ups"
            " that others have registered for it are not run", quiet=math.inf, **about(attempt),
        )  # fmt: skip

    def unread(self, attempt: Attempt, follow_up: FollowUp, error: Exception) -> None:
        """Its args do not fit what a follow-up function takes."""
        warn_unread(self._report, self._calls.clock(), attempt, follow_up, error)

    def unanswered(self, attempt: Attempt, troubles: Sequence[tuple[str, str]]) -> None:
        """Expressions gave no answer: which, and what is said of it."""
        for field, said in troubles:
            self._report.warn(self._calls.clock(), f"{field}: {attempt.kind}", said, **about(attempt))
