"""The job: its states, the row that reads return, and the attempt that a claim hands out."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple


class JobState(StrEnum):
    """Where a job is. The order is that of the states mask of unique jobs, so it never changes."""

    SCHEDULED = "scheduled"
    AVAILABLE = "available"
    RUNNING = "running"
    COMPLETED = "completed"
    RETRYABLE = "retryable"
    FAILED = "failed"
    CANCELLED = "cancelled"
    WAITING_EXTERNAL = "waiting_external"

    @property
    def is_terminal(self) -> bool:
        """Whether nothing but a person brings the job back."""
        return self in _TERMINAL


_TERMINAL = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED})


@dataclass(slots=True)
class JobRow:
    """A job as a read returns it. Datetimes are aware and in UTC.

    A copy: changing it changes no job. (Not frozen, because making a frozen one takes fifteen times as long, 3 µs, and
    `insert_many` makes one per job.)

    attempt: how many attempts were claimed; a snoozed one is given back.
    run_lease: the fence of the newest attempt; rises with every claim, 0 before the first.
    errors: one entry per failed attempt, oldest first: `{"error": "Type: message", "attempt": n, "at": RFC 3339, …}`.
    """

    id: int
    kind: str
    queue: str
    args: dict[str, Any]
    state: JobState
    priority: int
    attempt: int
    run_lease: int
    max_attempts: int
    run_at: datetime
    created_at: datetime
    attempted_at: datetime | None = None
    deadline_at: datetime | None = None
    finalized_at: datetime | None = None
    errors: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    tags: list[str] = field(default_factory=list[str])


class Attempt(NamedTuple):
    """One claimed run of a job, as the rows of a claim bring it. `(id, run_lease)` is its fence.

    segment, claim_id, idx: where queue storage keeps it; other engines put zeros there.
    args: JSON text as enqueued. extra: JSON text of what few jobs have, or None; see `awa_proto.extra`.
    attempt: the number of this attempt, from 1.
    """

    segment: int
    claim_id: int
    idx: int
    run_lease: int
    id: int
    queue: str
    priority: int
    kind: str
    args: str
    attempt: int
    max_attempts: int
    run_at: datetime
    created_at: datetime
    extra: str | None
