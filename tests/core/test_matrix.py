"""The outcome matrix: every row, with attempts left and on the last one, with dead letters on and off.

The expectations are written out by hand: they are the table of the design, not the one the code acts by.
"""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from awa_proto.args import decode_object
from awa_proto.callbacks.token import CallbackToken
from awa_proto.errors import OutputError, StagingError, TerminalError
from awa_proto.followup import FollowUps, follow_up
from awa_proto.intake import Intake
from awa_proto.job import CANONICAL, Attempt, JobState
from awa_proto.options import EnqueueRequest
from awa_proto.outcome import Cancel, Completed, Ending, Outcome, Raised, RetryAfter, Returned, Snooze, WaitForCallback
from awa_proto.recording import Recording
from awa_proto.store import Ended
from awa_proto.store.memory import MemoryStore
from awa_proto.worker.clock import DatabaseClock
from awa_proto.worker.config import QueueConfig, WorkerConfig
from awa_proto.worker.context import Context
from awa_proto.worker.endings import Endings
from awa_proto.worker.happened import Hooked, event_of
from awa_proto.worker.lanes import Lanes
from awa_proto.worker.report import Report
from awa_proto.worker.tally import Tally
from awa_proto.worker.timers import Timers

AT = datetime(2026, 1, 31, 23, 59, 59, tzinfo=UTC)
HOUR = timedelta(hours=1)
BACKOFF = timedelta(seconds=2.25)
"""Of the first attempt, with 0.5 for chance; of the third: 9 s."""
OUTPUT, PROGRESS = '{"n":1.0}', '{"percent":40}'


class Refused(TerminalError):
    pass


def boom() -> Exception:
    return ValueError("boom")


# ending, state with attempts left, its error, state on the last attempt, its error, terminal, attempt counted, when it is due,
# where the output goes, outcome with attempts left, on the last one, dead letter with attempts left, on the last one
ROWS: list[tuple[str, Any, tuple[Any, ...]]] = [
    ("None", Returned(None),
     ("completed", None, "completed", None, False, 1, None, "job", "completed", "completed", None, None)),
    ("Completed", Returned(Completed()),
     ("completed", None, "completed", None, False, 1, None, "job", "completed", "completed", None, None)),
    ("RetryAfter", Returned(RetryAfter(3600)),
     ("retryable", "retry requested", "failed", "attempts exhausted after 3; the handler asked for a retry in 3600 s",
      False, 1, HOUR, "entry", "retried", "exhausted", None, "max_attempts_exhausted")),
    ("exception", Raised(boom()),
     ("retryable", "ValueError: boom", "failed", "ValueError: boom",
      False, 1, BACKOFF, "entry", "retried", "exhausted", None, "max_attempts_exhausted")),
    ("TerminalError", Raised(Refused("no")),
     ("failed", "Refused: no", "failed", "Refused: no",
      True, 1, None, "entry", "exhausted", "exhausted", "terminal_error", "terminal_error")),
    ("StagingError", Raised(StagingError.TooMany("17")),
     ("failed", "TooMany: 17", "failed", "TooMany: 17",
      True, 1, None, "entry", "exhausted", "exhausted", "terminal_error", "terminal_error")),
    ("OutputError", Raised(OutputError.Invalid("a set")),
     ("failed", "Invalid: a set", "failed", "Invalid: a set",
      True, 1, None, "entry", "exhausted", "exhausted", "terminal_error", "terminal_error")),
    ("wrong return value", Returned("text"),
     ("failed", "the handler returned str; it may return None, Completed, RetryAfter, Snooze, Cancel or W", "failed",
      "the handler returned str; it may return None, Completed, RetryAfter, Snooze, Cancel or WaitForCallback",
      True, 1, None, "entry", "exhausted", "exhausted", "terminal_error", "terminal_error")),
    ("Cancel for what is no text", Returned(Cancel(404)),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
     ("failed", "wrong return value: Cancel.reason: text is needed, not int", "failed",
      "wrong return value: Cancel.reason: text is needed, not int",
      True, 1, None, "entry", "exhausted", "exhausted", "terminal_error", "terminal_error")),
    ("Snooze", Returned(Snooze(3600)),
     ("scheduled", None, "scheduled", None, False, 0, HOUR, "outcome", None, None, None, None)),
    ("Cancel", Returned(Cancel("why")),
     ("cancelled", "cancelled: why", "cancelled", "cancelled: why",
      False, 1, None, "entry", "cancelled", "cancelled", None, None)),
    ("WaitForCallback", Returned(WaitForCallback(CallbackToken("registered"))),
     ("waiting_external", None, "waiting_external", None, False, 1, None, "outcome",
      "waiting_for_callback", "waiting_for_callback", None, None)),
    ("WaitForCallback, by its id", Returned(WaitForCallback("registered")),
     ("waiting_external", None, "waiting_external", None, False, 1, None, "outcome",
      "waiting_for_callback", "waiting_for_callback", None, None)),
    ("WaitForCallback, not registered", Returned(WaitForCallback("t")),
     ("failed", "the handler waits for a callback that is not registered (any more)", "failed",
      "the handler waits for a callback that is not registered (any more)", True, 1, None, "entry", None, None,
      "wait_for_callback_contract_violation", "wait_for_callback_contract_violation")),
    ("WaitForCallback, not registered as the database says", Ending.UNREGISTERED,
     ("failed", "the handler waits for a callback that is not registered (any more)", "failed",
      "the handler waits for a callback that is not registered (any more)", True, 1, None, "entry", None, None,
      "wait_for_callback_contract_violation", "wait_for_callback_contract_violation")),
    ("deadline", Ending.DEADLINE,
     ("retryable", "hard deadline exceeded", "failed", "hard deadline exceeded",
      False, 1, BACKOFF, "abandoned", "retried", "exhausted", None, "max_attempts_exhausted")),
    ("released", Ending.RELEASED,
     ("available", None, "available", None, False, 0, timedelta(0), "abandoned", None, None, None, None)),
]  # fmt: skip


