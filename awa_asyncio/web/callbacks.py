"""The ASGI application of the ingress: Starlette speaks ASGI, and `awa_proto` decides."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Router
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketClose
from typing_extensions import Unpack

from awa_proto.callbacks.ingress import Answer, Call, Head, Ingress, IngressSettings, Reading, refuse_other_clients
from awa_proto.callbacks.signature import Secret
from awa_proto.plan import Op

T = TypeVar("T")


class Performs(Protocol):
    """A client, as far as requests need it."""

    @property
    def operations(self) -> Any:
        """What makes the Ops of its calls."""
        ...

    async def perform(self, op: Op[T], /) -> T:
        """The result of an Op."""
        ...


def callbacks_app(
    client: Performs, secrets: Secret | Sequence[Secret] = (), **settings: Unpack[IngressSettings]
) -> CallbacksApp:
    """An ASGI application that takes callbacks for a client.

    Args:
        client: Whose jobs wait. Hooks and follow-ups are those that it knows.
        secrets: What requests are signed with, at least 16 bytes; several while one takes the place of another.
        settings: Those of IngressSettings: `allow_unsigned`, `replay_window`, `prefix`, `max_body`, `body_timeout`.

    Raises:
        ConfigurationError: There is no secret, and `allow_unsigned` was not asked for; the client is of another package.
        ValidationError: Naming the setting and its limit.
    """
    refuse_other_clients(client, "awa_asyncio")
    return CallbacksApp(client, Ingress(client.operations, secrets, **settings))


class CallbacksApp:
    """Made by `callbacks_app`."""

    def __init__(self, client: Performs, ingress: Ingress) -> None:
        self._client = client
        self._ingress = ingress
        self._router = Router(redirect_slashes=False, default=self._take)  # which path is which, the core says

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        await self._router(scope, receive, send)

    async def _take(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await WebSocketClose()(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            answer = await self._answer(request)
        except ClientDisconnect:
            return  # nobody is there to hear it
        headers = dict(answer.headers)
        if answer.ends_connection and scope.get("http_version", "1.1").startswith("1"):
            headers["Connection"] = "close"
        body = b"" if request.method == "HEAD" else answer.body
        await Response(body, answer.status, headers)(scope, receive, send)

    async def _answer(self, request: Request) -> Answer:
        begun = self._ingress.begin(_head(request))
        if isinstance(begun, Answer):
            return begun
        try:
            async with asyncio.timeout(begun.timeout):
                body = await _body(begun, request)
        except TimeoutError:
            return self._ingress.too_slow()
        wanted = self._ingress.finish(begun, body, time.time())
        return wanted if isinstance(wanted, Answer) else await self._carried_out(wanted)

    async def _carried_out(self, call: Call) -> Answer:
        try:
            result = await self._client.perform(call.op)
        except Exception as error:  # noqa: BLE001  the core knows what to say of it
            return call.failed(error)
        return call.succeeded(result)


def _head(request: Request) -> Head:
    headers = {name: ",".join(request.headers.getlist(name)) for name in request.headers}
    path, root = request.scope["path"], request.scope.get("root_path", "")
    if root and path.startswith(f"{root}/"):  # below where it is mounted
        path = path[len(root) :]
    return Head(request.method, path, headers)


async def _body(reading: Reading, request: Request) -> bytes:
    """The body, or as much of it as shows that it is too large. Raises ClientDisconnect."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > reading.most:
            break
    return bytes(body)
