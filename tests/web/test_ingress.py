"""The ingress: what each request is answered, whoever carries it, and what is not done for it."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import awa_asyncio
import awa_sync
import awa_trio
from awa_asyncio.web import callbacks_app as asgi_app
from awa_proto.callbacks import ingress
from awa_proto.callbacks.ingress import Answer, Head, Ingress, Reading
from awa_proto.callbacks.signature import Signatures, sign
from awa_proto.callbacks.token import CallbackToken
from awa_proto.errors import (
    AwaError,
    CallbackNotFound,
    ConfigurationError,
    DatabaseError,
    OutputError,
    SchemaNotMigrated,
    ValidationError,
)
from awa_proto.followup import FollowUpError
from awa_proto.job import JobState
from awa_sync.web import callbacks_app as wsgi_app
from tests.test_cli import ROOT
from tests.web.requests import (
    ID,
    NOW,
    SECRET,
    TAKERS,
    AsyncClient,
    BlockingClient,
    Calls,
    Job,
    Request,
    Resolution,
    Take,
    joined,
    through_asgi,
    through_wsgi,
)


@pytest.fixture(params=TAKERS)
def take(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Take:
    monkeypatch.setattr("time.time", lambda: float(NOW))
    return TAKERS[request.param]


# what is done

DONE = [
    ("complete", {}, ("complete", ID, None, None)),
    ("complete", {"payload": {"a": [1, None]}, "output": {"paid": True}}, ("complete", ID, {"a": [1, None]}, {"paid": True})),
    ("fail", {"error": "declined"}, ("fail", ID, "declined")),
    ("resume", {"payload": "go"}, ("resume", ID, "go")),
    ("heartbeat", {}, ("heartbeat", ID, 3600)),
    ("heartbeat", {"timeout_seconds": 0.5}, ("heartbeat", ID, 0.5)),
]  # fmt: skip


@pytest.mark.parametrize(("action", "body", "asked"), DONE)
def test_a_signed_request_ends_in_the_call_it_names_and_is_told_the_job(
    take: Take, action: str, body: Any, asked: tuple[Any, ...]
) -> None:
    calls = Calls()
    got = take(calls, Request(json.dumps(body).encode(), action))
    assert (got.status, got.said) == (200, {"id": 7, "state": "completed"})
    assert calls.asked == [asked]
    assert got.headers["content-type"] == "application/json"
    assert got.headers["content-length"] == str(len(got.body))


def test_what_expressions_made_of_a_payload_is_told(take: Take) -> None:
    calls = Calls(Resolution("ignored", Job(7, JobState.WAITING_EXTERNAL), "filter expression returned false"))
    got = take(calls, Request(b'{"payload": 1, "default_action": "complete"}', "resolve"))
    told = {"id": 7, "state": "waiting_external", "outcome": "ignored", "reason": "filter expression returned false"}
    assert (got.status, got.said) == (200, told)
    assert calls.asked == [("resolve", ID, 1, "complete")]


def test_no_body_is_an_empty_object_and_needs_no_content_type(take: Take) -> None:
    calls = Calls()
    assert take(calls, Request(b"", headers=[("content-type", None)])).status == 200
    assert calls.asked == [("complete", ID, None, None)]


def test_a_body_in_pieces_is_put_together(take: Take) -> None:
    calls = Calls()
    body = b'{"payload": "\xc3\xa9"}'
    pieces = [body[:5], b"", body[5:14], body[14:]]
    assert take(calls, Request(body, pieces=pieces, chunked=True)).status == 200
    assert calls.asked == [("complete", ID, "é", None)]


# what is refused, and changes nothing

GOOD = sign(SECRET, ID, "complete", b"{}", NOW)
OTHER = "f" * 8 + ID[8:]
DEEP = b'{"payload": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
REFUSED = {
    # nothing there
    "another path": (404, Request(path="/")),
    "no action": (404, Request(path=f"/api/callbacks/{ID}")),
    "an unknown action": (404, Request(path=f"/api/callbacks/{ID}/cancel")),
    "an action in capitals": (404, Request(path=f"/api/callbacks/{ID}/COMPLETE")),
    "a slash at the end": (404, Request(path=f"/api/callbacks/{ID}/complete/")),
    "a line feed at the end": (404, Request(path=f"/api/callbacks/{ID}/complete\n")),
    "two slashes": (404, Request(path=f"/api/callbacks//{ID}/complete")),
    "a prefix that goes on": (404, Request(path=f"/api/callbacksx/{ID}/complete")),
    "something before the prefix": (404, Request(path=f"/x/api/callbacks/{ID}/complete")),
    "a way up": (404, Request(path=f"/api/callbacks/../callbacks/{ID}/complete")),
    "an encoded slash twice": (404, Request(path=f"/api/callbacks%2F{ID}/complete")),
    "an id that is none": (404, Request(path="/api/callbacks/1/complete")),
    "an id in capitals": (404, Request(path=f"/api/callbacks/{ID.upper()}/complete")),
    "an id without hyphens": (404, Request(path=f"/api/callbacks/{ID.replace('-', '')}/complete")),
    "digits of another script": (404, Request(path=f"/api/callbacks/{ID.replace('5', chr(0x665))}/complete")),
    # not so
    "GET": (405, Request(method="GET")),
    "PUT": (405, Request(method="PUT")),
    "OPTIONS": (405, Request(method="OPTIONS")),
    "post in small letters": (405, Request(method="post")),
    # whose?
    "no signature": (401, Request(headers=[("awa-signature", None)])),
    "an empty signature": (401, Request(headers=[("awa-signature", "")])),
    "another form": (401, Request(headers=[("awa-signature", "v1=" + "0" * 64)])),
    "another secret": (401, Request(secret="another secret, long enough")),
    "another body": (401, Request(headers=[("awa-signature", sign(SECRET, ID, "complete", b"{ }", NOW))])),
    "another callback": (401, Request(headers=[("awa-signature", sign(SECRET, OTHER, "complete", b"{}", NOW))])),
    "another action": (401, Request(headers=[("awa-signature", sign(SECRET, ID, "resume", b"{}", NOW))])),
    "another time": (401, Request(headers=[("awa-signature", GOOD.replace("t=1800000000", "t=1800000001"))])),
    "a signature twice": (401, Request(headers=[("awa-signature", GOOD)] * 2)),
    "a signature in capitals": (401, Request(headers=[("awa-signature", GOOD.upper())])),
    "a signature too old": (401, Request(at=NOW - 301)),
    "a signature of the future": (401, Request(at=NOW + 301)),
    # too much
    "a body that says it is too long": (413, Request(b"{}", headers=[("content-length", "1048577")])),
    "a body that is too long": (413, Request(b" " * 1_048_577, pieces=[b" " * 1024] * 1025, chunked=True)),
    # not JSON
    "a length that is none": (400, Request(headers=[("content-length", "0x2")])),
    "a negative length": (400, Request(headers=[("content-length", "-1")])),
    "a length twice": (400, Request(headers=[("content-length", "2"), ("content-length", "2")])),
    "a length of too many digits": (400, Request(headers=[("content-length", "9" * 5000)])),
    "a form": (415, Request(headers=[("content-type", "application/x-www-form-urlencoded")])),
    "no content type": (415, Request(headers=[("content-type", None)])),
    "another charset": (415, Request(headers=[("content-type", "application/json; charset=latin-1")])),
    "a content type twice": (415, Request(headers=[("content-type", "application/json"), ("content-type", "text/html")])),
    "no UTF-8": (400, Request(b'{"payload": "\xff"}')),
    "UTF-16": (400, Request('{"payload": 1}'.encode("utf-16"))),
    "a byte order mark": (400, Request(b"\xef\xbb\xbf{}")),
    "half of it": (400, Request(b'{"payload": ')),
    "two of them": (400, Request(b"{}{}")),
    "a list": (400, Request(b"[]")),
    "null": (400, Request(b"null")),
    "white space": (400, Request(b" ")),
    "NaN": (400, Request(b'{"payload": NaN}')),
    "infinity": (400, Request(b'{"payload": -Infinity}')),
    "a number beyond all": (400, Request(b'{"payload": 1e999}')),
    "a number of many digits": (400, Request(b'{"payload": ' + b"9" * 1_000_000 + b"}")),
    "a key twice": (400, Request(b'{"payload": 1, "payload": 2}')),
    "a key twice, deep inside": (400, Request(b'{"payload": [{"a": 1, "a": 1}]}')),
    "nested without end": (400, Request(DEEP)),
    "nested too deeply": (400, Request(b'{"payload": ' + b"[" * 101 + b"]" * 101 + b"}")),
    # not of this action
    "an unknown field": (400, Request(b'{"payloads": 1}')),
    "no error": (400, Request(b"{}", "fail")),
    "a timeout that is text": (400, Request(b'{"timeout_seconds": "1"}', "heartbeat")),
    "a timeout that is a bool": (400, Request(b'{"timeout_seconds": true}', "heartbeat")),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_good_request_is_refused_in_json_and_nothing_is_called(take: Take, name: str) -> None:
    status, request = REFUSED[name]
    calls = Calls()
    got = take(calls, request)
    assert got.status == status
    assert list(got.said) == ["error"]
    assert ("www-authenticate" in got.headers) == (status == 401)
    assert calls.asked == []


def test_a_field_that_is_unknown_is_named_with_those_there_are(take: Take) -> None:
    got = take(Calls(), Request(b'{"payload": 1, "outpt": 2}'))
    assert got.said == {"error": "'outpt' is no field here; the body may have payload and output, and nothing else"}
    assert len(take(Calls(), Request(b'{"' + b"x" * 9999 + b'": 2}')).body) < 200


def test_other_methods_are_told_the_one_there_is_and_head_gets_no_body(take: Take) -> None:
    got = take(Calls(), Request(method="GET"))
    assert (got.status, got.headers["allow"]) == (405, "POST")
    head = take(Calls(), Request(method="HEAD"))
    assert (head.status, head.headers["allow"]) == (405, "POST")
    assert head.body == b"" or take is TAKERS["core"]


def test_no_more_is_read_of_a_body_than_shows_that_it_is_too_long(take: Take) -> None:
    too_long = Request(b" " * 100_000, pieces=[b" " * 512] * 200, chunked=True)
    assert take(Calls(), too_long, max_body=1024).read <= 1024 + 512
    said_so = Request(b" " * 100_000)
    assert take(Calls(), said_so, max_body=1024).read == 0
    unsigned = Request(b" " * 1000, headers=[("awa-signature", None)])
    assert take(Calls(), unsigned).read == 0


def test_a_body_shorter_than_it_was_said_to_be_is_no_body(take: Take) -> None:
    calls = Calls()
    got = take(calls, Request(b"{}", headers=[("content-length", "9")]), secrets=(), allow_unsigned=True)
    assert got.status == 400
    assert calls.asked == []


# signatures


@pytest.mark.parametrize("at", [NOW - 300, NOW, NOW + 300])
def test_a_signature_is_good_up_to_the_edge_of_the_window(take: Take, at: int) -> None:
    assert take(Calls(), Request(at=at)).status == 200


def test_the_window_can_be_set(take: Take) -> None:
    assert take(Calls(), Request(at=NOW - 11), replay_window=10).status == 401
    assert take(Calls(), Request(at=NOW - 9999), replay_window=9999).status == 200


def test_while_secrets_are_rotated_each_of_them_is_good(take: Take) -> None:
    old, new, gone = "the old secret, still good", "the new secret, good as well", "the one before, no good"
    for secret, status in ((old, 200), (new, 200), (gone, 401)):
        assert take(Calls(), Request(secret=secret), secrets=[new, old]).status == status


def test_without_a_secret_it_does_not_start_unless_told_to(take: Take) -> None:
    with pytest.raises(ConfigurationError, match="no secret"):
        take(Calls(), Request(), secrets=[])
    with pytest.raises(ConfigurationError, match="only one of them"):
        take(Calls(), Request(), allow_unsigned=True)
    with pytest.raises(ValidationError, match=r"secrets\[1\]: has 5 bytes; at least 16"):
        take(Calls(), Request(), secrets=[SECRET, "short"])
    with pytest.raises(ValidationError, match=r"secrets\[0\]: text or bytes"):
        take(Calls(), Request(), secrets=[None])
    unsigned = Request(headers=[("awa-signature", None)])
    assert take(Calls(), unsigned, secrets=[], allow_unsigned=True).status == 200


def test_a_signature_is_what_the_docs_say_it_is_over() -> None:
    import hashlib
    import hmac

    over = b"awa1\n1800000000\n" + ID.encode() + b'\nfail\n{"error": "x"}'
    digest = hmac.new(SECRET.encode(), over, hashlib.sha256).hexdigest()
    assert sign(SECRET, ID, "fail", b'{"error": "x"}', NOW) == f"t=1800000000,v1={digest}"


def test_a_token_is_signed_as_its_id_and_what_cannot_be_sent_is_not_signed() -> None:
    right = sign(SECRET, ID, "complete", b"", NOW)
    assert (
        sign(SECRET, CallbackToken(ID), "complete", b"", NOW) == sign(SECRET, UUID(ID), "complete", b"", NOW) == right
    )
    good: dict[str, Any] = {"secret": SECRET, "id": ID, "action": "complete", "body": b"", "timestamp": NOW}
    for field, value in (
        ("secret", None),
        ("id", 5),
        ("action", None),
        ("action", "completed"),
        ("body", "{}"),
        ("timestamp", NOW + 0.5),
    ):
        with pytest.raises(ValidationError) as refused:
            sign(**{**good, field: value})
        assert refused.value.field == field
    with pytest.raises(CallbackNotFound):
        sign(**{**good, "id": "17"})


def test_every_secret_is_tried_and_compared_whole_whichever_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long a check takes must not tell how much of a signature was right, nor which secret."""
    compared: list[tuple[str, str]] = []
    signatures = Signatures([SECRET, "another secret, long enough"], window=300, allow_unsigned=False)

    def compare(one: str, other: str) -> bool:
        compared.append((one, other))
        return one == other

    monkeypatch.setattr("hmac.compare_digest", compare)
    for value in (sign(SECRET, ID, "complete", b"", NOW), f"t={NOW},v1={'0' * 64}"):
        compared.clear()
        signatures.is_right(value, ID, "complete", b"", NOW)
        assert len(compared) == 2


