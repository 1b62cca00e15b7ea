"""Handlers that wait, event by event: what wakes them, what their deadlines do meanwhile, and what is forgotten."""

import contextlib
import heapq
from collections.abc import Sequence
from unittest.mock import patch

from awa_proto.errors import CallbackNotFound
from awa_proto.handler import JobBase
from awa_proto.job import Attempt, JobState
from awa_proto.outcome import DeadLetter, Raised, Returned, WaitForCallback
from awa_proto.recording import Recording
from awa_proto.store import Promoted, Ring, Verdict, Verdicts, Wait, Waited
from awa_proto.worker.config import Liveness, QueueConfig
from awa_proto.worker.events import (
    CancelJob,
    Emit,
    Happened,
    JobEnded,
    Output,
    Reason,
    RunOp,
    StartJob,
    WaitAsked,
    WaitLeft,
    WaitOver,
    Woken,
)
from awa_proto.worker.running import Running
from awa_proto.worker.tally import STALE
from tests.core.test_machine import Bench, attempt, of

ONE = attempt(extra='{"deadline":10.0}')
ASKED, NOTHING = WaitAsked(ONE, "a"), [Waited(is_over=False)]


def started(*attempts: Attempt, poll_interval: float = 2.0) -> Bench:
    bench = Bench(QueueConfig(max_workers=2), poll_interval=poll_interval).running()
    bench.claimed(*attempts)
    return bench


def asks(said: Sequence[Output]) -> int:
    return sum(output.op.name == "wait" for output in of(RunOp, said))


def leaves(said: Sequence[Output]) -> int:
    return sum(output.op.name == "leave" for output in of(RunOp, said))


def idle(bench: Bench, seconds: float) -> list[Output]:
    """Time passes, and whatever else is asked on the same connection is answered."""
    said: list[Output] = []
    for _ in range(round(seconds * 10)):
        said += bench.wait(0.1)
        for name, answer in (("promote", Promoted(0)), ("survey", (Ring(1), {})), ("replan", None)):
            if name in bench.ops:
                said += bench.done(name, answer)
    return said


def test_a_notification_is_looked_after_at_once_and_the_handler_goes_on_with_what_came() -> None:
    bench = started(ONE)
    assert asks(bench.hear(ASKED)) == 1
    bench.done("wait", NOTHING)
    assert asks(bench.hear(Woken(f"^{ONE.id}:{ONE.run_lease}"))) == 1
    said = bench.done("wait", [Waited(is_over=True, result='{"n":1}')])
    assert of(WaitOver, said) == [WaitOver(ONE, "a", '{"n":1}')]
    assert asks(bench.hear(Woken(f"^{ONE.id}:{ONE.run_lease}"))) == 0, "nobody waits any more"


def test_a_notification_that_is_lost_costs_one_poll_interval() -> None:
    bench = started(ONE, attempt(2))
    bench.hear(ASKED, WaitAsked(attempt(2), "b"))
    bench.done("wait", NOTHING * 2)
    assert asks(idle(bench, 1.9)) == 0
    assert asks(idle(bench, 0.2)) == 1, "one statement for all"
    said = bench.done("wait", [Waited(is_over=True), Waited(is_over=False)])
    assert of(WaitOver, said) == [WaitOver(ONE, "a", None)]


def test_the_deadline_stands_still_and_then_has_what_was_left() -> None:
    bench = started(ONE)
    idle(bench, 4.0)
    bench.hear(ASKED)
    bench.done("wait", NOTHING)
    for _ in range(50):
        assert of(CancelJob, idle(bench, 2.0)) == []
        if "wait" in bench.ops:
            bench.done("wait", NOTHING)
    bench.hear(Woken(f"^{ONE.id}:{ONE.run_lease}"))
    idle(bench, 0.2)
    bench.done("wait", [Waited(is_over=True, result="1")])
    assert of(CancelJob, idle(bench, 5.9)) == []
    assert of(CancelJob, idle(bench, 0.2)) == [CancelJob(ONE, Reason.DEADLINE)]


