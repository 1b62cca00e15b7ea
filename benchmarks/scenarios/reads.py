"""How long a page of a list takes, and a job, among millions."""

import random
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from statistics import median

import awa_sync
from awa_proto.job import Attempt, JobState
from awa_proto.outcome import DeadLetter, Transition
from awa_proto.store import Demand, Ended, Ring, WorkerInfo
from awa_proto.store.queue import QueueStore
from benchmarks.arena import Arena
from benchmarks.systems import System
from benchmarks.trial import Figure, Options, site

_QUEUES = ("mail", "images", "billing", "etl")
_PARTS = 10
_CALLS = 15
_CLAIMED = 200
"""Jobs of each queue that a claim takes: as many as a busy worker's, and with fewer five millions take long to be worked."""
_LATER = timedelta(days=30)
_ENQUEUE = """
WITH made AS (
  INSERT INTO awa.ready (seg, queue, priority, kind, args, extra)
  SELECT (pg_sequence_last_value('awa.ring'::regclass) & 255)::smallint,
         (ARRAY['mail', 'images', 'billing', 'etl'])[1 + g % 4], 1 + g % 4 % 3, 'kind_' || g % 20,
         json_build_object('number', g, 'to', 'somebody' || g || '@example.org', 'text', repeat('x', g % 100)),
         CASE WHEN g % 10 = 0 THEN json_build_object('metadata', json_build_object('tenant', 't' || g % 1000, 'n', g),
                                                     'tags', json_build_array('tag' || g % 50, 'all')) END
  FROM generate_series($1::int, $2::int) g RETURNING 1)
SELECT count(*) FROM made"""
_DEFER = """
WITH made AS (
  INSERT INTO awa.deferred (state, priority, stripe, attempt, max_attempts, run_lease, run_at, created_at, queue, kind, args)
  SELECT 0, 2, 0, 0, 25, 0, now() + interval '30 days', now(), 'etl', 'kind_' || g % 20, '{}'
  FROM generate_series(1, $1::int) g RETURNING 1)
SELECT count(*) FROM made"""


def reads(arena: Arena, system: System, options: Options) -> list[Figure]:
    """5,000,000 jobs of four queues and 20 kinds through all their lives; then pages of 100 of them, and single jobs.

    94 of 100 are completed, the others failed, are dead letters, were cancelled, or will be retried; on top 2 of 100 are
    scheduled and 2 wait for a worker, of which some run. Median milliseconds of 15 calls of a client, one connection: pages
    of every state, from the top and from the middle; of conditions that one of 20, one of 500 or no job meets; `slowest` of
    all pages. `running_unswept` is what a page of running jobs costs before `sweep` has looked at the claims.
    """
    jobs = options.amount(5_000_000)
    with site(arena, system, jobs=1) as here, awa_sync.Client(here.database.dsn, statement_timeout=600) as client:
        _fill(client, jobs)
        here.database.checkpoint()
        figures = [Figure("running_unswept", "ms", _milliseconds(lambda: client.list_jobs(state="running")))]
        store = QueueStore(random=random.random)
        client.perform(store.sweep())
        pages = {name: _milliseconds(call) for name, call in _pages(client, jobs).items()}
        figures += [Figure(name, "ms", taken) for name, taken in pages.items()]
        figures.append(Figure("slowest", "ms", max(pages.values())))
        ids = [random.Random(1).randrange(1, jobs) for _ in range(200)]
        figures.append(Figure("get_job", "ms", _milliseconds(lambda: [client.get_job(id) for id in ids]) / len(ids)))
    return figures


