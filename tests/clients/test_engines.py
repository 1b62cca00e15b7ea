"""Which engine a client is of: where its jobs are kept. What becomes of them is the same; tests/executor shows that on both."""

from typing import Any

import psycopg
import pytest

from tests.flavours import FLAVOURS, App


def held(dsn: str) -> dict[str, int]:
    """How many rows the tables of both engines hold."""
    with psycopg.connect(dsn) as connection:
        return {
            table: connection.execute(f"SELECT count(*) FROM awa.{table}".encode()).fetchall()[0][0]
            for table in ("ready", "deferred", "jobs_hot", "scheduled_jobs")
        }


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_client_keeps_its_jobs_in_its_engine_and_its_workers_work_them(flavour: str, database: str) -> None:
    async def scenario(client: Any) -> None:
        app = App(client, is_async=not flavour.startswith("sync"))
        app.task(kind="k")(lambda _job: None)
        await client.insert({"kind": "k"})
        await client.insert_many([{"kind": "k"}] * 3)
        await client.enqueue_many([{"kind": "k"}] * 5)
        await app.work()
        (stat,) = await client.queue_stats()
        assert stat.completed == 9

    FLAVOURS[flavour](database, scenario, engine="canonical")
    assert held(database) == {"ready": 0, "deferred": 0, "jobs_hot": 9, "scheduled_jobs": 0}
    FLAVOURS[flavour](database, lambda client: client.insert({"kind": "k"}), engine="queue")
    assert held(database)["ready"] == 1


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_the_output_of_a_job_that_another_engine_holds_is_kept_where_that_one_keeps_outputs(
    flavour: str, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def enqueue(client: Any) -> None:
        await client.insert_many([{"kind": "good"}, {"kind": "bad"}])

    async def scenario(client: Any) -> None:
        app = App(client, is_async=not flavour.startswith("sync"))

        @app.task(kind="bad")
        def bad(job: Any) -> None:
            job.set_output({"rows": 3})
            raise RuntimeError("after three rows")

        app.task(kind="good")(lambda job: job.set_output({"rows": 3}))
        good = await app.test.work_one("good")
        assert (good.outcome, good.job.output) == ("completed", {"rows": 3})
        assert (await app.test.work_one("bad")).job.error_output_as(dict) == {"rows": 3}

    FLAVOURS[flavour](database, enqueue, engine="queue")
    FLAVOURS[flavour](database, scenario, engine="canonical")
    assert [record.message for record in caplog.records if "output" in record.message] == []
