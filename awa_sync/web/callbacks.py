"""The WSGI application (PEP 3333) of the ingress: it carries bytes, and `awa_proto` decides."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from typing_extensions import Unpack

from awa_proto.binding import Performs
from awa_proto.callbacks.ingress import (
    Answer,
    Call,
    Head,
    Ingress,
    IngressSettings,
    Reading,
    refusal,
    refuse_other_clients,
)
from awa_proto.callbacks.signature import Secret


def callbacks_app(
    client: Performs, secrets: Secret | Sequence[Secret] = (), **settings: Unpack[IngressSettings]
) -> CallbacksApp:
    """A WSGI application that takes callbacks for a client.

    Args:
        client: Whose jobs wait. Hooks and follow-ups are those that it knows.
        secrets: What requests are signed with, at least 16 bytes; several while one takes the place of another.
        settings: Those of IngressSettings: `allow_unsigned`, `replay_window`, `prefix`, `max_body`, `body_timeout`. The last
            one is looked at after each piece that comes: that a piece comes at all is for the server to see to, which alone
            has the socket.

    Raises:
        ConfigurationError: There is no secret, and `allow_unsigned` was not asked for; the client is of another package.
        ValidationError: Naming the setting and its limit.
    """
    refuse_other_clients(client, "awa_sync")
    return CallbacksApp(client, Ingress(client.operations, secrets, **settings))


class CallbacksApp:
    """Made by `callbacks_app`."""

    def __init__(self, client: Performs, ingress: Ingress) -> None:
        self._client = client
        self._ingress = ingress

    def __call__(self, environ: Mapping[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """WSGI."""
        answer = self._answer(environ)
        status = f"{answer.status} {HTTPStatus(answer.status).phrase}"
        start_response(status, list(answer.headers))
        return [b"" if environ["REQUEST_METHOD"] == "HEAD" else answer.body]

    def _answer(self, environ: Mapping[str, Any]) -> Answer:
        begun = self._ingress.begin(_head(environ))
        if isinstance(begun, Answer):
            return begun
        if "HTTP_TRANSFER_ENCODING" in environ and not environ.get("wsgi.input_terminated"):
            return refusal(411, "Content-Length is needed")
        body = _body(begun, environ)
        if body is None:
            return self._ingress.too_slow()
        wanted = self._ingress.finish(begun, body, time.time())
        return wanted if isinstance(wanted, Answer) else self._carried_out(wanted)

    def _carried_out(self, call: Call) -> Answer:
        try:
            result: Any = self._client.perform(call.op)
        except Exception as error:  # noqa: BLE001  the core knows what to say of it
            return call.failed(error)
        return call.succeeded(result)


def _head(environ: Mapping[str, Any]) -> Head:
    headers = {
        name.removeprefix("HTTP_").replace("_", "-").lower(): str(value)
        for name, value in environ.items()
        if name.startswith("HTTP_") and name not in {"HTTP_CONTENT_TYPE", "HTTP_CONTENT_LENGTH"}  # of a Content_Length
    }
    for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        if environ.get(name):
            headers[name.replace("_", "-").lower()] = str(environ[name])
    path = environ.get("PATH_INFO", "").encode("latin-1", "replace").decode(errors="replace")  # bytes as text: PEP 3333
    return Head(environ["REQUEST_METHOD"], path, headers)


def _body(reading: Reading, environ: Mapping[str, Any]) -> bytes | None:
    """The body, or as much of it as shows that it is too large; None when it takes too long."""
    until = time.monotonic() + reading.timeout
    stream, body = environ["wsgi.input"], bytearray()
    wanted = reading.most + 1 if environ.get("wsgi.input_terminated") else int(environ.get("CONTENT_LENGTH") or 0)
    while len(body) < wanted:
        piece = stream.read(min(65536, wanted - len(body)))
        if not piece:
            break
        body += piece
        if time.monotonic() > until:
            return None
    return bytes(body)
