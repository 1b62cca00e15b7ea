"""The page on job outputs, from top to bottom: a test for each of its promises, on every driver."""

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple, TypedDict
from uuid import UUID

import psycopg
import pytest
from pydantic import BaseModel

import awa_proto as awa
from awa_proto import output
from awa_proto.output import MAX_OUTPUT_BYTES
from tests.flavours import App

Run = Callable[..., None]


@dataclass
class Resize:
    width: int = 1


@dataclass
class Thumbnail:
    width: int
    url: str


class Report(BaseModel):
    at: datetime
    tags: set[str]


class Point(NamedTuple):
    x: int
    y: float


class Colour(Enum):
    RED = "red"


class Shape(TypedDict):
    sides: int


def stores(engine: str, text: str | None) -> str | None:
    """What a completed job keeps of an output: the canonical engine keeps none."""
    return text if engine == "queue" else None


def in_entries(engine: str, *outputs: Any) -> list[Any]:
    """What error entries keep of these: the canonical engine keeps none."""
    return list(outputs) if engine == "queue" else [None] * len(outputs)


# Recording an output


def test_the_output_of_a_completed_attempt_is_the_jobs(run: Run, engine: str) -> None:
    async def scenario(app: App) -> None:
        seen: list[Any] = []

        @app.task(Resize)
        def resize(job: Any) -> None:
            seen.append(job.output)
            job.set_output({"updated": 2, "skipped": [1, None, True]})
            seen.append(job.output)

        [row] = await app.run(Resize())
        assert seen == [None, {"updated": 2, "skipped": [1, None, True]}]
        assert row.state is awa.JobState.COMPLETED
        assert row.output_json == stores(engine, '{"updated":2,"skipped":[1,null,true]}')

    run(scenario)


def test_clear_output_removes_what_has_been_recorded(run: Run) -> None:
    async def scenario(app: App) -> None:
        @app.task(Resize)
        def resize(job: Any) -> None:
            job.clear_output()
            job.set_output(1)
            job.clear_output()
            assert job.output is None

        [row] = await app.run(Resize())
        assert (row.state, row.output) == (awa.JobState.COMPLETED, None)

    run(scenario)


# Rules


def test_the_last_write_wins_and_null_clears(run: Run, engine: str) -> None:
    async def scenario(app: App) -> None:
        @app.task(kind="twice")
        def twice(job: Any) -> None:
            job.set_output("first")
            job.set_output("second")

        @app.task(kind="null")
        def null(job: Any) -> None:
            job.set_output("first")
            job.set_output(None)

        rows = await app.run({"kind": "twice"}, {"kind": "null"})
        assert [row.output_json for row in rows] == [stores(engine, '"second"'), None]

    run(scenario)


def test_the_size_limit_is_4_kib_of_compact_json_text_in_utf8() -> None:
    assert MAX_OUTPUT_BYTES == 4096
    assert output.encode("x" * 4094) == '"' + "x" * 4094 + '"'
    with pytest.raises(awa.OutputError.TooLarge, match=r"has 4097 bytes of JSON; 4096 are allowed"):
        output.encode("x" * 4095)
    assert output.encode("ü" * 2047) is not None
    with pytest.raises(awa.OutputError.TooLarge):
        output.encode("ü" * 2048)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1.0"),
        ({"b": 1, "a": (2, 3)}, '{"b":1,"a":[2,3]}'),
        (Thumbnail(1, "u"), '{"width":1,"url":"u"}'),
        ([Thumbnail(1, "ü")], '[{"width":1,"url":"ü"}]'),
        (Report(at=datetime(2026, 1, 1, tzinfo=UTC), tags={"x"}), '{"at":"2026-01-01T00:00:00Z","tags":["x"]}'),
        (
            {"inner": Report(at=datetime(2026, 1, 1, tzinfo=UTC), tags=set())},
            '{"inner":{"at":"2026-01-01T00:00:00Z","tags":[]}}',
        ),
        (Point(1, 2.0), "[1,2.0]"),
        (Colour.RED, '"red"'),
        ([2**63 - 1, -(2**63)], "[9223372036854775807,-9223372036854775808]"),
        (
            [date(2026, 1, 2), time(3, 4), timedelta(seconds=5), UUID(int=1), Decimal("1.10")],
            '["2026-01-02","03:04:00","PT5S","00000000-0000-0000-0000-000000000001","1.10"]',
        ),
        (datetime(2026, 1, 1, tzinfo=UTC), '"2026-01-01T00:00:00Z"'),
        (False, "false"),
        (0, "0"),
        ("", '""'),
    ],
)
def test_models_dataclasses_and_tuples_are_converted(value: object, text: str) -> None:
    assert output.encode(value) == text


