"""Args: kinds, what is written and read back equal, and what is refused because it would not be."""

import json
import math
import sys
import timeit
import uuid
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from types import MappingProxyType
from typing import Any, ClassVar, Generic, NotRequired, TypedDict, TypeVar

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from awa_proto import args as args_module
from awa_proto.args import decoder, derive_kind, encode, kind_of
from awa_proto.errors import SerializationError, ValidationError

T = TypeVar("T")


class Color(Enum):
    RED = "red"
    BLUE = 2


@dataclass(frozen=True)
class Address:
    street: str
    number: int = 1


@dataclass
class Everything:
    text: str
    number: int
    ratio: float
    flag: bool
    at: datetime
    on: date
    took: timedelta
    id: uuid.UUID
    amount: Decimal
    color: Color
    address: Address
    places: list[Address]
    by_name: dict[str, Address]
    maybe: float | None = None
    pair: tuple[int, str] = (1, "a")


class Order(pydantic.BaseModel):
    id: int = pydantic.Field(alias="orderId")
    lines: list[Address] = []
    weight: float | None = None


class Import(TypedDict):
    path: str
    depth: NotRequired[int]


class Loose(pydantic.BaseModel, extra="allow"):
    known: int


@dataclass
class Anything:
    value: Any


class Box(pydantic.BaseModel, Generic[T]):
    content: T


text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
number = st.integers(-(2**63), 2**63 - 1)
addresses = st.builds(Address, text, number)
everything = st.builds(
    Everything,
    text=text,
    number=number,
    ratio=st.floats(allow_nan=False, allow_infinity=False),
    flag=st.booleans(),
    at=st.datetimes(timezones=st.just(UTC)),
    on=st.dates(),
    took=st.timedeltas(timedelta(days=-9999), timedelta(days=9999)),
    id=st.uuids(),
    amount=st.decimals(allow_nan=False, allow_infinity=False),
    color=st.sampled_from(Color),
    address=addresses,
    places=st.lists(addresses, max_size=3),
    by_name=st.dictionaries(text, addresses, max_size=3),
    maybe=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    pair=st.tuples(number, text),
)
plain = st.recursive(
    st.none() | st.booleans() | number | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=15,
)

KINDS = {
    "SendEmail": "send_email",
    "SMTPEmail": "smtp_email",
    "OAuthRefresh": "o_auth_refresh",
    "PDFRenderJob": "pdf_render_job",
    "ProcessV2Import": "process_v2_import",
    "ReconcileQ3Revenue": "reconcile_q3_revenue",
    "HTMLToPDF": "html_to_pdf",
    "IOError": "io_error",
    "SendConfirmationEmail": "send_confirmation_email",
    "Job": "job",
    "MyJob": "my_job",
    "A": "a",
    "AB": "ab",
}


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_a_kind_is_the_name_of_the_class_in_snake_case(name: str, kind: str) -> None:
    assert derive_kind(name) == kind
    assert kind_of(type(name, (), {})) == kind


def test_a_class_may_carry_its_kind_and_a_subclass_has_its_own() -> None:
    @dataclass
    class Base:
        kind: ClassVar[str] = "my kind"

    class Model(pydantic.BaseModel):
        kind: ClassVar[str] = "model kind"

    @dataclass
    class Derived(Base):
        pass

    assert (kind_of(Base), kind_of(Model), kind_of(Derived)) == ("my kind", "model kind", "derived")


def test_a_field_that_is_called_kind_is_no_kind() -> None:
    @dataclass
    class WithField:
        kind: str = "x"

    assert kind_of(WithField) == "with_field"
    assert encode(WithField()) == '{"kind":"x"}'


@given(everything)
def test_dataclasses_come_back_equal(value: Everything) -> None:
    written = encode(value)
    assert decoder(Everything)(written) == value
    assert json.loads(written)["text"] == value.text


@given(
    st.builds(
        lambda i, lines, w: Order(orderId=i, lines=lines, weight=w),
        number,
        st.lists(addresses),
        st.none() | st.just(1.5),
    )
)
def test_models_come_back_equal_with_their_aliases(value: Order) -> None:
    written = encode(value)
    assert "orderId" in written
    assert decoder(Order)(written) == value


