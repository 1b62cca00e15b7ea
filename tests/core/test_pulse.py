"""The pulse: progress goes to the database every ten seconds, if somebody said something new."""

from datetime import UTC, datetime
from random import Random
from typing import Any

from typing_extensions import override

from awa_proto.errors import DatabaseError
from awa_proto.job import Attempt
from awa_proto.outcome import Returned
from awa_proto.plan import Op
from awa_proto.recording import Recording
from awa_proto.store import NewJob
from awa_proto.store.memory import MemoryStore
from awa_proto.task import Task
from awa_proto.testing.simulator import play
from awa_proto.worker.config import QueueConfig, WorkerConfig
from awa_proto.worker.events import JobEnded, OpDone, OpFailed, Output, RunOp, StartJob
from awa_proto.worker.pulse import EVERY
from awa_proto.worker.worker import WorkerMachine

AT = datetime(2026, 1, 1, tzinfo=UTC)


class Store(MemoryStore):
    """Notes what it is asked to keep."""

    def __init__(self) -> None:
        super().__init__(lambda: AT, Random(1).random)
        self.asked: list[list[tuple[int, str]]] = []

    @override
    def record_progress(self, records: Any) -> Op[list[int]]:
        self.asked.append([(record.attempt.id, record.progress) for record in records])
        return super().record_progress(records)


class Bench:
    """A machine with handlers that run, its Ops answered at once."""

    def __init__(self, jobs: int) -> None:
        self.store = Store()
        play(self.store.insert([NewJob("k", "q", "{}") for _ in range(jobs)]))
        task = Task("k", print, lambda text: text, is_async=False)
        self.machine = WorkerMachine(
            store=self.store, tasks={"k": task}, config=WorkerConfig({"q": QueueConfig(9)}), random=Random(2).random
        )
        self.now = 0.0
        self.fails = False
        self.starts: list[StartJob] = []
        self.machine.start(self.now)
        self.settle()

    def settle(self) -> None:
        while (output := self.machine.poll_output()) is not None:
            self.perform(output)

    def perform(self, output: Output) -> None:
        if isinstance(output, StartJob):
            self.starts.append(output)
        elif isinstance(output, RunOp):
            if self.fails and output.op.name == "record_progress":
                self.machine.handle([OpFailed(output.id, DatabaseError("away", "08006"))], self.now)
            else:
                self.machine.handle([OpDone(output.id, play(output.op))], self.now)

    def until(self, at: float) -> None:
        """Let time pass, timer by timer."""
        while (due := self.machine.next_deadline()) is not None and due <= at:
            self.now = max(self.now, due)
            self.machine.handle_timeout(self.now)
            self.settle()
        self.now = at

    def says(self, start: StartJob, percent: int) -> Recording:
        attempt = start.attempt
        recording = start.recordings.setdefault((attempt.id, attempt.run_lease), Recording(attempt, None))
        recording.set_progress(percent, None)
        return recording


def test_what_is_new_is_written_in_one_statement_and_once() -> None:
    bench = Bench(3)
    bench.says(bench.starts[0], 10)
    bench.says(bench.starts[1], 20)
    bench.until(EVERY + 0.1)
    assert bench.store.asked == [[(1, '{"percent":10}'), (2, '{"percent":20}')]]
    bench.until(3 * EVERY)
    assert len(bench.store.asked) == 1, "nothing was new"
    bench.says(bench.starts[1], 30)
    bench.until(4 * EVERY + 0.1)
    assert bench.store.asked[1:] == [[(2, '{"percent":30}')]]


def test_a_write_that_failed_is_repeated_with_the_next_beat() -> None:
    bench = Bench(1)
    bench.says(bench.starts[0], 10)
    bench.fails = True
    bench.until(EVERY + 0.1)
    bench.fails = False
    bench.until(2 * EVERY + 0.1)
    assert bench.store.asked == [[(1, '{"percent":10}')]] * 2


def test_what_is_said_while_a_write_is_under_way_is_new_for_the_next_one() -> None:
    bench = Bench(1)
    recording = bench.says(bench.starts[0], 10)
    before = recording.progress
    assert before is not None
    recording.set_progress(20, None)
    recording.flushed(before)
    assert recording.is_new
    recording.flushed(recording.progress or {})
    assert not recording.is_new


def test_the_end_of_an_attempt_carries_what_no_beat_wrote() -> None:
    bench = Bench(1)
    bench.says(bench.starts[0], 10)
    attempt: Attempt = bench.starts[0].attempt
    bench.machine.handle([JobEnded(attempt, Returned("no result"))], bench.now)
    bench.settle()
    assert bench.store.rows[0].progress == {"percent": 10}
    bench.until(2 * EVERY)
    assert bench.store.asked == []
