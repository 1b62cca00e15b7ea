"""What a user hands in, a DSN or a connection for `using=`: what drivers ask of it before anything is sent.

No library of a database is imported here before it is known to be there.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any, Final

from awa_proto.dsn import check_dsn

IN_NO_TRANSACTION: Final = (
    "the connection is in no transaction, so nothing would commit or undo this with yours: begin one"
)
_IDLE: Final = 0
"""PQTRANS_IDLE and PQ_PIPELINE_OFF of libpq."""


def check_libpq_dsn(dsn: str) -> None:
    """Raise ConfigurationError when `dsn` cannot be read; where psycopg is installed, libpq has the last word."""
    check_dsn(dsn, keywords=True)
    if find_spec("psycopg") is not None:
        importlib.import_module("awa_proto.driving.psycopg_connections").check_conninfo(dsn)


def is_in_no_transaction(connection: Any) -> bool:
    """Whether a statement on this connection of psycopg would commit by itself.

    Without autocommit it opens a transaction of its own accord; one that is closed is left to the library's own words.
    """
    pgconn = connection.pgconn
    return bool(connection.autocommit and pgconn.transaction_status == pgconn.pipeline_status == _IDLE)
