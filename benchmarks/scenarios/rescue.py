"""What it costs to look for attempts that nobody will end, beside a million that have ended."""

import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from statistics import median

import awa_sync
from awa_proto.job import JobState
from awa_proto.outcome import Transition
from awa_proto.plan import Op
from awa_proto.store import Demand, Ended, StrandedPage, WorkerInfo
from awa_proto.store.queue import QueueStore
from benchmarks.arena import Arena
from benchmarks.systems import System
from benchmarks.trial import Figure, Options, site

_OPEN = 10
_BATCH = 100
_CALLS = 25


def rescue(arena: Arena, system: System, options: Options) -> list[Figure]:
    """1,000,000 attempts that have ended, in claims of 100, and 10 that run, of a worker that is silent.

    Median milliseconds of 25 looks on one connection, all statements of a look together: `stale` for attempts of silent
    workers, `overdue` for those beyond their deadline, which finds none, `live` for silent workers when there is none. The
    marks of the sweep are at the end, as the leader leaves them every 10 s; `unswept` is the look before there was a sweep.
    """
    jobs = options.amount(1_000_000)
    with site(arena, system, jobs=1) as here, awa_sync.Client(here.database.dsn, statement_timeout=600) as client:
        store = QueueStore(random=random.random)
        _fill(client, store, jobs)
        here.database.checkpoint()
        unswept = _milliseconds(client, lambda: store.find_stale(0.0, 500), expected=_OPEN, calls=3)
        while client.perform(store.sweep(5000)) >= 5000:
            pass
        return [
            Figure("stale", "ms", _milliseconds(client, lambda: store.find_stale(0.0, 500), expected=_OPEN)),
            Figure("overdue", "ms", _milliseconds(client, lambda: store.find_overdue(1.5, 500), expected=0)),
            Figure("live", "ms", _milliseconds(client, lambda: store.find_stale(3600.0, 500), expected=0)),
            Figure("unswept", "ms", unswept),
        ]


def _milliseconds(
    client: awa_sync.Client, op: Callable[[], Op[StrandedPage]], *, expected: int, calls: int = _CALLS
) -> float:
    times: list[float] = []
    for _ in range(calls):
        begin = time.perf_counter()
        page = client.perform(op())
        times.append((time.perf_counter() - begin) * 1000)
        assert len(page.stranded) == expected
    return median(times)


def _fill(client: awa_sync.Client, store: QueueStore, jobs: int) -> None:
    """Enqueue, claim and end jobs as a worker does; some stay open, each in a claim among the others."""
    instance = client.perform(store.register(WorkerInfo(("q",)))).instance
    ring, _ = client.perform(store.survey(["q"]))
    left = _OPEN
    batch = max(1, min(_BATCH, jobs // (2 * _OPEN)))
    every = max(jobs // batch // _OPEN, 1)
    part = 50_000
    for first in range(0, jobs, part):
        client.enqueue_many(({"kind": "k", "n": n} for n in range(min(part, jobs - first))), queue="q")
    number = 0
    while attempts := list(client.perform(store.claim(instance, ring, [Demand("q", batch)])).attempts):
        number += 1
        if left and number % every == 0:
            left -= 1
            attempts = attempts[1:]
        at = datetime.now(UTC)
        ended = [Ended(a, Transition(JobState.COMPLETED, a.attempt, at)) for a in attempts]
        client.perform(store.finalize(ended, number))
    assert left == 0
