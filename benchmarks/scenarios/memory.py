"""Whether a worker grows with the number of jobs it has run."""

from pathlib import Path

from benchmarks.arena import Arena
from benchmarks.systems import System
from benchmarks.trial import Figure, Options, site

_BACKLOG = 4_000
_BATCH = 1_000


def memory(arena: Arena, system: System, options: Options) -> list[Figure]:
    """The resident memory of one worker process after a tenth of the jobs (50,000) and after all (500,000).

    Memory of its own only (RssAnon): the score board is a file shared with the harness, and not the worker's doing.
    """
    jobs = options.amount(500_000)
    with site(arena, system, jobs=jobs) as here:
        worker = here.work(options.concurrency).ready()
        producer = here.produce(jobs, backlog=_BACKLOG, batch=min(_BATCH, max(jobs // 20, 1))).ready()
        worker.go()
        producer.go()
        here.until_handled(jobs // 10, within=60 + jobs / 50, watch=worker)
        tenth = _resident(worker.pid)
        here.until_handled(jobs, within=60 + jobs / 50, watch=worker)
        whole = _resident(worker.pid)
        producer.finished(within=60)
        worker.stop().finished(within=60)
        here.check(jobs)
    return [
        Figure("after_a_tenth", "MB", tenth),
        Figure("after_all", "MB", whole),
        Figure("growth", "MB", whole - tenth),
    ]


def _resident(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("this kernel does not tell the memory of a process by kind")