def test_a_handler_that_leaves_says_so_and_its_deadline_goes_on() -> None:
    bench = started(ONE)
    bench.hear(ASKED)
    bench.done("wait", NOTHING)
    idle(bench, 1.0)
    assert "leave" in {output.op.name for output in of(RunOp, bench.hear(WaitLeft(ONE, "a")))}
    bench.done("leave", [])
    assert of(CancelJob, idle(bench, 9.9)) == []
    assert of(CancelJob, idle(bench, 0.2)) == [CancelJob(ONE, Reason.DEADLINE)]


def test_that_a_handler_has_left_is_written_later_where_somebody_holds_its_callback() -> None:
    bench = started(ONE, attempt(2))
    bench.hear(ASKED, WaitAsked(attempt(2), "b"))
    bench.done("wait", NOTHING * 2)
    assert leaves(bench.hear(WaitLeft(ONE, "a"), WaitLeft(attempt(2), "b"))) == 1
    assert leaves(bench.done("leave", [1])) == 0
    assert leaves(idle(bench, 1.9)) == 0
    assert leaves(idle(bench, 0.2)) == 1, "with the next look"
    assert [said_of(wait)[0] for wait in bench.store.leaves[-1]] == ["b"]
    assert leaves(bench.done("leave", [0])) == 0
    assert leaves(bench.hear(WaitAsked(attempt(2), "c"))) == 0
    looking(bench, 6.0)
    assert len(bench.store.leaves) == 2, "it waits for another one"
    assert leaves(bench.hear(WaitLeft(attempt(2), "c"))) == 1
    bench.hear(JobEnded(attempt(2), Returned(None)))
    assert leaves(bench.done("leave", [0])) == 0
    assert leaves(idle(bench, 10.0)) == 0, "it has ended, and takes its callback along"


def test_what_a_worker_hears_costs_the_same_however_many_handlers_wait() -> None:
    costs: list[tuple[int, int]] = []
    for waiting in (1, 1000):
        attempts = [attempt(n, extra=ONE.extra) for n in range(waiting)]
        bench = Bench(QueueConfig(max_workers=1000), poll_interval=2.0).running()
        bench.claimed(*attempts)
        with patch.object(heapq, "heapify", wraps=heapq.heapify) as heaped:
            bench.hear(*(WaitAsked(each, str(each.id)) for each in attempts))
            bench.done("wait", NOTHING * waiting)
        with patch.object(Running, "runs", autospec=True, side_effect=Running.runs) as asked:
            for _ in range(10):
                bench.hear(Woken("nobody"))
        costs.append((asked.call_count, heaped.call_count))
    assert costs[0] == (0, 0)
    assert costs[1] < (1, 20)


# how long it stood still


def said_of(wait: Wait) -> tuple[str, float]:
    return wait.callback_id, round(wait.waited, 6)


def looking(bench: Bench, seconds: float) -> None:
    """Time passes, and nothing comes."""
    for _ in range(round(seconds * 10)):
        idle(bench, 0.1)
        if "wait" in bench.ops:
            bench.done("wait", NOTHING)


def test_each_look_says_how_long_a_handler_has_waited_when_it_is_sent() -> None:
    bench = started(ONE, attempt(2))
    at = bench.now
    bench.hear(ASKED, WaitAsked(attempt(2), "b"))
    for _ in range(10):
        first, second = bench.store.waits[-1]
        assert -1e-6 < bench.now - at - first.waited < 0.1001
        assert second.waited == 0.0, "it has no deadline"
        bench.failed("wait", None)
        while "wait" not in bench.ops:
            idle(bench, 0.1)
    assert bench.now - at > 5.0


