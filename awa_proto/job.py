"""The job: its states, the row that reads return, and the attempt that a claim hands out."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from awa_proto import extra
from awa_proto import output as outputs

T = TypeVar("T")


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

StateName: TypeAlias = Literal[
    "scheduled", "available", "running", "completed", "retryable", "failed", "cancelled", "waiting_external"
]
"""A state by its name, which is as good as the member."""


@dataclass(slots=True)
class JobRow:
    """A job as a read returns it. Datetimes are aware and in UTC.

    A copy: changing it changes no job. JSON is decoded when it is first asked for, as most rows are never looked into.
    (Not frozen, because making a frozen one takes fifteen times as long, 3 µs, and `insert_many` makes one per job.)

    attempt: how many attempts were claimed; a snoozed one is given back.
    run_lease: the fence of the newest attempt; rises with every claim, 0 before the first.
    args_json, extra_json, output_json: the texts that `args`, `errors`, `metadata`, `tags`, `progress` and `output` are decoded
    from. dlq_reason, dlq_at: why and when a failed job went to the dead letters, or None.
    callback_id, callback_timeout_at: the callback that an attempt has registered and that was not used yet, and when a job
    that waits for it is rescued; None where there is none.
    existed: whether an enqueue with on_conflict="skip" found the job instead of making it; False from reads.
    """

    id: int
    kind: str
    queue: str
    args_json: str
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
    extra_json: str | None = None
    output_json: str | None = None
    dlq_reason: str | None = None
    dlq_at: datetime | None = None
    callback_id: str | None = None
    callback_timeout_at: datetime | None = None
    existed: bool = field(default=False, compare=False)
    _args: dict[str, Any] | None = field(default=None, init=False, repr=False, compare=False)
    _extra: dict[str, Any] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def args(self) -> dict[str, Any]:
        """What the job is told, as JSON says it."""
        args = self._args
        if args is None:
            args = self._args = json.loads(self.args_json)
        return args

    @property
    def errors(self) -> list[dict[str, Any]]:
        """An entry per failed attempt, oldest first: `{"error": "Type: message", "attempt": n, "at": RFC 3339, …}`."""
        found: list[dict[str, Any]] = self._beside("errors", [])
        return found

    @property
    def metadata(self) -> dict[str, Any]:
        """What it was enqueued with beside its args."""
        found: dict[str, Any] = self._beside("metadata", {})
        return found

    @property
    def tags(self) -> list[str]:
        """The tags it was enqueued with."""
        found: list[str] = self._beside("tags", [])
        return found

    @property
    def progress(self) -> dict[str, Any] | None:
        """What the newest attempt said of itself: `{"percent": 0 … 100, "message": text, "metadata": {}}`; None for nothing."""
        if self.state is JobState.COMPLETED:
            return None
        found: dict[str, Any] | None = self._beside("progress", None)
        return found

    @property
    def unique_key(self) -> bytes | None:
        """The 16 bytes that keep a second job like this one out, when it was enqueued with `unique_opts`."""
        found: list[Any] = self._beside("unique", [])
        return bytes.fromhex(found[0]) if found else None

    @property
    def output(self) -> Any:
        """What the attempt that completed the job recorded, as JSON says it; None for nothing. Lists do not load it."""
        return None if self.output_json is None else json.loads(self.output_json)

    def output_as(self, output_type: type[T], /) -> T | None:
        """The output as an instance of a type, or None when there is none.

        A pydantic model is validated, a dataclass made of its fields, another class checked with isinstance. Raises
        SerializationError when it does not fit: perhaps it was written before the kind declared its type.
        """
        return outputs.decode(self.output, output_type)

    def error_output_as(self, output_type: type[T], /) -> T | None:
        """The output of the latest failed attempt that recorded one, as an instance of a type; else as `output_as`."""
        found = next((entry["output"] for entry in reversed(self.errors) if "output" in entry), None)
        return outputs.decode(found, output_type, "error output")

    def _beside(self, name: str, empty: Any) -> Any:
        if self._extra is None:
            self._extra = extra.decode(self.extra_json)
        return self._extra.setdefault(name, empty)


C = TypeVar("C")

DlqCursor: TypeAlias = tuple[datetime, int]
"""`(dlq_at, id)` of a dead letter: those before it are older."""


class JobPage(list[JobRow], Generic[C]):
    """A page of a list of jobs: a list that knows where the next one begins.

    next: what the same call takes as its `before` for the next page; None when there is nothing after this one.

    One call looks at a bounded number of jobs, so a page may be shorter than asked for, or empty, and not be the last:
    go on while `next` is not None.
    """

    __slots__ = ("next",)

    def __init__(self, jobs: Iterable[JobRow] = (), following: C | None = None) -> None:
        super().__init__(jobs)
        self.next: C | None = following


CANONICAL: Final = -1
"""What attempts of canonical storage have instead of a segment."""
PARKED: Final = -2
"""What attempts have instead of a segment that have ended, of jobs that wait for a callback."""


class Attempt(NamedTuple):
    """One claimed run of a job, as the rows of a claim bring it. `(id, run_lease)` is its fence.

    segment, claim_id, idx: where queue storage keeps it. Of canonical storage they are CANONICAL, the run_lease and 0; the
    model has no segments.
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

    @property
    def keeps_output(self) -> bool:
        """Whether its output is stored, in error entries too. Canonical storage has no place for it, whoever works the job."""
        return self.segment != CANONICAL
