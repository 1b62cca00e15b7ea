"""The ingress inside of applications of the frameworks that the docs name: a signed delivery ends a job that waits."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import Client

import awa_asyncio
import awa_sync
from awa_asyncio.testing import AwaTestClient
from awa_asyncio.web import callbacks_app as asgi_app
from awa_proto.job import JobRow, JobState
from awa_sync.web import callbacks_app as wsgi_app
from tests.test_docs import ROOT, blocks
from tests.web.requests import SECRET, Request, through_asgi
from tests.web.waiting import parked, request, row

HOOKS = "/api/callbacks"
Take = Callable[[Request], tuple[int, Any]]


def delivers(client: awa_sync.Client, take: Take) -> None:
    """What is signed is done, once, and what is not is refused, under the framework's own paths."""
    job, id = parked(client)
    forged = Request(b"{}", "complete", id, secret="some other secret, long enough")
    assert take(forged)[0] == 401
    assert row(client, job).state is JobState.WAITING_EXTERNAL
    signed = request(id, "complete", {"payload": {"é": 1}, "output": {"paid": True}})
    assert take(signed) == (200, {"id": job, "state": "completed"})
    assert row(client, job).output == {"paid": True}
    assert take(signed) == (404, {"error": "no job waits for this callback"})
    assert take(Request(path=f"{HOOKS}x/{id}/complete"))[0] == 404


def test_a_fastapi_application_takes_callbacks_where_it_is_mounted_and_opens_the_client(database: str) -> None:
    from fastapi import FastAPI

    jobs = awa_asyncio.Client(database)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with jobs:
            yield

    app = FastAPI(lifespan=lifespan)
    app.mount(HOOKS, asgi_app(jobs, SECRET, prefix=""))

    @app.get("/own/{n}")
    async def own(n: int) -> dict[str, int]:
        return {"n": n}

    async def taken(request: Request) -> tuple[int, Any]:
        about = {"query_string": b"", "root_path": "", "scheme": "http", "server": ("app", 80), "client": None}
        async with app.router.lifespan_context(app):
            got = await through_asgi(app, request, about)
        return got.status, got.said

    def take(request: Request) -> tuple[int, Any]:
        return asyncio.run(taken(request))

    with awa_sync.Client(database) as client:
        client.migrate()
        delivers(client, take)
        assert take(Request(b"", method="GET", path="/own/7")) == (200, {"n": 7})


def test_the_shop_of_the_docs_charges_waits_for_a_signed_request_and_sends_a_mail(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (shop,) = (block for block, _ in blocks(ROOT / "docs" / "ingress.md") if "FastAPI" in block)
    (tmp_path / "shop_of_the_docs.py").write_text(shop)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("AWA_DATABASE_URL", database)
    monkeypatch.setenv("SHOP_SECRET", SECRET)
    module: Any = importlib.import_module("shop_of_the_docs")

    async def sold() -> JobRow:
        until = AwaTestClient(module.client).until
        async with module.app.router.lifespan_context(module.app):
            waits = await until(await module.place(7, 995), JobState.WAITING_EXTERNAL)
            assert waits.callback_id is not None
            signed = request(waits.callback_id, "resume", {"payload": {"receipt": "R-7"}})
            got = await through_asgi(module.app, signed, {"query_string": b"", "root_path": ""})
            assert (got.status, got.said) == (200, {"id": waits.id, "state": "available"})
            done = await until(waits, JobState.COMPLETED)
            (mail,) = await module.client.list_jobs(kind="send_receipt")
            await until(mail, JobState.COMPLETED)
            return done

    assert asyncio.run(sold()).output == {"receipt": "R-7"}
    assert capsys.readouterr().out.splitlines()[1:] == ["mail: receipt R-7 of order 7"]


def below(application: Any, client: awa_sync.Client) -> DispatcherMiddleware:
    """An application of WSGI with the ingress beside its own paths, as the docs show it."""
    return DispatcherMiddleware(application, {HOOKS: wsgi_app(client, SECRET, prefix="")})


def sent(http: Client, request: Request) -> tuple[int, Any]:
    """By a client of werkzeug, which is also that of Flask."""
    got = http.open(request.sent_to, method=request.method, data=request.body, headers=dict(request.sent_headers()))
    return got.status_code, got.get_json(silent=True)


def test_a_flask_application_takes_callbacks_where_it_is_mounted(database: str) -> None:
    from flask import Flask

    app = Flask("shop")

    @app.get("/own/<int:n>")
    def own(n: int) -> dict[str, int]:
        return {"n": n}

    with awa_sync.Client(database) as client:
        client.migrate()
        app.wsgi_app = below(app.wsgi_app, client)  # type: ignore[method-assign]
        with app.test_client() as http:
            delivers(client, lambda request: sent(http, request))
            assert http.get("/own/7").get_json() == {"n": 7}


def test_a_django_application_takes_callbacks_where_it_is_mounted(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.conf import settings
    from django.core.wsgi import get_wsgi_application
    from django.http import HttpRequest, JsonResponse
    from django.urls import path

    def own(_: HttpRequest, n: int) -> JsonResponse:
        return JsonResponse({"n": n})

    monkeypatch.setattr(sys.modules[__name__], "urlpatterns", [path("own/<int:n>", own)], raising=False)
    settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["localhost"], LOGGING_CONFIG=None, USE_TZ=True)
    with awa_sync.Client(database) as client:
        client.migrate()
        http = Client(below(get_wsgi_application(), client))
        delivers(client, lambda request: sent(http, request))
        assert http.get("/own/7").get_json() == {"n": 7}
