"""The token of a registered callback, and its id in whatever form it is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from awa_proto.errors import CallbackNotFound, ValidationError


@dataclass(frozen=True, slots=True)
class CallbackToken:
    """A callback that was registered, and is written. id: a random UUID (version 4) as text, to be handed to the outside."""

    id: str


CallbackId: TypeAlias = str | UUID | CallbackToken
"""The id of a callback, as the outside world knows it."""


def callback_id(id: object) -> str:
    """The text of an id. Raises CallbackNotFound for a text that is none, ValidationError for what is no text."""
    if isinstance(id, CallbackToken):
        id = id.id
    if isinstance(id, UUID):
        return str(id)
    if not isinstance(id, str):
        raise ValidationError("id", f"the id of a callback is needed, not {type(id).__name__}")
    try:
        return str(UUID(id))
    except ValueError:
        raise CallbackNotFound(id[:40]) from None


def is_id(given: object, id: str) -> bool:
    """Whether something is this id, in whatever form it is given."""
    text = given.id if isinstance(given, CallbackToken) else given
    if text == id:
        return True
    try:
        return callback_id(text) == id
    except (CallbackNotFound, ValidationError):
        return False
