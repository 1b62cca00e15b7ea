"""A fleet of workers of all packages on one queue, and the same client script on each."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import awa_proto as awa
from tests.fleet.ledger import Ledger
from tests.fleet.members import FLAVOURS, Crew, Member
from tests.fleet.server import ask

QUEUE = "fleet"
EACH = 750
"""Jobs that each member enqueues."""
PLANS: list[tuple[tuple[str, ...], int]] = [
    (("done",), 70),
    (("retry", "done"), 8),
    (("snooze", "done"), 6),
    (("snooze", "retry", "snooze", "done"), 4),
    (("cancel",), 4),
    (("retry", "cancel"), 2),
    (("fatal",), 3),
    (("retry", "retry", "raise"), 3),
]


def _request(n: int, plan: tuple[str, ...], chance: random.Random) -> awa.EnqueueRequest:
    request = awa.EnqueueRequest({"n": n, "plan": plan}).kind("plain" if n % 5 == 0 else "step").queue(QUEUE)
    request = request.priority(chance.randint(1, 4))
    if plan[-1] == "raise":
        request = request.max_attempts(len(plan))
    if chance.random() < 0.1:
        request = request.run_at(datetime.now(UTC) + timedelta(seconds=chance.random()))
    return request


def enqueue(member: Member, number: int, ledger: Ledger, most: int) -> None:
    """Enqueue in every way a client has, a part of it inside transactions that are rolled back."""
    chance = random.Random(number)
    numbers = iter(range(number * most, (number + 1) * most))
    plans, weights = zip(*PLANS, strict=True)
    left = most
    while left:
        count = min(left, chance.choice([1, 1, 1, 2, 20, 60]))
        left -= count
        batch = {n: chance.choices(plans, weights)[0] for _, n in zip(range(count), numbers, strict=False)}
        jobs = [_request(n, plan, chance) for n, plan in batch.items()]
        if chance.random() < 0.2:
            with pytest.raises(InterruptedError), member.transaction() as tx:  # noqa: PT012  the block is the transaction
                tx("insert_many", jobs)
                raise InterruptedError
        ledger.plans.update(batch)
        match chance.randrange(4):
            case 0:
                member.call("insert_many", jobs)
            case 1:
                assert member.call("enqueue_many", jobs) == count
            case 2:
                with member.transaction() as tx:
                    for job in jobs:
                        tx("insert", job)
            case _:
                for job in jobs:
                    member.call("insert", job)


def together(*calls: Callable[[], None]) -> None:
    """Each in a thread of its own; raises what the first one that failed raised."""
    failures: list[BaseException] = []

    def run(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001  raised below, in the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_a_mixed_fleet_runs_every_job_once_while_its_workers_restart_one_by_one(fleet: list[Member]) -> None:
    ledger = Ledger()
    for member in fleet:
        member.handle("step", ledger.handler(member.flavour))
        member.handle("plain", ledger.handler(member.flavour), plain=True)
    total = len(fleet) * EACH
    crews: list[Crew] = []
    with ExitStack() as first, ExitStack() as second:
        shifts = [first.enter_context(ExitStack()) for _ in fleet]
        crews = [shift.enter_context(member.worker({QUEUE: 8})) for shift, member in zip(shifts, fleet, strict=True)]

        def restart() -> None:
            for place, (shift, member) in enumerate(zip(shifts, fleet, strict=True)):
                ledger.until((place + 1) * total // 6)
                shift.close()
                assert crews[place].stopped().clean
                second.enter_context(member.worker({QUEUE: 8}))

        together(restart, *(lambda m=m, i=i: enqueue(m, i, ledger, EACH) for i, m in enumerate(fleet)))
        ledger.until(total)
    for member in fleet:
        ledger.check(member)
    assert set(ledger.by) == set(FLAVOURS)


def test_a_job_that_another_client_cancels_is_cancelled_or_done_and_never_both(fleet: list[Member]) -> None:
    """Each job is cancelled by some member while the fleet works it, before it is claimed, while it runs, or too late."""
    ran: list[int] = []

    def note(job: Any) -> None:
        ran.append(job.args["n"])

    for member in fleet:
        member.handle("note", note)
    rows = fleet[0].call("insert_many", [{"n": n, "kind": "note"} for n in range(1200)], queue=QUEUE)
    answers: dict[int, bool] = {}

    def cancel(member: Member, part: int) -> None:
        for row in rows[part::4]:
            answers[row.id] = member.call("cancel", row.id)

    with ExitStack() as stack:
        crews = [stack.enter_context(member.worker({QUEUE: 4})) for member in fleet]
        together(*(lambda m=m, i=i: cancel(m, i) for i, m in enumerate(fleet)))
        for crew in crews:
            crew.drained()
    by_id = {row.id: row.args["n"] for row in rows}
    ends = {row.id: fleet[1].call("get_job", row.id).state for row in rows}
    assert ends == {
        id: awa.JobState.CANCELLED if cancelled else awa.JobState.COMPLETED for id, cancelled in answers.items()
    }
    assert len(ran) == len(set(ran))
    assert {by_id[id] for id, cancelled in answers.items() if not cancelled} <= set(ran)


def test_the_same_script_gives_the_same_rows_on_every_package(database: str) -> None:
    seen = {flavour: _script(flavour, database, f"awa_{place}") for place, flavour in enumerate(FLAVOURS)}
    expected = seen[FLAVOURS[0]]
    assert len(expected[0]) > 10
    for flavour in FLAVOURS[1:]:
        assert seen[flavour] == expected, flavour


def _script(flavour: str, dsn: str, schema: str) -> tuple[list[Any], list[Any]]:
    """What a client answers and what is then in the tables, moments and numbers of jobs taken out."""
    far = datetime(2999, 12, 31, 23, 59, 59, 999999, UTC)
    answers: list[Any] = []
    with Member(flavour, dsn, schema=schema) as member:
        member.handle("retries", lambda job: awa.RetryAfter(3600))
        member.handle("fails", _fail)
        member.handle("snoozes", lambda job: awa.Snooze(3600))
        member.handle("cancels", lambda job: awa.Cancel("\N{SNOWMAN} enough"))
        member.handle("wrong", lambda job: "a wrong value")
        answers.append(member.call("migrate") > 0)
        args = {"kind": "x", "text": '\N{SNOWMAN}\U0001f600\\"\n', "n": 2**53, "f": 1.0, "none": None, "l": [[], {}]}
        one = member.call("insert", args, tags=["a", "b"], metadata={"m": {"n": [1.5]}}, priority=1, queue="a" * 200)
        many = member.call(
            "insert_many",
            [awa.EnqueueRequest({"n": n}).kind("later").run_at(far).priority(4) for n in range(3)]
            + [awa.EnqueueRequest({"n": n}).kind(f"kind {n}").max_attempts(1000) for n in range(3)],
            ordering_key="key",
        )
        answers.append(member.call("enqueue_many", ({"n": n, "kind": "bulk"} for n in range(30)), queue="bulk"))
        answers += [member.call("cancel", many[0].id), member.call("cancel", many[0].id), member.call("cancel", one.id)]
        answers.append(_plain(member.call("retry", one.id)))
        with member.transaction() as tx:
            tx("insert", {"kind": "inside"}, deadline_duration=timedelta(seconds=5))
            answers.append(tx("fetch", "SELECT $1::int, $2::text, $3::timestamptz", 1, "x", far))
        work = ["retries", "fails", "snoozes", "cancels", "wrong", "unknown"]
        member.call("insert_many", [{"kind": kind} for kind in work], queue="work")
        with member.worker({"work": 1}) as crew:
            crew.drained()
        member.call("pause_queue", "bulk", by="script")
        member.call("set_stripes", "work", 3)
        answers += [_plain(row) for row in [one, *many, *member.call("list_jobs", limit=1000)]]
        answers += [(s.queue, s.available, s.running, s.paused) for s in member.call("queue_stats")]
        for method, value, options in (
            ("cancel", 2**62, {}),
            ("retry", many[3].id, {}),
            ("insert", {"kind": "x"}, {"priority": 5}),
        ):
            with pytest.raises(awa.AwaError) as caught:
                member.call(method, value, **options)
            answers.append((type(caught.value), str(caught.value).replace(str(many[3].id), "#")))
    return answers, _tables(dsn, schema)


def _fail(job: Any) -> None:
    raise awa.TerminalError("as planned: \0 \ud800")


def _plain(row: awa.JobRow) -> Any:
    errors = [{key: value for key, value in entry.items() if key not in {"at", "traceback"}} for entry in row.errors]
    return (
        row.kind, row.queue, row.args, row.state, row.priority, row.attempt, row.max_attempts, row.metadata, row.tags,
        errors, row.run_at if row.run_at.year > 2900 else None, row.finalized_at is None, row.attempted_at is None,
    )  # fmt: skip


def _tables(dsn: str, schema: str) -> list[Any]:
    body = "stripe, priority, attempt, max_attempts, queue, kind, args::text, extra::text NOT LIKE '%errors%'"
    found: list[Any] = []
    for table, columns, order in (
        ("ready", body, "id, attempt"),
        ("deferred", f"{body}, state", "id"),
        ("failed", f"{body}, state", "id"),
        ("closures, unnest(idx)", "outcome", "outcome"),
        ("queues", "queue, stripes, paused_by", "queue"),
    ):
        found += ask(dsn, f"SELECT {columns} FROM {schema}.{table} ORDER BY {order}")
    return found
