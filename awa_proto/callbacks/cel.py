"""One expression of CEL, the Common Expression Language: checked, limited, compiled, evaluated.

What is read here was written by an application, what it is evaluated over came from outside. So its cost has a bound that is
known when it is compiled, for the largest payload there may be. The library stops an evaluation after 10 000 steps of
macros, and a parse at a depth of 32; the rest is looked for in the checked syntax tree, which the library gives away as the
protocol buffer `cel.expr.CheckedExpr`:

- Macros are not nested deeper than two, and the inner one goes over a part of the outer one's element: what all of them
  visit is then at most the payload, not its square.
- Within a macro text is searched in parts of its element only, no regular expression is matched (the library reads its
  pattern anew at every step), and there are few comparisons of two values.
- Text and lists are not joined within a macro, nor is a joined list gone over: nothing doubles again and again.
- What a macro made of values that are no part of the payload is not compared: it may hold the same value many times.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

from awa_proto.errors import ConfigurationError, ValidationError
from awa_proto.extra import compact, size_of

MAX_EXPRESSION_BYTES: Final = 4096
"""Most bytes of the text of an expression, in UTF-8."""
MAX_EXPRESSION_NODES: Final = 400
"""Most nodes of its syntax tree, with those that a macro stands for."""
MAX_MACROS: Final = 8
"""Most macros (all, exists, exists_one, filter, map) in one expression."""
MAX_MACRO_DEPTH: Final = 2
MAX_PATTERNS: Final = 4
"""Most calls of matches() in one expression: each reads its pattern and the text anew."""
MAX_COMPARISONS: Final = 4
"""Most calls within macros that may read as much as the whole payload at every step."""
MAX_PAYLOAD_BYTES: Final = 65536
"""Most bytes of compact JSON that expressions are evaluated over, and that a transformation may give."""
MAX_PAYLOAD_ENTRIES: Final = 1000
"""Most entries of one list or object of such a payload."""
MAX_PAYLOAD_DEPTH: Final = 64
_MAX_RESULT_VALUES: Final = 20_000
_VARIABLE: Final = "payload"
_INTEGERS: Final = (-(2**63), 2**63 - 1)
_SEARCHES: Final = frozenset({"contains", "endsWith", "startsWith"})
_COMPARISONS: Final = frozenset({"_==_", "_!=_", "@in", "_<_", "_<=_", "_>_", "_>=_"})
_CHEAP: Final = frozenset(
    {
        "_&&_",
        "_||_",
        "!_",
        "_?_:_",
        "_[_]",
        "-_",
        "_+_",
        "_-_",
        "_*_",
        "_/_",
        "_%_",
        "@not_strictly_false",
        "dyn",
        "type",
    }
)
_JOINS: Final = frozenset({"add_string", "add_bytes", "add_list"})


class EvaluationError(Exception):
    """An expression gives nothing for this payload. It never leaves this package."""


class _Refused(Exception):
    """Why a text is no expression for us."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A compiled one. type: what it is known to give: "BOOL", "DYN" for what only a payload tells, ..."""

    text: str
    type: str
    program: Any

    def holds(self, payload: Any) -> bool:
        """Whether it gives true. payload: as `as_payload` gives it. Raises EvaluationError, also for what is no bool."""
        result = self._evaluated(payload)
        if result.type().name() != "BOOL":
            raise EvaluationError(f"it gives {named(result.type().name())}, not true or false")
        found: bool = result.value()
        return found

    def gives(self, payload: Any) -> Any:
        """Its result, as plain JSON values. Raises EvaluationError, also for what JSON does not have and for too much."""
        made = _Made(MAX_PAYLOAD_BYTES, _MAX_RESULT_VALUES).plain(self._evaluated(payload), MAX_PAYLOAD_DEPTH)
        if size_of(compact(made)) > MAX_PAYLOAD_BYTES:
            raise EvaluationError(f"it gives more than {MAX_PAYLOAD_BYTES} bytes of JSON")
        return made

    def _evaluated(self, payload: Any) -> Any:
        try:
            result = self.program.eval(data={_VARIABLE: payload})
        except Exception as error:  # noqa: BLE001  whatever the library says of it
            raise EvaluationError(_first_line(error)) from None
        if result.type().name() == "ERROR":
            raise EvaluationError(_first_line(result.value()))
        return result


def compiled(field: str, text: str) -> Expression:
    """The expression of a text. Raises ValidationError naming the field, ConfigurationError when the library is missing."""
    try:
        return _compiled(text)
    except _Refused as refused:
        raise ValidationError(field, str(refused)) from None