def test_that_a_handler_waits_is_tried_twice_in_the_time_in_which_nothing_is_overdue_after_an_outage() -> None:
    bench = started(ONE, poll_interval=120.0)
    bench.hear(ASKED)
    for _ in range(20):
        bench.failed("wait", None)
        at = bench.now
        while "wait" not in bench.ops:
            idle(bench, 0.1)
        assert bench.now - at <= Liveness().heartbeat_interval / 2 + 0.1


def test_a_look_that_had_to_wait_for_the_connection_says_how_long_it_was_until_then() -> None:
    bench = started(ONE)
    while not bench.ops.keys() & {"promote", "survey"}:
        bench.wait(0.1)
    at = bench.now
    assert asks(bench.hear(ASKED)) == 0
    assert asks(bench.wait(4.0)) == 0
    while "wait" not in bench.ops:
        idle(bench, 0.1)
    assert [said_of(wait) for wait in bench.store.waits[-1]] == [("a", 4.1)]
    assert round(bench.now - at, 6) == 4.1


def test_leaving_says_how_long_it_was_all_together_and_says_the_same_again() -> None:
    bench = started(ONE)
    for whole in (3.0, 6.0):
        bench.hear(ASKED)
        bench.done("wait", NOTHING)
        looking(bench, 3.0)
        bench.hear(WaitLeft(ONE, "a"))
        idle(bench, 0.1)
        for _ in range(3):
            assert [said_of(wait) for wait in bench.store.leaves[-1]] == [("a", whole)]
            bench.failed("leave", None)
            while "leave" not in bench.ops:
                idle(bench, 0.1)
        bench.done("leave", [])


def test_who_waited_again_before_it_could_be_written_that_he_left_is_written_once() -> None:
    bench = started(ONE)
    bench.hear(ASKED)
    bench.failed("wait", None)
    bench.wait(0.01)
    bench.hear(WaitLeft(ONE, "a"))
    bench.hear(WaitAsked(ONE, "b"))
    bench.wait(0.001)
    bench.hear(WaitLeft(ONE, "b"))
    while "leave" not in bench.ops:
        bench.wait(0.01)
    bench.done("leave", [])
    assert [[said_of(wait) for wait in each] for each in bench.store.leaves] == [[("b", 0.011)]]


def test_while_the_database_is_away_it_goes_on_to_wait() -> None:
    bench = started(ONE)
    bench.hear(ASKED)
    assert of(WaitOver, bench.failed("wait", None)) == []
    assert asks(idle(bench, 0.1)) == 1
    assert of(WaitOver, bench.done("wait", [Waited(is_over=True, result="1")])) == [WaitOver(ONE, "a", "1")]


def test_while_the_database_is_away_leaving_is_tried_again_with_back_off_and_is_not_forgotten() -> None:
    bench = started(ONE)
    bench.hear(ASKED)
    bench.done("wait", NOTHING)
    bench.hear(WaitLeft(ONE, "a"))
    tried = 0
    for _ in range(8):
        said = bench.failed("leave", None)
        assert leaves(said) == 0, "it was just refused"
        while not leaves(said):
            said = idle(bench, 0.1)
            tried += 1
            assert tried < 200
    assert tried > 40, "2 s between two tries in the end"
    bench.done("leave", [])
    assert leaves(idle(bench, 10.0)) == 0


def test_while_the_database_is_away_handlers_that_begin_to_wait_do_not_make_it_asked_more_often() -> None:
    bench = started(ONE, attempt(2))
    bench.hear(ASKED)
    assert asks(bench.failed("wait", None)) == 0
    assert asks(bench.hear(WaitAsked(attempt(2), "b"))) == 0
    assert asks(idle(bench, 0.1)) == 1, "one statement for both"


def test_while_the_database_is_away_a_handler_that_begins_to_wait_after_the_only_other_ended_makes_no_haste() -> None:
    bench = started(ONE, attempt(2))
    bench.hear(ASKED)
    bench.failed("wait", None)
    bench.hear(JobEnded(ONE, Raised(ValueError("over"))))
    bench.hear(Woken())
    assert asks(bench.hear(WaitAsked(attempt(2), "b"))) == 0
    assert asks(idle(bench, 0.1)) == 1


