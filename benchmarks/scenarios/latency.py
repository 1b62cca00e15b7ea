"""How long a job waits for an idle worker."""

import time
from statistics import quantiles

from benchmarks.arena import Arena
from benchmarks.systems import System
from benchmarks.trial import Figure, Options, site

_MEAN_GAP = 0.010  # seconds between two jobs, on average


def latency(arena: Arena, system: System, options: Options) -> list[Figure]:
    """Insert jobs one at a time at random moments, for a worker that has nothing else to do.

    Worker and producer are two processes with one clock. `p50` to `p99` run from the return of the insert call (the
    commit is known to the producer) to the start of the handler; that can be negative, when the worker was quicker
    than the answer. `total_p50` and `total_p99` run from before the call.
    """
    jobs = options.amount(2_000)
    with site(arena, system, jobs=jobs) as here:
        worker = here.work(options.concurrency).ready().go()
        producer = here.produce(jobs, way="single", mean_gap=_MEAN_GAP).ready()
        time.sleep(options.seconds(2))  # until the worker listens, which it cannot tell us
        producer.go().finished(within=60 + jobs * _MEAN_GAP * 10)
        here.until_handled(jobs, within=60, watch=worker)
        worker.stop().finished(within=60)
        here.check(jobs)
        board = here.board
        waits = [started - committed for started, committed in zip(board.started, board.committed, strict=True)]
        totals = [started - called for started, called in zip(board.started, board.called, strict=True)]
    return [
        Figure("p50", "ms", _percentile(waits, 50)),
        Figure("p95", "ms", _percentile(waits, 95)),
        Figure("p99", "ms", _percentile(waits, 99)),
        Figure("total_p50", "ms", _percentile(totals, 50)),
        Figure("total_p99", "ms", _percentile(totals, 99)),
    ]


def _percentile(nanoseconds: list[int], which: int) -> float:
    return quantiles(nanoseconds, n=100, method="inclusive")[which - 1] / 1e6
