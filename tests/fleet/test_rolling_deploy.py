"""A rolling deploy under load: processes of every package replaced one after the other, each stopped by SIGTERM."""

from __future__ import annotations

from collections import defaultdict, deque
from contextlib import ExitStack
from pathlib import Path

import pytest

import awa_sync
from tests.fleet.ledger import states
from tests.fleet.members import FLAVOURS, Member
from tests.fleet.test_switch_of_processes import Staff, until

RESTARTS = 20
SOME = 30
"""How many attempts end between two restarts."""


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.timeout(300)
def test_twenty_restarts_under_load_lose_nothing_and_burn_no_attempt(database: str, tmp_path: Path) -> None:
    """Counted from the handlers' own books: attempts 1, 2, 3, ... of each job, each begun once and ended once."""
    with awa_sync.Client(database) as client:
        client.migrate()
    with ExitStack() as stack:
        staff = Staff(database, tmp_path, stack)
        producer = staff.hire("produce", "sync", "queue")
        at_work = deque(staff.hire("work", flavour, "queue") for flavour in FLAVOURS[:2])
        for number in range(RESTARTS):
            before = staff.ended()
            until(lambda before=before: staff.ended() >= before + SOME)  # type: ignore[misc]
            at_work.append(staff.hire("work", FLAVOURS[(number + 2) % len(FLAVOURS)], "queue"))
            staff.stop(at_work.popleft())
        staff.stop(producer)
        committed = {int(n) for mark, n in staff.lines("produce") if mark == "c"}
        with Member("sync", database) as member:
            until(lambda: {state for rows in states(member).values() for state, _ in rows} == {"completed"})
            found = states(member)
        staff.stop(*at_work)
    begun: dict[int, list[int]] = defaultdict(list)
    ended: dict[int, list[int]] = defaultdict(list)
    for mark, n, attempt in staff.lines("work"):
        (begun if mark == "b" else ended)[int(n)].append(int(attempt))
    assert committed == set(found)
    assert all(len(rows) == 1 for rows in found.values())
    expected = {n: list(range(1, rows[0][1] + 1)) for n, rows in found.items()}
    assert {n: sorted(attempts) for n, attempts in begun.items()} == expected
    assert {n: sorted(attempts) for n, attempts in ended.items()} == expected
