"""What waking workers costs those who enqueue."""

from statistics import mean

from benchmarks.arena import Arena
from benchmarks.systems import System
from benchmarks.trial import Figure, Options, WrongResult, site

_PROCESSES, _EACH = 4, 4
_CONCURRENCY = 50
_SECONDS = 0.05  # the worker's handlers sleep so long: all slots taken all the time, little processor time
_BACKLOG = 2_000


def producers(arena: Arena, system: System, options: Options) -> list[Figure]:
    """16 producers of single jobs (4 processes with 4 connections each) while every slot of a worker is taken.

    `single` is their rate together; `single_quiet` the same where the system can enqueue without waking anybody,
    and `ratio` the first to the second. Both are measured twice, in the order waking, quiet, quiet, waking, so that a
    machine that gets slower or faster meanwhile does not decide.
    """
    jobs = options.amount(16_000)
    if not system.quiet:
        return [Figure("single", "jobs/s", _rate(arena, system, jobs, wake=True))]
    rates = [_rate(arena, system, jobs, wake=wake) for wake in (True, False, False, True)]
    waking, quiet = mean((rates[0], rates[3])), mean((rates[1], rates[2]))
    return [
        Figure("single", "jobs/s", waking),
        Figure("single_quiet", "jobs/s", quiet),
        Figure("ratio", "", waking / quiet),
    ]


def _rate(arena: Arena, system: System, jobs: int, *, wake: bool) -> float:
    share = max(jobs // _PROCESSES, 1)
    jobs = share * _PROCESSES
    with site(arena, system, jobs=_BACKLOG + jobs) as here:
        here.fill(_BACKLOG)
        worker = here.work(_CONCURRENCY, load="sleep", seconds=_SECONDS).ready()
        crowd = [
            here.produce(share, first=_BACKLOG + number * share, way="single", producers=_EACH, wake=wake)
            for number in range(_PROCESSES)
        ]
        for each in crowd:
            each.ready()
        worker.go()
        here.until_handled(_CONCURRENCY, within=60, watch=worker)
        for each in crowd:
            each.go()
        done = [each.finished(within=60 + jobs / 50) for each in crowd]
        worker.stop().finished(within=60)
        left = here.database.value(system.unfinished)
        if left + here.board.handled() != _BACKLOG + jobs:
            raise WrongResult(f"{_BACKLOG + jobs} jobs enqueued, {here.board.handled()} handled, {left} left")
    return jobs / ((max(each.end for each in done) - min(each.begin for each in done)) / 1e9)