@given(st.text(), st.text(), st.binary(max_size=50))
@settings(max_examples=100)
def test_nothing_but_the_signature_itself_is_right(value: str, other: str, body: bytes) -> None:
    signatures = Signatures(SECRET, window=300, allow_unsigned=False)
    right = sign(SECRET, ID, "complete", body, NOW)
    assert signatures.is_right(right, ID, "complete", body, NOW)
    assert not signatures.is_right(value, ID, "complete", body, NOW)
    assert other == "complete" or not signatures.is_right(right, ID, other, body, NOW)


def test_a_secret_with_white_space_around_it_is_refused_for_nobody_sees_it(take: Take) -> None:
    for secret in (SECRET + "\n", " " + SECRET):
        with pytest.raises(ValidationError, match=r"secrets\[0\]: begins or ends with white space"):
            take(Calls(), Request(), secrets=secret)
        with pytest.raises(ValidationError, match="secret: begins or ends with white space"):
            sign(secret, ID, "complete", b"", NOW)
    assert sign(SECRET.encode() + b"\n", ID, "complete", b"", NOW), "bytes may be random ones"
    assert take(Calls(), Request(secret="words with spaces between")).status == 401


def test_what_has_not_the_form_of_a_signature_is_told_the_form_and_what_is_wrong_is_told_nothing(take: Take) -> None:
    form = {
        "error": "Awa-Signature is needed: t=<whole seconds since 1970>,v1=<64 hexadecimal digits, in small letters>"
    }
    in_milliseconds = GOOD.replace("t=1800000000", "t=1800000000000")
    for header in (None, in_milliseconds, GOOD.upper(), GOOD[:-1]):
        assert take(Calls(), Request(headers=[("awa-signature", header)])).said == form
    for wrong in (Request(at=NOW - 301), Request(secret="another secret, long enough")):
        assert take(Calls(), wrong).said == {"error": "a valid Awa-Signature is needed"}


