"""What happens to speed and room while somebody holds a snapshot open."""

import time
from itertools import pairwise

from benchmarks.arena import Arena
from benchmarks.systems import System
from benchmarks.trial import Figure, Options, site

_PARTS = 6
_BATCH = 1_000
_BACKLOG = 4_000


def pinned(arena: Arena, system: System, options: Options) -> list[Figure]:
    """One producer and one worker at full speed beside an open REPEATABLE READ snapshot.

    The producer enqueues 1,000 jobs a call whenever fewer than 4,000 wait, so the queue is neither empty nor long, and
    the load is what the system bears. After a twentieth more jobs to get going, `rate_1` to `rate_6` for each sixth of
    the jobs, `last_to_first` their ratio; `dead` tuples at the end, while the snapshot is still held; `wal` in bytes a
    job for its whole life.
    """
    jobs = options.amount(300_000)
    start = jobs // 20
    total = start + jobs
    with site(arena, system, jobs=total) as here, here.database.pinned():
        worker = here.work(options.concurrency).ready()
        producer = here.produce(total, backlog=_BACKLOG, batch=min(_BATCH, max(jobs // 20, 1))).ready()
        wal = here.database.wal()
        worker.go()
        producer.go()
        times = []
        for part in range(_PARTS + 1):
            here.until_handled(start + jobs * part // _PARTS, within=60 + jobs / 20, watch=worker)
            times.append(time.monotonic())
        producer.finished(within=60)
        worker.stop().finished(within=60)
        wal = here.database.wal() - wal
        here.check(total)
        dead = here.database.dead_tuples()
    rates = [jobs / _PARTS / (end - begin) for begin, end in pairwise(times)]
    return [
        *(Figure(f"rate_{part}", "jobs/s", rate) for part, rate in enumerate(rates, start=1)),
        Figure("last_to_first", "", rates[-1] / rates[0]),
        Figure("dead", "tuples", dead),
        Figure("wal", "B/job", wal / total),
    ]
