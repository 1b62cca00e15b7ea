"""Who leads, and what it does: one worker at a time, its duties each by its own clock, whoever dies where."""

from __future__ import annotations

import itertools
from typing import Any

from awa_proto.errors import DatabaseError
from awa_proto.store import ExpiredPage, Forgotten, Promoted, Ring, StrandedPage
from awa_proto.store.upkeep import Leadership, Probe, Pruned, Rotation
from awa_proto.testing.process import Process
from awa_proto.testing.simulator import Simulation
from awa_proto.worker.config import QueueConfig, WorkerConfig
from awa_proto.worker.cron import LOOK_EVERY
from awa_proto.worker.duties import BATCH, PROBE_EVERY, ROTATE_EVERY
from awa_proto.worker.events import Emit, Lane, RunOp, Woken
from awa_proto.worker.leader import LEASE, RENEW_EVERY, SPREAD
from tests.core.test_machine import NOON, Bench, of

AWAY = "08006"
FOUND = [(name, StrandedPage([], None)) for name in ("find_stale", "find_overdue")]
MINE = Leadership(7, True, 1, LEASE)


class Watched(Bench):
    """A machine whose lease is answered by hand. leads: whether it does the upkeep, as the machine says."""

    follows = False

    def leading(self) -> Watched:
        """Registered, and the leader."""
        self.running()
        self.done("lead", MINE)
        return self

    @property
    def leads(self) -> bool:
        return self.machine.leads

    def quiet(self, seconds: float) -> None:
        """Time passes, what others do on the connection of the lease answered at once."""
        answers: dict[str, Any] = {"replan": None, "promote": Promoted(0), "survey": (Ring(1), {})}
        end = self.now + seconds
        while self.now < end:
            self.wait(min(0.25, end - self.now))
            while asked := answers.keys() & self.ops.keys():
                for name in sorted(asked):
                    self.done(name, answers[name])


def process(world: Simulation, **settings: Any) -> Process:
    made = Process(world, WorkerConfig({"q": QueueConfig(2)}, **settings))
    made.start()
    return made


def leaders(*processes: Process) -> list[Process]:
    return [each for each in processes if each.is_alive and each.machine.leads]


def test_of_many_workers_one_leads() -> None:
    world = Simulation(3)
    workers = [process(world) for _ in range(5)]
    world.run(10.0)
    assert len(leaders(*workers)) == 1
    (first,) = leaders(*workers)
    world.run(600.0)
    assert leaders(*workers) == [first]


def test_when_the_leader_is_killed_another_leads_within_twenty_seconds() -> None:
    for seed in range(30):
        world = Simulation(seed)
        workers = [process(world) for _ in range(4)]
        world.run(10.0 + 20 * world.random.random())
        (first,) = leaders(*workers)
        first.die()
        at = world.now
        world.run_until(lambda ws=workers: bool(leaders(*ws)), at_most=20.0, step=0.05)  # type: ignore[misc]
        assert world.now - at <= LEASE + SPREAD + 1.0
        world.run(world.now + 5.0)
        assert len(leaders(*workers)) == 1


def test_a_leader_that_stops_gives_the_lease_up() -> None:
    world = Simulation(1)
    first = process(world)
    world.run(5.0)
    assert leaders(first) == [first]
    first.stop(1.0)
    world.run(world.now + 5.0)
    assert not first.is_alive
    second = process(world)
    world.run(world.now + 1.0)
    assert leaders(second) == [second]


def test_every_duty_is_done_by_the_leader_and_by_nobody_else() -> None:
    world = Simulation(4)
    workers = [process(world) for _ in range(3)]
    world.run(200.0)
    (leader,) = leaders(*workers)
    done = {(line[1], line[4]) for line in world.trace if line[2] == "run" and line[5] == "upkeep"}
    assert {name for number, name in done if number == leader.number} >= {"sweep", "probe", "rotate", "prune_dlq"}
    assert {number for number, _ in done} == {leader.number}


