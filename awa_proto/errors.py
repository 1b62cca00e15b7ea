"""The one hierarchy of errors, and the table that says what an error of the database means.

Users see `AwaError` and its subclasses; an exception of asyncpg or psycopg is only ever the `__cause__`. Adapters report
a failure as `DatabaseError(message, sqlstate, ...)` and decide nothing: `classify` reads the SQLSTATE (PostgreSQL manual,
appendix A), and `Retries` says whether an Op may be run again.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from awa_proto.contact import Calls
    from awa_proto.plan import Op


class AwaError(Exception):
    """Whatever this library raises on purpose."""


class ValidationError(AwaError, ValueError):
    """A value was refused before anything was written.

    field: the argument or option that was refused. reason: why, with the limit.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.reason = message


class SerializationError(ValidationError):
    """Args, metadata or another value cannot be written as JSON, or JSON does not fit the declared type."""


class UnknownJobKind(AwaError, LookupError):
    """No handler is registered for the kind of a job."""


class JobNotFound(AwaError, LookupError):
    """No job has this id (any more)."""

    def __init__(self, id: int) -> None:
        super().__init__(f"no job has the id {id}")
        self.id = id


class CronJobNotFound(AwaError, LookupError):
    """No cron job has this name (any more)."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no cron job has the name {name!r}")
        self.name = name


class CallbackNotFound(AwaError, LookupError):
    """No job waits for this callback (any more): it was used, replaced, timed out, or never there. Nothing was changed."""

    def __init__(self, id: str) -> None:
        super().__init__(f"no job waits for the callback {id}")
        self.id = id


class AttemptEnded(AwaError):
    """The attempt is not the job's any more: it was cancelled, rescued, or ended from outside. Nothing was changed."""

    def __init__(self, id: int) -> None:
        super().__init__(f"this attempt of job {id} was ended by somebody else")
        self.id = id


class WaitCancelled(AwaError):
    """The handler waited for a callback when its job was cancelled, its deadline passed, or its worker stopped."""


class TerminalError(AwaError):
    """Raise it (or a subclass) in a handler to fail the job for good, whatever attempts are left."""


class UniqueConflict(AwaError):
    """Another job has the same unique key, and is in a state that keeps this one out. Nothing was written.

    job_id: that job's id; None when it is an earlier one of the same batch. index: which job of a batch met it, or None.
    """

    def __init__(self, job_id: int | None, index: int | None = None) -> None:
        which = "" if index is None else f"jobs[{index}]: "
        other = "an earlier job of the batch" if job_id is None else f"job {job_id}"
        super().__init__(f"{which}{other} has the same unique key")
        self.job_id = job_id
        self.index = index


class StagingError(TerminalError):
    """A follow-up could not be staged by `job.enqueue_on_completion`. Even caught, it fails the attempt for good."""

    Sealed: type[StagingError]
    """The handler had returned."""
    TooMany: type[StagingError]
    """More follow-ups than one attempt may stage."""
    TooLarge: type[StagingError]
    """More bytes of follow-ups than one attempt may stage."""
    Invalid: type[StagingError]
    """Args or options that an insert would refuse."""


class _StagingSealed(StagingError):
    pass


class _StagingTooMany(StagingError):
    pass


class _StagingTooLarge(StagingError):
    pass


class _StagingInvalid(StagingError):
    pass


class OutputError(TerminalError):
    """An output could not be recorded; what was recorded before is cleared. Uncaught, it fails the attempt for good."""

    Sealed: type[OutputError]
    """The handler had returned."""
    TooLarge: type[OutputError]
    """More bytes than an output may have."""
    Invalid: type[OutputError]
    """A value that is no JSON, or not of the declared type."""


class _OutputSealed(OutputError):
    pass


class _OutputTooLarge(OutputError):
    pass


class _OutputInvalid(OutputError):
    pass


for _base, _name, _kind in (
    (StagingError, "Sealed", _StagingSealed),
    (StagingError, "TooMany", _StagingTooMany),
    (StagingError, "TooLarge", _StagingTooLarge),
    (StagingError, "Invalid", _StagingInvalid),
    (OutputError, "Sealed", _OutputSealed),
    (OutputError, "TooLarge", _OutputTooLarge),
    (OutputError, "Invalid", _OutputInvalid),
):
    _kind.__name__ = _name
    _kind.__qualname__ = f"{_base.__name__}.{_name}"
    setattr(_base, _name, _kind)


