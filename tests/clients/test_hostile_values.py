"""Whatever is given to a public call is taken, or refused by an error of ours that names the argument. No database."""

import asyncio
import contextlib
import inspect
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
import trio

import awa_asyncio
import awa_proto as awa
import awa_sync
import awa_trio
from awa_proto.callbacks.operations import CallbackOperations
from awa_proto.operations import Operations
from awa_proto.plan import Op
from awa_proto.registry import Registry
from awa_proto.store.memory import MemoryStore


class Hostile:
    """Breaks when it is shown, compared, counted or asked whether it is true."""

    def _broken(self, *_: object) -> Any:
        raise RuntimeError("broken on purpose")

    __repr__ = __str__ = __eq__ = __bool__ = __len__ = _broken
    __hash__ = object.__hash__


VALUES: list[Any] = [
    None, True, -1, 0, 1.5, 10**400, 10**5000, math.nan, math.inf, 1e300, -0.0, "", "a" * 201, "\0", "\ud800", b"", [], {},
    (), set(), object(), timedelta.max, timedelta(-1), datetime.max.replace(tzinfo=UTC), int, len, [None],
    {"a": 10**5000}, {1: 1}, {"\0": "\ud800"}, [[]], (1, 2, 3), (10**400, True), iter(()), Hostile(), Hostile, [Hostile()],
    {"a": Hostile()},
]  # fmt: skip
PACKAGES = [awa_asyncio, awa_trio, awa_sync]


@dataclass
class SendEmail:
    to: Any


def attempt(call: Callable[[], object], *names: str) -> None:
    """Make a call that may succeed, and otherwise must fail in the words of an AwaError."""
    try:
        call()
    except awa.ValidationError as error:
        assert any(error.field.startswith(name) or f".{name}" in error.field for name in names), error  # noqa: PT017
    except awa.ConfigurationError as error:
        assert any(name in str(error) for name in names), error  # noqa: PT017
    except awa.UniqueConflict:
        assert "unique_opts" in names, names  # it was taken, and then found one like it


def run(op: Op[Any]) -> None:
    """Run an Op on the memory store, which asks no database."""
    for step in op.start():
        raise AssertionError(step)


@pytest.fixture
def calls() -> Operations[Any]:
    chance = random.Random(1).random
    store = MemoryStore(clock=lambda: datetime(2026, 1, 1, tzinfo=UTC), random=chance)
    return Operations(store, Registry().tasks, "awa", lambda: datetime(2026, 1, 1, tzinfo=UTC), random=chance)


ENQUEUES = ["insert", "insert_many", "enqueue_many"]
KEYWORDS = [
    (call, keyword)
    for call in [*ENQUEUES, "list_jobs"]
    for keyword, parameter in inspect.signature(vars(Operations)[call]).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY and keyword != "using"
]


def one_or_many(call: str, args: Any) -> list[Any]:
    return {"insert": [args], "list_jobs": []}.get(call, [[args]])


@pytest.mark.parametrize(("call", "keyword"), KEYWORDS)
def test_every_keyword_of_a_call_takes_or_names_it(calls: Operations[Any], call: str, keyword: str) -> None:
    operation = getattr(calls, call)
    for value in VALUES:
        attempt(lambda: run(operation(*one_or_many(call, SendEmail("a")), **{keyword: value})), keyword)  # noqa: B023
        if call != "list_jobs":
            options: Any = {keyword: value}
            request = one_or_many(call, awa.EnqueueRequest(SendEmail("a"), options))
            attempt(lambda: run(operation(*request)), keyword, "jobs[0]")  # noqa: B023


EXTERNAL = [
    (call, parameter)
    for call in ("complete_external", "fail_external", "retry_external", "resume_external", "heartbeat_callback",
                 "resolve_callback")
    for parameter in inspect.signature(vars(CallbackOperations)[call]).parameters
    if parameter not in {"self", "using"}
]  # fmt: skip


@pytest.mark.parametrize(("call", "parameter"), EXTERNAL)
def test_every_argument_of_a_call_from_outside_is_taken_or_named(
    calls: Operations[Any], call: str, parameter: str
) -> None:
    operation: Callable[..., Op[Any]] = getattr(calls, call)
    for value in VALUES:
        given: dict[str, Any] = {"id": UUID(int=4), "error": "no", parameter: value}
        id, error = given.pop("id"), given.pop("error")
        first = (id, error) if call == "fail_external" else (id,)
        with contextlib.suppress(awa.CallbackNotFound, awa.OutputError):
            attempt(lambda: run(operation(*first, **given)), parameter)  # noqa: B023


