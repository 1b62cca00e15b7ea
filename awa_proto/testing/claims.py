"""The attempts of a simulated world, each as what really happened to it, and the error that says that a promise was broken."""

from __future__ import annotations

from dataclasses import dataclass, field

from awa_proto.job import Attempt
from awa_proto.outcome import Transition


class Broken(AssertionError):
    """A promise was broken."""


def check(holds: bool, promise: str) -> None:
    """Raise unless it holds."""
    if not holds:
        raise Broken(promise)


@dataclass(slots=True)
class Claim:
    """One attempt that some worker's claim took.

    worker: who. is_known: the answer reached it. parked: the flush and the transition by which it began to wait for its
    callback. accepted: the flush and the transition that ended it for good. is_called: it was ended by its callback, or by a
    person who let a job that waits run again. is_cancelled: a person ended it. excuse: why nobody may ever end it. told: the
    events that hooks heard of it.
    """

    attempt: Attempt
    worker: int
    is_known: bool = False
    is_started: bool = False
    parked: tuple[int, Transition] | None = None
    accepted: tuple[int, Transition] | None = None
    is_called: bool = False
    is_cancelled: bool = False
    excuse: str | None = None
    told: list[str] = field(default_factory=list[str])

    @property
    def is_open(self) -> bool:
        """Whether nobody has ended it; it may wait."""
        return self.accepted is None and not self.is_cancelled

    @property
    def rescue(self) -> Transition | None:
        """How upkeep ended it, if it did."""
        end = None if self.accepted is None else self.accepted[1]
        return end if end is not None and end.rescue is not None else None