class Own:
    pass


NESTED: list[Any] = []
NESTED.append(NESTED)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({1, 2}, "the value is a set"),
        ({"a": [frozenset()]}, r"a\[0\] is a frozenset"),
        (float("nan"), "the value is not a finite number"),
        ({"a": {"b": float("-inf")}}, "a.b is not a finite number"),
        (Decimal("NaN"), "not a finite number"),
        ({1: 2}, "the value has a key of type int"),
        ({"a": {None: 2}}, "a has a key of type NoneType"),
        ([2**63], r"\[0\] is an integer outside 64 bits"),
        ({"n": -(2**63) - 1}, "n is an integer outside 64 bits"),
        (b"x", "the value is a bytes"),
        ({"a": Own()}, "a is a Own"),
        (Own, "the value is a type"),
        ("\0", "contains a NUL"),
        ({"\ud800": 1}, "contains a lone surrogate"),
        (NESTED, "cannot be written as JSON: RecursionError"),
        (object(), "the value is a object"),
    ],
)
def test_what_json_would_change_is_refused_with_its_place(value: object, message: str) -> None:
    with pytest.raises(awa.OutputError.Invalid, match=message):
        output.encode(value)


def test_a_failed_recording_clears_the_output_and_does_not_fail_the_attempt(run: Run) -> None:
    async def scenario(app: App) -> None:
        @app.task(Resize)
        def resize(job: Any) -> None:
            job.set_output("kept?")
            with pytest.raises(awa.OutputError.TooLarge):
                job.set_output("x" * 5000)
            assert job.output is None

        [row] = await app.run(Resize())
        assert (row.state, row.output) == (awa.JobState.COMPLETED, None)

    run(scenario)


def test_an_output_error_that_is_not_caught_fails_the_attempt_for_good(run: Run) -> None:
    async def scenario(app: App) -> None:
        @app.task(Resize)
        def resize(job: Any) -> None:
            job.set_output({1, 2})

        [row] = await app.run(Resize())
        assert (row.state, row.attempt) == (awa.JobState.FAILED, 1)
        assert row.errors[0]["terminal"] is True
        assert row.errors[0]["error"] == "Invalid: output: the value is a set, which JSON does not have"

    run(scenario)


def test_it_is_sealed_when_the_handler_returns(run: Run, engine: str) -> None:
    async def scenario(app: App) -> None:
        jobs: list[Any] = []

        @app.task(Resize)
        def resize(job: Any) -> None:
            job.set_output("in time")
            jobs.append(job)

        [row] = await app.run(Resize())
        with pytest.raises(awa.OutputError.Sealed):
            jobs[0].set_output("late")
        with pytest.raises(awa.OutputError.Sealed):
            jobs[0].clear_output()
        again = await app.client.get_job(row.id)
        assert again.output_json == stores(engine, '"in time"')

    run(scenario)


def test_the_value_is_captured_when_it_is_recorded(run: Run, engine: str) -> None:
    async def scenario(app: App) -> None:
        @app.task(Resize)
        def resize(job: Any) -> None:
            value = {"n": 1}
            job.set_output(value)
            value["n"] = 2

        [row] = await app.run(Resize())
        assert row.output_json == stores(engine, '{"n":1}')

    run(scenario)


