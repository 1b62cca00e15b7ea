"""What hooks and follow-ups are told when upkeep ends an attempt that its worker did not: after the commit, best effort.

The worker that is dead here has claimed, and was never heard of again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import awa_proto as awa
from awa_proto.events import Exhausted, Rescued
from awa_proto.store import Demand, WorkerInfo
from tests.flavours import App

QUICK = awa.Liveness(heartbeat_interval=0.1, stale_after=1.0, rescue_interval=0.2, deadline_interval=0.2)
Run = Callable[..., None]


@dataclass
class Fragile:
    """Args of a job whose worker dies."""

    n: int


@dataclass
class Report:
    """Args of a follow-up."""

    n: int
    said: list[Any]


async def claimed_by_the_dead(app: App, *jobs: tuple[int, int]) -> list[Any]:
    """Jobs (number, max_attempts) that a worker has claimed which is no more."""
    rows = [await app.client.insert(Fragile(n), max_attempts=most) for n, most in jobs]
    client = getattr(app.client, "blocking", app.client)
    store = client._application.store
    instance = (await app.client.perform(store.register(WorkerInfo(("default",))))).instance
    await app.client.perform(store.unregister(instance))
    ring, _ = await app.client.perform(store.survey(["default"]))
    claimed = await app.client.perform(store.claim(instance, ring, [Demand("default", 10)]))
    assert [attempt.id for attempt in claimed.attempts] == [row.id for row in rows]
    return rows


async def until_ended(app: App, rows: Sequence[Any], holds: Callable[[], bool]) -> list[Any]:
    """Work until all have ended and that holds; the rows then."""
    async with app.client.worker({"default": 4}, liveness=QUICK):
        while True:
            found = [await app.client.get_job(row.id) for row in rows]
            if all(row.state.is_terminal for row in found) and holds():
                return found


def test_rescued_is_told_and_exhausted_too_on_the_last_attempt(run: Run) -> None:
    async def scenario(app: App) -> None:
        told: list[tuple[int, str, Any]] = []

        app.task(Fragile)(lambda job: job.set_output("second attempt"))

        @app.on_event(Fragile)
        def note(event: Any) -> None:
            assert event.args == Fragile(event.args.n)
            if isinstance(event, Rescued):
                assert event.reason is awa.RescueReason.STALE_HEARTBEAT
                told.append((event.args.n, "Rescued", event.job.state))
            elif isinstance(event, Exhausted):
                told.append((event.args.n, "Exhausted", event.error))

        rows = await claimed_by_the_dead(app, (1, 1), (2, 5))
        failed, done = await until_ended(app, rows, lambda: len(told) == 3)
        why = "rescued: heartbeat stale, its worker is presumed dead"
        assert sorted(each for each in told if each[0] == 1) == [(1, "Exhausted", why), (1, "Rescued", "failed")]
        assert [each for each in told if each[0] == 2] == [(2, "Rescued", "retryable")]
        assert (failed.state, failed.output, [entry["error"] for entry in failed.errors]) == ("failed", None, [why])
        assert (done.state, done.attempt, [entry["error"] for entry in done.errors]) == ("completed", 2, [why])
        keeps = getattr(app.client, "blocking", app.client)._application.store.keeps_outputs
        assert done.output == ("second attempt" if keeps else None)

    run(scenario)


def test_follow_ups_of_a_rescue_are_made_after_it_and_one_that_raises_leaves_it_as_it_is(run: Run) -> None:
    async def scenario(app: App) -> None:
        app.task(Fragile)(lambda _job: None)

        @app.on_rescued_enqueue(Fragile)
        def rescued(args: Fragile, job: awa.JobRow, reason: awa.RescueReason) -> awa.EnqueueRequest:
            if args.n == 3:
                raise ValueError("no follow-up of this one")
            return awa.EnqueueRequest(Report(args.n, ["rescued", job.state, reason])).queue("reports")

        @app.on_exhausted_enqueue(Fragile)
        def exhausted(args: Fragile, job: awa.JobRow, error: str, attempt: int) -> awa.EnqueueRequest:
            return awa.EnqueueRequest(Report(args.n, ["exhausted", job.state, attempt])).queue("reports")

        rows = await claimed_by_the_dead(app, (1, 1), (2, 5), (3, 1))
        found = await until_ended(app, rows, lambda: True)
        assert [row.state for row in found] == ["failed", "completed", "failed"]
        reports = sorted((job.args["n"], *job.args["said"]) for job in await app.client.list_jobs(queue="reports"))
        assert reports == [
            (1, "exhausted", "failed", 1),
            (1, "rescued", "failed", "stale_heartbeat"),
            (2, "rescued", "retryable", "stale_heartbeat"),
            (3, "exhausted", "failed", 1),
        ]

    run(scenario)
