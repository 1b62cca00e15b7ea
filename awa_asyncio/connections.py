"""Connections and pools of asyncpg and psycopg: which there are, told apart without importing what is not installed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, get_args

from awa_proto import dsn as dsn_
from awa_proto.driving.given import IN_NO_TRANSACTION, check_libpq_dsn, is_in_no_transaction
from awa_proto.errors import ConfigurationError, ValidationError

if TYPE_CHECKING:
    import psycopg
    import psycopg_pool

    from awa_asyncio.db import Database

Driver: TypeAlias = Literal["asyncpg", "psycopg"]


class AsyncpgConnection(Protocol):
    """A connection of asyncpg, which ships no types."""

    async def fetch(self, query: str, /, *args: Any) -> Any:
        """Its way to run a query."""
        ...


class AsyncpgPooledConnection(Protocol):
    """A connection that a pool of asyncpg lent; its methods are made at run time."""

    def _detach(self) -> Any: ...


class AsyncpgPool(Protocol):
    """A pool of asyncpg."""

    def acquire(self, *, timeout: Any = None) -> Any:
        """Its way to lend a connection."""
        ...


AnyConnection: TypeAlias = "AsyncpgConnection | AsyncpgPooledConnection | psycopg.AsyncConnection[Any]"
"""What `using=` takes."""
AnyPool: TypeAlias = "AsyncpgPool | psycopg_pool.AsyncConnectionPool[Any]"
"""What `pool=` takes."""

_CONNECTIONS: Final[dict[Driver, tuple[str, ...]]] = {
    "asyncpg": ("asyncpg.connection.Connection", "asyncpg.pool.PoolConnectionProxy"),
    "psycopg": ("psycopg.AsyncConnection",),
}
_POOLS: Final[dict[Driver, tuple[str, ...]]] = {
    "asyncpg": ("asyncpg.pool.Pool",),
    "psycopg": ("psycopg_pool.AsyncConnectionPool",),
}


def driver_of_connection(connection: object) -> Driver:
    """Whose connection this is.

    Raises ValidationError for anything but an async connection of the two libraries, and for one that is in no transaction.
    """
    found = _driver_of(connection, _CONNECTIONS)
    if found is None:
        wanted = "an asyncpg connection or a psycopg.AsyncConnection"
        raise ValidationError("using", f"{wanted} is needed here, not {_type_name(connection)}")
    borrowed: Any = connection
    if not borrowed.is_in_transaction() if found == "asyncpg" else is_in_no_transaction(borrowed):
        raise ValidationError("using", IN_NO_TRANSACTION)
    return found


def driver_of_pool(pool: object) -> Driver:
    """Whose pool this is. Raises ConfigurationError for any other."""
    found = _driver_of(pool, _POOLS)
    if found is None:
        wanted = "an asyncpg.Pool or a psycopg_pool.AsyncConnectionPool"
        raise ConfigurationError(f"pool= needs {wanted}, not {_type_name(pool)}")
    return found


def chosen_driver(driver: Driver | None) -> Driver:
    """The driver asked for, else asyncpg if it is installed, else psycopg. Raises ConfigurationError."""
    asked: object = driver  # whatever the caller passed
    if asked is not None and not (isinstance(asked, str) and asked in get_args(Driver)):
        raise ConfigurationError("driver= is neither 'asyncpg' nor 'psycopg'")
    installed = [name for name in get_args(Driver) if driver in {None, name} and find_spec(name) is not None]
    if not installed:
        wanted = driver or "asyncpg"
        also = "" if driver else ", or 'awa-queue[psycopg]'"
        raise ConfigurationError(f"{wanted} is not installed: pip install 'awa-queue[{wanted}]'{also}")
    chosen: Driver = installed[0]
    return chosen


def check_dsn(dsn: str, driver: Driver) -> None:
    """Raise ConfigurationError when the driver cannot read `dsn`."""
    if driver == "psycopg":
        check_libpq_dsn(dsn)
    else:
        dsn_.check_dsn(dsn, keywords=False)


def database_of(driver: Driver) -> Callable[..., Database]:
    """What makes a database for this driver, imported now. Raises ConfigurationError when the library is missing."""
    module = importlib.import_module(f"awa_asyncio.db.{chosen_driver(driver)}")
    found: Callable[..., Database] = module.Database
    return found


def _driver_of(value: object, types: dict[Driver, tuple[str, ...]]) -> Driver | None:
    """By its classes, which are imported if the value exists."""
    for driver, paths in types.items():
        for path in paths:
            module, _, name = path.rpartition(".")
            if module in sys.modules and isinstance(value, getattr(sys.modules[module], name)):
                return driver
    return None


def _type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
