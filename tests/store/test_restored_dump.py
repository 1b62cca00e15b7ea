"""A dump of one cluster in another: no job is skipped and none runs twice, whatever the numbers of its transactions are."""

import subprocess
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
from psycopg.rows import TupleRow

import awa_sync
from awa_proto.job import JobState
from awa_proto.outcome import Transition
from awa_proto.store import Demand, Ended
from awa_sync.cli.embedded import Server, installed, server
from tests.conftest import INSTALLED

pytestmark = pytest.mark.slow


def _pass_by(connection: psycopg.Connection[TupleRow], transactions: int) -> None:
    """So many transactions get a number."""
    with connection.pipeline():
        for _ in range(transactions):
            connection.execute("SELECT pg_current_xact_id()")


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("there", "here"), [(6000, 0), (3000, 6000)], ids=["from ahead", "from behind"])
def test_a_restored_dump_is_worked_as_if_nothing_had_happened(
    own_server: Server, open_directory: Path, there: int, here: int
) -> None:
    """C3, with pg_dump and pg_restore. Producers write before the first worker starts; those it then claims are all."""
    major = own_server.version.partition(".")[0] if own_server.version else ""
    binaries = next(each for each in installed() if each.major == major)
    dump = binaries.directory / "pg_dump"
    if not dump.exists():
        pytest.skip("these binaries have no pg_dump")
    with psycopg.connect(own_server.dsn, autocommit=True) as connection, awa_sync.Client(own_server.dsn) as client:
        client.migrate()
        _pass_by(connection, there)
        ids = {row.id for n in range(30) for row in client.insert_many([{"n": n}], kind="k")}
        store = client._application.store
        ring, _ = client.perform(store.survey(["default"]))
        taken = client.perform(store.claim(1, ring, [Demand("default", 12)])).attempts
        done = [Ended(a, Transition(JobState.COMPLETED, 1, datetime.now(UTC))) for a in taken[:6]]
        client.perform(store.finalize(done, 7))
    archive = open_directory / "dump"
    subprocess.run([dump, "--format=custom", f"--file={archive}", own_server.dsn], check=True)
    with server(directory=open_directory / "other", prefer=INSTALLED[major][0]) as other:
        subprocess.run([binaries.directory / "pg_restore", f"--dbname={other.dsn}", archive], check=True)
        with psycopg.connect(other.dsn, autocommit=True) as connection, awa_sync.Client(other.dsn) as client:
            for passing in (here, 0):
                ids |= {row.id for n in range(30) for row in client.insert_many([{"n": n}], kind="k")}
                _pass_by(connection, passing)
            ran: Counter[int] = Counter()

            @client.task(kind="k")
            def handler(job: awa_sync.Job[dict[str, int]]) -> None:
                ran[job.id] += 1

            with client.worker({"default": 5}) as worker:
                worker.drained()
                _pass_by(connection, 8000)  # past every number there was in the other cluster
                late = {row.id for n in range(5) for row in client.insert_many([{"n": n}], kind="k")}
                worker.drained()
            claimed = {attempt.id for attempt in taken}
            assert ran == dict.fromkeys((ids | late) - claimed, 1)
            found = [client.get_job(id) for id in claimed]
            assert Counter(row.state for row in found if row is not None) == {
                JobState.COMPLETED: 6,
                JobState.RUNNING: 6,
            }
