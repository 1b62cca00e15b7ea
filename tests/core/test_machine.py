"""The worker machine, event by event: what it says to late, double and strange ones, and how much it asks for."""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from typing_extensions import override

from awa_proto.errors import DatabaseError, SchemaNotMigrated
from awa_proto.events import AnyEvent, Completed
from awa_proto.job import Attempt, JobState
from awa_proto.outcome import Raised, RetryAfter, Returned
from awa_proto.plan import Op
from awa_proto.store import Claimed, Demand, Ended, Promoted, Registration, Ring, Verdict, Verdicts, Wait, Waited
from awa_proto.store.memory import MemoryStore
from awa_proto.store.upkeep import Leadership
from awa_proto.task import Task
from awa_proto.worker.bucket import TokenBucket
from awa_proto.worker.config import QueueConfig, WorkerConfig
from awa_proto.worker.events import (
    CancelJob,
    DrainAsked,
    Drained,
    Emit,
    Event,
    Happened,
    JobEnded,
    ListenLost,
    OpDone,
    OpFailed,
    Output,
    Reason,
    RunOp,
    StartJob,
    StopAsked,
    Stopped,
    Woken,
)
from awa_proto.worker.lifecycle import Phase
from awa_proto.worker.timers import Timer
from awa_proto.worker.worker import WorkerMachine
from benchmarks.machine import drain

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def decode(args: str) -> Any:
    if args == "bad":
        raise ValueError("no such \0 thing")
    return args


class Spy(MemoryStore):
    """Notes what it is asked for; the test answers by hand."""

    def __init__(self) -> None:
        super().__init__(lambda: NOON, lambda: 0.5)
        self.demands: list[Sequence[Demand]] = []
        self.flushes: list[tuple[Sequence[Ended], int]] = []
        self.looks: list[datetime | None] = []
        self.announcements: list[tuple[list[str], list[str]]] = []
        self.waits: list[Sequence[Wait]] = []
        self.leaves: list[Sequence[Wait]] = []

    @override
    def wait(self, waits: Sequence[Wait]) -> Op[list[Waited]]:
        self.waits.append(waits)
        return super().wait(waits)

    @override
    def leave(self, waits: Sequence[Wait]) -> Op[list[int]]:
        self.leaves.append(waits)
        return super().leave(waits)

    @override
    def promote(self, limit: int, since: datetime | None = None, *, canonical: Sequence[str] = ()) -> Op[Promoted]:
        self.looks.append(since)
        return super().promote(limit, since, canonical=canonical)

    @override
    def announce(self, queues: Sequence[str], held: Sequence[str] = ()) -> Op[None]:
        self.announcements.append((list(queues), list(held)))
        return super().announce(queues, held)

    @override
    def claim(self, instance: int, ring: Ring, demands: Sequence[Demand], *, advance: bool = False) -> Op[Claimed]:
        self.demands.append(demands)
        return super().claim(instance, ring, demands, advance=advance)

    @override
    def finalize(self, ended: Sequence[Ended], flush: int) -> Op[Verdicts]:
        self.flushes.append((ended, flush))
        return super().finalize(ended, flush)


