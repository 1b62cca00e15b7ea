"""Client and Transaction in blocking code: each method is an operation of the core, bound.

Nothing is connected before it is needed, so a client can be made at import and shared by a whole application. `with`
closes what was opened. By hand are only the ways to carry an Op to a connection, and the worker.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never, Self, TypeVar

from awa_proto.application import Application, EngineName, known_dsn
from awa_proto.binding import bind
from awa_proto.dead_letters import DeadLetters
from awa_proto.driving import otel
from awa_proto.driving.beating import BlockingLane
from awa_proto.driving.given import check_libpq_dsn
from awa_proto.dsn import Dsn
from awa_proto.errors import ConfigurationError, DatabaseError, SchemaNotMigrated, ValidationError
from awa_proto.events import AnyEvent
from awa_proto.health import Health, StoreHealth
from awa_proto.operations import Operations
from awa_proto.outcome import Seconds, seconds
from awa_proto.plan import Op, Row, Value
from awa_proto.retention import Retention
from awa_proto.worker.config import Liveness, QueueConfig, UnknownKinds
from awa_proto.worker.events import StartJob, Stopped
from awa_sync.connections import AnyConnection, AnyPool, check_connection, check_pool, database
from awa_sync.hooks import HookRunner
from awa_sync.job import Job
from awa_sync.running import run
from awa_sync.tasks import Tasks
from awa_sync.worker import Worker

if TYPE_CHECKING:
    from awa_sync.db.psycopg import Connection, Database

    ClientOps = Operations[AnyConnection]
    TransactionOps = Operations[Never]
else:
    ClientOps = TransactionOps = Operations

T = TypeVar("T")


class Client(Tasks):
    """A job queue in a PostgreSQL database. Also a Tasks of its own: `@client.task(...)`.

    Args:
        dsn: A URL or `key=value` pairs; by default $AWA_DATABASE_URL when it is first needed.
            Or a function that gives one, called for every new connection: so a new password is found while it works.
        schema: The schema the queue lives in.
        engine: "queue", or the deprecated "canonical", which keeps a row for each job; see `docs/storage.md`.
        pool: A `psycopg_pool.ConnectionPool` of your own to take connections from. It stays yours to close.
        tasks: Tasks whose handlers the client's workers run.
        statement_timeout: Seconds (or a timedelta) a statement, a connect, or the wait for a connection may take.
        max_size: Most connections at the same time, those of workers aside; 1 to 10,000.
        dead_letters: Whether a job that fails on a worker of this client, or by `fail_external`, goes to the dead letters
            (`list_dlq`), unless its queue's QueueConfig says otherwise; or of which queues, `{"mail": True}`.
        retention: How long jobs are kept after they ended, by default `Retention()`.

    Raises:
        ValidationError: Naming the setting and its limit.
        ConfigurationError: The DSN cannot be read (its password is never repeated), or a library is not installed.
    """

    def __init__(
        self,
        dsn: Dsn | None = None,
        *,
        schema: str = "awa",
        engine: EngineName = "queue",
        pool: AnyPool | None = None,
        tasks: Iterable[Tasks] = (),
        statement_timeout: Seconds = 30.0,
        max_size: int = 10,
        dead_letters: DeadLetters = False,
        retention: Retention | None = None,
    ) -> None:
        super().__init__()
        if pool is not None:
            check_pool(pool)
        self._dsn = dsn
        self._pool = pool
        self._application = Application(
            self.registry,
            tasks,
            schema=schema,
            engine=engine,
            dsn=dsn,
            readable=check_libpq_dsn,
            statement_timeout=statement_timeout,
            max_size=max_size,
            dead_letters=dead_letters,
            retention=retention,
            random=random.random,
            now=partial(datetime.now, UTC),
            traceparent=otel.traceparent,
            clock=time.monotonic,
        )
        self._opened: Database | None = None
        self._opening = threading.Lock()
        self._standing_in: Any = None  # while a test keeps everything in one transaction, see `testing`
        self._hook_runner = HookRunner(self._application.hook_queue())
        self._borrowing: Database | None = None

    @property
    def operations(self) -> Operations[Any]:
        """The calls of this client as Ops, for code that carries them out itself."""
        return self._application.operations

    def __enter__(self) -> Self:
        self._application.load()
        self._database().open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the client's connections. It opens new ones when it is used again."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def perform(self, op: Op[T], /) -> T:
        """The result of an Op; what every method ends in.

        Raises:
            ValidationError: `using=` is no connection this package can use, or is in no transaction.
            DatabaseError: See `error.failure`.
            SchemaNotMigrated: There is no schema of this version; see `migrate`.
        """
        if op.using is None:
            result = self._database().run(op)
            self._tell(op.events)
            return result
        check_connection(op.using)
        if self._borrowing is None:
            self._borrowing = database(
                schema=self._application.schema, statement_timeout=self._application.statement_timeout
            )
        return self._borrowing.run(op)

    insert = bind(ClientOps.insert)
    insert_many = bind(ClientOps.insert_many)
    enqueue_many = bind(ClientOps.enqueue_many)
    get_job = bind(ClientOps.get_job)
    list_jobs = bind(ClientOps.list_jobs)
    cancel = bind(ClientOps.cancel)
    cancel_by_unique_key = bind(ClientOps.cancel_by_unique_key)
    retry = bind(ClientOps.retry)
    list_dlq = bind(ClientOps.list_dlq)
    get_dlq_job = bind(ClientOps.get_dlq_job)
    dlq_depth = bind(ClientOps.dlq_depth)
    retry_from_dlq = bind(ClientOps.retry_from_dlq)
    retry_all_from_dlq = bind(ClientOps.retry_all_from_dlq)
    move_to_dlq = bind(ClientOps.move_to_dlq)
    move_failed_to_dlq = bind(ClientOps.move_failed_to_dlq)
    purge_dlq_job = bind(ClientOps.purge_dlq_job)
    purge_dlq = bind(ClientOps.purge_dlq)
    retry_failed = bind(ClientOps.retry_failed)
    discard_failed = bind(ClientOps.discard_failed)
    delete_job = bind(ClientOps.delete_job)
    drain_queue = bind(ClientOps.drain_queue)
    queue_stats = bind(ClientOps.queue_stats)
    list_kinds = bind(ClientOps.list_kinds)
    pause_queue = bind(ClientOps.pause_queue)
    resume_queue = bind(ClientOps.resume_queue)
    set_stripes = bind(ClientOps.set_stripes)
    list_cron_jobs = bind(ClientOps.list_cron_jobs)
    get_cron_job = bind(ClientOps.get_cron_job)
    put_cron_job = bind(ClientOps.put_cron_job)
    edit_cron_job = bind(ClientOps.edit_cron_job)
    pause_cron_job = bind(ClientOps.pause_cron_job)
    resume_cron_job = bind(ClientOps.resume_cron_job)
    trigger_cron_job = bind(ClientOps.trigger_cron_job)
    delete_cron_job = bind(ClientOps.delete_cron_job)
    complete_external = bind(ClientOps.complete_external)
    fail_external = bind(ClientOps.fail_external)
    retry_external = bind(ClientOps.retry_external)
    resume_external = bind(ClientOps.resume_external)
    heartbeat_callback = bind(ClientOps.heartbeat_callback)
    resolve_callback = bind(ClientOps.resolve_callback)
    migrate = bind(ClientOps.migrate)

    def health(self) -> Health:
        """How the client, its workers in this process and its database are: `health.is_healthy`, `health.problems`.

        Asks the database once, within seconds. That it does not answer, or has no schema of this version, raises nothing: it is
        part of the answer.
        """
        try:
            said: StoreHealth | DatabaseError | SchemaNotMigrated = self.perform(self.operations.health())
        except (DatabaseError, SchemaNotMigrated) as error:
            said = error
        return self._application.health(said)

    def transaction(self) -> Transaction:
        """A transaction on a connection of the client: `with client.transaction() as tx`.

        Committed when the block ends, rolled back when an exception leaves it.
        """
        return Transaction(self.operations, self._database().transaction(), self._tell)

    def worker(
        self,
        queues: Mapping[str, int | QueueConfig],
        /,
        *,
        poll_interval: Seconds = 2.0,
        grace: Seconds = 30.0,
        unknown_kinds: UnknownKinds = "fail",
        liveness: Liveness | None = None,
    ) -> Worker:
        """A worker for these queues: `with client.worker({"email": 10}) as worker`. Leaving stops it gracefully.

        Args:
            queues: For each queue how many handlers may run at the same time, or a QueueConfig.
            poll_interval: Seconds (or a timedelta) after which an idle worker looks for jobs although it was not notified.
            grace: Seconds (or a timedelta) that running handlers get at a stop before they are told to end; a thread
                cannot be cancelled.
            unknown_kinds: What becomes of a job without a handler here: "fail" for good, or "put_back" for a minute.
            liveness: Heartbeats, and when the jobs of a worker that is silent are run by another; None for the defaults.

        Raises:
            ValidationError: Naming the setting and its limit.
            ConfigurationError: There is no queue, or the client has a pool and no DSN.
        """
        if self._pool is not None and self._dsn is None:
            raise ConfigurationError("a worker needs connections of its own: give the client dsn= beside pool=")
        config = self._application.configured(
            queues,
            poll_interval=poll_interval,
            grace=grace,
            unknown_kinds=unknown_kinds,
            liveness=liveness,
            hostname=socket.gethostname(),
            pid=os.getpid(),
        )
        worker = Worker(
            self._application.machine(config),
            self._database(),
            channel=self._application.store.channel,
            new_job=self._job_maker(),
            capacity=sum(queue.max_workers for queue in config.queues.values()),
            happened=self._hook_runner.tell,
            tracer=otel.tracer(),
            heart=self._heart(),
        )
        return self._application.watch(worker)

    def run(
        self,
        queues: Mapping[str, int | QueueConfig],
        /,
        *,
        poll_interval: Seconds = 2.0,
        grace: Seconds = 30.0,
        unknown_kinds: UnknownKinds = "fail",
        liveness: Liveness | None = None,
    ) -> Stopped:
        """Work until SIGTERM or SIGINT, which stop gracefully; a second one ends it at once. Returns how it ended.

        `sys.exit(stopped.exit_code)` tells a supervisor. The process is ended with that code where a handler would keep it
        from ending: one that blocks the event loop, or on trio one that ignores its cancellation.

        Args:
            queues: As `worker`.
            poll_interval: As `worker`.
            grace: As `worker`.
            unknown_kinds: As `worker`.
            liveness: As `worker`.

        Raises:
            ConfigurationError: As `worker`; also outside of the main thread, where there are no signals.
        """
        return run(
            self.worker(
                queues, poll_interval=poll_interval, grace=grace, unknown_kinds=unknown_kinds, liveness=liveness
            ),
            seconds("grace", grace),
        )

    def _heart(self) -> Callable[[], BlockingLane]:
        return lambda: self._database().lane("heartbeat")

    def _job_maker(self) -> Callable[[StartJob], Job[Any]]:
        return lambda start: Job(start, self)

    def _tell(self, events: Sequence[AnyEvent]) -> None:
        """Hooks of what a committed call did."""
        if events:
            self._hook_runner.tell(events)

    def _database(self) -> Database:
        """The database, made by whichever thread needs it first."""
        if self._standing_in is not None:
            instead: Database = self._standing_in
            return instead
        with self._opening:
            if self._opened is None:
                dsn = self._dsn if self._pool is not None else known_dsn(self._dsn, os.environ)
                self._opened = database(
                    dsn,
                    pool=self._pool,
                    schema=self._application.schema,
                    statement_timeout=self._application.statement_timeout,
                    max_size=self._application.max_size,
                    calls=self._application.calls,
                )
            return self._opened


class Transaction:
    """A transaction of a client's own connection, READ COMMITTED, for jobs and for SQL of the user. Entered once."""

    def __init__(
        self,
        operations: Operations[Any],
        context: AbstractContextManager[Connection],
        tell: Callable[[Sequence[AnyEvent]], None],
    ) -> None:
        """Made by `Client.transaction`. tell: calls hooks, once this is committed."""
        self.operations = operations
        self._context = context
        self._connection: Connection | None = None
        self._tell = tell
        self._events: list[AnyEvent] = []

    def __enter__(self) -> Self:
        self._connection = self._context.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._context.__exit__(kind, error, trace)
        if kind is None:
            self._tell(self._events)

    def execute(self, sql: str, /, *args: Value) -> None:
        """Run one statement of yours with placeholders `$1`, each with a cast: `$1::bigint`. Raises DatabaseError."""
        self._entered().execute(sql, *args)

    def fetch(self, sql: str, /, *args: Value) -> list[Row]:
        """The rows of one statement of yours, as tuples; placeholders as `execute`. Raises DatabaseError."""
        return self._entered().fetch(sql, *args)

    def perform(self, op: Op[T], /) -> T:
        """The result of an Op, inside of this transaction. Raises DatabaseError."""
        if op.using is not None:
            raise ValidationError("using", "a transaction has its connection; leave using= out")
        result = self._entered().run(op)
        self._events += op.events
        return result

    insert = bind(TransactionOps.insert)
    insert_many = bind(TransactionOps.insert_many)
    cancel = bind(TransactionOps.cancel)
    cancel_by_unique_key = bind(TransactionOps.cancel_by_unique_key)

    def _entered(self) -> Connection:
        if self._connection is None:
            raise RuntimeError("the transaction was not entered: with client.transaction() as tx")
        return self._connection
