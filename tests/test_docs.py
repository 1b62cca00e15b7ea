"""What the README and the docs show is run and compared, not only read."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from awa_proto.job import JobState
from awa_proto.outcome import TABLE

ROOT = Path(__file__).parent.parent
SHOWN = {
    "awa_asyncio": "mail to ada@example.org, attempt 1\n",
    "awa_trio": "320 pixels, priority 1\n",
    "awa_sync": "importing a.csv\n",
}


def blocks(page: Path) -> list[tuple[str, str]]:
    """Each code block, and the text block that follows it at once: what it prints."""
    return re.findall(r"```python\n(.*?)```(?:\n+```text\n(.*?)```)?", page.read_text(), re.DOTALL)


BLOCKS = [
    (block, said, f"{page.name}-{number}")
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    for number, (block, said) in enumerate(blocks(page), 1)
]


def shown(block: str, name: str) -> str:
    """What a block prints that is not followed by that: nothing, but for those of the README."""
    found = [text for package, text in SHOWN.items() if f"import {package}" in block and name.startswith("README")]
    return "".join(found)


TESTS = [each for each in BLOCKS if re.search(r"^(async )?def test_", each[0], re.MULTILINE)]


@pytest.mark.parametrize("block", [pytest.param(block, id=name) for block, _, name in TESTS])
def test_tests_in_the_docs_pass(block: str, database: str, tmp_path: Path) -> None:
    (tmp_path / "test_shown.py").write_text(block)
    options = ("-p", "awa_queue_pytest", "-W", "error", "--awa-dsn", database)
    shown = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert shown.returncode == 0, shown.stdout


@pytest.mark.parametrize(
    ("block", "said"),
    [
        pytest.param(block, said or shown(block, name), id=name)
        for block, said, name in BLOCKS
        if (block, said, name) not in TESTS
    ],
)
def test_a_code_block_of_the_docs_runs_as_it_stands(block: str, said: str, database: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", block],
        env={**os.environ, "AWA_DATABASE_URL": database},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == said, done.stderr


def test_the_readme_has_an_example_for_each_driver() -> None:
    readme = "\n".join(block for block, _ in blocks(ROOT / "README.md"))
    assert all(f"import {package} as awa" in readme for package in SHOWN)


def test_the_table_of_outcomes_in_the_docs_is_the_one_the_core_acts_by() -> None:
    page = (ROOT / "docs" / "semantics.md").read_text()
    shown = page.split("<!-- /outcomes -->")[0].split("-->")[-1].strip().splitlines()[2:]
    assert shown == [
        f"| {ending} | {rule.to} | {JobState.FAILED if rule.exhausts else rule.to} | {yes(rule.entry)}"
        f" | {yes(not rule.gives_back)} | {rule.output} | {rule.outcome or '-'} | {rule.dead_letter or '-'} | {rule.metric} |"
        for ending, rule in TABLE.items()
    ]


def yes(fact: bool) -> str:
    return "yes" if fact else "no"


def test_the_links_of_the_readme_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text())
    assert [link for link in links if not (ROOT / link).exists()] == ["docs/benchmarks.md"] * (
        not (ROOT / "docs/benchmarks.md").exists()
    )
