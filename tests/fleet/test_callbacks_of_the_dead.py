"""Callbacks that come while the process whose handlers they are for is killed: each job ends once, none is left waiting.

What both would write is held, so that whoever uses a callback and whoever rescues its job are there when it is let go. Of a job
whose worker is dead that is the row of `callbacks`. Rescue of late ones leaves rows that are held alone; there, the tables.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial

import psycopg
import pytest

import awa_proto as awa
from awa_proto.job import JobState
from awa_proto.testing.conformance.callback_races import LEFT
from awa_proto.worker import rescue
from awa_proto.worker.config import Liveness
from tests.flavours import App
from tests.fleet.members import FLAVOURS, Member
from tests.fleet.server import ask, until
from tests.fleet.test_liveness import QUICK, RESCUED, leader, victim
from tests.fleet.victim import wait

WAITS, COMPLETED, FAILED = JobState.WAITING_EXTERNAL, JobState.COMPLETED, JobState.FAILED
IN_THE_WAY = """
INSERT INTO awa.callbacks (job_id, run_lease, callback_id, seg, claim_id, idx, timeout_at, queue)
VALUES (%s, 0, gen_random_uuid(), 0, 0, 0, now(), 'q')"""
THE_ROW = "SELECT FROM awa.callbacks WHERE job_id = %s FOR UPDATE"
THE_TABLES = "LOCK TABLE awa.waiting, awa.closures, awa.jobs_hot IN SHARE MODE"
WAITING = """
SELECT count(DISTINCT pid)::int FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE NOT l.granted AND a.datname = current_database()"""


@contextmanager
def held(dsn: str, sql: str, *given: object) -> Iterator[None]:
    """A transaction that has run a statement, and is undone at the end."""
    with psycopg.connect(dsn) as connection:
        connection.execute(sql.encode(), given)
        yield
        connection.rollback()


def waiting_for_locks(dsn: str) -> int:
    """How many connections wait for a lock."""
    ((found,),) = ask(dsn, WAITING)
    return int(found)


def token(dsn: str, id: int) -> str | None:
    """The callback that a job has in the database."""
    rows = ask(dsn, "SELECT callback_id::text FROM awa.callbacks WHERE job_id = %s", id)
    return rows[0][0] if rows else None


def ends_once(
    member: Member,
    dsn: str,
    id: int,
    held_back: AbstractContextManager[None],
    begin: Callable[[], object],
    *,
    rescue_first: bool,
) -> None:
    """A job of a dead worker, whose last attempt it is, is completed by its callback or fails by its rescue, never both.

    held_back: holds what both write. begin: called in there, and lets rescue come.
    """
    its = token(dsn, id)
    assert its is not None
    came: list[bool] = []

    def until_waiting(count: int) -> None:
        until(lambda: waiting_for_locks(dsn) >= count or token(dsn, id) is None, f"{count} that wait for its callback")

    def complete() -> None:
        try:
            member.call("complete_external", its)
        except awa.CallbackNotFound:
            came.append(False)
        else:
            came.append(True)

    sender = threading.Thread(target=complete)
    with held_back:
        begin()
        if rescue_first:
            until_waiting(1)
        sender.start()
        until_waiting(2)
    sender.join()
    row = member.call("get_job", id)
    assert (came, row.state) in [([True], COMPLETED), ([False], FAILED)]
    assert ["rescued" in entry["error"] for entry in row.errors] == [True] * (row.state is FAILED)
    for method in ("complete_external", "resume_external"):
        with pytest.raises(awa.CallbackNotFound):
            member.call(method, its)


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.parametrize("engine", ["queue", "canonical"])
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_jobs_whose_worker_is_killed_are_ended_once_by_their_callbacks_or_by_rescue(
    flavour: str, engine: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rescue, "LOOK_EVERY", 0.1)
    with Member(flavour, database, engine=engine) as member:
        member.call("migrate")
        # Somebody else leads, and resigns: a leader that is killed has no successor for a while.
        with (
            leader(database, Liveness(), engine=engine),
            victim(flavour, database, "callbacks", engine) as process,
        ):
            parked, late, waiting = (
                member.call("insert", {"kind": kind}, queue="q", max_attempts=1).id for kind in ("park", "park", "wait")
            )
            resumed = member.call("insert", {"kind": "wait"}, queue="q").id
            at_once = [member.call("insert", {"kind": kind}, queue="q", max_attempts=1).id for kind in ("park", "wait")]
            for id in (parked, late, waiting, resumed, *at_once):
                until(lambda id=id: member.call("get_job", id).state is WAITS, "a job that waits")  # type: ignore[misc]
            member.call("pause_queue", "q")
            registering = member.call("insert", {"kind": "wait"}, queue="q", max_attempts=1).id
            with held(database, IN_THE_WAY, registering):
                member.call("resume_queue", "q")
                until(lambda: waiting_for_locks(database), "the registration that is in the way of another one")
                senders = [
                    threading.Thread(target=member.call, args=("complete_external", token(database, id)))
                    for id in at_once
                ]
                for sender in senders:
                    sender.start()
                process.kill()
                process.wait()
                for sender in senders:
                    sender.join()
        until(lambda: token(database, registering), "what the dead one had sent")
        assert [member.call("get_job", id).state for id in at_once] == [COMPLETED] * 2
        old = token(database, resumed)
        assert member.call("resume_external", old, "go").state is JobState.RUNNING

        member.client.task(kind="wait")(App(member.client, is_async=not member.is_sync).handler(wait))
        with ExitStack() as stack:
            other = leader(database, engine=engine)
            row, begin = held(database, THE_ROW, registering), lambda: stack.enter_context(other)
            ends_once(member, database, registering, row, begin, rescue_first=True)
            for id, rescue_first in ((parked, False), (late, True), (waiting, False)):
                tables, its = held(database, THE_TABLES), token(database, id)
                ends_once(
                    member, database, id, tables, partial(member.call, "heartbeat_callback", its, 0.1),
                    rescue_first=rescue_first,
                )  # fmt: skip
            with member.worker({"q": 1}, liveness=QUICK) as crew:  # the one that was resumed goes on from its beginning
                until(lambda: token(database, resumed) not in {None, old}, "another attempt")
                with pytest.raises(awa.CallbackNotFound):
                    member.call("resume_external", old)
                member.call("resume_external", token(database, resumed))
                crew.drained()
        row = member.call("get_job", resumed)
        assert (row.state, row.attempt, [entry["error"] for entry in row.errors]) == (COMPLETED, 2, [RESCUED])
    assert ask(database, LEFT) == []