# Typed outputs


def test_a_declared_type_refuses_an_instance_of_another_class(run: Run, engine: str) -> None:
    async def scenario(app: App) -> None:
        @app.task(Resize, output=Thumbnail)
        def resize(job: Any) -> None:
            with pytest.raises(awa.OutputError.Invalid, match=r"the output is a dict; the task says output=Thumbnail"):
                job.set_output({"width": 1, "url": "u"})
            job.set_output(Thumbnail(job.args.width, "u"))

        [row] = await app.run(Resize(3))
        assert row.output_json == stores(engine, '{"width":3,"url":"u"}')
        if engine == "queue":
            assert row.output_as(Thumbnail) == Thumbnail(3, "u")
        assert row.error_output_as(Thumbnail) is None

    run(scenario)


@pytest.mark.parametrize("declared", [list[int], Shape])
def test_a_type_isinstance_cannot_check_is_not_enforced(declared: Any) -> None:
    assert output.encode({"any": "thing"}, declared) == '{"any":"thing"}'


def test_output_as_reads_models_dataclasses_and_other_classes() -> None:
    assert output.decode({"width": 1, "url": "u"}, Thumbnail) == Thumbnail(1, "u")
    report = output.decode({"at": "2026-01-01T00:00:00Z", "tags": ["x"]}, Report)
    assert report == Report(at=datetime(2026, 1, 1, tzinfo=UTC), tags={"x"})
    assert output.decode("x", str) == "x"
    assert output.decode({"sides": 3}, Shape) == {"sides": 3}
    assert output.decode([1], list[int]) == [1]
    assert output.decode(None, Thumbnail) is None
    for value, wanted in (("x", int), ({"width": "no"}, Thumbnail), ({}, Report), ({}, Shape)):
        with pytest.raises(awa.SerializationError, match="output"):
            output.decode(value, wanted)


def test_the_latest_failed_output_is_read_by_type(run: Run, engine: str) -> None:
    async def scenario(app: App) -> None:
        @app.task(Resize, output=Thumbnail)
        def resize(job: Any) -> None:
            job.set_output(Thumbnail(7, "partial"))
            raise RuntimeError("boom")

        [row] = await app.run(Resize(), max_attempts=1)
        assert [row.error_output_as(Thumbnail)] == in_entries(engine, Thumbnail(7, "partial"))
        assert row.output_as(Thumbnail) is None

    run(scenario)


def test_the_declared_type_is_published_with_its_json_schema(run: Run) -> None:
    async def scenario(app: App) -> None:
        @app.task(Resize, output=Thumbnail)
        def resize(job: Any) -> None: ...

        @app.task(kind="plain")
        def plain(job: Any) -> None: ...

        described = app.client.registry.descriptors
        assert described["resize"]["output"]["name"] == "Thumbnail"
        assert described["resize"]["output"]["schema"]["properties"]["width"] == {"title": "Width", "type": "integer"}
        assert "output" not in described["plain"]

    run(scenario)


def test_decoding_happens_when_it_is_read_so_what_does_not_fit_stays_readable_as_json(run: Run, engine: str) -> None:
    if engine != "queue":
        pytest.skip("outputs are stored on queue storage only")

    async def scenario(app: App) -> None:
        @app.task(Resize)
        def resize(job: Any) -> None:
            job.set_output({"before": "the kind declared a type"})

        [row] = await app.run(Resize())
        with pytest.raises(awa.SerializationError, match="output"):
            row.output_as(Thumbnail)
        assert row.output == {"before": "the kind declared a type"}

    run(scenario)


# Where an attempt's output goes


