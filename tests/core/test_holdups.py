"""What holds up one queue, one claim or one statement does not hold up the others."""

from collections.abc import Sequence
from typing import Any

import pytest
from typing_extensions import override

from awa_proto.errors import DatabaseError, ValidationError
from awa_proto.job import JobState
from awa_proto.options import EnqueueRequest
from awa_proto.outcome import Cancel, Raised, RetryAfter, Returned, Snooze, WaitForCallback
from awa_proto.recording import Recording
from awa_proto.store import Demand, Ended, NewJob, Promoted, Ring, Unique, Verdict, Verdicts
from awa_proto.worker.config import QueueConfig
from awa_proto.worker.events import CancelJob, Emit, JobEnded, OpFailed, Reason, StartJob, Woken
from tests.core.test_machine import NOON, Bench, attempt, of

BUSY, REFUSED = "55P03", "22P02"


class Planned(Bench):
    """Plans are made anew whenever that is asked for: here answers may take as long as a test likes."""

    @override
    def _drain(self) -> None:
        super()._drain()
        if "replan" in self.ops:
            self.done("replan")


def two_queues() -> Bench:
    bench = Planned(queues={"q": QueueConfig(max_workers=2), "z": QueueConfig(max_workers=2)})
    return bench.running()


def asked(bench: Bench) -> list[str]:
    return [demand.queue for demand in bench.store.demands[-1]]


@pytest.mark.parametrize("sqlstate", [BUSY, REFUSED])
def test_a_queue_that_cannot_be_claimed_from_does_not_hold_up_the_others(sqlstate: str) -> None:
    bench = two_queues()
    assert asked(bench) == ["q", "z"]
    bench.failed("claim", sqlstate)
    bench.wait(0.0)
    (first,) = asked(bench)
    bench.failed("claim", sqlstate)
    bench.wait(0.0)
    (second,) = asked(bench)
    assert {first, second} == {"q", "z"}
    (start,) = bench.claimed(attempt(1, queue=second))
    assert start.attempt.queue == second
    for _ in range(3):  # the other one is tried again by itself, and later each time
        bench.wait(4.0)
        while asked(bench) != [first]:
            bench.claimed()
            bench.wait(4.0)
        bench.failed("claim", sqlstate)
    assert [emit.key for emit in of(Emit, bench.said) if "held up" in emit.key]


def test_a_queue_that_was_held_up_is_asked_with_the_others_again() -> None:
    bench = two_queues()
    bench.failed("claim", BUSY)
    for queue in ("q", "z"):
        bench.wait(1.0)
        assert asked(bench) == [queue]
        bench.claimed()
    bench.hear(Woken(None))
    bench.wait(0.0)
    if asked(bench) != ["q", "z"]:  # one of them was on its way when they were woken
        bench.claimed()
        bench.hear(Woken(None))
        bench.wait(0.0)
    assert asked(bench) == ["q", "z"]


def test_a_turn_that_is_always_anothers_is_fought_for_in_the_end() -> None:
    bench = Bench().running()
    for _ in range(10):
        assert bench.store.demands[-1] == [Demand("q", 2)]
        bench.claimed(again=frozenset({("q", 0)}))
        bench.wait(0.02)
    assert bench.store.demands[-1] == [Demand("q", 2, insist=True)]
    bench.claimed()
    bench.wait(1.0)
    assert bench.store.demands[-1] == [Demand("q", 2)]


def flushed(bench: Bench) -> list[list[int]]:
    return [[one.attempt.id for one in ended] for ended, _ in bench.store.flushes]


def test_a_lock_on_one_claim_holds_up_its_results_only() -> None:
    bench = Bench(QueueConfig(max_workers=4)).running()
    attempts = [attempt(1), attempt(2), attempt(3), attempt(4)]
    bench.claimed(*attempts)
    bench.hear(*(JobEnded(each, Returned(None)) for each in attempts))
    assert flushed(bench) == [[1, 2, 3, 4]]
    bench.failed("finalize", BUSY)
    assert flushed(bench)[1:] == [[1]]
    bench.failed("finalize", BUSY)
    for id in (2, 3, 4):
        assert flushed(bench)[-1] == [id]
        bench.done("finalize", accepted(bench.store.flushes[-1][0]))
    bench.wait(1.0)
    assert flushed(bench)[-1] == [1]
    assert len({number for _, number in bench.store.flushes}) == 1
    bench.done("finalize", accepted(bench.store.flushes[-1][0]))
    assert bench.machine.unwritten == 0


def staging(bench: Bench, keys: Sequence[int | None]) -> list[Any]:
    """Attempts of one claim, each of which stages a follow-up: with the unique key of that number, or without one."""
    starts = bench.claimed(*(attempt(n)._replace(claim_id=1, idx=n) for n in range(1, len(keys) + 1)))
    for start, key in zip(starts, keys, strict=True):
        unique = None if key is None else Unique(bytes([key]) * 16, 1)
        recording = start.recordings[start.attempt.id, start.attempt.run_lease] = Recording(start.attempt, None)
        recording.stage(NewJob("k", "q", "{}", unique=unique), 1, EnqueueRequest({"kind": "k"}))
    return [start.attempt for start in starts]


