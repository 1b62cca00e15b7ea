"""Binding for drivers that await: an operation becomes an `async def` method; see `awa_proto.binding`.

A forgotten `await` is an error in a checker, because what a method returns is a Coroutine that nothing may be sent to.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Never, ParamSpec, Protocol, TypeVar, cast, overload

from awa_proto.binding import shown
from awa_proto.plan import Op

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Performs(Protocol):
    """Whatever can carry out Ops: a client, a transaction."""

    @property
    def operations(self) -> Any:
        """What makes the Ops of its calls."""
        ...

    async def perform(self, op: Op[T], /) -> T:
        """The result of an Op."""
        ...


class Method(Protocol[P, T_co]):
    """How a checker sees a bound operation."""

    @overload
    def __get__(
        self, client: None, owner: type[object], /
    ) -> Callable[Concatenate[Any, P], Coroutine[object, Never, T_co]]: ...
    @overload
    def __get__(
        self, client: Performs, owner: type[object] | None = None, /
    ) -> Callable[P, Coroutine[object, Never, T_co]]: ...


def bind(operation: Callable[Concatenate[Any, P], Op[T]]) -> Method[P, T]:
    """The method that makes the Op of an operation and performs it."""

    @wraps(operation)
    async def method(self: Performs, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.perform(operation(self.operations, *args, **kwargs))

    return cast("Method[P, T]", shown(method, operation))
