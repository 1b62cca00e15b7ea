"""Cron in a worker, in virtual time: every moment once, whatever dies, and what policies say of those nobody was there for."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import pytest

from awa_proto.cron.job import CronTemplate, MissedFirePolicy
from awa_proto.cron.registration import RegistersPeriodic
from awa_proto.cron.schedule import Schedule
from awa_proto.errors import ConfigurationError, DatabaseError, ValidationError
from awa_proto.registry import Registry
from awa_proto.store import NewJob
from awa_proto.testing.faults import Faults
from awa_proto.testing.process import Process
from awa_proto.testing.simulator import EPOCH, Simulation, play
from awa_proto.worker.config import QueueConfig, WorkerConfig
from awa_proto.worker.events import RunOp

MINUTE = 60.0


def process(world: Simulation, number: int = 1) -> Process:
    made = Process(world, WorkerConfig({"q": QueueConfig(2)}), number)
    made.start()
    return made


def put(world: Simulation, name: str, cron: str, policy: MissedFirePolicy = "coalesce", zone: str = "UTC") -> None:
    job = NewJob("k", "nobody", "{}")
    play(world.store.put_cron([CronTemplate(name, Schedule.of(cron, zone), policy, job, None)], declared=True))


def fired(world: Simulation, name: str) -> list[float]:
    """When its jobs were due, in seconds of the simulation."""
    mine = [row for row in world.store.rows if row.metadata.get("cron_name") == name]
    return [(row.run_at - EPOCH).total_seconds() for row in mine]


def created(world: Simulation, name: str) -> list[float]:
    mine = [row for row in world.store.rows if row.metadata.get("cron_name") == name]
    return [(row.created_at - EPOCH).total_seconds() for row in mine]


def is_down(world: Simulation, first: float, last: float) -> None:
    """The database is away for a while."""

    def interfere(_number: int, _run: RunOp) -> DatabaseError | None:
        return DatabaseError("away", "08006") if first <= world.now < last else None

    world.interfere = interfere


def test_each_moment_is_enqueued_once_and_when_it_comes() -> None:
    world = Simulation(1)
    put(world, "minutes", "* * * * *")
    put(world, "seconds", "*/10 * * * * *")
    for number in range(3):
        process(world, number)
    world.run(10 * MINUTE + 5)
    assert fired(world, "minutes") == [MINUTE * n for n in range(11)]
    assert fired(world, "seconds") == [10.0 * n for n in range(61)]
    for due, made in zip(fired(world, "seconds")[1:], created(world, "seconds")[1:], strict=True):
        assert due <= made < due + 0.1


def test_leaders_that_die_again_and_again_fire_nothing_twice_and_with_catch_up_nothing_never() -> None:
    for seed in range(15):
        world = Simulation(seed, faults=Faults(lost=0.05, later=0.05))
        put(world, "all", "* * * * *", "catch_up")
        put(world, "newest", "* * * * *")
        workers = [process(world, number) for number in range(3)]
        for _ in range(12):
            world.run(world.now + 100 * world.random.random())
            for worker in workers:
                if worker.is_alive and worker.machine.leads:
                    worker.die()
            workers.append(process(world, len(workers)))
        world.run(world.now + 2 * MINUTE)
        last = int(world.now // MINUTE)
        assert fired(world, "all") == [MINUTE * n for n in range(last + 1)]
        times = fired(world, "newest")
        assert times == sorted(set(times))
        assert times[-1] == MINUTE * last


@pytest.mark.parametrize(("policy", "expected"), [("coalesce", [0, 1, 2, 9, 10]), ("catch_up", list(range(11)))])
def test_a_database_that_is_down_across_ticks_gives_what_the_policy_says(
    policy: MissedFirePolicy, expected: list[int]
) -> None:
    world = Simulation(2)
    put(world, "c", "* * * * *", policy)
    process(world)
    is_down(world, 2.5 * MINUTE, 9.5 * MINUTE)
    world.run(10.5 * MINUTE)
    assert fired(world, "c") == [MINUTE * n for n in expected]


def test_thousands_of_missed_moments_come_one_after_the_other_at_once() -> None:
    world = Simulation(3)
    put(world, "c", "* * * * * *", "catch_up")
    first = process(world)
    world.run(10.5)
    first.die()
    world.run(3610.5)
    process(world, 2)
    world.run(world.now + 5.0)
    last = int(world.now)
    assert fired(world, "c") == [float(n) for n in range(last + 1)]


@pytest.mark.parametrize("sqlstate", ["22P05", "55P03", "57014"])
def test_fires_that_cannot_be_enqueued_are_tried_less_and_less_often_and_hold_up_no_other(sqlstate: str) -> None:
    world = Simulation(9)
    put(world, "stuck", "* * * * *", "catch_up")
    first = process(world)
    world.run(MINUTE + 1.0)
    first.die()
    world.run(30 * MINUTE)
    second = process(world, 2)
    pass_fires = second.store.pass_fires
    tried: list[float] = []

    def refuse(fires: Any) -> Any:
        if any(each.name == "stuck" for each in fires):
            tried.append(world.now)
            raise DatabaseError("it cannot be written", sqlstate)
        return (yield from pass_fires(fires))

    second.store.pass_fires = refuse  # type: ignore[method-assign]
    put(world, "good", "* * * * *")
    world.run(world.now + 10 * MINUTE)
    assert len(fired(world, "good")) >= 10
    gaps = [later - earlier for earlier, later in itertools.pairwise(tried)]
    assert 5 <= len(tried) <= 30
    assert max(gaps) > 30.0


def test_a_cron_job_the_leader_cannot_read_is_warned_about_and_holds_up_no_other() -> None:
    world = Simulation(4)
    job = NewJob("k", "nobody", "{}")
    strange = [
        CronTemplate(name, Schedule("* * * * *", zone), "coalesce", job, None) for name, zone in (("a", "Mars/Base"),)
    ]
    strange.append(CronTemplate("b", Schedule("nonsense"), "coalesce", job, None))
    play(world.store.put_cron(strange, declared=True))
    put(world, "c", "* * * * *")
    process(world)
    world.run(5 * MINUTE + 1)
    assert fired(world, "c") == [MINUTE * n for n in range(6)]
    assert {key: count for key, count in world.told.items() if "cron job" in key} == {
        "cron job unread: a": 1, "cron job unread: b": 1,
    }  # fmt: skip


class Code(RegistersPeriodic):
    """Where code says them."""

    def __init__(self) -> None:
        self.registry = Registry()


def test_a_worker_declares_what_the_code_says_and_what_it_comes_to_say() -> None:
    world = Simulation(6)
    code = Code()
    code.periodic("first", "0 3 * * *", {"kind": "k", "n": 1}, timezone="Europe/Berlin", queue="nobody")
    worker = Process(world, WorkerConfig({"q": QueueConfig(2)}), periodic=code.registry.periodic)
    worker.start()
    world.run(1.0)
    assert [job.name for job in play(world.store.list_cron())[1]] == ["first"]
    code.periodic("second", "* * * * *", {"kind": "k"}, missed_fire_policy="catch_up", queue="nobody")
    world.run(3 * MINUTE)
    first, second = play(world.store.list_cron())[1]
    assert (first.timezone, first.args, first.missed_fire_policy) == (
        "Europe/Berlin",
        {"kind": "k", "n": 1},
        "coalesce",
    )
    assert (second.name, second.missed_fire_policy) == ("second", "catch_up")
    assert len(world.statements("put_cron")) == 2


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("cron", {"cron": "* *"}),
        ("timezone", {"timezone": "Nowhere"}),
        ("missed_fire_policy", {"missed_fire_policy": "never"}),
        ("name", {"name": ""}),
        ("priority", {"priority": 5}),
        ("queue", {"queue": "x" * 201}),
        ("unique_opts.by_period", {"unique_opts": {"by_period": 0.5}}),
        ("kind", {"args": {"n": 1}}),
        ("metadata", {"metadata": {"awa:x": 1}}),
    ],
)
def test_what_is_wrong_is_said_where_it_is_written(field: str, options: dict[str, Any]) -> None:
    given: dict[str, Any] = {"name": "c", "cron": "* * * * *", "args": {"kind": "k"}, **options}
    code = Code()
    with pytest.raises(ValidationError) as refused:
        code.periodic(given.pop("name"), given.pop("cron"), given.pop("args"), **given)
    assert refused.value.field == field
    assert not code.registry.periodic


def test_what_a_worker_runs_is_known_to_all_and_said_again_every_hour() -> None:
    world = Simulation(8)
    worker = Process(world, WorkerConfig({"q": QueueConfig(2)}), describe=lambda: {"k": '{"queue":"q"}'})
    worker.start()
    world.run(1.0)
    (said,) = play(world.store.list_kinds())
    assert (said.kind, said.descriptor) == ("k", {"queue": "q"})
    world.run(3 * 3600.0)
    (later,) = play(world.store.list_kinds())
    assert later.changed_at == said.changed_at
    assert later.seen_at - said.seen_at >= timedelta(hours=2)
    assert len(world.statements("put_kinds")) == 3


def test_of_each_name_there_is_one_also_among_registries_that_include_one_another() -> None:
    one, other = Code(), Code()
    one.periodic("c", "* * * * *", {"kind": "k"})
    with pytest.raises(ValidationError, match="already"):
        one.periodic("c", "* * * * *", {"kind": "k"})
    other.registry.include(one.registry)
    one.periodic("d", "* * * * *", {"kind": "k"})
    assert set(other.registry.periodic) == {"c", "d"}
    with pytest.raises(ValidationError, match="already"):
        other.periodic("d", "* * * * *", {"kind": "k"})


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(ConfigurationError, match=r"awa-queue\[cron\]"):
        Code().periodic("c", "* * * * *", {"kind": "k"})


def test_the_next_fire_is_told_whether_it_is_paused_or_not() -> None:
    world = Simulation(7)
    put(world, "c", "30 * * * *")
    play(world.store.pause_cron("c", None))
    (job,) = play(world.store.list_cron())[1]
    assert job.next_fire(EPOCH) == EPOCH + timedelta(minutes=30)