def test_why_a_signature_is_no_good_is_logged_and_not_answered(caplog: pytest.LogCaptureFixture) -> None:
    """By who runs it a clock that is wrong and a secret that is wrong are not to be mistaken for each other."""
    found = Ingress(Calls(), SECRET)

    def said(request: Request, now: float) -> list[tuple[str, str]]:
        caplog.clear()
        begun = found.begin(Head(request.method, request.sent_to, joined(request.sent_headers())))
        assert isinstance(begun, Reading)
        answer = found.finish(begun, request.body, now)
        assert isinstance(answer, Answer)
        assert (answer.status, answer.body) == (401, b'{"error":"a valid Awa-Signature is needed"}')
        return [(record.levelname, record.getMessage()) for record in caplog.records]

    with caplog.at_level("INFO", "awa"):
        ((level, late),) = said(Request(at=NOW - 301), NOW)
        assert (level, "301 seconds ago" in late, "300" in late) == ("WARNING", True, True)
        assert said(Request(at=NOW - 301), NOW + 59) == [], "at most once a minute"
        ((_, early),) = said(Request(at=NOW + 400), NOW + 61)
        assert "339 seconds from now" in early
        ((level, wrong),) = said(Request(secret="another secret, long enough"), NOW)
        assert (level, "none of the secrets" in wrong) == ("INFO", True)
        assert said(Request(secret="another secret, long enough", at=NOW - 999), NOW + 59) == []


