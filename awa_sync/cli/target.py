"""`awa worker module:client`: find the client, read the queues, run the loop that belongs to its package."""

import importlib
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

from awa_proto.errors import ConfigurationError, ValidationError
from awa_proto.worker.config import QueueConfig
from awa_proto.worker.events import Stopped

if TYPE_CHECKING:
    import awa_asyncio
    import awa_sync
    import awa_trio

    AnyClient: TypeAlias = awa_asyncio.Client | awa_trio.Client | awa_sync.Client


def load(target: str) -> "AnyClient":
    """The client at `module:attribute` (attribute `client` when it is left out). Raises ConfigurationError."""
    module_name, _, path = target.partition(":")
    path = path or "client"
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigurationError(f"{module_name} imports {error.name}, which is not installed") from error
        raise ConfigurationError(f"there is no module {error.name!r} here or among what is installed") from error
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{target!r} is not of the form module:client") from error
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError as error:
            raise ConfigurationError(f"{module_name} has no {path}") from error
    if package_of(found) is None:
        raise ConfigurationError(
            f"{target} is {type(found).__name__!r}, not a Client of awa_asyncio, awa_trio or awa_sync"
        )
    return found  # type: ignore[return-value]  # package_of has just looked


def queues(given: Iterable[str]) -> dict[str, QueueConfig]:
    """`email=10` or `email`, read. Raises ValidationError."""
    wanted: dict[str, QueueConfig] = {}
    for text in given:
        name, separator, most = text.rpartition("=")
        if not separator:
            name, most = text, ""
        if name in wanted:
            raise ValidationError("queue", f"{name!r} is given twice")
        if separator and not (most.isascii() and most.isdigit()):
            raise ValidationError("queue", f"{text!r}: after the = stands how many handlers may run at a time")
        wanted[name] = QueueConfig(max_workers=int(most)) if separator else QueueConfig()
    return wanted


def has_database(client: "AnyClient") -> bool:
    """Whether it was made with a DSN or a pool of its own."""
    return client._dsn is not None or client._pool is not None  # noqa: SLF001  nothing else needs to know


def run(client: "AnyClient", wanted: dict[str, QueueConfig], grace: float) -> Stopped:
    """Run a worker of the client until a signal stops it."""
    match package_of(client):
        case "awa_asyncio":
            return _run_asyncio(client, wanted, grace)  # type: ignore[arg-type]  # package_of has just looked
        case "awa_trio":
            return _run_trio(client, wanted, grace)  # type: ignore[arg-type]  # as above
        case _:
            return _run_sync(client, wanted, grace)  # type: ignore[arg-type]  # as above


def package_of(found: object) -> str | None:
    """Which package a client is of. One that was not imported has no client."""
    for name in ("awa_asyncio", "awa_trio", "awa_sync"):
        module = sys.modules.get(name)
        if module is not None and isinstance(found, getattr(module, "Client", ())):
            return name
    return None


def _run_asyncio(client: "awa_asyncio.Client", wanted: dict[str, QueueConfig], grace: float) -> Stopped:
    import asyncio

    async def main() -> Stopped:
        async with client:
            return await client.run(wanted, grace=grace)

    return asyncio.run(main())


def _run_trio(client: "awa_trio.Client", wanted: dict[str, QueueConfig], grace: float) -> Stopped:
    import trio

    async def main() -> Stopped:
        async with client:
            return await client.run(wanted, grace=grace)

    return trio.run(main)


def _run_sync(client: "awa_sync.Client", wanted: dict[str, QueueConfig], grace: float) -> Stopped:
    with client:
        return client.run(wanted, grace=grace)