def as_payload(value: Any) -> Any:
    """A JSON value as expressions see it: integers outside 64 bits are floating-point numbers.

    Raises ValidationError naming `payload` and the limit: what is too large to be judged is not judged at all.
    """
    try:
        text = compact(value)
        size = size_of(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValidationError(_VARIABLE, f"is no JSON: {_first_line(error)}") from None
    if size > MAX_PAYLOAD_BYTES:
        raise ValidationError(
            _VARIABLE, f"has {size} bytes of JSON; expressions are evaluated over {MAX_PAYLOAD_BYTES}"
        )
    return _visible(json.loads(text), MAX_PAYLOAD_DEPTH)


def _visible(value: Any, depth: int) -> Any:
    match value:
        case dict() | list() if depth == 0:
            raise ValidationError(_VARIABLE, f"is nested deeper than {MAX_PAYLOAD_DEPTH}")
        case dict() | list() if len(value) > MAX_PAYLOAD_ENTRIES:
            limit = f"expressions are evaluated over {MAX_PAYLOAD_ENTRIES}"
            raise ValidationError(_VARIABLE, f"has {len(value)} entries in one list or object; {limit}")
        case str() if "\0" in value:  # where the library takes a text to end
            raise ValidationError(_VARIABLE, "contains a NUL character")
        case dict():
            return {_visible(key, depth): _visible(item, depth - 1) for key, item in value.items()}
        case list():
            return [_visible(item, depth - 1) for item in value]
        case int() if not _INTEGERS[0] <= value <= _INTEGERS[1]:
            try:
                return float(value)
            except OverflowError:
                raise ValidationError(_VARIABLE, "has a number beyond those of 64 bits") from None
        case _:
            return value


class _Made:
    """A result on its way to plain values, as long as it is small: a value that is there many times counts each time."""

    def __init__(self, most_characters: int, most_values: int) -> None:
        self._characters = most_characters
        self._values = most_values

    def plain(self, result: Any, depth: int) -> Any:
        """Raises EvaluationError."""
        self._values -= 1
        if self._values < 0 or depth < 0:
            raise EvaluationError("it gives too many values")
        kind, value = result.type().name(), result.value()
        match value:
            case str() if kind == "STRING":
                return self._text(value)
            case list():
                return [self.plain(item, depth - 1) for item in value]
            case dict():
                return {self._key(key): self.plain(item, depth - 1) for key, item in sorted(value.items(), key=_first)}
            case float() if value - value != 0:
                raise EvaluationError("it gives a number that is not finite")
            case None | bool() | int() | float():
                return value
            case _:
                raise EvaluationError(f"it gives {named(kind)}, which JSON does not have")

    def _key(self, key: object) -> str:
        if not isinstance(key, str):
            raise EvaluationError("it gives an object with a key that is no text")
        return self._text(key)

    def _text(self, text: str) -> str:
        self._characters -= len(text)
        if self._characters < 0:
            raise EvaluationError("it gives too much text")
        if "\0" in text:
            raise EvaluationError("it gives text with a NUL character")
        return text


# compiling


@lru_cache(maxsize=512)
def _compiled(text: str) -> Expression:
    library = _library()
    if (size := size_of(text)) > MAX_EXPRESSION_BYTES:
        raise _Refused(f"has {size} bytes; {MAX_EXPRESSION_BYTES} are allowed")
    environment = _environment()
    try:
        program = environment.compile(text)
        checked = program.serialize()
        given = program.return_type().name()
    except Exception as error:  # noqa: BLE001  as above
        raise _Refused(f"is no CEL over `payload`: {_first_line(error)}") from None
    look = _Look(*_syntax(checked))
    look.at(look.root, {_VARIABLE: _Origin(0, is_part=True)}, 0)
    for pattern in look.patterns:
        tried = environment.compile("''.matches(payload)").eval(data={_VARIABLE: pattern})
        if tried.type() == library.Type.ERROR:
            raise _Refused(f"matches() cannot read its pattern: {_first_line(tried.value())}")
    return Expression(text, given, program)


@lru_cache(maxsize=1)
def _environment() -> Any:
    library = _library()
    return library.NewEnv(variables={_VARIABLE: library.Type.DYN})


def _library() -> Any:
    try:
        from cel_expr_python import cel  # noqa: PLC0415  optional
    except ImportError:
        message = "expressions of callbacks need the library cel-expr-python: pip install 'awa-queue[cel]'"
        raise ConfigurationError(message) from None
    return cel


def _first_line(error: object) -> str:
    """What the library says, without its drawing of where."""
    lines = str(error).removeprefix("INVALID_ARGUMENT: ").strip().splitlines() or [type(error).__name__]
    return lines[0][:200]


def named(kind: str) -> str:
    """A type of the library, with an article."""
    return f"{'an' if kind.startswith('INT') else 'a'} {kind.lower()}"


def _first(entry: tuple[Any, Any]) -> str:
    return str(entry[0])


# the syntax tree


class _Node(NamedTuple):
    """kind: const, ident, select, call, list, map, message, or macro, whose parts are range, start, condition, step, result.

    name: of what is read, called or bound. value: of a constant, when it is text.
    """

    id: int
    kind: str
    name: str = ""
    parts: tuple[_Node, ...] = ()
    value: object = None


class _Origin(NamedTuple):
    """Of a variable. depth: within how many macros it is bound. is_part: its values are parts of the payload."""

    depth: int
    is_part: bool


class _Look:
    """One look at a tree, which refuses what may cost too much."""

    def __init__(self, root: _Node, overloads: dict[int, frozenset[str]]) -> None:
        self.root = root
        self.patterns: list[str] = []
        self._overloads = overloads
        self._nodes = 0
        self._macros = 0
        self._comparisons = 0

    def at(self, node: _Node, scope: dict[str, _Origin], depth: int) -> None:
        """Look at a node within so many macros. Raises _Refused."""
        self._nodes += 1
        if self._nodes > MAX_EXPRESSION_NODES:
            raise _Refused(f"has more than {MAX_EXPRESSION_NODES} nodes")
        match node.kind:
            case "message":
                raise _Refused(f"makes a message {node.name!r}; only lists and objects can be made")
            case "macro":
                self._macro(node, scope, depth)
                return
            case "call":
                self._call(node, scope, depth)
            case _:
                pass
        for part in node.parts:
            self.at(part, scope, depth)

    def _macro(self, node: _Node, scope: dict[str, _Origin], depth: int) -> None:
        self._macros += 1
        over, _, _, step, _ = node.parts
        if self._macros > MAX_MACROS:
            raise _Refused(f"has more than {MAX_MACROS} macros")
        if depth >= MAX_MACRO_DEPTH:
            raise _Refused(f"has macros nested deeper than {MAX_MACRO_DEPTH}")
        if depth and not _is_of_element(over, scope, depth):
            raise _Refused("has a macro within another one that goes over no part of that one's element")
        if not depth and not _is_range(over):
            raise _Refused(
                "has a macro over what is neither a part of the payload, a list in the text, nor another macro"
            )
        self.at(over, scope, depth)
        inner = {**scope, node.name: _Origin(depth + 1, is_part=_has_parts(over, scope))}
        for part in _written(step):
            self.at(part, inner, depth + 1)

    def _call(self, node: _Node, scope: dict[str, _Origin], depth: int) -> None:
        if node.name == "matches":
            self._matches(node, depth)
        against_constant = any(map(_is_constant, node.parts))
        if node.name in _COMPARISONS and not (against_constant or all(_is_plain(part, scope) for part in node.parts)):
            raise _Refused("compares what a macro made with something else than a constant")
        if not depth:
            return
        if node.name in _SEARCHES:
            if not _is_of_element(node.parts[0], scope, depth):
                raise _Refused(f"has a call of {node.name}() in a macro on what is no part of that macro's element")
        elif node.name == "_+_":
            if self._overloads.get(node.id, _JOINS) & _JOINS:
                raise _Refused(
                    "joins text or lists within a macro; int(…) or double(…) says that something is a number"
                )
        elif node.name not in _CHEAP and not (against_constant or self._reads_element(node, scope, depth)):
            self._comparisons += 1
            if self._comparisons > MAX_COMPARISONS:
                raise _Refused(
                    f"has more than {MAX_COMPARISONS} calls and comparisons within macros of what is no part of the element"
                )

    def _matches(self, node: _Node, depth: int) -> None:
        pattern = node.parts[-1]
        if pattern.kind != "const" or not isinstance(pattern.value, str):
            raise _Refused("has a call of matches() whose pattern is not in the text")
        if depth:
            raise _Refused("has a call of matches() within a macro, where its pattern is read anew at every step")
        self.patterns.append(pattern.value)
        if len(self.patterns) > MAX_PATTERNS:
            raise _Refused(f"has more than {MAX_PATTERNS} calls of matches()")

    @staticmethod
    def _reads_element(node: _Node, scope: dict[str, _Origin], depth: int) -> bool:
        """Whether it reads no more than a part of the element: a comparison of two values ends with the smaller one."""
        operands = [_is_of_element(part, scope, depth) for part in node.parts]
        return any(operands) if node.name in {"_==_", "_!=_"} else all(operands)


def _is_of_element(node: _Node, scope: dict[str, _Origin], depth: int) -> bool:
    """Whether it is a part of the element that the innermost macro is at, and so of the payload."""
    origin = scope.get(_root(node) or "")
    return origin is not None and origin.depth == depth and origin.is_part


def _has_parts(node: _Node, scope: dict[str, _Origin]) -> bool:
    """Whether the elements of a range are constants, or parts of the payload of which none is there twice."""
    if node.kind != "macro":
        root = _root(node)
        return _is_constant(node) if root is None else root in scope and scope[root].is_part
    over, _, _, step, _ = node.parts
    return _makes_list(step) and _root(_written(step)[-1]) == node.name and _has_parts(over, scope)


def _is_plain(node: _Node, scope: dict[str, _Origin]) -> bool:
    """Whether it has no more values than the payload has, times the length of the expression."""
    match node.kind:
        case "ident":
            return node.name not in scope or scope[node.name].is_part
        case "macro":
            return not _makes_list(node.parts[3]) or _has_parts(node, scope)
        case _:
            return all(_is_plain(part, scope) for part in node.parts)


def _root(node: _Node) -> str | None:
    """The variable of which a node is a part, however deep; None when it is no part of one."""
    while node.kind == "select" or (node.kind == "call" and node.name == "_[_]"):
        node = node.parts[0]
    return node.name if node.kind == "ident" else None


def _is_range(node: _Node) -> bool:
    return _root(node) is not None or node.kind in {"list", "map", "macro"}


def _is_constant(node: _Node) -> bool:
    return node.kind == "const" or (node.kind in {"list", "map"} and all(map(_is_constant, node.parts)))


def _makes_list(step: _Node) -> bool:
    """Whether the step of a macro adds to a list, as those of filter and map do."""
    added = step.parts[1] if step.name == "_?_:_" else step
    return added.name == "_+_" and added.parts[1].kind == "list"


def _written(step: _Node) -> tuple[_Node, ...]:
    """What the text has of a step: a condition, or what is added to the list, or both in this order.

    Steps are `so_far && written`, `so_far || written`, `written ? so_far + 1 : so_far`, `so_far + [written]`, and
    `written ? so_far + [written] : so_far`.
    """
    if step.name != "_?_:_":
        added = step.parts[1]
        return added.parts if step.name == "_+_" else (added,)
    condition, added = step.parts[0], step.parts[1].parts[1]
    return (condition, *(added.parts if added.kind == "list" else ()))


def _syntax(checked: bytes) -> tuple[_Node, dict[int, frozenset[str]]]:
    """The tree of a serialized `Any` of a CheckedExpr, and the overloads that each call may mean."""
    message = _only(checked, 2)
    overloads = {}
    for entry in _all(message, 2):  # reference_map
        references = _all(_only(entry, 2), 3)
        if references:
            overloads[_only(entry, 1)] = frozenset(each.decode() for each in references)
    return _node(_only(message, 4)), overloads


def _node(data: bytes) -> _Node:
    """A message `cel.expr.Expr`."""
    id, found = 0, _Node(0, "const")
    for number, value in _fields(data):
        match number:
            case 2:
                id = value
            case 3:
                found = _Node(0, "const", value=_constant(value))
            case 4:
                found = _Node(0, "ident", _only(value, 1).decode())
            case 5:
                found = _Node(0, "select", _only(value, 2).decode(), (_node(_only(value, 1)),))
            case 6:
                operands = *_all(value, 1), *_all(value, 3)
                found = _Node(0, "call", _only(value, 2).decode(), tuple(map(_node, operands)))
            case 7:
                found = _Node(0, "list", parts=tuple(map(_node, _all(value, 1))))
            case 8:
                found = _struct(value)
            case 9:
                parts = tuple(_node(_only(value, field)) for field in (2, 4, 5, 6, 7))
                found = _Node(0, "macro", _only(value, 1).decode(), parts)
            case _:
                raise _Refused("has something that is not known here")
    return found._replace(id=id)


def _constant(data: bytes) -> object:
    """The text of a constant that is one; of others nobody asks."""
    texts = _all(data, 6)
    return texts[0].decode() if texts else None


def _struct(data: bytes) -> _Node:
    names = _all(data, 1)
    if names:
        return _Node(0, "message", names[0].decode())
    entries = _all(data, 2)
    parts = [_node(value) for entry in entries for field in (3, 4) for value in _all(entry, field)]
    return _Node(0, "map", parts=tuple(parts))


def _only(data: bytes, wanted: int) -> Any:
    """The field of that number, or what protocol buffers mean by none."""
    found = _all(data, wanted)
    return found[-1] if found else b""


def _all(data: bytes, wanted: int) -> list[Any]:
    return [value for number, value in _fields(data) if number == wanted]


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message of protocol buffers: integers of varints, bytes of everything else."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        length = {1: 8, 5: 4}.get(tag & 7)
        if tag & 7 == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if length is None:
            length, at = _varint(data, at)
        yield tag >> 3, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