def test_a_path_that_is_right_but_for_the_prefix_is_said_once_to_who_runs_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: float(NOW))
    mounted = asgi_app(AsyncClient(Calls()), SECRET)
    for _ in range(2):
        assert asyncio.run(through_asgi(mounted, Request(), {"root_path": "/api/callbacks"})).status == 404
    (said,) = (record.getMessage() for record in caplog.records)
    assert "'/api/callbacks'" in said
    assert 'prefix=""' in said
    caplog.clear()
    bare = wsgi_app(BlockingClient(Calls()), SECRET, prefix="")
    assert through_wsgi(bare, Request()).status == 404
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.endswith("begins with '/api/callbacks'; that is what to give as prefix")
    caplog.clear()
    through_wsgi(wsgi_app(BlockingClient(Calls()), SECRET), Request(path="/favicon.ico"))
    assert not caplog.records


# what calls end in

SECRETIVE = "host=db.internal password=hunter2"
ENDS = [
    (CallbackNotFound(ID), 404, "no job waits for this callback"),
    (OutputError.TooLarge("the output has 5000 bytes of JSON; 4096 are allowed"), 400, "the output has 5000 bytes"),
    (ValidationError("payload", "has 70000 bytes"), 400, "payload: has 70000 bytes"),
    (ValidationError("filter", SECRETIVE), 503, "send it again later"),
    (DatabaseError(SECRETIVE, "25006"), 503, "send it again later"),
    (DatabaseError(SECRETIVE), 503, "send it again later"),
    (SchemaNotMigrated(SECRETIVE), 503, "send it again later"),
    (ConfigurationError(SECRETIVE), 503, "send it again later"),
    (AwaError(SECRETIVE), 503, "send it again later"),
    (RuntimeError(SECRETIVE), 500, "something is wrong here"),
    (RecursionError(SECRETIVE), 500, "something is wrong here"),
]  # fmt: skip


