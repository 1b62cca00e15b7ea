"""Awaiting something in a context of its own, without a task of its own."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextvars import Context
from types import CoroutineType
from typing import Any, Protocol, TypeAlias

Steps: TypeAlias = "Generator[Any, Any, Any] | CoroutineType[Any, Any, Any]"
"""What is sent and thrown into."""


class Awaited(Protocol):
    """A coroutine, or what is like one."""

    def __await__(self) -> Generator[Any, Any, Any]: ...


def begin_in(context: Context, call: Callable[[], Awaited]) -> Rest | None:
    """Call, and take the first step of what is to be awaited, in a context. What is left, or None when it ended at once.

    What it sets there the task it is called in does not see. A task would cost several times as much, and a turn of the
    loop. In a task, because the first step may ask for the current one. Raises what it raises.
    """
    return context.run(_begin, context, call)


def _begin(context: Context, call: Callable[[], Awaited]) -> Rest | None:
    awaited = call()
    steps = awaited if type(awaited) is CoroutineType else awaited.__await__()
    try:
        wanted = steps.send(None)
    except StopIteration:
        return None
    return Rest(steps, wanted, context)


class Rest:
    """`await` it: the other steps, each in the same context."""

    __slots__ = ("_context", "_steps", "_wanted")

    def __init__(self, steps: Steps, wanted: Any, context: Context) -> None:
        self._steps = steps
        self._wanted = wanted
        self._context = context

    def __await__(self) -> Generator[Any, Any, None]:
        run, steps, wanted = self._context.run, self._steps, self._wanted
        try:
            while True:
                try:
                    given = yield wanted
                except GeneratorExit:
                    run(steps.close)
                    raise
                except BaseException as error:  # noqa: BLE001  it belongs to what is awaited
                    wanted = run(steps.throw, error)
                else:
                    wanted = run(steps.send, given)
        except StopIteration:
            return
