"""The token of a registered callback."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CallbackToken:
    """A callback that was registered, and is written. id: a random UUID (version 4) as text, to be handed to the outside."""

    id: str
