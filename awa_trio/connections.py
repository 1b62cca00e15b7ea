"""Connections and pools this package takes. psycopg is looked at only when it is needed, since it may not be installed."""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias

from awa_proto.driving.given import IN_NO_TRANSACTION, is_in_no_transaction
from awa_proto.errors import ConfigurationError, ValidationError

if TYPE_CHECKING:
    from awa_trio.db.connection import TrioConnection
    from awa_trio.db.pool import Pool
    from awa_trio.db.psycopg import Database

AnyConnection: TypeAlias = "TrioConnection[Any]"
"""What `using=` takes."""
AnyPool: TypeAlias = "Pool"
"""What `pool=` takes."""


def check_connection(connection: object) -> None:
    """Raise ValidationError for one that is in no transaction, and for anything but a connection that runs under trio."""
    module = sys.modules.get("awa_trio.db.connection")
    if module is None or not isinstance(connection, module.TrioConnection):
        raise ValidationError(
            "using", f"an awa_trio.db.connection.TrioConnection is needed here, not {_type_name(connection)}"
        )
    if is_in_no_transaction(connection):
        raise ValidationError("using", IN_NO_TRANSACTION)


def check_pool(pool: object) -> None:
    """Raise ConfigurationError for anything but an awa_trio.db.pool.Pool."""
    module = sys.modules.get("awa_trio.db.pool")
    if module is None or not isinstance(pool, module.Pool):
        raise ConfigurationError(f"pool= needs an awa_trio.db.pool.Pool, not {_type_name(pool)}")


def database(*args: Any, **kwargs: Any) -> Database:
    """Make a database, arguments as its class. Raises ConfigurationError when psycopg is missing."""
    if find_spec("psycopg") is None:
        raise ConfigurationError("psycopg is not installed: pip install 'awa-queue[trio]'")
    made: Database = importlib.import_module("awa_trio.db.psycopg").Database(*args, **kwargs)
    return made


def _type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