def written_but(bench: Bench, held: int) -> set[int]:
    """The jobs whose results are written while somebody holds up that of one."""
    written: list[int] = []
    for _ in range(12):
        if "finalize" not in bench.ops:
            break
        sent = flushed(bench)[-1]
        if held in sent:
            bench.failed("finalize", BUSY)
        else:
            written += sent
            bench.done("finalize", accepted(bench.store.flushes[-1][0]))
    assert len(written) == len(set(written))
    return set(written)


def test_a_key_that_a_stranger_holds_holds_up_the_job_that_wants_it_only() -> None:
    bench = Bench(QueueConfig(max_workers=8)).running()
    attempts = staging(bench, [None, 1, 2, None, 3, 4])
    bench.hear(*(JobEnded(each, Returned(None)) for each in attempts))
    assert written_but(bench, 3) == {1, 2, 4, 5, 6}
    bench.wait(5.0)
    assert flushed(bench)[-1] == [3]


@pytest.mark.parametrize("held", [2, 3, 4])
def test_a_callback_that_a_stranger_uses_holds_up_the_job_that_has_it_only(held: int) -> None:
    """In a transaction that is open, which holds its row: that goes with the attempt, or is parked."""
    bench = Bench(QueueConfig(max_workers=8)).running()
    starts = bench.claimed(*(attempt(n)._replace(claim_id=1, idx=n) for n in range(1, 7)))
    ends: list[Any] = [None, None, WaitForCallback("3"), RetryAfter(1.0), None, Cancel()]
    for start in starts[1:4]:
        recording = start.recordings[start.attempt.id, start.attempt.run_lease] = Recording(start.attempt, None)
        recording.registered(str(start.attempt.id))
    bench.hear(*(JobEnded(start.attempt, Returned(end)) for start, end in zip(starts, ends, strict=True)))
    assert written_but(bench, held) == {1, 2, 3, 4, 5, 6} - {held}
    bench.wait(5.0)
    assert flushed(bench)[-1] == [held]


def test_a_follow_up_that_proved_a_duplicate_after_a_wait_counts_as_one() -> None:
    bench = Bench(QueueConfig(max_workers=8)).running()
    bench.hear(*(JobEnded(each, Returned(None)) for each in staging(bench, [1])))
    bench.failed("finalize", BUSY)
    bench.wait(5.0)
    bench.done("finalize", accepted(bench.store.flushes[-1][0]))
    metric = "awa.job.staged_follow_ups_committed"
    assert bench.machine.tally.total(metric, {"awa.follow_up.result": "duplicate"}) == 1
    assert bench.machine.tally.total(metric, {"awa.follow_up.result": "inserted"}) == 0


def test_follow_ups_that_an_unanswered_sending_may_have_written_count_as_inserted() -> None:
    bench = Bench(QueueConfig(max_workers=8)).running()
    bench.hear(*(JobEnded(each, Returned(None)) for each in staging(bench, [1, None])))
    bench.failed("finalize", None)
    bench.wait(5.0)
    bench.failed("finalize", BUSY)
    for _ in range(2):
        bench.done("finalize", accepted(bench.store.flushes[-1][0]))
    total = bench.machine.tally.total("awa.job.staged_follow_ups_committed", {"awa.follow_up.result": "inserted"})
    assert total == 2


def accepted(ended: Sequence[Ended]) -> Verdicts:
    return Verdicts([Verdict.ACCEPTED] * len(ended))


def test_plans_are_made_anew_after_a_claim_that_took_long_and_no_claim_waits_for_it_in_line() -> None:
    bench = Bench().running()
    bench.wait(0.5)
    bench.claimed()
    assert "replan" in bench.ops
    bench.wait(1.0)
    assert "claim" not in bench.ops
    bench.done("replan")
    assert "claim" in bench.ops
    bench.wait(0.5)
    bench.claimed()
    assert "replan" not in bench.ops  # not again so soon


def test_a_cancellation_that_comes_before_the_answer_of_the_claim_is_heeded() -> None:
    bench = Bench().running()
    bench.hear(Woken("!1:1001"))
    starts = bench.claimed(attempt(1), attempt(2))
    assert [start.attempt.id for start in starts] == [2]
    bench.hear(Woken("!2:1002"))
    (cancel,) = of(CancelJob, bench.said)
    assert (cancel.attempt.id, cancel.reason) == (2, Reason.CANCELLED)


class Hostile(float):
    """Not even a number."""

    @override
    def __float__(self) -> float:
        raise RuntimeError("no")


@pytest.mark.parametrize("value", [Snooze(10**400), Snooze(Hostile(1)), object()])
def test_whatever_a_handler_returns_ends_its_job_and_not_its_worker(value: object) -> None:
    bench = Bench().running()
    bench.claimed(attempt())
    bench.hear(JobEnded(attempt(), Returned(value)))
    ((one,), _) = bench.store.flushes[-1]
    assert one.transition.to in {JobState.FAILED, JobState.SCHEDULED}


