"""What a scenario is given: a store, something that runs its Ops, and the words scenarios are told in.

`Kit` is all a store without a database needs. `DatabaseKit` has sessions beside it: connections of a user's own, with
transactions of any isolation level. `RingKit` is one over queue storage, whose segments can be turned. A scenario says by the
type of its parameter which of them it wants.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypeVar

import anyio

from awa_proto import extra as extras
from awa_proto.job import Attempt, JobRow, JobState
from awa_proto.outcome import Transition
from awa_proto.plan import Op, Row
from awa_proto.store import (
    Claimed,
    Demand,
    Ended,
    JobFilter,
    NewJob,
    QueueStat,
    Registration,
    Store,
    Verdict,
    Verdicts,
    WorkerInfo,
)
from awa_proto.store.canonical.store import CanonicalStore
from awa_proto.store.queue import QueueStore

T = TypeVar("T")

HOUR = timedelta(hours=1)
GIVES_BACK = frozenset({JobState.SCHEDULED, JobState.AVAILABLE})
"""Where an attempt ends that is not counted."""
OUTCOMES = (
    JobState.COMPLETED,
    JobState.RETRYABLE,
    JobState.FAILED,
    JobState.SCHEDULED,
    JobState.CANCELLED,
    JobState.AVAILABLE,
)
"""Every state an attempt can end in: completed, retried, failed, snoozed, cancelled, released."""


class Runs(Protocol):
    """Runs an Op and gives its result."""

    async def __call__(self, op: Op[T], /) -> T:
        """The result."""
        ...


class Session(Protocol):
    """A connection of a user's own, in autocommit until it says BEGIN."""

    async def run(self, op: Op[T]) -> T:
        """An Op on this connection, in its transaction if one is open."""
        ...

    async def sql(self, text: str) -> list[Row]:
        """Rows of one statement."""
        ...

    async def heard(self) -> list[str]:
        """Payloads of the notifications that arrived since it was last asked."""
        ...


def now() -> datetime:
    """The time, in UTC."""
    return datetime.now(UTC)


def jobs(count: int, **fields: Any) -> list[NewJob]:
    """So many jobs of queue `q`, numbered in their args."""
    given: dict[str, Any] = {"kind": "count", "queue": "q", **fields}
    return [NewJob(args=f'{{"n":{n}}}', **given) for n in range(count)]


def end(
    attempt: Attempt, to: JobState = JobState.COMPLETED, *, due: datetime | None = None, error: str | None = None
) -> Ended:
    """An attempt that ended in `to`. due: when it runs again, an hour ago if nothing is said, so that it is due at once."""
    at = now()
    again = to in {JobState.SCHEDULED, JobState.RETRYABLE}
    return Ended(
        attempt,
        Transition(
            to,
            attempt.attempt - (to in GIVES_BACK),
            at,
            run_at=(due or at - HOUR) if again else None,
            entry=None if error is None else {"error": error, "attempt": attempt.attempt},
        ),
    )


