"""Dead workers, stuck ones and lost answers, in virtual time: who ends what, when, and what hooks and follow-ups hear."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
from typing_extensions import override

from awa_proto.errors import DatabaseError
from awa_proto.events import Exhausted, Rescued, RescueReason
from awa_proto.followup import FollowUps, follow_up
from awa_proto.intake import Intake
from awa_proto.job import Attempt, JobState
from awa_proto.options import EnqueueRequest
from awa_proto.outcome import DeadLetter, Outcome, conclude
from awa_proto.plan import Op, Plan
from awa_proto.store import Demand, Ended, NewJob, Ring, Verdict, Verdicts, WorkerInfo
from awa_proto.store.memory import MemoryStore
from awa_proto.testing.faults import Fault, is_down
from awa_proto.testing.process import Process
from awa_proto.testing.simulator import Job, Simulation, play
from awa_proto.worker.clock import DatabaseClock
from awa_proto.worker.config import Liveness, QueueConfig, WorkerConfig
from awa_proto.worker.context import Context
from awa_proto.worker.events import Happened, Lane, RunOp
from awa_proto.worker.happened import Hooked
from awa_proto.worker.lanes import Lanes
from awa_proto.worker.report import Report
from awa_proto.worker.rescue import rescues
from awa_proto.worker.tally import Tally
from awa_proto.worker.timers import Timers

AT = datetime(2026, 1, 31, tzinfo=UTC)
STALE, OVERDUE = RescueReason.STALE_HEARTBEAT, RescueReason.DEADLINE_EXCEEDED


# in a world of workers


def worker(world: Simulation, number: int = 1, **settings: Any) -> Process:
    return Process(world, WorkerConfig({"q": QueueConfig(max_workers=10)}, **settings), number).start()


def rescued(world: Simulation) -> dict[int, float]:
    """When hooks were told that a job was rescued."""
    return {line[3]: line[0] for line in world.trace if line[2] == "happened" and line[4] == "Rescued"}


@pytest.mark.parametrize("leads", [True, False], ids=["the leader dies", "another one dies"])
def test_the_jobs_of_a_dead_worker_are_run_by_another_within_45_seconds(leads: bool) -> None:
    for seed in range(20):
        world = Simulation(seed)
        first, second = worker(world, 1), worker(world, 2)
        world.run(2.0)
        victim = first if first.machine.leads is leads else second
        world.insert(*[Job(takes=40.0)] * 12)  # more than one of them takes
        world.run(20.0)
        held = {handler.attempt.id for handler in victim.handlers.values()}
        assert held
        victim.die()
        died = world.now
        world.run(died + 45.0)
        assert held == rescued(world).keys()
        assert max(rescued(world).values()) - died <= 45.0
        world.run(world.now + 100.0)
        assert set(world.states.values()) == {JobState.COMPLETED}


def test_a_worker_whose_loop_is_blocked_for_less_than_the_stall_limit_keeps_its_jobs() -> None:
    world = Simulation(1)
    blocked, _ = worker(world, 1), worker(world, 2)
    world.insert(*[Job(takes=1.0)] * 3)
    world.run(0.5)
    blocked.stick(200.0)
    world.run(400.0)
    assert rescued(world) == {}
    assert set(world.states.values()) == {JobState.COMPLETED}
    assert world.told["stalled"] == 0


def test_a_worker_whose_loop_is_stuck_loses_its_jobs_and_its_late_results_are_stale() -> None:
    world = Simulation(1)
    stuck = worker(world, 1, liveness=Liveness(stall_limit=60.0))
    world.insert(*[Job(takes=1.0)] * 3)
    world.run(0.5)
    worker(world, 2)
    stuck.stick(200.0)
    world.run(190.0)
    assert world.told["stalled"] == 1
    assert len(rescued(world)) == 3
    assert 60.0 < min(rescued(world).values()) < 60.0 + 10.0 + 45.0
    world.run(400.0)
    assert set(world.states.values()) == {JobState.COMPLETED}
    assert world.told["stale result"] == 3, "a line for each job"
    assert world.told["stalled: over"] == 1


def test_a_worker_that_was_taken_as_dead_and_is_not_cancels_the_handlers_of_what_it_lost() -> None:
    world = Simulation(1)
    lonely = worker(world, 1)
    world.insert(*[Job(takes=300.0)] * 3)
    world.run(1.0)
    worker(world, 2)
    assert lonely.heart is not None
    lonely.heart.fails = True
    world.run(100.0)
    assert len(rescued(world)) == 3
    assert {line[3] for line in world.trace if line[1] == 1 and line[2] == "cancel"} == rescued(world).keys()
    assert lonely.machine.running == [], "and takes nothing new while nobody hears that it lives"
    world.run(150.0)
    lonely.heart.fails = False
    world.insert(*[Job(takes=60.0)] * 15)  # more than the other one takes
    world.run(170.0)
    assert any(line[1] == 1 for line in world.trace if line[0] > 150.0 and line[2] == "start")


def test_a_job_that_takes_every_worker_with_it_ends_by_its_max_attempts() -> None:
    world = Simulation(1)
    world.insert(Job(takes=1000.0, max_attempts=3, expect="failed"))
    for number in range(1, 4):
        victim = worker(world, number)
        world.run_until(lambda victim=victim: bool(victim.handlers), at_most=120)  # type: ignore[misc]
        world.run(world.now + 0.1)
        victim.die()
    worker(world, 9)
    world.run(world.now + 60)
    (row,) = world.rows
    assert (row.state, row.attempt) == (JobState.FAILED, 3)
    assert [line[4] for line in world.trace if line[2] == "happened"][-2:] == ["Rescued", "Exhausted"]


def test_an_attempt_beyond_its_deadline_whose_worker_is_stuck_is_ended_within_5_seconds() -> None:
    for seed in range(20):
        world = Simulation(seed)
        stuck = worker(world, 1)
        world.insert(Job(takes=100.0, deadline=20.0))
        world.run(0.5)
        worker(world, 2)
        stuck.stick(60.0)
        world.run(30.0)  # the lease of a leader that is stuck expires
        ((_, at),) = rescued(world).items()
        assert 20.0 < at <= 25.0


def test_nobody_is_rescued_because_the_database_was_away() -> None:
    for seed in range(30):
        world = Simulation(seed)
        workers = [worker(world, number) for number in range(1, 4)]
        world.insert(*[Job(takes=300.0)] * 9)
        away = 20.0, 20.0 + 100.0 * Random(seed).random()
        world.interfere = lambda _number, _run: is_down() if away[0] <= world.now < away[1] else None  # noqa: B023
        for process in workers:
            world.at(away[0], lambda process=process: setattr(process.heart, "fails", True))  # type: ignore[misc]
            world.at(away[1], lambda process=process: setattr(process.heart, "fails", False))  # type: ignore[misc]
        world.run(400.0)
        assert rescued(world) == {}
        assert set(world.states.values()) == {JobState.COMPLETED}


def test_a_deadline_that_passes_while_the_database_is_away_is_left_to_the_worker() -> None:
    for seed in range(30):
        world = Simulation(seed)
        for number in range(1, 4):
            worker(world, number)
        world.run(15.0)
        world.insert(Job(takes=9.0, deadline=10.0, max_attempts=1), Job(takes=99.0, deadline=10.0, max_attempts=1))
        away = 20.0, 29.0 + 30.0 * Random(seed).random() ** 2
        world.interfere = lambda _number, _run: is_down() if away[0] <= world.now < away[1] else None  # noqa: B023
        world.run(100.0)
        assert rescued(world) == {}
        assert [row.state for row in world.rows] == [JobState.COMPLETED, JobState.FAILED]
        assert [row.errors[-1]["error"] for row in world.rows[1:]] == ["hard deadline exceeded"]


def test_a_worker_beats_until_its_last_result_is_written() -> None:
    world = Simulation(1)
    leaver = worker(world, 1, grace=200.0)
    world.insert(Job(takes=100.0))
    world.run(1.0)
    worker(world, 2)
    leaver.stop(200.0)
    world.run(150.0)
    assert leaver.stopped is not None
    assert leaver.stopped.clean
    assert rescued(world) == {}
    beats = [at for at, number, output in world.beats if number == 1 and isinstance(output, RunOp)]
    assert max(beats) > 80.0


# adoption


@pytest.mark.parametrize("fault", [Fault.ANSWER_LOST, Fault.DONE_LATER])
def test_jobs_of_a_claim_without_an_answer_are_adopted_in_seconds(fault: Fault) -> None:
    for seed in range(20):
        world = Simulation(seed)
        faults = iter([fault])
        process = worker(world)
        world.run(1.0)
        world.interfere = lambda _number, run: next(faults, None) if run.op.name == "claim" else None  # noqa: B023
        world.insert(*[Job()] * 3)
        world.run(6.0)
        assert set(world.states.values()) == {JobState.COMPLETED}
        assert all(row.attempt == 1 for row in world.rows)
        assert world.told["adopted"] <= 1
        world.insert(*[Job()] * 3)
        world.run(100.0)
        assert set(world.states.values()) == {JobState.COMPLETED}
        asked = world.statements("unknown")
        assert 5 <= len(asked) <= 12, "a doubt passes"
        assert max(asked) < 80.0
        assert process.machine.unwritten == 0


def test_a_worker_that_stops_in_doubt_gives_back_what_it_did_not_know() -> None:
    world = Simulation(3)
    process = worker(world)
    world.run(1.0)
    faults = iter([Fault.ANSWER_LOST])
    world.interfere = lambda _number, run: next(faults, None) if run.op.name == "claim" else None
    world.insert(*[Job()] * 3)
    world.run_until(lambda: process.machine.last_error is not None, at_most=5, step=0.001)
    process.stop(1.0)
    world.run(world.now + 5)
    assert process.stopped is not None
    assert process.stopped.clean
    assert set(world.states.values()) == {JobState.AVAILABLE}


# the duties alone


class Refusing(MemoryStore):
    """Refuses the end of some jobs, and some inserts."""

    def __init__(self) -> None:
        super().__init__(lambda: AT, Random(1).random)
        self.refused: set[int] = set()
        self.refuses_inserts = False
        self.lost = 0

    @override
    def finalize(self, ended: Any, flush: int) -> Op[Verdicts]:
        op = super().finalize(ended, flush)
        if self.refused & {each.attempt.id for each in ended}:
            return _failing(DatabaseError("no", "22P02"))
        if self.lost:
            self.lost -= 1
            play(op)
            return _failing(DatabaseError("the connection broke", None))
        return op


def _failing(error: DatabaseError) -> Op[Any]:
    def plan() -> Plan[Any]:
        yield from ()
        raise error

    return Op("finalize", plan)


class Bench:
    """The duties of one worker over jobs that somebody else has claimed."""

    def __init__(self, *extras: str | None, max_attempts: int = 3, **config: Any) -> None:
        self.store = Refusing()
        self.out: deque[Any] = deque()
        self.made: list[tuple[Any, ...]] = []
        self.told: list[tuple[int, int]] = []
        registered: Any = {
            "k": {outcome: (follow_up(outcome, "k", self._follow),) for outcome in (Outcome.RESCUED, Outcome.EXHAUSTED)}
        }
        self.lanes = Lanes(self.out, self.store.replan, Tally())
        self.context = Context(
            self.store, WorkerConfig({"other": QueueConfig()}, **config), lambda: 0.5, self.lanes, Timers(),
            Report(self.out), DatabaseClock(), Hooked(("k",), self.out), FollowUps(registered, Intake({}, lambda: AT)),
            Tally(),
        )  # fmt: skip
        play(self.store.insert([NewJob("k", "q", "{}", max_attempts=max_attempts, extra=extra) for extra in extras]))
        self.attempts = self.claim()
        self.stale, self.overdue, self.expired = rescues(self.context, self.told.append)

    def claim(self) -> list[Attempt]:
        instance = play(self.store.register(WorkerInfo(("q",)))).instance
        play(self.store.unregister(instance))
        return list(play(self.store.claim(instance, Ring(1), [Demand("q", 100)])).attempts)

    def _follow(self, args: Any, job: Any, *more: Any) -> EnqueueRequest:
        self.made.append((job.id, job.state, *more))
        if args.get("raises"):
            raise ValueError("a follow-up that fails")
        return EnqueueRequest({"of": job.id}).kind("follow")

    def look(self, duty: Any = None, now: float = 100.0) -> float | None:
        """One look, and all that follows from it."""
        duty = self.stale if duty is None else duty
        wait: float | None = duty.said(play(duty.op()), now)
        while runs := [output for output in self.out if isinstance(output, RunOp)]:
            for run in runs:
                self.out.remove(run)
                try:
                    result = play(run.op)
                except DatabaseError as error:
                    self.lanes.failed(run.id, error, now)
                else:
                    self.lanes.done(run.id, result, now)
        return wait

    @property
    def events(self) -> list[Any]:
        return [event for output in self.out if isinstance(output, Happened) for event in output.events]

    @property
    def keys(self) -> list[str]:
        return [output.key for output in self.out if hasattr(output, "key")]


def silent(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody who is registered nowhere is silent at once, and the database has long been there."""
    find = bench.store.find_stale
    monkeypatch.setattr(bench.store, "find_stale", lambda _, limit, after: find(-1.0, limit, after))