def bench(*, dead_letters: bool = False) -> tuple[Endings, Context]:
    """Endings with a follow-up for every outcome."""
    intake = Intake({}, lambda: AT)
    registered: Any = {
        "k": {
            outcome: (follow_up(outcome, "k", lambda *_, outcome=outcome: {"kind": "follow", "of": outcome}),)
            for outcome in Outcome
        }
    }
    out: Any = []
    config = WorkerConfig({"q": QueueConfig()}, dead_letters=dead_letters)
    store = MemoryStore(lambda: AT, lambda: 0.5)
    context = Context(
        store, config, lambda: 0.5, Lanes(out, store.replan, Tally()), Timers(), Report(out), DatabaseClock(), Hooked((), out),
        FollowUps(registered, intake), Tally(),
    )  # fmt: skip
    return Endings(context), context


def attempt(number: int, segment: int = 0) -> Attempt:
    return Attempt(segment, 1, 0, 7, 1, "q", 2, "k", "{}", number, 3, AT, AT, '{"metadata":{"m":1}}')


def recording(of: Attempt) -> Recording:
    found = Recording(of, None)
    found.record_output(json.loads(OUTPUT), None)
    found.set_progress(40, None)
    found.registered("registered")
    request = EnqueueRequest({"kind": "staged"})
    found.stage(*Intake({}, lambda: AT).staged(request), request)
    return found