class Bench:
    """A machine on the bench: one step at a time, at a clock turned by hand. Somebody else leads, unless a test wants it."""

    follows = True

    def __init__(
        self,
        queue: QueueConfig | None = None,
        *,
        queues: dict[str, QueueConfig] | None = None,
        hooked: Collection[str] = (),
        **settings: Any,
    ) -> None:
        self.now = 100.0
        self.store = Spy()
        self.machine = WorkerMachine(
            store=self.store,
            tasks={"k": Task("k", print, decode, is_async=False)},
            config=WorkerConfig(queues or {"q": queue or QueueConfig(max_workers=2)}, **settings),
            random=lambda: 0.5,
            hooked=hooked,
        )
        self.said: list[Output] = []
        self.ops: dict[str, RunOp] = {}
        self.machine.start(self.now)
        self._drain()

    def hear(self, *events: Event) -> list[Output]:
        before = len(self.said)
        self.machine.handle(events, self.now)
        self._drain()
        return self.said[before:]

    def wait(self, seconds: float) -> list[Output]:
        before, end = len(self.said), self.now + seconds
        while (deadline := self.machine.next_deadline()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.machine.handle_timeout(self.now)
            self._drain()
        self.now = end
        return self.said[before:]

    def _drain(self) -> None:
        while (output := self.machine.poll_output()) is not None:
            if self.follows and isinstance(output, RunOp) and output.op.name == "lead":
                self.machine.handle([OpDone(output.id, Leadership(1, False, 1, 1e9))], self.now)
                continue
            self.said.append(output)
            if isinstance(output, RunOp):
                self.ops[output.op.name] = output

    def done(self, name: str, result: Any = None) -> list[Output]:
        return self.hear(OpDone(self.ops.pop(name).id, result))

    def failed(self, name: str, sqlstate: str | None) -> list[Output]:
        return self.hear(OpFailed(self.ops.pop(name).id, DatabaseError("failed", sqlstate)))

    def running(self) -> "Bench":
        """Registered, promoted, listening, with a claim under way."""
        self.done("register", Registration(7, Ring(1), {}, NOON))
        self.done("promote", Promoted(0))
        self.done("withdraw")
        return self

    def claimed(self, *attempts: Attempt, **facts: Any) -> list[StartJob]:
        said = self.done("claim", Claimed(attempts, facts.pop("version", 1), NOON, **facts))
        return [output for output in said if isinstance(output, StartJob)]


def attempt(
    id: int = 1, *, kind: str = "k", args: str = "{}", number: int = 1, extra: str | None = None, queue: str = "q"
) -> Attempt:
    return Attempt(0, id, 0, 1000 + id, id, queue, 2, kind, args, number, 3, NOON, NOON, extra)


def of(kind: type, said: Sequence[Output]) -> list[Any]:
    return [output for output in said if isinstance(output, kind)]


def test_it_registers_first_and_then_claims_promotes_and_listens() -> None:
    bench = Bench()
    assert [output.op.name for output in of(RunOp, bench.said)] == ["register"]
    said = bench.done("register", Registration(7, Ring(1), {}, NOON))
    assert sorted(output.op.name for output in of(RunOp, said)) == ["claim", "promote", "withdraw"]
    assert (bench.machine.phase, bench.machine.instance) == (Phase.RUNNING, 7)


def test_a_plan_that_finds_no_schema_is_waited_for() -> None:
    bench = Bench()
    (warning,) = of(Emit, bench.hear(OpFailed(bench.ops["register"].id, SchemaNotMigrated("run awa migrate"))))
    assert (warning.key, warning.fields["failure"]) == ("register failed", "not migrated")
    assert [output.op.name for output in of(RunOp, bench.wait(0.1))] == ["register"]


def test_it_asks_for_what_is_free_and_starts_what_comes() -> None:
    bench = Bench().running()
    assert bench.store.demands[-1] == [Demand("q", 2)]
    (start,) = bench.claimed(attempt())
    assert (start.attempt.id, start.args, start.task.kind) == (1, "{}", "k")
    bench.wait(0.01)
    assert bench.store.demands[-1] == [Demand("q", 1)]


def test_a_slot_is_free_when_the_handler_ended_before_its_result_is_written() -> None:
    bench = Bench().running()
    bench.claimed(attempt(1), attempt(2))
    bench.wait(1.0)
    said = bench.hear(JobEnded(attempt(1), Returned(None)))
    assert [output.op.name for output in of(RunOp, said)] == ["claim", "finalize"]
    assert bench.store.demands[-1] == [Demand("q", 1)]
    assert bench.machine.unwritten == 1


def test_an_ending_that_comes_twice_counts_once() -> None:
    bench = Bench().running()
    bench.claimed(attempt())
    ended = JobEnded(attempt(), Returned(None))
    bench.hear(ended, ended)
    bench.hear(ended)
    assert bench.machine.queues["q"].running == 0
    assert bench.machine.unwritten == 1
    assert [len(ended) for ended, _ in bench.store.flushes] == [1]


def test_an_answer_that_comes_twice_or_to_nothing_is_ignored() -> None:
    bench = Bench().running()
    claim = bench.ops["claim"].id
    bench.claimed(attempt())
    assert not of(
        StartJob, bench.hear(OpDone(claim, Claimed([attempt(2)], 1, NOON)), OpFailed(claim, DatabaseError("x")))
    )
    assert not bench.hear(OpDone(999, None))


def test_an_unknown_kind_fails_for_good_without_a_handler() -> None:
    bench = Bench().running()
    assert not bench.claimed(attempt(kind="nobody"))
    ((ended,), _) = bench.store.flushes[0]
    assert ended.transition.to is JobState.FAILED
    assert ended.transition.entry is not None
    assert ended.transition.entry["error"] == "UnknownJobKind: unknown job kind: nobody"
    assert ended.transition.entry["terminal"] is True


def test_args_that_do_not_decode_fail_for_good() -> None:
    bench = Bench().running()
    assert not bench.claimed(attempt(args="bad"))
    ((ended,), _) = bench.store.flushes[0]
    assert ended.transition.to is JobState.FAILED
    assert ended.transition.entry is not None
    assert ended.transition.entry["error"].startswith("ArgsRefused: ValueError: no such")


def test_times_of_an_outcome_are_database_time() -> None:
    bench = Bench().running()
    bench.claimed(attempt())
    bench.wait(3.0)
    bench.hear(JobEnded(attempt(), Raised(ValueError("x"))))
    ((ended,), _) = bench.store.flushes[0]
    assert ended.transition.at == NOON + timedelta(seconds=3)


def test_a_full_answer_is_followed_by_the_next_claim_only_when_something_is_wanted() -> None:
    bench = Bench().running()
    assert not of(RunOp, bench.claimed(attempt(1), attempt(2)))
    assert "claim" not in bench.ops
    bench.wait(0.05)
    bench.hear(JobEnded(attempt(1), Returned(None)))
    assert bench.store.demands[-1] == [
        Demand("q", 1 + 4)
    ]  # 0.1 s of work for two slots at 50 ms each, and the free slot


def test_polls_double_after_an_empty_claim_and_a_notification_starts_them_over() -> None:
    bench = Bench(poll_interval=1.0).running()
    gaps = []
    for _ in range(11):
        before = bench.now
        bench.claimed()
        if "announce" in bench.ops:
            bench.ops.pop("announce")
        while "claim" not in bench.ops:
            deadline = bench.machine.next_deadline()
            assert deadline is not None
            bench.wait(deadline - bench.now)
            if "promote" in bench.ops:
                bench.done("promote", Promoted(0))
        gaps.append(round(bench.now - before, 4))
    assert gaps[0] == 0  # the opening of the listening connection came during the first claim
    assert gaps[1:] == pytest.approx([1.05 * min(0.005 * 2**i, 1.0) for i in range(10)], abs=1e-3)
    bench.claimed()
    bench.hear(Woken("q"))
    assert "claim" in bench.ops


def test_a_notification_during_a_claim_is_not_forgotten() -> None:
    bench = Bench().running()
    bench.hear(Woken("q"))
    bench.claimed()
    assert "claim" in bench.ops


def test_notifications_for_other_queues_and_strange_ones_do_nothing() -> None:
    bench = Bench().running()
    bench.claimed()
    bench.ops.clear()
    for payload in ("other", "", "!", "!x:1", "!1:", "!1", "!9:9"):
        assert not bench.hear(Woken(payload))


def test_a_cancellation_by_a_person_cancels_the_handler_and_writes_nothing() -> None:
    bench = Bench().running()
    bench.claimed(attempt())
    assert bench.hear(Woken("!1:1001"), Woken("!1:1001")) == [CancelJob(attempt(), Reason.CANCELLED)]
    assert bench.machine.queues["q"].running == 1
    bench.hear(JobEnded(attempt(), Raised(RuntimeError())))
    assert bench.machine.queues["q"].running == 0
    assert not bench.store.flushes


def test_a_newer_ring_is_read_off_the_path_of_claims() -> None:
    bench = Bench().running()
    said = bench.done("claim", Claimed([], 5, NOON))
    assert "survey" in [output.op.name for output in of(RunOp, said + bench.wait(0.6))]
    bench.done("survey", (Ring(5, (1, 2)), {}))
    assert bench.machine.phase is Phase.RUNNING


def test_a_resent_flush_keeps_its_number_and_a_stale_verdict_is_one_warning_with_its_job() -> None:
    bench = Bench().running()
    bench.claimed(attempt(1), attempt(2))
    bench.hear(*[JobEnded(attempt(i), Returned(None)) for i in (1, 2)])
    bench.failed("finalize", None)
    bench.wait(0.1)
    (first, number), (second, again) = bench.store.flushes
    assert (first, number) == (second, again)
    assert 0 <= number < 2**62
    said = bench.done("finalize", [Verdict.STALE, Verdict.STALE])
    warnings = of(Emit, [output for output in said if getattr(output, "key", "") == "stale result"])
    assert [(warning.fields["job"], warning.fields["kind"], warning.fields["attempt"]) for warning in warnings] == [
        (1, "k", 1),
        (2, "k", 1),
    ]
    assert bench.machine.tally.total("awa.result.stale") == 2
    assert bench.machine.unwritten == 0


def test_again_sends_only_the_losers_under_the_same_number() -> None:
    bench = Bench().running()
    bench.claimed(attempt(1), attempt(2))
    bench.hear(*[JobEnded(attempt(i), Returned(None)) for i in (1, 2)])
    bench.done("finalize", [Verdict.ACCEPTED, Verdict.AGAIN])
    (_, number), (ended, again) = bench.store.flushes
    assert [one.attempt.id for one in ended] == [2]
    assert number == again


def test_a_result_refused_twice_is_dropped_with_an_error() -> None:
    bench = Bench().running()
    bench.claimed(attempt())
    bench.hear(JobEnded(attempt(), Returned(None)))
    bench.failed("finalize", "22P02")
    ((ended,), _) = bench.store.flushes[-1]
    assert ended.transition.to is JobState.FAILED
    said = bench.failed("finalize", "22P02")
    assert [output.key for output in of(Emit, said)] == ["result dropped"]
    assert bench.machine.unwritten == 0


def test_a_lost_listening_connection_is_reopened_only_after_the_op_on_it_was_answered() -> None:
    bench = Bench()
    bench.done("register", Registration(7, Ring(1), {}, NOON))
    bench.hear(ListenLost(DatabaseError("gone")))
    listen = bench.ops["withdraw"]
    bench.wait(5.0)
    assert bench.ops["withdraw"] is listen
    bench.done("withdraw")
    bench.wait(0.3)
    assert {"withdraw", "announce"} & bench.ops.keys()


def test_after_stopped_every_input_is_ignored() -> None:
    bench = Bench()
    assert not of(Stopped, bench.hear(StopAsked(1.0)))
    assert of(Stopped, bench.failed("register", "57P03")) == [Stopped(clean=True)]
    assert not bench.hear(
        Woken("q"), JobEnded(attempt(), Returned(None)), StopAsked(0.0), ListenLost(DatabaseError("x"))
    )
    assert bench.machine.next_deadline() is None
    assert not bench.wait(100.0)


def test_a_worker_registered_while_stopping_unregisters() -> None:
    bench = Bench()
    bench.hear(StopAsked(1.0))
    said = bench.done("register", Registration(7, Ring(1), {}, NOON))
    assert [output.op.name for output in of(RunOp, said)] == ["unregister"]
    assert of(Stopped, bench.done("unregister")) == [Stopped(clean=True)]


def test_a_stop_before_the_start_is_a_stop() -> None:
    machine = WorkerMachine(store=Spy(), tasks={}, config=WorkerConfig({"q": QueueConfig()}), random=lambda: 0.5)
    machine.handle([StopAsked(1.0)], 0.0)
    assert machine.poll_output() == Stopped(clean=True)


@pytest.mark.parametrize(
    ("asked", "left"),
    [
        ((None,), 30.0),
        ((10.0,), 10.0),
        ((50.0,), 50.0),
        ((10.0, None), 10.0),
        ((50.0, None), 50.0),
        ((None, None), 30.0),
        ((None, 50.0), 30.0),
        ((None, 5.0), 5.0),
        ((10.0, 20.0), 10.0),
        ((10.0, 5.0, None), 5.0),
    ],
)
def test_a_second_stop_only_shortens_the_grace_and_none_is_what_is_configured(
    asked: tuple[float | None, ...], left: float
) -> None:
    bench = Bench(grace=30.0).running()
    bench.claimed(attempt())
    for grace in asked:
        bench.hear(StopAsked(grace))
    assert not of(CancelJob, bench.wait(left - 0.1))
    assert bench.machine.phase is Phase.DRAINING
    assert of(CancelJob, bench.wait(0.2))


def test_a_bucket_starts_full_gives_back_and_never_holds_more_than_its_burst() -> None:
    bucket = TokenBucket(2.0, 3)
    assert bucket.available(1000.0) == 3
    bucket.take(3)
    assert bucket.available(1000.0) == 0
    assert bucket.ready_at(1000.0, 5) == 1000.5
    assert bucket.available(1000.5) == 1
    bucket.give_back(1)
    assert bucket.available(1000.5) == 2
    assert bucket.available(2000.0) == 3


def test_the_halves_of_a_refused_flush_keep_its_number_since_it_may_have_been_written_before() -> None:
    bench = Bench().running()
    bench.claimed(attempt(1), attempt(2))
    bench.hear(*[JobEnded(attempt(i), Returned(None)) for i in (1, 2)])
    bench.failed("finalize", None)
    bench.wait(0.1)
    bench.failed("finalize", "22P02")
    bench.done("finalize", [Verdict.ACCEPTED])
    numbers = [number for _, number in bench.store.flushes]
    assert [[one.attempt.id for one in ended] for ended, _ in bench.store.flushes] == [[1, 2], [1, 2], [1], [2]]
    assert len(set(numbers)) == 1


def test_an_announcement_that_took_long_is_followed_by_a_claim_at_once() -> None:
    bench = Bench().running()
    for _ in range(8):
        bench.claimed()
        bench.wait(0.7)
        for name in ("promote", "survey", "replan"):
            if name in bench.ops:
                answers = {"promote": Promoted(0), "survey": (Ring(1), {}), "replan": None}
                bench.done(name, answers[name])
    bench.claimed()
    bench.wait(0.01)
    assert "claim" not in bench.ops
    bench.done("announce")
    assert "claim" in bench.ops


def test_nothing_is_claimed_or_started_while_too_many_results_are_unwritten() -> None:
    bench = Bench(max_unwritten=1).running()
    for first in (1, 3):
        bench.claimed(attempt(first), attempt(first + 1))
        bench.wait(1.0)
        bench.hear(JobEnded(attempt(first), Returned(None)), JobEnded(attempt(first + 1), Returned(None)))
    assert bench.machine.unwritten == 4
    assert "claim" not in bench.ops
    assert not [output for output in bench.wait(1.0) if isinstance(output, RunOp) and output.op.name == "claim"]
    bench.done("finalize", [Verdict.ACCEPTED] * 2)
    assert "claim" in bench.ops


def leaving_with_a_late_result() -> Bench:
    """A worker that gave up waiting for a handler and says goodbye, when the handler ends after all."""
    bench = Bench().running()
    bench.claimed(attempt())
    bench.wait(0.1)
    bench.hear(StopAsked(0.0))
    bench.claimed()
    bench.wait(5.0)
    assert bench.machine.phase is Phase.LEAVING
    bench.hear(JobEnded(attempt(), Raised(RuntimeError())))
    return bench


def test_a_result_that_comes_while_leaving_is_written_before_the_end() -> None:
    bench = leaving_with_a_late_result()
    assert not of(Stopped, bench.done("unregister"))
    assert of(Stopped, bench.done("finalize", [Verdict.ACCEPTED])) == [Stopped(clean=True)]


def test_a_result_that_comes_while_leaving_and_cannot_be_written_is_not_a_clean_stop() -> None:
    bench = leaving_with_a_late_result()
    bench.done("unregister")
    assert of(Stopped, bench.wait(2.0)) == [Stopped(clean=False)]


def test_a_claim_that_was_under_way_at_the_question_does_not_answer_it() -> None:
    bench = Bench().running()
    bench.claimed()
    bench.hear(Woken("q"))
    bench.hear(DrainAsked("?"))
    assert not of(Drained, bench.claimed())
    bench.done("survey", (Ring(1), {}))
    if "promote" in bench.ops or bench.wait(0.2):
        bench.done("promote", Promoted(0))
    assert of(Drained, bench.said) == []
    bench.claimed()
    assert of(Drained, bench.said) == [Drained("?")]


def _claims_nothing_more(bench: Bench) -> None:
    while bench.ops.keys() & {"claim", "replan"}:
        if "claim" in bench.ops:
            bench.claimed()
        else:
            bench.done("replan")


def test_a_question_is_answered_when_what_was_due_has_run_and_not_at_the_next_look_for_due_jobs() -> None:
    bench = Bench().running()
    bench.claimed()
    bench.hear(DrainAsked("?"))
    bench.done("survey", (Ring(1), {}))
    bench.wait(0.2)
    bench.done("promote", Promoted(1, frozenset({"q"}), None, NOON))
    while not bench.claimed(attempt()):
        pass
    _claims_nothing_more(bench)
    assert of(Drained, bench.said) == [], "it runs"
    bench.hear(JobEnded(attempt(), Returned(None)))
    bench.done("finalize", [Verdict.ACCEPTED])
    _claims_nothing_more(bench)
    assert of(Drained, bench.said) == [Drained("?")]


@pytest.mark.parametrize(("again", "holds_up"), [(Raised(ValueError()), False), (RetryAfter(0), True)])
def test_a_retry_that_was_written_during_a_look_for_due_jobs_holds_up_no_answer_unless_it_is_due(
    again: Any, holds_up: bool
) -> None:
    bench = Bench().running()
    bench.claimed(attempt())
    bench.hear(DrainAsked("?"))
    bench.done("survey", (Ring(1), {}))
    bench.wait(0.2)
    ended = again if isinstance(again, Raised) else Returned(again)
    bench.hear(JobEnded(attempt(), ended))
    bench.done("finalize", [Verdict.ACCEPTED])
    bench.done("promote", Promoted(0))
    _claims_nothing_more(bench)
    assert of(Drained, bench.said) == ([] if holds_up else [Drained("?")])


def test_what_canonical_storage_holds_is_looked_for_before_the_question_is_answered() -> None:
    bench = Bench().running()
    bench.hear(DrainAsked("?"))
    bench.claimed()
    bench.claimed()
    bench.done("survey", (Ring(1, (), canonical=True), {}))
    bench.done("survey", (Ring(1, (), canonical=True), {}))  # it was used, and so it was looked into
    bench.wait(0.2)
    bench.done("promote", Promoted(0))
    assert of(Drained, bench.said) == [], "a claim is under way that looks there"
    bench.claimed()
    assert of(Drained, bench.said) == [Drained("?")]


# what hooks are told


def hooked(*ids: int) -> Bench:
    """A bench whose jobs of kind "k" have hooks, with these attempts claimed."""
    bench = Bench(hooked={"k"}).running()
    bench.claimed(*(attempt(id) for id in ids))
    return bench


def events(said: Sequence[Output]) -> list[AnyEvent]:
    return [event for output in of(Happened, said) for event in output.events]


def names(said: Sequence[Output]) -> list[str]:
    return [type(event).__name__ for event in events(said)]


def test_a_machine_without_hooks_tells_nothing() -> None:
    bench = Bench().running()
    bench.claimed(attempt(1))
    bench.hear(JobEnded(attempt(1), Returned(None)))
    bench.done("finalize", [Verdict.ACCEPTED])
    assert of(Happened, bench.said) == []


def test_started_is_told_before_the_handler_is_and_an_end_only_when_it_is_written() -> None:
    bench = hooked(1)
    first = [type(output) for output in bench.said if isinstance(output, (Happened, StartJob))]
    assert first == [Happened, StartJob]
    bench.now += 1.5
    assert of(Happened, bench.hear(JobEnded(attempt(1), Returned(None)))) == []
    (told,) = events(bench.done("finalize", [Verdict.ACCEPTED]))
    assert isinstance(told, Completed)
    assert told.duration == timedelta(seconds=1.5)
    assert told.job.state is JobState.COMPLETED


@pytest.mark.parametrize("verdict", [Verdict.STALE, Verdict.DUPLICATE])
def test_no_event_of_a_result_that_is_stale_or_ended_as_a_duplicate(verdict: Verdict) -> None:
    bench = hooked(1)
    bench.hear(JobEnded(attempt(1), Raised(ValueError())))
    assert of(Happened, bench.done("finalize", [verdict])) == []


def test_a_result_that_must_be_sent_again_is_told_when_it_is_in() -> None:
    bench = hooked(1, 2)
    bench.hear(JobEnded(attempt(1), Returned(None)), JobEnded(attempt(2), Returned(None)))
    assert [event.job.id for event in events(bench.done("finalize", [Verdict.AGAIN, Verdict.ACCEPTED]))] == [2]
    assert [event.job.id for event in events(bench.done("finalize", [Verdict.ACCEPTED]))] == [1]


def test_a_flush_whose_answer_was_lost_is_told_once() -> None:
    bench = hooked(1)
    bench.hear(JobEnded(attempt(1), Returned(None)))
    assert of(Happened, bench.failed("finalize", None)) == []
    bench.wait(1.0)
    assert names(bench.done("finalize", [Verdict.ACCEPTED])) == ["Completed"]


def test_what_goes_back_unstarted_is_told_of_neither_way() -> None:
    bench = hooked(1, 2, 3)
    bench.hear(StopAsked(60.0))
    assert names(bench.said) == ["Started", "Started"]
    assert of(Happened, bench.done("finalize", [Verdict.ACCEPTED])) == []


def test_args_the_handler_cannot_read_are_told_as_exhausted_and_never_as_started() -> None:
    bench = Bench(hooked={"k"}).running()
    bench.claimed(attempt(1, args="bad"))
    bench.done("finalize", [Verdict.ACCEPTED])
    assert names(bench.said) == ["Exhausted"]


def test_every_timer_rings_somebody() -> None:
    assert Bench().machine._rings.keys() == set(Timer)


def test_what_measures_the_machine_alone_has_it_work_all_jobs() -> None:
    assert 0 < drain(300, 50) < 300