class SchemaNotMigrated(AwaError):
    """The database has no awa schema of this version, or a newer one than this code understands."""


class ConfigurationError(AwaError, ValueError):
    """The application is set up wrongly: a DSN that cannot be read, a driver that is not installed, a worker of no queue."""


class Failure(StrEnum):
    """What a failed statement means for whoever sent it."""

    TRANSIENT = "transient"
    """Rolled back; the same statement may succeed in a moment."""
    TIMED_OUT = "timed out"
    """Rolled back: it was cancelled at its deadline, or by somebody. Not repeated for a client, which would wait again."""
    BUSY = "busy"
    """Rolled back: a lock was not granted within its timeout."""
    CONNECTION_LOST = "connection lost"
    """The connection is gone and nothing of the transaction was committed."""
    OUTCOME_UNKNOWN = "outcome unknown"
    """The connection is gone; the statement may or may not have been committed."""
    UNAVAILABLE = "unavailable"
    """The server does not accept connections (now)."""
    READ_ONLY = "read-only server"
    """Connected to a standby, or to a primary that was demoted: this connection is of no use."""
    UNIQUE_VIOLATION = "unique violation"
    NOT_MIGRATED = "not migrated"
    """A table, column or function of the schema is missing."""
    UNPREPARED = "unprepared"
    """A prepared statement is not where it was put: a pooler that cannot do them."""
    RESTORED = "restored dump"
    """The cursors are those of another cluster: nothing can be claimed until they are rebased."""
    REFUSED = "refused"
    """The server will refuse the same statement again: bad data, missing permission, a bug."""


OF_ONE: Final = frozenset({Failure.REFUSED, Failure.UNIQUE_VIOLATION, Failure.BUSY, Failure.TIMED_OUT})
"""Failures of a batch that one thing in it may cause: the others may succeed without it."""

OF_SERVER: Final = frozenset(
    {Failure.TRANSIENT, Failure.CONNECTION_LOST, Failure.OUTCOME_UNKNOWN, Failure.UNAVAILABLE, Failure.READ_ONLY}
)
"""Failures that say nothing of the statement: when another one succeeds afterwards, this one may as well."""

UNDEFINED_TABLE: Final = "42P01"

_BY_SQLSTATE: dict[str, Failure] = {
    "08001": Failure.UNAVAILABLE,
    "08003": Failure.CONNECTION_LOST,
    "08004": Failure.UNAVAILABLE,
    "23505": Failure.UNIQUE_VIOLATION,
    "25006": Failure.READ_ONLY,
    "26000": Failure.UNPREPARED,
    "28000": Failure.UNAVAILABLE,
    "28P01": Failure.UNAVAILABLE,
    "3D000": Failure.UNAVAILABLE,
    "3F000": Failure.NOT_MIGRATED,
    "40003": Failure.OUTCOME_UNKNOWN,
    "42703": Failure.NOT_MIGRATED,
    "42883": Failure.NOT_MIGRATED,
    "42P01": Failure.NOT_MIGRATED,
    "42P05": Failure.UNPREPARED,
    "55P03": Failure.BUSY,
    "57014": Failure.TIMED_OUT,
    "57P01": Failure.OUTCOME_UNKNOWN,
    "57P02": Failure.OUTCOME_UNKNOWN,
    "57P03": Failure.UNAVAILABLE,
    "57P04": Failure.UNAVAILABLE,
    "57P05": Failure.OUTCOME_UNKNOWN,
}
"""08001 is what an adapter says when it cannot connect and no server spoke."""
_BY_CLASS: dict[str, Failure] = {
    "08": Failure.OUTCOME_UNKNOWN,
    "40": Failure.TRANSIENT,
    "53": Failure.TRANSIENT,
    "58": Failure.TRANSIENT,
}
"""Class 40 rolls back by definition; 53 is a lack of resources; 58 an error of the operating system under the server."""


def is_stale_plan(sqlstate: str | None, source: str | None) -> bool:
    """Whether a prepared statement failed because its table was altered since; a new connection does not have it.

    0A000 says "feature not supported" and much else; the text is translated, so the function that raised it decides.
    """
    return sqlstate == "0A000" and source == "RevalidateCachedQuery"


