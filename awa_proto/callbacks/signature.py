"""The signature of a request to the ingress: who has the secret made it, for this callback and action, just now.

`Awa-Signature: t=<seconds since 1970>,v1=<hexadecimal>`, where the second part is the HMAC-SHA256 (RFC 2104) of

    awa1 LF <t> LF <id of the callback> LF <action> LF <body, byte for byte>

with the secret as its key. Since callback and action are in it, it is of no use on another route; since the time is, it
is of no use later. Whoever repeats a request within the window repeats it as it was, and a callback is used once.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from awa_proto.callbacks.token import CallbackId, callback_id
from awa_proto.errors import ConfigurationError, ValidationError
from awa_proto.options import text, whole
from awa_proto.outcome import Seconds, seconds

HEADER: Final = "Awa-Signature"
MIN_SECRET_BYTES: Final = 16
ACTIONS: Final = ("complete", "fail", "resume", "heartbeat", "resolve")
"""What can be asked for: the last parts of paths."""
REPLAY_WINDOW: Final = 300.0
"""Seconds that the clocks of sender and receiver may be apart, with the time that a request is on its way."""

Secret: TypeAlias = str | bytes
"""At least 16 bytes, better 32 random ones; text counts in UTF-8, and has no white space around it."""

_FORM: Final = re.compile(r"t=([0-9]{1,12}),v1=([0-9a-f]{64})")


def sign(secret: Secret, id: CallbackId, action: str, body: bytes, timestamp: int) -> str:
    """The value of the header `Awa-Signature` for a request of exactly this body.

    secret: as the receiver has it. id: of the callback. action: the last part of the path, one of ACTIONS. timestamp: the
    time of sending, in whole seconds since 1970 (UTC).

    Raises:
        CallbackNotFound: The id is a text that none can be.
        ValidationError: Naming what else cannot be signed.
    """
    at = whole("timestamp", timestamp, 0, 10**12 - 1)
    key, named, part = _key("secret", secret), callback_id(id), text("action", action)
    if part not in ACTIONS:  # the request would be answered 404, as one for a callback that was used
        raise ValidationError("action", f"{part[:40]!r} is none of {', '.join(ACTIONS)}")
    if not isinstance(body, (bytes, bytearray)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValidationError("body", f"bytes are needed, as they are sent, not {type(body).__name__}")
    return f"t={at},v1={_digest(key, named, part, body, str(at))}"


class Signatures:
    """What tells a good signature from a bad one.

    secrets: one of them has to be right; there are several while one takes the place of another. window: see REPLAY_WINDOW;
    at least 1, since whole seconds are signed. allow_unsigned: there are no secrets, and everything is let in.

    Raises ValidationError and ConfigurationError.
    """

    def __init__(self, secrets: Secret | Sequence[Secret], *, window: Seconds, allow_unsigned: bool) -> None:
        given = [secrets] if isinstance(secrets, (str, bytes)) else _several(secrets)
        self._keys = [_key(f"secrets[{index}]", secret) for index, secret in enumerate(given)]
        self.window = seconds("replay_window", window)
        if self.window < 1:
            raise ValidationError("replay_window", f"{self.window:g} seconds are below 1: whole seconds are signed")
        if not self._keys and not allow_unsigned:
            raise ConfigurationError(
                "callbacks have no secret, so that anybody could send them: give secrets, or allow_unsigned where something "
                "in front sees to that"
            )
        if self._keys and allow_unsigned:
            raise ConfigurationError(
                "there are secrets, and allow_unsigned, which asks for none: only one of them can be meant"
            )

    @property
    def are_needed(self) -> bool:
        """Whether a request without one is refused."""
        return bool(self._keys)

    def is_of_the_form(self, value: str | None) -> bool:
        """Whether a header may be a signature; to be asked before a body is read."""
        return value is not None and _FORM.fullmatch(value) is not None

    def is_right(self, value: str, id: str, action: str, body: bytes, now: float) -> bool:
        """Whether it is one of this request, made within the window of now, in seconds since 1970."""
        at = self.made_at(value, id, action, body)
        return at is not None and self.is_within(at, now)

    def made_at(self, value: str, id: str, action: str, body: bytes) -> int | None:
        """When it was made, in seconds since 1970, if it is one of this request by one of the secrets; else None."""
        found = _FORM.fullmatch(value)
        if found is None:
            return None
        at, given = found.groups()
        # All keys are tried, whatever the first ones give: how long it takes says nothing.
        right = [hmac.compare_digest(_digest(key, id, action, body, at), given) for key in self._keys]
        return int(at) if any(right) else None

    def is_within(self, at: int, now: float) -> bool:
        """Whether what was made then is good now."""
        return abs(now - at) <= self.window


def _several(secrets: object) -> list[Any]:
    if isinstance(secrets, Mapping) or not isinstance(secrets, Iterable):
        raise ValidationError("secrets", f"text, bytes, or a list of these are needed, not {type(secrets).__name__}")
    return list(secrets)


def _key(field: str, secret: object) -> bytes:
    if not isinstance(secret, (str, bytes)):
        raise ValidationError(field, f"text or bytes are needed, not {type(secret).__name__}")
    try:
        key = secret.encode() if isinstance(secret, str) else secret
    except UnicodeEncodeError:
        raise ValidationError(field, "contains a lone surrogate, which UTF-8 cannot hold") from None
    if isinstance(secret, str) and secret != secret.strip():
        raise ValidationError(field, "begins or ends with white space, as what is read from a file does; take it off")
    if len(key) < MIN_SECRET_BYTES:
        raise ValidationError(field, f"has {len(key)} bytes; at least {MIN_SECRET_BYTES} are needed")
    return key


def _digest(key: bytes, id: str, action: str, body: bytes | bytearray, at: str) -> str:
    return hmac.new(
        key, b"\n".join((b"awa1", at.encode(), id.encode(), action.encode(), body)), hashlib.sha256
    ).hexdigest()
