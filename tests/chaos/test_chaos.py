"""Workers are killed, servers crash and are restarted, connections end: no job is lost, none runs twice without a cause.

The short form is part of the tests; `make chaos` is the long one. AWA_CHAOS_KILLS, AWA_CHAOS_RESTARTS and AWA_CHAOS_CRASHES say
what each driver goes through, AWA_CHAOS_SEED what is chosen by chance.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from awa_sync.cli.embedded import Server, server
from tests.chaos.field import Field
from tests.conftest import INSTALLED
from tests.fleet.members import FLAVOURS

pytestmark = [pytest.mark.slow, pytest.mark.chaos, pytest.mark.timeout(1200)]

KILLS = int(os.environ.get("AWA_CHAOS_KILLS", "3"))
RESTARTS = int(os.environ.get("AWA_CHAOS_RESTARTS", "1"))
CRASHES = int(os.environ.get("AWA_CHAOS_CRASHES", "2"))
SEED = os.environ.get("AWA_CHAOS_SEED", "1")
SETTINGS = {
    "fsync": "off",  # the machine lives on: what a dead server has written is there
    "wal_writer_delay": "10s",  # so that a crash forgets claims
    "max_connections": "200",
}


@pytest.fixture(params=list(INSTALLED))
def fragile(request: pytest.FixtureRequest, open_directory: Path) -> Iterator[Server]:
    """A server of the test's own, whose commits that do not wait for the disk are long in danger."""
    prefer = INSTALLED[request.param][0]
    with server(directory=open_directory / ".awa", prefer=prefer, settings=SETTINGS) as running:
        yield running


@pytest.mark.parametrize("seed", [SEED])
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_no_job_is_lost_and_none_runs_twice_without_a_cause(
    fragile: Server, tmp_path: Path, flavour: str, seed: str
) -> None:
    with Field(fragile, tmp_path, flavour, seed) as field:
        kills = [field.kill_mid_batch, field.kill_mid_flush, field.kill_mid_claim]
        faults: list[Callable[[], None]] = [kills[n % len(kills)] for n in range(KILLS)]
        faults += [field.restart] * RESTARTS + [field.crash] * CRASHES
        faults += [field.terminate] * (1 + KILLS // 5) + [field.poison] * (1 + KILLS // 10)
        field.chance.shuffle(faults)
        for fault in faults:
            field.progress()
            fault()
        field.progress()
        field.finish()
        twice = field.account.check(field.rows())
    print(f"{flavour}, seed {seed}: {_figures(field, faults, twice)}")


def _figures(field: Field, faults: list[Callable[[], None]], twice: Counter[str]) -> str:
    account = field.account
    done = Counter(fault.__name__ for fault in faults)
    return (
        f"{len(account.sure)} jobs acknowledged, {len(account.wanted - account.sure)} in doubt, {len(account.runs)} runs; "
        f"{dict(sorted(done.items()))}, {len(account.deaths)} processes killed; "
        f"lost 0, twice: {dict(sorted(twice.items()))}"
    )