def classify(sqlstate: str | None, *, sent: bool = True, source: str | None = None) -> Failure:
    """What a SQLSTATE means; None is a loss of the connection that no server reported.

    sent: whether the statement (or COMMIT) can have reached the server. What was never sent was never done.
    source: the function of the server that raised the error, when it said so.
    """
    if sqlstate is None:
        found = Failure.OUTCOME_UNKNOWN
    elif is_stale_plan(sqlstate, source):
        found = Failure.TRANSIENT
    else:
        found = _BY_SQLSTATE.get(sqlstate) or _BY_CLASS.get(sqlstate[:2], Failure.REFUSED)
    if found is Failure.OUTCOME_UNKNOWN and not sent:
        return Failure.CONNECTION_LOST
    return found


class DatabaseError(AwaError):
    """A statement failed.

    sqlstate: five characters, or None when the connection broke without a word from the server.
    constraint: the name of the violated constraint, when there is one.
    source: the function of the server that raised it, when it said so.
    failure: what the error means; see `Failure`.
    """

    def __init__(
        self,
        message: str,
        sqlstate: str | None = None,
        *,
        constraint: str | None = None,
        source: str | None = None,
        sent: bool = True,
    ) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.constraint = constraint
        self.source = source
        self.failure = classify(sqlstate, sent=sent, source=source)

    @property
    def connection_is_dead(self) -> bool:
        """Whether the connection must not be used again: it is gone, of no use, or its prepared statements are."""
        return self.failure in _DEAD or is_stale_plan(self.sqlstate, self.source)

    def restated(self, message: str | None = None, *, sent: bool = True) -> DatabaseError:
        """The same error with another message, or known not to have been sent; its cause is for the caller to set."""
        sent = sent and self.failure is not Failure.CONNECTION_LOST
        text = str(self) if message is None else message
        return DatabaseError(text, self.sqlstate, constraint=self.constraint, source=self.source, sent=sent)

    def is_of_users_sql(self) -> None:
        """The statement was a user's own: what it misses says nothing about our schema, nor about a pooler."""
        if self.failure in {Failure.NOT_MIGRATED, Failure.UNPREPARED}:
            self.failure = Failure.REFUSED


_DEAD = frozenset(
    {
        Failure.CONNECTION_LOST,
        Failure.OUTCOME_UNKNOWN,
        Failure.UNAVAILABLE,
        Failure.READ_ONLY,
        Failure.UNPREPARED,
    }
)
_ROLLED_BACK = frozenset({Failure.TRANSIENT, Failure.CONNECTION_LOST, Failure.UNPREPARED, Failure.READ_ONLY})
_MOST_ATTEMPTS = 5


class Retries:
    """Whether a failed Op is run again, and after how long. One object for one call of a client.

    Only what surely left nothing behind is repeated, or what says of itself that repeating it is right. Between two
    attempts lie 5, 10, 20, 40 ms, each times a random factor between 1 and 2. calls: told how each attempt ended.
    """

    __slots__ = ("_attempts", "_calls", "_op", "_random", "_schema")

    def __init__(self, op: Op[object], schema: str, random: Callable[[], float], calls: Calls | None = None) -> None:
        self._op = op
        self._calls = calls
        self._schema = schema
        self._random = random
        self._attempts = 0

    def succeeded(self) -> None:
        """It was done."""
        if self._calls is not None:
            self._calls.succeeded()

    def after(self, error: DatabaseError) -> float:
        """Seconds to wait before the next attempt. Raises what the caller is to see when there is none."""
        if self._calls is not None:
            self._calls.failed(self._op.name, error)
        if error.failure is Failure.NOT_MIGRATED:
            raise not_migrated(self._schema) from error
        self._attempts += 1
        repeatable = error.failure in _ROLLED_BACK or (
            self._op.safe_to_retry and error.failure in {Failure.OUTCOME_UNKNOWN, Failure.BUSY}
        )
        if not repeatable or self._attempts >= _MOST_ATTEMPTS:
            raise error
        if self._calls is not None:
            self._calls.retried(self._op.name)
        return 0.005 * 2.0 ** (self._attempts - 1) * (1 + self._random())


def not_migrated(schema: str) -> SchemaNotMigrated:
    """The error that tells how to create or upgrade the schema."""
    option = "" if schema == "awa" else f" --schema {schema}"
    return SchemaNotMigrated(
        f"the database has no schema {schema!r} of this version: run `awa migrate{option}`, or call client.migrate()"
    )
