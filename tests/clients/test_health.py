"""What `client.health()` and `worker.health()` say on every driver, also when there is no database to ask."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import awa_proto as awa
from awa_proto.health import QueueHealth
from awa_proto.schema import latest
from awa_proto.worker.lifecycle import Phase
from awa_queue_pytest import NewDatabase
from awa_sync.cli.health import as_object
from tests.fleet.members import FLAVOURS, Gate, Member
from tests.fleet.server import until
from tests.test_cli import awa as command

NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"


@pytest.fixture
def database(awa_new_database: NewDatabase) -> Iterator[str]:
    """One without the schema, which is news of health."""
    with awa_new_database(empty=True) as dsn:
        yield dsn


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_health_shows_the_client_its_workers_and_what_the_database_says(database: str, flavour: str) -> None:
    started, gate = Gate(), Gate()

    def slow(job: Any) -> Any:
        started.open()
        yield gate

    with Member(flavour, database) as member:
        before = member.call("health")
        assert (before.is_healthy, before.store) == (False, None)
        assert "run `awa migrate`" in before.problems[0]
        member.call("migrate")
        alone = member.call("health")
        assert (alone.is_healthy, alone.workers, alone.store.instances) == (True, (), ())
        assert (alone.store.schema_version, alone.store.read_only) == (latest(), False)
        assert alone.store.ring.free > 0
        member.handle("slow", slow)
        member.call("insert", {"kind": "slow"}, queue="q")
        with member.worker({"q": 2, "idle": 1}) as crew:
            started.passed()
            until(lambda: crew.machine.leads and crew.machine.is_listening, "a worker that leads and listens")
            found = crew.worker.health()
            assert (found.phase, found.is_healthy) == (Phase.RUNNING, True)
            assert found.queues == {
                "q": QueueHealth(running=1, buffered=0, slots=2, paused=False),
                "idle": QueueHealth(running=0, buffered=0, slots=1, paused=False),
            }
            assert (found.upkeep.leads, found.listening.is_listening, found.unwritten) == (True, True, 0)
            until(lambda: crew.worker.health().heartbeat.alive, "a heart that beats")
            whole = member.call("health")
            assert whole.is_healthy, whole.problems
            assert [each.instance for each in whole.workers] == [found.instance]
            assert whole.store.leader == found.instance
            (instance,) = whole.store.instances
            assert (instance.instance, set(instance.queues)) == (found.instance, {"q", "idle"})
            gate.open()
        assert crew.worker.health().problems == ("the worker is stopped",)
        after = member.call("health")
        assert (after.is_healthy, after.workers) == (True, ())
        assert json.loads(json.dumps(as_object(whole)))["workers"][0]["phase"] == "running"


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_health_says_that_the_database_is_away_and_raises_nothing(flavour: str) -> None:
    with Member(flavour, NOWHERE) as member:
        with pytest.raises(awa.DatabaseError):
            member.call("insert", {"kind": "x"})
        with member.worker({"q": 1}) as crew:
            until(lambda: crew.worker.health().database.last_error, "a first try")
            found = member.call("health")
            crew.stop()
        assert (found.is_healthy, found.store, found.database.connected) == (False, None, False)
        assert found.database.failure is awa.Failure.UNAVAILABLE
        assert found.database.away_for > 0
        assert found.problems[0].startswith("the database is of no use (unavailable)")
        assert found.counts["awa.op.failed: unavailable"] == 2
        (worker,) = found.workers
        assert (worker.phase, worker.database.connected) == (Phase.STARTING, False)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_lines_about_a_job_carry_its_id_kind_and_attempt(
    database: str, flavour: str, caplog: pytest.LogCaptureFixture
) -> None:
    def bad(job: Any) -> None:
        raise awa.TerminalError("as planned")

    with caplog.at_level(logging.WARNING, "awa"), Member(flavour, database) as member:
        member.call("migrate")
        member.handle("bad", bad)
        rows = [member.call("insert", {"kind": kind}, queue="q") for kind in ("bad", "strange")]
        with member.worker({"q": 2}) as crew:
            crew.drained()
        said: list[dict[str, Any]] = [getattr(record, "awa", {}) for record in caplog.records]
        fields = {each["job"]: each for each in said if "job" in each}
        assert {id: (each["kind"], each["queue"], each["attempt"]) for id, each in fields.items()} == {
            rows[0].id: ("bad", "q", 1),
            rows[1].id: ("strange", "q", 1),
        }


def test_awa_health_prints_what_is_and_exits_with_1_when_something_is_wrong(database: str) -> None:
    unmigrated = command("health", "--dsn", database)
    assert unmigrated.returncode == 1
    assert "run `awa migrate`" in unmigrated.stdout
    with Member("sync", database) as member:
        member.call("migrate")
        with member.worker({"q": 1}) as crew:
            until(lambda: crew.machine.leads, "a leader")
            well = command("health", "--dsn", database)
            as_json = json.loads(command("health", "--dsn", database, "--json").stdout)
    assert well.returncode == 0, well.stdout + well.stderr
    assert "leads" in well.stdout
    assert well.stdout.splitlines()[-1] == "healthy"
    assert (as_json["is_healthy"], as_json["problems"], len(as_json["store"]["instances"])) == (True, [], 1)
    away = command("health", "--dsn", NOWHERE, "--json")
    assert away.returncode == 1
    assert json.loads(away.stdout)["database"]["connected"] is False


def test_a_worker_that_died_is_a_problem_when_no_other_lives(database: str) -> None:
    with Member("sync", database) as member:
        member.call("migrate")
        with psycopg.connect(database) as connection:
            connection.execute(
                "INSERT INTO awa.instances (hostname, pid, version, queues, started_at, heartbeat_at)"
                " VALUES ('h', 1, '1', '{q}', now() - interval '1 h', now() - interval '1 min')"
            )
        (problem,) = member.call("health").problems
        assert problem.startswith("no worker gives a sign of life; the last one did 6")
