"""The Ops of a worker that are under way: one per lane, answered by number, in any order.

An answer to a number that is not under way (a second answer, or one that comes after the machine gave up) is ignored.

An Op that took long may have run by plans of a time when a log was empty, and believed to be (ANALYZE, an upgrade):
before the next one, that lane lets its plans be made anew. That costs some milliseconds, so not often.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from awa_proto.contact import Contact
from awa_proto.errors import UNDEFINED_TABLE, DatabaseError, SchemaNotMigrated
from awa_proto.plan import Op
from awa_proto.worker.events import Lane, Output, RunOp
from awa_proto.worker.tally import FAILED_OPS, RECONNECTED, RETRIED_OPS, Tally

Done: TypeAlias = Callable[[Any, float], None]
Failed: TypeAlias = Callable[[DatabaseError, float], None]
Asking: TypeAlias = "Op[Any] | Callable[[float], Op[Any]]"
"""An Op, or what makes one when it is sent, given the time: one that says how long ago something was."""

SLOW: Final = 0.1
"""Seconds. A claim of a thousand jobs takes 6 ms."""
REPLAN_EVERY: Final = 30.0
_PLANNED = frozenset({Lane.CLAIM, Lane.FINALIZE, Lane.MAINTENANCE, Lane.UPKEEP})


@dataclass(frozen=True, slots=True)
class _Asked:
    op: Asking
    lane: Lane
    done: Done
    failed: Failed
    since: float


class Lanes:
    """Asks for Ops, hands their answers to whoever asked, and counts what failed.

    now: the time of the input that is being handled. silence: seconds without any answer after which the database was away.
    back_at: when it answered again after it was last away, or first. contacts: how each connection is. returned_at: when each
    was of use again after it had not been. reached_at: when one was last of use, the listening one aside; None before.
    """

    __slots__ = (
        "_answered_at", "_busy", "_failed", "_last", "_out", "_replan", "_replanned_at", "_tally", "_under_way", "_waiting",
        "back_at", "contacts", "now", "reached_at", "returned_at", "silence",
    )  # fmt: skip

    def __init__(self, out: deque[Output], replan: Callable[[], Op[None]], tally: Tally) -> None:
        self._out = out
        self._tally = tally
        self._failed: set[tuple[Lane, str]] = set()
        self.contacts: Mapping[Lane, Contact] = {lane: Contact() for lane in Lane}
        self.returned_at: dict[Lane, float] = dict.fromkeys(Lane, -math.inf)
        self.reached_at: float | None = None
        self._replan = replan
        self._replanned_at: dict[Lane, float] = {}
        self._answered_at = -math.inf
        self.back_at = -math.inf
        self.silence = math.inf
        self.now = 0.0
        self._last = 0
        self._under_way: dict[int, tuple[str, _Asked]] = {}
        self._busy: set[Lane] = set()
        self._waiting: dict[Lane, deque[_Asked]] = {lane: deque() for lane in Lane}

    def run(self, lane: Lane, op: Asking, done: Done, failed: Failed) -> None:
        """Run the Op on that lane, after whatever is on it or before it in line."""
        asked = _Asked(op, lane, done, failed, self.now)
        if lane in self._busy:
            self._waiting[lane].append(asked)
        else:
            self._send(asked)

    def is_busy(self, lane: Lane) -> bool:
        """Whether an Op of that lane is under way."""
        return lane in self._busy

    def forget_waiting(self, lane: Lane) -> None:
        """Ops that have not been sent yet are not sent any more."""
        self._waiting[lane].clear()

    def done(self, id: int, result: Any, now: float) -> None:
        """An Op has committed."""
        if answered := self._answered(id):
            name, asked = answered
            if now - self._answered_at > self.silence:
                self.back_at = now
            self._answered_at = now
            if asked.lane is not Lane.LISTEN:
                self.reached_at = now
            if self._failed:
                self._failed.discard((asked.lane, name))
            if self.contacts[asked.lane].reached():
                self.returned_at[asked.lane] = now
                self._tally.count(RECONNECTED, {"awa.lane": asked.lane})
            if now - asked.since > SLOW and asked.lane in _PLANNED:
                self._plan_anew(asked.lane, now)
            asked.done(result, now)

    def failed(self, id: int, error: DatabaseError | SchemaNotMigrated, now: float) -> None:
        """An Op has failed, or nobody knows."""
        if answered := self._answered(id):
            name, asked = answered
            if isinstance(error, SchemaNotMigrated):
                error = DatabaseError(str(error), UNDEFINED_TABLE)
            self._failed.add((asked.lane, name))
            self.contacts[asked.lane].failed(error, now)
            self._tally.count(FAILED_OPS, {"awa.op": name, "awa.failure": error.failure})
            asked.failed(error, now)

    def _plan_anew(self, lane: Lane, now: float) -> None:
        at = self._replanned_at.get(lane)
        if at is None or now - at > REPLAN_EVERY:
            self._replanned_at[lane] = now
            self.run(lane, self._replan(), _ignore, _ignore)

    def _answered(self, id: int) -> tuple[str, _Asked] | None:
        answered = self._under_way.pop(id, None)
        if answered is None:
            return None
        _, asked = answered
        self._busy.discard(asked.lane)
        if waiting := self._waiting[asked.lane]:
            self._send(waiting.popleft())
        return answered

    def _send(self, asked: _Asked) -> None:
        self._last += 1
        op = asked.op if isinstance(asked.op, Op) else asked.op(self.now)
        if self._failed and (asked.lane, op.name) in self._failed:
            self._tally.count(RETRIED_OPS, {"awa.op": op.name})
        self._busy.add(asked.lane)
        self._under_way[self._last] = op.name, asked
        self._out.append(RunOp(self._last, op, asked.lane))


def _ignore(_: object, _now: float) -> None:
    """Whether it worked shows in what comes next."""
