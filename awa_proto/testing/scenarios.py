"""A whole life drawn from a seed: workers and producers among faults, then calm, and at the end every job accounted for."""

from __future__ import annotations

from random import Random

from awa_proto.testing.accounts import check
from awa_proto.testing.faults import Faults, is_down
from awa_proto.testing.process import Process
from awa_proto.testing.simulator import Job, Simulation, play
from awa_proto.worker.config import QueueConfig, WorkerConfig
from awa_proto.worker.events import DrainAsked

TROUBLE = 2.5
"""Seconds of the world with faults."""
LONGEST = 4.0
"""Seconds after which nothing that began in trouble is under way any more: a slow Op, one done later, a restart."""
IDLE = 15.0
"""Seconds after the last job in which statements are counted."""
_ENDS: tuple[tuple[tuple[str, ...], int, str | None], ...] = (
    (("ok",), 25, "completed"),
    (("completed",), 25, "completed"),
    (("ok",), 1, "completed"),
    (("retry", "ok"), 25, "completed"),
    (("snooze", "snooze", "ok"), 2, "completed"),
    (("error", "ok"), 3, None),
    (("error",), 2, "failed"),
    (("retry",), 2, "failed"),
    (("terminal",), 25, "failed"),
    (("wrong",), 25, "failed"),
    (("cancel",), 25, "cancelled"),
)


def live(seed: int) -> Simulation:
    """Play one life to its end. Raises Broken."""
    random = Random(seed)
    world = Simulation(seed, faults=Faults.draw(random))
    life = _Life(world, random)
    life.begin()
    world.run(TROUBLE)
    life.calm_down()
    world.run(world.now + LONGEST)
    world.run_until(life.is_settled, at_most=400.0, step=1.0)
    life.idle()
    life.end()
    return world