@pytest.mark.parametrize(("error", "status", "says"), ENDS)
def test_a_failure_says_what_its_sender_can_do_and_nothing_of_what_is_behind(
    take: Take, error: Exception, status: int, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    got = take(Calls(error), Request())
    assert got.status == status
    assert says in got.said["error"]
    assert SECRETIVE not in got.body.decode()
    assert (SECRETIVE in caplog.text) == (status >= 500)
    assert ("retry-after" in got.headers) == (status == 503)


def test_of_an_outage_of_the_database_one_line_is_logged_for_a_request_and_no_traceback(
    take: Take, caplog: pytest.LogCaptureFixture
) -> None:
    for error, traced in (
        (DatabaseError("connection refused"), False),
        (FollowUpError("thank: ValueError"), True),
    ):
        caplog.clear()
        assert take(Calls(error), Request()).status == 503
        (record,) = caplog.records
        assert bool(record.exc_info) is traced
        assert str(error) in record.getMessage()


def test_what_stops_the_process_is_no_answer(take: Take) -> None:
    with pytest.raises(KeyboardInterrupt):
        take(Calls(KeyboardInterrupt()), Request())


def test_a_job_that_was_displaced_instead_of_going_on_is_a_conflict(take: Take) -> None:
    got = take(Calls(Job(7, JobState.CANCELLED)), Request(action="resume"))
    assert (got.status, list(got.said)) == (409, ["error"])
    assert "another job has taken the place of this one" in got.said["error"]


def test_each_status_that_is_answered_is_one_of_the_docs() -> None:
    sources = [ingress.__file__, sys.modules[asgi_app.__module__].__file__, sys.modules[wsgi_app.__module__].__file__]
    answered = {found for path in sources for found in re.findall(r"refusal\((\d{3})", Path(path or "").read_text())}
    table = re.findall(r"^\| (\d{3}) \|", (ROOT / "docs" / "ingress.md").read_text(), re.MULTILINE)
    assert sorted(answered) == table


# whatever comes


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(["complete", "fail", "resume", "heartbeat", "resolve"]),
    st.one_of(
        st.binary(max_size=60),
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4)),
            lambda inner: st.one_of(
                st.lists(inner, max_size=3),
                st.dictionaries(
                    st.sampled_from(["payload", "output", "error", "timeout_seconds", "default_action", "x"]),
                    inner,
                    max_size=3,
                ),
            ),
            max_leaves=8,
        ).map(lambda value: json.dumps(value).encode()),
    ),
)
def test_every_body_is_answered(action: str, body: bytes) -> None:
    calls = Calls(Resolution("ignored", Job(7, JobState.RUNNING)) if action == "resolve" else Job(7, JobState.RUNNING))
    got = TAKERS["core"](calls, Request(body, action))
    assert got.status in {200, 400}
    assert (got.status == 200) == (len(calls.asked) == 1)


