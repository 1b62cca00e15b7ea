"""Expressions of callbacks: what a payload means, what is refused before it is stored, and that nothing runs for ever."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from awa_proto.callbacks import cel
from awa_proto.callbacks.expressions import Decision, checked_action, compile_expressions, resolve
from awa_proto.errors import ConfigurationError, ValidationError

pytest.importorskip("cel_expr_python")

PAYLOAD: Any = {
    "status": "paid",
    "amount": 1200,
    "rate": 1.5,
    "nothing": None,
    "big": 2**70,
    "currency": "EUR",
    "items": [
        {"id": 1, "name": "größe", "currency": "EUR", "tags": ["a", "b"]},
        {"id": 2, "name": "y", "currency": "EUR", "tags": []},
    ],
}


def given_by(text: str, payload: Any = PAYLOAD) -> Any:
    """What an expression makes of a payload."""
    return cel.compiled("transform", text).gives(cel.as_payload(payload))


def decided(
    payload: Any = PAYLOAD, default: Literal["complete", "fail", "ignore"] = "ignore", **texts: str
) -> Decision:
    return resolve(compile_expressions(**texts), payload, default)


# what a payload means

YES, NO, ERROR, ODD = "payload.amount == 1200", "payload.amount == 1", "payload.absent.deeper == 1", "payload.status"
BY_DEFAULT = Decision("ignore", PAYLOAD, reason="no expression decided, and the default is to ignore")
RULES = [
    ({}, BY_DEFAULT),
    ({"filter": YES}, BY_DEFAULT),
    ({"filter": NO, "on_complete": YES}, Decision("ignore", PAYLOAD, reason="filter expression returned false")),
    ({"filter": NO, "on_fail": YES}, Decision("ignore", PAYLOAD, reason="filter expression returned false")),
    ({"filter": ERROR, "on_complete": YES}, Decision("complete", PAYLOAD)),
    ({"filter": ODD, "on_complete": YES}, Decision("complete", PAYLOAD)),
    ({"on_fail": YES}, Decision("fail", PAYLOAD, expression=YES)),
    ({"on_fail": YES, "on_complete": YES}, Decision("fail", PAYLOAD, expression=YES)),
    ({"on_fail": ERROR, "on_complete": YES}, Decision("complete", PAYLOAD)),
    ({"on_fail": ODD, "on_complete": YES}, Decision("complete", PAYLOAD)),
    ({"on_fail": NO, "on_complete": NO}, BY_DEFAULT),
    ({"on_complete": ERROR}, BY_DEFAULT),
    ({"on_complete": ODD}, BY_DEFAULT),
    ({"on_complete": YES, "transform": "payload.amount"}, Decision("complete", 1200)),
    ({"on_complete": YES, "transform": "payload.nothing"}, Decision("complete", None)),
    ({"on_complete": YES, "transform": ERROR}, Decision("complete", PAYLOAD)),
    ({"on_complete": NO, "transform": "payload.amount"}, BY_DEFAULT),
    ({"on_fail": YES, "transform": "payload.amount"}, Decision("fail", PAYLOAD, expression=YES)),
]  # fmt: skip


@pytest.mark.parametrize(("texts", "decision"), RULES)
def test_a_payload_is_ignored_fails_or_completes_by_the_first_rule_that_answers(
    texts: dict[str, str], decision: Decision
) -> None:
    assert resolve(compile_expressions(**texts), PAYLOAD, "ignore") == decision


@pytest.mark.parametrize("default", ["complete", "fail"])
@pytest.mark.parametrize("texts", [{}, {"on_complete": NO, "on_fail": NO, "transform": "payload.amount"}])
def test_where_no_rule_answers_the_caller_says_what_happens_and_nothing_is_transformed(
    default: Literal["complete", "fail"], texts: dict[str, str]
) -> None:
    assert resolve(compile_expressions(**texts), PAYLOAD, default) == Decision(default, PAYLOAD)


def test_another_default_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"default_action: 'retry' is none of"):
        checked_action("retry")


def test_none_are_stored_as_none_and_some_as_json_text() -> None:
    assert compile_expressions() is None
    stored = compile_expressions(on_fail='payload.status == "größe"', filter="true")
    assert stored is not None
    assert json.loads(stored) == {"filter": "true", "on_fail": 'payload.status == "größe"'}


# the language: cases as in its own conformance tests, as far as they matter over a payload of JSON

TRUE = [
    "1 + 1 == 2", "7 / 2 == 3", "-7 / 2 == -3", "-7 % 2 == -1", "1.0 / 0.0 > 1e308", "2u * 3u == 6u",
    "dyn(1) == 1.0", "dyn(1) == dyn(1u)", "dyn(1) < 1.5", "dyn(1) != 1.5",
    "dyn(1) != 'one'", "null == null", "payload.nothing == null", "[1, 2] == [1, 2]", "[] == []",
    "[[1], [2]] != [[2], [1]]",
    "{'a': 1, 'b': 2} == {'b': 2, 'a': 1}", "dyn({'a': 1}) == {'a': 1.0}",
    "'a' < 'b'", "'A' < 'a'", "'abc' < 'abd'", "b'a' < b'b'", "false < true",
    "true || 1 / 0 > 2", "1 / 0 > 2 || true", "!(false && 1 / 0 > 2)", "!(1 / 0 > 2 && false)",
    "(true ? 1 : 1 / 0) == 1", "(false ? 1 / 0 : 2) == 2",
    "size('πέντε') == 5", "size('😀') == 1", "''.size() == 0", "size([1, 2, 3]) == 3", "size({'a': 1}) == 1",
    "'πέντε'.contains('έντ')", "'tacocat'.contains('')", "'tacocat'.startsWith('taco')", "'tacocat'.endsWith('cat')",
    "'hubba'.matches('ubb')", "!'hubba'.matches('^ubb')", "'mañana'.matches('a+ñ+a+')", "'abcd'.matches('^[a-d]+$')",
    "'a' + 'b' == 'ab'", "[1] + [2] == [1, 2]", r"'\u03c0' == 'π'", r"'\x41' == 'A'", r"r'\n' == '\\n'",
    "'''a\nb''' == 'a\\nb'",
    "1 in [1, 2]", "!(3 in [1, 2])", "'a' in {'a': 1}", "!('b' in {'a': 1})", "[1, 2][1] == 2", "{'a': 1}.a == 1",
    "{'a': 1}['a'] == 1",
    "has({'a': null}.a)", "!has({'a': 1}.b)", "has(payload.nothing)", "!has(payload.absent)",
    "[1, 2, 3].all(e, e > 0)", "![1, 2, 3].all(e, e > 1)", "[].all(e, false)", "![1, 'foo', 3].all(e, e == 1)",
    "[1, 2, 3].exists(e, e > 2)", "![].exists(e, true)", "[1, 'foo', 3].exists(e, e != '1')",
    "{'k1': 1}.exists(k, k == 'k1')",
    "[7].exists_one(a, a == 7)", "![7, 7].exists_one(a, a == 7)", "[0, 1, 2].filter(e, e > 0) == [1, 2]",
    "[].map(e, e) == []",
    "[1, 2].map(e, e * 2) == [2, 4]", "[1, 2, 3].map(e, e > 1, e * 2) == [4, 6]", "{'a': 1}.map(k, k) == ['a']",
    "int('42') == 42", "int(4.9) == 4", "int(-4.9) == -4", "double('1.5') == 1.5", "string(1) == '1'",
    "string(true) == 'true'",
    "uint(1) == 1u", "bool('true')", "string(b'abc') == 'abc'", "type(payload.amount) == int",
    "type(payload.rate) == double",
    "timestamp('2009-02-13T23:31:30Z') == timestamp(1234567890)",
    "timestamp('2009-02-13T23:31:30Z').getFullYear() == 2009",
    "timestamp('2009-02-13T23:31:30Z').getHours('+11:00') == 10", "duration('1h30m') == duration('5400s')",
    "timestamp('2009-02-13T00:00:00Z') + duration('1h') < timestamp('2009-02-13T02:00:00Z')",
    "payload.amount + 1 == 1201", "payload.rate * 2.0 == 3.0", "payload['status'] == 'paid'", "payload.big > 1e21",
    "// all\ntrue",
    "payload.items.exists(i, i.tags.exists(t, t == 'b'))", "payload.items.all(i, i.currency == payload.currency)",
    "payload.items.exists(i, i.name.contains('öß'))", "2 in payload.items.map(i, i.id)",
    "payload.items[0].tags[1] == 'b'",
]  # fmt: skip
WITHOUT_RESULT = [
    "1 / 0 == 1", "1 % 0 == 1", "9223372036854775807 + 1 > 0", "-9223372036854775808 - 1 < 0", "1u - 2u > 0u",
    "int('a') == 1",
    "int(1e300) == 1", "double('a') == 1.0", "payload.absent == 1", "payload.status.deeper == 1",
    "payload.items[2] == 1",
    "payload.amount && true", "payload.rate + 1 == 2.5", "payload.status + 1 == 2",
    "payload.status.size() + 1.0 == dyn(1)",
    "payload.items.all(i, i.absent)", "timestamp(payload.status) < timestamp(0)", "string(b'\\xff') == 'a'",
    "!payload.status",
]  # fmt: skip


@pytest.mark.parametrize("text", TRUE)
def test_the_language_means_what_its_specification_says(text: str) -> None:
    compiled = cel.compiled("filter", text)
    assert compiled.holds(cel.as_payload(PAYLOAD)) is True


@pytest.mark.parametrize("text", WITHOUT_RESULT)
def test_what_has_no_result_is_an_error_of_the_evaluation_and_never_an_answer(text: str) -> None:
    compiled_ = None
    try:
        compiled_ = cel.compiled("filter", text)
    except ValidationError:  # known from the text alone
        return
    with pytest.raises(cel.EvaluationError):
        compiled_.holds(cel.as_payload(PAYLOAD))


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("payload", cel.as_payload(PAYLOAD)),
        ("{'z': 1, 'a': {'y': 2.5, 'b': payload.items[1].tags}}", {"a": {"b": [], "y": 2.5}, "z": 1}),
        ("payload.items.filter(i, i.id > 1).map(i, {'id': i.id, 'of': payload.status})", [{"id": 2, "of": "paid"}]),
        ("payload.items.map(i, i.tags.filter(t, t != 'a'))", [["b"], []]),
        ("[1u, 1.0, true, null, 'x']", [1, 1.0, True, None, "x"]),
    ],
)
def test_a_transformation_gives_plain_json(text: str, result: Any) -> None:
    made = given_by(text)
    assert made == result
    assert json.dumps(made, sort_keys=True) == json.dumps(made)


@pytest.mark.parametrize(
    "text",
    [
        "1.0 / 0.0",
        "dyn(b'a')",
        "[dyn(timestamp(0))]",
        "{1: 2}",
        "dyn(int)",
        "'a\\u0000b'",
        "{'a\\u0000': 1}",
        "dyn(duration('1s'))",
    ],
)
def test_what_json_does_not_have_is_no_transformation(text: str) -> None:
    with pytest.raises(cel.EvaluationError):
        given_by(text)
    stored = compile_expressions(on_complete="true", transform=text)
    assert resolve(stored, PAYLOAD, "ignore") == Decision("complete", PAYLOAD)


# what is refused before it is stored

REFUSED = [
    ("", "is no CEL"), ("payload.", "is no CEL"), ("a", "undeclared reference"), ("payload.a == other",
    "undeclared reference"),
    ("now()", "undeclared reference"), ("payload.lower()", "undeclared reference"), ("size()", "is no CEL"),
    ("1 + 'a' == 2", "no matching overload"), ("payload.?a", "unsupported syntax"), ("`x`", "Syntax error"),
    ("1", "gives an int; true or false is needed"), ("'yes'", "gives a string; true or false"), ("[true]",
    "gives a list;"),
    ("payload.a == \0", "NUL character"), ("payload.a == '\ud800'", "lone surrogate"),
    ("'x'.matches('(')", "cannot read its pattern"), ("'x'.matches('(?=a)')", "cannot read its pattern"),
    ("'x'.matches(payload.p)", "pattern is not in the text"), ("google.protobuf.Any{} == null", "makes a message"),
    (f"'{'x' * 4096}' == ''", "has 4104 bytes; 4096 are allowed"), ("(" * 40 + "true" + ")" * 40, "recursion"),
    ("payload" + ".a" * 40, "recursion"), ("!" * 3001 + "true == 1", "is no CEL"), (" || ".join(["payload.a"] * 250),
    "more than 400 nodes"),
    (" && ".join(["payload.a.all(x, x)"] * 9), "more than 8 macros"),
    ("payload.a.all(x, x.b.all(y, y.c.all(z, z)))", "nested deeper than 2"),
    ("payload.a.all(x, payload.a.all(y, x == y))", "goes over no part of that one's element"),
    ("payload.a.map(x, [x, x]).all(y, y.all(z, true))", "goes over no part of that one's element"),
    ("(payload.a + payload.a).all(x, x)", "neither a part of the payload, a list in the text, nor another macro"),
    ("payload.a.map(x, x + x).size() > 1", "joins text or lists within a macro"),
    ("payload.a.all(x, x.b + x.c == 'x')", "joins text or lists within a macro"),
    ("payload.a.all(x, payload.b.contains('c'))", "no part of that macro's element"),
    ("[payload.b, payload.b].all(x, x.startsWith('c'))", "no part of that macro's element"),
    ("payload.a.all(x, x.matches('c'))", "within a macro, where its pattern is read anew"),
    (" && ".join(["payload.a.matches('c')"] * 5), "more than 4 calls of matches"),
    ("payload.a.map(x, [x, x]) == payload.a", "compares what a macro made"),
    ("payload in payload.a.map(x, [x, x])", "compares what a macro made"),
    ("payload.a.all(x, " + " && ".join(["payload.b == payload.c"] * 5) + ")", "more than 4 calls and comparisons"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "why"), REFUSED)
@pytest.mark.parametrize("field", ["filter", "on_complete", "on_fail"])
def test_a_text_that_is_no_condition_is_refused_with_its_field_and_the_limit(field: str, text: str, why: str) -> None:
    with pytest.raises(ValidationError, match=why) as refused:
        compile_expressions(**{field: text})
    assert refused.value.field == field


@pytest.mark.parametrize("text", ["timestamp(0)", "duration('1s')", "b'a'", "type(1)"])
def test_a_transformation_whose_type_json_does_not_have_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="which JSON does not have"):
        compile_expressions(transform=text)


@pytest.mark.parametrize("given", [1, b"true", True, ["true"]])
def test_an_expression_is_text(given: object) -> None:
    with pytest.raises(ValidationError, match="filter: text is needed"):
        compile_expressions(filter=given)


TOKENS = [
    "payload", ".a", ".b", "[0]", '["a"]', "==", "<", " in ", "&&", "||", "!", "?", ":", "(", ")", "[", "]", "{", "}",
    ",", "1", "2u",
    "1.5", '"x"', "b'z'", "null", "true", ".map(i,", ".filter(i,", ".exists(j,", ".all(j,", ".exists_one(i,", "i",
    "j", "+", "-", "*",
    "/", "%", "size(", "has(", "int(", "string(", "timestamp(", "type(", '.matches("x+")', ".contains(", '"""', "//",
    "\n", "\\",
    "@result", "é", "r'", "0x", "1e999", "9223372036854775808", "google.protobuf.Struct{}", "@in", "`", "dyn(", "\r",
    "😀", "\x01", "\0",
]  # fmt: skip
TEXTS = st.one_of(st.text(), st.lists(st.sampled_from(TOKENS), max_size=15).map("".join))
JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=5)
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(TEXTS, JSON)
def test_no_text_makes_anything_but_a_validation_error_and_no_payload_anything_else(text: str, payload: Any) -> None:
    try:
        stored = compile_expressions(on_complete="true", transform=text)
    except ValidationError:
        return
    try:
        assert resolve(stored, payload, "ignore").action == "complete"
    except ValidationError as refused:
        assert refused.field == "payload"  # noqa: PT017


