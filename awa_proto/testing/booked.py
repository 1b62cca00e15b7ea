"""The database of a simulated world: a MemoryStore that remembers what its callers would have to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from typing_extensions import override

from awa_proto.job import Attempt, JobRow, JobState
from awa_proto.plan import Op, Plan
from awa_proto.retention import Retention
from awa_proto.store import Ended, Registered, Verdicts
from awa_proto.store.memory import MemoryJob, MemoryStore
from awa_proto.testing.claims import check


class BookedStore(MemoryStore):
    """Remembers what each flush consists of, so that it can be cut in pieces, and what retention deleted.

    gone: the last rows of jobs that were deleted. kept_for: what workers were told of retention; None: nothing is deleted.
    registered: told of each callback as it is written, whoever hears of that.
    """

    def __init__(
        self,
        clock: Callable[[], datetime],
        random: Callable[[], float],
        *,
        shares: BookedStore | None = None,
        notified: Callable[[str | None], object] | None = None,
    ) -> None:
        super().__init__(clock, random, shares=shares, notified=notified)
        self._flushes: dict[int, tuple[Op[Verdicts], Sequence[Ended], int]] = {}
        self.gone: dict[int, JobRow] = {} if shares is None else shares.gone
        self.kept_for: Retention | None = None
        self.registered: Callable[[Attempt, Registered], object] = _ignore if shares is None else shares.registered

    @override
    def finalize(self, ended: Sequence[Ended], flush: int) -> Op[Verdicts]:
        op = super().finalize(ended, flush)
        self._flushes[id(op)] = op, ended, flush
        return op

    def flush_of(self, op: Op[Any]) -> tuple[Sequence[Ended], int]:
        """What an Op writes, and the number of the flush; nothing, of one that is no flush. Once."""
        _, ended, flush = self._flushes.pop(id(op), (op, (), 0))
        return ended, flush

    @override
    def register_callback(
        self, attempt: Attempt, timeout: float, expressions: str | None, before: str | None = None
    ) -> Op[Registered | None]:
        op = super().register_callback(attempt, timeout, expressions, before)

        def plan() -> Plan[Registered | None]:
            found = yield from op.start()
            if found is not None:
                self.registered(attempt, found)
            return found

        return Op(op.name, plan, safe_to_retry=op.safe_to_retry)

    def state_of(self, id: int) -> JobState:
        """Where a job is, whether its handler waits or works."""
        return self._tables.jobs[id].state

    @override
    def _forget(self, jobs: Sequence[MemoryJob]) -> int:
        for job in jobs:
            row = self._row(job)
            kept = self.kept_for
            check(kept is not None and row.state.is_terminal, f"job {row.id} is deleted, {row.state}")
            assert kept is not None
            seconds = kept.completed if row.state is JobState.COMPLETED else kept.failed
            since, seconds = (row.finalized_at, seconds) if row.dlq_at is None else (row.dlq_at, kept.dead_letters)
            is_old = since is not None and self._clock() - since >= timedelta(seconds=seconds)
            check(is_old, f"job {row.id}, {row.state} since {since}, is deleted before {seconds} s are over")
            self.gone[row.id] = row
        return super()._forget(jobs)


def _ignore(_: Attempt, _registered: Registered) -> None:
    """Nobody keeps books."""
