"""Application: what is the same in the client of every package, and needs no database to be made."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar

from awa_proto import args
from awa_proto.contact import Calls
from awa_proto.dead_letters import DeadLetterPolicy, DeadLetters
from awa_proto.dsn import Dsn, check_given
from awa_proto.errors import UNDEFINED_TABLE, ConfigurationError, DatabaseError, SchemaNotMigrated, ValidationError
from awa_proto.followup import FollowUps
from awa_proto.health import Health, StoreHealth, WorkerHealth, counted, database_health, problems_of_client
from awa_proto.hooks import HookQueue
from awa_proto.operations import Operations
from awa_proto.options import positive_seconds, text, whole
from awa_proto.outcome import Seconds, seconds
from awa_proto.registry import Registry
from awa_proto.retention import Retention
from awa_proto.schema import latest, quoted
from awa_proto.store import Store
from awa_proto.store.canonical.store import CanonicalStore
from awa_proto.store.queue import QueueStore
from awa_proto.task import Task
from awa_proto.version import VERSION
from awa_proto.worker.config import Liveness, QueueConfig, UnknownKinds, WorkerConfig
from awa_proto.worker.lifecycle import Phase
from awa_proto.worker.tally import HOOKS_DROPPED
from awa_proto.worker.worker import WorkerMachine

EngineName: TypeAlias = Literal["queue", "canonical"]
"""Queue storage, or the deprecated engine with a row for each job."""
W = TypeVar("W", bound="Watched")


class Watched(Protocol):
    """A worker, as far as its client shows it."""

    def health(self) -> WorkerHealth:
        """How it is."""
        ...


_ENGINES: Final[dict[EngineName, type[QueueStore | CanonicalStore]]] = {
    "queue": QueueStore,
    "canonical": CanonicalStore,
}
MAX_TIMEOUT: Final = 24 * 86400.0
"""Longest statement_timeout, in seconds: what counts milliseconds in 31 bits, in a kernel or a server, ends a day later."""
MAX_SIZE: Final = 10_000
"""Most connections of a client."""


class Application:
    """The tasks of an application, the store its jobs are in, the calls of its client, and the machines of its workers.

    What a client is given is checked here, for all packages.

    tasks: objects that hold a Registry, as Tasks of each package does. schema: where the store is. engine: which store.
    dsn, readable: the DSN, and what raises ConfigurationError when the adapter cannot read one.
    statement_timeout, max_size, dead_letters, retention: as the clients say. random: floats in [0, 1), for all that wants
    chance. now: the time of the host. traceparent: the trace context of whoever calls, or None. clock: monotonic seconds.

    Raises ValidationError naming what is wrong, also when two registries have handlers for one kind.
    """

    def __init__(
        self,
        registry: Registry,
        tasks: Iterable[Any],
        *,
        schema: str,
        engine: EngineName,
        dsn: Dsn | None,
        readable: Callable[[str], None],
        statement_timeout: Seconds,
        max_size: int,
        dead_letters: DeadLetters,
        retention: Retention | None,
        random: Callable[[], float],
        now: Callable[[], datetime],
        traceparent: Callable[[], str | None],
        clock: Callable[[], float],
    ) -> None:
        quoted(text("schema", schema))
        make = _engine(engine)
        check_given(dsn, readable)
        self.statement_timeout = positive_seconds("statement_timeout", statement_timeout)
        if self.statement_timeout > MAX_TIMEOUT:
            raise ValidationError("statement_timeout", f"{self.statement_timeout:g} is above {MAX_TIMEOUT:g} seconds")
        self.max_size = whole("max_size", max_size, 1, MAX_SIZE)
        self.dead_letters = DeadLetterPolicy(dead_letters)
        self.retention = _retention(retention)
        for other in _registries(tasks):
            registry.include(other)
        self.registry = registry
        self.schema = schema
        self.store = make(schema, random=random)
        self.calls = Calls(clock)
        self.operations: Operations[Any] = Operations(
            self.store, registry.tasks, schema, now, registry.hooks, traceparent,
            registered=registry.follow_ups, dead_letters=self.dead_letters, calls=self.calls, random=random,
        )  # fmt: skip
        self._random = random
        self._workers: dict[int, weakref.ref[Watched]] = {}

    def load(self) -> None:
        """Make ready what the first job would wait for: a client is about to be used."""
        args.load()

    def configured(
        self,
        queues: Mapping[str, int | QueueConfig],
        *,
        poll_interval: Seconds,
        grace: Seconds,
        unknown_kinds: UnknownKinds,
        hostname: str,
        pid: int,
        liveness: Liveness | None = None,
    ) -> WorkerConfig:
        """How a worker is set up. Raises ValidationError or ConfigurationError; also when args cannot be read."""
        if not isinstance(queues, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValidationError("queues", f"a mapping of queues to slots is needed, not {type(queues).__name__}")
        self.registry.prepare()
        for periodic in self.registry.periodic.values():
            periodic.template(self.registry.tasks)
        config = WorkerConfig(
            {
                name: served if isinstance(served, QueueConfig) else QueueConfig(served)
                for name, served in queues.items()
            },
            poll_interval=positive_seconds("poll_interval", poll_interval),
            grace=seconds("grace", grace),
            unknown_kinds=unknown_kinds,
            dead_letters=self.dead_letters.said,
            retention=self.retention,
            liveness=Liveness() if liveness is None else liveness,
            hostname=hostname,
            pid=pid,
            version=VERSION,
        )
        self.dead_letters.serve({queue: served.dead_letters for queue, served in config.queues.items()})
        return config

    def machine(
        self,
        config: WorkerConfig,
        *,
        store: Store | None = None,
        tasks: Mapping[str, Task] | None = None,
        follow_ups: FollowUps | None = None,
        hooked: Collection[str] | None = None,
    ) -> WorkerMachine:
        """A worker without I/O, not started. What is not given is the application's own."""
        return WorkerMachine(
            store=self.store if store is None else store,
            tasks=self.registry.tasks if tasks is None else tasks,
            config=config,
            random=self._random,
            periodic=self.registry.periodic,
            describe=self.registry.described,
            follow_ups=follow_ups or FollowUps(self.registry.follow_ups, self.operations.intake),
            hooked=self.registry.hooks if hooked is None else hooked,
        )

    def hook_queue(self) -> HookQueue:
        """The way of events to hooks, for one event loop."""
        return HookQueue(self.registry.hooks, self.calls.tally)

    def watch(self, worker: W) -> W:
        """The same worker, which is part of this client's health while it runs."""
        key = id(worker)
        self._workers[key] = weakref.ref(worker, lambda _: self._workers.pop(key, None))
        return worker

    def health(self, said: StoreHealth | DatabaseError | SchemaNotMigrated) -> Health:
        """How the client is. said: what the database answered to the question, or why it did not."""
        calls = self.calls
        if isinstance(said, SchemaNotMigrated):
            calls.failed("health", DatabaseError(str(said), UNDEFINED_TABLE))
        store = said if isinstance(said, StoreHealth) else None
        now = calls.clock()
        database = database_health([calls.contact], now, None if store is None else now)
        found = [worker.health() for ref in list(self._workers.values()) if (worker := ref()) is not None]
        workers = tuple(each for each in found if each.phase not in {Phase.NEW, Phase.STOPPED})
        return Health(
            database,
            store,
            workers,
            calls.tally.total(HOOKS_DROPPED),
            counted(calls.tally),
            problems_of_client(database, store, workers, latest(), self.operations.unknown_kinds),
        )


