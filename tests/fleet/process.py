"""A worker or a producer as a process of its own, which may be killed.

What it did stands in its book, a file that outlives it, before anybody else can know of it: a line for each beginning and each
end of a handler (`b N ATTEMPT`, `e N ATTEMPT`); a producer's are `w N` before a transaction that enqueues and `c N` after it.
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
from tests.fleet.members import Member

QUEUE = "fleet"


class Book:
    """A file of lines, each written at once, so that a process that is killed leaves whole ones."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, *lines: str) -> None:
        """Write these lines."""
        os.write(self._file, "".join(f"{line}\n" for line in lines).encode())


def work(member: Member, book: Book) -> None:
    """Work until SIGTERM. A job is retried until its `attempts` are used up."""

    def handle(job: Any) -> object:
        n, attempt = job.args["n"], job.attempt
        book.note(f"b {n} {attempt}")
        time.sleep(0.003)  # the work, in the middle of which a process is killed
        book.note(f"e {n} {attempt}")
        return awa.RetryAfter(0.05) if attempt < job.args["attempts"] else None

    member.handle("step", handle)
    member.handle("plain", handle, plain=True)
    with member.worker({QUEUE: 8}):
        signal.sigwait({signal.SIGTERM})


def produce(member: Member, book: Book, number: int) -> None:
    """Enqueue jobs, numbered from that number on, until SIGTERM: some to be run later, in transactions of one to twenty."""
    chance = random.Random(number)
    while signal.sigtimedwait({signal.SIGTERM}, 0.1) is None:
        batch = range(number, number + chance.randint(1, 20))
        number = batch.stop
        book.note(*(f"w {n}" for n in batch))
        member.call("insert_many", [_request(n, chance) for n in batch])
        book.note(*(f"c {n}" for n in batch))


def _request(n: int, chance: random.Random) -> awa.EnqueueRequest:
    request = awa.EnqueueRequest({"n": n, "attempts": chance.choice([1, 1, 1, 2, 3])})
    request = request.kind(chance.choice(["step", "plain"])).queue(QUEUE).priority(chance.randint(1, 4))
    return request.run_at(datetime.now(UTC) + timedelta(seconds=chance.random())) if chance.random() < 0.2 else request


if __name__ == "__main__":
    role, flavour, engine, dsn, path, number = sys.argv[1:]
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # in every thread, for sigwait
    with Member(flavour, dsn, engine=engine) as found:
        if role == "work":
            work(found, Book(path))
        else:
            produce(found, Book(path), int(number))