# what is not evaluated, or stopped

NESTED: Any = []
for _ in range(70):
    NESTED = [NESTED]
DEEP: Any = []
for _ in range(100_000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        ("x" * 65536, "65538 bytes of JSON"),
        ([0] * 1001, "1001 entries"),
        ({"a": dict.fromkeys(map(str, range(1001)))}, "1001 entries"),
        (NESTED, "nested deeper than 64"),
        (DEEP, "is no JSON"),
        (float("nan"), "is no JSON"),
        ({"a": {1, 2}}, "is no JSON"),
        ("\ud800", "is no JSON"),
        (["a\0b"], "NUL character"),
        ({"a\0b": 1}, "NUL character"),
        (10**400, "64 bits"),
        (10**5000, "is no JSON"),
    ],
    ids=range(12),
)
def test_a_payload_that_is_too_large_to_be_judged_is_refused_whatever_the_rules_say(payload: Any, why: str) -> None:
    stored = compile_expressions(filter="true")
    with pytest.raises(ValidationError, match=f"payload: .*{why}"):
        resolve(stored, payload, "complete")


def test_a_backslash_before_u0000_is_no_nul_character() -> None:
    assert given_by("payload.size() == 6 && payload == r'\\u0000'", "\\u0000") is True


def test_what_a_payload_says_breaks_no_line_of_the_log() -> None:
    stored = compile_expressions(filter="payload[payload.key]")
    decision = resolve(stored, {"key": "x\n\x1b[31mCRITICAL all is lost"}, "ignore")
    ((name, said),) = decision.troubles
    assert (name, said.isprintable()) == ("filter", True)


