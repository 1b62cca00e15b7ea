"""Args: what a job is told. Which kind they belong to, and how they become JSON text and come back.

A dataclass instance, a pydantic model or a mapping is written in pydantic's JSON mode: nested dataclasses, datetime,
UUID, Decimal and Enum come back as what they were. Text that the handler's side could not read is refused by the side
that enqueues: what was written is read back once, which costs less than a microsecond. Silent losses are refused too:
pydantic writes NaN as null, and where nothing but JSON says what comes back (in a mapping, in a field of
type Any) a set as a list, bytes as text and two keys, 1 and "1", as one. What stays allowed there is a tuple, which
comes back as a list, and what has one text of its own, which comes back as that text: datetime, UUID, Decimal, Enum and
their like; a TypedDict that says so reads them again.
Adapters are built when a type is first used, never at import, and kept per type.

A kind is the class name in snake case, or `kind: ClassVar[str]` of that very class (a subclass has a kind of its own,
so two classes do not end up with one). A mapping has no class: its kind is `kind=`, or else its key `"kind"`, which
stays in the args.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import sys
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass
from decimal import Decimal
from functools import cache
from typing import Any, ClassVar, Final, NoReturn, Protocol, TypeAlias, TypeVar, cast

import pydantic
import pydantic_core
import typing_extensions
from pydantic import BaseModel, TypeAdapter

from awa_proto.error_text import describe
from awa_proto.errors import SerializationError, ValidationError

T = TypeVar("T")


class DataclassInstance(Protocol):
    """An instance of any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


JobArgs: TypeAlias = DataclassInstance | BaseModel | Mapping[str, object]
"""What can be enqueued. A mapping needs `kind=` or a key `"kind"`; a TypedDict is a mapping."""

_BOUNDARY: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NUL: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
"""An escaped NUL in JSON text: an odd number of backslashes. `\\\\u0000` is a backslash that a person typed."""


def _per_type(make: Callable[[type[Any]], T]) -> Callable[[type[Any]], T]:
    """`functools.cache`, with the type of what it wraps."""
    return cast("Callable[[type[Any]], T]", cache(make))


def derive_kind(name: str) -> str:
    """The kind a class name stands for: SendEmail → send_email, SMTPEmail → smtp_email, HTMLToPDF → html_to_pdf."""
    return _BOUNDARY.sub("_", name).lower()


@_per_type
def kind_of(args_type: type[Any]) -> str:
    """The kind of the jobs of a class: its own `kind: ClassVar[str]`, else its name in snake case."""
    own = vars(args_type).get("kind")
    is_field = dataclasses.is_dataclass(args_type) and any(f.name == "kind" for f in dataclasses.fields(args_type))
    if isinstance(own, str) and not is_field:
        return own
    return derive_kind(args_type.__name__)


def kind_in(args: Mapping[str, object]) -> str | None:
    """The kind a mapping names itself, if it does."""
    found = args.get("kind")
    return found if isinstance(found, str) else None


def load() -> None:
    """Load what pydantic loads when a TypeAdapter is first made, some 30 ms: better when a client opens than in a call."""
    _codec(_Nothing)


@dataclass(frozen=True, slots=True)
class _Nothing:
    """Args of no job."""


def encode(args: JobArgs) -> str:
    """Args as compact JSON text, an object, that reads back.

    Raises ValidationError for what is no args at all, SerializationError for what JSON, PostgreSQL or the declared
    types cannot hold; both name the place.
    """
    return encoder(type(args))(args)


def encoder(args_type: type[Any]) -> Callable[[Any], str]:
    """What writes args of exactly this type, as `encode` does; to be asked for once a batch."""
    if hasattr(args_type, "__dataclass_fields__") or issubclass(args_type, BaseModel):  # the cheaper question first
        return _codec(args_type).encode
    if issubclass(args_type, Mapping):
        return _mapping
    return _no_args


def decoder(args_type: type[Any] | None) -> Callable[[str], Any]:
    """What reads the JSON text of args as that type; as a plain dict for None and dict.

    Nothing is built before its first use. What it returns raises SerializationError when the text does not fit.
    """
    if args_type in (None, dict):
        return decode_object

    validate: Callable[[str], Any] | None = None

    def decode(text: str) -> Any:
        nonlocal validate
        if validate is None:
            validate = _codec(args_type).validate
        try:
            return validate(text)
        except Exception as error:  # a validator or __post_init__ of the user may raise anything
            raise SerializationError("args", _why_not_read(error)) from error

    return decode


def build(args_type: type[Any] | None) -> None:
    """Build what writes and reads a type, which otherwise happens at its first use. Raises SerializationError."""
    if args_type not in (None, dict):
        _codec(args_type)


