"""What the core promises about itself that import-linter cannot see: it reads imports, not calls and not effects."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import awa_proto

CORE = Path(awa_proto.__file__).parent
LEAF = CORE / "testing"
MODULES = sorted(path for path in CORE.rglob("*.py") if not path.is_relative_to(LEAF))

# Ids, clocks and randomness come in from outside. The uuid module is there for its type.
FORBIDDEN = {
    ("uuid", "uuid1"),
    ("uuid", "uuid4"),
    ("uuid", "getnode"),
    ("datetime", "now"),
    ("datetime", "utcnow"),
    ("datetime", "today"),
    ("date", "today"),
    ("os", "urandom"),
    ("os", "environ"),
    ("os", "getenv"),
}


def forbidden_names(tree: ast.AST) -> list[str]:
    """Return each use of a forbidden name, as `line: name`, whether by attribute or imported by itself."""
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=names):
                found += [f"{node.lineno}: {name.name}" for name in names if (module, name.name) in FORBIDDEN]
            case ast.Attribute(value=ast.Name(id=owner) | ast.Attribute(attr=owner), attr=name):
                if (owner, name) in FORBIDDEN:
                    found.append(f"{node.lineno}: {owner}.{name}")
            case _:
                pass
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(CORE)))
def test_the_core_asks_no_clock_and_makes_no_ids(path: Path) -> None:
    assert forbidden_names(ast.parse(path.read_text())) == []


@pytest.mark.parametrize(
    "text",
    [
        "import uuid\nuuid.uuid4()",
        "from uuid import uuid1",
        "import datetime\ndatetime.datetime.now()",
        "from datetime import datetime\ndatetime.now(tz=None)",
        "from os import environ",
    ],
)
def test_the_search_finds_each_way_of_asking(text: str) -> None:
    assert forbidden_names(ast.parse(text)) != []


def test_importing_the_core_builds_no_pydantic_model_and_no_type_adapter() -> None:
    """Building one takes up to milliseconds, which every import of every driver would pay."""
    names = [
        ".".join((CORE.name, *path.relative_to(CORE).with_suffix("").parts)).removesuffix(".__init__")
        for path in MODULES
    ]
    program = f"""
import importlib
import pydantic
from pydantic._internal._model_construction import ModelMetaclass

def refuse(*_args, **_keywords):
    raise SystemExit("built at import")

pydantic.TypeAdapter.__init__ = refuse
ModelMetaclass.__new__ = refuse
for name in {names!r}:
    importlib.import_module(name)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_importing_the_core_brings_in_no_event_loop_and_no_driver() -> None:
    """The contract forbids the imports; this sees those of third parties as well."""
    unwanted = {"asyncio", "trio", "anyio", "asyncpg", "psycopg", "awa_asyncio", "awa_trio", "awa_sync"}
    program = f"import sys, awa_proto; print(sorted({unwanted!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("package", ["awa_proto", "awa_asyncio", "awa_trio", "awa_sync"])
def test_each_package_says_that_it_is_typed(package: str) -> None:
    assert (CORE.parent / package / "py.typed").is_file()
