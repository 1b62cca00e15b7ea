"""Callbacks, on an engine and on the model: registered, waited for, parked for, used, given time, late.

Each has an id of its own on either side. Any step may use any callback there ever was, so most of them are dead: replaced,
used, or of an attempt that has ended; both must say so.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, multiple, rule

from awa_proto import extra as extras
from awa_proto.dead_letters import DeadLetterPolicy
from awa_proto.errors import CallbackNotFound, UniqueConflict
from awa_proto.events import RescueReason
from awa_proto.job import Attempt, JobRow, JobState
from awa_proto.operations import Operations
from awa_proto.outcome import Ending, Outcome, Transition, conclude
from awa_proto.plan import Op
from awa_proto.store import Called, Ended, Stranded, Wait
from tests.store.machine import LONG_AGO, QUEUES, WAITING_KEYS, Machine

WAITED = st.sampled_from([0.0, 0.0, 2.5, 40.0])
TIMEOUTS = st.sampled_from([0.5, 5.0, 40.0, 3600.0])
USES = st.sampled_from(["complete", "fail", "retry", "resume"])
NOBODY = "00000000-0000-4000-8000-000000000000"
PAYLOADS = st.sampled_from([None, {"n": 1.0}, [1, None], "soon"])


class Side(NamedTuple):
    """A callback as one of the two knows it."""

    attempt: Attempt
    id: str

    def wait(self, waited: float) -> Wait:
        return Wait(self.attempt, self.id, waited)


class Pair(NamedTuple):
    """A callback, of the engine and of the model."""

    real: Side
    model: Side


def _fence(pair: Pair) -> tuple[int, int]:
    return pair.model.attempt.id, pair.model.attempt.run_lease


class CallbackMachine(Machine):
    """What is done with callbacks beside everything else."""

    registered = Bundle("registered")

    def __init__(self) -> None:
        super().__init__()
        self._all: list[Pair] = []
        self._newest: dict[tuple[int, int], tuple[str, str]] = {}

    # the workers

    @rule(target=registered, claimed=Machine.claimed, timeout=TIMEOUTS, knows=st.booleans())
    def register_callback(self, claimed: tuple[Attempt, Attempt], timeout: float, knows: bool) -> Any:
        """knows: the handler was given the newest one, else the answer was lost."""
        twins, (real, model) = self._twins, claimed
        newest = self._newest.get((model.id, model.run_lease), (None, None)) if knows else (None, None)
        found = twins.real(twins.store.register_callback(real, timeout, None, newest[0]))
        same = twins.model(twins.memory.register_callback(model, timeout, None, newest[1]))
        if found is None or same is None:
            assert found is None
            assert same is None
            return multiple()
        assert found.timeout_at == same.timeout_at
        twins.callbacks[found.id] = same.id
        pair = Pair(Side(real, found.id), Side(model, same.id))
        self._newest[model.id, model.run_lease] = found.id, same.id
        self._all.append(pair)
        return pair

    @rule(
        target=registered,
        unique=st.none() | WAITING_KEYS,
        queue=QUEUES,
        timeout=TIMEOUTS,
        ways=st.lists(
            st.sampled_from(["runs", "waits", "parked", "waited and parked", "came early"]), min_size=1, max_size=3
        ),
        extra=st.sampled_from([None, extras.encode(deadline=5.0)]),
        newer=st.booleans(),
    )
    def jobs_with_callbacks(
        self, unique: Any, queue: str, timeout: float, ways: list[str], extra: str | None, newer: bool
    ) -> Any:
        """What random steps seldom come to. newer: whether there is one then that keeps the job out where it may."""
        pairs: list[Any] = []
        for way in ways:
            self.insert([(queue, 1, LONG_AGO, extra, "k", unique)], copied=False, skip=True)
            for claimed in self.claim(0, queue, 1, 0.0, None, advance=False).values:
                pair = self.register_callback(claimed, timeout, knows=True)
                pairs.append(pair)
                if newer:
                    self.insert([(queue, 4, None, None, "k", unique)], copied=False, skip=True)
                if way in {"waits", "waited and parked"}:
                    self.wait([pair], 0.0)
                if way in {"parked", "waited and parked"}:
                    self.park([claimed], resend=False, knows=True)
                elif way == "came early":
                    self.use(pair, "resume", [1.0], buries=False, guard=None)
                    self.park([claimed], resend=True, knows=True)
        return multiple(*pairs)

    @rule(number=st.integers(0, 999), seconds=st.sampled_from([1.0, 4.0, 31.0]), use=USES, leaves=st.booleans())
    def time_passes_for_who_waits(self, number: int, seconds: float, use: str, leaves: bool) -> None:
        """Then it is used, or given more time. leaves: the handler waits no more, or begins to wait just now."""
        tables = self._twins.memory._tables
        alive = [
            pair for pair in self._all
            if (job := tables.jobs.get(pair.model.attempt.id)) is not None
            and job.callback is not None and job.callback.id == pair.model.id
        ]  # fmt: skip
        if not alive:
            return
        pair = alive[number % len(alive)]
        if leaves:
            self.wait([pair], 0.0)
        self._twins.pass_time(seconds)
        if leaves:
            self.leave([pair], seconds)
            self._twins.agree_on_rows()
        if number % 3:
            self.use(pair, use, {"n": number}, buries=number % 2 == 0, guard=None)
        else:
            self.heartbeat_callback(pair, seconds)

    @rule(
        bite=st.lists(Machine.claimed, min_size=1, max_size=4),
        resend=st.booleans(),
        knows=st.sampled_from([True, True, False]),
    )
    def park(self, bite: list[tuple[Attempt, Attempt]], resend: bool, knows: bool) -> None:
        """Also attempts that have no callback, or another one, and those that have ended."""
        alike = {extras.unique_of(real.extra) or real.id: (real, model) for real, model in bite}
        ended: list[tuple[Ended, Ended]] = []
        for real, model in alike.values():
            ids = self._newest.get((model.id, model.run_lease), (NOBODY, NOBODY)) if knows else (NOBODY, NOBODY)
            ended.append((self._parking(real, ids[0]), self._parking(model, ids[1])))
        self._written(ended, resend)

    def _parking(self, attempt: Attempt, id: str) -> Ended:
        waits = Transition(
            JobState.WAITING_EXTERNAL, attempt.attempt, self._twins.now, outcome=Outcome.WAITING_FOR_CALLBACK,
            ending=Ending.WAIT, callback=id,
        )  # fmt: skip
        return Ended(attempt, waits, flushed=True)

    @rule(pairs=st.lists(registered, min_size=1, max_size=4, unique_by=_fence), waited=WAITED)
    def wait(self, pairs: list[Pair], waited: float) -> None:
        twins = self._twins
        real = twins.real(twins.store.wait([pair.real.wait(waited) for pair in pairs]))
        assert real == twins.model(twins.memory.wait([pair.model.wait(waited) for pair in pairs]))

    @rule(pairs=st.lists(registered, min_size=1, max_size=4, unique_by=_fence), waited=WAITED)
    def leave(self, pairs: list[Pair], waited: float) -> None:
        twins = self._twins
        twins.real(twins.store.leave([pair.real.wait(waited) for pair in pairs]))
        twins.model(twins.memory.leave([pair.model.wait(waited) for pair in pairs]))

    # the outside world

    @rule(pair=registered, use=USES, payload=PAYLOADS, buries=st.booleans(), guard=st.sampled_from([None, 0, 1]))
    def use(self, pair: Pair, use: str, payload: Any, buries: bool, guard: int | None) -> None:
        """guard: how far off the lease is that is asked for, if one is."""

        def op(calls: Operations[Any], side: Side) -> Op[JobRow]:
            lease = None if guard is None else side.attempt.run_lease + guard
            match use:
                case "complete":
                    output = [1.0] if self._twins.store.keeps_outputs else None
                    return calls.complete_external(side.id, payload, output=output, run_lease=lease)
                case "fail":
                    return calls.fail_external(side.id, "no such thing", run_lease=lease)
                case "retry":
                    return calls.retry_external(side.id, run_lease=lease)
                case _:
                    return calls.resume_external(side.id, payload, run_lease=lease)

        self._same_answer(pair, op, buries=buries)

    @rule(pair=registered, seconds=TIMEOUTS)
    def heartbeat_callback(self, pair: Pair, seconds: float) -> None:
        self._same_answer(pair, lambda calls, side: calls.heartbeat_callback(side.id, seconds))

    @rule(pair=registered)
    def retry_what_waits(self, pair: Pair) -> None:
        """As a person does, of whatever the job waits for now."""
        row = self._twins.model(self._twins.memory.get_job(pair.model.attempt.id))
        if row is not None and row.state is JobState.WAITING_EXTERNAL:
            self._same_answer(pair, lambda calls, side: calls.retry(side.attempt.id))

    def _same_answer(self, pair: Pair, op: Any, *, buries: bool = False) -> None:
        twins = self._twins
        answers: list[Any] = []
        for run, store, side in ((twins.real, twins.store, pair.real), (twins.model, twins.memory, pair.model)):
            calls: Operations[Any] = Operations(
                store, {}, "awa", lambda: twins.now, random=random.random, dead_letters=DeadLetterPolicy(buries)
            )
            try:
                row: JobRow = run(op(calls, side))
            except (CallbackNotFound, UniqueConflict) as error:
                answers.append(type(error))
            else:
                seen = twins.seen(row, None if store is twins.store else row.id)
                answers.append(
                    {name: seen[name] for name in ("id", "state", "attempt", "errors", "progress", "output")}
                )
        assert answers[0] == answers[1]

    # the leader

    @rule(page=st.integers(1, 4), late=st.sampled_from([0.0, 0.0, 6.0]))
    def rescue_expired(self, page: int, late: float) -> None:
        """A page of those whose time is up. late: seconds until it is written."""
        twins = self._twins
        real, model = twins.real(twins.store.find_expired(page)), twins.model(twins.memory.find_expired(page))
        assert real.due_in == (None if model.due_in is None else pytest.approx(model.due_in))
        found = [self._found(stranded, called) for stranded, called in real.stranded]
        assert found == [self._found(stranded, called, stranded.attempt.id) for stranded, called in model.stranded]
        twins.pass_time(late)
        pairs = zip(real.stranded, model.stranded, strict=True)
        alike = {extras.unique_of(own[0].attempt.extra) or own[0].attempt.id: (its, own) for its, own in pairs}
        ended = [(_late(*its, dead), _late(*own, dead)) for dead, (its, own) in enumerate(alike.values())]
        if ended:
            self._written(ended, resend=False)

    def _found(self, stranded: Stranded, called: Called, id: int | None = None) -> Any:
        callback = self._twins.callbacks[called.callback_id] if id is None else called.callback_id
        return (
            self._twins.told(stranded.attempt, id),
            stranded.at,
            callback,
            called.waits,
            called.due,
        )


def _late(stranded: Stranded, called: Called, dead: int) -> Ended:
    """How one ends whose callback did not come."""
    attempt, at = stranded
    transition = conclude(attempt, RescueReason.EXPIRED_CALLBACK, at, lambda: 0.5, dead_letters=dead % 2 == 0)
    return Ended(attempt, transition, flushed=True, called=called)