def test_one_expression_is_evaluated_in_many_threads_at_once() -> None:
    stored = compile_expressions(on_complete="payload.items.map(i, i).all(i, i == payload.of)")
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda n: resolve(stored, {"items": [n] * 100, "of": n % 7}, "ignore").action, range(400))
    assert list(found) == ["complete" if n < 7 else "ignore" for n in range(400)]


def test_without_expressions_a_payload_may_be_of_any_size() -> None:
    assert resolve(None, [0] * 2000, "complete") == Decision("complete", [0] * 2000)


LONG = {"l": [0] * 1000, "m": [{"n": [0] * 40} for _ in range(300)], "s": "x" * 30_000}


@pytest.mark.parametrize(
    "text",
    [
        "payload.m.map(a, a.n.map(b, b))",  # more steps than the library takes
        "payload.l.map(a, payload)",  # more values than are taken out of a result
        "[payload.s, payload.s, payload.s]",
        "[payload].map(a, [a, a, a, a, a, a, a, a]).map(a, [a, a, a, a, a, a, a, a]).map(a, [a, a, a, a, a, a, a, a])",
    ],
)
def test_a_result_that_grows_is_given_up(text: str) -> None:
    with pytest.raises(cel.EvaluationError, match=r"too m|more than|Iteration budget"):
        given_by(text, LONG)


# the library


def test_without_the_library_registering_and_resolving_raise_and_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored = compile_expressions(filter="payload.a == 5")
    cel._compiled.cache_clear()
    monkeypatch.setitem(sys.modules, "cel_expr_python", None)
    with pytest.raises(ConfigurationError, match=r"awa-queue\[cel\]"):
        compile_expressions(filter="payload.a == 5")
    with pytest.raises(ConfigurationError, match=r"awa-queue\[cel\]"):
        resolve(stored, {}, "complete")
    assert compile_expressions() is None
    assert resolve(None, {}, "complete") == Decision("complete", {})


def test_an_expression_is_compiled_once_and_the_memory_of_them_is_bounded() -> None:
    assert cel.compiled("filter", "payload.once") is cel.compiled("on_fail", "payload.once")
    assert cel._compiled.cache_info().maxsize == 512
