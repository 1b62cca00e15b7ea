"""Binding: how an operation becomes the method of a client, with its signature, types and docstring.

A checker sees a descriptor whose `__get__` gives the parameters and the result of the operation. At run time it is an
ordinary function, so `help`, `inspect.signature` and autospec do what they do with any method. Here is the blocking
form; a package that awaits has its own, with `async def`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, get_args, get_type_hints, overload

from awa_proto.plan import Op

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Performs(Protocol):
    """Whatever carries out Ops and waits for them."""

    @property
    def operations(self) -> Any:
        """What makes the Ops of its calls."""
        ...

    def perform(self, op: Op[T], /) -> T:
        """The result of an Op."""
        ...


class Method(Protocol[P, T_co]):
    """How a checker sees a bound operation."""

    @overload
    def __get__(self, client: None, owner: type[object], /) -> Callable[Concatenate[Any, P], T_co]: ...
    @overload
    def __get__(self, client: Performs, owner: type[object] | None = None, /) -> Callable[P, T_co]: ...


def bind(operation: Callable[Concatenate[Any, P], Op[T]]) -> Method[P, T]:
    """The method that makes the Op of an operation and performs it."""

    @wraps(operation)
    def method(self: Performs, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.perform(operation(self.operations, *args, **kwargs))

    return cast("Method[P, T]", shown(method, operation))


def shown(method: Callable[..., Any], operation: Callable[..., Any]) -> Callable[..., Any]:
    """The method, after it was told the signature of its operation: what `Op[T]` gives is T."""
    (result,) = get_args(get_type_hints(operation)["return"])
    signature = inspect.signature(operation).replace(return_annotation=result)
    vars(method)["__signature__"] = signature
    method.__annotations__ = {**operation.__annotations__, "return": result}
    owner = operation.__qualname__.partition(".")[0].removesuffix("Operations") or "Client"
    method.__qualname__ = f"{owner}.{operation.__name__}"
    return method
