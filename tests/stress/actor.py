"""One connection of a stress test: runs Ops of a store, in autocommit or inside transactions of the test's own."""

import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import asyncpg

from awa_proto.driving.ops import drive_awaited
from awa_proto.errors import DatabaseError, Failure
from awa_proto.job import Attempt, JobState
from awa_proto.outcome import Transition
from awa_proto.plan import Copy, Op, Row, Statement, Step
from awa_proto.store import Claimed, Demand, Ended, NewJob, Ring, Verdict
from awa_proto.store.queue import QueueStore

T = TypeVar("T")

SEEDS = range(int(os.environ.get("AWA_STRESS_SEEDS", "1")))
"""AWA_STRESS_SEEDS=20 runs each stress test with twenty seeds, for an hour's hunt."""
SECONDS = float(os.environ.get("AWA_STRESS_SECONDS", "4"))
"""How long those go on that have no end of their own."""
LEVELS = ("read_committed", "repeatable_read", "serializable")
AGAIN = frozenset({Failure.TRANSIENT, Failure.BUSY})
"""Rolled back by the server, as it may do to anybody; asked again."""


class Actor:
    """A connection, a store and a random source of its own."""

    def __init__(self, connection: Any, store: QueueStore, rng: random.Random) -> None:
        self.connection = connection
        self.store = store
        self.rng = rng
        self.ring = Ring(0)

    async def run(self, op: Op[T]) -> T:
        """The result of an Op, run once."""
        if op.atomic and not self.connection.is_in_transaction():
            async with self.connection.transaction(isolation="read_committed"):
                return await drive_awaited(op.start(), self._perform)
        return await drive_awaited(op.start(), self._perform)

    async def surely(self, op: Op[T]) -> T:
        """The result of an Op, run again for as long as the server rolls it back."""
        while True:
            try:
                return await self.run(op)
            except DatabaseError as error:
                if error.failure not in AGAIN:
                    raise

    async def claim(self, *demands: Demand, advance: bool = False) -> Claimed:
        """A claim over a list of segments that is refreshed when a claim says that it is old."""
        if not self.ring.segments:
            self.ring, _ = await self.surely(self.store.survey([]))
        claimed = await self.surely(self.store.claim(1, self.ring, demands, advance=advance))
        if claimed.version != self.ring.version and self.rng.random() < 0.5:
            self.ring = Ring(0)
        return claimed

    async def finalize(self, ended: list[Ended]) -> list[Verdict]:
        """One flush, sent until no attempt in it is told *again*."""
        flush = self.rng.getrandbits(61)
        while True:
            verdicts = await self.surely(self.store.finalize(ended, flush))
            if Verdict.AGAIN not in verdicts:
                return verdicts

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """A transaction of a random isolation level; an exception rolls it back."""
        try:
            async with self.connection.transaction(isolation=self.rng.choice(LEVELS)):
                yield
        except asyncpg.SerializationError as error:  # raw, where the COMMIT itself is refused
            raise DatabaseError(str(error), error.sqlstate) from error

    async def _perform(self, step: Step) -> Any:
        try:
            match step:
                case Statement():
                    return await self._fetch(step)
                case Copy():
                    raise AssertionError("no COPY in stress tests")
                case _:
                    return [await self._fetch(each) for each in step]
        except asyncpg.PostgresError as error:
            raise DatabaseError(str(error), str(getattr(error, "sqlstate", "XX000"))) from error
        except (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError) as error:
            raise DatabaseError(str(error)) from error

    async def _fetch(self, statement: Statement) -> list[Row]:
        return [tuple(row) for row in await self.connection.fetch(statement.sql, *statement.params)]


@asynccontextmanager
async def actor(dsn: str, seed: object) -> AsyncIterator[Actor]:
    """An actor, whose connection is closed whatever happens."""
    connection = await asyncpg.connect(dsn)
    rng = random.Random(repr(seed))
    try:
        yield Actor(connection, QueueStore(random=rng.random), rng)
    finally:
        connection.terminate()


def jobs(count: int, **fields: Any) -> list[NewJob]:
    """So many jobs."""
    return [NewJob(**{"kind": "k", "queue": "q", "args": "{}", **fields})] * count


def ended(attempt: Attempt, to: JobState, mark: str = "") -> Ended:
    """An attempt that ended in `to`; what is deferred is due at once. mark: the text of its error entry."""
    at = datetime.now(UTC)
    later = to in {JobState.SCHEDULED, JobState.RETRYABLE}
    back = to in {JobState.SCHEDULED, JobState.AVAILABLE}
    run_at = at - timedelta(seconds=1) if later else None
    return Ended(attempt, Transition(to, attempt.attempt - back, at, run_at, {"error": mark} if mark else None))
