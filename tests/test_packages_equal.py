"""`import awa_asyncio as awa`, `awa_trio`, `awa_sync`: the same names, the same arguments, the same words.

What differs is written down here, so that a difference is a decision.
"""

import inspect
import re
import tomllib
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import awa_asyncio
import awa_asyncio.testing
import awa_proto
import awa_sync
import awa_sync.testing
import awa_trio
import awa_trio.testing
from awa_proto.version import VERSION

OTHERS = [awa_trio, awa_sync]
CLASSES = ["BlockingJob", "Client", "Job", "Tasks", "Transaction", "Worker"]
CLASSES += ["testing.AwaTestClient", "testing.BlockingHandlerJob", "testing.HandlerJob"]

ONLY_ASYNCIO = {("Client", "__init__"): {"driver"}}
"""Parameters that need a choice only there is: two libraries, asyncpg and psycopg."""
OWN_WORDS = {
    ("Tasks", "task"),  # which handlers there are: async or plain, and in blocking code plain ones only
    ("Client", "task"),
    ("Tasks", "on_event"),
    ("Client", "on_event"),
    ("Client", "worker"),  # what happens at a stop: a task is cancelled, a thread can only be told
    ("Worker", "__init__"),
    ("Worker", "stop"),
    ("testing.AwaTestClient", "work_one"),  # which handlers there are
}
"""Methods whose docstring says what differs."""


def _public(cls: type) -> set[str]:
    names = {name for name in dir(cls) if not name.startswith("_")}
    special = {name for name in ("__init__", "__aenter__", "__aexit__", "__enter__", "__exit__") if name in vars(cls)}
    return names | {name.replace("__a", "__") for name in special}


def _member(cls: type, name: str) -> Any:
    return inspect.getattr_static(cls, name, None) or inspect.getattr_static(cls, name.replace("__", "__a", 1))


def _parameters(member: Any) -> list[tuple[str, Any, Any]]:
    function: Any = member.fget if isinstance(member, property) else member
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


def _words(member: Any) -> str:
    return re.sub(r"\s+", " ", (member.__doc__ or "").replace("async with", "with").replace("await ", ""))


def _each_member() -> list[Any]:
    return [
        pytest.param(cls, name, id=f"{cls}.{name}")
        for cls in CLASSES
        for name in sorted(_public(attrgetter(cls)(awa_asyncio)))
    ]


@pytest.mark.parametrize("package", OTHERS, ids=lambda package: package.__name__)
def test_they_export_the_same_names(package: ModuleType) -> None:
    assert sorted(package.__all__) == sorted(awa_asyncio.__all__)
    assert set(awa_proto.__all__) < set(package.__all__)
    assert all(hasattr(package, name) for name in package.__all__)


@pytest.mark.parametrize("name", awa_proto.__all__)
def test_what_the_core_exports_is_one_object_everywhere(name: str) -> None:
    assert vars(awa_asyncio)[name] is vars(awa_trio)[name] is vars(awa_sync)[name] is vars(awa_proto)[name]


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("package", OTHERS, ids=lambda package: package.__name__)
def test_their_classes_have_the_same_methods(package: ModuleType, cls: str) -> None:
    assert _public(attrgetter(cls)(package)) == _public(attrgetter(cls)(awa_asyncio))


@pytest.mark.parametrize(("cls", "name"), _each_member())
@pytest.mark.parametrize("package", OTHERS, ids=lambda package: package.__name__)
def test_their_methods_have_the_same_parameters_and_words(package: ModuleType, cls: str, name: str) -> None:
    first, second = _member(attrgetter(cls)(awa_asyncio), name), _member(attrgetter(cls)(package), name)
    left_out = ONLY_ASYNCIO.get((cls, name), set())
    assert [p for p in _parameters(first) if p[0] not in left_out] == _parameters(second)
    if (cls, name) not in OWN_WORDS:
        assert _words(first) == _words(second)


@pytest.mark.parametrize("package", [awa_asyncio, *OTHERS], ids=lambda package: package.__name__)
def test_a_bound_method_shows_the_signature_of_its_operation(package: ModuleType) -> None:
    method = package.Client.insert
    assert list(inspect.signature(method).parameters)[:3] == ["self", "args", "kind"]
    assert inspect.signature(method).return_annotation is awa_proto.JobRow
    assert method.__name__ == "insert"
    assert method.__doc__.startswith("Enqueue one job")
    assert inspect.iscoroutinefunction(method) is (package is not awa_sync)


def test_the_version_is_that_of_the_distribution() -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    assert project["version"] == VERSION
