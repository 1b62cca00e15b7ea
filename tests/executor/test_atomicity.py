"""A transition and its follow-ups: never the one without the other, whenever the connection that writes them dies."""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

import awa_proto as awa
from tests.flavours import App

pytestmark = pytest.mark.chaos
TRIGGERS = 400
KILLS = 10


@dataclass
class Trigger:
    n: int


@dataclass
class Follow:
    of: int
    how: str


@contextmanager
def killer(dsn: str) -> Iterator[list[int]]:
    """Terminates the backends that write results, at random moments, as often as it may; says how many it met."""
    killed: list[int] = []
    is_over = threading.Event()

    def kill() -> None:
        chance = random.Random(5)
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not is_over.wait(chance.random() * 0.02) and len(killed) < KILLS:
                rows = connection.execute(
                    "SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND query LIKE '%200ms%' AND pid <> pg_backend_pid()"
                ).fetchall()
                killed.extend(pid for pid, _ in rows)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        is_over.set()
        thread.join()


def test_a_transition_and_its_follow_ups_are_written_together_while_backends_are_killed(
    run: Callable[..., None], database: str
) -> None:
    async def scenario(app: App) -> None:
        app.task(Follow, queue="follow")(lambda _job: None)
        app.on_completed_enqueue(Trigger)(lambda args, _job: Follow(args.n, "completed"))
        app.on_exhausted_enqueue(Trigger)(lambda args, _job, _error, _attempt: Follow(args.n, "exhausted"))
        app.on_retried_enqueue(Trigger)(lambda args, _job, _error, _attempt, _at: Follow(args.n, "retried"))

        @app.task(Trigger)
        def trigger(job: Any) -> Any:
            job.enqueue_on_completion(Follow(job.args.n, "staged"))
            match job.args.n % 5:
                case 0:
                    raise awa.TerminalError("for good")
                case 1:
                    return awa.RetryAfter(1000)
                case _:
                    return None

        rows = await app.client.insert_many([Trigger(n) for n in range(TRIGGERS)])
        with killer(database) as killed:
            await app.work()
        assert killed, "no backend was met while it wrote"
        made = Counter(
            (job.args["of"], job.args["how"]) for job in await app.client.list_jobs(kind="follow", limit=1000)
        )
        states = {job.id: job.state for job in await app.client.list_jobs(kind="trigger", limit=1000)}
        for n, row in enumerate(rows):
            wanted = {0: ["exhausted"], 1: ["retried"]}.get(n % 5, ["completed", "staged"])
            assert states[row.id] is {0: awa.JobState.FAILED, 1: awa.JobState.RETRYABLE}.get(
                n % 5, awa.JobState.COMPLETED
            )
            assert {how: times for (of, how), times in made.items() if of == n} == dict.fromkeys(wanted, 1), n

    run(scenario)
