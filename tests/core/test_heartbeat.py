"""The heartbeat alone: beats, progress, what it does when its worker's loop or the database does not answer."""

from datetime import UTC, datetime
from random import Random
from typing import Any

from typing_extensions import override

from awa_proto.errors import DatabaseError
from awa_proto.job import Attempt
from awa_proto.outcome import Returned
from awa_proto.plan import Op
from awa_proto.recording import Recording
from awa_proto.store import NewJob, WorkerInfo
from awa_proto.store.memory import MemoryStore
from awa_proto.task import Task
from awa_proto.testing.simulator import play
from awa_proto.worker.config import Liveness, QueueConfig, WorkerConfig
from awa_proto.worker.events import Beat, Emit, JobEnded, OpDone, OpFailed, Ping, Pinged, RunOp, StartJob
from awa_proto.worker.heartbeat import Heartbeat
from awa_proto.worker.worker import WorkerMachine

AT = datetime(2026, 1, 1, tzinfo=UTC)
EVERY = 10.0


class Store(MemoryStore):
    """Notes what it is asked to keep, and how often it is told that the worker lives."""

    def __init__(self) -> None:
        super().__init__(lambda: AT, Random(1).random)
        self.asked: list[list[tuple[int, str]]] = []
        self.beats = 0

    @override
    def record_progress(self, records: Any, *, patient: bool = False) -> Op[list[int]]:
        self.asked.append([(record.attempt.id, record.progress) for record in records])
        return super().record_progress(records, patient=patient)

    @override
    def beat(self, instance: int, worker: WorkerInfo) -> Op[None]:
        self.beats += 1
        return super().beat(instance, worker)


class Bench:
    """A worker's machine with handlers that run, and its heartbeat; Ops are answered at once, pings if the loop is alive."""

    def __init__(self, jobs: int = 0) -> None:
        self.store = Store()
        if jobs:
            play(self.store.insert([NewJob("k", "q", "{}") for _ in range(jobs)]))
        task = Task("k", print, lambda text: text, is_async=False)
        self.machine = WorkerMachine(
            store=self.store,
            tasks={"k": task},
            config=WorkerConfig({"q": QueueConfig(9)}, liveness=Liveness(stall_limit=60.0)),
            random=Random(2).random,
        )
        self.now = 0.0
        self.fails: set[str] = set()
        self.is_stuck = False
        self.said: list[str] = []
        self.starts: list[StartJob] = []
        self.heart: Heartbeat
        self.machine.start(self.now)
        self.settle()

    def settle(self) -> None:
        while (output := self.machine.poll_output()) is not None:
            if isinstance(output, StartJob):
                self.starts.append(output)
            elif isinstance(output, Beat):
                self.heart = output.heartbeat
                self.heart.start(self.now)
            elif isinstance(output, RunOp):
                self.machine.handle([OpDone(output.id, play(output.op))], self.now)

    def pump(self) -> None:
        while (output := self.heart.poll_output()) is not None:
            if isinstance(output, Ping) and not self.is_stuck:
                self.machine.handle([Pinged(output.number)], self.now)
            elif isinstance(output, Emit):
                self.said.append(output.key)
            elif isinstance(output, RunOp):
                failed = OpFailed(output.id, DatabaseError("away", "08006"))
                is_away = output.op.name in self.fails
                self.heart.handle(failed if is_away else OpDone(output.id, play(output.op)), self.now)

    def until(self, at: float) -> None:
        """Let time pass, beat by beat. The worker's own timers do not ring."""
        while (due := self.heart.next_deadline()) is not None and due <= at:
            self.now = max(self.now, due)
            self.heart.handle_timeout(self.now)
            self.pump()
        self.now = at

    def is_stalled(self) -> bool:
        return self.heart.is_stalled

    def says(self, start: StartJob, percent: int) -> Recording:
        attempt = start.attempt
        recording = start.recordings.setdefault((attempt.id, attempt.run_lease), Recording(attempt, None))
        recording.set_progress(percent, None)
        return recording


def test_it_beats_a_little_more_often_than_the_interval() -> None:
    bench = Bench()
    bench.until(100 * EVERY)
    assert 100 <= bench.store.beats <= 112


def test_a_beat_that_failed_is_repeated_soon_and_said_once() -> None:
    bench = Bench()
    bench.fails = {"beat"}
    bench.until(EVERY + 8)
    assert bench.store.beats > 3
    bench.fails.clear()
    before = bench.store.beats
    bench.until(bench.now + 10)
    assert bench.store.beats > before
    assert bench.said == ["heartbeat failed", "heartbeat failed: over"]


def test_while_no_beat_gets_through_the_worker_takes_nothing_new() -> None:
    bench = Bench()
    living = bench.machine._context.living
    bench.fails = {"beat"}
    bench.until(19.0)
    said = [living.is_silent]
    bench.until(29.0)
    said.append(living.is_silent)
    bench.fails.clear()
    bench.until(35.0)
    assert [*said, living.is_silent] == [False, True, False]


def test_the_time_a_beat_may_take_leaves_time_for_another_one_before_it_is_stale() -> None:
    bench = Bench()
    bench.heart.handle_timeout(EVERY)
    outputs = [bench.heart.poll_output(), bench.heart.poll_output()]
    assert [output.op.timeout for output in outputs if isinstance(output, RunOp)] == [EVERY]


def test_a_loop_that_does_not_answer_for_less_than_the_stall_limit_keeps_its_jobs() -> None:
    bench = Bench()
    bench.is_stuck = True
    bench.until(59.0)
    assert bench.store.beats >= 5
    assert bench.said == []


def test_a_stuck_loop_stops_the_beats_until_it_answers_again() -> None:
    bench = Bench()
    bench.is_stuck = True
    bench.until(85.0)
    assert bench.is_stalled()
    before = bench.store.beats
    bench.until(500.0)
    assert bench.store.beats == before
    assert bench.said == ["stalled"]
    bench.is_stuck = False
    bench.machine.handle([Pinged(1)], bench.now)
    bench.until(525.0)
    assert bench.store.beats > before
    assert not bench.is_stalled()
    assert bench.said == ["stalled", "stalled: over"]


def test_what_is_new_is_written_in_one_statement_and_once() -> None:
    bench = Bench(3)
    bench.says(bench.starts[0], 10)
    bench.says(bench.starts[1], 20)
    bench.until(EVERY)
    assert bench.store.asked == [[(1, '{"percent":10}'), (2, '{"percent":20}')]]
    bench.until(3 * EVERY)
    assert len(bench.store.asked) == 1, "nothing was new"
    bench.says(bench.starts[1], 30)
    bench.until(4 * EVERY)
    assert bench.store.asked[1:] == [[(2, '{"percent":30}')]]


def test_progress_that_could_not_be_written_is_written_with_the_next_beat_and_stops_none() -> None:
    bench = Bench(1)
    bench.says(bench.starts[0], 10)
    bench.fails = {"record_progress"}
    bench.until(EVERY)
    bench.fails.clear()
    bench.until(2 * EVERY)
    assert bench.store.asked == [[(1, '{"percent":10}')]] * 2
    assert bench.store.beats == 2
    assert bench.said == ["progress unwritten"]


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
