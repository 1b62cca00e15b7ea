"""What the worker loops of the drivers share: what they ask of jobs and databases, and how lanes and log lines begin."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias, TypeVar

from awa_proto.errors import DatabaseError
from awa_proto.events import AnyEvent
from awa_proto.outcome import Returned
from awa_proto.plan import Op
from awa_proto.worker.events import (
    Emit,
    Event,
    Lane,
    ListenLost,
    ListenOpened,
    Reason,
    WaitAsked,
    WaitLeft,
    Woken,
)

T = TypeVar("T")
L_co = TypeVar("L_co", covariant=True)

Fence: TypeAlias = "tuple[int, int]"
"""What identifies an attempt: (id, run_lease)."""

NOTHING: Final = Returned(None)
"""What most handlers return."""

PATIENCE: Final = 5.0
"""Seconds that what is still under way gets to end after the loop has."""

_log = logging.getLogger("awa")


class RunningJob(Protocol):
    """What the worker needs of the job that a handler gets."""

    @property
    def cancel_reason(self) -> Reason | None:
        """What `mark_cancelled` said, if it was called."""
        ...

    def carry(self, put: Callable[[WaitAsked | WaitLeft], object]) -> None:
        """What its handler says of what it waits for goes there; it comes from the handler's own thread or task."""
        ...

    def wait_over(self, end: Reason | str | None, callback_id: str | None = None) -> None:
        """Let its handler go on that waits, for this callback."""
        ...

    def seal(self) -> None:
        """Let it record nothing more: its handler has ended. In the handler's own thread or task."""
        ...

    def mark_cancelled(self, reason: Reason) -> None:
        """Let `is_cancelled()` be true from now on; may come from another thread than the handler's."""
        ...


class AwaitedLane(Protocol):
    """A connection of the worker's own, opened when it is first used and opened again after it was lost."""

    async def run(self, op: Op[T]) -> T:
        """Run it once. Raises DatabaseError."""
        ...

    async def close(self) -> None:
        """Close it, within a bound."""
        ...


class LaneDatabase(Protocol[L_co]):
    """What the worker needs of a database."""

    def lane(
        self,
        name: str,
        *,
        channel: str | None = None,
        notified: Callable[[str], object] | None = None,
        lost: Callable[[DatabaseError], object] | None = None,
        opened: Callable[[int], object] | None = None,
    ) -> L_co:
        """A lane; with a channel it LISTENs there and reports payloads, its own loss, and of which server process it is."""
        ...


def open_lane(database: LaneDatabase[T], name: Lane, channel: str, put: Callable[[Event], object]) -> T:
    """The lane of this name. What the listening one hears is put into the inbox, as it comes."""
    if name is not Lane.LISTEN:
        return database.lane(name)
    return database.lane(
        name,
        channel=channel,
        notified=lambda payload: put(Woken(payload or None)),
        lost=lambda error: put(ListenLost(error)),
        opened=lambda pid: put(ListenOpened(pid)),
    )


def nobody_listens(_: Sequence[AnyEvent]) -> None:
    """What is called with events where there is nobody to tell."""


def tell(emit: Emit) -> None:
    """Write a log line of the machine."""
    _log.log(emit.level, "%s", emit.text, extra={"awa": emit.fields})


def tell_all(said: deque[Emit]) -> None:
    """Write log lines, and take them out."""
    while said:
        tell(said.popleft())