@pytest.mark.parametrize("dead_letters", [False, True], ids=["failed", "dead letters"])
@pytest.mark.parametrize("is_last", [False, True], ids=["attempts left", "last attempt"])
@pytest.mark.parametrize("engine", ["queue", "canonical"])
@pytest.mark.parametrize("row", ROWS, ids=[name for name, _, _ in ROWS])
def test_a_row_of_the_matrix(
    row: tuple[str, Any, tuple[Any, ...]], engine: str, is_last: bool, dead_letters: bool
) -> None:
    _, ending, expected = row
    left, left_error, last, last_error, terminal, counts, due, output, *told = expected
    left_outcome, last_outcome, left_letter, last_letter = told
    number = 3 if is_last else 1
    state, error = (last, last_error) if is_last else (left, left_error)
    outcome, letter = (last_outcome, last_letter) if is_last else (left_outcome, left_letter)
    endings, context = bench(dead_letters=dead_letters)
    of = attempt(number, CANONICAL if engine == "canonical" else 0)
    ended: Ended = endings.of(of, ending, AT, 0.0, recording(of), 1.5)
    transition = ended.transition
    assert not context.tally.counts  # it may turn out to be stale, which counts nothing
    endings.written([ended], 0.0)
    endings.count("k", "q", transition.ending, transition.to, 1)

    # what the row becomes
    assert (transition.to, transition.attempt, transition.at) == (state, number - 1 + counts, AT)
    if due == BACKOFF and is_last:
        due = timedelta(seconds=9)
    assert transition.run_at == (None if due is None or state in {"failed", "cancelled"} else AT + due)
    assert transition.dead_letter == (letter if dead_letters else None)

    # its error entry
    entry = transition.entry
    if error is None:
        assert entry is None
    else:
        assert entry is not None
        assert entry["error"].startswith(error)
        assert (entry["attempt"], entry["at"]) == (number, "2026-01-31T23:59:59.000000Z")
        assert entry.get("terminal", False) is terminal
        assert ("traceback" in entry) == isinstance(ending, Raised)
        assert ("retry_after" in entry) == (ending == Returned(RetryAfter(3600)))

    # progress: cleared by success, kept by everything else, beside what the job had
    extra: Any = None if ended.extra is None else json.loads(ended.extra)
    if state == "completed":
        assert (ended.progress, extra) == (None, None)
    else:
        assert extra["progress"] == json.loads(PROGRESS)
        assert extra["metadata"] == {"m": 1}

    # output
    assert ended.output == (OUTPUT if output == "job" else None)
    if engine == "canonical" and output in {"job", "entry"}:
        output = "canonical"
    assert (None if entry is None else entry.get("output")) == ({"n": 1.0} if output == "entry" else None)
    dropped = {dict(labels)["awa.output.reason"] for (metric, labels) in context.tally.counts if "dropped" in metric}
    assert dropped == ({output} if output in {"outcome", "abandoned", "canonical"} else set())
    recorded = context.tally.total("awa.job.output_recorded")
    assert recorded == (output in {"job", "entry"})

    # metric facts
    counted = [
        (metric, dict(labels).get("awa.job.terminal"))
        for metric, labels in context.tally.counts
        if "output" not in metric and "follow" not in metric
    ]
    failed = ("awa.job.failed", str(terminal).lower())
    others = {"scheduled": "awa.job.snoozed", "available": "awa.job.released", "retryable": "awa.job.retried"}
    assert counted == [failed if state == "failed" else (others.get(state, f"awa.job.{state}"), None)]

    discarded = context.tally.total("awa.job.staged_follow_ups_discarded")
    waits = ending is Ending.UNREGISTERED or isinstance(getattr(ending, "value", None), WaitForCallback)
    assert discarded == waits

    # event and follow-ups
    assert transition.outcome == outcome
    event = event_of(ended)
    assert (None if event is None else type(event).__name__.lower()) == (outcome and outcome.replace("_", ""))
    made = [(job.kind, json.loads(job.args).get("of")) for job in ended.follow_ups]
    staged = [("staged", None)] if state == "completed" else []
    assert made == ([] if outcome is None else [("follow", outcome)]) + staged


def test_a_completion_that_cannot_be_written_fails_with_its_progress_and_its_output_in_the_entry() -> None:
    endings, _ = bench()
    of = attempt(1)
    failed = endings.refused(endings.of(of, Returned(Completed()), AT, 0.0, recording(of), 1.5), RuntimeError("no"), AT)
    assert (failed.transition.to, failed.output, failed.follow_ups) == (JobState.RETRYABLE, None, ())
    extra = json.loads(failed.extra or "")
    assert (extra["progress"], extra["errors"][0]["output"]) == (json.loads(PROGRESS), json.loads(OUTPUT))


def test_a_completion_without_anything_recorded_shares_the_same_row() -> None:
    endings, _ = bench()
    ended = endings.of(attempt(1), Returned(Completed()), AT, 0.0, None, 1.5)
    assert (ended.transition.to, ended.output, ended.progress, ended.extra) == (JobState.COMPLETED, None, None, None)
    assert decode_object(ended.follow_ups[0].args)["of"] == "completed"
