"""The public surface as type checkers see it, checked against a copy installed in an environment of its own.

`good.py` is what a user may write, `bad.py` what must be refused: each marked line, and no other.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PACKAGES = ("awa_proto", "awa_asyncio", "awa_trio", "awa_sync")

Checker = Callable[[str], dict[int, list[str]]]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the files to check, beside an environment that the packages are installed in."""
    root = tmp_path_factory.mktemp("typing")
    venv.create(root / "venv", with_pip=False, symlinks=True)
    site = root / "venv" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(HERE.parent.parent / package, site / package, ignore=ignored)
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    for name in ("good.py", "bad.py"):
        shutil.copy(HERE / name, root / name)
    return root


@pytest.fixture(params=["mypy", "pyright"])
def checker(request: pytest.FixtureRequest, installed: Path) -> Checker:
    """Checks a file and returns what it says, by line."""
    return {"mypy": _mypy, "pyright": _pyright}[request.param](installed)


def _run(directory: Path, *command: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "MYPYPATH"}}
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    return done.stdout


def _mypy(directory: Path) -> Checker:
    def check(name: str) -> dict[int, list[str]]:
        python = str(directory / "venv" / "bin" / "python")
        options = ("--strict", "--no-error-summary", "--config-file=", "--python-executable", python)
        found: dict[int, list[str]] = {}
        for file, line, message in re.findall(
            r"(?m)^(.+?):(\d+): error: (.*)", _run(directory, "mypy", *options, name)
        ):
            assert file == name, f"{file}:{line}: {message}"
            found.setdefault(int(line), []).append(message)
        return found

    return check


def _pyright(directory: Path) -> Checker:
    settings = {"typeCheckingMode": "strict", "venvPath": ".", "venv": "venv", "reportUnusedCoroutine": "error"}
    (directory / "pyrightconfig.json").write_text(json.dumps({**settings, "reportUnusedExpression": "none"}))

    def check(name: str) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        for each in json.loads(_run(directory, "pyright", "--outputjson", name))["generalDiagnostics"]:
            if each["severity"] == "error":
                found.setdefault(each["range"]["start"]["line"] + 1, []).append(each["message"])
        return found

    return check


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_a_user_may_write_passes(checker: Checker) -> None:
    assert checker("good.py") == {}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_marked_mistake_is_an_error_and_nothing_else_is(checker: Checker) -> None:
    marks: dict[int, str] = {}
    for number, line in enumerate((HERE / "bad.py").read_text().splitlines(), 1):
        if mark := re.search(r"# (E\d\d) ", line):
            marks[number] = mark[1]
            if line.startswith("@"):  # an error of a decorator is said there or at the function
                marks[number + 1] = mark[1]
    found = checker("bad.py")
    elsewhere = {line: messages for line, messages in found.items() if line not in marks}
    assert elsewhere == {}
    assert set(marks.values()) - {marks[line] for line in found} == set()
