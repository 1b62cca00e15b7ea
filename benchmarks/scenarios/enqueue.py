"""How fast one producer enqueues, while nobody works."""

from benchmarks.arena import Arena
from benchmarks.crew import AgentFailed
from benchmarks.systems import System
from benchmarks.systems.adapter import Way
from benchmarks.trial import Figure, Options, site


def enqueue(arena: Arena, system: System, options: Options) -> list[Figure]:
    """Jobs a second: one a call (a tenth of the jobs), 1,000 a call, and all in one call by COPY, where there is one."""
    jobs = options.amount(20_000)
    amounts: dict[Way, int] = {"single": max(jobs // 10, 1), "many": jobs}
    if system.copies:
        amounts["copy"] = jobs
    figures = []
    for way, amount in amounts.items():
        with site(arena, system, jobs=amount) as here:
            batch = amount if way == "copy" else 1000
            done = here.produce(amount, way=way, batch=batch).ready().go().finished(within=60 + amount / 50)
            waiting = here.database.value(system.unfinished)
            if waiting != amount:
                raise AgentFailed(f"{amount} jobs were enqueued as {way}, {waiting} are there")
        figures.append(Figure(way, "jobs/s", amount / done.seconds))
    return figures
