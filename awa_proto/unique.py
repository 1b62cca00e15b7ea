"""Unique jobs: what makes two jobs the same, the 16 bytes that say so, and the states in which one keeps the other out.

The key of a job is BLAKE2b with 16 bytes (RFC 7693) over its kind, and then, as far as they are chosen: a NUL, q and its
queue; a NUL, a and its args as canonical JSON (keys sorted, no spaces, UTF-8); a NUL, p and two little-endian 64-bit numbers,
the length of the period in microseconds and how many such periods lie between 1970-01-01 UTC and the time the job is due.
Kinds, queues and JSON text contain no NUL, so two different choices never meet in one text.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from struct import pack
from typing import Final, NamedTuple, TypedDict

from awa_proto.errors import UniqueConflict, ValidationError
from awa_proto.extra import unique_of
from awa_proto.job import JobState, StateName
from awa_proto.outcome import Seconds, seconds
from awa_proto.store import NewJob, Unique

DEFAULT_STATES: Final = (
    JobState.SCHEDULED,
    JobState.AVAILABLE,
    JobState.RUNNING,
    JobState.COMPLETED,
    JobState.RETRYABLE,
)
"""A job keeps others out until it fails or is cancelled, or until it is forgotten after its completion."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_PLACES = {state: place for place, state in enumerate(JobState)}


def mask(states: Iterable[JobState]) -> int:
    """States as one number: bit i for the i-th of JobState."""
    return sum(1 << _PLACES[state] for state in set(states))


HELD: Final = mask((JobState.SCHEDULED, JobState.AVAILABLE, JobState.RUNNING, JobState.RETRYABLE))
"""A job whose states include these keeps its key from its insert to its end, whatever happens to its attempts."""


def keeps_out(states: int, state: JobState) -> bool:
    """Whether a job in a state keeps others out."""
    return bool(states >> _PLACES[state] & 1)


def must_win_again(extra: str | None, to: JobState) -> bool:
    """Whether a job that goes to a state after an attempt may find its key with a newer job. extra: the job's.

    One that is parked may run again at once instead, since its callback has come.
    """
    if extra is None or to not in _BACK or (unique := unique_of(extra)) is None:
        return False
    states = unique[1]
    runs = to is JobState.WAITING_EXTERNAL and keeps_out(states, JobState.AVAILABLE)
    return states & HELD != HELD and (runs or keeps_out(states, to))


def must_win_after_waiting(extra: str | None, to: JobState) -> bool:
    """The same of a parked job, which kept others out only if its states say so. One that completes is not asked."""
    if extra is None or to not in _BACK or (unique := unique_of(extra)) is None:
        return False
    return keeps_out(unique[1], to) and not keeps_out(unique[1], JobState.WAITING_EXTERNAL)


_BACK = frozenset({JobState.SCHEDULED, JobState.AVAILABLE, JobState.RETRYABLE, JobState.WAITING_EXTERNAL})


def refuse_repeated(jobs: Iterable[NewJob]) -> None:
    """Raise UniqueConflict when two jobs of a batch have the same key, of which only one can be."""
    seen: set[bytes] = set()
    for index, job in enumerate(jobs):
        if job.unique is not None:
            if job.unique.key in seen:
                raise UniqueConflict(None, index)
            seen.add(job.unique.key)


class UniqueFields(TypedDict, total=False):
    """UniqueOpts as a mapping; a missing field means its default."""

    by_queue: bool
    by_args: bool
    by_period: Seconds | None
    states: Collection[JobState | StateName]


@dataclass(frozen=True, slots=True)
class UniqueOpts:
    """What makes a job the same as another one of its kind, of which there is then only one.

    by_queue: its queue, too. by_args: its args, too. by_period: the period it is due in, too: seconds or a timedelta, at
    least one second, counted from 1970 in UTC; a job without `run_at` is due at the time of the enqueue.
    states: those in which it keeps another one out; by default all but failed, cancelled and waiting_external.

    Nothing is checked before it is enqueued.
    """

    by_queue: bool = False
    by_args: bool = True
    by_period: Seconds | None = None
    states: Collection[JobState | StateName] = DEFAULT_STATES


class Uniqueness(NamedTuple):
    """A checked UniqueOpts. states: as a mask."""

    by_queue: bool
    by_args: bool
    period: timedelta | None
    states: int

    @classmethod
    def of(cls, opts: object) -> Uniqueness:
        """Raises ValidationError naming the field and its limit."""
        if not isinstance(opts, UniqueOpts):
            if not isinstance(opts, Mapping):
                wanted = "UniqueOpts or a mapping of its fields"
                raise ValidationError("unique_opts", f"{wanted} is needed, not {type(opts).__name__}")
            if unknown := opts.keys() - UniqueFields.__annotations__.keys():
                raise ValidationError(f"unique_opts.{min(map(str, unknown))[:200]}", "there is no such option")
            opts = dataclasses.replace(UniqueOpts(), **opts)
        for name, value in (("by_queue", opts.by_queue), ("by_args", opts.by_args)):
            if not isinstance(value, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ValidationError(f"unique_opts.{name}", f"True or False is needed, not {type(value).__name__}")
        length = None if opts.by_period is None else period("unique_opts.by_period", opts.by_period)
        return cls(opts.by_queue, opts.by_args, length, _mask(opts.states))

    def of_job(self, kind: str, queue: str, args: str, at: datetime) -> Unique:
        """What keeps a second one of this job out. args: JSON text. at: when it is due."""
        found = key(
            kind,
            queue=queue if self.by_queue else None,
            args=args if self.by_args else None,
            period=self.period,
            at=at,
        )
        return Unique(found, self.states)


def period(field: str, value: object) -> timedelta:
    """A period, checked: 1 second to 100 years. Raises ValidationError."""
    found = seconds(field, value)
    if found < 1:
        raise ValidationError(field, f"{found:g} is less than one second")
    return timedelta(seconds=found)


def key(kind: str, *, queue: str | None, args: str | None, period: timedelta | None, at: datetime) -> bytes:
    """The key of a job, of what is given of it; see the module. args: JSON text. at: aware, for the period."""
    digest = blake2b(kind.encode(), digest_size=16)
    if queue is not None:
        digest.update(b"\0q" + queue.encode())
    if args is not None:
        digest.update(b"\0a" + _canonical(args).encode())
    if period is not None:
        digest.update(b"\0p" + pack("<qq", period // _MICROSECOND, (at - _EPOCH) // period))
    return digest.digest()


def _canonical(args: str) -> str:
    return _write(json.loads(args))


_write = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode


def _mask(states: object) -> int:
    field = "unique_opts.states"
    if isinstance(states, (str, bytes)) or not isinstance(states, Collection):
        raise ValidationError(field, f"a collection of states is needed, not {type(states).__name__}")
    if not states:
        raise ValidationError(field, "is empty: the job would keep no other one out")
    for state in states:
        if not isinstance(state, str) or state not in _PLACES:
            shown = repr(state[:40]) if isinstance(state, str) else f"a value of type {type(state).__name__}"
            raise ValidationError(field, f"{shown} is none of {', '.join(JobState)}")
    return mask(JobState(state) for state in states)
