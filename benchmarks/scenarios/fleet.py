"""Many small workers on one queue."""

import time

from benchmarks.arena import Arena
from benchmarks.systems import System
from benchmarks.trial import Figure, Options, site

_WORKERS = 20
_SECONDS = 0.005


def fleet(arena: Arena, system: System, options: Options) -> list[Figure]:
    """20 processes, each a worker of concurrency 1, work off a full queue; handlers sleep 5 ms.

    The ceiling is 20 / 5 ms = 4,000 jobs/s, less on two processors. The time runs from the word to begin, when all
    are connected, until the last handler has started; that every result is then written is checked after it.
    """
    jobs = options.amount(10_000)
    with site(arena, system, jobs=jobs, workers=_WORKERS) as here:
        here.fill(jobs)
        workers = [here.work(1, worker=number, load="sleep", seconds=_SECONDS) for number in range(_WORKERS)]
        for each in workers:
            each.ready(within=120)
        begin = time.monotonic()
        for each in workers:
            each.go()
        here.until_handled(jobs, within=60 + jobs / 20)
        seconds = time.monotonic() - begin
        for each in workers:
            each.stop()
        for each in workers:
            each.finished(within=60)
        here.check(jobs)
        least, most = min(here.board.counters), max(here.board.counters)
    return [
        Figure("rate", "jobs/s", jobs / seconds),
        Figure("least_share", "", least * _WORKERS / jobs),
        Figure("greatest_share", "", most * _WORKERS / jobs),
    ]