def test_a_handler_that_ended_is_asked_for_no_more_and_one_that_does_not_run_waits_in_vain() -> None:
    bench = started(ONE)
    bench.hear(ASKED)
    bench.done("wait", NOTHING)
    bench.hear(JobEnded(ONE, Raised(ValueError("over"))))
    assert asks(idle(bench, 10.0)) == 0
    assert of(WaitOver, bench.hear(ASKED)) == [WaitOver(ONE, "a", None)]


def test_that_a_callback_came_before_its_job_was_parked_is_no_news() -> None:
    bench = Bench().running()
    (start,) = bench.claimed(ONE)
    recording = Recording(ONE, None)
    recording.registered("a")
    start.recordings[ONE.id, ONE.run_lease] = recording
    bench.hear(JobEnded(ONE, Returned(WaitForCallback("a"))))
    said = bench.done("finalize", Verdicts([Verdict.STALE]))
    assert of(Emit, said) == []
    assert (bench.machine.unwritten, bench.machine.tally.total(STALE)) == (0, 0)


def test_a_job_that_would_wait_for_what_the_database_does_not_know_fails_as_the_matrix_says() -> None:
    bench = Bench(dead_letters=True, hooked=frozenset({ONE.kind})).running()
    (start,) = bench.claimed(ONE)
    recording = start.recordings[ONE.id, ONE.run_lease] = Recording(ONE, None)
    recording.registered("a")
    bench.hear(JobEnded(ONE, Returned(WaitForCallback("a"))))
    ((parks,), _) = bench.store.flushes[-1]
    assert (parks.transition.to, parks.transition.callback) == (JobState.WAITING_EXTERNAL, "a")
    said = bench.done("finalize", Verdicts([Verdict.UNREGISTERED]))
    ((fails,), _) = bench.store.flushes[-1]
    assert len(bench.store.flushes) == 2, "what stands in its place is another flush"
    assert (fails.transition.to, fails.transition.dead_letter) == (JobState.FAILED, DeadLetter.NO_CALLBACK)
    assert fails.transition.entry is not None
    assert fails.transition.entry["terminal"] is True
    assert (fails.flushed, bench.machine.unwritten) == (True, 1)
    said += bench.done("finalize", Verdicts([Verdict.ACCEPTED]))
    assert [type(event).__name__ for told in of(Happened, said) for event in told.events] == []
    assert bench.machine.unwritten == 0


def test_a_callback_that_came_as_its_handler_left_is_still_one_to_park_for() -> None:
    bench = started(ONE)
    (start,) = of(StartJob, bench.said)
    job: JobBase[object, None] = JobBase(start, None)
    job.carry(lambda _: None)
    recording = start.recordings[ONE.id, ONE.run_lease] = Recording(ONE, None)
    recording.registered("a")
    bench.hear(ASKED)
    assert of(WaitOver, bench.done("wait", [Waited(is_over=True, result="1")]))
    bench.hear(JobEnded(ONE, Returned(WaitForCallback("a"))))  # the handler's own timeout was faster than the answer
    ((ended, *_), _) = bench.store.flushes[-1]
    assert ended.transition.to is JobState.WAITING_EXTERNAL


def test_a_callback_that_a_handler_has_gone_on_with_is_none_to_park_for() -> None:
    (start,) = of(StartJob, started(ONE).said)
    job: JobBase[object, None] = JobBase(start, None)
    id = "00000000-0000-4000-8000-000000000001"
    for end in ("1", None):
        recording = start.recordings[ONE.id, ONE.run_lease] = Recording(ONE, None)
        recording.registered(id)
        with contextlib.suppress(CallbackNotFound):
            job.waited(WaitAsked(ONE, id), end)
        assert recording.callback is None
