"""The field of a chaos: a server, processes of one package on it, and the faults. Every wait is for a line or a state."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import psycopg
import pytest

from awa_sync.cli.embedded import Server
from tests.chaos.account import POISON, POISON_ATTEMPTS, Account, Row
from tests.chaos.process import QUEUE
from tests.fleet.members import PATIENCE, Member
from tests.fleet.server import ask, terminate_all
from tests.test_cli import ROOT

WORKERS = 3
PRODUCERS = 2
SOME = 20
"""Attempts that are ended between two faults."""


class Field:
    """Workers and producers of one flavour. Leaving kills whoever is left."""

    def __init__(self, server: Server, directory: Path, flavour: str, seed: object) -> None:
        self.account = Account()
        self.chance = random.Random(f"{seed} {flavour}")
        self._server = server
        self._directory = directory
        self._flavour = flavour
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._producers: dict[str, subprocess.Popen[bytes]] = {}
        self._read: dict[str, int] = {}
        self._stack = ExitStack()
        self._client = Member("sync", server.dsn)
        self._is_closing = False

    def __enter__(self) -> Self:
        self._stack.enter_context(self._client)
        self._client.call("migrate")
        for _ in range(WORKERS):
            self._hire("work", self._workers)
        for place in range(PRODUCERS):
            self._hire("produce", self._producers, place * 1_000_000)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    # waiting

    def until(self, holds: Callable[[], object], what: str) -> None:
        """Ask again and again until it holds; meanwhile read the books, and replace workers that jobs have killed.

        Patience is for a field in which no attempt ends.
        """
        ended, end = -1, 0.0
        while True:
            self._tend()
            if self.account.ended > ended:
                ended, end = self.account.ended, time.monotonic() + PATIENCE
            if holds():
                return
            if time.monotonic() > end:
                pytest.fail(f"did not happen: {what}; {self._left()}")
            time.sleep(0.01)

    def progress(self) -> None:
        """Wait until some more attempts were ended."""
        enough = self.account.ended + SOME
        self.until(lambda: self.account.ended >= enough, "work")

    # faults

    def kill_mid_batch(self) -> None:
        """A worker that has just begun a job."""
        name = self._victim()
        begun = self._begun(name)
        self.until(
            lambda: name not in self._workers or self._begun(name) > begun, f"a job of {name}, which is to be killed"
        )
        if name in self._workers:  # else poison was faster
            self._kill(name)

    def kill_mid_flush(self) -> None:
        """A worker whose results are being written: afterwards they are, or are not, by chance."""
        self._kill_while_waiting("closures")

    def kill_mid_claim(self) -> None:
        """A worker whose claim is under way: afterwards it is committed, or is not, by chance."""
        self._kill_while_waiting("claims")

    def terminate(self) -> None:
        """End half of all connections."""
        terminate_all(self._server.dsn, "random() < 0.5")

    def restart(self) -> None:
        """Stop the server in good order, whoever is connected, and start it."""
        self._stop("fast")
        self._server.restart()

    def crash(self) -> None:
        """The server dies without cleaning up, and starts."""
        begun = time.time()
        if self.chance.random() < 0.5:
            self._server.crash()
        else:
            self._stop("immediate")
        self._server.restart()
        self.account.crashes.append((begun, time.time()))

    def poison(self) -> None:
        """A job that kills each worker it runs on."""
        n = POISON + len(self.account.wanted)
        self.account.wanted.add(n)
        self._client.call("insert", {"kind": "poison", "n": n}, queue=QUEUE, priority=1, max_attempts=POISON_ATTEMPTS)
        self.account.sure.add(n)

    # the end

    def finish(self) -> None:
        """Enqueue no more, wait until nothing is left to do, stop everybody."""
        self.until(lambda: self._producers.keys() <= self.account.up, "all producers")
        for process in self._producers.values():
            process.terminate()
        self.until(lambda: all(process.poll() is not None for process in self._producers.values()), "their last batch")
        assert {process.poll() for process in self._producers.values()} == {0}
        self.until(self._is_idle, "the end of all jobs")
        self.until(lambda: self._workers.keys() <= self.account.up, "all workers")
        self._is_closing = True
        for process in self._workers.values():
            process.terminate()
        assert {process.wait(PATIENCE) for process in self._workers.values()} == {0}
        self._tend()

    def rows(self) -> list[Row]:
        """Every job as the database has it."""
        jobs = "SELECT (args->>'n')::bigint, state, attempt::int, run_lease FROM awa.jobs"
        return [Row._make(row) for row in ask(self._server.dsn, jobs)]

    # inside

    def _left(self) -> str:
        """What has not ended, who lives and who leads, for a person to read."""
        asked = (
            "SELECT clock_timestamp()::text, state, count(*) FROM awa.jobs GROUP BY state",
            "SELECT kind, id, state, attempt, attempted_at::text FROM awa.jobs WHERE finalized_at IS NULL LIMIT 3",
            "SELECT id, pid, heartbeat_at::text FROM awa.instances",
            "SELECT * FROM awa.leader",
        )
        return "\n".join(str(ask(self._server.dsn, sql)) for sql in asked)

    def _is_idle(self) -> bool:
        """Whether all jobs have ended. The counts are of several moments, between which a job may pass them by."""
        stats = self._client.call("queue_stats")
        if any(s.available + s.running + s.scheduled + s.retryable + s.waiting_external for s in stats):
            return False
        return not ask(self._server.dsn, "SELECT id FROM awa.jobs WHERE state NOT IN ('completed', 'failed') LIMIT 1")

    def _hire(self, role: str, among: dict[str, subprocess.Popen[bytes]], number: int = 0) -> None:
        name = f"{role}{len(self._read)}"
        self._read[name] = 0
        book = self._directory / name
        book.touch()
        dsn = f"{self._server.dsn}&application_name={name}"
        command = [sys.executable, "-m", "tests.chaos.process", role, self._flavour, dsn, str(book), str(number)]
        process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)})
        among[name] = self._stack.enter_context(process)
        self._stack.callback(process.kill)

    def _tend(self) -> None:
        for name in self._read:
            self._look_into(name)
        for name, process in [*self._workers.items()]:
            if not self._is_closing and process.poll() is not None:
                assert process.poll() == -9, f"{name} ended by itself, with {process.poll()}"
                self._look_into(name)  # what it wrote since, before a job killed it
                assert name in self.account.deaths, f"nobody killed {name}"
                del self._workers[name]
                self._hire("work", self._workers)

    def _look_into(self, name: str) -> None:
        with (self._directory / name).open("rb") as book:
            book.seek(self._read[name])
            new = book.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read[name] += len(whole)
        self.account.read(name, whole.decode().splitlines())

    def _victim(self) -> str:
        """A worker that works already."""
        self.until(lambda: any(self._begun(name) for name in self._workers), "a worker that works")
        return self.chance.choice([name for name in self._workers if self._begun(name)])

    def _begun(self, name: str) -> int:
        """How much it has written but that it is up."""
        return max(0, self._read[name] - len("u\n"))

    def _kill(self, name: str) -> None:
        process = self._workers[name]
        self.account.deaths.setdefault(name, time.time())
        process.kill()
        process.wait()
        self._tend()

    def _kill_while_waiting(self, table: str) -> None:
        name = self._victim()
        its = "FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"
        with self._held(table), psycopg.connect(self._server.dsn, autocommit=True) as watch:
            self.until(
                lambda: name not in self._workers or watch.execute(f"SELECT {its}".encode(), [name]).fetchall(),
                f"a statement of {name} that waits for {table}",
            )
            if name not in self._workers:  # poison was faster
                return
            self._kill(name)
            if self.chance.random() < 0.5:
                watch.execute(f"SELECT pg_terminate_backend(pid) {its}".encode(), [name])

    @contextmanager
    def _held(self, table: str) -> Iterator[None]:
        """Nobody writes to the table meanwhile."""
        with psycopg.connect(self._server.dsn) as holder:
            holder.execute(f"LOCK TABLE awa.{table} IN SHARE ROW EXCLUSIVE MODE".encode())
            yield
            holder.rollback()

    def _stop(self, mode: str) -> None:
        cluster = self._server._own()
        cluster._ask("pg_ctl", "-D", cluster.data, "-m", mode, "-w", "-t", "60", "stop")
