"""The world outside of a simulated one: it has the ids of callbacks, and uses them in time, late, twice, or ten times.

What it says goes through the calls of a client, and each answer into the books: what was accepted had to be, and so had what
was refused.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

from awa_proto.errors import CallbackNotFound, DatabaseError
from awa_proto.job import JobState
from awa_proto.operations import Operations
from awa_proto.plan import Op
from awa_proto.testing.faults import Fault
from awa_proto.testing.simulator import FOLLOW_UPS, HOOKED, TASKS, Simulation, play
from awa_proto.testing.tokens import USES, Use
from awa_proto.worker.events import Lane, RunOp

_MOST_TRIES = 10


class Outside:
    """Whoever is told the ids. uses: how often one was used, whether or not it was accepted."""

    def __init__(self, world: Simulation) -> None:
        self._world = world
        self.uses = 0
        self.operations: Operations[Any] = Operations(
            world.store, TASKS, "awa", world.time, HOOKED, random=world.random.random, registered=FOLLOW_UPS
        )

    def use(self, use: Use, id: str, *, more: float = 1.0) -> bool:
        """Use a callback now. Whether that was accepted. more: seconds of time, where it is given some."""
        self.uses += 1
        payload = {"number": self.uses}
        op, tokens = self._op(use, id, payload, more), self._world.accounts.tokens
        try:
            job = play(op)
        except CallbackNotFound:
            tokens.refused(id, use)
            return False
        tokens.accepted(id, use, job, op.events, payload, more)
        return True

    def _op(self, use: Use, id: str, payload: object, more: float) -> Op[Any]:
        match use:
            case "complete":
                return self.operations.complete_external(id, payload)
            case "fail":
                return self.operations.fail_external(id, "simulated")
            case "retry":
                return self.operations.retry_external(id)
            case "resume":
                return self.operations.resume_external(id, payload)
            case "heartbeat":
                return self.operations.heartbeat_callback(id, more)

    def retry(self, id: int) -> None:
        """A person lets a job run again now, if it waits."""
        job = play(self.operations.get_job(id))
        if job is not None and job.state is JobState.WAITING_EXTERNAL:
            play(self.operations.retry(id))
            self._world.accounts.tokens.retried(job)

    # at random

    def listens(self, random: Random, *, patience: float) -> None:
        """From now on whatever id it is given is used, at random, about within so many seconds; or not at all."""
        self._world.given = lambda id: self._means(id, random, patience)

    def _means(self, id: str, random: Random, patience: float) -> None:
        def soon() -> float:
            return self._world.now + patience * random.random() * random.choice((0.0, 0.01, 0.1, 1.0))

        use = random.choice(USES)
        match random.randrange(8):
            case 0:
                uses: list[Use] = []  # its time will be up
            case 1:
                uses = [use, use]
            case 2:
                uses = [random.choice(USES) for _ in range(10)]
            case 3:
                uses = ["heartbeat", use]
            case 4:  # somebody else is late
                uses, id = [use], random.choice(self._world.ids)
            case 5 | 6:
                uses = ["resume"]
            case _:
                uses = [use]
        for each in uses:
            self._world.at(soon(), partial(self._send, each, id, patience * random.random(), _MOST_TRIES))

    def _send(self, use: Use, id: str, more: float, tries: int) -> None:
        """What does not get through, or whose answer is lost, is sent again."""
        world = self._world
        fault = world.interfere(0, RunOp(0, self._op(use, id, None, more), Lane.MAINTENANCE))
        if fault is None:
            fault = world.faults.strike(use, world.random)
        if fault is Fault.NONE or fault is Fault.ANSWER_LOST or fault is Fault.DONE_LATER:
            self.use(use, id, more=more)
        is_answered = fault is Fault.NONE
        if not is_answered and tries > 1:
            again = 1.0 if isinstance(fault, DatabaseError) else 0.05
            world.at(world.now + again * world.random.random(), partial(self._send, use, id, more, tries - 1))

    def close(self) -> None:
        """At the end nothing is left that could be used."""
        for id in self._world.ids:
            self.use(self._world.random.choice(USES), id)
