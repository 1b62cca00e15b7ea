"""Upkeep: what the Ops answer that a leader runs now and then, so that a store stays as large as what it has to keep."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Rotation:
    """What became of a rotation.

    opened: the segment that takes new jobs now, None when the one before still does.
    is_full: it was time, but no segment is free, so the open one grows on. Nothing is lost by it.
    """

    opened: int | None = None
    is_full: bool = False


@dataclass(frozen=True, slots=True)
class Probe:
    """What looking into every segment has shown.

    live: how many sealed segments have something to claim. revived: those in which it appeared when nobody expected it.
    """

    live: int = 0
    revived: tuple[int, ...] = ()


class KeptFor(StrEnum):
    """Why a sealed segment that is past its time is kept."""

    RUNNING = "running"
    """Attempts in it have not ended."""
    BACKLOG = "backlog"
    """More jobs wait in it than are carried on at once."""
    BUSY = "busy"
    """Somebody's open transaction has its tables: a long reader, pg_dump. It is tried again."""


class Kept(NamedTuple):
    """A sealed segment that is past its time, and could not be emptied."""

    segment: int
    reason: KeptFor


@dataclass(frozen=True, slots=True)
class Pruned:
    """What became of a pruning, of one segment.

    segment: the one that was emptied, None when none was. carried: jobs that waited in it, and wait in the open one now.
    kept: those that are past their time and had to be kept. more: others may be ready to be emptied.
    """

    segment: int | None = None
    carried: int = 0
    kept: tuple[Kept, ...] = ()
    more: bool = False


@dataclass(frozen=True, slots=True)
class Leadership:
    """Who leads.

    instance: the worker that does, None when nobody does. is_mine: whether it is the one that asked. term: how often
    another worker has begun to lead. expires_in: seconds until anybody may take over, unless the leader says that it is
    still there; 0 when that is now.
    """

    instance: int | None
    is_mine: bool
    term: int
    expires_in: float
