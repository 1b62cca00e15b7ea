"""Ingress: the outside world speaks HTTP to jobs that wait. Everything but the bytes of requests and answers is here.

    POST {prefix}/{id}/complete   {"payload": …, "output": …}                 the job has completed
    POST {prefix}/{id}/fail       {"error": "…"}                              it has failed
    POST {prefix}/{id}/resume     {"payload": …}                              its handler goes on
    POST {prefix}/{id}/heartbeat  {"timeout_seconds": 3600}                   it waits so long from now
    POST {prefix}/{id}/resolve    {"payload": …, "default_action": "ignore"}  its expressions decide

An adapter asks `begin` about the head of a request, which answers at once or says how much of a body to read; then `finish`
about the body, which answers or gives an Op to carry out; and then the call that it got about how that ended. What is
refused is refused as early as that can be known. Answers are JSON: `{"id": 1, "state": "completed"}` of the job, or
`{"error": "…"}`, which says what is wrong with the request and nothing about what is behind it: that is logged.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypedDict

from awa_proto.callbacks.signature import ACTIONS, HEADER, REPLAY_WINDOW, Secret, Signatures
from awa_proto.error_text import describe
from awa_proto.errors import AwaError, CallbackNotFound, ConfigurationError, DatabaseError, OutputError, ValidationError
from awa_proto.extra import compact
from awa_proto.job import JobState
from awa_proto.options import flag, positive_seconds, text, whole
from awa_proto.outcome import Seconds
from awa_proto.plan import Op

_log = logging.getLogger("awa")

PREFIX: Final = "/api/callbacks"
MAX_BODY_BYTES: Final = 1024 * 1024
"""Most bytes of a body, where nothing else is said."""
BODY_TIMEOUT: Final = 10.0
"""Seconds after which a body has to be there, where nothing else is said."""
MAX_JSON_DEPTH: Final = 100
_ID: Final = r"([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})"
_LENGTH: Final = re.compile(r"[0-9]{1,12}")
_MISPLACED: Final = re.compile(rf"(.*)/{_ID}/(?:{'|'.join(ACTIONS)})")
_SILENCE: Final = 60.0
_NO_BODY: Final = b"{}"


class Calls(Protocol):
    """The calls of a client, as Ops, that requests end in; see `Operations`."""

    @property
    def complete_external(self) -> Callable[..., Op[Any]]: ...  # noqa: D102
    @property
    def fail_external(self) -> Callable[..., Op[Any]]: ...  # noqa: D102
    @property
    def resume_external(self) -> Callable[..., Op[Any]]: ...  # noqa: D102
    @property
    def heartbeat_callback(self) -> Callable[..., Op[Any]]: ...  # noqa: D102
    @property
    def resolve_callback(self) -> Callable[..., Op[Any]]: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Head:
    """A request without its body.

    path: below where the application is mounted, percent-decoded. headers: names in lower case; the values of one that is there
    more than once are joined with a comma, as RFC 9110 has it, and then are of no form that is asked for here.
    """

    method: str
    path: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent back. ends_connection: the request was not read to its end, so nothing can follow it."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...]
    ends_connection: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """A body is to be read: until it ends, at most so many bytes, and one more to see that there are too many.

    timeout: seconds from now until which it has to be there. declared: how many bytes the head says it has, if it says so.
    """

    most: int
    timeout: float
    declared: int | None
    id: str
    action: _Action
    signature: str
    content_type: str


@dataclass(frozen=True, slots=True)
class Call:
    """Something to be carried out."""

    op: Op[Any]
    action: str

    def succeeded(self, result: Any) -> Answer:
        """The answer to its result."""
        job = result.job if self.action == "resolve" else result
        if job.state is JobState.CANCELLED:  # nothing that is asked for here ends so, but for the sake of a newer job
            return refusal(409, "another job has taken the place of this one, which is cancelled")
        body = {"id": job.id, "state": str(job.state)}
        if self.action == "resolve":
            body["outcome"] = result.outcome
            if result.reason is not None:
                body["reason"] = result.reason
        return _answer(200, body)

    def failed(self, error: Exception) -> Answer:
        """The answer to why there is no result."""
        match error:
            case CallbackNotFound():
                return refusal(404, "no job waits for this callback")
            case OutputError():
                return refusal(400, str(error))
            case ValidationError(field=field) if field in _SENT:
                return refusal(400, str(error))
            case AwaError():
                # an outage has many callers, and says itself what it is
                traced = None if isinstance(error, DatabaseError) else error
                _log.error("a callback could not be carried out: %s", describe(error), exc_info=traced)
                return refusal(503, "not possible at the moment; send it again later", ("Retry-After", "5"))
            case _:
                _log.error("a callback failed: %s", describe(error), exc_info=error)
                return refusal(500, "something is wrong here")


def refuse_other_clients(client: object, package: str) -> None:
    """Raises ConfigurationError: it is no client, or one whose calls another package's applications know how to make.

    package: the one that the application is of, such as "awa_sync". What is no `Client` of any, but can do what one does, is
    taken at its word.
    """
    takes = f"{package}.web takes a Client of {package}, not"
    of = next((found for each in type(client).__mro__ if (found := _package_of(each)) is not None), None)
    if of not in {None, package}:
        raise ConfigurationError(
            f"{takes} of {of}, whose calls would not be waited for; `awa callbacks serve` takes any of them"
        )
    if of is None and not (hasattr(client, "operations") and hasattr(client, "perform")):
        raise ConfigurationError(f"{takes} {type(client).__name__}")


def _package_of(kind: type) -> str | None:
    package = kind.__module__.partition(".")[0]
    return package if kind.__name__ == "Client" and package in {"awa_asyncio", "awa_trio", "awa_sync"} else None


class IngressSettings(TypedDict, total=False):
    """The keywords of `Ingress` and of everything that makes one. A missing one means the default.

    allow_unsigned: let everything in: only where something in front sees to it who sends; False. replay_window: seconds (or a
    timedelta) that a signature is good for, before and after the time that it names, at least 1; 300. prefix: what paths begin
    with, as they are when percent-decoded, "" where the application is mounted at that place; "/api/callbacks". max_body: most
    bytes of a body, 1 KiB to 1 GiB; 1 MiB. body_timeout: seconds (or a timedelta) after which it has to be there; 10.
    """

    allow_unsigned: bool
    replay_window: Seconds
    prefix: str
    max_body: int
    body_timeout: Seconds


class Ingress:
    """The routes, and what is asked of requests. It is the same for every server and framework.

    Args:
        calls: What makes the Ops.
        secrets: What requests are signed with, see `Signatures`.

    The keywords are those of IngressSettings.

    Raises:
        ConfigurationError: There is no secret, and `allow_unsigned` was not asked for.
        ValidationError: Naming the setting and its limit.
    """

    def __init__(
        self,
        calls: Calls,
        secrets: Secret | Sequence[Secret] = (),
        *,
        allow_unsigned: bool = False,
        replay_window: Seconds = REPLAY_WINDOW,
        prefix: str = PREFIX,
        max_body: int = MAX_BODY_BYTES,
        body_timeout: Seconds = BODY_TIMEOUT,
    ) -> None:
        self._calls = calls
        unsigned = flag("allow_unsigned", allow_unsigned)
        self._signatures = Signatures(secrets, window=replay_window, allow_unsigned=unsigned)
        self._route = re.compile(re.escape(_checked_prefix(prefix)) + f"/{_ID}/([a-z]+)")
        self._max_body = whole("max_body", max_body, 1024, 2**30)
        self._body_timeout = positive_seconds("body_timeout", body_timeout)
        self._prefix = prefix
        self._is_misplaced = False
        self._said: dict[str, float] = {}

    def begin(self, head: Head) -> Answer | Reading:
        """What to do about a request whose head has come."""
        route = self._route.fullmatch(head.path)
        action = None if route is None else _ACTIONS.get(route[2])
        if route is None or action is None:
            self._say_if_misplaced(head.path)
            return _unread(refusal(404, "there is nothing here"))
        if head.method != "POST":
            return _unread(refusal(405, "only POST is possible here", ("Allow", "POST")))
        signature = head.headers.get(HEADER.lower())
        if self._signatures.are_needed and not self._signatures.is_of_the_form(signature):
            return _unread(_FORMLESS)
        length = head.headers.get("content-length")
        if length is not None and not _LENGTH.fullmatch(length):
            return _unread(refusal(400, "Content-Length is no number"))
        declared = None if length is None else int(length)
        if declared is not None and declared > self._max_body:
            return self.too_large()
        content_type = head.headers.get("content-type", "")
        return Reading(self._max_body, self._body_timeout, declared, route[1], action, signature or "", content_type)

    def too_large(self) -> Answer:
        """The answer to a body of more bytes than `most`, which are not read."""
        return _unread(refusal(413, f"a body may have {self._max_body} bytes"))

    def too_slow(self) -> Answer:
        """The answer to a body that is not there in time."""
        return _unread(refusal(408, "the body did not come in time"))

    def finish(self, reading: Reading, body: bytes, now: float) -> Answer | Call:
        """What to do about a request whose body has come. now: seconds since 1970, as the host has it."""
        id, action = reading.id, reading.action
        if len(body) > reading.most:
            return self.too_large()
        if reading.declared not in {None, len(body)}:
            return _unread(refusal(400, "the body is not as long as Content-Length says"))
        if self._signatures.are_needed and not self._is_signed(reading, body, now):
            return _UNSIGNED
        if body and not _is_json(reading.content_type):
            return refusal(415, "the body has to be JSON in UTF-8, and Content-Type application/json")
        try:
            given = _fields(body or _NO_BODY, action)
            return Call(action.op(self._calls, id, given), action.name)
        except _Malformed as malformed:
            return refusal(400, str(malformed))
        except (ValidationError, OutputError) as refused:
            return refusal(400, str(refused))
        except RecursionError:
            return refusal(400, "the body is nested too deeply")

    def _is_signed(self, reading: Reading, body: bytes, now: float) -> bool:
        """Why not is said to who runs this; the sender may be anybody."""
        at = self._signatures.made_at(reading.signature, reading.id, reading.action.name, body)
        if at is None:
            self._say(
                logging.INFO,
                now,
                "a callback is refused: none of the secrets gives its signature, for this id, action and body",
            )
        elif not self._signatures.is_within(at, now):
            away = f"{now - at:.0f} seconds ago" if at < now else f"{at - now:.0f} seconds from now"
            self._say(
                logging.WARNING, now, "a callback is refused: its signature is right, but was made %s, and %g are allowed; it "
                "is sent again, or the clocks do not agree", away, self._signatures.window,
            )  # fmt: skip
        else:
            return True
        return False

    def _say(self, level: int, now: float, message: str, *args: object) -> None:
        """Log it, at most once a minute."""
        if not 0 <= now - self._said.get(message, -math.inf) < _SILENCE:
            self._said[message] = now
            _log.log(level, message, *args)

    def _say_if_misplaced(self, path: str) -> None:
        """Once, that what is asked for would be here if it were for the prefix: the sender takes its 404 for another one."""
        found = None if self._is_misplaced else _MISPLACED.fullmatch(path)
        if found is not None and found[1] != self._prefix:
            self._is_misplaced = True
            begins = f"begins with {found[1][:200]!r}" if found[1] else "begins with the id"
            cure = (
                'where the application is mounted give prefix=""' if self._prefix else "that is what to give as prefix"
            )
            _log.warning(
                "a callback is answered 404: paths here begin with %r, and that of the request %s; %s",
                self._prefix,
                begins,
                cure,
            )


# actions


@dataclass(frozen=True, slots=True)
class _Action:
    """A route. fields: what a body may have. op: what a request ends in."""

    name: str
    fields: tuple[str, ...]
    op: Callable[[Calls, str, Mapping[str, Any]], Op[Any]]


def _complete(calls: Calls, id: str, given: Mapping[str, Any]) -> Op[Any]:
    return calls.complete_external(id, given.get("payload"), output=given.get("output"))


def _fail(calls: Calls, id: str, given: Mapping[str, Any]) -> Op[Any]:
    if "error" not in given:
        raise _Malformed("error: is missing")
    return calls.fail_external(id, given["error"])


def _resume(calls: Calls, id: str, given: Mapping[str, Any]) -> Op[Any]:
    return calls.resume_external(id, given.get("payload"))


def _heartbeat(calls: Calls, id: str, given: Mapping[str, Any]) -> Op[Any]:
    timeout = given.get("timeout_seconds", 3600)
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise _Malformed("timeout_seconds: a number is needed")
    try:
        return calls.heartbeat_callback(id, timeout)
    except ValidationError as refused:
        raise _Malformed(f"timeout_seconds: {refused.reason}") from None


def _resolve(calls: Calls, id: str, given: Mapping[str, Any]) -> Op[Any]:
    return calls.resolve_callback(id, given.get("payload"), given.get("default_action", "ignore"))


_ACTIONS: Final = {
    action.name: action
    for action in (
        _Action("complete", ("payload", "output"), _complete),
        _Action("fail", ("error",), _fail),
        _Action("resume", ("payload",), _resume),
        _Action("heartbeat", ("timeout_seconds",), _heartbeat),
        _Action("resolve", ("payload", "default_action"), _resolve),
    )
}
_SENT: Final = frozenset({"payload", "output", "error", "default_action"})
"""Fields of a ValidationError that say something of what was sent, and so to the sender."""


# bodies


class _Malformed(Exception):
    """What is wrong with a body, for its sender."""


def _fields(body: bytes, action: _Action) -> Mapping[str, Any]:
    try:
        given = json.loads(
            body.decode(), parse_constant=_no_number, parse_float=_finite, object_pairs_hook=_without_repetition
        )
    except RecursionError:
        raise _Malformed("the body is nested too deeply") from None
    except ValueError:  # also of UTF-8, and of an integer with more digits than Python reads
        raise _Malformed("the body is no JSON in UTF-8") from None
    if not isinstance(given, dict):
        raise _Malformed("the body is no JSON object")
    unknown = [name for name in given if name not in action.fields]
    if unknown:
        raise _Malformed(
            f"{unknown[0][:40]!r} is no field here; the body may have {' and '.join(action.fields)}, and nothing else"
        )
    if body.count(b"[") + body.count(b"{") > MAX_JSON_DEPTH and _is_deep(given):
        raise _Malformed("the body is nested too deeply")
    return given


def _no_number(_: str) -> float:
    raise ValueError("NaN and infinities are no JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError("beyond the range of floating-point numbers")
    return number


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):  # whoever else looks at it may take the other one
        raise _Malformed("the body has an object with the same key twice")
    return found


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_JSON_DEPTH + 1):
        inner: list[Any] = []
        for each in level:
            inner += [item for item in (each.values() if type(each) is dict else each) if type(item) in {dict, list}]
        if not inner:
            return False
        level = inner
    return True


def _is_json(content_type: str) -> bool:
    kind, *parameters = (part.strip().lower() for part in content_type.split(";"))
    return kind == "application/json" and all(each in {"charset=utf-8", 'charset="utf-8"'} for each in parameters)


# answers


def refusal(status: int, message: str, *headers: tuple[str, str]) -> Answer:
    """An answer that says why not."""
    return _answer(status, {"error": message}, *headers)


def _answer(status: int, body: object, *headers: tuple[str, str]) -> Answer:
    data = compact(body).encode(errors="replace")
    always = (("Content-Type", "application/json"), ("Content-Length", str(len(data))), ("Cache-Control", "no-store"))
    return Answer(status, data, (*always, *headers))


def _unread(answer: Answer) -> Answer:
    return Answer(answer.status, answer.body, answer.headers, ends_connection=True)


_FORMLESS: Final = refusal(
    401,
    f"{HEADER} is needed: t=<whole seconds since 1970>,v1=<64 hexadecimal digits, in small letters>",
    ("WWW-Authenticate", HEADER),
)
_UNSIGNED: Final = refusal(401, f"a valid {HEADER} is needed", ("WWW-Authenticate", HEADER))


def _checked_prefix(prefix: object) -> str:
    found = text("prefix", prefix)
    if found and (not found.startswith("/") or found.endswith("/") or "//" in found):
        raise ValidationError("prefix", 'is "", or begins with a / and does not end with one')
    return found
