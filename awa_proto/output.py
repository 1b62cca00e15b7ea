"""Output: the small JSON value an attempt records for people and tools to inspect; how it is written and read.

Stricter than args: what JSON would bring back as something else is refused, naming its place. A pydantic model counts as
what it dumps in JSON mode. The text is kept byte for byte from here to whoever reads it.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final, TypeVar, is_typeddict
from uuid import UUID

import pydantic_core
from pydantic import BaseModel, TypeAdapter

from awa_proto.args import readable
from awa_proto.error_text import describe
from awa_proto.errors import OutputError, SerializationError
from awa_proto.extra import compact, size_of

T = TypeVar("T")

MAX_OUTPUT_BYTES: Final = 4096
"""Most bytes of the compact JSON text of an output, in UTF-8."""
MAX_BATCH_OUTPUT_BYTES: Final = 65536
"""Bytes of outputs after which a row that keeps the endings of a batch is followed by another one."""
_NO: Final = object()
_NUL: Final = "\\u0000"
_LEAST: Final = -(2**63)
_GREATEST: Final = 2**63 - 1
_FIXED: Final = (1e-3, 1e15)
_to_json: Final = pydantic_core.to_json


def encode(value: object, declared: Any = None) -> str | None:
    """The text of an output; None for None.

    declared: the type the kind says its outputs have; instances of another class are refused, as far as isinstance can
    tell. Raises OutputError.Invalid and OutputError.TooLarge.
    """
    if value is None:
        return None
    if declared is not None and not _may_be(value, declared):
        raise OutputError.Invalid(f"the output is a {type(value).__name__}; the task says output={_name(declared)}")
    try:
        if _is_plain(value):  # as most are: written at once; to name the place of what is wrong takes longer
            try:
                text = _to_json(value).decode()
            except ValueError:  # a lone surrogate
                text = _NUL
            if _NUL not in text and size_of(text) <= MAX_OUTPUT_BYTES:
                return text
        text = compact(_plain(value, ""))
    except OutputError:
        raise
    except Exception as error:
        raise OutputError.Invalid(f"the output cannot be written as JSON: {describe(error)}") from error
    if (size := size_of(text)) > MAX_OUTPUT_BYTES:
        raise OutputError.TooLarge(f"the output has {size} bytes of JSON; {MAX_OUTPUT_BYTES} are allowed")
    return text


def decode(value: Any, output_type: type[T], field: str = "output") -> T | None:
    """A JSON value as an instance of a type; None for None.

    A pydantic model is validated, a dataclass made from its fields, another class checked with isinstance. Raises
    SerializationError when it does not fit.
    """
    if value is None:
        return None
    made: Any
    declared: Any = output_type
    try:
        if inspect.isclass(declared) and issubclass(declared, BaseModel):
            made = declared.model_validate(value)
        elif not inspect.isclass(declared) or dataclasses.is_dataclass(declared) or is_typeddict(declared):
            made = TypeAdapter(readable(declared)).validate_python(value)
        else:
            made = value if isinstance(value, declared) else _NO
    except Exception as error:
        raise SerializationError(field, f"is no {_name(output_type)}: {describe(error)}") from error
    if made is _NO:
        raise SerializationError(field, f"is a {type(value).__name__}, not a {_name(output_type)}")
    found: T = made
    return found


def schema_of(output_type: Any) -> dict[str, Any] | None:
    """The JSON Schema of a declared type, when pydantic can produce one."""
    try:
        return TypeAdapter(readable(output_type)).json_schema(mode="serialization")
    except Exception:  # noqa: BLE001  a type pydantic knows nothing of
        return None


def descriptor(output_type: Any) -> dict[str, Any]:
    """What people are told of a declared type: its name and, where there is one, its JSON Schema."""
    schema = schema_of(output_type)
    return {"name": _name(output_type)} | ({} if schema is None else {"schema": schema})


def _may_be(value: object, declared: Any) -> bool:
    try:
        return isinstance(value, declared)
    except TypeError:  # list[int], a TypedDict: what isinstance cannot check is not enforced
        return True


def _name(declared: Any) -> str:
    return getattr(declared, "__name__", None) or repr(declared)


def _is_plain(value: object) -> bool:
    """Whether a value is what JSON brings back, of the plain types themselves; its text is still to be looked at.

    A float has one text in the range that is taken for plain; outside, there are several ways to write its exponent.
    """
    kind = type(value)
    if kind is dict:
        for key, item in value.items():  # type: ignore[attr-defined]  # `all` takes twice as long
            if type(key) is not str:
                return False
            of = type(item)
            if of is not str and not (_LEAST <= item <= _GREATEST if of is int else _is_plain(item)):
                return False
        return True
    if kind is int:
        return _LEAST <= value <= _GREATEST  # type: ignore[operator]
    if kind is str or kind is bool or value is None:
        return True
    if kind is float:
        return _FIXED[0] <= abs(value) <= _FIXED[1] or value == 0  # type: ignore[arg-type]
    return kind is list and all(map(_is_plain, value))  # type: ignore[call-overload]


def _plain(value: object, place: str) -> object:
    """The value as JSON has it. Raises OutputError.Invalid naming the place of what JSON does not have."""
    match value:
        case Enum():
            return _plain(value.value, place)
        case None | bool() | str() | int() | float() | Decimal():
            return _scalar(value, place)
        case datetime() | date() | time() | timedelta() | UUID():
            return pydantic_core.to_jsonable_python(value)
        case BaseModel():
            return _plain(value.model_dump(mode="json", by_alias=True), place)
        case Mapping():
            return {_key(key, place): _plain(item, f"{place}.{key}".lstrip(".")) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item, f"{place}[{index}]") for index, item in enumerate(value)]
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            named = ((each.name, getattr(value, each.name)) for each in dataclasses.fields(value))
            return {name: _plain(item, f"{place}.{name}".lstrip(".")) for name, item in named}
        case _:
            raise _refused(place, f"is a {type(value).__name__}, which JSON does not have")


def _scalar(value: object, place: str) -> object:
    """A value without parts, as the plain type of its class."""
    match value:
        case str():
            return _text(str.__str__(value), place)
        case int() if not isinstance(value, bool):
            if not _LEAST <= value <= _GREATEST:
                raise _refused(place, "is an integer outside 64 bits")
            return int(value)
        case float() | Decimal():
            if not math.isfinite(value):
                raise _refused(place, "is not a finite number")
            return float(value) if isinstance(value, float) else str(value)
        case _:
            return value


def _key(key: object, place: str) -> str:
    if not isinstance(key, str):
        raise _refused(place, f"has a key of type {type(key).__name__}; keys are text")
    return _text(str.__str__(key), place)


def _text(text: str, place: str) -> str:
    if "\0" in text:
        raise _refused(place, "contains a NUL character, which PostgreSQL cannot hold")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise _refused(place, "contains a lone surrogate, which UTF-8 cannot hold") from None
    return text


def _refused(place: str, why: str) -> OutputError:
    return OutputError.Invalid(f"output: {place or 'the value'} {why}")
