"""The ASGI application (asgi.readthedocs.io, version 3) of the ingress: it carries bytes, and `awa_proto` decides."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from awa_proto.callbacks.ingress import (
    BODY_TIMEOUT,
    MAX_BODY_BYTES,
    PREFIX,
    Answer,
    Call,
    Head,
    Ingress,
    Reading,
)
from awa_proto.callbacks.signature import REPLAY_WINDOW, Secret
from awa_proto.outcome import Seconds
from awa_proto.plan import Op

T = TypeVar("T")
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]


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
    client: Performs,
    secrets: Secret | Sequence[Secret] = (),
    *,
    allow_unsigned: bool = False,
    replay_window: Seconds = REPLAY_WINDOW,
    prefix: str = PREFIX,
    max_body: int = MAX_BODY_BYTES,
    body_timeout: Seconds = BODY_TIMEOUT,
) -> CallbacksApp:
    """An ASGI application that takes callbacks for a client.

    Args:
        client: Whose jobs wait. Hooks and follow-ups are those that it knows.
        secrets: What requests are signed with, at least 16 bytes; several while one takes the place of another.
        allow_unsigned: Let everything in: only where something in front sees to it who sends.
        replay_window: Seconds (or a timedelta) that a signature is good for, before and after the time that it names.
        prefix: What paths begin with; "" where the application is mounted at that place.
        max_body: Most bytes of a body, 1 KiB to 1 GiB.
        body_timeout: Seconds (or a timedelta) after which it has to be there.

    Raises:
        ConfigurationError: There is no secret, and `allow_unsigned` was not asked for.
        ValidationError: Naming the setting and its limit.
    """
    ingress = Ingress(
        client.operations,
        secrets,
        allow_unsigned=allow_unsigned,
        replay_window=replay_window,
        prefix=prefix,
        max_body=max_body,
        body_timeout=body_timeout,
    )
    return CallbacksApp(client, ingress)


class CallbacksApp:
    """Made by `callbacks_app`."""

    def __init__(self, client: Performs, ingress: Ingress) -> None:
        self._client = client
        self._ingress = ingress

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """ASGI."""
        match scope["type"]:
            case "http":
                answer = await self._answer(scope, receive)
                if answer is not None:
                    await _send(answer, scope, send)
            case "lifespan":
                await _live(receive, send)
            case "websocket":
                await receive()
                await send({"type": "websocket.close"})
            case _:
                pass

    async def _answer(self, scope: Message, receive: Receive) -> Answer | None:
        """None: nobody is there to hear it."""
        begun = self._ingress.begin(_head(scope))
        if isinstance(begun, Answer):
            return begun
        try:
            async with asyncio.timeout(begun.timeout):
                body = await _body(begun, receive)
        except TimeoutError:
            return self._ingress.too_slow()
        if body is None:
            return None
        wanted = self._ingress.finish(begun, body, time.time())
        return wanted if isinstance(wanted, Answer) else await self._carried_out(wanted)

    async def _carried_out(self, call: Call) -> Answer:
        try:
            result = await self._client.perform(call.op)
        except Exception as error:  # noqa: BLE001  the core knows what to say of it
            return call.failed(error)
        return call.succeeded(result)


def _head(scope: Message) -> Head:
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, said = name.decode("latin-1").lower(), value.decode("latin-1")
        headers[key] = f"{headers[key]},{said}" if key in headers else said
    path, root = scope["path"], scope.get("root_path", "")
    if root and path.startswith(f"{root}/"):  # below where it is mounted
        path = path[len(root) :]
    return Head(scope["method"], path, headers)


async def _body(reading: Reading, receive: Receive) -> bytes | None:
    """The body, or as much of it as shows that it is too large; None when the sender has gone away."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > reading.most or not message.get("more_body", False):
            return bytes(body)


async def _send(answer: Answer, scope: Message, send: Send) -> None:
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
    if answer.ends_connection and scope.get("http_version", "1.1").startswith("1"):
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else answer.body})


async def _live(receive: Receive, send: Send) -> None:
    """A server begins and ends. The client is not ours to open or close."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
