"""The way to queue storage, walked by processes of both engines, some of which are killed on it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

import awa_sync
from awa_proto.store.canonical.switch import storage_status
from tests.fleet.ledger import states
from tests.fleet.members import PATIENCE, Member
from tests.test_cli import ROOT, awa

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

SOME = 150
"""How many attempts are run between what happens."""
OPEN = """
SELECT h.id, i.pid FROM awa.jobs_hot h LEFT JOIN awa.instances i ON i.id = h.instance WHERE h.state = 2
UNION ALL
SELECT c.job_ids[place], i.pid FROM awa.claims c CROSS JOIN LATERAL generate_series(1, cardinality(c.job_ids)) place
LEFT JOIN awa.instances i ON i.id = c.instance
WHERE NOT EXISTS (SELECT FROM awa.closures k WHERE k.claim_id = c.claim_id AND (place - 1)::smallint = ANY (k.idx))
"""
"""Jobs that run, and the process that claimed them."""


class Staff:
    """The processes of a test and their books."""

    def __init__(self, dsn: str, directory: Path, stack: ExitStack) -> None:
        self._dsn = dsn
        self._directory = directory
        self._stack = stack
        self.killed: set[int] = set()

    def hire(self, role: str, flavour: str, engine: str, number: int = 0) -> subprocess.Popen[bytes]:
        """A process that works, or that produces jobs, which it numbers from `number` on."""
        book = self._directory / f"{len(list(self._directory.iterdir()))} {role} {engine}"
        book.touch()
        command = [
            sys.executable,
            "-m",
            "tests.fleet.process",
            role,
            flavour,
            engine,
            self._dsn,
            str(book),
            str(number),
        ]
        process = self._stack.enter_context(subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}))
        self._stack.callback(process.kill)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """At once, whatever it is doing."""
        process.kill()
        assert process.wait(PATIENCE) < 0, "it was over before"
        self.killed.add(process.pid)

    def stop(self, *processes: subprocess.Popen[bytes]) -> None:
        """In good order."""
        for process in processes:
            process.terminate()
        assert [process.wait(PATIENCE) for process in processes] == [0] * len(processes)

    def lines(self, role: str) -> list[list[str]]:
        """What stands in the books of a role."""
        books = [book for book in self._directory.iterdir() if f" {role} " in book.name]
        return [line.split() for book in books for line in book.read_text().splitlines()]

    def ended(self, engine: str = "") -> int:
        """How many attempts their handlers have ended, those of one engine or all."""
        books = self._directory.glob(f"* work {engine}*")
        return sum(line.startswith("e") for book in books for line in book.read_text().splitlines())


def until(happens: Callable[[], object]) -> None:
    """Look until it has happened."""
    end = time.monotonic() + PATIENCE
    while not happens():
        assert time.monotonic() < end, "what the test waits for did not happen"
        time.sleep(0.05)


@pytest.mark.timeout(240)
def test_nothing_is_lost_or_run_twice_when_processes_of_both_engines_are_killed_on_the_way(
    database: str, tmp_path: Path
) -> None:
    """Each attempt ran once, and what does not end is what a killed worker had claimed: there is no rescue."""
    with awa_sync.Client(database) as client:
        client.migrate()
    with ExitStack() as stack:
        staff = Staff(database, tmp_path, stack)
        old = [staff.hire("work", flavour, "canonical") for flavour in ("asyncio-asyncpg", "sync")]
        new = [staff.hire("work", flavour, "queue") for flavour in ("trio", "asyncio-psycopg")]
        producers = [
            staff.hire("produce", flavour, engine, place * 1_000_000)
            for place, (flavour, engine) in enumerate(
                [("sync", "canonical"), ("asyncio-asyncpg", "canonical"), ("trio", "queue"), ("sync", "canonical")]
            )
        ]
        until(lambda: staff.ended("canonical") > SOME and staff.ended("queue") > SOME)
        staff.kill(old[0])
        staff.kill(new[0])
        new[0] = staff.hire("work", "sync", "queue")
        assert awa("storage", "switch", "--dsn", database).returncode == 0
        staff.kill(producers.pop())
        so_far = staff.ended()
        until(lambda: staff.ended() > so_far + SOME)
        staff.kill(old[1])
        so_far = staff.ended()
        until(lambda: staff.ended() > so_far + SOME)
        staff.stop(*producers)
        with psycopg.connect(database, autocommit=True) as connection:
            until(lambda: _is_over(connection, staff.killed))
            left: dict[int, int] = dict(connection.execute(OPEN).fetchall())
        staff.stop(*new)
    assert set(left.values()) <= staff.killed
    _check(staff, database, left)


def _is_over(connection: psycopg.Connection, killed: set[int]) -> bool:
    """Whether all jobs have ended but those that died with their worker."""
    waiting = connection.execute("SELECT FROM awa.jobs WHERE state IN ('available', 'scheduled', 'retryable') LIMIT 1")
    return not waiting.fetchall() and {pid for _, pid in connection.execute(OPEN)} <= killed


def _check(staff: Staff, dsn: str, left: dict[int, int]) -> None:
    begun = Counter((int(n), int(attempt)) for what, n, attempt in staff.lines("work") if what == "b")
    ended = Counter((int(n), int(attempt)) for what, n, attempt in staff.lines("work") if what == "e")
    assert [run for run, times in (begun + ended).items() if times > 2 or begun[run] > 1] == []
    enqueued = {int(n) for what, n in staff.lines("produce") if what == "c"}
    in_doubt = {int(n) for what, n in staff.lines("produce") if what == "w"} - enqueued
    with Member("sync", dsn) as member:
        found = states(member)
        rows = {n: row for n, (row, *more) in found.items() if not more}
        status = member.call("perform", storage_status("awa"))
    assert len(rows) == len(found), "a job is there twice"
    assert enqueued <= rows.keys() <= enqueued | in_doubt
    assert len(in_doubt) <= 20
    runs: dict[int, list[int]] = {}
    for n, attempt in begun:
        runs.setdefault(n, []).append(attempt)
    for n, (state, attempt) in rows.items():
        has_run = sorted(runs.get(n, ()))
        assert has_run in ([*range(1, attempt + 1)], [*range(1, attempt)] if state == "running" else None), (n, state)
        assert state in {"completed", "running"}
        assert all(ended[n, each] for each in range(1, attempt + (state == "completed")))
    assert sum(state == "running" for state, _ in rows.values()) == len(left)
    assert runs.keys() <= rows.keys(), "a job ran that nobody enqueued"
    assert not any(
        status.canonical[state] for state in status.canonical if state.value in {"available", "scheduled", "retryable"}
    )
