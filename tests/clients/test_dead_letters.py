"""Dead letters through the clients of every package: what their calls return and refuse."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import awa_proto as awa
from tests.clients.test_clients import Add, run
from tests.flavours import Scenario

__all__ = ["run"]


async def dead(client: Any, *jobs: Any, **options: Any) -> list[Any]:
    """Dead letters: jobs that were cancelled could not be, so these failed by hand."""
    rows = await client.insert_many(jobs, **options)
    async with client.transaction() as tx:
        await tx.execute(
            "INSERT INTO awa.failed (id, state, finalized_at, priority, stripe, attempt, max_attempts, run_lease, run_at,"
            " created_at, queue, kind, args, extra) SELECT id, 5, now(), priority, stripe, 3, max_attempts, 7, run_at,"
            " created_at, queue, kind, args, extra FROM awa.ready WHERE id = ANY ($1::bigint[])",
            [row.id for row in rows],
        )
        await tx.execute("DELETE FROM awa.ready WHERE id = ANY ($1::bigint[])", [row.id for row in rows])
    return [await client.move_to_dlq(row.id) for row in rows]


def test_dead_letters_are_listed_counted_retried_and_purged(run: Callable[[Scenario], None]) -> None:
    async def scenario(client: Any) -> None:
        one, two, three = await dead(client, Add(1), Add(2), {"kind": "x"}, queue="q", tags=["t"])
        assert (one.state, one.dlq_reason, one.attempt) == (awa.JobState.FAILED, awa.DeadLetter.MOVED, 3)
        assert [row.id for row in await client.list_dlq()] == [three.id, two.id, one.id]
        page = await client.list_dlq(kind="add", queue="q", tag="t", reason="moved", limit=1)
        assert (page, page.next) == ([two], (two.dlq_at, two.id))
        page = await client.list_dlq(kind="add", reason=awa.DeadLetter.MOVED, limit=1, before=page.next)
        assert (page, page.next) == ([one], None)
        assert await client.get_dlq_job(one.id) == await client.get_job(one.id) == one
        assert (await client.dlq_depth(), await client.dlq_depth("q"), await client.dlq_depth("r")) == (3, 3, 0)
        (stat,) = await client.queue_stats()
        assert (stat.failed, stat.dlq) == (3, 3)
        later = datetime.now(UTC) + timedelta(hours=1)
        assert (await client.retry_from_dlq(one.id, run_at=later)).state is awa.JobState.SCHEDULED
        assert await client.get_dlq_job(one.id) is None
        assert await client.retry_all_from_dlq(kind="add") == 1
        assert (await client.get_job(two.id)).state is awa.JobState.AVAILABLE
        assert await client.purge_dlq_job(three.id) is True
        assert await client.purge_dlq_job(three.id) is False
        assert await client.get_job(three.id) is None

    run(scenario)


def test_failed_jobs_become_dead_letters_in_bulk(run: Callable[[Scenario], None]) -> None:
    async def scenario(client: Any) -> None:
        letters = await dead(client, *map(Add, range(5)))
        async with client.transaction() as tx:
            await tx.execute(
                "WITH gone AS (DELETE FROM awa.dlq RETURNING *) INSERT INTO awa.failed SELECT id, state, priority, stripe,"
                " attempt, max_attempts, run_lease, run_at, created_at, attempted_at, finalized_at, queue, kind, args, extra"
                " FROM gone"
            )
        assert await client.move_failed_to_dlq(kind="y") == 0
        assert await client.move_failed_to_dlq(queue="default", older_than=3600) == 0
        assert await client.move_failed_to_dlq(kind="add", limit=2) == 2
        assert await client.move_failed_to_dlq(allow_all=True) == 3
        assert await client.purge_dlq(reason="terminal_error") == 0
        assert await client.purge_dlq(older_than=timedelta(0)) == len(letters)

    run(scenario)


def test_what_is_no_dead_letter_is_told_apart(run: Callable[[Scenario], None]) -> None:
    async def scenario(client: Any) -> None:
        job = await client.insert(Add(1))
        for call in (client.retry_from_dlq, client.move_to_dlq):
            with pytest.raises(awa.ValidationError, match=f"job {job.id} is available"):
                await call(job.id)
            with pytest.raises(awa.JobNotFound):
                await call(2**60)
        (letter,) = await dead(client, Add(2))
        with pytest.raises(awa.ValidationError, match="is a dead letter"):
            await client.move_to_dlq(letter.id)
        assert await client.get_dlq_job(job.id) is None

    run(scenario)


def test_failed_jobs_are_retried_or_discarded_in_bulk_and_queues_drained(run: Callable[[Scenario], None]) -> None:
    async def scenario(client: Any) -> None:
        one, two = await dead(client, Add(1), Add(2), tags=["t"])
        assert await client.retry_failed(allow_all=True) == await client.discard_failed(allow_all=True) == 0
        assert await client.retry_all_from_dlq(tag="t") == 2
        assert await client.drain_queue("default") == 2
        assert (await client.get_job(one.id)).state is awa.JobState.CANCELLED
        assert await client.delete_job(one.id) is True
        assert await client.delete_job(one.id) is False
        with pytest.raises(awa.JobNotFound):
            await client.retry(one.id)
        with pytest.raises(awa.ValidationError, match="is available"):
            await client.delete_job((await client.retry(two.id)).id)

    run(scenario)
