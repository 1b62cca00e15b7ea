"""Workers that live, and workers that do not: who keeps its jobs, and whose jobs others run. Against a real server."""

from __future__ import annotations

from typing import Any

from awa_proto.worker.config import Liveness
from tests.fleet.members import Gate, Member
from tests.fleet.server import ask, until

QUICK = Liveness(heartbeat_interval=0.1, stale_after=1.0, rescue_interval=0.2, deadline_interval=0.2)


def beat(dsn: str) -> Any:
    """When the only worker there is has beaten last; None when there is none."""
    rows = ask(dsn, "SELECT heartbeat_at FROM awa.instances")
    return rows[0][0] if rows else None


def test_a_handler_that_blocks_its_loop_does_not_stop_the_heartbeat(member: Member, database: str) -> None:
    started, gate = Gate(), Gate()

    def block(job: Any) -> None:
        started.open()
        gate.passed()  # no await: on an event loop nothing else runs meanwhile

    member.handle("block", block)
    with member.worker({"q": 1}, liveness=QUICK):
        member.call("insert", {"kind": "block"}, queue="q")
        started.passed()
        for _ in range(3):
            before = beat(database)
            until(lambda before=before: beat(database) > before, "a beat")  # type: ignore[misc]
        gate.open()
    assert beat(database) is None, "a worker that has stopped is gone"
