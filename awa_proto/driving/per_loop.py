"""What a client has opened on each event loop: connections belong to the loop they were opened on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Abandonable(Protocol):
    """Something with connections."""

    def abandon(self) -> None:
        """Close its sockets now, from whichever loop; nothing waits for the server."""


L = TypeVar("L")
D = TypeVar("D", bound=Abandonable)


class PerLoop(Generic[L, D]):
    """One `D` for each event loop that runs. Those whose loop has ended are abandoned when another loop is used.

    has_ended: whether a loop no longer runs.
    """

    def __init__(self, has_ended: Callable[[L], bool]) -> None:
        self._has_ended = has_ended
        self._opened: dict[L, D] = {}

    def get(self, loop: L, make: Callable[[], D]) -> D:
        """The one of this loop, which is the loop that runs here."""
        opened = self._opened.get(loop)
        if opened is None:
            self._abandon_ended()
            opened = self._opened[loop] = make()
        return opened

    def pop(self, loop: L) -> D | None:
        """Forget the one of this loop, for the caller to close."""
        opened = self._opened.pop(loop, None)
        self._abandon_ended()
        return opened

    def _abandon_ended(self) -> None:
        for loop in list(self._opened):  # a copy: loops may run in several threads
            if self._has_ended(loop) and (opened := self._opened.pop(loop, None)) is not None:
                opened.abandon()
