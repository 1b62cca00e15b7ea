"""JobBase: what a handler gets, whatever package runs it. `Job` and `BlockingJob` of each package say which client.

One is made for every attempt, so it holds what the claim brought and decodes the rest when asked.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, TypeVar

from typing_extensions import override

from awa_proto import extra
from awa_proto.job import Attempt
from awa_proto.worker.events import Reason

A_co = TypeVar("A_co", covariant=True)
C_co = TypeVar("C_co", covariant=True)


class JobBase(Generic[A_co, C_co]):
    """The attempt a handler works on. Its args and its client are typed; nothing of it can be set.

    Made by a worker, of the claimed attempt, its decoded args, and the client whose handler it is.
    """

    __slots__ = ("_args", "_attempt", "_cancelled", "_client", "_extra")

    def __init__(self, attempt: Attempt, args: A_co, client: C_co) -> None:
        self._attempt = attempt
        self._args = args
        self._client = client
        self._cancelled: Reason | None = None
        self._extra: dict[str, Any] | None = None

    @property
    def args(self) -> A_co:
        """What the job is told, as the type its handler was registered with."""
        return self._args

    @property
    def client(self) -> C_co:
        """The client whose worker runs this: it enqueues and reads."""
        return self._client

    @property
    def id(self) -> int:
        """The number of the job, the same for all its attempts."""
        return self._attempt.id

    @property
    def kind(self) -> str:
        """Which handler the job is for."""
        return self._attempt.kind

    @property
    def queue(self) -> str:
        """The queue it was claimed from."""
        return self._attempt.queue

    @property
    def priority(self) -> int:
        """1 (first) to 4."""
        return self._attempt.priority

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1. A snoozed attempt is not counted."""
        return self._attempt.attempt

    @property
    def max_attempts(self) -> int:
        """How many attempts the job has in all."""
        return self._attempt.max_attempts

    @property
    def run_lease(self) -> int:
        """The fence of this attempt: `(id, run_lease)` is its own among all attempts there ever are."""
        return self._attempt.run_lease

    @property
    def run_at(self) -> datetime:
        """When this attempt was due; aware, in UTC."""
        return self._attempt.run_at

    @property
    def created_at(self) -> datetime:
        """When the job was enqueued; aware, in UTC."""
        return self._attempt.created_at

    @property
    def metadata(self) -> dict[str, Any]:
        """What the job was enqueued with beside its args. A copy for this attempt: changes go nowhere."""
        found: dict[str, Any] = self._decoded().setdefault("metadata", {})
        return found

    @property
    def tags(self) -> list[str]:
        """The tags it was enqueued with."""
        found: list[str] = self._decoded().setdefault("tags", [])
        return found

    @property
    def errors(self) -> list[dict[str, Any]]:
        """One entry for each failed attempt before, oldest first; see `JobRow.errors`."""
        found: list[dict[str, Any]] = self._decoded().setdefault("errors", [])
        return found

    def is_cancelled(self) -> bool:
        """Whether the handler is asked to stop: the job was cancelled, its deadline passed, or the worker stops."""
        return self._cancelled is not None

    def mark_cancelled(self, reason: Reason) -> None:
        """Let `is_cancelled()` be true from now on. Called by the worker; any thread may."""
        self._cancelled = reason

    @override
    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.kind!r} attempt {self.attempt} of {self.max_attempts}>"

    def _decoded(self) -> dict[str, Any]:
        if self._extra is None:
            self._extra = extra.decode(self._attempt.extra)
        return self._extra
