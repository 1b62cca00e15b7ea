"""What workers cost that have nothing to do."""

import sys
import time

from benchmarks.arena import Arena
from benchmarks.systems import System
from benchmarks.trial import Figure, Options, site

_WORKERS = 20
_SETTLE, _WATCH = 10, 30  # seconds
_SHOWN = 15


def idle(arena: Arena, system: System, options: Options) -> list[Figure]:
    """20 processes, each a worker of concurrency 1, on an empty queue.

    `statements` a second and worker, with BEGIN and COMMIT, as pg_stat_statements counts them. `wal` in bytes a second
    is all that the server wrote; `statements_wal` is what these statements wrote, so without the server's own records.
    """
    if not arena.counts_statements:
        raise RuntimeError(
            "pg_stat_statements is not there; use the PostgreSQL of the system, with its contrib modules"
        )
    watch = options.seconds(_WATCH)
    with site(arena, system, jobs=1, workers=_WORKERS) as here:
        workers = [here.work(1, worker=number) for number in range(_WORKERS)]
        for each in workers:
            each.ready(within=120)
        for each in workers:
            each.go()
        time.sleep(options.seconds(_SETTLE))
        here.database.checkpoint()
        here.database.forget_statements()
        wal, begin = here.database.wal(), time.monotonic()
        time.sleep(watch)
        seconds = time.monotonic() - begin
        statements, wal = here.database.statements(), here.database.wal() - wal
        for each in workers:
            each.check()
    if options.show_statements:
        for each_statement in statements[:_SHOWN]:
            line = f"{each_statement.calls:7} calls {each_statement.wal_bytes:8} B of WAL  {each_statement.text[:150]}"
            print(line, file=sys.stderr)
    return [
        Figure("statements", "/s and worker", sum(each.calls for each in statements) / seconds / _WORKERS),
        Figure("wal", "B/s", wal / seconds),
        Figure("statements_wal", "B/s", sum(each.wal_bytes for each in statements) / seconds),
    ]