@given(st.dictionaries(text, plain))
def test_plain_mappings_come_back_equal(value: dict[str, Any]) -> None:
    written = encode(value)
    assert decoder(None)(written) == value == json.loads(written)
    written.encode()
    assert "\0" not in written


SHOWN_AS = [
    ({"n": {1: 2, "1": 3}}, "n has a key of type int"),
    ({"n": [{"m": {None: 1}}]}, "n[0].m has a key of type NoneType"),
    ({"n": b"abc"}, "n is a bytes"),
    ({"n": [1, {2, 3}]}, "n[1] is a set"),
    ({"n": frozenset()}, "n is a frozenset"),
    ({"n": (each for each in "ab")}, "n is a generator"),
    (MappingProxyType({"n": bytearray(b"abc")}), "n is a bytearray"),
    (Anything({"n": {1: 2, "1": 3}}), "value.n has a key of type int"),
    (Anything(Anything({1, 2})), "value.value is a set"),
    (Loose.model_validate({"known": 1, "more": b"abc"}), "more is a bytes"),
    (Box[dict[str, Any]](content={"n": {2}}), "content.n is a set"),
]


@pytest.mark.parametrize(("value", "change"), SHOWN_AS, ids=[change for _, change in SHOWN_AS])
def test_what_would_come_back_as_something_else_is_refused_with_its_place(value: Any, change: str) -> None:
    with pytest.raises(SerializationError) as caught:
        encode(value)
    assert caught.value.reason.startswith(change)


def test_a_type_that_says_what_comes_back_may_hold_what_json_has_not() -> None:
    @dataclass
    class Typed:
        some: set[int]
        by: dict[int, str]
        raw: bytes
        rest: Any = None
        turn: tuple[int, ...] = ()

    value = Typed({1, 2}, {1: "a"}, b"abc", [{"a": (1, 2)}], (1, 2))
    back = decoder(Typed)(encode(value))
    assert back == Typed({1, 2}, {1: "a"}, b"abc", [{"a": [1, 2]}], (1, 2))


def test_an_argument_whose_equality_is_broken_is_looked_at_as_any_other() -> None:
    @dataclass
    class Angry:
        value: Any

        @override
        def __eq__(self, other: object) -> bool:
            raise RuntimeError

        __hash__ = None  # type: ignore[assignment]

    assert encode(Angry({"a": 1})) == '{"value":{"a":1}}'
    with pytest.raises(SerializationError, match="value is a set"):
        encode(Angry({1}))


def test_a_tuple_in_a_mapping_becomes_a_list() -> None:
    assert encode({"a": (1, (2,))}) == '{"a":[1,[2]]}'


def test_json_is_compact_and_not_escaped() -> None:
    assert encode(Address("Straße", 2)) == '{"street":"Straße","number":2}'
    assert encode({"a": [1, {"b": None}]}) == '{"a":[1,{"b":null}]}'


def test_mappings_take_the_scalars_of_a_typed_dict() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    assert encode({"at": at, "n": Decimal("1.5"), "a": Address("s")}) == (
        '{"at":"2026-01-01T00:00:00Z","n":"1.5","a":{"street":"s","number":1}}'
    )
    assert encode(MappingProxyType({"a": 1})) == '{"a":1}'


def test_a_typed_dict_of_the_standard_library_is_validated_for_the_handler() -> None:
    assert decoder(Import)('{"path":"/","depth":2}') == {"path": "/", "depth": 2}
    assert decoder(Import)('{"path":"/"}') == {"path": "/"}
    with pytest.raises(SerializationError, match="path: Field required"):
        decoder(Import)('{"depth":2}')


def test_a_generic_model_is_a_type_like_any_other() -> None:
    assert decoder(Box[int])(encode(Box[int](content=1))).content == 1


@pytest.mark.parametrize(
    "value",
    [
        {"a": "\0"}, {"a\0": 1}, {"a": [{"b": "x\0"}]}, {"a": "\\\0"}, {"a": "\\\\\0"}, Address("\0"), Anything({"\0": 1}),
        Box[str](content="\0"),
    ],
)  # fmt: skip
def test_a_nul_is_refused_wherever_it_is(value: Any) -> None:
    with pytest.raises(SerializationError, match="NUL"):
        encode(value)