def _pages(client: awa_sync.Client, jobs: int) -> dict[str, Callable[[], object]]:
    middle = jobs * 3 // 5
    found: dict[str, Callable[[], object]] = {
        "all": client.list_jobs,
        "all_middle": lambda: client.list_jobs(before_id=middle),
        "kind": lambda: client.list_jobs(kind="kind_3"),
        "no_such_kind": lambda: client.list_jobs(kind="nope", before_id=middle),
        "queue": lambda: client.list_jobs(queue="mail", before_id=middle),
        "no_such_queue": lambda: client.list_jobs(queue="nope"),
        "tag": lambda: client.list_jobs(tag="tag10", before_id=middle),
        "no_such_tag": lambda: client.list_jobs(tag="nope", before_id=middle),
        "metadata": lambda: client.list_jobs(metadata={"tenant": "t30"}, before_id=middle),
        "no_such_metadata": lambda: client.list_jobs(metadata={"tenant": "nope"}, before_id=middle),
        "completed_middle": lambda: client.list_jobs(state="completed", before_id=middle),
        "completed_no_such_kind": lambda: client.list_jobs(state="completed", kind="nope", before_id=middle),
        "available_no_such_tag": lambda: client.list_jobs(state="available", tag="nope"),
        "failed_kind_and_queue": lambda: client.list_jobs(state="failed", kind="kind_3", queue="etl"),
        "dlq": client.list_dlq,
        "dlq_queue": lambda: client.list_dlq(queue="etl"),
        "dlq_no_such_tag": lambda: client.list_dlq(tag="nope"),
    }
    for state in JobState:
        found[state.value] = lambda state=state: client.list_jobs(state=state)  # type: ignore[misc]  # bound now
    return found


def _milliseconds(call: Callable[[], object]) -> float:
    times: list[float] = []
    for _ in range(_CALLS):
        begin = time.perf_counter()
        call()
        times.append((time.perf_counter() - begin) * 1000)
    return median(times)


def _fill(client: awa_sync.Client, jobs: int) -> None:
    """Enqueue, claim and end jobs as workers do, in three segments."""
    store = QueueStore(random=random.random)
    rng = random.Random(1)
    instance = client.perform(store.register(WorkerInfo(_QUEUES))).instance
    flush = 1

    def claim(most: int, ring: Ring) -> list[Attempt]:
        demands = [Demand(queue, most, aging=0.0) for queue in _QUEUES]
        return list(client.perform(store.claim(instance, ring, demands)).attempts)

    for part in range(_PARTS):
        if part in {_PARTS * 2 // 5, _PARTS * 7 // 10}:
            client.perform(store.open_next())
            client.perform(store.publish())
        _sql(client, _ENQUEUE, part * jobs // _PARTS + 1, (part + 1) * jobs // _PARTS)
        ring, _ = client.perform(store.survey(_QUEUES))
        while attempts := claim(_CLAIMED, ring):
            flush += 1
            ended = [
                Ended(a, _ending(a, rng), output=f'{{"rows":{a.id}.0}}' if a.id % 100 == 0 else None) for a in attempts
            ]
            client.perform(store.finalize(ended, flush))
    _sql(client, _DEFER, max(jobs // 50, 1))
    _sql(client, _ENQUEUE, jobs + 1, jobs + max(jobs // 50, 20))
    ring, _ = client.perform(store.survey(_QUEUES))
    for _ in range(3):
        claim(50, ring)


def _ending(attempt: Attempt, rng: random.Random) -> Transition:
    at = datetime.now(UTC)
    chance = rng.random()
    entry = {"error": "RuntimeError: as planned", "attempt": 1}
    if chance < 0.02:
        return Transition(JobState.FAILED, attempt.attempt, at, entry=entry)
    if chance < 0.03:
        return Transition(JobState.FAILED, attempt.attempt, at, entry=entry, dead_letter=DeadLetter.TERMINAL)
    if chance < 0.04:
        return Transition(JobState.CANCELLED, attempt.attempt, at)
    if chance < 0.06:
        return Transition(JobState.RETRYABLE, attempt.attempt, at, at + _LATER, entry)
    return Transition(JobState.COMPLETED, attempt.attempt, at)


def _sql(client: awa_sync.Client, text: str, *args: int) -> None:
    with client.transaction() as tx:
        tx.fetch(text, *args)