class _Life:
    def __init__(self, world: Simulation, random: Random) -> None:
        self._world = world
        self._random = random
        self._workers: list[Process] = []
        self._is_calm = False
        names = ["q", "r", "s"][: random.choice((1, 1, 2, 3))]
        self._queues = {
            name: QueueConfig(
                max_workers=random.choice((1, 2, 5, 20)),
                rate_limit=random.choice((None, None, None, (20.0, 3))),
                deadline=random.choice((None, None, None, 30.0)),
            )
            for name in names
        }
        self._poll = random.choice((0.5, 2.0, 2.0, 2.0))

    def begin(self) -> None:
        """Workers start, producers produce, people interfere, all at random moments."""
        world, random = self._world, self._random
        for _ in range(random.choice((1, 1, 2, 3))):
            world.at(random.random() * 0.5, self._start_worker)
        for _ in range(random.randrange(2, 7)):
            world.at(random.random() * TROUBLE, self._produce)
        if random.random() < 0.3:
            queue = random.choice(list(self._queues))
            world.at(random.random() * 2, lambda: play(world.store.pause_queue(queue, None)))
            world.at(2 + random.random() * 2, lambda: play(world.store.resume_queue(queue)))
        if random.random() < 0.2:
            queue = random.choice(list(self._queues))
            world.at(random.random() * 2, lambda: play(world.store.set_stripes(queue, random.randrange(2, 5))))
        if random.random() < 0.2:
            world.at(random.random() * TROUBLE, world.store.turn_ring)
        for _ in range(random.choice((0, 0, 1, 3))):
            world.at(random.random() * TROUBLE, self._cancel_one)
        for _ in range(random.choice((0, 1, 2))):
            world.at(0.5 + random.random() * (TROUBLE - 1), self._disturb_worker)
        if random.random() < 0.15:
            start = random.random() * TROUBLE / 2
            end = start + random.random() * TROUBLE / 2
            world.interfere = lambda _number, _run: is_down() if start <= world.now < end else None

    def calm_down(self) -> None:
        """No more faults."""
        world = self._world
        self._is_calm = True
        world.faults = Faults(latency=world.faults.latency)
        world.interfere = lambda _number, _run: None
        if not any(worker.is_alive and not worker.stop_seen for worker in self._workers):
            self._start_worker()

    def is_settled(self) -> bool:
        """Every job has ended, whatever happened to the workers that had it."""
        if any(worker.handlers or worker.machine.unwritten for worker in self._workers if worker.is_alive):
            return False
        return all(state.is_terminal for state in self._world.states.values())

    def idle(self) -> None:
        """A drained worker says so, and sends no more than a statement a second; one for all does the upkeep besides."""
        world = self._world
        workers = [worker for worker in self._workers if worker.is_alive and not worker.stop_seen]
        for worker in workers:
            worker.put(DrainAsked("?"))
        world.run(world.now + 3.0)
        for worker in workers:
            check(worker.drained == ["?"], "a worker with nothing to do does not say so")
        if self._random.random() < 0.75:
            return
        before = len(world.trace)
        world.run(world.now + IDLE)
        since = world.trace[before:]
        upkeep = world.upkeep(since)
        sent = sum(line[2] == "run" for line in since) - upkeep
        allowed = (IDLE + 6) * len(workers)  # a few more when stripes are learnt of, or a half-open connection is found
        check(sent <= allowed or self._poll < 1, f"{sent} statements in {IDLE} idle seconds, {allowed} allowed")
        # one that begins to lead does every duty once, soon
        check(upkeep <= 2 * IDLE + 10, f"{upkeep} statements of upkeep in {IDLE} idle seconds")

    def end(self) -> None:
        """Everybody stops, and the books are closed."""
        world = self._world
        for worker in self._workers:
            if worker.is_alive and not worker.stop_seen:
                worker.stop(1.0)
        world.run(world.now + 30.0)
        for worker in self._workers:
            check(not worker.is_alive, "a worker did not stop")
        world.accounts.close(world.rows, {number: job.expect for number, job in world.jobs.items()})
        world.accounts.close_follow_ups(world.rows, world.followed)

    # what happens

    def _start_worker(self) -> None:
        number = len(self._workers) + 1
        config = WorkerConfig(self._queues, poll_interval=self._poll, max_unwritten=self._random.choice((1, 2000)))
        self._workers.append(Process(self._world, config, number).start())

    def _disturb_worker(self) -> None:
        random = self._random
        alive = [worker for worker in self._workers if worker.is_alive and not worker.stop_seen]
        if not alive:
            return
        worker = random.choice(alive)
        match random.choice(("stop", "stop", "stop twice", "die", "deaf")):
            case "stop":
                worker.stop(random.choice((0.0, 0.1, 2.0)))
            case "stop twice":
                worker.stop(5.0)
                self._world.at(self._world.now + random.random(), lambda: worker.stop(0.0))
            case "die":
                worker.die()
            case _:
                worker.go_deaf(is_noticed=random.random() < 0.5)
                return
        self._world.at(self._world.now + random.random(), self._start_worker)

    def _cancel_one(self) -> None:
        if self._world.jobs:
            self._world.cancel(self._random.choice(list(self._world.jobs)))

    def _produce(self) -> None:
        jobs = [self._job() for _ in range(self._random.choice((1, 1, 3, 10, 20)))]
        for _ in range(1 + (self._random.random() < 0.1)):  # a producer whose answer was lost may do it twice
            self._world.insert(*jobs)

    def _job(self) -> Job:
        random = self._random
        ends, attempts, expect = random.choice(_ENDS) if random.random() < 0.5 else _ENDS[0]
        queue = random.choice(list(self._queues))
        job = Job(
            takes=random.choice((0.0, 0.0, 0.005, 0.05, 0.5)),
            ends=ends, queue=queue, priority=random.randrange(1, 5), max_attempts=attempts, expect=expect,
            delay=random.choice((0.0, 0.0, 0.0, 1.0)), ordering=random.choice((None, 7)),
        )  # fmt: skip
        match random.randrange(60):
            case 0:
                return Job(kind="nobody knows", queue=queue, expect="failed")
            case 1:
                return Job(is_unreadable=True, queue=queue, expect="failed")
            case 2:
                return Job(is_poison=True, queue=queue, expect="failed")
            case 3:
                return Job(takes=3.0, deadline=0.5, max_attempts=1, queue=queue, expect="failed")
            case 4:
                return Job(takes=8.0, is_stubborn=True, queue=queue, expect=None)
            case _:
                return job