def test_a_leader_that_does_not_know_the_kind_of_a_rescued_job_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(None, None, None)
    silent(bench, monkeypatch)
    bench.context.kinds = {"k"}
    bench.look()
    assert [key for key in bench.keys if "unknown kind" in key] == []
    assert not bench.context.unknown_kinds
    bench = Bench(None, None, None)
    silent(bench, monkeypatch)
    bench.context.kinds = {"others"}
    bench.context.hooked.kinds, bench.context.follow_ups = (), FollowUps.none()
    bench.look()
    bench.look(now=10_000.0)
    assert [key for key in bench.keys if "unknown kind" in key] == ["rescued unknown kind: k"]
    assert list(bench.context.unknown_kinds) == ["k"]


def test_for_a_while_after_the_database_was_away_nobody_is_taken_as_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(None)
    silent(bench, monkeypatch)
    bench.lanes.back_at = 95.0
    assert bench.look(now=101.0) == 4.0
    assert bench.events == []
    assert bench.look(now=105.0) is None
    assert [type(event) for event in bench.events] == [Rescued]


def test_for_a_while_after_the_database_was_away_nothing_is_overdue(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench('{"deadline":1.0}')
    find = bench.store.find_overdue
    monkeypatch.setattr(bench.store, "find_overdue", lambda late, limit, after: find(late - 5.0, limit, after))

    def ask() -> int:
        bench.lanes.run(Lane.UPKEEP, bench.store.replan(), lambda *_: None, lambda *_: None)
        id: int = bench.out.pop().id
        return id

    bench.lanes.failed(ask(), is_down(), 93.0)
    bench.lanes.done(ask(), None, 95.0)
    assert bench.look(bench.overdue, now=101.0) == 4.0
    assert bench.events == []
    assert bench.look(bench.overdue, now=105.0) is None
    assert [event.reason for event in bench.events] == [OVERDUE]


def test_the_database_was_away_when_nothing_was_answered_for_long() -> None:
    bench = Bench()
    bench.lanes.silence = 10.0
    for now, back_at in ((20.0, 20.0), (25.0, 20.0), (34.0, 20.0), (45.0, 45.0)):
        bench.lanes.run(Lane.CLAIM, bench.store.replan(), lambda *_: None, lambda *_: None)
        bench.lanes.done(bench.out.pop().id, None, now)
        assert bench.lanes.back_at == back_at


def test_a_rescued_attempt_is_told_with_its_reason_and_its_job_runs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench('{"tags":["t"]}')
    silent(bench, monkeypatch)
    bench.look()
    (event,) = bench.events
    assert (event.reason, event.job.state, event.job.tags) == (STALE, JobState.RETRYABLE, ["t"])
    row = next(row for row in bench.store.rows if row.kind == "k")
    assert (row.state, row.attempt, row.errors, row.run_at) == (
        JobState.RETRYABLE, 1, event.job.errors, event.job.run_at
    )  # fmt: skip
    assert bench.told == [(bench.attempts[0].id, bench.attempts[0].run_lease)]
    assert bench.context.tally.total("awa.job.rescued") == 1


@pytest.mark.parametrize("dead_letters", [True, False])
def test_on_the_last_attempt_the_job_fails_and_exhausted_is_told_after_it(
    monkeypatch: pytest.MonkeyPatch, dead_letters: bool
) -> None:
    bench = Bench(None, max_attempts=1, dead_letters=dead_letters)
    silent(bench, monkeypatch)
    bench.look()
    assert [type(event) for event in bench.events] == [Rescued, Exhausted]
    assert "presumed dead" in bench.events[1].error
    row = next(row for row in bench.store.rows if row.kind == "k")
    assert (row.state, row.dlq_reason) == (JobState.FAILED, DeadLetter.EXHAUSTED if dead_letters else None)


def test_follow_ups_are_told_the_reason_and_inserted_after_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(None, max_attempts=1)
    silent(bench, monkeypatch)
    bench.look()
    error = "rescued: heartbeat stale, its worker is presumed dead"
    assert bench.made == [(1, JobState.FAILED, STALE), (1, JobState.FAILED, error, 1)]
    assert [json.loads(row.args_json)["of"] for row in bench.store.rows if row.kind == "follow"] == [1, 1]


def test_a_follow_up_that_fails_leaves_the_rescue_and_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(None, None)
    silent(bench, monkeypatch)
    monkeypatch.setattr(bench.store, "insert", lambda *_, **__: _failing(DatabaseError("no", "22P02")))
    bench.look()
    assert {row.state for row in bench.store.rows} == {JobState.RETRYABLE}
    assert bench.keys.count("follow-up of a rescue lost: k") == 2


def test_one_bad_row_does_not_hold_up_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(*[None] * 9)
    silent(bench, monkeypatch)
    bench.store.refused = {4}
    bench.look()
    states = {row.id: row.state for row in bench.store.rows if row.kind == "k"}
    assert states.pop(4) is JobState.RUNNING
    assert set(states.values()) == {JobState.RETRYABLE}
    assert bench.keys.count("rescue failed") == 1
    bench.store.refused.clear()
    bench.look()
    assert {row.state for row in bench.store.rows if row.kind == "k"} == {JobState.RETRYABLE}


def test_an_answer_that_was_lost_is_asked_for_again_and_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(None, None)
    silent(bench, monkeypatch)
    bench.store.lost = 1
    bench.look()
    assert [type(event) for event in bench.events] == [Rescued, Rescued]
    assert bench.keys.count("rescue failed") == 0


def test_what_somebody_else_ended_meanwhile_is_told_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(None, None)
    silent(bench, monkeypatch)
    page = play(bench.stale.op())
    transition = conclude(bench.attempts[0], STALE, AT, lambda: 0.5)
    assert play(bench.store.finalize([Ended(bench.attempts[0], transition)], 5)) == [Verdict.ACCEPTED]
    monkeypatch.setattr(bench.store, "find_stale", _giving(page))
    bench.look()
    assert [event.job.id for event in bench.events] == [2]


def test_what_an_attempt_registers_after_it_was_found_goes_with_its_rescue(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(None)
    silent(bench, monkeypatch)
    page = play(bench.stale.op())
    assert len(page.stranded) == 1
    monkeypatch.setattr(bench.store, "find_stale", _giving(page))
    finalize, flushed = bench.store.finalize, list[bool]()

    def noting(ended: Sequence[Ended], flush: int) -> Op[Verdicts]:
        flushed.extend(each.flushed for each in ended)
        return finalize(ended, flush)

    monkeypatch.setattr(bench.store, "finalize", noting)
    bench.look()
    assert flushed == [True]


def _giving(page: Any) -> Callable[..., Op[Any]]:
    def find(*_: Any) -> Op[Any]:
        def plan() -> Plan[Any]:
            yield from ()
            return page

        return Op("find_stale", plan)

    return find


def test_overdue_attempts_are_ended_by_the_first_look(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench('{"deadline":1.0}', '{"deadline":100.0}')
    find = bench.store.find_overdue
    monkeypatch.setattr(bench.store, "find_overdue", lambda late, limit, after: find(late - 5.0, limit, after))
    assert bench.look(bench.overdue) is None
    assert [(event.job.id, event.reason) for event in bench.events] == [(1, OVERDUE)]


def test_a_page_that_is_full_is_followed_by_the_next_one_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(*[None] * 5)
    find = bench.store.find_stale
    monkeypatch.setattr(bench.store, "find_stale", lambda _, limit, after: find(-1.0, 2, after))
    assert [bench.look(now=100.0 + step) for step in range(3)] == [0.0, 0.0, None]
    assert len(bench.events) == 5
