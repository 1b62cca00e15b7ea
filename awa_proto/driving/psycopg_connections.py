"""What the drivers on psycopg ask of a connection, and tell it, in the same words.

All of it works on the `PGconn` inside, which has no opinion on event loops.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg import errors, generators, sql
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, timeout_from_conninfo
from psycopg.pq import ConnStatus, ExecStatus, PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult

from awa_proto.driving.sockets import is_readable
from awa_proto.dsn import check_dsn
from awa_proto.errors import ConfigurationError, ValidationError
from awa_proto.plan import Copy, Statement

ENCODING = "utf8"
"""The client_encoding of every connection of ours. Values and the chunks of a COPY are written in it, so one that another
encoding was agreed on for (PGCLIENTENCODING, a DSN) would store other text than it was given."""

_APART: Final = 2**56


def check_conninfo(dsn: str) -> None:
    """Raise ConfigurationError for a DSN that cannot be read."""
    check_dsn(dsn, keywords=True)
    try:
        timeout_from_conninfo(conninfo_to_dict(dsn))
    except psycopg.Error:  # its text is not repeated, it may hold the password
        raise ConfigurationError("the database URL has an unknown parameter, or cannot be read by libpq") from None


def nobody_answered(failures: list[errors.Error]) -> errors.Error:
    """What to raise when each host that was tried failed in its way."""
    if len(failures) == 1:
        return failures[0]
    return errors.OperationalError("; ".join(str(error).strip() for error in failures))


def check_borrowed(pgconn: PGconn) -> None:
    """Raise ValidationError for a connection of a caller that would not carry a statement as it is meant."""
    if pgconn.status == ConnStatus.BAD:
        return  # the statement says so, in the words of the library
    if pgconn.pipeline_status != PipelineStatus.OFF:
        raise ValidationError("using", "the connection is in pipeline mode: call this outside of the pipeline block")
    if not speaks_utf8(pgconn):
        raise ValidationError("using", f"the connection has the client_encoding {encoding(pgconn)}, and needs UTF8")


def check_lent(pgconn: PGconn) -> None:
    """Raise ConfigurationError for a connection of a user's pool that writes text in another encoding."""
    if not speaks_utf8(pgconn):
        raise ConfigurationError(f"the connections of pool= have the client_encoding {encoding(pgconn)}, and need UTF8")


def encoding(pgconn: PGconn) -> str:
    """The client_encoding, as the server calls it."""
    return (pgconn.parameter_status(b"client_encoding") or b"").decode()


def speaks_utf8(pgconn: PGconn) -> bool:
    """Whether text crosses as UTF-8."""
    return pgconn.parameter_status(b"client_encoding") == b"UTF8"


def name_apart(connection: Any, chance: bytes) -> None:
    """Let its prepared statements have names that no other connection's have. chance: some random bytes, at most seven.

    psycopg counts from 0 in each. A transaction pooler that keeps no account of them would let one connection run what another
    has prepared under that name; so it says that there is none.
    """
    manager = connection._prepared  # noqa: SLF001  there is no public way
    if manager._prepared_idx < _APART:  # noqa: SLF001
        manager._prepared_idx += _APART + int.from_bytes(chance, "big")  # noqa: SLF001


def is_silent(pgconn: PGconn) -> bool:
    """Whether it is open and the server sent nothing while nobody asked; what it sends then is mostly its farewell."""
    return pgconn.status == ConnStatus.OK and not is_readable(pgconn.socket)


def is_clean(pgconn: PGconn) -> bool:
    """Whether it is closed, or certainly has no transaction open and nothing running."""
    return pgconn.status == ConnStatus.BAD or (
        pgconn.transaction_status == TransactionStatus.IDLE and pgconn.pipeline_status == PipelineStatus.OFF
    )


def receive(pgconn: PGconn) -> None:
    """Hand what the server sent unasked to the notification handlers. Raises psycopg.OperationalError at the end."""
    pgconn.consume_input()
    while (notification := pgconn.notifies()) is not None:
        if pgconn.notify_handler is not None:
            pgconn.notify_handler(notification)


def has_rows(result: PGresult | None) -> bool:
    """Whether a statement that succeeded has rows to fetch, be it none."""
    return result is not None and result.status == ExecStatus.TUPLES_OK


def copy_statement(copy: Copy) -> sql.Composed:
    """The COPY that the chunks follow."""
    return sql.SQL("COPY {}.{} ({}) FROM STDIN").format(
        sql.Identifier(copy.schema),
        sql.Identifier(copy.table),
        sql.SQL(", ").join(map(sql.Identifier, copy.columns)),
    )


def listen_statement(channel: str) -> Statement:
    """LISTEN to a channel of any name."""
    return Statement("listen", sql.SQL("LISTEN {}").format(sql.Identifier(channel)).as_string(None), prepare=False)


def command(pgconn: PGconn, text: bytes) -> PQGen[str]:
    """Run a command without parameters, such as COMMIT, at the cost of one message; the result is what the server did.

    psycopg's own `rollback` also forgets all prepared statements, which costs a round trip and is of use only to those
    who create and drop types.
    """
    pgconn.send_query(text)
    result = (yield from generators.execute(pgconn))[-1]
    if result.status == ExecStatus.FATAL_ERROR:
        raise errors.error_from_result(result, encoding="utf-8")
    return (result.command_status or b"").decode()
