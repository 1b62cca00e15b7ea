"""The pulse: what running handlers say of their progress is written every few seconds, all of it in one statement.

Nothing is asked of the database while nobody says anything new.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from awa_proto.errors import DatabaseError
from awa_proto.extra import compact
from awa_proto.store import Progress
from awa_proto.worker.context import Context
from awa_proto.worker.events import Lane
from awa_proto.worker.running import Running
from awa_proto.worker.timers import Timer

EVERY: Final = 10.0
"""Seconds between two heartbeats."""


class Pulse:
    """Carries progress. It goes on until the last handler has ended."""

    __slots__ = ("_context", "_is_busy", "_running")

    def __init__(self, context: Context, running: Running) -> None:
        self._context = context
        self._running = running
        self._is_busy = False

    def open(self, now: float) -> None:
        """Registered: begin."""
        self._context.timers.set(Timer.PULSE, now + EVERY)

    def beat(self, now: float) -> None:
        """The timer: write what is new."""
        self._context.timers.set(Timer.PULSE, now + EVERY)
        recordings = tuple(self._running.recordings.values())  # at once: handlers in threads add to them
        new = [(r, r.progress) for r in recordings if r.is_new]
        records = [Progress(r.attempt, compact(progress)) for r, progress in new if progress is not None]
        if not records or self._is_busy:
            return
        self._is_busy = True

        def done(kept: Sequence[int], now: float) -> None:  # noqa: ARG001
            self._is_busy = False
            for recording, progress in new:
                if progress is not None:
                    recording.flushed(progress)

        self._context.lanes.run(Lane.MAINTENANCE, self._context.store.record_progress(records), done, self._failed)

    def _failed(self, error: DatabaseError, now: float) -> None:
        self._is_busy = False
        self._context.last_error = error
        self._context.report.warn(
            now, "progress unwritten", "the progress of running jobs could not be written; with the next beat again",
            error=str(error),
        )  # fmt: skip
