"""What was enqueued, what handlers did, and what the database says at the end: three accounts that must agree.

A job carries its own plan, one step for each attempt: `done`, `retry`, `snooze`, `cancel`, `fatal`, or `raise`, which as
the last step of a job whose attempts are used up is a failure.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

import awa_proto as awa
from tests.fleet.members import PATIENCE, Member

ENDS = {"done": "completed", "cancel": "cancelled", "fatal": "failed", "raise": "failed"}


class Planned(Exception):
    """What a handler raises because the plan of its job says so."""


@dataclass
class Ledger:
    """Jobs by their number.

    plans: what was enqueued and committed. taken: the steps that handlers took, with who took them.
    wrong: what must not happen, in words.
    """

    plans: dict[int, tuple[str, ...]] = field(default_factory=dict[int, "tuple[str, ...]"])
    taken: dict[int, list[str]] = field(default_factory=dict[int, list[str]])
    by: Counter[str] = field(default_factory=Counter[str])
    wrong: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self._running: set[int] = set()
        self._changed = threading.Condition()
        self._ended = 0

    def handler(self, flavour: str) -> Any:
        """A handler that does what the plan of its job says, and writes it down."""

        def handle(job: Any) -> object:
            n, plan = job.args["n"], job.args["plan"]
            with self._changed:
                steps = self.taken.setdefault(n, [])
                index = len(steps)
                counted = 1 + sum(step != "snooze" for step in plan[:index])
                if n in self._running:
                    self.wrong.append(f"job {n} ran twice at once")
                if index >= len(plan):
                    self.wrong.append(f"job {n} ran after its end, on {flavour}")
                    return None
                if job.attempt != counted:
                    self.wrong.append(f"job {n} was given attempt {job.attempt} instead of {counted}")
                step: str = plan[index]
                steps.append(step)
                self.by[flavour] += 1
                self._running.add(n)
            try:
                return _do(step)
            finally:
                with self._changed:
                    self._running.discard(n)
                    if index + 1 == len(plan):
                        self._ended += 1
                        self._changed.notify_all()

        return handle

    def until(self, ended: int) -> None:
        """Wait until handlers took the last step of so many jobs."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._ended >= ended, PATIENCE):
                missing = [n for n, plan in self.plans.items() if len(self.taken.get(n, ())) < len(plan)]
                pytest.fail(f"{len(missing)} jobs did not end, such as {missing[:10]}")

    def check(self, member: Member) -> None:
        """Each job took each step of its plan once, and the database has it once, in the state that follows."""
        assert self.wrong == []
        assert {n: list(plan) for n, plan in self.plans.items()} == self.taken
        found = states(member)
        assert {n: [state for state, _ in rows] for n, rows in found.items()} == {
            n: [ENDS[plan[-1]]] for n, plan in self.plans.items()
        }
        assert {n: rows[0][1] for n, rows in found.items()} == {
            n: 1 + sum(step != "snooze" for step in plan[:-1]) for n, plan in self.plans.items()
        }


def _do(step: str) -> object:
    match step:
        case "done":
            return None
        case "retry":
            return awa.RetryAfter(0.01)
        case "snooze":
            return awa.Snooze(0.01)
        case "cancel":
            return awa.Cancel("as planned")
        case "fatal":
            raise awa.TerminalError("as planned")
        case _:
            raise Planned


def states(member: Member) -> dict[int, list[tuple[str, int]]]:
    """Every job as the database has it: (state, attempt) of each row there is for a number; one each is right."""
    found: dict[int, list[tuple[str, int]]] = {}
    page = member.call("list_jobs", limit=1000)
    rows = list(page)
    while page.next is not None:
        page = member.call("list_jobs", limit=1000, before_id=page.next)
        rows += page
    for row in rows:
        found.setdefault(row.args["n"], []).append((row.state.value, row.attempt))
    return found
