"""What an exception of psycopg means in the words of the core."""

from __future__ import annotations

import psycopg

from awa_proto.errors import DatabaseError


def statement_failed(error: psycopg.Error, *, closed: bool, sent: bool = True) -> DatabaseError:
    """What a failed statement means; psycopg's own errors, and a connection that broke, have no SQLSTATE.

    closed: whether the connection is closed now.
    sent: whether something can have been committed by it.
    """
    if error.sqlstate is not None:
        said = error.diag
        return DatabaseError(
            said.message_primary or str(error),
            error.sqlstate,
            constraint=said.constraint_name,
            source=said.source_function,
            sent=sent,
        )
    if closed:
        return DatabaseError(f"the connection broke: {error}", sent=sent)
    if isinstance(error, psycopg.DataError | psycopg.ProgrammingError):  # a value that cannot be written or read
        return DatabaseError(str(error), "22000", sent=False)
    return DatabaseError(str(error), "XX000", sent=sent)


def value_refused(error: Exception) -> DatabaseError:
    """What a ValueError, TypeError or OverflowError from writing a parameter means; psycopg lets them through."""
    return DatabaseError(f"a value that cannot be sent: {error}", "22000", sent=False)


def connecting_failed(error: psycopg.Error) -> DatabaseError:
    """What a failure to connect means. Nothing was sent, so nothing was done."""
    return DatabaseError(f"cannot connect to the database: {error}", error.sqlstate or "08001", sent=False)
