"""What a payload means to a job that registered expressions: it completes the job, fails it, or is ignored.

The rule, in this order: a `filter` that gives false ignores the payload; `on_fail` that gives true fails the job; `on_complete`
that gives true completes it, with what `transform` makes of the payload; else what the caller says. An expression that gives
an error, or a condition that gives no bool, counts as not there: a payload is let through by the filter, neither fails nor
completes the job, and is not transformed.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

from awa_proto.callbacks.cel import EvaluationError, Expression, as_payload, compiled, named
from awa_proto.errors import ValidationError
from awa_proto.extra import compact
from awa_proto.options import text

Action: TypeAlias = Literal["ignore", "complete", "fail"]
_ACTIONS: Final[tuple[Action, ...]] = get_args(Action)
_JSON: Final = ("BOOL", "DOUBLE", "DYN", "INT", "LIST", "MAP", "NULL", "STRING", "UINT")
"""What a transformation may be known to give."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done about a payload.

    payload: transformed, when `on_complete` said to complete. reason: of an ignore, for people. expression: of a fail, the text
    that gave true; None when it is the caller's default. troubles: the expressions that gave no answer, by their fields, with
    what is to be said of it.
    """

    action: Action
    payload: Any
    reason: str | None = None
    expression: str | None = None
    troubles: tuple[tuple[str, str], ...] = dataclasses.field(default=(), compare=False)


def compile_expressions(
    *, filter: object = None, on_complete: object = None, on_fail: object = None, transform: object = None
) -> str | None:
    """The expressions of one callback as JSON text to be stored; None when there are none.

    Raises:
        ValidationError: Naming the field: it cannot be read, asks for something else than `payload`, gives a value of the
            wrong type, or is beyond a limit (see `awa_proto.callbacks.cel`).
        ConfigurationError: The library is not installed.
    """
    given = {"filter": filter, "on_complete": on_complete, "on_fail": on_fail, "transform": transform}
    texts = {field: text(field, value) for field, value in given.items() if value is not None}
    for field, written in texts.items():
        found = compiled(field, written)
        kind = found.type.partition("<")[0]
        if field == "transform":
            if kind not in _JSON:
                raise ValidationError(field, f"gives {named(kind)}, which JSON does not have")
        elif kind not in {"BOOL", "DYN"}:
            raise ValidationError(field, f"gives {named(kind)}; true or false is needed")
    return compact(texts) if texts else None


def resolve(expressions: str | None, payload: Any, default_action: Action) -> Decision:
    """What a payload means. expressions: as `compile_expressions` gave them. payload: a JSON value.

    Raises:
        ValidationError: A payload beyond the limits of what expressions are evaluated over.
        ConfigurationError: There are expressions, and the library is not installed.
    """
    if expressions is None:
        return _by_default(default_action, payload)
    texts: dict[str, str] = json.loads(expressions)
    judge = _Judge({name: compiled(name, written) for name, written in texts.items()}, as_payload(payload))
    if judge.holds("filter") is False:
        decision = Decision("ignore", payload, reason="filter expression returned false")
    elif judge.holds("on_fail"):
        decision = Decision("fail", payload, expression=texts["on_fail"])
    elif judge.holds("on_complete"):
        decision = Decision("complete", judge.transformed(payload))
    else:
        decision = _by_default(default_action, payload)
    return dataclasses.replace(decision, troubles=tuple(judge.troubles)) if judge.troubles else decision


def checked_action(value: object) -> Action:
    """What is to be done where no expression decides. Raises ValidationError."""
    for action in _ACTIONS:
        if isinstance(value, str) and value == action:
            return action
    shown = repr(value)[:40] if isinstance(value, str) else f"a value of type {type(value).__name__}"
    raise ValidationError("default_action", f"{shown} is none of {', '.join(_ACTIONS)}")


def _by_default(action: Action, payload: Any) -> Decision:
    reason = "no expression decided, and the default is to ignore" if action == "ignore" else None
    return Decision(action, payload, reason=reason)


class _Judge:
    """Evaluates expressions over one payload, and notes which give no answer."""

    def __init__(self, found: dict[str, Expression], seen: Any) -> None:
        self._found = found
        self._seen = seen
        self.troubles: list[tuple[str, str]] = []

    def holds(self, name: str) -> bool | None:
        """What a condition gives; None when there is none, or it gives no answer."""
        expression = self._found.get(name)
        if expression is None:
            return None
        try:
            return expression.holds(self._seen)
        except EvaluationError as error:
            said = f"{name} of a callback counts as not there, since it gives an error: {str(error)!r}"
            self.troubles.append((name, said))
            return None

    def transformed(self, payload: Any) -> Any:
        """What `transform` makes of the payload; the payload where it makes nothing."""
        expression = self._found.get("transform")
        if expression is None:
            return payload
        try:
            return expression.gives(self._seen)
        except EvaluationError as error:
            said = f"the payload of a callback stays as it is, since transform gives an error: {str(error)!r}"
            self.troubles.append(("transform", said))
            return payload
