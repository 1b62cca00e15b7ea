"""A whole life drawn from a seed: workers and producers among faults, then calm, and at the end every job accounted for.

Most lives are short and full, a few are slow: in their minutes leases end, silent workers are taken as dead, hosts sleep and
clocks are set. In some the leader goes when all is calm, and its duties must go on. In a fifth handlers register
callbacks, which somebody outside uses.
"""

from __future__ import annotations

from random import Random

from awa_proto.retention import DAY, Retention
from awa_proto.testing.claims import check
from awa_proto.testing.faults import Faults, is_down
from awa_proto.testing.outside import Outside
from awa_proto.testing.process import Process
from awa_proto.testing.simulator import Job, Simulation, play
from awa_proto.testing.succession import succeed
from awa_proto.testing.ticks import Ticks
from awa_proto.worker.config import Liveness, QueueConfig, WorkerConfig
from awa_proto.worker.events import DrainAsked, Lane

QUICK = Liveness(heartbeat_interval=1.0, stale_after=4.0, rescue_interval=2.0, deadline_interval=1.0)
"""Signs of life ten times as often as usual, so that a life in which some are missed is over soon."""
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
_WAITS: tuple[tuple[str, ...], ...] = (
    ("park", "ok"),
    ("park", "ok"),
    ("park", "park", "error", "ok"),
    ("wait", "ok"),
    ("wait", "ok"),
    ("wait", "wait", "ok"),
    ("error", "wait", "terminal"),
    ("wait, park", "ok"),
    ("replace", "snooze", "ok"),
    ("leave, park", "ok"),
    ("leave, wait", "ok"),
    ("leave, register", "ok"),
    ("park for nothing",),
)
"""How jobs end that have callbacks."""


def live(seed: int) -> Simulation:
    """Play one life to its end. Raises Broken."""
    random = Random(seed)
    world = Simulation(seed, faults=Faults.draw(random))
    life = _Life(world, random)
    life.begin()
    world.run(life.trouble)
    life.calm_down()
    world.run_until(life.is_settled, at_most=2000.0, step=1.0)  # one slot may have twenty jobs of twenty seconds
    life.go_on()
    life.end()
    return world


