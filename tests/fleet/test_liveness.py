"""Workers that live, and workers that do not: who keeps its jobs, and whose jobs others run. Against a real server."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from awa_proto.errors import DatabaseError
from awa_proto.job import JobState
from awa_proto.store import Claimed, Demand
from awa_proto.worker.config import Liveness
from awa_proto.worker.events import Lane
from tests.fleet.members import FLAVOURS, Gate, Member
from tests.fleet.server import ask, until

QUICK = Liveness(heartbeat_interval=0.1, stale_after=2.0, rescue_interval=0.2, deadline_interval=0.2)
STALLS = Liveness(heartbeat_interval=0.1, stale_after=0.5, stall_limit=0.3, rescue_interval=0.2)
RESCUED = "rescued: heartbeat stale, its worker is presumed dead"


def beat(dsn: str) -> Any:
    """When the only worker there is has beaten last; None when there is none."""
    rows = ask(dsn, "SELECT heartbeat_at FROM awa.instances")
    return rows[0][0] if rows else None


@contextmanager
def leader(dsn: str, liveness: Liveness = QUICK, **options: Any) -> Iterator[Member]:
    """A worker of another process's kind, which serves nothing of interest and does the upkeep. options: of its client."""
    with Member("sync", dsn, **options) as other, other.worker({"idle": 1}, liveness=liveness) as crew:
        until(lambda: crew.machine.leads, "a leader")
        yield other


@contextmanager
def victim(flavour: str, dsn: str, scene: str, engine: str = "queue") -> Iterator[subprocess.Popen[str]]:
    """A worker in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fleet.victim", flavour, dsn, scene, engine], stdout=subprocess.PIPE, text=True
    )
    with process:  # which waits for its end
        try:
            yield process
        finally:
            process.kill()


def test_a_handler_that_blocks_its_loop_for_longer_than_stale_after_keeps_its_job(
    member: Member, database: str
) -> None:
    started, gate = Gate(), Gate()

    def block(job: Any) -> None:
        started.open()
        gate.passed()  # no await: on an event loop nothing else runs meanwhile

    member.handle("block", block)
    with leader(database) as other, member.worker({"q": 1}, liveness=QUICK) as crew:
        job = member.call("insert", {"kind": "block"}, queue="q")
        started.passed()
        [(now,)] = ask(database, "SELECT clock_timestamp() + interval '3 s'")  # longer than stale_after
        until(lambda: ask(database, "SELECT clock_timestamp() > %s", now) == [(True,)], "time")
        assert other.call("get_job", job.id).state is JobState.RUNNING
        gate.open()
        crew.drained()
        row = other.call("get_job", job.id)
        assert (row.state, row.attempt, row.errors) == (JobState.COMPLETED, 1, [])
    assert beat(database) is None, "a worker that has stopped is gone"


@pytest.mark.parametrize("flavour", ["asyncio-asyncpg", "asyncio-psycopg", "trio"])
def test_a_loop_that_is_stuck_loses_its_job_and_the_late_result_is_stale(flavour: str, database: str) -> None:
    started, gate = Gate(), Gate()

    def block(job: Any) -> None:
        started.open()
        gate.passed()

    with Member(flavour, database) as member:
        member.call("migrate")
        member.handle("block", block)
        with leader(database, STALLS) as other, member.worker({"q": 1}, liveness=STALLS) as crew:
            job = member.call("insert", {"kind": "block"}, queue="q", max_attempts=1)
            started.passed()
            until(lambda: other.call("get_job", job.id).state is JobState.FAILED, "its rescue")
            before = other.call("get_job", job.id)
            gate.open()
            crew.drained()
            assert other.call("get_job", job.id) == before
    assert [entry["error"] for entry in before.errors] == [RESCUED]


@pytest.mark.slow
@pytest.mark.chaos
def test_the_jobs_of_a_killed_worker_are_run_by_another(member: Member, database: str) -> None:
    ran: list[tuple[int, int]] = []
    done = threading.Semaphore(0)

    def note(job: Any) -> None:
        ran.append((job.id, job.attempt))
        done.release()

    member.handle("hold", note)
    with leader(database):
        ids = [member.call("insert", {"kind": "hold"}, queue="q").id for _ in range(2)]
        with victim(member.flavour, database, "hold") as process:
            assert process.stdout is not None
            assert {process.stdout.readline().split()[0] for _ in ids} == {"began"}
            process.kill()
            process.wait()
            with member.worker({"q": 2}, liveness=QUICK) as crew:
                for _ in ids:
                    assert done.acquire(timeout=60)
                crew.drained()
    assert sorted(ran) == [(id, 2) for id in ids]
    rows = [member.call("get_job", id) for id in ids]
    assert [row.state for row in rows] == [JobState.COMPLETED] * 2
    assert [[entry["error"] for entry in row.errors] for row in rows] == [[RESCUED]] * 2


@pytest.mark.slow
@pytest.mark.chaos
def test_a_job_that_kills_each_worker_it_runs_on_ends_by_its_max_attempts(database: str) -> None:
    with Member("sync", database) as member:
        member.call("migrate")
        job = member.call("insert", {"kind": "hold"}, queue="q", max_attempts=2)
        with leader(database):
            for attempt in (1, 2):
                with victim("sync", database, "die") as process:
                    assert process.stdout is not None
                    assert process.stdout.readline().split() == ["began", str(job.id), str(attempt)]
                    process.wait()
            until(lambda: member.call("get_job", job.id).state is JobState.FAILED, "its end")
        row = member.call("get_job", job.id)
    assert (row.attempt, [entry["error"] for entry in row.errors]) == (2, [RESCUED] * 2)


def test_an_attempt_that_its_stuck_worker_does_not_end_at_its_deadline_is_ended_by_the_leader(
    member: Member, database: str
) -> None:
    started, gate = Gate(), Gate()

    def block(job: Any) -> None:
        started.open()
        gate.passed()

    member.handle("block", block)
    with leader(database) as other, member.worker({"q": 1}, liveness=QUICK) as crew:
        job = member.call("insert", {"kind": "block"}, queue="q", deadline_duration=0.2, max_attempts=1)
        started.passed()
        until(lambda: other.call("get_job", job.id).state is JobState.FAILED, "its end")
        gate.open()
        crew.drained()
        row = other.call("get_job", job.id)
    deadline = "hard deadline exceeded"  # blocking code has a machine that is not blocked, and ends it itself
    assert row.errors[-1]["error"] == (deadline if member.is_sync else f"rescued: {deadline}")


class Cutting:
    """A database that loses the answer of the first claim that took something, after it was committed."""

    def __init__(self, database: Any, *, is_sync: bool) -> None:
        self._database = database
        self._is_sync = is_sync
        self.cut = 0

    def lane(self, name: str, **options: Any) -> Any:
        """As the database's."""
        lane = self._database.lane(name, **options)
        if name == Lane.CLAIM:
            run = lane.run
            lane_run = (lambda op: self._lose(run(op))) if self._is_sync else _awaiting(run, self._lose)
            lane = _Lane(lane_run, lane.close)
        return lane

    def _lose(self, result: Any) -> Any:
        if not self.cut and isinstance(result, Claimed) and result.attempts:
            self.cut += 1
            raise DatabaseError("the connection broke before the answer came", None)
        return result


