"""`awa demo` accounts for every job, and notices when one is missing."""

from __future__ import annotations

import os
import subprocess
import sys

import psycopg
import pytest

from awa_proto.job import JobState
from awa_sync.cli.demo.account import settle
from awa_sync.cli.demo.scenario import BECOMES, Fate, Log, mixed

pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.slow
def test_the_demo_accounts_for_every_job_on_every_driver_and_leaves_nothing_behind(database: str) -> None:
    environment = {**os.environ, "AWA_DATABASE_URL": database, "COLUMNS": "120"}
    command = [sys.executable, "-m", "awa_sync", "demo", "--jobs", "300"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.splitlines() == ["awa: the server of $AWA_DATABASE_URL"], (
        "failures that are meant are not logged"
    )
    [verdict] = [line for line in done.stdout.splitlines() if "accounted for" in line]
    assert verdict.count("all") == 4
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'awa%'").fetchall() == []


def test_the_account_names_what_did_not_run_what_ran_too_often_and_what_should_not_exist() -> None:
    errands = mixed("q", 100)
    log = Log(errands)
    by_fate = {fate: next(each for each in errands.every if each.fate == fate) for fate in Fate}
    for errand in errands.every:
        for _ in range(BECOMES[Fate(errand.fate)][0]):
            log.runs.append((errand.number, 0.0))
    plain, undone = by_fate[Fate.COMPLETED], by_fate[Fate.ROLLED_BACK]
    log.runs.append((plain.number, 1.0))
    log.runs.append((undone.number, 1.0))
    problems = settle("driver", errands, log, [], 1.0).problems
    assert f"job {plain.number} (completed) ran 2 times instead of 1" in problems
    assert f"job {plain.number} (completed) is missing instead of {JobState.COMPLETED}" in problems
    assert f"job {undone.number} (rolled back) ran 1 times instead of 0" in problems
    assert not any(f"job {undone.number} (rolled back) is" in problem for problem in problems)


def test_the_mix_has_every_fate_and_every_priority_and_the_number_asked_for() -> None:
    errands = mixed("q", 1500)
    assert {errand.fate for errand in errands.every} == set(Fate)
    assert len(errands.every) - len(errands.rolled_back) == 1500
    assert {request.options.get("priority") for request in errands.immediate} == {1, 2, 3, 4}
    assert len({errand.number for errand in errands.every}) == 1550
