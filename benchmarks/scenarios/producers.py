"""What waking workers costs those who enqueue."""

from benchmarks.arena import Arena
from benchmarks.systems import System
from benchmarks.trial import Figure, Options, site

_PROCESSES, _EACH = 4, 4
_CONCURRENCY = 50
_SECONDS = 0.05  # the worker's handlers sleep so long: all slots taken all the time, little processor time
_BACKLOG = 2_000


def producers(arena: Arena, system: System, options: Options) -> list[Figure]:
    """16 producers of single jobs (4 processes with 4 connections each) while every slot of a worker is taken.

    `single` is their rate together; `single_quiet` the same where the system can enqueue without waking anybody,
    and `ratio` the first to the second.
    """
    jobs = options.amount(16_000)
    figures = [Figure("single", "jobs/s", _rate(arena, system, jobs, wake=True))]
    if system.quiet:
        quiet = _rate(arena, system, jobs, wake=False)
        figures += [Figure("single_quiet", "jobs/s", quiet), Figure("ratio", "", figures[0].value / quiet)]
    return figures


def _rate(arena: Arena, system: System, jobs: int, *, wake: bool) -> float:
    share = jobs // _PROCESSES
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
        worker.check()
    return share * _PROCESSES / ((max(each.end for each in done) - min(each.begin for each in done)) / 1e9)
