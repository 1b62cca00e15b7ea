"""The attempts whose handlers run, and those that were ended while their handler did not yet notice.

An attempt ends at most once here, whatever comes late or twice:

event                                   | slot  | result
----------------------------------------|-------|-----------------------------------------
the handler ends                        | freed | what it did
the deadline, while it runs             | kept  | DEADLINE
a person cancels it                     | kept  | none: the cancellation has written it
the handler ends after one of the two   | freed | none
the handler ends, cancelled by the stop | freed | RELEASED: what a cancelled handler returns is no result
it ends once more, or was never started | -     | none
"""

from __future__ import annotations

from awa_proto.job import Attempt
from awa_proto.outcome import Ending
from awa_proto.recording import Recording
from awa_proto.worker.deadlines import Deadlines, Fence, limit
from awa_proto.worker.events import JobEnded
from awa_proto.worker.finalize import Finalizer
from awa_proto.worker.served import ServedQueue


class Running:
    """Slots in use. Results go to the finalizer; deadlines are kept for buffered attempts too.

    recordings: what handlers that run have recorded, of the few that do.
    """

    __slots__ = ("_ended", "_finalizer", "_is_releasing", "_started", "_with_deadline", "deadlines", "recordings")

    def __init__(self, finalizer: Finalizer, recordings: dict[Fence, Recording]) -> None:
        self._finalizer = finalizer
        self._started: dict[Fence, tuple[Attempt, ServedQueue, float]] = {}
        self._ended: set[Fence] = set()
        self._is_releasing = False
        self.recordings = recordings
        self.deadlines = Deadlines()
        self._with_deadline = self.deadlines.attempts

    def __len__(self) -> int:
        return len(self._started)

    @property
    def ids(self) -> tuple[int, ...]:
        """The jobs whose handlers run."""
        return tuple(sorted(attempt.id for attempt, _, _ in self._started.values()))

    @property
    def attempts(self) -> list[Attempt]:
        """Attempts that run and have not been ended."""
        return [attempt for fence, (attempt, _, _) in self._started.items() if fence not in self._ended]

    @property
    def started(self) -> list[Attempt]:
        """Attempts whose handlers run, also of those that have been ended."""
        return [attempt for attempt, _, _ in self._started.values()]

    def runs(self, fence: Fence) -> bool:
        """Whether a handler runs whose attempt has not been ended."""
        return fence in self._started and fence not in self._ended

    def claimed(self, attempt: Attempt, queue: ServedQueue, now: float) -> None:
        """Note the deadline of an attempt that was just claimed: the database counts from there, so this does too."""
        seconds = limit(attempt, queue.config.deadline)
        if seconds is not None:
            self.deadlines.add(attempt, now + seconds)

    def start(self, attempt: Attempt, queue: ServedQueue, now: float) -> None:
        """A handler takes a slot."""
        self._started[attempt.id, attempt.run_lease] = attempt, queue, now
        queue.running += 1

    def ended(self, event: JobEnded, now: float) -> bool:
        """A handler ended. Whether there was one."""
        fence = event.attempt.id, event.attempt.run_lease
        started = self._started.pop(fence, None)
        if started is None:
            return False
        attempt, queue, since = started
        took = now - since
        queue.running -= 1
        queue.measured(took)
        if self._with_deadline:
            self.deadlines.forget(attempt)
        recording = self.recordings.pop(fence, None) if self.recordings else None
        if fence in self._ended:
            self._ended.discard(fence)
        else:
            self._finalizer.add(attempt, Ending.RELEASED if self._is_releasing else event.ended, now, recording, took)
        return True

    def overdue(self, attempt: Attempt, now: float) -> bool:
        """An attempt reached its deadline. Whether it runs, and so was ended."""
        fence = attempt.id, attempt.run_lease
        if fence not in self._started or fence in self._ended:
            return False
        self._ended.add(fence)
        self._finalizer.add(attempt, Ending.DEADLINE, now, self.recordings.get(fence))
        return True

    def cancelled(self, fence: Fence) -> Attempt | None:
        """Somebody else ended an attempt. The attempt, when its handler runs and knows nothing yet."""
        started = self._started.get(fence)
        if started is None or fence in self._ended:
            return None
        self._ended.add(fence)
        self.deadlines.forget(started[0])
        return started[0]

    def release_from_now_on(self) -> None:
        """The handlers are being cancelled: how they end says nothing about their jobs."""
        self._is_releasing = True
