"""Application: what is the same in the client of every package, and needs no database to be made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from awa_proto.errors import ConfigurationError, ValidationError
from awa_proto.operations import Operations
from awa_proto.options import positive_seconds, text
from awa_proto.outcome import Seconds, seconds
from awa_proto.registry import Registry
from awa_proto.schema import quoted
from awa_proto.store.queue import QueueStore
from awa_proto.version import VERSION
from awa_proto.worker.config import QueueConfig, WorkerConfig
from awa_proto.worker.worker import WorkerMachine


class Application:
    """The tasks of an application, the store its jobs are in, the calls of its client, and the machines of its workers.

    schema: where the store is. random: floats in [0, 1), for everything that wants chance.

    Raises ValidationError when PostgreSQL cannot have such a schema, or two registries have handlers for one kind.
    """

    def __init__(
        self, registry: Registry, others: Iterable[Registry], *, schema: str, random: Callable[[], float]
    ) -> None:
        for other in others:
            registry.include(other)
        quoted(text("schema", schema))
        self.registry = registry
        self.schema = schema
        self.store = QueueStore(schema, random=random)
        self.operations: Operations[Any] = Operations(self.store, registry.tasks, schema)
        self._random = random

    def configured(
        self,
        queues: Mapping[str, int | QueueConfig],
        *,
        poll_interval: Seconds,
        grace: Seconds,
        hostname: str,
        pid: int,
    ) -> WorkerConfig:
        """How a worker is set up. Raises ValidationError or ConfigurationError; also when args cannot be read."""
        if not isinstance(queues, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValidationError("queues", f"a mapping of queues to slots is needed, not {type(queues).__name__}")
        self.registry.prepare()
        return WorkerConfig(
            {
                name: served if isinstance(served, QueueConfig) else QueueConfig(served)
                for name, served in queues.items()
            },
            poll_interval=positive_seconds("poll_interval", poll_interval),
            grace=seconds("grace", grace),
            hostname=hostname,
            pid=pid,
            version=VERSION,
        )

    def machine(self, config: WorkerConfig) -> WorkerMachine:
        """A worker without I/O, not started."""
        return WorkerMachine(store=self.store, tasks=self.registry.tasks, config=config, random=self._random)


def known_dsn(dsn: str | None, environ: Mapping[str, str]) -> str:
    """The DSN given, else that of the environment. Raises ConfigurationError when there is none."""
    found = dsn or environ.get("AWA_DATABASE_URL")
    if not found:
        wanted = "a DSN (a bare postgresql:// reads the PG* variables), pool=, or $AWA_DATABASE_URL"
        raise ConfigurationError(f"the client has no database: give it {wanted}")
    return found
