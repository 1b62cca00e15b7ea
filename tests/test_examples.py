"""The examples run as they are, and say what they should."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SAYS = {
    "on_asyncio.py": "hello, asyncio",
    "on_trio.py": "hello, trio",
    "on_sync.py": "hello, threads",
    "transactional.py": "to ship: [1, 2, 3, 4]",
    "webhooks.py": "seen: 200 waiting_external\npaid: 200 completed\npaid, once more: 404 completed",
}


def test_every_example_is_tested() -> None:
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == sorted(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_an_example_runs(database: str, name: str) -> None:
    environment = {**os.environ, "AWA_DATABASE_URL": database, "PYTHONPATH": str(EXAMPLES.parent)}
    command = [sys.executable, "-W", "error", str(EXAMPLES / name)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.stderr, done.returncode) == (SAYS[name], "", 0)


def test_what_an_example_leaves_behind_is_in_no_other_ones_way(database: str) -> None:
    for name in ("transactional.py", "on_sync.py", "webhooks.py"):
        test_an_example_runs(database, name)


@pytest.mark.parametrize("name", [name for name in SAYS if name.startswith("on_")])
def test_the_example_of_a_driver_is_short(name: str) -> None:
    code = [line for line in (EXAMPLES / name).read_text().splitlines() if line.strip()]
    assert len(code) <= 25
