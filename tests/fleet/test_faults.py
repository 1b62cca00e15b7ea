"""The server goes away under a fleet, or was never there: nothing is lost, everybody comes back, stops are quick and clean."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

import pytest

import awa_proto as awa
from awa_proto.worker.lifecycle import Phase
from awa_sync.cli.embedded import Server
from tests.fleet.members import FLAVOURS, Gate, Member
from tests.fleet.server import connections, terminate_all, until


@pytest.mark.slow
@pytest.mark.chaos
def test_no_job_that_was_enqueued_is_lost_when_the_server_crashes_under_a_fleet(own_server: Server) -> None:
    """Completions are committed asynchronously, so a crash may let a job run again; none may be missing."""
    ran: set[str] = set()
    sure: set[str] = set()
    enough = threading.Event()

    def enqueue(number: int, member: Member) -> None:
        count = 0
        while not enough.is_set():
            count += 1
            try:
                member.call("insert", {"kind": "note", "n": f"{number}-{count}"}, queue="q")
            except awa.DatabaseError:
                enough.wait(0.02)  # not to spin while the server is down
            else:
                sure.add(f"{number}-{count}")

    with ExitStack() as stack:
        members = [stack.enter_context(Member(flavour, own_server.dsn)) for flavour in FLAVOURS]
        members[0].call("migrate")
        for member in members:
            member.handle("note", lambda job: ran.add(job.args["n"]), plain=True)
        crews = [stack.enter_context(member.worker({"q": 8})) for member in members]
        threads = [threading.Thread(target=enqueue, args=pair) for pair in enumerate(members)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(2):
                before = len(ran)
                until(lambda before=before: len(ran) > before + 200, "work between two crashes")  # type: ignore[misc]
                own_server.crash()
                own_server.restart()
        finally:
            enough.set()
            for thread in threads:
                thread.join()
        for crew in crews:
            crew.drained()
        until(lambda: members[0].call("queue_stats")[0].running == 0, "the end of every attempt")
        (stats,) = members[0].call("queue_stats")
        assert (stats.available, stats.retryable, stats.failed) == (0, 0, 0)
        assert stats.completed == len(ran)
        assert sure <= ran


@pytest.mark.slow
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_worker_waits_for_its_server_and_can_be_stopped_while_it_does(own_server: Server, flavour: str) -> None:
    ran, started, gate = Gate(), Gate(), Gate()

    def slow(job: Any) -> Any:
        started.open()
        yield gate

    with Member(flavour, own_server.dsn) as member:
        member.handle("quick", lambda job: ran.open())
        member.handle("slow", slow)
        with member.worker({"q": 2}) as crew:  # nobody has migrated
            until(lambda: crew.machine.last_error, "a first try to register")
            assert crew.machine.phase is Phase.STARTING
        member.call("migrate")
        own_server.crash()
        with member.worker({"q": 2}) as crew:
            until(lambda: crew.machine.last_error, "a first try to register")
        assert crew.machine.phase is Phase.STOPPED
        with member.worker({"q": 2}) as crew:
            until(lambda: crew.machine.last_error, "a first try to register")
            own_server.restart()
            member.call("insert", {"kind": "quick"}, queue="q")
            ran.passed()
            member.call("insert", {"kind": "slow"}, queue="q")
            started.passed()
            crew.stop()
            own_server.crash()
            gate.open()
            until(lambda: crew.machine.last_error and crew.machine.unwritten, "a result that cannot be written")
            own_server.restart()
            assert crew.stopped().left_running == ()


def test_workers_whose_connections_are_ended_run_every_job_once(fleet: list[Member], database: str) -> None:
    """The claims and results under way are of unknown outcome each time; the jobs are many enough for many of them."""
    ran: list[int] = []
    total = 2000
    with ExitStack() as stack:
        for member in fleet:
            member.handle("note", lambda job: ran.append(job.args["n"]))
        crews = [stack.enter_context(member.worker({"q": 2})) for member in fleet]
        for crew in crews:
            until(lambda crew=crew: crew.machine.is_listening, "a listening worker")  # type: ignore[misc]
        terminate_all(database)  # while they are idle
        fleet[0].call("enqueue_many", [{"kind": "note", "n": n} for n in range(total)], queue="q")
        for part in range(1, 4):
            until(lambda part=part: len(ran) > part * total // 4, "progress")  # type: ignore[misc]
            terminate_all(database)
        until(lambda: len(ran) >= total, "all jobs")
        for crew in crews:
            crew.drained()
    assert sorted(ran) == list(range(total))
    (stats,) = fleet[1].call("queue_stats")
    assert (stats.completed, stats.running) == (total, 0)


def test_many_workers_in_a_row_leave_no_thread_and_no_connection_behind(member: Member, database: str) -> None:
    with member.worker({"q": 2}) as crew:
        crew.drained()
    threads = threading.active_count()
    for _ in range(200 if member.is_sync else 60):
        with member.worker({"q": 2}):
            pass
    assert threading.active_count() <= threads
    until(lambda: connections(database) <= 1, "the end of every connection but the client's own")
