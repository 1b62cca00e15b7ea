"""A day of rotations in a minute, under load, kept book of by the handlers themselves.

The ring turns as fast as it can, and what is over is emptied at once. Meanwhile there are transactions that commit or roll back
many rotations after they have enqueued, one whose snapshot is older than most of the ring, a paused queue that is carried on
and on, and handlers that run for a large part of the day.

The short form is part of the tests. AWA_DAY_ROTATIONS says how many rotations the day has, AWA_DAY_SEED what is chosen by
chance.
"""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import psycopg
import pytest

import awa_proto as awa
from awa_proto.store.upkeep import KeptFor
from tests.fleet.members import FLAVOURS, Member
from tests.fleet.server import ask, until

ROTATIONS = int(os.environ.get("AWA_DAY_ROTATIONS", "40"))
SEED = os.environ.get("AWA_DAY_SEED", "1")
PRODUCERS = 3
LONG = 3
AT_MOST_PAUSED = 100
AT_MOST_WAITING = 300
"""Jobs of which producers leave so many waiting, those of the paused queue among them, before they go on."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120 + ROTATIONS)]


class Day:
    """The books. committed: jobs whose enqueue committed. undone: those that were rolled back. runs: of handlers, by job."""

    def __init__(self) -> None:
        self.rotations = 0
        self.committed: set[int] = set()
        self.undone: set[int] = set()
        self.begun: Counter[int] = Counter()
        self.done: Counter[int] = Counter()
        self.emptied: Counter[int] = Counter()
        self.carried = 0
        self.paused = 0
        self.held_by_attempts = 0
        self.is_over = threading.Event()
        self._numbers = iter(range(1 << 60))
        self._lock = threading.Lock()

    def number(self) -> int:
        """Of the next job."""
        with self._lock:
            return next(self._numbers)

    def turned(self, times: int) -> Callable[[], bool]:
        """Whether the ring has turned so many times from now on, or the day is over."""
        at = self.rotations + times
        return lambda: self.rotations >= at or self.is_over.is_set()


def _turn(day: Day, member: Member) -> None:
    """What a leader does about the ring, without any pause, until the day is over and a little longer."""
    store = member.client.operations._store
    while day.rotations < ROTATIONS or not day.is_over.is_set():
        opened = member.call("perform", store.open_next())
        member.call("perform", store.publish())
        day.rotations += opened is not None
        member.call("perform", store.probe())
        member.call("perform", store.sweep())
        pruned = member.call("perform", store.prune(0.0))
        day.carried += pruned.carried
        day.held_by_attempts += any(kept.reason is KeptFor.RUNNING for kept in pruned.kept)
        if pruned.segment is not None:
            day.emptied[pruned.segment] += 1


def _wait_for(day: Day, rotations: int, leader: threading.Thread) -> None:
    """Wait until the ring has turned so often, or nobody turns it; a day may be long, one rotation not."""
    while day.rotations < rotations and leader.is_alive():
        until(lambda now=day.rotations: day.rotations > now or not leader.is_alive(), "a rotation")  # type: ignore[misc]


def _produce(day: Day, dsn: str, place: int) -> None:
    """Transactions that are open while the ring turns, up to once around and more; a fifth of them roll back."""
    chance = random.Random(f"{SEED} {place}")
    with Member("sync", dsn) as member, psycopg.connect(dsn) as connection:
        while not day.is_over.is_set():
            numbers = [day.number() for _ in range(chance.randint(1, 20))]
            if chance.random() < 0.3:
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            connection.execute("SELECT 1")
            requests = [_request(n, day, chance) for n in numbers]
            member.call("insert_many", requests[: len(requests) // 2 or 1], using=connection)
            late = chance.choice([0, 0, 0, 1, 3, 12])
            until(day.turned(late), "rotations beside an open transaction")
            if rest := requests[len(requests) // 2 or 1 :]:
                member.call("insert_many", rest, using=connection)
            if chance.random() < 0.2:
                connection.rollback()
                day.undone.update(numbers)
            else:
                connection.commit()
                day.committed.update(numbers)
            until(lambda: len(day.committed) - len(day.done) < AT_MOST_WAITING or day.is_over.is_set(), "work")


def _request(n: int, day: Day, chance: random.Random) -> awa.EnqueueRequest:
    kind = chance.choice(["once", "once", "once", "twice"])
    queue = chance.choice(["day", "day", "day", "paused"])
    if queue == "paused":
        day.paused += 1
        queue = "paused" if day.paused <= AT_MOST_PAUSED else "day"
    return awa.EnqueueRequest({"n": n}).kind(kind).queue(queue).priority(chance.randint(1, 4))


def _note_in(day: Day) -> Iterator[tuple[str, Callable[[Any], object]]]:
    """Handlers: of jobs that end at once, and of those that are run again once."""

    def note(job: Any, *, again: bool = False) -> object:
        day.begun[job.args["n"]] += 1
        if again and job.attempt == 1:
            return awa.RetryAfter(0)
        day.done[job.args["n"]] += 1
        return None

    yield "once", note
    yield "twice", partial(note, again=True)


def test_a_day_of_rotations_loses_no_job_and_runs_none_twice(database: str) -> None:
    day, half = Day(), threading.Event()
    with ExitStack() as stack:
        members = [stack.enter_context(Member(each, database)) for each in FLAVOURS]
        members[0].call("migrate")
        members[0].call("pause_queue", "paused")

        def long(job: Any) -> None:
            day.begun[job.args["n"]] += 1
            half.wait()
            day.done[job.args["n"]] += 1

        for member in members:
            for kind, handler in _note_in(day):
                member.handle(kind, handler, plain=True)
            member.handle("long", long, plain=True)
        old = stack.enter_context(psycopg.connect(database))
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT pg_current_snapshot()")
        crews = [
            stack.enter_context(member.worker({"day": 4, "paused": 4, "long": LONG}, poll_interval=0.1))
            for member in members
        ]
        for _ in range(LONG):
            number = day.number()
            members[0].call("insert", {"n": number}, kind="long", queue="long")
            day.committed.add(number)
        until(lambda: len(day.begun) == LONG, "the long attempts")
        threads = [threading.Thread(target=_turn, args=(day, members[-1]))]
        threads += [threading.Thread(target=_produce, args=(day, database, place)) for place in range(PRODUCERS)]
        for thread in threads:
            thread.start()
        try:
            _wait_for(day, ROTATIONS // 2, threads[0])
            number = day.number()
            with Member("sync", database) as member:  # by a snapshot that is older than all of this
                member.call("insert", {"n": number}, kind="once", queue="day", using=old)
            old.commit()
            day.committed.add(number)
            half.set()
            _wait_for(day, ROTATIONS, threads[0])
        finally:
            half.set()
            day.is_over.set()
            for thread in threads:
                thread.join()
        members[0].call("resume_queue", "paused")
        until(lambda: len(day.done) >= len(day.committed), "every job")
        for crew in crews:
            crew.drained()
        jobs = ask(database, "SELECT state, count(*)::int FROM awa.jobs GROUP BY state")
    assert day.rotations >= ROTATIONS
    assert set(day.done) == day.committed
    assert set(day.done.values()) == {1}, "a job was done twice"
    assert max(day.begun.values()) == 2
    assert not day.undone & set(day.begun), "a job ran whose transaction was rolled back"
    assert {state for state, _ in jobs} <= {"completed"}
    assert set(day.emptied) == set(range(8))
    assert day.carried > 0
    assert day.held_by_attempts > 0
    assert day.undone
    print(
        f"seed {SEED}: {day.rotations} rotations, {sum(day.emptied.values())} times emptied, {len(day.committed)} jobs, "
        f"{day.carried} times carried on, {day.held_by_attempts} times held by an attempt"
    )