def test_an_error_a_cancel_and_a_retry_keep_it_in_their_error_entry(run: Run, engine: str) -> None:
    async def scenario(app: App) -> None:
        endings: dict[str, Any] = {
            "error": RuntimeError("boom"),
            "terminal": awa.TerminalError("no"),
            "cancel": awa.Cancel("why"),
            "retry": awa.RetryAfter(1000),
        }

        @app.task(kind="end")
        def end(job: Any) -> Any:
            job.set_output({"how": job.args["how"]})
            ending = endings[job.args["how"]]
            if isinstance(ending, Exception):
                raise ending
            return ending

        rows = await app.run(*({"kind": "end", "how": how} for how in endings))
        for row, how in zip(rows, endings, strict=True):
            assert [row.errors[-1].get("output")] == in_entries(engine, {"how": how}), how
            assert row.output is None
        last = await app.run({"kind": "end", "how": "retry"}, max_attempts=1)
        assert last[0].state is awa.JobState.FAILED
        assert [last[0].errors[-1].get("output")] == in_entries(engine, {"how": "retry"})

    run(scenario)


def test_a_failed_follow_up_stage_keeps_it_in_its_error_entry(run: Run, engine: str) -> None:
    async def scenario(app: App) -> None:
        @app.task(Resize)
        def resize(job: Any) -> None:
            job.set_output("what was done")
            job.enqueue_on_completion({}, kind="follow", priority=9)

        [row] = await app.run(Resize())
        assert (row.state, row.output) == (awa.JobState.FAILED, None)
        assert [entry.get("output") for entry in row.errors] == in_entries(engine, "what was done")

    run(scenario)