def test_a_look_at_deferred_jobs_begins_where_the_last_ones_were_and_once_a_minute_at_the_beginning() -> None:
    bench = Planned().running()
    bench.wait(0.0)
    bench.claimed()
    seen: list[bool] = []
    for _ in range(200):
        bench.wait(1.0)
        if "claim" in bench.ops:
            bench.claimed()
        if "survey" in bench.ops:
            bench.done("survey", (Ring(1), {}))
        if "promote" in bench.ops:
            seen.append(bench.store.looks[-1] is None)
            bench.done("promote", Promoted(1, frozenset({"q"}), None, NOON))
    whole = [at for at, is_whole in enumerate(seen) if is_whole]
    assert 2 <= len(whole) < len(seen) / 3


def test_while_nobody_would_be_told_deferred_jobs_are_looked_for_more_often() -> None:
    bench = Bench().running()
    bench.claimed(attempt(1), attempt(2))  # never an empty claim: nothing is announced
    looks = len(bench.store.looks)
    for _ in range(10):
        bench.wait(0.5)
        if "promote" in bench.ops:
            bench.done("promote", Promoted(0))
    assert len(bench.store.looks) - looks >= 8


def test_what_failed_for_all_is_tried_for_all() -> None:
    bench = two_queues()
    bench.hear(OpFailed(bench.ops.pop("claim").id, DatabaseError("gone", None)))
    assert "claim" not in bench.ops
    bench.wait(1.0)
    assert asked(bench) == ["q", "z"]
    assert not [output for output in bench.said if isinstance(output, StartJob)]


def test_a_queue_that_wakes_up_is_no_longer_announced() -> None:
    bench = two_queues()
    bench.claimed()
    bench.claimed()
    assert bench.store.announcements[-1] == (["q", "z"], [])
    bench.done("announce")
    bench.hear(*[Woken("q")] * 30)
    assert bench.store.announcements[-1] == (["z"], ["q", "z"])


def test_a_failed_attempt_is_told_with_its_traceback_once_it_is_written_and_a_flood_is_held_back() -> None:
    bench = Planned(QueueConfig(max_workers=50)).running()
    bench.claimed(*(attempt(n) for n in range(1, 51)))
    bench.hear(*(JobEnded(attempt(n), Raised(failure())) for n in range(1, 51)))
    assert not [emit for emit in of(Emit, bench.said) if emit.level >= 30]
    said = of(Emit, bench.done("finalize", accepted(bench.store.flushes[-1][0])))
    assert len(said) == 20
    assert (said[0].level, said[0].key) == (30, "attempt failed: k")
    assert said[0].fields["error"] == "ValueError: no such thing"
    assert said[0].text.endswith("ValueError: no such thing")
    assert "in failure" in said[0].text
    bench.wait(11.0)
    bench.hear(JobEnded(attempt(99), Raised(failure())))  # never started: nothing is told
    bench.claimed(attempt(60, number=3))
    bench.hear(JobEnded(attempt(60, number=3), Raised(failure())))
    (last,) = of(Emit, bench.done("finalize", accepted(bench.store.flushes[-1][0])))
    assert (last.level, last.fields["job"], last.fields["held_back"]) == (40, 60, 30)


def test_what_a_handler_asked_for_is_no_failure() -> None:
    bench = Planned(QueueConfig(max_workers=5)).running()
    endings = [Returned(RetryAfter(1)), Returned(Snooze(1)), Returned(Cancel("x")), Returned(None)]
    bench.claimed(*(attempt(n) for n in range(1, 5)))
    bench.hear(*(JobEnded(attempt(n), ended) for n, ended in enumerate(endings, 1)))
    assert not of(Emit, bench.done("finalize", accepted(bench.store.flushes[-1][0])))


def failure() -> Exception:
    try:
        raise ValueError("no such thing")
    except ValueError as error:
        return error


def test_a_kind_without_a_handler_is_put_back_where_that_is_wanted() -> None:
    bench = Planned(QueueConfig(max_workers=5), unknown_kinds="put_back").running()
    assert bench.claimed(attempt(1, kind="newer"), attempt(2, kind="newer")) == []
    ended, _ = bench.store.flushes[-1]
    assert [(one.transition.to, one.transition.attempt, one.transition.entry) for one in ended] == [
        (JobState.SCHEDULED, 0, None)
    ] * 2
    assert ended[0].transition.run_at is not None
    assert (ended[0].transition.run_at - ended[0].transition.at).total_seconds() == 60
    (told,) = [emit for emit in of(Emit, bench.said) if emit.level == 30]
    assert told.key == "unknown kind: newer"


def test_what_becomes_of_unknown_kinds_is_one_of_two() -> None:
    with pytest.raises(ValidationError, match="unknown_kinds"):
        Bench(unknown_kinds="ignore")
