"""A task: the handler of one kind of job, and how its args are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Task:
    """The registered handler of a kind.

    handler: called with the package's Job. is_async: a coroutine function; a plain function runs in a thread on the
    async drivers. decode: args from their JSON text; raises SerializationError. queue: where jobs of the kind go when an
    insert names no queue. output_type: what the handler records as its output, when it says so.
    """

    kind: str
    handler: Callable[[Any], Any]
    decode: Callable[[str], Any]
    is_async: bool
    queue: str | None = None
    args_type: type[Any] | None = None
    output_type: Any = None