def decode_object(text: str, field: str = "args") -> dict[str, Any]:
    """A JSON object as a dict of plain values; `field` names it in errors. Raises SerializationError."""
    try:
        value = pydantic_core.from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise SerializationError(field, f"not JSON that can be read: {error}") from error
    if type(value) is not dict:
        raise SerializationError(field, f"a JSON object is needed, not {type(value).__name__}")
    return value


def to_object(field: str, value: Mapping[Any, Any]) -> tuple[str, dict[str, Any]]:
    """A mapping as compact text, and what that text reads as; `field` names it in errors.

    Raises SerializationError, also for what would come back as something else.
    """
    for key in value:
        if not isinstance(key, str):
            raise SerializationError(field, f"has a key of type {type(key).__name__}; keys are text")
    given = value if type(value) is dict else dict(value)
    try:
        data = pydantic_core.to_json(given, inf_nan_mode="constants")
    except Exception as error:
        raise SerializationError(field, _why_not_written(error)) from error
    if b"NaN" in data or b"Infinity" in data or b"null" in data:
        _refuse_non_finite(field, given)
    text = _storable(field, data)
    found = decode_object(text, field)
    _refuse_changed(field, given, found)
    return text, found


@dataclass(frozen=True, slots=True)
class _Codec:
    """How one type is written and read: the functions of its TypeAdapter, taken out, since they are called per job.

    only_finite: no value of the type can hold a float, so no null can be a NaN in disguise.
    holds_any: some part of the type may hold anything, so that it does not say what its JSON comes back as.
    """

    to_json: Callable[..., bytes]
    to_python: Callable[..., Any]
    validate: Callable[[bytes | str], Any]
    only_finite: bool
    holds_any: bool

    def encode(self, args: object) -> str:
        try:
            data = self.to_json(args, by_alias=True, round_trip=True, warnings="error")
        except Exception as error:
            raise SerializationError("args", _why_not_written(error)) from error
        if not self.only_finite and (b"null" in data or b"NaN" in data or b"Infinity" in data):
            _refuse_non_finite("args", self.to_python(args, by_alias=True, round_trip=True, warnings="none"))
        if not data.startswith(b"{"):
            raise SerializationError("args", f"{type(args).__name__} is written as {data[:20]!r}…; an object is needed")
        text = _storable("args", data)
        try:
            found = self.validate(data)
        except Exception as error:
            raise SerializationError("args", f"would not decode: {_why_not_read(error)}") from error
        if self.holds_any:
            _refuse_changed("args", args, found)
        return text


@_per_type
def _codec(args_type: type[Any]) -> _Codec:
    try:
        adapter = TypeAdapter(readable(args_type))
        write = adapter.serializer
        read, schema = adapter.validator.validate_json, adapter.core_schema
        return _Codec(write.to_json, write.to_python, read, _is_finite(schema), _holds_any(schema))
    except Exception as error:
        name = getattr(args_type, "__name__", repr(args_type))
        raise SerializationError("args", f"pydantic cannot read the fields of {name}: {describe(error)}") from error


def readable(args_type: type[Any]) -> type[Any]:
    """The type itself, or its twin: pydantic does not take a `typing.TypedDict` before Python 3.12."""
    if sys.version_info >= (3, 12) or not typing.is_typeddict(args_type):
        return args_type
    required: frozenset[str] = args_type.__required_keys__
    fields: dict[str, Any] = {
        name: hint
        if typing.get_origin(hint) in {typing.Required, typing.NotRequired}
        else typing.Required[hint]
        if name in required
        else typing.NotRequired[hint]
        for name, hint in typing.get_type_hints(args_type, include_extras=True).items()
    }
    return typing_extensions.TypedDict(args_type.__name__, fields)  # type: ignore[operator, no-any-return]


_FINITE: Final = frozenset(
    """str int bool none nullable bytes date time datetime uuid url literal enum default list set frozenset tuple dict
    dataclass dataclass-args dataclass-field model model-fields model-field typed-dict typed-dict-field definitions
    definition-ref""".split()  # noqa: SIM905  a list literal takes 29 lines
)


def _is_finite(schema: object) -> bool:
    """Whether no value of a core schema can be a float: it names only the types above, and allows no extra."""
    match schema:
        case {"extra_fields_behavior": "allow"} | {"extra_behavior": "allow"}:
            return False
        case dict():
            named = schema.get("type")
            inner = (part for key, part in schema.items() if key not in {"default", "metadata"})
            return (not isinstance(named, str) or named in _FINITE) and all(map(_is_finite, inner))
        case list() | tuple():
            return all(map(_is_finite, schema))
        case _:
            return True


def _holds_any(schema: object) -> bool:
    """Whether some part of a core schema takes anything."""
    match schema:
        case {"type": "any"} | {"extra_fields_behavior": "allow"} | {"extra_behavior": "allow"}:
            return True
        case dict():
            return any(_holds_any(part) for key, part in schema.items() if key not in {"default", "metadata"})
        case list() | tuple():
            return any(map(_holds_any, schema))
        case _:
            return False


