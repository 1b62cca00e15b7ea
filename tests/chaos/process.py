"""A worker or a producer that chaos is let loose on: python -m tests.chaos.process ROLE FLAVOUR DSN BOOK NUMBER.

What it does stands in its book, a file that outlives it, before anybody else can know of it: `u` first, when it is up and would
end at SIGTERM in good order. A worker's lines are
`b JOB ATTEMPT LEASE TIME` and `e JOB ATTEMPT LEASE TIME HOW` around a handler, HOW being `done` or `retry`, and `a JOB ATTEMPT
LEASE TIME` when a hook was told that the job is completed, which is after the commit. A producer's are `w JOB` before jobs are
enqueued, `c JOB` when that was acknowledged. TIME is seconds since 1970, a lease microseconds since then.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import awa_proto as awa
from awa_proto.worker import leader
from awa_proto.worker.config import Liveness
from tests.fleet.members import Member
from tests.fleet.process import Book

QUEUE = "chaos"
SLOTS = 8
LIVENESS = Liveness(heartbeat_interval=1.0, stale_after=5.0, rescue_interval=0.5, deadline_interval=1.0)
"""Shorter than anybody would have it, and so long that a busy machine does not make a worker look dead."""
LEAD = {"LEASE": 3.0, "RENEW_EVERY": 1.0}
"""In place of 15 and 5 seconds: leaders are killed too."""


def work(member: Member, book: Book) -> None:
    """Work until SIGTERM. A job is retried until its `attempts` are used up; a poisoned one kills the process."""

    def handle(job: Any) -> object:
        mark = f"{job.args['n']} {job.attempt} {job.run_lease}"
        book.note(f"b {mark} {time.time():.6f}")
        if job.kind == "poison":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.003)  # the work, in the middle of which a process is killed
        again = job.attempt < job.args["attempts"]
        book.note(f"e {mark} {time.time():.6f} {'retry' if again else 'done'}")
        return awa.RetryAfter(0.05) if again else None

    def told(event: Any) -> None:
        if isinstance(event, awa.events.Completed):
            job = event.job
            book.note(f"a {job.args['n']} {job.attempt} {job.run_lease} {time.time():.6f}")

    member.handle("step", handle)
    member.handle("plain", handle, plain=True)
    member.handle("poison", handle)
    for kind in ("step", "plain"):
        member.run_here("on_event", kind)(told)
    with member.worker({QUEUE: SLOTS}, liveness=LIVENESS, poll_interval=0.5):
        signal.sigwait({signal.SIGTERM})


def produce(member: Member, book: Book, number: int) -> None:
    """Enqueue jobs, numbered from that number on, until SIGTERM.

    A batch of unique jobs is sent again until it is acknowledged. One of other jobs is not, since it may have been committed:
    its numbers stay in doubt.
    """
    chance = random.Random(number)
    while signal.sigtimedwait({signal.SIGTERM}, 0.1) is None:
        batch = range(number, number + chance.randint(1, 20))
        number = batch.stop
        is_unique = chance.random() < 0.5
        requests = [_request(n, chance, is_unique=is_unique) for n in batch]
        book.note(*(f"w {n}" for n in batch))
        while True:
            try:
                member.call("insert_many", requests, on_conflict="skip")
            except awa.DatabaseError:
                if not is_unique:
                    break
                time.sleep(0.02)  # not to spin while the server is down
            else:
                book.note(*(f"c {n}" for n in batch))
                break


def _request(n: int, chance: random.Random, *, is_unique: bool) -> awa.EnqueueRequest:
    request = awa.EnqueueRequest({"n": n, "attempts": chance.choice([1, 1, 1, 2])})
    request = request.kind(chance.choice(["step", "plain"])).queue(QUEUE).priority(chance.randint(1, 4))
    if is_unique:
        request = request.unique()
    return request.run_at(datetime.now(UTC) + timedelta(seconds=chance.random())) if chance.random() < 0.2 else request


if __name__ == "__main__":
    role, flavour, dsn, path, first = sys.argv[1:]
    for constant, seconds in LEAD.items():
        setattr(leader, constant, seconds)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # in every thread, for sigwait
    its = Book(path)
    its.note("u")
    with Member(flavour, dsn) as found:
        if role == "work":
            work(found, its)
        else:
            produce(found, its, int(first))