def test_snooze_discards_it_and_counts_that(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(app: App) -> None:
        @app.task(Resize)
        def resize(job: Any) -> Any:
            job.set_output(1)
            return awa.Snooze(1000)

        [row] = await app.run(Resize())
        assert (row.state, row.output, row.errors) == (awa.JobState.SCHEDULED, None, [])

    with caplog.at_level(logging.WARNING, "awa"):
        run(scenario)
    assert "an output is not kept" in caplog.text
    assert "reason='outcome'" in caplog.text


def test_only_the_latest_entry_to_record_one_keeps_an_output(run: Run, engine: str) -> None:
    async def scenario(app: App) -> None:
        seen: list[Any] = []

        @app.task(Resize)
        def resize(job: Any) -> Any:
            seen.append([entry.get("output") for entry in job.errors])
            if job.attempt < 3:
                job.set_output(job.attempt)
                return awa.RetryAfter(0)
            raise RuntimeError("boom")

        row = await app.client.insert(Resize(), max_attempts=3)
        while not row.state.is_terminal:
            await app.work()
            row = await app.client.get_job(row.id)
        assert [entry.get("output") for entry in row.errors] == [None, *in_entries(engine, 2), None]
        assert seen == [[], [None], [None, None]], "an attempt cannot resume from the output of the one before"

    run(scenario)


def test_an_admin_cancel_keeps_none_for_that_process_never_saw_it(run: Run) -> None:
    async def scenario(app: App) -> None:
        def resize(job: Any) -> Iterator[Any]:
            job.set_output("never seen")
            yield job.client.cancel(job.id)

        app.task(Resize)(resize)
        [row] = await app.run(Resize())
        assert (row.state, row.output) == (awa.JobState.CANCELLED, None)
        assert [entry for entry in row.errors if "output" in entry] == []

    run(scenario)


# Reading outputs


def test_the_job_of_a_completed_event_carries_it_and_the_row_of_a_registered_follow_up_does_not(
    run: Run, engine: str
) -> None:
    async def scenario(app: App) -> None:
        heard: list[Any] = []
        rows: list[Any] = []

        @app.task(Resize)
        def resize(job: Any) -> None:
            job.set_output({"n": 1})

        @app.on_event(Resize)
        def hear(event: Any) -> None:
            if isinstance(event, awa.events.Completed):
                heard.append(event.job.output)

        @app.on_completed_enqueue(Resize)
        def follow(args: Resize, job: awa.JobRow) -> None:
            rows.append(job.output)

        await app.client.insert(Resize())
        await app.test.work_one(Resize)
        assert rows == [None]
        assert heard == [{"n": 1}] or engine == "canonical"

    run(scenario)


def test_in_sql_it_is_the_column_output_of_terminal_jobs_byte_for_byte(run: Run, database: str, engine: str) -> None:
    """And of no other view; cast to jsonb it can be compared."""

    async def scenario(app: App) -> None:
        @app.task(kind="k")
        def record(job: Any) -> None:
            job.set_output(job.args["value"])

        values: list[Any] = [{"z": 1.0, "a": [1e100, "ü\n"], "b": 0.1}, 1.0, "", False, None]
        texts = ['{"z":1.0,"a":[1e+100,"ü\\n"],"b":0.1}', "1.0", '""', "false", None]
        rows = await app.run(*({"kind": "k", "value": value} for value in values))
        with psycopg.connect(database) as connection:
            stored = connection.execute("SELECT id, output::text FROM awa.terminal_jobs ORDER BY id").fetchall()
            assert stored == [(row.id, stores(engine, text)) for row, text in zip(rows, texts, strict=True)]
            found = connection.execute("SELECT id FROM awa.terminal_jobs WHERE output::jsonb @> '{\"z\":1}'").fetchall()
            assert found == ([(rows[0].id,)] if engine == "queue" else [])
            column = "SELECT FROM pg_attribute WHERE attrelid = 'awa.jobs'::regclass AND attname = 'output'"
            assert connection.execute(column).fetchall() == []

    run(scenario)


def test_lists_do_not_load_outputs(run: Run) -> None:
    async def scenario(app: App) -> None:
        @app.task(kind="end")
        def end(job: Any) -> None:
            job.set_output("here")
            if job.args["fails"]:
                raise awa.TerminalError("no")

        await app.run({"kind": "end", "fails": False}, {"kind": "end", "fails": True})
        rows = await app.client.list_jobs()
        assert [row.output for row in rows] == [None, None]
        assert [entry.get("output") for row in rows for entry in row.errors] == [None]

    run(scenario)


def test_the_text_is_kept_byte_for_byte(run: Run, engine: str) -> None:
    if engine != "queue":
        pytest.skip("outputs are stored on queue storage only")

    async def scenario(app: App) -> None:
        @app.task(Resize)
        def resize(job: Any) -> None:
            job.set_output({"z": 1.0, "a": [1e100, "ü\n"], "b": 0.1})

        rows = await app.run(Resize(), Resize())
        text = '{"z":1.0,"a":[1e+100,"ü\\n"],"b":0.1}'
        assert [row.output_json for row in rows] == [text, text]

    run(scenario)


def test_jobs_with_and_without_outputs_share_a_batch(run: Run, engine: str) -> None:
    async def scenario(app: App) -> None:
        @app.task(kind="n")
        def numbered(job: Any) -> None:
            if job.args["n"] % 3 == 0:
                job.set_output({"n": job.args["n"]})

        rows = await app.client.insert_many([{"kind": "n", "n": n} for n in range(60)])
        await app.work()
        outputs = [(await app.client.get_job(row.id)).output_json for row in rows]
        assert outputs == [stores(engine, f'{{"n":{n}}}') if n % 3 == 0 else None for n in range(60)]

    run(scenario)


def test_a_batch_row_starts_afresh_at_64_kib_of_outputs(run: Run, database: str, engine: str) -> None:
    if engine != "queue":
        pytest.skip("outputs are stored on queue storage only")

    async def scenario(app: App) -> None:
        @app.task(kind="n")
        def numbered(job: Any) -> None:
            job.set_output(str(job.args["n"]).rjust(4000, "x"))

        rows = await app.client.insert_many([{"kind": "n", "n": n} for n in range(100)])
        await app.work()
        for n, row in enumerate(rows):
            assert (await app.client.get_job(row.id)).output == str(n).rjust(4000, "x")
        with psycopg.connect(database) as connection:
            [(largest,)] = connection.execute("SELECT max(octet_length(outputs::text)) FROM awa.closures").fetchall()
        assert 4000 < largest <= 66_000

    run(scenario)


def test_a_failed_output_lives_in_the_dead_letters_and_on_a_job_that_later_completes(run: Run, engine: str) -> None:
    async def scenario(app: App) -> None:
        @app.task(Resize)
        def resize(job: Any) -> Any:
            job.set_output({"attempt": job.attempt})
            if job.args.width == 0:
                raise awa.TerminalError("no")
            return awa.RetryAfter(0) if job.attempt == 1 else None

        dead = await app.client.insert(Resize(0))
        later = await app.client.insert(Resize(1))
        while not (row := await app.client.get_job(later.id)).state.is_terminal:
            await app.work()
        assert row.output_json == stores(engine, '{"attempt":2}')
        assert [entry.get("output") for entry in row.errors] == in_entries(engine, {"attempt": 1})
        letter = await app.client.get_dlq_job(dead.id)
        assert [entry.get("output") for entry in letter.errors] == in_entries(engine, {"attempt": 1})

    run(scenario, dead_letters=True)


# External completion, metrics


def test_recorded_and_dropped_outputs_are_counted(run: Run, engine: str) -> None:
    async def scenario(app: App) -> None:
        @app.task(kind="end")
        def end(job: Any) -> Any:
            for value in ({1}, "x" * 5000, {1}):
                with pytest.raises(awa.OutputError):
                    job.set_output(value)
            job.set_output("four")
            return awa.Snooze(1000) if job.args["how"] == "snooze" else None

        for how in ("done", "snooze"):
            await app.client.insert({"kind": "end", "how": how})
        async with app.client.worker({"default": 5}) as worker:
            await worker.drained()
            tally = worker.tally
            dropped = {
                dict(labels)["awa.output.reason"]: times
                for (metric, labels), times in tally.counts.items()
                if metric == "awa.job.output_dropped"
            }
        assert dropped == {"invalid": 4, "too_large": 2, "outcome": 1} | ({} if engine == "queue" else {"canonical": 1})
        assert tally.total("awa.job.output_recorded", {"awa.job.outcome": "completed"}) == (engine == "queue")

    run(scenario)


def test_sizes_are_counted_by_kind_queue_and_outcome_and_warnings_come_once_a_minute(
    run: Run, engine: str, caplog: pytest.LogCaptureFixture
) -> None:
    if engine != "queue":
        pytest.skip("outputs are stored on queue storage only")

    async def scenario(app: App) -> None:
        @app.task(Resize, queue="images")
        def resize(job: Any) -> None:
            for _ in range(3):
                with pytest.raises(awa.OutputError.Invalid):
                    job.set_output({1})
            job.set_output("ü" * job.args.width)
            if job.args.width == 3:
                raise awa.TerminalError("no")

        await app.client.insert_many([Resize(1), Resize(2), Resize(3)])
        async with app.client.worker({"images": 1}) as worker:
            await worker.drained()
        labels = {"awa.job.kind": "resize", "awa.job.queue": "images"}
        for outcome, times, size in (("completed", 2, 4 + 6), ("failed", 1, 8)):
            key = tuple(sorted((labels | {"awa.job.outcome": outcome}).items()))
            assert worker.tally.counts["awa.job.output_recorded", key] == times
            assert worker.tally.counts["awa.job.output_size", key] == times
            assert worker.tally.sums["awa.job.output_size", key] == size

    with caplog.at_level(logging.WARNING, "awa"):
        run(scenario)
    assert caplog.text.count("reason='invalid'") == 1


def test_an_output_is_json_a_reader_of_another_language_can_read() -> None:
    assert json.loads(output.encode({"deep": [{"er": (1, "ü")}]}) or "") == {"deep": [{"er": [1, "ü"]}]}