@pytest.mark.parametrize("said", ["\\u0000", "\\\\u0000", "\\u00000", "u0000", "\\\\\\u0000", "\u2400"])
def test_text_about_a_nul_is_text(said: str) -> None:
    assert decoder(None)(encode({said: said})) == {said: said}
    assert decoder(Address)(encode(Address(said))) == Address(said)


@given(st.text("\\u0\0x", max_size=12))
def test_a_nul_is_told_from_text_about_it(said: str) -> None:
    if "\0" in said:
        with pytest.raises(SerializationError, match="NUL"):
            encode({"a": said})
    else:
        assert decoder(None)(encode({"a": said})) == {"a": said}


@pytest.mark.parametrize("value", [{"a": "\ud800"}, {"\udc00": 1}, Address("\udfff"), Anything(["\ud800"])])
def test_a_lone_surrogate_is_refused(value: Any) -> None:
    with pytest.raises(SerializationError, match="lone surrogate"):
        encode(value)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, Decimal("NaN"), Decimal("Infinity")])
@pytest.mark.parametrize(
    ("make", "place"),
    [
        (lambda bad: {"a": bad}, "a"),
        (lambda bad: {"a": [0, {"b": bad}]}, "a[1].b"),
        (lambda bad: {"a": Address("s"), "b": Anything([bad])}, "b.value[0]"),
        (lambda bad: {"a": Order.model_construct(weight=bad)}, "a.weight"),
        (Anything, "value"),
        (lambda bad: Anything({"x": (bad,)}), "value.x[0]"),
        (lambda bad: Loose.model_construct(known=1, more=bad), "more"),
        (lambda bad: Box[Any](content=Order.model_construct(id=1, weight=bad)), "content.weight"),
    ],
)
def test_what_json_would_write_as_null_is_refused_with_its_place(make: Any, place: str, bad: Any) -> None:
    with pytest.raises(SerializationError) as caught:
        encode(make(bad))
    assert caught.value.reason.startswith(f"{place} is not a finite number")


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_float_that_may_be_none_does_not_become_none(bad: float) -> None:
    @dataclass
    class Maybe:
        weight: float | None = field(default=None, compare=False)

    assert encode(Maybe()) == '{"weight":null}'
    with pytest.raises(SerializationError, match="weight is not a finite number"):
        encode(Maybe(bad))


def test_text_about_nan_is_text() -> None:
    assert decoder(Address)(encode(Address("NaN Infinity null"))) == Address("NaN Infinity null")
    assert decoder(None)(encode({"NaN": "-Infinity"})) == {"NaN": "-Infinity"}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (Address(5), "street: expected str, not int"),  # type: ignore[arg-type]
        (Address("a", "1"), "number: expected int, not str"),  # type: ignore[arg-type]
        (Address("a", 1.5), "number: expected int, not float"),  # type: ignore[arg-type]
        (Address(None), "street: Input should be a valid string"),  # type: ignore[arg-type]
        (Order.model_construct(id=1, lines=[{"street": 5}]), "lines"),
        (Order.model_construct(lines=[]), "orderId: Field required"),
        (Anything(object()), "Unable to serialize unknown type"),
        ({"a": object()}, "Unable to serialize unknown type"),
        ({1: 2}, "a key of type int; keys are text"),
        ({10**5000: 2}, "a key of type int; keys are text"),
        ({"a": 10**5000}, "number out of range"),
        (pydantic.RootModel[list[int]]([1]), "an object is needed"),
    ],
)
def test_values_that_would_not_decode_are_refused_at_enqueue(value: Any, reason: str) -> None:
    with pytest.raises(SerializationError) as caught:
        encode(value)
    assert caught.value.field == "args"
    assert reason in caught.value.reason


def test_a_constraint_counts_although_nothing_checks_a_dataclass() -> None:
    @pydantic.dataclasses.dataclass
    class Checked:
        n: int = pydantic.Field(gt=0)

    value = Checked(1)
    value.n = -1
    with pytest.raises(SerializationError, match="n: Input should be greater than 0"):
        encode(value)


def test_a_dataclass_that_cannot_be_made_again_is_refused() -> None:
    @dataclass
    class Lossy:
        a: int
        b: InitVar[int]

    with pytest.raises(SerializationError, match="b: Field required"):
        encode(Lossy(1, 2))