def _no_args(args: object) -> NoReturn:
    found = f"the class {args.__name__}" if isinstance(args, type) else f"a value of type {type(args).__name__}"
    raise ValidationError("args", f"a dataclass instance, a pydantic model or a mapping is needed, not {found}")


def _mapping(args: Mapping[Any, Any]) -> str:
    return to_object("args", args)[0]


def _storable(field: str, data: bytes) -> str:
    text = data.decode()
    if "\\u0000" in text and _NUL.search(text):
        raise SerializationError(field, "contains a NUL character, which PostgreSQL cannot hold")
    return text


def _refuse_non_finite(field: str, value: object) -> None:
    place = _non_finite(value, "")
    if place is not None:
        raise SerializationError(field, f"{place or 'the value'} is not a finite number, which JSON cannot hold")


def _non_finite(value: object, place: str) -> str | None:
    """Where in a value the first NaN or infinity is, as a path; None when there is none."""
    match value:
        case None | str() | int():
            return None
        case float():
            return None if math.isfinite(value) else place
        case Decimal():
            return None if value.is_finite() else place
        case dict():
            inner = ((f"{place}.{key}".lstrip("."), item) for key, item in value.items())
        case list() | tuple():
            inner = ((f"{place}[{index}]", item) for index, item in enumerate(value))
        case set() | frozenset():
            inner = ((f"{place}{{}}", item) for item in value)
        case BaseModel():
            return _non_finite(dict(value), place)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return _non_finite({f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)}, place)
        case _:
            return None
    return next((found for at, item in inner if (found := _non_finite(item, at)) is not None), None)


def _refuse_changed(field: str, given: object, found: object) -> None:
    """Refuse what was written as something else than it was. Nearly always both are equal, and the rest is not run."""
    try:
        is_same = bool(given == found)
    except Exception:  # noqa: BLE001  of an __eq__ of theirs
        is_same = False
    if not is_same and (change := _change(given, found, "")) is not None:
        raise SerializationError(field, change)


def _change(given: object, found: object, place: str) -> str | None:
    """What was lost between a value and what its JSON reads as, with its place; None when nothing was."""
    pairs: Iterable[tuple[str, object, object]] = ()
    match given:
        case str():
            pass
        case Mapping():
            if isinstance(found, Mapping):
                lost = [type(key).__name__ for key in given if not isinstance(key, str) and key not in found]
                if lost:
                    return f"{place or 'it'} has a key of type {lost[0]}; keys are text"
                pairs = (
                    (f"{place}.{key}".lstrip("."), item, found[key]) for key, item in given.items() if key in found
                )
        case list() | tuple():
            if isinstance(found, (list, tuple)):
                numbered = enumerate(zip(given, found, strict=False))
                pairs = ((f"{place}[{index}]", item, now) for index, (item, now) in numbered)
        case BaseModel():
            return _change(dict(given), dict(found) if isinstance(found, BaseModel) else found, place)
        case _ if dataclasses.is_dataclass(given) and not isinstance(given, type):
            names = [each.name for each in dataclasses.fields(given) if hasattr(given, each.name)]
            values = found if isinstance(found, Mapping) else {n: getattr(found, n) for n in names if hasattr(found, n)}
            return _change({name: getattr(given, name) for name in names}, values, place)
        case Iterable() if not isinstance(found, type(given)):
            return f"{place} is a {type(given).__name__}, which JSON does not have; give a list, or text"
        case _:
            pass
    return next((change for at, was, now in pairs if (change := _change(was, now, at)) is not None), None)


_UNEXPECTED: Final = re.compile(r"Expected `([^`]*)`(?:[^\n]*?field_name='([^']*)')?[^\n]*?input_type=(\w+)")


def _why_not_written(error: Exception) -> str:
    """The reason pydantic gives, without the value: args may hold what belongs in no log."""
    text = describe(error).partition(": ")[2]
    if "surrogates not allowed" in text:
        return "contains a lone surrogate, which UTF-8 cannot hold"
    if found := _UNEXPECTED.findall(text):
        return "; ".join(f"{name}: expected {wanted}, not {given}".removeprefix(": ") for wanted, name, given in found)
    return f"cannot be written as JSON: {text.removeprefix('Error serializing to JSON: ')}"


def _why_not_read(error: Exception) -> str:
    """The reason, without the value, for the same cause."""
    if isinstance(error, pydantic.ValidationError):
        with contextlib.suppress(Exception):  # a message of theirs that cannot be made
            return "; ".join(_place(each["loc"]) + each["msg"] for each in error.errors(include_input=False)[:5])
    return describe(error)


def _place(loc: tuple[int | str, ...]) -> str:
    return f"{'.'.join(map(str, loc))}: " if loc else ""
