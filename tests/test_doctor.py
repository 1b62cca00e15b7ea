"""`awa doctor`: what it shows of the ring, and what it names when something holds it."""

import json
import uuid
from collections.abc import Iterator

import psycopg
import pytest

import awa_sync
from awa_proto.store import Demand, WorkerInfo
from awa_proto.store.queue.doctor import LONG, Diagnosis, diagnose
from tests.test_cli import awa


@pytest.fixture
def client(database: str) -> Iterator[awa_sync.Client]:
    with awa_sync.Client(database) as made:
        made.migrate()
        yield made


def test_a_new_database_has_nothing_to_complain_of(client: awa_sync.Client) -> None:
    found = client.perform(diagnose())
    assert [segment.state for segment in found.segments] == ["open", *["free"] * 7]
    assert found.problems == []
    assert isinstance(client._dsn, str)
    done = awa("doctor", "--dsn", client._dsn)
    assert done.returncode == 0
    assert "nothing to complain of" in done.stdout
    assert json.loads(awa("doctor", "--json", "--dsn", client._dsn).stdout)["restored"] is False


def test_it_names_who_holds_which_segment(client: awa_sync.Client) -> None:
    """A long attempt, a transaction that is open, a prepared one, and jobs that wait; in the schema and segment they are in."""
    assert isinstance(client._dsn, str)
    store = client._application.store
    client.insert_many([{"n": n} for n in range(5)], kind="k")
    ring, _ = client.perform(store.survey(["default"]))
    client.perform(store.claim(1, ring, [Demand("default", 2)]))
    gid = f"awa doctor {uuid.uuid4()}"
    with (
        psycopg.connect(client._dsn, application_name="reader") as reader,
        psycopg.connect(client._dsn, autocommit=True) as writer,
    ):
        reader.execute("SELECT count(*) FROM awa.closures_0")
        writer.execute("BEGIN")
        writer.execute("INSERT INTO awa.ready (seg, priority, queue, kind, args) VALUES (0, 2, 'q', 'k', '{}')")
        writer.execute(f"PREPARE TRANSACTION '{gid}'".encode())
        client.perform(store.rotate(0.0))
        found = client.perform(diagnose())
        writer.execute(f"ROLLBACK PREPARED '{gid}'".encode())
        held = found.segments[1]
        assert (held.number, held.state, held.running, held.waiting) == (0, "sealed", 2, 3)
        names = sorted(user.name for user in held.used_by)
        assert names == [
            f"pid {reader.info.backend_pid} (reader, idle in transaction)",
            f"prepared transaction '{gid}'",
        ]
        assert found.segments[0].used_by == ()
        assert {each.name for each in found.transactions} >= set(names)
        shown = awa("doctor", "--dsn", client._dsn).stdout
        assert "reader, idle in transaction" in shown


def test_a_silent_worker_a_missing_leader_and_a_restored_dump_are_problems(client: awa_sync.Client) -> None:
    assert isinstance(client._dsn, str)
    store = client._application.store
    registration = client.perform(store.register(WorkerInfo(("q",), "host", 1)))
    with psycopg.connect(client._dsn, autocommit=True) as connection:
        connection.execute("UPDATE awa.instances SET heartbeat_at = heartbeat_at - interval '100 s'")
        connection.execute("UPDATE awa.cluster SET system_identifier = 1")
    done = awa("doctor", "--dsn", client._dsn)
    assert done.returncode == 1
    for said in (
        "dump of another cluster",
        "No worker leads",
        f"Worker {registration.instance} has been silent for 10",
    ):
        assert said in done.stdout
    client.perform(store.lead(registration.instance, 30.0))
    client.perform(store.rebase())
    found: Diagnosis = client.perform(diagnose())
    assert found.leader == registration.instance
    assert len(found.problems) == 1


def test_what_holds_a_sealed_segment_for_long_is_a_problem_and_a_full_ring_is(client: awa_sync.Client) -> None:
    assert isinstance(client._dsn, str)
    store = client._application.store
    client.insert({"n": 1}, kind="k")
    ring, _ = client.perform(store.survey(["default"]))
    client.perform(store.claim(1, ring, [Demand("default", 1)]))
    for _ in range(7):
        client.perform(store.rotate(0.0))
        client.insert({"n": 1}, kind="k")
    with psycopg.connect(client._dsn, autocommit=True) as connection:
        connection.execute(b"UPDATE awa.claims SET claimed_at = claimed_at - %f * interval '1 s'" % (LONG + 1))
    problems = " ".join(client.perform(diagnose()).problems)
    assert "No segment is free" in problems
    assert "Segment 0 is held by 1 attempts, the oldest running for 30" in problems


def test_it_counts_what_waits_for_callbacks_and_says_that_one_is_late(client: awa_sync.Client) -> None:
    with client.transaction() as tx:
        tx.execute(
            "INSERT INTO awa.callbacks (job_id, run_lease, callback_id, state, seg, claim_id, idx, timeout_at, queue)"
            " SELECT i, 1, gen_random_uuid(), 2, 0, 1, 0, now() + (i - 2) * interval '100 s', 'q' FROM generate_series(1, 3) i"
        )
    found = client.perform(diagnose())
    assert found.waiting == 3
    assert any("A callback has been late for 100 s" in problem for problem in found.problems)
