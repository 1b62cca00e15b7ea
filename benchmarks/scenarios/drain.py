"""How fast one worker process works off a queue that is already full."""

from benchmarks.arena import Arena
from benchmarks.systems import System
from benchmarks.trial import Figure, Options, site


def drain(arena: Arena, system: System, options: Options) -> list[Figure]:
    """Enqueue, then work with handlers that only count.

    `rate` is over the time from the start of the connected worker until its graceful stop, so with every result
    written. `handlers` is over the time from the first handler to the last; `start` and `stop` are what is around it.
    """
    jobs = options.amount(20_000)
    with site(arena, system, jobs=jobs) as here:
        here.fill(jobs)
        worker = here.work(options.concurrency, expect=jobs).ready().go()
        done = worker.finished(within=60 + jobs / 50)
        here.check(jobs)
    between = max(done.last - done.first, 1) / 1e9
    return [
        Figure("rate", "jobs/s", jobs / done.seconds),
        Figure("handlers", "jobs/s", (jobs - 1) / between),
        Figure("start", "ms", (done.first - done.begin) / 1e6),
        Figure("stop", "ms", (done.end - done.last) / 1e6),
    ]
