"""What it costs to park jobs and to complete them from outside, and whether that grows with how many wait."""

import hashlib
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from statistics import median
from typing import TypeVar
from uuid import UUID

import awa_sync
from awa_proto.job import Attempt, JobState
from awa_proto.outcome import Outcome, Transition
from awa_proto.store import Demand, Ended, WorkerInfo
from awa_proto.store.queue import QueueStore
from benchmarks.arena import Arena
from benchmarks.systems import System
from benchmarks.trial import Figure, Options, site

T = TypeVar("T")

_BATCH = 200
_SENDERS = 16
_FEW, _MANY = 1_000, 1_000_000
_CALLS, _WARM = 400, 50
_PART = 100_000
_WAIT = """
WITH called AS (
  INSERT INTO awa.callbacks (job_id, run_lease, callback_id, state, seg, claim_id, idx, timeout_at, queue)
  SELECT g, 1, md5(g::text)::uuid, 2, 0, 1, 0, now() + (1 + random()) * interval '1 hour', 'q'
  FROM generate_series($1::int, $2::int) g
),
parked AS (
  INSERT INTO awa.waiting (id, priority, stripe, attempt, max_attempts, run_lease, run_at, created_at, attempted_at, queue,
                           kind, args)
  SELECT g, 2, 0, 1, 25, 1, now(), now(), now(), 'q', 'k', json_build_object('n', g) FROM generate_series($1::int, $2::int) g
)
SELECT 1"""


def callbacks(arena: Arena, system: System, options: Options) -> list[Figure]:
    """20,000 jobs: registered by 16 senders, parked in batches of 200, and completed by 16 senders, a call for each job.

    `register` and `complete` in calls a second, `park` in jobs a second, of one process. Then calls of one sender, one after
    the other: median milliseconds of a completion by id in a database where 1,000 jobs wait (`of_few`) and in one where
    1,000,000 do (`of_many`), by turns, and the ratio (`growth`).
    """
    many = _MANY if options.jobs is None and not options.quick else options.amount(_MANY)
    return [*_rates(arena, system, options.amount(20_000)), *_growth(arena, system, min(_FEW, many), many)]


def _rates(arena: Arena, system: System, jobs: int) -> Iterator[Figure]:
    with (
        site(arena, system, jobs=1) as here,
        awa_sync.Client(here.database.dsn, statement_timeout=600, max_size=_SENDERS) as client,
        ThreadPoolExecutor(_SENDERS) as senders,
    ):
        store = QueueStore(random=random.random)
        client.enqueue_many(({"kind": "k", "n": n} for n in range(jobs)), queue="q")
        attempts = _claimed(client, store)
        ids: dict[int, str] = {}

        def register(attempt: Attempt) -> None:
            registered = client.perform(store.register_callback(attempt, 3600.0, None))
            assert registered is not None
            ids[attempt.id] = registered.id

        yield Figure("register", "calls/s", jobs / _seconds(lambda: _all(senders.map(register, attempts))))
        yield Figure("park", "jobs/s", jobs / _seconds(lambda: _park(client, store, attempts, ids)))
        here.database.checkpoint()

        def complete(id: str) -> None:
            assert client.complete_external(id).state is JobState.COMPLETED

        yield Figure("complete", "calls/s", jobs / _seconds(lambda: _all(senders.map(complete, ids.values()))))


def _growth(arena: Arena, system: System, few: int, many: int) -> Iterator[Figure]:
    times: dict[int, list[float]] = {few: [], many: []}
    with _waiting(arena, system, few) as beside_few, _waiting(arena, system, many) as beside_many:
        calls = min(_CALLS, few // 2)
        chosen = zip(_ids(few, calls), _ids(many, calls), strict=True)
        for number, ids in enumerate(chosen):
            for client, jobs, id in ((beside_few, few, ids[0]), (beside_many, many, ids[1])):
                begin = time.perf_counter()
                assert client.complete_external(id).state is JobState.COMPLETED
                if number >= min(_WARM, calls // 2):
                    times[jobs].append((time.perf_counter() - begin) * 1000)
    yield Figure("of_few", "ms", median(times[few]))
    yield Figure("of_many", "ms", median(times[many]))
    yield Figure("growth", "", median(times[many]) / median(times[few]))


@contextmanager
def _waiting(arena: Arena, system: System, jobs: int) -> Iterator[awa_sync.Client]:
    """A client of a database where so many jobs wait."""
    with site(arena, system, jobs=1) as here, awa_sync.Client(here.database.dsn, statement_timeout=600) as client:
        for first in range(1, jobs + 1, _PART):
            with client.transaction() as tx:
                tx.fetch(_WAIT, first, min(first + _PART - 1, jobs))
        here.database.checkpoint()
        yield client


def _ids(jobs: int, calls: int) -> list[str]:
    """Of so many callbacks, anywhere among those of `_WAIT`."""
    numbers = random.Random(1).sample(range(1, jobs + 1), calls)
    return [str(UUID(hashlib.md5(str(number).encode()).hexdigest())) for number in numbers]


def _claimed(client: awa_sync.Client, store: QueueStore) -> list[Attempt]:
    instance = client.perform(store.register(WorkerInfo(("q",)))).instance
    ring, _ = client.perform(store.survey(["q"]))
    found: list[Attempt] = []
    while more := list(client.perform(store.claim(instance, ring, [Demand("q", 1000)])).attempts):
        found += more
    return found


def _park(client: awa_sync.Client, store: QueueStore, attempts: Sequence[Attempt], ids: Mapping[int, str]) -> None:
    waits = Transition(JobState.WAITING_EXTERNAL, 1, datetime.now(UTC), outcome=Outcome.WAITING_FOR_CALLBACK)
    for first in range(0, len(attempts), _BATCH):
        batch = attempts[first : first + _BATCH]
        ended = [Ended(each, replace(waits, callback=ids[each.id]), flushed=True) for each in batch]
        client.perform(store.finalize(ended, first + 1))


def _seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _all(results: Iterable[T]) -> None:
    """Wait for every one."""
    for _ in results:
        pass
