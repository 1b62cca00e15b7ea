"""What a job costs the machine alone: `python -m benchmarks.machine [jobs] [slots] [--profile]`.

The store is a counter and the handlers end at once, fifty or so in one input, so this is everything a driver does not do.
"""

import argparse
import cProfile
import random
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from typing_extensions import override

from awa_proto.job import Attempt
from awa_proto.outcome import Returned
from awa_proto.plan import Op, Plan
from awa_proto.store import Claimed, Demand, Ended, Registration, Ring, Verdict, Verdicts
from awa_proto.store.memory import MemoryStore
from awa_proto.task import Task
from awa_proto.worker.config import QueueConfig, WorkerConfig
from awa_proto.worker.events import Event, JobEnded, OpDone, RunOp, StartJob
from awa_proto.worker.worker import WorkerMachine

T = TypeVar("T")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
DONE = Returned(None)
RING = Ring(1)


def op(name: str, act: Callable[[], T]) -> Op[T]:
    def plan() -> Plan[T]:
        yield from ()
        return act()

    return Op(name, plan)


class Counter(MemoryStore):
    """A store whose jobs are a number, and are claimed and ended at no cost."""

    def __init__(self, jobs: int) -> None:
        super().__init__(lambda: NOW, random.random)
        self.left = jobs
        self.ended = 0

    @override
    def register(self, worker: object) -> Op[Registration]:
        return op("register", lambda: Registration(1, RING, {}, NOW))

    @override
    def claim(self, instance: int, ring: Ring, demands: Sequence[Demand], *, advance: bool = False) -> Op[Claimed]:
        del advance

        def act() -> Claimed:
            first = self.left
            self.left = max(0, first - demands[0].wanted)
            ids = range(first, self.left, -1)
            return Claimed(
                [Attempt(0, i >> 8, i & 255, i, i, "q", 2, "k", "{}", 1, 25, NOW, NOW, None) for i in ids], 1, NOW
            )

        return op("claim", act)

    @override
    def finalize(self, ended: Sequence[Ended], flush: int) -> Op[Verdicts]:
        def act() -> Verdicts:
            self.ended += len(ended)
            return Verdicts([Verdict.ACCEPTED] * len(ended))

        return op("finalize", act)


def drain(jobs: int, slots: int) -> int:
    """Work all of them. How many inputs that took."""
    store = Counter(jobs)
    machine = WorkerMachine(
        store=store,
        tasks={"k": Task("k", print, lambda args: args, is_async=True)},
        config=WorkerConfig({"q": QueueConfig(slots)}),
        random=random.Random(1).random,
    )
    now, inputs, inbox = 0.0, 0, list[Event]()
    machine.start(now)
    while store.ended < jobs:
        while (output := machine.poll_output()) is not None:
            if type(output) is StartJob:
                inbox.append(JobEnded(output.attempt, DONE))
            elif type(output) is RunOp:
                inbox.append(OpDone(output.id, result_of(output.op)))
        now += 0.001
        inputs += 1
        if inbox:
            events, inbox = inbox, []
            machine.handle(events, now)
        else:
            machine.handle_timeout(now)
    return inputs


def result_of(asked: Op[Any]) -> Any:
    try:
        next(asked.start())
    except StopIteration as done:
        return done.value
    raise AssertionError


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("jobs", nargs="?", type=int, default=300_000)
    parser.add_argument("slots", nargs="?", type=int, default=50)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    if args.profile:
        cProfile.runctx("drain(args.jobs, args.slots)", globals(), {"args": args}, sort="tottime")
        return
    start = time.process_time()
    inputs = drain(args.jobs, args.slots)
    took = time.process_time() - start
    print(f"{args.jobs / took:,.0f} jobs/s of CPU time, {took / args.jobs * 1e6:.2f} us a job, {inputs:,} inputs")


if __name__ == "__main__":
    main()
