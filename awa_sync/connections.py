"""Connections and pools this package takes. psycopg is looked at only when it is needed, since it may not be installed."""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias

from awa_proto.driving.given import IN_NO_TRANSACTION, is_in_no_transaction
from awa_proto.errors import ConfigurationError, ValidationError

if TYPE_CHECKING:
    import psycopg
    import psycopg_pool

    from awa_sync.db.psycopg import Database

AnyConnection: TypeAlias = "psycopg.Connection[Any]"
"""What `using=` takes."""
AnyPool: TypeAlias = "psycopg_pool.ConnectionPool[Any]"
"""What `pool=` takes."""


def check_connection(connection: object) -> None:
    """Raise ValidationError for one that is in no transaction, and for anything but a blocking connection of psycopg."""
    module = sys.modules.get("psycopg")
    if module is None or not isinstance(connection, module.Connection):
        raise ValidationError("using", f"a psycopg.Connection is needed here, not {_type_name(connection)}")
    if is_in_no_transaction(connection):
        raise ValidationError("using", IN_NO_TRANSACTION)


def check_pool(pool: object) -> None:
    """Raise ConfigurationError for anything but a psycopg_pool.ConnectionPool."""
    module = sys.modules.get("psycopg_pool")
    if module is None or not isinstance(pool, module.ConnectionPool):
        raise ConfigurationError(f"pool= needs a psycopg_pool.ConnectionPool, not {_type_name(pool)}")


def database(*args: Any, **kwargs: Any) -> Database:
    """Make a database, arguments as its class. Raises ConfigurationError when psycopg is missing."""
    if find_spec("psycopg") is None:
        raise ConfigurationError("psycopg is not installed: pip install 'awa-queue[psycopg]'")
    made: Database = importlib.import_module("awa_sync.db.psycopg").Database(*args, **kwargs)
    return made


def _type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
