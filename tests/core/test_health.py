"""What a worker knows of how it is, step by step at a clock turned by hand; and what of it is a problem."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from awa_proto.contact import Calls, Contact, is_away
from awa_proto.errors import DatabaseError, Failure, SchemaNotMigrated
from awa_proto.health import (
    DatabaseHealth,
    InstanceHealth,
    QueueHealth,
    RingHealth,
    StoreHealth,
    WorkerHealth,
    database_health,
    problems_of_client,
)
from awa_proto.outcome import Returned
from awa_proto.store import Claimed, Verdict
from awa_proto.worker.events import Beat, Emit, JobEnded, ListenLost, OpFailed, StopAsked
from awa_proto.worker.heartbeat import Heartbeat
from awa_proto.worker.lifecycle import Phase
from tests.core.test_leader import Watched, is_asked
from tests.core.test_machine import NOON, Bench, attempt, of

AWAY, REFUSED, READ_ONLY, FULL = "08006", "22023", "25006", "53300"
RING = RingHealth(6, 1, 1, NOON)


def health(bench: Bench, heart: float = 0.0) -> WorkerHealth:
    return bench.machine.health(bench.now, heart)


def heartbeat(bench: Bench) -> Heartbeat:
    (beat,) = of(Beat, bench.said)
    found: Heartbeat = beat.heartbeat
    return found


def beaten(bench: Bench, at: float) -> Bench:
    """The thread of the heartbeat has begun, or beats, at that moment of its own clock."""
    heartbeat(bench).start(at)
    return bench


def test_before_it_is_registered_a_worker_says_what_it_waits_for() -> None:
    bench = Bench()
    new = health(bench)
    assert (new.phase, new.instance, new.database) == (Phase.STARTING, None, DatabaseHealth(connected=False))
    assert new.problems == ("the database has not answered yet",)
    bench.failed("register", AWAY)
    bench.wait(0.05)
    away = health(bench)
    assert (away.database.connected, away.database.failure) == (False, Failure.OUTCOME_UNKNOWN)
    assert away.database.away_for == away.database.error_age == pytest.approx(0.05)
    assert away.problems[0].startswith("the database is of no use (outcome unknown)")
    assert not away.is_healthy


def test_a_worker_that_works_is_healthy_and_says_what_it_does() -> None:
    bench = beaten(Bench().running(), 50.0)
    bench.claimed(attempt(1), attempt(2), attempt(3))
    found = health(bench, heart=54.0)
    assert (found.phase, found.instance, found.problems, found.is_healthy) == (Phase.RUNNING, 7, (), True)
    assert found.queues == {"q": QueueHealth(running=2, buffered=1, slots=2, paused=False)}
    assert found.database == DatabaseHealth(connected=True)
    assert (found.heartbeat.alive, found.heartbeat.age, found.heartbeat.is_stalled) == (True, 4.0, False)
    bench.hear(JobEnded(attempt(1), Returned(None)))
    assert health(bench).unwritten == 1


@pytest.mark.parametrize("sqlstate", [AWAY, READ_ONLY, FULL, "57P03", "28P01"])
def test_a_database_that_goes_away_is_a_problem_until_any_connection_is_of_use_again(sqlstate: str) -> None:
    bench = Bench().running()
    bench.failed("claim", sqlstate)
    bench.now += 3.0
    found = health(bench)
    assert (found.database.connected, found.database.away_for) == (False, 3.0)
    assert found.problems
    while "claim" not in bench.ops:
        bench.wait(0.02)
        if "unknown" in bench.ops:  # what it asks first when a claim may have been made
            bench.done("unknown", [])
    bench.done("claim", Claimed([], 1, NOON))
    after = health(bench)
    assert (after.database.connected, after.database.away_for, after.problems) == (True, None, ())
    assert after.database.failure is found.database.failure, "what it was is still shown"
    assert after.counts["awa.database.reconnected"] == after.counts["awa.op.retried"] == 1
    assert after.counts["awa.op.failed"] == after.counts[f"awa.op.failed: {found.database.failure}"] == 1


def test_a_refused_statement_is_counted_and_the_database_is_not_away_for_it() -> None:
    bench = Bench().running()
    bench.failed("claim", REFUSED)
    found = health(bench)
    assert (found.database.connected, found.database.failure) == (True, Failure.REFUSED)
    assert found.counts["awa.op.failed: refused"] == 1


def test_a_connection_that_nobody_asks_again_does_not_outweigh_one_that_was_of_use_later() -> None:
    """Such as that of claims, while every slot is taken by a long job."""
    early, late = Contact(), Contact()
    early.failed(DatabaseError("gone"), 10.0)
    assert not database_health((early, late), 12.0, 9.0).connected
    assert not database_health((early, late), 12.0, None).connected
    assert database_health((early, late), 12.0, 11.0).connected
    late.failed(DatabaseError("gone too"), 13.0)
    found = database_health((early, late), 15.0, 11.0)
    assert (found.connected, found.away_for, found.last_error) == (False, 2.0, "gone too")


def test_a_worker_that_hears_nothing_says_that_it_polls_and_why() -> None:
    assert health(Bench()).listening.polls_because == "it is not connected yet"
    bench = Bench().running()
    assert (health(bench).listening.is_listening, health(bench).listening.polls_because) == (True, None)
    bench.hear(ListenLost(DatabaseError("the connection was closed\nby the other side", sent=False)))
    found = health(bench)
    assert (found.listening.is_listening, found.listening.polls_because) == (
        False,
        "the connection was closed by the other side",
    )
    assert found.is_healthy, "slower, and no more"
    assert found.counts["awa.listen.lost"] == 1


def test_a_heartbeat_that_does_not_arrive_is_a_problem_before_others_take_the_jobs() -> None:
    bench = beaten(Bench().running(), 10.0)
    assert health(bench, heart=39.9).is_healthy
    found = health(bench, heart=40.5)
    assert (found.heartbeat.alive, found.heartbeat.age) == (False, 30.5)
    assert found.problems == ("the heartbeat has not reached the database for 30 s",)


def test_a_beat_that_fails_is_counted() -> None:
    bench = beaten(Bench().running(), 10.0)
    assert "awa.heartbeat.failed" not in health(bench).counts
    beating = heartbeat(bench)
    for number, at in enumerate((20.0, 30.0, 40.0), 1):
        beating.handle_timeout(at)
        beating.handle(OpFailed(number, DatabaseError("away", AWAY)), at)
    assert health(bench, heart=40.0).counts["awa.heartbeat.failed"] == 3


def test_a_stuck_loop_is_a_problem() -> None:
    bench = beaten(Bench().running(), 0.0)
    heart = heartbeat(bench)
    for at in (20.0, 400.0):  # the ping is never answered
        heart.handle_timeout(at)
    found = health(bench, heart=400.0)
    assert found.heartbeat.is_stalled
    assert found.problems == ("the worker's loop is stuck, so its heartbeat has stopped",)


def test_who_leads_is_shown_and_upkeep_that_fails_is_a_problem() -> None:
    follower = Bench().running()
    assert (health(follower).upkeep.leads, health(follower).upkeep.leader) == (False, 1)
    bench = Watched().leading()
    assert (health(bench).upkeep.leads, health(bench).upkeep.leader, health(bench).upkeep.term) == (True, 7, 1)
    assert is_asked(bench, "sweep")
    bench.failed("sweep", REFUSED)
    found = health(bench)
    assert (found.upkeep.failing, found.problems) == (("sweep",), ("upkeep fails: sweep",))
    bench.hear(StopAsked())
    assert health(bench).upkeep.failing == (), "no more its concern"


def test_stale_results_are_counted() -> None:
    bench = Bench().running()
    bench.claimed(attempt(1))
    bench.hear(JobEnded(attempt(1), Returned(None)))
    said = bench.done("finalize", [Verdict.STALE])
    assert health(bench).counts["awa.result.stale"] == 1
    (line,) = [emit for emit in of(Emit, said) if emit.key == "stale result"]
    assert {name: line.fields[name] for name in ("job", "kind", "attempt")} == {"job": 1, "kind": "k", "attempt": 1}


# the client's part


def store(**changed: Any) -> StoreHealth:
    given: dict[str, Any] = {
        "server_version": "15.1", "schema_version": 3, "read_only": False, "leader": 7,
        "instances": (InstanceHealth(7, "h", 1, "1", ("q",), datetime.now(UTC), 100.0, 2.0),), "ring": RING,
    }  # fmt: skip
    return StoreHealth(**{**given, **changed})


def instance(**changed: Any) -> InstanceHealth:
    given: dict[str, Any] = {"age": 100.0, "silent_for": 2.0}
    return InstanceHealth(7, "h", 1, "1", ("q",), NOON, **{**given, **changed})


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (store(), None),
        (store(leader=None, instances=()), None),
        (store(leader=None, instances=(instance(age=20.0),)), None),
        (store(leader=None), "workers are alive, but none of them does the upkeep"),
        (store(instances=(instance(silent_for=31.0),)), "no worker gives a sign of life; the last one did 31 s ago"),
        (store(instances=(instance(silent_for=31.0), instance())), None),
        (store(read_only=True), "the server is read-only"),
        (store(schema_version=2), "the schema is at version 2, this code wants 3: run `awa migrate`"),
        (store(schema_version=4), "the schema is at version 4, this code wants 3: upgrade the package awa-queue"),
        (store(ring=RingHealth(0, 1, 7, NOON)), "the ring is full: no segment can be emptied"),
    ],
)
def test_what_the_database_says_and_what_of_it_is_a_problem(said: StoreHealth, problem: str | None) -> None:
    found = problems_of_client(DatabaseHealth(connected=True), said, (), wanted=3)
    assert found == (() if problem is None else (problem,))


def test_a_client_counts_what_failed_and_knows_since_when() -> None:
    now = 5.0
    calls = Calls(lambda: now)
    calls.succeeded()
    calls.failed("insert", DatabaseError("gone", None, sent=False))
    calls.retried("insert")
    now = 7.0
    calls.failed("insert", DatabaseError("refused", "08001", sent=False))
    assert (calls.contact.away_since, calls.contact.error_at) == (5.0, 7.0)
    calls.succeeded()
    assert calls.contact.away_since is None
    names = ("awa.op.failed", "awa.op.retried", "awa.database.reconnected")
    assert [calls.tally.total(name) for name in names] == [2, 1, 1]


def test_what_no_statement_can_change_is_being_away() -> None:
    assert is_away(DatabaseError("sorry, too many clients already", FULL))
    assert is_away(DatabaseError("standby", READ_ONLY))
    assert is_away(DatabaseError(str(SchemaNotMigrated("no schema")), "42P01"))
    assert not is_away(DatabaseError("canceled", "57014"))
    assert not is_away(DatabaseError("deadlock", "40P01"))
