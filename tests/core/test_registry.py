"""Registry: one handler for a kind, checked when it is registered."""

import functools
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

import awa_asyncio
import awa_sync
import awa_trio
from awa_proto.errors import SerializationError, ValidationError
from awa_proto.registry import Registry


@dataclass
class SendEmail:
    to: str


@dataclass
class Named:
    kind: ClassVar[str] = "my kind"


def plain(job: Any) -> None: ...


async def coroutine(job: Any) -> None: ...


class Callable:
    async def __call__(self, job: Any) -> None: ...


def test_a_task_knows_its_kind_its_queue_and_how_its_args_are_read() -> None:
    registry = Registry()
    assert registry.task(SendEmail, queue="email")(coroutine) is coroutine
    registry.task(None, kind="raw")(plain)
    task = registry.tasks["send_email"]
    assert (task.kind, task.queue, task.is_async, task.args_type, task.handler) == (
        "send_email", "email", True, SendEmail, coroutine,
    )  # fmt: skip
    assert task.decode('{"to":"a"}') == SendEmail("a")
    raw = registry.tasks["raw"]
    assert (raw.queue, raw.is_async, raw.args_type, raw.decode('{"a":1}')) == (None, False, None, {"a": 1})


def test_the_kind_is_given_or_carried_or_derived() -> None:
    registry = Registry()
    registry.task(SendEmail, kind="given")(plain)
    registry.task(Named)(plain)
    registry.task(SendEmail)(plain)
    assert list(registry.tasks) == ["given", "my kind", "send_email"]


@pytest.mark.parametrize(
    ("handler", "is_async"),
    [
        (plain, False),
        (coroutine, True),
        (Callable(), True),
        (functools.partial(coroutine), True),
        (functools.partial(lambda a, job: None, 1), False),
        (lambda job, more=1: None, False),
        (lambda *jobs: None, False),
        (Callable().__call__, True),
        (print, False),
    ],
)
def test_whatever_can_be_called_with_a_job_is_a_handler(handler: Any, is_async: bool) -> None:
    registry = Registry()
    registry.task(SendEmail)(handler)
    assert registry.tasks["send_email"].is_async is is_async


def _generator(job: Any) -> Iterator[None]:
    yield


async def _async_generator(job: Any) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (lambda: None, "cannot be called with the job alone"),
        (lambda a, b: None, "cannot be called with the job alone"),
        (lambda *, job: None, "cannot be called with the job alone"),
        (lambda job, *, more: None, "cannot be called with the job alone"),
        (5, "cannot be called"),
        pytest.param(10**5000, "cannot be called", id="huge"),
        (_generator, "generator function"),
        (_async_generator, "generator function"),
    ],
)
def test_what_cannot_is_refused_when_it_is_registered(handler: Any, reason: str) -> None:
    registry = Registry()
    with pytest.raises(ValidationError, match=reason) as caught:
        registry.task(SendEmail)(handler)
    assert caught.value.field == "handler"
    assert not registry.tasks


def test_a_kind_has_one_handler() -> None:
    registry = Registry()
    registry.task(SendEmail)(plain)
    with pytest.raises(ValidationError, match=r"'send_email' has a handler already: .*plain") as caught:
        registry.task(None, kind="send_email")(coroutine)
    assert caught.value.field == "kind"
    assert registry.tasks["send_email"].handler is plain


@pytest.mark.parametrize(
    ("args_type", "options", "field"),
    [
        (None, {}, "kind"),
        (dict, {}, "kind"),
        (SendEmail, {"kind": ""}, "kind"),
        (SendEmail, {"kind": "k" * 201}, "kind"),
        (SendEmail, {"kind": 5}, "kind"),
        (SendEmail, {"queue": "a\0"}, "queue"),
        (SendEmail, {"queue": ""}, "queue"),
        (SendEmail("a"), {}, "args_type"),
        pytest.param(10**5000, {}, "args_type", id="huge"),
        (plain, {}, "args_type"),
    ],
)
def test_a_wrong_registration_names_its_field(args_type: Any, options: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Registry().task(args_type, **options)
    assert caught.value.field == field


def test_what_is_included_counts_also_when_it_comes_later() -> None:
    tasks, first, second = Registry(), Registry(), Registry()
    tasks.task(SendEmail)(plain)
    first.include(tasks)
    second.include(tasks)
    tasks.task(Named)(plain)
    assert list(first.tasks) == list(second.tasks) == ["send_email", "my kind"]
    first.task(None, kind="own")(plain)
    assert "own" not in tasks.tasks


def test_a_conflict_between_included_registries_changes_none_of_them() -> None:
    one, two, client = Registry(), Registry(), Registry()
    one.task(SendEmail)(plain)
    two.task(Named)(plain)
    two.task(SendEmail)(coroutine)
    client.include(one)
    with pytest.raises(ValidationError, match="'send_email' has a handler already"):
        client.include(two)
    assert list(client.tasks) == ["send_email"]
    client.task(None, kind="late")(plain)
    with pytest.raises(ValidationError, match="'late' has a handler already"):
        one.task(None, kind="late")(coroutine)
    assert "late" not in one.tasks


def test_the_same_tasks_may_be_included_twice() -> None:
    tasks, client = Registry(), Registry()
    client.include(tasks)
    client.include(tasks)
    tasks.task(SendEmail)(plain)
    assert list(client.tasks) == ["send_email"]


def test_types_are_read_before_a_worker_starts_and_not_at_registration() -> None:
    @dataclass
    class Odd:
        a: "Undefined"  # type: ignore[name-defined]  # noqa: F821  that is the point

    registry = Registry()
    registry.task(Odd)(plain)
    registry.task(None, kind="raw")(plain)
    with pytest.raises(SerializationError, match="cannot read the fields of Odd"):
        registry.prepare()


@pytest.mark.parametrize("package", [awa_asyncio, awa_trio, awa_sync], ids=lambda package: package.__name__)
def test_clients_take_tasks_and_register_their_own(package: Any) -> None:
    tasks = package.Tasks()
    client = package.Client(tasks=[tasks])
    tasks.task(SendEmail)(plain)
    client.task(kind="raw")(plain)
    assert list(client.registry.tasks) == ["send_email", "raw"]


def test_blocking_code_refuses_a_coroutine_function_at_once() -> None:
    for registering in (awa_sync.Tasks(), awa_sync.Client()):
        with pytest.raises(ValidationError, match="coroutine function"):
            registering.task(SendEmail)(coroutine)  # type: ignore[type-var]
        assert not registering.registry.tasks
