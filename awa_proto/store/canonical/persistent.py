"""A statement that is sent again when it lost against another one, where transactions are REPEATABLE READ or more.

There, whoever meets a row that was changed since its snapshot is rolled back; at READ COMMITTED it looks at the new row.
"""

from __future__ import annotations

from typing import Final

from awa_proto.errors import DatabaseError, Failure
from awa_proto.plan import Plan, Rows, Statement

_MOST: Final = 10
_IN_A_FAILED_TRANSACTION: Final = "25P02"


def persistently(statement: Statement) -> Plan[Rows]:
    """The rows of a statement that commits by itself; when it was rolled back for another's sake it is sent again."""
    lost: DatabaseError | None = None
    for _ in range(_MOST):
        try:
            rows: Rows = yield statement
        except DatabaseError as error:
            if lost is not None and error.sqlstate == _IN_A_FAILED_TRANSACTION:
                raise lost from None  # in the transaction of a caller, who is to hear what ended it
            if error.failure is not Failure.TRANSIENT or error.connection_is_dead:
                raise
            lost = error
        else:
            return rows
    assert lost is not None
    raise lost
