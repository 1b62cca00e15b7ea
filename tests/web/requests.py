"""Requests to the ingress as tests make them, and the three ways they are taken: by the core alone, by ASGI, by WSGI."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from awa_asyncio.web import callbacks_app as asgi_app
from awa_proto.callbacks.ingress import Answer, Head, Ingress
from awa_proto.callbacks.signature import sign
from awa_proto.job import JobState
from awa_proto.plan import Op, Plan
from awa_sync.web import callbacks_app as wsgi_app

ID = "0b0f5b5e-6d3c-4b39-9a55-3f1e0c6a7d21"
SECRET = "0123456789abcdef0123456789abcdef"
NOW = 1_800_000_000


@dataclass(frozen=True)
class Job:
    id: int
    state: JobState


@dataclass(frozen=True)
class Resolution:
    outcome: str
    job: Job
    reason: str | None = None


@dataclass
class Calls:
    """Calls that remember what they were asked, and end as they are told."""

    ends: Any = field(default_factory=lambda: Job(7, JobState.COMPLETED))
    asked: list[tuple[Any, ...]] = field(default_factory=list)

    def _op(self, *asked: Any) -> Op[Any]:
        def plan() -> Plan[Any]:
            self.asked.append(asked)
            if isinstance(self.ends, BaseException):
                raise self.ends
            yield from ()
            return self.ends

        return Op("called", plan)

    def complete_external(self, id: str, payload: Any = None, *, output: Any = None) -> Op[Any]:
        return self._op("complete", id, payload, output)

    def fail_external(self, id: str, error: str) -> Op[Any]:
        return self._op("fail", id, error)

    def resume_external(self, id: str, payload: Any = None) -> Op[Any]:
        return self._op("resume", id, payload)

    def heartbeat_callback(self, id: str, timeout: float = 3600) -> Op[Any]:
        return self._op("heartbeat", id, timeout)

    def resolve_callback(self, id: str, payload: Any = None, default_action: str = "ignore") -> Op[Any]:
        return self._op("resolve", id, payload, default_action)


@dataclass(frozen=True)
class Request:
    """One to be signed when it is taken, unless its headers have a signature (or None) already."""

    body: bytes = b"{}"
    action: str = "complete"
    id: str = ID
    method: str = "POST"
    path: str | None = None
    headers: Sequence[tuple[str, str | None]] = ()
    at: int = NOW
    secret: str = SECRET
    pieces: Sequence[bytes] | None = None
    chunked: bool = False

    @property
    def sent_to(self) -> str:
        return f"/api/callbacks/{self.id}/{self.action}" if self.path is None else self.path

    def sent_headers(self) -> list[tuple[str, str]]:
        given = dict.fromkeys(name.lower() for name, _ in self.headers)
        always = [
            ("awa-signature", sign(self.secret, self.id, self.action, self.body, self.at)),
            ("content-type", "application/json"),
            ("transfer-encoding", "chunked") if self.chunked else ("content-length", str(len(self.body))),
        ]
        own = [(name.lower(), value) for name, value in self.headers if value is not None]
        return [each for each in always if each[0] not in given] + own

    def sent_pieces(self) -> Sequence[bytes]:
        return (self.body,) if self.pieces is None else self.pieces


def joined(headers: Sequence[tuple[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in headers:
        found[name] = f"{found[name]},{value}" if name in found else value
    return found


@dataclass(frozen=True)
class Got:
    status: int
    body: bytes
    headers: Mapping[str, str]
    read: int
    """Bytes of the body that were taken."""

    @property
    def said(self) -> Any:
        return json.loads(self.body)


Take: TypeAlias = Callable[..., Got]


def taken_by_core(calls: Calls, request: Request, **settings: Any) -> Got:
    ingress = Ingress(calls, **settings_with_secret(settings))
    begun = ingress.begin(Head(request.method, request.sent_to, joined(request.sent_headers())))
    read = b""
    if isinstance(begun, Answer):
        answer = begun
    else:
        for piece in request.sent_pieces():
            read += piece
            if len(read) > begun.most:
                break
        wanted = ingress.finish(begun, read, NOW)
        if isinstance(wanted, Answer):
            answer = wanted
        else:
            try:
                answer = wanted.succeeded(run(wanted.op))
            except Exception as error:  # noqa: BLE001
                answer = wanted.failed(error)
    return Got(answer.status, answer.body, {name.lower(): value for name, value in answer.headers}, len(read))


def taken_by_asgi(calls: Calls, request: Request, **settings: Any) -> Got:
    app = asgi_app(AsyncClient(calls), **settings_with_secret(settings))
    return asyncio.run(through_asgi(app, request))


async def through_asgi(app: Any, request: Request, scope: Mapping[str, Any] | None = None) -> Got:
    pieces, read, sent = list(request.sent_pieces()), 0, []

    async def receive() -> dict[str, Any]:
        nonlocal read
        if not pieces:
            return {"type": "http.disconnect"}
        piece = pieces.pop(0)
        read += len(piece)
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in request.sent_headers()]
    about = {
        "type": "http",
        "method": request.method,
        "path": request.sent_to,
        "headers": headers,
        "http_version": "1.1",
    }
    await app({**about, **(scope or {})}, receive, send)
    start, body = sent
    return Got(start["status"], body["body"], {n.decode(): v.decode() for n, v in start["headers"]}, read)


def settings_with_secret(settings: dict[str, Any]) -> dict[str, Any]:
    return {"secrets": SECRET, **settings}


def taken_by_wsgi(calls: Calls, request: Request, **settings: Any) -> Got:
    app = wsgi_app(BlockingClient(calls), **settings_with_secret(settings))
    return through_wsgi(app, request)


def through_wsgi(app: Any, request: Request, environ: Mapping[str, Any] | None = None) -> Got:
    stream = io.BytesIO(b"".join(request.sent_pieces()))
    found: dict[str, Any] = {
        ("" if name.startswith("content-") else "HTTP_") + name.replace("-", "_").upper(): value
        for name, value in joined(request.sent_headers()).items()
    }
    path = request.sent_to.encode().decode("latin-1")
    about = {"REQUEST_METHOD": request.method, "PATH_INFO": path, "wsgi.input": stream}
    answered: list[Any] = []
    terminated = {"wsgi.input_terminated": True} if request.chunked else {}
    body = b"".join(app({**found, **about, **terminated, **(environ or {})}, lambda *said: answered.extend(said)))
    status, headers = answered
    return Got(int(status.split()[0]), body, {name.lower(): value for name, value in headers}, stream.tell())


TAKERS: dict[str, Take] = {"core": taken_by_core, "asgi": taken_by_asgi, "wsgi": taken_by_wsgi}


def run(op: Op[Any]) -> Any:
    plan = op.start()
    try:
        next(plan)
    except StopIteration as done:
        return done.value
    raise AssertionError("nothing is asked of a database here")


@dataclass
class BlockingClient:
    operations: Calls

    def perform(self, op: Op[Any]) -> Any:
        return run(op)


@dataclass
class AsyncClient:
    operations: Calls

    async def perform(self, op: Op[Any]) -> Any:
        return run(op)
