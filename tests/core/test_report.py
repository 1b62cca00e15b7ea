"""What a worker tells people: enough to see a fault and its end, and never more because it comes and goes."""

import sys
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from awa_proto.errors import DatabaseError
from awa_proto.store import Registration, Ring
from awa_proto.worker.events import Emit, ListenLost, Output
from awa_proto.worker.report import INFO, QUIET, WARNING, Report
from awa_proto.worker.tally import Tally
from tests.core.test_machine import NOON, Bench, of


def _told(out: deque[Output]) -> list[tuple[int, dict[str, object]]]:
    told = [(emit.level, emit.fields) for emit in of(Emit, list(out))]
    out.clear()
    return told


def test_a_fault_that_comes_and_goes_is_told_of_once_and_counted() -> None:
    out: deque[Output] = deque()
    report = Report(out)
    for tick in range(50):
        report.warn(tick * 0.1, "fault", "it fails")
        report.recovered("fault", "it works")
    assert _told(out) == [(WARNING, {}), (INFO, {})]
    assert report.warn(QUIET, "fault", "it fails")
    report.recovered("fault", "it works")
    assert _told(out) == [(WARNING, {"held_back": 49}), (INFO, {})]


def test_a_fault_that_was_held_back_has_no_end_to_tell_of() -> None:
    out: deque[Output] = deque()
    report = Report(out)
    report.warn(0.0, "fault", "it fails")
    report.recovered("fault", "it works")
    out.clear()
    assert not report.warn(1.0, "fault", "it fails")
    report.recovered("fault", "it works")
    assert _told(out) == []


def test_a_listening_connection_that_is_lost_again_and_again_does_not_fill_the_log_and_its_final_loss_is_told() -> None:
    bench = Bench()
    bench.done("register", Registration(7, Ring(1), {}, NOON))
    bench.done("withdraw")
    start = bench.now
    while bench.now < start + QUIET / 2:
        bench.hear(ListenLost(DatabaseError("gone")))
        bench.wait(0.2)
        bench.done("withdraw")
    told = [emit.level for emit in of(Emit, bench.said) if emit.key.startswith("listen failed")]
    assert told == [WARNING, INFO]
    bench.hear(ListenLost(DatabaseError("gone for good")))
    for _ in range(20):
        bench.wait(5.0)
        if "withdraw" in bench.ops:
            bench.failed("withdraw", "08001")
    told = [emit.level for emit in of(Emit, bench.said) if emit.key.startswith("listen failed")]
    assert told == [WARNING, INFO, WARNING]


def test_a_tally_shows_what_it_has_counted() -> None:
    tally = Tally()
    tally.count("awa.job.completed", {"awa.job.queue": "q", "awa.job.kind": "k"}, 3)
    tally.count("awa.job.completed", {"awa.job.kind": "k", "awa.job.queue": "q"})
    assert repr(tally) == "Tally(awa.job.completed{awa.job.kind=k, awa.job.queue=q}: 4)"


def test_no_thread_loses_what_another_one_counts_and_who_looks_meanwhile_is_answered() -> None:
    """Calls of a client may come from any thread, as those of a server do that takes callbacks."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(150):
            tally, start = Tally(), threading.Barrier(4)
            looked: list[int] = []

            def count(tally: Tally = tally, start: threading.Barrier = start, looked: list[int] = looked) -> None:
                start.wait()
                for number in range(50):
                    tally.count("awa.job.completed", {"awa.job.kind": str(number)}, amount=2)
                    looked.append(tally.total("awa.job.completed"))

            with ThreadPoolExecutor(4) as threads:
                for counted in [threads.submit(count) for _ in range(4)]:
                    counted.result()
            assert (tally.total("awa.job.completed"), sum(tally.sums.values())) == (200, 400)
            assert len(looked) == 200
    finally:
        sys.setswitchinterval(before)
