"""`awa job`, `awa dlq`, `awa queue`: what they print, as tables and as JSON, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

import awa_sync
from awa_proto.job import Attempt, JobRow, JobState
from awa_proto.outcome import Transition
from awa_proto.store import Demand, Ended
from tests.test_cli import awa
from tests.web.waiting import parked


@pytest.fixture
def client(database: str) -> Iterator[awa_sync.Client]:
    with awa_sync.Client(database) as made:
        made.migrate()
        yield made


def failed(client: awa_sync.Client, count: int, **options: Any) -> list[JobRow]:
    """So many jobs that failed, newest first."""
    client.insert_many([{"n": n} for n in range(count)], kind="say", **options)
    store = client._application.store
    ring, _ = client.perform(store.survey(["default"]))
    attempts: list[Attempt] = list(client.perform(store.claim(1, ring, [Demand("default", count)])).attempts)
    at = datetime.now(UTC)
    traceback = 'Traceback (most recent call last):\n  File "jobs.py", line 3, in say'
    entry = {"error": "ValueError: [red]no[/red]\nand so on", "attempt": 1, "traceback": traceback}
    client.perform(store.finalize([Ended(a, Transition(JobState.FAILED, 1, at, entry=entry)) for a in attempts], 7))
    return client.list_jobs(state="failed")


def run(client: awa_sync.Client, *args: str, code: int = 0) -> str:
    """What a command prints; it must exit with the code."""
    assert isinstance(client._dsn, str)
    done = awa(*args, "--dsn", client._dsn)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if code == 0 else done.stderr


def test_jobs_are_listed_shown_retried_and_cancelled(client: awa_sync.Client) -> None:
    newest, oldest = failed(client, 2, tags=["t"], metadata={"tenant": 5})
    listed = run(client, "job", "list", "--state", "failed", "--tag", "t", "--metadata", '{"tenant": 5}')
    assert f"{newest.id} " in listed
    assert "ValueError: [red]no[/red]" in listed
    assert "more:" not in listed
    assert f"more: --before {newest.id}" in run(client, "job", "list", "--limit", "1")
    page = json.loads(run(client, "job", "list", "--limit", "1", "--json", "--before", str(newest.id)))
    assert [job["id"] for job in page["jobs"]] == [oldest.id]
    assert page["next"] is None
    assert (page["jobs"][0]["state"], page["jobs"][0]["args"], page["jobs"][0]["tags"]) == ("failed", {"n": 0}, ["t"])
    shown = run(client, "job", "get", str(oldest.id))
    lines = [line.strip() for line in shown.splitlines()]
    at = lines.index("Traceback (most recent call last):")
    assert lines[at - 2].split() == ["error", "ValueError:", "[red]no[/red]"], "line by line"
    assert lines[at - 1 : at + 3] == ["and so on", lines[at], 'File "jobs.py", line 3, in say', '{"attempt": 1}']
    assert "tenant" in shown
    assert json.loads(run(client, "job", "get", str(oldest.id), "--json"))["id"] == oldest.id
    assert run(client, "job", "retry", str(oldest.id)) == f"job {oldest.id} is available\n"
    assert run(client, "job", "cancel", str(oldest.id)) == f"job {oldest.id} is cancelled\n"
    assert "had ended" in run(client, "job", "cancel", str(oldest.id), code=1)
    assert "none" in run(client, "job", "list", "--kind", "nope")


def test_a_job_that_waits_is_shown_with_its_callback_and_until_when(client: awa_sync.Client) -> None:
    job, id = parked(client)
    waits = client.get_job(job)
    assert waits is not None
    assert waits.callback_timeout_at is not None
    shown = run(client, "job", "get", str(job)).splitlines()
    assert [line.split()[-1] for line in shown if line.startswith("callback id")] == [id]
    said = json.loads(run(client, "job", "get", str(job), "--json"))
    assert (said["callback_id"], said["callback_timeout_at"]) == (id, waits.callback_timeout_at.isoformat())
    client.complete_external(id)
    assert "callback" not in run(client, "job", "get", str(job))
    assert json.loads(run(client, "job", "get", str(job), "--json"))["callback_id"] is None


def test_dead_letters_are_listed_counted_retried_and_purged(client: awa_sync.Client) -> None:
    rows = failed(client, 4)
    for row in rows:
        client.move_to_dlq(row.id)
    last = rows[-1].id
    page = json.loads(run(client, "dlq", "list", "--limit", "3", "--json", "--reason", "moved"))
    assert [job["id"] for job in page["jobs"]] == [row.id for row in reversed(rows[1:])]
    assert page["jobs"][0]["id"] == last
    rest = run(client, "dlq", "list", "--before", page["next"])
    assert f"{rows[0].id} " in rest
    assert "failed (moved)" in rest
    assert (run(client, "dlq", "depth"), run(client, "dlq", "depth", "other")) == ("4\n", "0\n")
    assert run(client, "dlq", "retry", str(last)) == f"job {last} is available\n"
    assert run(client, "dlq", "retry", "--kind", "nope") == "0 run again\n"
    assert run(client, "dlq", "purge", str(rows[0].id)) == f"job {rows[0].id} is purged\n"
    assert "no dead letter" in run(client, "dlq", "purge", str(rows[0].id), code=1)
    assert run(client, "dlq", "purge", "--all") == "2 purged\n"


def test_queues_are_counted_paused_resumed_and_drained(client: awa_sync.Client) -> None:
    client.insert_many([{"n": n} for n in range(3)], kind="say", queue="mail")
    assert run(client, "queue", "pause", "mail", "--by", "me") == "queue mail is paused\n"
    shown = run(client, "queue", "stats")
    assert "mail" in shown
    assert "paused" in shown
    (stat,) = json.loads(run(client, "queue", "stats", "--json"))
    assert (stat["queue"], stat["available"], stat["paused"], stat["dlq"]) == ("mail", 3, True, 0)
    assert run(client, "queue", "resume", "mail") == "queue mail is not paused\n"
    assert run(client, "queue", "drain", "mail") == "3 cancelled\n"


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["job", "get", "999"], 1, "no job has the id 999"),
        (["job", "list", "--state", "avialable"], 2, "is none of"),
        (["job", "list", "--metadata", "{"], 2, "is no JSON"),
        (["job", "list", "--metadata", "[]"], 2, "is no JSON object"),
        (["job", "list", "--limit", "0"], 2, "limit"),
        (["job", "get", "x"], 2, "Invalid value"),
        (["dlq", "purge"], 2, "name a job, or conditions, or --all"),
        (["dlq", "retry"], 2, "name a job, or conditions, or --all"),
        (["dlq", "retry", "5", "--all"], 2, "not both"),
        (["dlq", "retry", "5"], 1, "no job has the id 5"),
        (["dlq", "list", "--before", "x"], 2, "is no place"),
        (["dlq", "list", "--reason", "x"], 2, "is none of"),
        (["queue", "drain", ""], 2, "queue"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(client: awa_sync.Client, args: list[str], code: int, says: str) -> None:
    assert says in run(client, *args, code=code)


def test_cron_jobs_are_listed_paused_triggered_edited_and_deleted(client: awa_sync.Client) -> None:
    client.put_cron_job("nightly", "0 3 * * *", {"n": 1}, kind="say", timezone="Europe/Berlin")
    listed = run(client, "cron", "list")
    assert "nightly" in listed
    assert "Europe/Berlin" in listed
    assert run(client, "cron", "pause", "nightly", "--by", "me") == "cron job nightly is paused\n"
    (shown,) = json.loads(run(client, "cron", "list", "--json"))
    assert (shown["paused_by"], shown["args"], shown["cron"]) == ("me", {"n": 1}, "0 3 * * *")
    assert shown["next_fire_at"] is not None
    assert run(client, "cron", "resume", "nightly") == "cron job nightly is not paused\n"
    assert run(client, "cron", "trigger", "nightly") == f"job {client.list_jobs()[0].id} is enqueued\n"
    edited = run(client, "cron", "edit", "nightly", "--cron", "5 4 * * *", "-q", "other")
    assert edited == "cron job nightly: 5 4 * * * in Europe/Berlin, queue other, priority 2\n"
    assert "cron:" in run(client, "cron", "edit", "nightly", "--cron", "x", code=2)
    assert run(client, "cron", "delete", "nightly") == "cron job nightly is deleted\n"
    for command in ("pause", "resume", "trigger", "edit", "delete"):
        assert "no cron job has the name 'nightly'" in run(client, "cron", command, "nightly", code=1)
