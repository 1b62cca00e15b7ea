"""Statement, Plan, Op: what the core says to a database, and what it hears back.

A plan is a generator that yields statements and receives their rows. It holds no connection and knows no clock, so the
same plan runs under asyncio, under trio, in a thread, and in a test that answers by hand. An Op is a factory of plans
together with the facts a driver has to know before it starts one:

- One Op is at most one transaction. The driver opens it when `atomic`; otherwise every statement commits by itself.
- An error of the database is thrown into the plan as `DatabaseError`. In an atomic Op a plan may only translate it.
- A plan never yields BEGIN, COMMIT or ROLLBACK, and never yields in a `finally`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeAlias, TypeVar
from uuid import UUID

from awa_proto.events import AnyEvent

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Value: TypeAlias = "int | str | bool | bytes | float | datetime | UUID | Sequence[Any] | None"
"""What crosses to a database and back. JSON crosses as text; sequences are lists of the other types."""

Row: TypeAlias = "tuple[Any, ...]"
Rows: TypeAlias = "list[Row]"


@dataclass(frozen=True, slots=True)
class Statement:
    """One SQL statement.

    name: stable, the same for the same text: the key of prepared statements, metrics, spans and golden plans.
    sql: constant per name, placeholders `$1`, each with an explicit cast, so that every adapter encodes it alike; the
        cast is never to json or jsonb itself (`$1::text::json`), since a user's own connection may encode those by itself.
    prepare: whether the server is to keep it prepared. Not what runs once for a connection, nor SQL of a user's own,
        whose texts have no end and would push ours out.
    """

    name: str
    sql: str
    params: tuple[Value, ...] = ()
    prepare: bool = True


def users_own(sql: str, params: tuple[Value, ...]) -> Statement:
    """A statement that a user wrote, in a transaction of ours."""
    return Statement("user", sql, params, prepare=False)


@dataclass(frozen=True, slots=True)
class Copy:
    """Rows for `COPY schema.table (columns) FROM STDIN` in text format, already encoded.

    chunks: UTF-8 pieces of the text format, about 64 KiB each; consumed once.
    The answer is one row with the number of rows copied.
    """

    name: str
    schema: str
    table: str
    columns: tuple[str, ...]
    chunks: Iterable[bytes]


Step: TypeAlias = "Statement | Copy | tuple[Statement, ...]"
"""What a plan yields. A tuple holds independent statements, which a driver may pipeline; its answer is a list of Rows."""

Plan: TypeAlias = Generator[Step, Any, T]


@dataclass(frozen=True, slots=True)
class Op(Generic[T_co]):
    """A factory of plans, with the facts a driver must know.

    name: stable; the key of metrics and of fault injection.
    start: makes a fresh plan, once per attempt.
    atomic: all statements in one transaction, which is READ COMMITTED whatever the role defaults to.
    safe_to_retry: running it again is right although the first run may have committed.
    using: a connection of the caller, in whose open transaction the statements run; None: one of the client's own.
    timeout: seconds each statement may take; None: the database's own default.
    events: what hooks are to be told of once it is committed; filled by its plan, so empty before and after a failure.
    """

    name: str
    start: Callable[[], Generator[Step, Any, T_co]]
    atomic: bool = False
    safe_to_retry: bool = False
    using: object | None = None
    timeout: float | None = None
    events: Sequence[AnyEvent] = field(default=(), compare=False)

    def on(self, connection: object | None) -> Op[T_co]:
        """The same Op inside the open transaction of a caller's connection."""
        return self if connection is None else dataclasses.replace(self, using=connection)


def answer(statement: Step) -> Plan[Rows]:
    """A plan of one statement whose rows are the result."""
    rows: Rows = yield statement
    return rows