def test_a_duty_that_fails_waits_longer_each_time_and_does_not_hold_up_the_others() -> None:
    world = Simulation(5)
    world.interfere = lambda _number, run: DatabaseError("no", "XX000") if run.op.name == "probe" else None
    worker = process(world)
    world.run(300.0)
    probes = world.statements("probe")
    gaps = [later - earlier for earlier, later in itertools.pairwise(probes)]
    assert gaps[0] < 2.5
    assert gaps[-1] > 0.7 * 2 * PROBE_EVERY
    assert max(gaps) < 2 * PROBE_EVERY + 1
    assert all(later >= 0.7 * earlier for earlier, later in itertools.pairwise(gaps))
    assert len(world.statements("rotate")) >= 300 // ROTATE_EVERY - 1
    assert worker.machine.health(world.now, world.now).upkeep.failing == ("probe",)
    assert 1 <= world.told["upkeep failed: probe"] <= 300 / 10


def test_cron_that_was_refused_for_long_goes_on_within_seconds() -> None:
    """Not within a minute: the wait after a failure is not much longer than between two looks."""
    world = Simulation(5)
    refused = [True]
    world.interfere = lambda _number, run: (
        DatabaseError("no", "XX000") if refused[0] and run.op.name == "list_cron" else None
    )
    process(world)
    world.run(300.0)
    refused[0] = False
    world.run(300.0 + 2 * LOOK_EVERY + 1)
    assert any(at > 300.0 for at in world.statements("list_cron"))


def test_duties_that_failed_while_the_server_was_away_are_tried_when_one_of_them_succeeds() -> None:
    world = Simulation(5)
    worker = process(world)
    away = [True]
    world.interfere = lambda _number, run: DatabaseError("gone", AWAY) if away[0] and run.lane is Lane.UPKEEP else None
    world.run(300.0)
    away[0] = False
    failing = set(worker.machine.health(world.now, world.now).upkeep.failing)
    world.run(370.0)
    done = [(line[0], line[4]) for line in world.trace if line[0] > 300.0 and line[2] == "run" and line[5] == "upkeep"]
    began = done[0][0]
    assert len(failing) > 8
    assert len({name for at, name in done if at < began + 2.0}) == len(failing)


def test_a_leader_stands_down_when_its_lease_ends_by_its_own_clock() -> None:
    bench = Watched().leading()
    bench.quiet(RENEW_EVERY)
    assert "lead" in bench.ops
    seen: list[bool] = []
    for seconds in (LEASE - RENEW_EVERY - 0.5, 1.0):
        bench.quiet(seconds)
        seen.append(bench.leads)
    assert seen == [True, False]
    assert [emit.key for emit in of(Emit, bench.said) if emit.key == "lease expired"]


def test_an_answer_that_comes_after_the_lease_it_gives_is_over_makes_no_leader() -> None:
    bench = Watched()
    bench.running()
    bench.quiet(LEASE + 1)
    bench.done("lead", MINE)
    assert not bench.leads


def test_failures_to_renew_do_not_end_a_lease_that_holds() -> None:
    bench = Watched().leading()
    bench.quiet(RENEW_EVERY)
    for _ in range(3):
        bench.failed("lead", AWAY)
        assert bench.leads
        bench.quiet(2.5)
        assert "lead" in bench.ops
    bench.done("lead", MINE)
    bench.quiet(4.0)
    assert bench.leads


def test_a_follower_asks_again_within_a_lease_though_the_clock_of_the_database_was_set_back() -> None:
    """Then the lease of the leader seems to last for hours, and it may die in the meantime."""
    bench = Watched()
    bench.running()
    bench.done("lead", Leadership(8, False, 1, 3600.0))
    bench.quiet(LEASE - 1)
    assert "lead" not in bench.ops
    bench.quiet(1 + SPREAD + 0.5)
    assert "lead" in bench.ops