def _awaiting(run: Any, lose: Any) -> Any:
    async def awaited(op: Any) -> Any:
        return lose(await run(op))

    return awaited


class _Lane:
    def __init__(self, run: Any, close: Any) -> None:
        self.run = run
        self.close = close


def test_jobs_of_a_claim_whose_answer_was_cut_off_are_adopted_and_run_once(member: Member, database: str) -> None:
    ran: list[tuple[int, int]] = []
    member.handle("note", lambda job: ran.append((job.id, job.attempt)))
    worker = member.run_here("worker", {"q": 4})
    worker._database = cutting = Cutting(worker._database, is_sync=member.is_sync)
    with member.enter(worker):
        ids = [row.id for row in member.call("insert_many", [{"kind": "note"}] * 3, queue="q")]
        until(lambda: len(ran) >= 3, "jobs that were claimed without an answer")
        member.run(worker.drained)
    assert cutting.cut == 1
    assert sorted(ran) == [(id, 1) for id in ids]
    assert {member.call("get_job", id).state for id in ids} == {JobState.COMPLETED}


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_leader_that_knows_nothing_of_a_rescued_kind_says_so_in_its_health(database: str, flavour: str) -> None:
    """Once for each kind, and not of one whose hooks it has."""
    with Member(flavour, database) as member:
        member.call("migrate")
        store = member.client.operations._store
        for kind in ("mine", "hooked", "theirs", "theirs", "others"):
            member.call("insert", {"n": 1}, kind=kind, queue="q")
        ring, _ = member.call("perform", store.survey(["q"]))
        taken = member.call("perform", store.claim(999_999, ring, [Demand("q", 9)]))  # by somebody who is no more
        member.handle("mine", lambda job: None)
        member.client.on_event("hooked")(lambda event: None)
        with member.worker({"idle": 1}, liveness=QUICK) as crew:
            until(
                lambda: crew.worker.health().counts.get("awa.rescue") == len(taken.attempts) == 5, "all to be rescued"
            )
            found = crew.worker.health()
            assert found.upkeep.unknown_kinds == ("theirs", "others")
            assert [problem for problem in found.problems if "does not know the kind" in problem] == [
                f"it leads and does not know the kind {kind!r}: hooks and follow-ups of rescued jobs are not run"
                for kind in ("theirs", "others")
            ]
            assert not found.is_healthy
