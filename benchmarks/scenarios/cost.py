"""What hooks, follow-ups and outputs cost a worker, each beside the same work without."""

from statistics import mean, median
from typing import get_args

from benchmarks.arena import Arena
from benchmarks.systems import System
from benchmarks.systems.adapter import Feature
from benchmarks.trial import Figure, Options, site

_FOLLOW_UPS: frozenset[Feature] = frozenset({"registered", "staged", "inserted"})


def cost(arena: Arena, system: System, options: Options) -> list[Figure]:
    """Drain a full queue plainly, then with a feature, then plainly, and so on.

    `plain` is the rate of the plain drains. `hooks`: a hook counts Started and Completed, and the clock runs until it has.
    `registered`, `staged`: each job has a follow-up. `output`, `large_output`: each has an output of 100 bytes, of 4 KiB.
    These are parts of the rate: of the plain drains before and after.

    `inserted` is what one would do without follow-ups: the handler calls `insert` itself. `…_to_inserted` is the time of a
    drain with follow-ups as a part of that. `…_to_apart` is it as a part of doing the two one after the other: a plain
    drain, and then enqueueing as many jobs by `insert_many`, as many a call as handlers run at once (`apart`, jobs a
    second), while nobody works.
    """
    if not system.features:
        return []
    jobs = options.amount(50_000)
    plain = [_drain(arena, system, options, jobs, None)]
    took: dict[Feature, float] = {}
    parts: dict[Feature, float] = {}
    around: dict[Feature, float] = {}
    for feature in get_args(Feature):
        took[feature] = _drain(arena, system, options, jobs, feature)
        plain.append(_drain(arena, system, options, jobs, None))
        around[feature] = mean(plain[-2:])
        parts[feature] = around[feature] / took[feature]
    apart = _enqueue(arena, system, jobs, options.concurrency)
    return [
        Figure("plain", "jobs/s", jobs / median(plain)),
        *(Figure(feature, "of plain", part) for feature, part in parts.items()),
        Figure("apart", "jobs/s", jobs / apart),
        *(
            Figure(f"{feature}_to_apart", "", took[feature] / (around[feature] + apart))
            for feature in sorted(_FOLLOW_UPS - {"inserted"})
        ),
        *(
            Figure(f"{feature}_to_inserted", "", took[feature] / took["inserted"])
            for feature in sorted(_FOLLOW_UPS - {"inserted"})
        ),
    ]


def _drain(arena: Arena, system: System, options: Options, jobs: int, feature: Feature | None) -> float:
    """Seconds from the start of the connected worker until it has stopped."""
    with site(arena, system, jobs=jobs) as here:
        here.fill(jobs)
        worker = here.work(options.concurrency, expect=jobs, feature=feature).ready().go()
        done = worker.finished(within=60 + jobs / 50)
        here.check(jobs, follow_ups=jobs if feature in _FOLLOW_UPS else 0)
    return done.seconds


def _enqueue(arena: Arena, system: System, jobs: int, batch: int) -> float:
    """Seconds a producer takes for as many jobs."""
    with site(arena, system, jobs=jobs) as here:
        return here.produce(jobs, batch=batch).ready().go().finished(within=60 + jobs / 50).seconds
