"""The ingress before a real database: on both engines, by both applications."""

from __future__ import annotations

import asyncio
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import pytest

import awa_asyncio
import awa_sync
from awa_asyncio.web import callbacks_app as asgi_app
from awa_proto.callbacks.expressions import compile_expressions
from awa_proto.job import JobState
from awa_sync.web import callbacks_app as wsgi_app
from tests.web.requests import SECRET, Request, through_asgi, through_wsgi
from tests.web.waiting import parked, request, row


@contextmanager
def asgi(dsn: str, engine: Literal["queue", "canonical"]) -> Iterator[Callable[[Request], Any]]:
    async def take(request: Request) -> Any:
        async with awa_asyncio.Client(dsn, engine=engine) as client:
            return await through_asgi(asgi_app(client, SECRET), request)

    yield lambda request: asyncio.run(take(request))


@contextmanager
def wsgi(dsn: str, engine: Literal["queue", "canonical"]) -> Iterator[Callable[[Request], Any]]:
    with awa_sync.Client(dsn, engine=engine) as client:
        app = wsgi_app(client, SECRET)
        yield lambda request: through_wsgi(app, request)


@pytest.mark.parametrize("engine", ["queue", "canonical"])
@pytest.mark.parametrize("application", [asgi, wsgi])
def test_each_action_does_to_a_waiting_job_what_it_says_and_once(
    database: str, application: Any, engine: Literal["queue", "canonical"]
) -> None:
    with awa_sync.Client(database, engine=engine) as client, application(database, engine) as take:
        client.migrate()
        job, id = parked(client)
        refused = Request(b"{}", "complete", id, at=int(time.time()), secret="some other secret, long enough")
        assert take(refused).status == 401
        assert take(request(id, "complete", {"output": "x" * 5000})).status == 400
        heartbeat = take(request(id, "heartbeat", {"timeout_seconds": 60}))
        assert (heartbeat.status, heartbeat.said) == (200, {"id": job, "state": "waiting_external"})
        assert row(client, job).state is JobState.WAITING_EXTERNAL
        done = take(request(id, "complete", {"payload": {"any": 1}, "output": {"paid": True}}))
        assert (done.status, done.said) == (200, {"id": job, "state": "completed"})
        if engine == "queue":
            assert row(client, job).output == {"paid": True}
        for action, body in (("complete", None), ("fail", {"error": "late"}), ("resume", None), ("resolve", None)):
            again = take(request(id, action, body))
            assert (again.status, again.said) == (404, {"error": "no job waits for this callback"})
        assert row(client, job).state is JobState.COMPLETED

        job, id = parked(client)
        assert take(request(id, "fail", {"error": 5})).said == {"error": "error: text is needed, not int"}
        assert take(request(id, "fail", {"error": "declined\0\ud800"})).said == {"id": job, "state": "failed"}
        assert row(client, job).errors[-1]["error"] == "declined\N{REPLACEMENT CHARACTER}?"

        job, id = parked(client)
        assert take(request(id, "resume", {"payload": [1]})).said == {"id": job, "state": "available"}


@pytest.mark.parametrize("engine", ["queue", "canonical"])
@pytest.mark.parametrize("application", [asgi, wsgi])
def test_who_resumes_a_job_that_a_newer_one_has_displaced_is_told_of_the_conflict_and_nothing_else(
    database: str, application: Any, engine: Literal["queue", "canonical"]
) -> None:
    with awa_sync.Client(database, engine=engine) as client, application(database, engine) as take:
        client.migrate()
        job, id = parked(client, unique_opts={})
        newer = client.insert({"order": 1}, kind="pay", queue="q", unique_opts={})
        got = take(request(id, "resume", {"payload": "go"}))
        assert (got.status, list(got.said)) == (409, ["error"])
        assert not {str(newer.id), str(job), "pay"} & set(re.findall(r"\w+", got.said["error"]))
        assert row(client, job).state is JobState.CANCELLED
        assert row(client, newer.id).state is JobState.AVAILABLE
        assert take(request(id, "resume", {"payload": "go"})).status == 404


@pytest.mark.parametrize("application", [asgi, wsgi])
def test_expressions_decide_about_what_is_resolved(database: str, application: Any) -> None:
    rules = compile_expressions(
        filter='payload.type.startsWith("pay")',
        on_fail='payload.type == "pay.no"',
        on_complete='payload.type == "pay.yes"',
    )
    with awa_sync.Client(database) as client, application(database, "queue") as take:
        client.migrate()
        job, id = parked(client, rules)
        ignored = take(request(id, "resolve", {"payload": {"type": "ship"}, "default_action": "complete"}))
        reason = "filter expression returned false"
        assert ignored.said == {"id": job, "state": "waiting_external", "outcome": "ignored", "reason": reason}
        too_large = take(request(id, "resolve", {"payload": {"type": "pay.yes", "of": [0] * 1001}}))
        assert (too_large.status, "1001 entries" in too_large.said["error"]) == (400, True)
        assert take(request(id, "resolve", {"default_action": "retry"})).status == 400
        assert row(client, job).state is JobState.WAITING_EXTERNAL
        done = take(request(id, "resolve", {"payload": {"type": "pay.yes"}}))
        assert done.said == {"id": job, "state": "completed", "outcome": "completed"}
        job, id = parked(client, rules)
        assert take(request(id, "resolve", {"payload": {"type": "pay.no"}})).said["outcome"] == "failed"
        assert row(client, job).errors[-1]["expression"] == 'payload.type == "pay.no"'


def test_without_the_library_expressions_change_nothing_and_are_said_to_be_not_possible(
    database: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from awa_proto.callbacks import cel

    with awa_sync.Client(database) as client, wsgi(database, "queue") as take:
        client.migrate()
        job, id = parked(client, compile_expressions(filter="payload == 99"))
        cel._compiled.cache_clear()
        monkeypatch.setitem(sys.modules, "cel_expr_python", None)
        assert take(request(id, "resolve", {"payload": 1})).status == 503
        assert "awa-queue[cel]" in caplog.text
        assert row(client, job).state is JobState.WAITING_EXTERNAL


def test_the_health_of_a_client_says_of_which_kinds_it_ended_jobs_and_knows_nothing(database: str) -> None:
    with awa_sync.Client(database) as client:
        client.migrate()
        app = wsgi_app(client, SECRET)

        @client.task(kind="known")
        def known(_: object) -> None: ...

        for kind in ("known", "pay"):
            _, id = parked(client, kind=kind)
            assert through_wsgi(app, request(id, "complete")).status == 200
        said = [problem for problem in client.health().problems if "callbacks" in problem]
    assert len(said) == 1
    assert said[0].startswith("callbacks ended jobs of the kind 'pay', which this client does not know")


def test_a_database_that_is_away_is_503_and_nothing_of_it_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        dsn = f"postgresql://someone:hunter2@127.0.0.1:{free.getsockname()[1]}/secret"
        client = awa_sync.Client(dsn, statement_timeout=1)
        got = through_wsgi(wsgi_app(client, SECRET), request("0b0f5b5e-6d3c-4b39-9a55-3f1e0c6a7d21", "complete"))
        client.close()
    assert (got.status, got.said) == (503, {"error": "not possible at the moment; send it again later"})
    assert "a callback could not be carried out" in caplog.text
