"""What a worker tells people: log lines as outputs, repeated ones held back."""

from __future__ import annotations

from typing import Any, Final, Protocol

from awa_proto.job import Attempt, JobRow
from awa_proto.worker.events import Emit

DEBUG: Final = 10
INFO: Final = 20
WARNING: Final = 30
ERROR: Final = 40
"""The levels of the logging module, which the core has no need to import."""

QUIET: Final = 10.0
"""Seconds between two lines of the same key; those in between are counted and told with the next."""


SAMPLE: Final = 20
"""Lines of one key within `QUIET` seconds where each says something of its own, such as an attempt that failed."""


def about(attempt: Attempt | JobRow) -> dict[str, Any]:
    """The fields of every line about a job, whoever writes it."""
    return {"job": attempt.id, "kind": attempt.kind, "queue": attempt.queue, "attempt": attempt.attempt}


class Said(Protocol):
    """Where lines are put: a stream of outputs."""

    def append(self, emit: Emit, /) -> object:
        """Put one there."""
        ...


class Report:
    """Puts `Emit` outputs in the stream, at most one per key and `QUIET` seconds, except where every one counts."""

    __slots__ = ("_held", "_open", "_out", "_sampled", "_told")

    def __init__(self, out: Said) -> None:
        self._out = out
        self._told: dict[str, float] = {}
        self._held: dict[str, int] = {}
        self._open: set[str] = set()
        self._sampled: dict[str, int] = {}

    def tell(self, level: int, key: str, message: str, **fields: Any) -> None:
        """Say it, however often."""
        self._out.append(Emit(level, key, message, fields))

    def warn(self, now: float, key: str, message: str, *, quiet: float = QUIET, **fields: Any) -> bool:
        """Say it as a warning, unless the same key was said `quiet` seconds ago or less. Whether it was said."""
        told = self._told.get(key)
        if told is not None and now - told < quiet:
            self._held[key] = self._held.get(key, 0) + 1
            return False
        self._told[key] = now
        self._open.add(key)
        held = self._held.pop(key, 0)
        if held:
            fields["held_back"] = held
        self.tell(WARNING, key, message, **fields)
        return True

    def sample(self, now: float, level: int, key: str, message: str, **fields: Any) -> None:
        """Say it, unless the same key was said `SAMPLE` times a moment ago; those held back are told with the next."""
        told = self._told.get(key)
        if told is None or now - told >= QUIET:
            self._told[key] = now
            self._sampled[key] = 0
            held = self._held.pop(key, 0)
            if held:
                fields["held_back"] = held
        elif self._sampled[key] >= SAMPLE:
            self._held[key] = self._held.get(key, 0) + 1
            return
        self._sampled[key] += 1
        self.tell(level, key, message, **fields)

    def recovered(self, key: str, message: str, **fields: Any) -> None:
        """Say that what was warned about is over; silent when nothing was said.

        What then fails again a moment later is held back like any repetition, so that a fault that comes and goes does
        not fill the log.
        """
        if key in self._open:
            self._open.discard(key)
            self.tell(INFO, f"{key}: over", message, **fields)
