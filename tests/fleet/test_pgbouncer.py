"""Behind PgBouncer in transaction mode with no settings: all works, and a worker polls and says so."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.members import FLAVOURS, Crew, Member
from tests.fleet.pgbouncer import BINARY, pgbouncer
from tests.fleet.server import ask, until

pytestmark = pytest.mark.skipif(BINARY is None, reason="pgbouncer is not installed (Debian: apt-get install pgbouncer)")


def polls_because(crew: Crew) -> str:
    """Why it does not listen; nothing when it does."""
    return crew.worker.health().listening.polls_because or ""


@pytest.fixture
def pooled(database: str, open_directory: Path) -> Iterator[str]:
    """The database by way of PgBouncer in transaction mode."""
    with pgbouncer(database, open_directory) as dsn:
        yield dsn


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_clients_and_workers_work_behind_it_with_no_settings(
    pooled: str, database: str, flavour: str, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[int] = []
    with caplog.at_level(logging.INFO, "awa"), Member(flavour, pooled) as member:
        member.call("migrate")
        member.handle("note", lambda job: ran.append(job.args["n"]))
        with member.worker({"q": 4}, poll_interval=0.2) as crew, member.worker({"r": 4}, poll_interval=0.2) as other:
            for each in (crew, other):
                until(lambda each=each: "pooler" in polls_because(each), "a worker that says it polls")  # type: ignore[misc]
            member.call("enqueue_many", [{"kind": "note", "n": n} for n in range(300)], queue="q")
            member.call("insert_many", [{"kind": "note", "n": n} for n in range(300, 400)], queue="r")
            with member.transaction() as tx:
                tx("insert", {"kind": "note", "n": 400}, queue="q")
            until(lambda: len(ran) >= 401, "all jobs")
            crew.drained()
            found = member.call("health")
            assert found.is_healthy, found.problems
            assert not crew.worker.health().listening.is_listening
        assert member.call("queue_stats")[0].completed == 301
    assert sorted(ran) == list(range(401))
    said = [record for record in caplog.records if "no notifications arrive" in record.message]
    assert len(said) == 2, "each worker says it once"
    mine = "locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    assert ask(database, f"SELECT count(*)::int FROM pg_locks WHERE {mine}") == [(0,)], "none is left behind"


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_in_session_mode_notifications_arrive(database: str, open_directory: Path, flavour: str) -> None:
    with pgbouncer(database, open_directory, "session") as dsn, Member(flavour, dsn) as member:
        member.call("migrate")
        with member.worker({"q": 1}) as crew:
            until(lambda: crew.worker.health().listening.is_listening, "a listening worker")