def test_an_error_does_not_repeat_the_value() -> None:
    for value in (Address("a", "my secret"), Order.model_construct(id="my secret")):  # type: ignore[arg-type]
        with pytest.raises(SerializationError) as caught:
            encode(value)
        assert "my secret" not in str(caught.value)
    with pytest.raises(SerializationError) as caught:
        decoder(Address)('{"street":"a","number":"my secret"}')
    assert "my secret" not in str(caught.value)


@pytest.mark.parametrize("value", [5, "text", b"bytes", None, [1], Address, object(), (1,), {1, 2}])
def test_what_is_no_args_is_refused(value: Any) -> None:
    with pytest.raises(ValidationError, match="a dataclass instance, a pydantic model or a mapping is needed"):
        encode(value)


def test_a_circle_and_a_tower_are_refused() -> None:
    circle: dict[str, Any] = {}
    circle["again"] = circle
    tower: dict[str, Any] = {}
    for _ in range(5000):
        tower = {"a": tower}
    for value in (circle, tower, Anything(circle)):
        with pytest.raises(SerializationError):
            encode(value)


@pytest.mark.parametrize("written", ["", "{", "[1]", "null", '{"a":NaN}', '{"a":1}x', '"a"'])
def test_text_that_is_no_object_does_not_decode(written: str) -> None:
    for read in (decoder(None), decoder(dict), decoder(Address)):
        with pytest.raises(SerializationError):
            read(written)


def test_whatever_a_class_raises_while_decoding_is_a_serialization_error() -> None:
    @dataclass
    class Angry:
        a: int

        def __post_init__(self) -> None:
            raise KeyError("no")

    with pytest.raises(SerializationError, match="KeyError"):
        decoder(Angry)('{"a":1}')


def test_an_error_that_cannot_be_told_is_a_serialization_error_too() -> None:
    class Untold(ValueError):
        @override
        def __str__(self) -> str:
            raise RuntimeError

    class Reads(pydantic.BaseModel):
        a: int

        @pydantic.field_validator("a")
        @classmethod
        def _no(cls, a: int) -> int:
            raise Untold

    @dataclass
    class Makes:
        a: int

        def __post_init__(self) -> None:
            if self.a == 2:
                raise Untold

    value = Makes(1)
    value.a = 2
    for call in (lambda: decoder(Reads)('{"a":1}'), lambda: decoder(Makes)('{"a":2}'), lambda: encode(value)):
        with pytest.raises(SerializationError):
            call()


def test_a_type_that_pydantic_cannot_read_says_so_when_it_is_built() -> None:
    @dataclass
    class Odd:
        a: "Undefined"  # type: ignore[name-defined]  # noqa: F821  that is the point

    read = decoder(Odd)
    with pytest.raises(SerializationError, match="cannot read the fields of Odd"):
        read("{}")
    with pytest.raises(SerializationError, match="cannot read the fields of Odd"):
        args_module.build(Odd)


def test_no_float_hides_in_a_type_that_says_it_has_none() -> None:
    """The shortcut that spares the search for NaN must hold for nested, optional, loose and generic types."""
    finite = [Address, Import, Box[str]]
    others = [Everything, Order, Loose, Anything, Box[Any], Box[dict[str, float]], Box[list[Loose]]]
    assert [args_module._codec(kind).only_finite for kind in finite] == [True] * len(finite)
    assert [args_module._codec(kind).only_finite for kind in others] == [False] * len(others)


def test_text_is_ordinary_python_text() -> None:
    value: Mapping[str, object] = {"a": "x" * 10}
    assert type(encode(value)) is str


if __name__ == "__main__":  # the cost of one job, in microseconds
    for label, value in {
        "dataclass": Address("a@b.c"),
        "model": Box[str](content="a"),
        "dict": {"to": "a@b.c", "n": 1},
        "dataclass, a float that is None": Order(orderId=1),
    }.items():
        best = min(timeit.repeat(lambda value=value: encode(value), number=20000, repeat=5)) / 20000  # type: ignore[misc]
        sys.stdout.write(f"{label:40} {best * 1e6:6.2f} µs\n")