class Kit:
    """A store and a way to run its Ops."""

    def __init__(self, store: Store, run: Runs) -> None:
        self.store: Store = store
        self.run = run
        self._flushes = itertools.count(1 << 40)

    @property
    def flush(self) -> int:
        """A token no flush had before."""
        return next(self._flushes)

    async def insert(self, *new: NewJob) -> list[JobRow]:
        """Enqueue."""
        return await self.run(self.store.insert(new))

    async def enqueue(self, count: int = 1, **fields: Any) -> list[int]:
        """Enqueue so many jobs; their ids."""
        return [job.id for job in await self.insert(*jobs(count, **fields))]

    async def register(self, *queues: str) -> Registration:
        """A new worker."""
        return await self.run(self.store.register(WorkerInfo(queues or ("q",), hostname="kit", pid=1)))

    async def ask(self, *demands: Demand, instance: int = 1, advance: bool = False) -> Claimed:
        """One claim over the segments there are now, whatever it says."""
        ring, _ = await self.run(self.store.survey([demand.queue for demand in demands]))
        return await self.run(self.store.claim(instance, ring, demands, advance=advance))

    async def claim(
        self, wanted: int = 100, queue: str = "q", *, stripe: int = 0, aging: float = 0.0, deadline: float | None = None
    ) -> list[Attempt]:
        """Claim from one queue, as often as it takes to get a turn."""
        while True:
            claimed = await self.ask(Demand(queue, wanted, stripe, aging, deadline))
            if claimed.attempts or not claimed.again:
                return list(claimed.attempts)
            await anyio.sleep(0.002)

    async def finalize(self, *ended: Ended, flush: int | None = None) -> Verdicts:
        """End attempts with a flush of their own, sent once."""
        return await self.run(self.store.finalize(ended, self.flush if flush is None else flush))

    async def close(
        self,
        attempt: Attempt,
        to: JobState = JobState.COMPLETED,
        *,
        due: datetime | None = None,
        error: str | None = None,
    ) -> None:
        """End an attempt, which must be accepted."""
        assert await self.finalize(end(attempt, to, due=due, error=error)) == [Verdict.ACCEPTED]

    async def job(self, id: int) -> JobRow:
        """A job that is there."""
        job = await self.run(self.store.get_job(id))
        assert job is not None, f"job {id} is gone"
        return job

    async def states(self, ids: Sequence[int]) -> list[JobState]:
        """The states of jobs, by get_job."""
        return [(await self.job(id)).state for id in ids]

    async def listed(self, **conditions: Any) -> list[int]:
        """Ids that a list shows."""
        return [job.id for job in await self.run(self.store.list_jobs(JobFilter(**conditions)))]

    async def stat(self, queue: str = "q") -> QueueStat:
        """The counts of one queue."""
        found = [stat for stat in await self.run(self.store.queue_stats()) if stat.queue == queue]
        return found[0] if found else QueueStat(queue)

    async def job_in(self, state: JobState, **fields: Any) -> int:
        """A new job, brought into a state by what a user and a worker can do. Other jobs of its queue must not be available."""
        if state is JobState.SCHEDULED:
            (id,) = await self.enqueue(run_at=now() + HOUR, **fields)
            return id
        (id,) = await self.enqueue(**fields)
        if state is not JobState.AVAILABLE:
            (attempt,) = await self.claim(queue=fields.get("queue", "q"))
            assert attempt.id == id
            if state is not JobState.RUNNING:
                await self.close(attempt, state, due=now() + HOUR)
        return id


class DatabaseKit(Kit):
    """A Kit over an engine in a database.

    make: makes the store of a schema. schema: that of the kit itself. session: opens a connection of a user's own; options:
    what a role may have as its default, such as `-c default_transaction_isolation=serializable`.
    """

    def __init__(
        self,
        make: Callable[[str], QueueStore | CanonicalStore],
        run: Runs,
        session: Callable[..., AbstractAsyncContextManager[Session]],
        *,
        schema: str = "awa",
    ) -> None:
        store = make(schema)
        super().__init__(store, run)
        self.make = make
        self.channel = store.channel
        self.session = session
        self.schema = schema

    async def sql(self, text: str) -> list[Row]:
        """Rows of a statement on a connection of its own."""
        async with self.session() as session:
            return await session.sql(text)

    async def until_waiting(self, locktype: str) -> None:
        """Return when some backend of this database waits for a lock of that kind."""
        async with self.session() as session:
            while not await session.sql(
                "SELECT 1 FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
                f" WHERE NOT l.granted AND l.locktype = '{locktype}' AND a.datname = current_database()"
            ):
                await anyio.sleep(0.002)


class RingKit(DatabaseKit):
    """A DatabaseKit over queue storage."""

    def __init__(
        self,
        make: Callable[[str], QueueStore],
        run: Runs,
        session: Callable[..., AbstractAsyncContextManager[Session]],
        *,
        schema: str = "awa",
    ) -> None:
        super().__init__(make, run, session, schema=schema)
        self.ring_store = make(schema)

    async def rotate(self, *, publish: bool = True) -> int | None:
        """Open the next segment."""
        opened = await self.run(self.ring_store.open_next())
        if publish:
            await self.run(self.ring_store.publish())
        return opened


class RowKit(DatabaseKit):
    """A DatabaseKit over canonical storage."""


async def together(*acts: Callable[[], Awaitable[object]]) -> None:
    """Run at the same time, until all are done."""
    async with anyio.create_task_group() as group:
        for act in acts:
            group.start_soon(_awaited, act)


async def _awaited(act: Callable[[], Awaitable[object]]) -> None:
    await act()


def metadata(extra: str | None) -> Any:
    """The metadata in an attempt's extra."""
    return extras.decode(extra).get("metadata", {})