def _engine(name: object) -> Callable[..., Any]:
    """What makes the store of that engine. Raises ValidationError."""
    make = _ENGINES.get(name) if isinstance(name, str) else None  # type: ignore[call-overload]  # a name that is none
    if make is None:
        shown = repr(name[:40]) if isinstance(name, str) else f"a value of type {type(name).__name__}"
        raise ValidationError("engine", f"{shown} is none of {', '.join(_ENGINES)}")
    found: Callable[..., Any] = make
    return found


def _retention(given: object) -> Retention:
    if given is None:
        return Retention()
    if not isinstance(given, Retention):
        raise ValidationError("retention", f"a Retention is needed, not {type(given).__name__}")
    return given


def _registries(tasks: object) -> list[Registry]:
    if isinstance(tasks, (str, bytes, Mapping)) or not isinstance(tasks, Iterable):
        raise ValidationError("tasks", f"a list of Tasks is needed, not {type(tasks).__name__}")
    found: list[Registry] = []
    for index, each in enumerate(tasks):
        registry = getattr(each, "registry", None)
        if not isinstance(registry, Registry):
            raise ValidationError(f"tasks[{index}]", f"Tasks are needed, not {type(each).__name__}")
        found.append(registry)
    return found


def known_dsn(dsn: Dsn | None, environ: Mapping[str, str]) -> Dsn:
    """The DSN given, else that of the environment. Raises ConfigurationError when there is none."""
    found = dsn or environ.get("AWA_DATABASE_URL")
    if not found:
        wanted = "a DSN (a bare postgresql:// reads the PG* variables), pool=, or $AWA_DATABASE_URL"
        raise ConfigurationError(f"the client has no database: give it {wanted}")
    return found
