"""The way from canonical storage to queue storage, walked while clients and workers of both are at it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from awa_proto.store.canonical.switch import StorageStatus, storage_status
from tests.fleet.ledger import Ledger
from tests.fleet.members import Member
from tests.fleet.test_fleet import QUEUE, enqueue, together
from tests.test_cli import awa

MEMBERS = (
    ("canonical", "asyncio-asyncpg"),
    ("canonical", "trio"),
    ("canonical", "sync"),
    ("queue", "asyncio-psycopg"),
    ("queue", "sync"),
)
EACH = 600
"""Jobs that each member enqueues."""


@pytest.fixture
def both(database: str) -> Iterator[dict[str, list[Member]]]:
    """Members of both engines, by their engine, on one migrated database."""
    members: dict[str, list[Member]] = {"canonical": [], "queue": []}
    with ExitStack() as stack:
        for engine, flavour in MEMBERS:
            members[engine].append(stack.enter_context(Member(flavour, database, engine=engine)))
        members["queue"][0].call("migrate")
        yield members


def test_every_job_runs_once_while_queue_storage_takes_over(both: dict[str, list[Member]], database: str) -> None:
    """Producers of both engines all the time; workers of both until half is done, then those of queue storage alone."""
    ledger = Ledger()
    everybody = [(f"{engine} {member.flavour}", member) for engine in both for member in both[engine]]
    for name, member in everybody:
        member.handle("step", ledger.handler(name))
        member.handle("plain", ledger.handler(name), plain=True)
    total = len(everybody) * EACH
    with ExitStack() as old, ExitStack() as new:
        for engine, shift in (("canonical", old), ("queue", new)):
            for member in both[engine]:
                shift.enter_context(member.worker({QUEUE: 8}))

        def switch() -> None:
            ledger.until(total // 4)
            done = awa("storage", "switch", "--dsn", database)
            assert (done.returncode, done.stdout.splitlines()[0]) == (
                0,
                "All clients enqueue into queue storage, whatever their engine.",
            )
            ledger.until(total // 2)
            old.close()

        together(
            *(partial(enqueue, member, place, ledger, EACH) for place, (_, member) in enumerate(everybody)), switch
        )
        ledger.until(total)
    ledger.check(both["queue"][0])
    ledger.check(both["canonical"][0])
    assert set(ledger.by) == {name for name, _ in everybody}
    status: StorageStatus = both["queue"][0].call("perform", storage_status("awa"))
    held = {state: count for state, count in status.canonical.items() if count}
    assert held
    assert all(state.is_terminal for state in held)
    assert sum(held.values()) + sum(status.queue.values()) == total


def test_what_is_left_in_canonical_storage_is_worked_without_any_worker_of_it(
    both: dict[str, list[Member]],
) -> None:
    """A backlog with jobs that are not due, jobs that were retried, and none of its workers there any more."""
    ledger = Ledger()
    (producer, *_), (worker, *_) = both["canonical"], both["queue"]
    for member in (producer, worker):
        member.handle("step", ledger.handler(member.flavour))
        member.handle("plain", ledger.handler(member.flavour), plain=True)
    enqueue(producer, 0, ledger, EACH)
    with producer.worker({QUEUE: 4}):
        ledger.until(EACH // 4)
    with worker.worker({QUEUE: 8}):
        enqueue(producer, 1, ledger, EACH)
        ledger.until(2 * EACH)
    ledger.check(worker)
