"""Recording: what a handler says beside its result. Its output, the follow-ups it stages, and how far it has come.

Made when a handler records something first, since most record nothing; kept where the worker machine looks for it when
the attempt ends. Only the handler writes, and it may do so from any thread, so each change replaces a whole value. What was
not said stands in the class, since most handlers that record anything record one thing.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from awa_proto import output as outputs
from awa_proto.args import to_object
from awa_proto.errors import OutputError, StagingError, ValidationError
from awa_proto.extra import compact, size_of
from awa_proto.job import Attempt
from awa_proto.options import EnqueueRequest, text, whole
from awa_proto.store import NewJob

MAX_STAGED_FOLLOW_UPS: Final = 16
"""Most follow-ups an attempt may stage."""
MAX_STAGED_BYTES: Final = 65536
"""Most bytes they may have: kind, queue, args, metadata, tags and ordering key."""
MAX_PROGRESS_BYTES: Final = 65536
"""Most bytes of JSON text of a job's progress."""


class Recording:
    """What one attempt has recorded.

    output: JSON text, or None. staged: follow-ups, encoded. requests: the same as the handler said them. refused: why a
    staging failed, which fails the attempt.
    dropped: how often an output was rejected, by reason. progress: what the job shows of itself, or None when nothing was
    ever said. is_new: whether some progress has not been written yet. is_flushed: whether some has, or a callback.
    callback: the id of the newest callback that was registered and not used. newest: the same, used or not. timeout_at: until
    when it is waited for, as it was registered.
    """

    staged: tuple[NewJob, ...] = ()
    requests: tuple[EnqueueRequest, ...] = ()
    refused: StagingError | None = None
    dropped: Mapping[str, int] = MappingProxyType({})
    is_new = False
    is_flushed = False
    callback: str | None = None
    newest: str | None = None
    timeout_at: datetime | None = None
    _bytes = 0

    def __init__(self, attempt: Attempt, progress: Mapping[str, Any] | None) -> None:
        self.attempt = attempt
        self.output: str | None = None
        self.progress = progress

    def record_output(self, value: object, declared: Any) -> None:
        """The newest value counts; one that is refused clears what was there. Raises OutputError."""
        try:
            self.output = outputs.encode(value, declared)
        except OutputError as error:
            self.output = None
            reason = "too_large" if isinstance(error, OutputError.TooLarge) else "invalid"
            self.dropped = {**self.dropped, reason: self.dropped.get(reason, 0) + 1}
            raise

    def stage(self, job: NewJob, size: int, request: EnqueueRequest) -> None:
        """Add a follow-up of so many bytes, made of a request. Raises StagingError, after which the attempt can only fail."""
        if len(self.staged) >= MAX_STAGED_FOLLOW_UPS:
            raise self.refuse(
                StagingError.TooMany(
                    f"{MAX_STAGED_FOLLOW_UPS} follow-ups are allowed in an attempt, and this is one more"
                )
            )
        if self._bytes + size > MAX_STAGED_BYTES:
            raise self.refuse(
                StagingError.TooLarge(
                    f"{self._bytes + size} bytes of follow-ups; {MAX_STAGED_BYTES} are allowed in an attempt"
                )
            )
        self._bytes += size
        self.staged = (*self.staged, job)
        self.requests = (*self.requests, request)

    def refuse(self, error: StagingError) -> StagingError:
        """Note that a staging failed; the first one counts. Returns the error, to be raised."""
        self.refused = self.refused or error
        return error

    def set_progress(self, percent: int, message: str | None) -> None:
        """Raises ValidationError."""
        said: dict[str, Any] = {"percent": whole("percent", percent, 0, 100)}
        if message is not None:
            said["message"] = text("message", message)
        if self.progress is not None and "metadata" in self.progress:
            said["metadata"] = self.progress["metadata"]
        self._change(said)

    def update_metadata(self, changes: Mapping[str, Any]) -> None:
        """Merge into the metadata of the progress, key by key at the top. Raises ValidationError."""
        if not isinstance(changes, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValidationError("metadata", f"a mapping is needed, not {type(changes).__name__}")
        _, found = to_object("metadata", changes)
        before = self.progress or {}
        self._change({**before, "metadata": {**before.get("metadata", {}), **found}})

    def _change(self, progress: Mapping[str, Any]) -> None:
        size = size_of(compact(progress))
        if size > MAX_PROGRESS_BYTES:
            raise ValidationError("progress", f"has {size} bytes of JSON; {MAX_PROGRESS_BYTES} are allowed")
        self.progress = progress
        self.is_new = True

    def registered(self, callback: str, timeout_at: datetime | None = None) -> None:
        """A callback was registered, and is written."""
        self.callback = self.newest = callback
        self.timeout_at = timeout_at
        self.is_flushed = True

    def flushed(self, progress: Mapping[str, Any]) -> None:
        """This much was written."""
        self.is_flushed = True
        if self.progress is progress:
            self.is_new = False

    @property
    def progress_json(self) -> str | None:
        """The progress as JSON text, when this attempt has said anything of it."""
        return compact(self.progress) if self.progress is not None and (self.is_new or self.is_flushed) else None
