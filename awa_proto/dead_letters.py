"""Dead letters: whether a job that fails is kept apart, as its client and its queue say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from awa_proto.errors import ValidationError
from awa_proto.options import flag, name

DeadLetters: TypeAlias = bool | Mapping[str, bool]
"""The same for every queue, or for each queue that is named; those that are not have none."""


class DeadLetterPolicy:
    """What a client says of queues, and what the workers say that it had.

    A queue is served by workers, and only they are told how; a client that had one of a queue goes by that, whoever ends the
    job. said: what the client says of all others. Raises ValidationError.
    """

    __slots__ = ("_served", "said")

    def __init__(self, said: DeadLetters = False) -> None:
        self.said = checked_dead_letters(said)
        self._served: dict[str, bool] = {}

    def serve(self, queues: Mapping[str, bool | None]) -> None:
        """A worker says this of its queues; None says nothing."""
        self._served |= {queue: keeps for queue, keeps in queues.items() if keeps is not None}

    def keeps(self, queue: str) -> bool:
        """Whether a job of this queue that fails goes to the dead letters."""
        served = self._served.get(queue)
        return said_of(self.said, queue) if served is None else served


def checked_dead_letters(value: object) -> DeadLetters:
    """The same, checked. Raises ValidationError."""
    if isinstance(value, bool):
        return value
    if not isinstance(value, Mapping):
        raise ValidationError(
            "dead_letters", f"True, False, or one of them for each queue is needed, not {type(value).__name__}"
        )
    return {name("dead_letters", queue): flag("dead_letters", keeps) for queue, keeps in value.items()}


def said_of(said: DeadLetters, queue: str) -> bool:
    """What is said of a queue."""
    return said if isinstance(said, bool) else said.get(queue, False)
