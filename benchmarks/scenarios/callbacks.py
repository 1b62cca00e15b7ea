"""What it costs to park jobs and to complete them from outside, one call each, beside few and beside many that wait."""

import random
import time
from datetime import UTC, datetime

import awa_sync
from awa_proto.job import Attempt, JobState
from awa_proto.outcome import Outcome, Transition
from awa_proto.store import Demand, Ended, WorkerInfo
from awa_proto.store.queue import QueueStore
from benchmarks.arena import Arena
from benchmarks.systems import System
from benchmarks.trial import Figure, Options, site

_BATCH = 200


def callbacks(arena: Arena, system: System, options: Options) -> list[Figure]:
    """20,000 jobs: registered one by one, parked in batches of 200, and completed one by one, all on one connection.

    `register` and `complete` in calls a second, `park` in jobs a second. `complete` is measured over the first thousand, while
    all others wait, and `last` over the last thousand.
    """
    jobs = options.amount(20_000)
    with site(arena, system, jobs=1) as here, awa_sync.Client(here.database.dsn, statement_timeout=600) as client:
        store = QueueStore(random=random.random)
        client.enqueue_many(({"kind": "k", "n": n} for n in range(jobs)), queue="q")
        attempts = _claimed(client, store)
        begin = time.perf_counter()
        ids = [_id(client, store, attempt) for attempt in attempts]
        registered = time.perf_counter()
        for number in range(0, len(attempts), _BATCH):
            at = datetime.now(UTC)
            ended = [
                Ended(
                    each,
                    Transition(JobState.WAITING_EXTERNAL, 1, at, outcome=Outcome.WAITING_FOR_CALLBACK),
                    flushed=True,
                )
                for each in attempts[number : number + _BATCH]
            ]
            client.perform(store.finalize(ended, number + 1))
        parked = time.perf_counter()
        here.database.checkpoint()
        part = max(1, min(1000, len(ids) // 2))
        first, last = _completed(client, ids[:part]), ids[-part:]
        _completed(client, ids[part:-part])
        return [
            Figure("register", "calls/s", len(ids) / (registered - begin)),
            Figure("park", "jobs/s", len(ids) / (parked - registered)),
            Figure("complete", "calls/s", part / first),
            Figure("last", "calls/s", part / _completed(client, last)),
        ]


def _claimed(client: awa_sync.Client, store: QueueStore) -> list[Attempt]:
    instance = client.perform(store.register(WorkerInfo(("q",)))).instance
    ring, _ = client.perform(store.survey(["q"]))
    found: list[Attempt] = []
    while more := list(client.perform(store.claim(instance, ring, [Demand("q", 1000)])).attempts):
        found += more
    return found


def _id(client: awa_sync.Client, store: QueueStore, attempt: Attempt) -> str:
    registered = client.perform(store.register_callback(attempt, 3600.0, None))
    assert registered is not None
    return registered.id


def _completed(client: awa_sync.Client, ids: list[str]) -> float:
    """Seconds."""
    begin = time.perf_counter()
    for id in ids:
        assert client.complete_external(id).state is JobState.COMPLETED
    return time.perf_counter() - begin