# settings and frameworks


@pytest.mark.parametrize("prefix", ["x", "/", "/x/", "//x", "/x//y"])
def test_a_prefix_that_no_path_has_is_refused(prefix: str) -> None:
    with pytest.raises(ValidationError, match="prefix"):
        Ingress(Calls(), SECRET, prefix=prefix)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("max_body", 10), ("body_timeout", 0), ("replay_window", -1), ("replay_window", float("nan")), ("replay_window", 0),
        ("replay_window", 0.999), ("allow_unsigned", 1), ("allow_unsigned", None), ("prefix", None), ("secrets", None),
        ("secrets", 5), ("secrets", {SECRET: 1}), ("secrets", ["\ud800" * 16]),
    ],
)  # fmt: skip
def test_settings_have_limits_and_are_named(take: Take, setting: str, value: Any) -> None:
    with pytest.raises(ValidationError) as refused:
        take(Calls(), Request(), **{setting: value})
    assert refused.value.field.startswith(setting)


def test_a_prefix_is_no_pattern(take: Take) -> None:
    assert take(Calls(), Request(path=f"/a.b/{ID}/complete"), prefix="/a.b").status == 200
    assert take(Calls(), Request(path=f"/axb/{ID}/complete"), prefix="/a.b").status == 404
    assert take(Calls(), Request(path=f"/{ID}/complete"), prefix="").status == 200


def test_a_prefix_of_any_letters_is_the_same_for_every_server(take: Take) -> None:
    assert take(Calls(), Request(path=f"/größe/Ελλάς/{ID}/complete"), prefix="/größe/Ελλάς").status == 200
    assert take(Calls(), Request(path=f"/grösse/Ελλάς/{ID}/complete"), prefix="/größe/Ελλάς").status == 404