def test_a_lease_that_somebody_else_took_ends_the_upkeep_at_once() -> None:
    bench = Watched().leading()
    bench.quiet(RENEW_EVERY)
    bench.done("lead", Leadership(8, False, 2, 10.0))
    assert not bench.leads
    before = len(of(RunOp, bench.said))
    bench.quiet(9.0)
    assert not [run for run in of(RunOp, bench.said)[before:] if run.lane == "upkeep"]


def test_what_a_duty_answers_after_the_leadership_is_over_changes_nothing() -> None:
    bench = Watched().leading()
    bench.quiet(1.5)
    asked = [run for run in of(RunOp, bench.said) if run.lane == "upkeep"][-1]
    bench.quiet(RENEW_EVERY)
    bench.done("lead", Leadership(8, False, 2, 10.0))
    before = len(of(RunOp, bench.said))
    bench.done(asked.op.name, DUTIES[asked.op.name])
    bench.quiet(9.0)
    assert not [run for run in of(RunOp, bench.said)[before:] if run.lane == "upkeep" and run.op.name != "replan"]


DUTIES: dict[str, Any] = {
    "rebase": False,
    "list_cron": (NOON, []),
    "sweep": 0,
    "probe": Probe(),
    "rotate": Rotation(),
    "prune": Pruned(),
    "prune_dlq": 0,
    "prune_completed": 0,
    "prune_failed": 0,
    "prune_attempts": 0,
    "forget_keys": Forgotten(0, None),
    "prune_kinds": 0,
    "find_expired": ExpiredPage(()),
    **dict(FOUND),
}


def is_asked(bench: Watched, duty: str) -> bool:
    """Within three seconds; one runs at a time on their connection, so the others are answered."""
    for _ in range(30):
        if duty in bench.ops:
            return True
        for name in DUTIES.keys() & bench.ops.keys():
            bench.done(name, DUTIES[name])
        bench.quiet(0.1)
    return False


def test_a_duty_that_did_all_it_may_goes_on_at_once() -> None:
    for duty, more, nothing_more in (
        ("prune_dlq", BATCH, BATCH - 1),
        ("prune_failed", BATCH, 0),
        ("prune", Pruned(3, more=True), Pruned(4)),
        ("forget_keys", Forgotten(BATCH, b"k"), Forgotten(3, b"m")),
    ):
        bench = Watched().leading()
        for _ in range(2):
            assert is_asked(bench, duty)
            bench.done(duty, more)
        assert is_asked(bench, duty)
        bench.done(duty, nothing_more)
        assert not is_asked(bench, duty)


def test_a_duty_runs_at_the_moment_it_hears_of_also_when_it_hears_that_while_it_runs() -> None:
    for seconds in (0.5, 3.0):
        bench = Watched().leading()
        assert is_asked(bench, "find_expired")
        bench.hear(Woken(f"@{seconds}"))
        bench.hear(Woken("@4.9"))
        bench.done("find_expired", ExpiredPage((), 4.0))
        at = bench.now + seconds
        bench.quiet(seconds - 0.3)
        assert "find_expired" not in bench.ops
        assert is_asked(bench, "find_expired")
        assert at <= bench.now <= at + 0.5
        bench.done("find_expired", ExpiredPage(()))
        bench.quiet(1.0)
        bench.hear(Woken("@0.1"))
        assert is_asked(bench, "find_expired"), "nor does it wait for the time that it would look anyhow"


def test_a_worker_that_does_not_lead_or_hears_nonsense_looks_for_no_callbacks() -> None:
    bench = Watched()
    bench.running()
    bench.hear(Woken("@0.0"))
    assert not is_asked(bench, "find_expired")
    bench = Watched().leading()
    assert is_asked(bench, "find_expired")
    bench.done("find_expired", ExpiredPage(()))
    for nonsense in ("@", "@x", "@nan", "@inf", "@-1", "@1:2"):
        bench.hear(Woken(nonsense))
    bench.quiet(2.0)
    assert "find_expired" not in bench.ops