class _Life:
    """trouble: seconds of the world with faults."""

    def __init__(self, world: Simulation, random: Random) -> None:
        self._world = world
        self._random = random
        self._workers: list[Process] = []
        self._is_slow = random.random() < 0.04
        self.trouble = 50.0 if self._is_slow else 0.8
        longest = world.faults.latency * (45 if world.faults.slow else 1.5)
        self._calm_at = self.trouble + 1.0 + 4 * longest  # then nothing that began in trouble is under way
        self._ticks = Ticks(world) if self._is_slow or random.random() < 0.1 else None
        names = ["q", "r", "s"][: random.choice((1, 1, 1, 2, 3))]
        self._queues = {
            name: QueueConfig(
                max_workers=random.choice((1, 2, 5, 20)),
                rate_limit=random.choice((None, None, None, (20.0, 3))),
                deadline=random.choice((None, None, None, 30.0)),
                dead_letters=random.choice((None, None, True)),
            )
            for name in names
        }
        kept = random.choice((DAY, DAY, 8.0))
        self._retention = Retention(completed=kept, failed=kept + 60.0, dead_letters=kept + 120.0)
        self._poll = random.choice((0.5, 2.0, 2.0, 2.0, 2.0))
        self._liveness = Liveness() if self._is_slow else random.choice((Liveness(), QUICK, QUICK))
        self._outside = Outside(world) if random.random() < 0.2 else None

    def begin(self) -> None:
        """Workers start, producers produce, people interfere, all at random moments."""
        world, random, trouble = self._world, self._random, self.trouble
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            world.at(random.random() * 0.3, self._start_worker)
        for _ in range(random.randrange(1, 4)):
            world.at(random.random() * trouble, self._produce)
        if random.random() < 0.3:
            queue = random.choice(list(self._queues))
            world.at(random.random() * trouble, lambda: play(world.store.pause_queue(queue, None)))
            world.at((1 + random.random()) * trouble, lambda: play(world.store.resume_queue(queue)))
            self._calm_at = max(self._calm_at, 2 * trouble)
        if random.random() < 0.2:
            queue = random.choice(list(self._queues))
            world.at(random.random() * trouble, lambda: play(world.store.set_stripes(queue, random.randrange(2, 5))))
        if random.random() < 0.2:
            world.at(random.random() * trouble, world.store.turn_ring)
        for _ in range(random.choice((0, 0, 1, 3))):
            world.at(random.random() * trouble, self._cancel_one)
        for _ in range(random.choice((2, 4, 6)) if self._is_slow else random.choice((0, 1, 2))):
            world.at(0.2 + random.random() * (trouble - 0.2), self._disturb_worker)
        for _ in range(random.choice((0, 1, 2)) if self._is_slow else random.random() < 0.1):
            world.at(random.random() * trouble, self._set_clock)
        self._let_the_outside_listen()
        if random.random() < 0.15:
            lane, seconds = random.choice((Lane.FINALIZE, *Lane)), random.choice((0.2, 1.0))
            world.at(random.random() * trouble / 2, lambda: world.crawling.update({lane: seconds}))
            if lane is Lane.FINALIZE:  # more results than may wait
                world.at(trouble / 2, lambda: world.insert(*[Job(queue=random.choice(list(self._queues)))] * 40))
            self._calm_at += 4 * seconds
        if random.random() < 0.15:
            start = random.random() * trouble / 2
            end = start + random.random() * trouble / 2
            world.interfere = lambda _number, _run: is_down() if start <= world.now < end else None

    def _let_the_outside_listen(self) -> None:
        if self._outside is not None:
            self._outside.listens(self._random, patience=20.0 if self._is_slow else 1.0)
            for _ in range(self._random.choice((0, 1, 3))):
                self._world.at((0.2 + self._random.random()) * self.trouble, self._change_one_with_a_callback)

    def calm_down(self) -> None:
        """No more faults."""
        world = self._world
        world.faults = Faults(latency=world.faults.latency)
        world.interfere = lambda _number, _run: None
        world.crawling.clear()
        if not self._working:
            self._start_worker()

    def is_settled(self) -> bool:
        """Every job has ended, whatever happened to the workers that had it."""
        for worker in self._workers:
            if worker.is_alive and (worker.is_stuck or worker.handlers or worker.machine.unwritten):
                return False
        return self._world.now >= self._calm_at and all(state.is_terminal for state in self._world.states.values())

    def go_on(self) -> None:
        """What holds when nothing is in the way any more."""
        world, dice = self._world, self._random.random()
        if dice < (0.5 if self._is_slow else 0.05):
            while len(self._working) < 2:
                self._start_worker()
            self._ticks = self._ticks or Ticks(world)
            succeed(world, self._working, list(self._queues), self._ticks)
            if not self._working:
                self._start_worker()
            # of a queue with one slot: 45 s until what a dead worker held is rescued, then three jobs of 25 s, one by one
            world.run_until(self.is_settled, at_most=120.0, step=1.0)
        self._answer_drains()
        if dice > 0.95:
            self._idle()

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
        if self._ticks is not None:
            self._ticks.check()
        if self._outside is not None:
            self._close_callbacks(self._outside)

    def _close_callbacks(self, outside: Outside) -> None:
        """No callback can be used any more, and nobody asked for them more often than there was reason to."""
        world = self._world
        looks = len(world.statements("find_expired"))
        allowed = 10 * len(self._workers) + world.now + 2 * (len(world.accounts.tokens.by_id) + outside.uses)
        check(looks <= allowed, f"{looks} looks for callbacks that are late, {allowed} allowed")
        for worker in self._workers:
            worker.check_looks()
        outside.close()

    @property
    def _working(self) -> list[Process]:
        return [worker for worker in self._workers if worker.is_alive and not worker.stop_seen]

    def _answer_drains(self) -> None:
        """A drained worker says so."""
        workers = self._working
        for worker in workers:
            worker.put(DrainAsked("?"))
        longest = (
            12.0 if self._is_slow else 3.0
        )  # claims may still be held back after a database that was away for long
        self._world.run_until(lambda: all(worker.drained == ["?"] for worker in workers), at_most=longest)

    def _idle(self) -> None:
        """It sends no more than a statement a second; one for all does the upkeep besides."""
        world, workers = self._world, self._working
        before = len(world.trace)
        world.run(world.now + IDLE)
        since = world.trace[before:]
        upkeep = world.upkeep(since)
        sent = sum(line[2] == "run" for line in since) - upkeep
        allowed = (IDLE + 6) * len(workers)  # a few more when stripes are learnt of, or a half-open connection is found
        check(sent <= allowed or self._poll < 1, f"{sent} statements in {IDLE} idle seconds, {allowed} allowed")
        # one that begins to lead does every duty once, soon; a moment of cron jobs is found, and enqueued
        liveness = self._liveness
        allowed = 10 + IDLE * (1.5 + (self._ticks is not None))
        allowed += 1.2 * IDLE * (1 / liveness.rescue_interval + 1 / liveness.deadline_interval)
        check(upkeep <= allowed, f"{upkeep} statements of upkeep in {IDLE} idle seconds, {allowed} allowed")

    # what happens

    def _start_worker(self) -> None:
        config = WorkerConfig(
            self._queues, poll_interval=self._poll, max_unwritten=self._random.choice((1, 2000)), retention=self._retention,
            liveness=self._liveness,
        )  # fmt: skip
        self._workers.append(Process(self._world, config, len(self._workers) + 1).start())

    def _disturb_worker(self) -> None:
        random = self._random
        if not self._working:
            return
        worker = random.choice(self._working)
        seconds = random.random() * (50.0 if self._is_slow else 1.0)
        match random.choice(("stop", "stop", "stop twice", "die", "deaf", "stick", "freeze", "sleep")):
            case "stop":
                worker.stop(random.choice((0.0, 0.1, 2.0)))
            case "stop twice":
                worker.stop(5.0)
                self._world.at(self._world.now + random.random(), lambda: worker.stop(0.0))
            case "die":
                worker.die()
            case "deaf":
                worker.go_deaf(is_noticed=random.random() < 0.5)
                return
            case "stick":
                worker.stick(seconds)
                return
            case which:
                worker.freeze(seconds, sleeps=which == "sleep")
                return
        self._world.at(self._world.now + random.random(), self._start_worker)

    def _set_clock(self) -> None:
        """The clock of the database is set, or another server with another clock takes over."""
        self._world.skew += self._random.choice((-0.2, 0.2, -3.0, 3.0, -40.0, 40.0))

    def _cancel_one(self) -> None:
        if self._world.jobs:
            self._world.cancel(self._random.choice(list(self._world.jobs)))

    def _change_one_with_a_callback(self) -> None:
        world, random = self._world, self._random
        if world.ids and self._outside is not None:
            job = world.accounts.tokens.by_id[random.choice(world.ids)].attempt.id
            if random.random() < 0.5:
                self._outside.retry(job)
            else:
                world.cancel(job)

    def _produce(self) -> None:
        jobs = [self._job() for _ in range(self._random.choice((1, 1, 2, 5, 15)))]
        for _ in range(1 + (self._random.random() < 0.1)):  # a producer whose answer was lost may do it twice
            self._world.insert(*jobs)

    def _job(self) -> Job:
        random = self._random
        if self._outside is not None and random.random() < 0.5:
            return Job(
                takes=random.choice((0.0, 0.005, 0.2)), ends=random.choice(_WAITS), queue=random.choice(list(self._queues)),
                timeout=random.choice((5.0, 20.0) if self._is_slow else (0.1, 0.5, 2.0)), expect=None,
                max_attempts=random.choice((1, 3, 25)), deadline=random.choice((None, None, 1.0)),
            )  # fmt: skip
        ends, attempts, expect = random.choice(_ENDS) if random.random() < 0.5 else _ENDS[0]
        queue = random.choice(list(self._queues))
        job = Job(
            takes=random.choice((0.0, 0.05, 5.0, 20.0) if self._is_slow else (0.0, 0.0, 0.005, 0.05, 0.5)),
            ends=ends, queue=queue, priority=random.randrange(1, 5), max_attempts=attempts,
            expect=None if self._is_slow and attempts < 25 else expect,  # a deadline may pass while all stands still
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