def test_the_applications_take_the_settings_of_the_ingress_and_no_others() -> None:
    parameters = list(inspect.signature(Ingress).parameters.values())
    assert list(ingress.IngressSettings.__annotations__) == [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    applications: list[Any] = [asgi_app, wsgi_app]
    for application in applications:
        with pytest.raises(TypeError, match="max_boby"):
            application(BlockingClient(Calls()), SECRET, max_boby=1)


@pytest.mark.parametrize(
    ("application", "client", "said"),
    [
        (asgi_app, awa_sync.Client("postgresql://h/d"), "awa_asyncio.web takes a Client of awa_asyncio, not of awa_sync"),
        (asgi_app, awa_trio.Client("postgresql://h/d"), "awa_asyncio.web takes a Client of awa_asyncio, not of awa_trio"),
        (wsgi_app, awa_asyncio.Client("postgresql://h/d"), "awa_sync.web takes a Client of awa_sync, not of awa_asyncio"),
        (wsgi_app, awa_trio.Client("postgresql://h/d"), "awa_sync.web takes a Client of awa_sync, not of awa_trio"),
        (asgi_app, "postgresql://h/d", "awa_asyncio.web takes a Client of awa_asyncio, not str"),
        (wsgi_app, None, "awa_sync.web takes a Client of awa_sync, not NoneType"),
    ],
)  # fmt: skip
def test_a_client_of_another_package_is_refused_before_its_calls_are_made_and_not_waited_for(
    application: Any, client: Any, said: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        application(client, SECRET)
    assert str(refused.value).startswith(said)
    assert str(refused.value).count("awa callbacks serve") == (client is not None and not isinstance(client, str))


def test_an_application_is_mounted_by_its_path_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: float(NOW))
    below = Request(path=f"/hooks/{ID}/complete")
    asgi = asgi_app(AsyncClient(Calls()), SECRET, prefix="")
    assert asyncio.run(through_asgi(asgi, below, {"root_path": "/hooks"})).status == 200
    assert asyncio.run(through_asgi(asgi, below, {"root_path": "/hook"})).status == 404
    wsgi = wsgi_app(BlockingClient(Calls()), SECRET, prefix="")
    inside = {"SCRIPT_NAME": "/hooks", "PATH_INFO": f"/{ID}/complete"}
    assert through_wsgi(wsgi, below, inside).status == 200


def test_it_can_be_mounted_in_starlette(monkeypatch: pytest.MonkeyPatch) -> None:
    routing = pytest.importorskip("starlette.routing")
    from starlette.applications import Starlette

    monkeypatch.setattr("time.time", lambda: float(NOW))
    mounted = asgi_app(AsyncClient(Calls()), SECRET, prefix="")
    app = Starlette(routes=[routing.Mount("/inner", routes=[routing.Mount("/hooks", app=mounted)])])
    assert asyncio.run(through_asgi(app, Request(path=f"/inner/hooks/{ID}/complete"))).status == 200
    assert asyncio.run(through_asgi(app, Request(path=f"/inner/hooks/x/{ID}/complete"))).status == 404


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    app = asgi_app(AsyncClient(Calls()), SECRET, body_timeout=0.001)
    sent: list[Any] = []

    async def never() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    request = Request()
    headers = [(name.encode(), value.encode()) for name, value in request.sent_headers()]
    scope = {"type": "http", "method": "POST", "path": request.sent_to, "headers": headers, "http_version": "1.1"}
    asyncio.run(app(scope, never, send))
    assert sent[0]["status"] == 408
    assert (b"connection", b"close") in sent[0]["headers"]


def test_a_sender_that_goes_away_is_not_answered_and_nothing_is_called() -> None:
    calls = Calls()
    app = asgi_app(AsyncClient(calls), SECRET)
    sent: list[Any] = []
    pieces = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]

    async def receive() -> Any:
        return pieces.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(name.encode(), value.encode()) for name, value in Request().sent_headers()]
    scope = {"type": "http", "method": "POST", "path": Request().sent_to, "headers": headers}
    asyncio.run(app(scope, receive, send))
    assert (sent, calls.asked) == ([], [])


def test_a_chunked_body_of_which_no_end_is_known_needs_its_length() -> None:
    app = wsgi_app(BlockingClient(Calls()), SECRET)
    assert through_wsgi(app, Request(chunked=True), {"wsgi.input_terminated": False}).status == 411


def test_a_header_with_underscores_stands_for_no_other() -> None:
    calls = Calls()
    got = through_wsgi(
        wsgi_app(BlockingClient(calls), allow_unsigned=True),
        Request(b"{}"),
        {"HTTP_CONTENT_LENGTH": "1", "HTTP_CONTENT_TYPE": "text/html"},
    )
    assert (got.status, len(calls.asked)) == (200, 1)


def test_it_starts_and_ends_with_its_server_and_takes_no_websocket() -> None:
    app = asgi_app(AsyncClient(Calls()), SECRET)
    sent: list[str] = []
    pieces = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}, {"type": "websocket.connect"}]

    async def receive() -> Any:
        return pieces.pop(0)

    async def send(message: Any) -> None:
        sent.append(message["type"])

    asyncio.run(app({"type": "lifespan"}, receive, send))
    asyncio.run(app({"type": "websocket", "path": "/"}, receive, send))
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete", "websocket.close"]


def test_each_route_of_the_module_is_one_that_is_taken() -> None:
    assert ingress.__doc__ is not None
    shown = re.findall(r"^    POST \{prefix\}/\{id\}/(\w+)", ingress.__doc__, re.MULTILINE)
    assert shown == ["complete", "fail", "resume", "heartbeat", "resolve"]