@pytest.mark.parametrize("call", ENQUEUES)
def test_args_of_any_kind_are_taken_or_named(calls: Operations[Any], call: str) -> None:
    operation: Callable[[Any], Op[Any]] = getattr(calls, call)
    for value in VALUES:
        for args in (value, SendEmail(value), {"kind": value}, {"kind": "x", "a": [value]}, awa.EnqueueRequest(value)):
            attempt(lambda: run(operation(*one_or_many(call, args))), "args", "kind", "jobs[0]")  # noqa: B023
        options = map(str, value) if isinstance(value, dict) else ["options"]
        attempt(lambda: run(operation(awa.EnqueueRequest(SendEmail("a"), value))), *options, "jobs")  # noqa: B023
        attempt(lambda: run(operation(value)), "jobs", "args", "kind")  # noqa: B023


@pytest.mark.parametrize(
    ("call", "before", "name"),
    [("get_job", (), "id"), ("cancel", (), "id"), ("retry", (), "id"), ("pause_queue", (), "queue"),
     ("resume_queue", (), "queue"), ("set_stripes", (), "queue"), ("set_stripes", ("q",), "stripes")],
)  # fmt: skip
def test_every_other_call_takes_or_names_it(calls: Operations[Any], call: str, before: Any, name: str) -> None:
    after = (2,) if name == "queue" and call == "set_stripes" else ()
    for value in VALUES:
        with contextlib.suppress(awa.JobNotFound):
            attempt(lambda: run(getattr(calls, call)(*before, value, *after)), name)  # noqa: B023


@pytest.mark.parametrize("keyword", ["kind", "args", "queue", "by_period", "at"])
def test_every_part_of_a_unique_key_takes_or_names_it(calls: Operations[Any], keyword: str) -> None:
    for value in VALUES:
        given = {"kind": "k", "args": {"a": 1}, "by_period": 60, keyword: value}
        attempt(lambda: run(calls.cancel_by_unique_key(**given)), keyword, "kind")  # noqa: B023


@pytest.mark.parametrize("field", ["by_queue", "by_args", "by_period", "states"])
def test_every_field_of_unique_options_takes_or_names_it(calls: Operations[Any], field: str) -> None:
    for value in VALUES:
        for opts in ({field: value}, awa.UniqueOpts(**{field: value})):
            options: Any = {"unique_opts": opts, "on_conflict": "skip"}
            attempt(lambda: run(calls.insert(SendEmail("a"), **options)), f"unique_opts.{field}")  # noqa: B023


def test_who_pauses_a_queue_is_text(calls: Operations[Any]) -> None:
    for value in VALUES:
        attempt(lambda: run(calls.pause_queue("q", by=value)), "by")  # noqa: B023


@pytest.mark.parametrize("keyword", inspect.signature(awa.QueueConfig).parameters)
def test_every_setting_of_a_queue_takes_or_names_it(keyword: str) -> None:
    for value in VALUES:
        attempt(lambda: awa.QueueConfig(**{keyword: value}), keyword)  # noqa: B023


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_setting_of_a_client_takes_or_names_it(package: Any) -> None:
    for keyword in inspect.signature(package.Client).parameters:
        for value in VALUES:
            name = "database URL" if keyword == "dsn" else keyword
            attempt(lambda: package.Client(**{keyword: value}), name)  # noqa: B023


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_setting_of_a_worker_takes_or_names_it(package: Any) -> None:
    client = package.Client("postgresql://h/d")

    async def make() -> None:  # a worker is made where it will run
        for value in VALUES:
            attempt(lambda: client.worker(value), "queue", "max_workers")  # noqa: B023
            attempt(lambda: client.worker({"q": value}), "max_workers")  # noqa: B023
            with contextlib.suppress(TypeError):  # which a dict raises for what cannot be its key
                attempt(lambda queues={value: 1}: client.worker(queues), "queue")  # type: ignore[misc]
            for keyword in ("poll_interval", "grace"):
                attempt(lambda: client.worker({"q": 1}, **{keyword: value}), keyword)  # noqa: B023

    (asyncio.run(make()) if package is not awa_trio else trio.run(make))


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_argument_of_a_task_takes_or_names_it(package: Any) -> None:
    for value in VALUES:
        attempt(lambda: package.Tasks().task(value, kind="k"), "args_type")  # noqa: B023
        attempt(lambda: package.Tasks().task(SendEmail, kind=value), "kind")  # noqa: B023
        attempt(lambda: package.Tasks().task(SendEmail, queue=value), "queue")  # noqa: B023
        attempt(lambda: package.Tasks().task(SendEmail)(value), "handler")  # noqa: B023


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_what_is_no_connection_is_named(package: Any) -> None:
    client = package.Client("postgresql://h/d")

    async def insert(using: Any) -> None:
        done = client.insert(SendEmail("a"), using=using)
        await (done if inspect.isawaitable(done) else asyncio.sleep(0))

    for value in VALUES[1:]:
        with pytest.raises(awa.ValidationError) as caught:
            (asyncio.run(insert(value)) if package is not awa_trio else trio.run(insert, value))
        assert caught.value.field == "using"
