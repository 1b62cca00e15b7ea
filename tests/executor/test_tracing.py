"""The page on tracing: a span for each attempt, in the trace of what enqueued the job, on every driver."""

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from typing_extensions import override

import awa_proto as awa
from awa_proto import tracing
from awa_proto.driving import otel
from tests.flavours import App

Run = Callable[..., None]


@dataclass
class Charge:
    how: str = "done"


@dataclass
class Receipt:
    of: int = 0


class Spans:
    """The spans that ended while a provider is set, and a tracer of the application's own."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._tracer = self.provider.get_tracer("test")

    def request(self) -> Any:
        """`with` it: a current span."""
        return self._tracer.start_as_current_span("request")

    def named(self, name: str) -> list[Any]:
        """Those that ended, oldest first."""
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def only(self, name: str) -> Any:
        """The one of that name."""
        [span] = self.named(name)
        return span


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    """As after `trace.set_tracer_provider`, which a process can do once."""
    found = Spans()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: found.provider)
    yield found
    found.provider.shutdown()


def of(span: Any) -> str:
    """The traceparent of a span."""
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def ends(job: Any) -> Any:
    """Ends as its args say, when it runs for the first time; then it completes."""
    if job.attempt > 1 or job.progress is not None:
        return None
    job.set_progress(1)
    match job.args.how:
        case "error":
            raise LookupError("no such card")
        case "terminal":
            raise awa.TerminalError("stolen")
        case "retry":
            return awa.RetryAfter(0)
        case "snooze":
            return awa.Snooze(0)
        case "cancel":
            return awa.Cancel("enough")
        case _:
            return None


# what enqueues


def test_a_job_keeps_the_context_it_was_enqueued_in(run: Run, spans: Spans) -> None:
    async def scenario(app: App) -> None:
        client = app.client
        before = await client.insert(Charge())
        with spans.request():
            rows = [await client.insert(Charge(), tags=["t"], metadata={"m": 1})]
            rows += await client.insert_many([Charge(), awa.EnqueueRequest(Charge()).priority(1)])
            await client.enqueue_many([Charge(), Charge()])
            async with client.transaction() as tx:
                rows.append(await tx.insert(Charge()))
        after = await client.insert(Charge())
        request = spans.only("request")
        inside = [job for job in await client.list_jobs() if job.id not in {before.id, after.id}]
        assert [job.metadata["awa:traceparent"] for job in inside] == [of(request)] * 6
        assert [row.metadata for row in (before, after)] == [{}, {}]
        assert (rows[0].metadata["m"], rows[0].tags) == (1, ["t"])

    run(scenario)


def test_a_context_of_the_users_own_counts_more(run: Run, spans: Spans) -> None:
    async def scenario(app: App) -> None:
        app.task(Charge)(ends)
        with spans.request():
            pass
        other = spans.only("request")
        with spans.request():
            await app.run(Charge(), metadata={"awa:traceparent": of(other)})
        assert spans.only("awa.job charge").parent.span_id == other.get_span_context().span_id

    run(scenario)


def test_a_context_is_handed_on_where_only_the_api_is_there(run: Run) -> None:
    """Without a provider, a span of somebody else can be the current one."""
    remote = trace.SpanContext(5, 6, is_remote=True, trace_flags=trace.TraceFlags(1))

    async def scenario(app: App) -> None:
        with trace.use_span(trace.NonRecordingSpan(remote)):
            row = await app.client.insert(Charge())
        assert row.metadata == {"awa:traceparent": tracing.write(tracing.SpanContext(5, 6, 1))}

    run(scenario)


# what works


def test_an_attempt_is_a_span_in_the_trace_that_enqueued_its_job(run: Run, spans: Spans) -> None:
    async def scenario(app: App) -> None:
        app.task(Charge, queue="money")(ends)
        with spans.request():
            [row] = await app.run(Charge())
        request, span = spans.only("request"), spans.only("awa.job charge")
        assert row.state is awa.JobState.COMPLETED
        assert span.kind is SpanKind.CONSUMER
        assert span.parent.span_id == request.get_span_context().span_id
        assert span.parent.is_remote
        assert span.get_span_context().trace_id == request.get_span_context().trace_id
        assert (span.links, span.events, span.status.status_code) == ((), (), StatusCode.UNSET)
        assert dict(span.attributes) == {
            "messaging.system": "awa",
            "messaging.operation.type": "process",
            "messaging.operation.name": "process",
            "messaging.destination.name": "money",
            "messaging.message.id": str(row.id),
            "awa.job.id": row.id,
            "awa.job.kind": "charge",
            "awa.job.queue": "money",
            "awa.job.attempt": 1,
            "awa.job.outcome": "completed",
        }
        assert span.instrumentation_scope.name == "awa"

    run(scenario)


@pytest.mark.parametrize(("how", "first"), [("retry", "retried"), ("snooze", "snooze")])
def test_a_later_attempt_is_a_trace_of_its_own_with_a_link(run: Run, spans: Spans, how: str, first: str) -> None:
    async def scenario(app: App) -> None:
        app.task(Charge)(ends)
        with spans.request():
            row = await app.client.insert(Charge(how))
        while (await app.client.get_job(row.id)).state is not awa.JobState.COMPLETED:
            await app.work()
        request = spans.only("request").get_span_context()
        one, two = spans.named("awa.job charge")
        assert one.parent.span_id == request.span_id
        assert two.parent is None
        assert two.get_span_context().trace_id != request.trace_id
        [link] = two.links
        assert (link.context.trace_id, link.context.span_id, link.context.is_remote) == (
            request.trace_id,
            request.span_id,
            True,
        )
        assert [span.attributes["awa.job.outcome"] for span in (one, two)] == [first, "completed"]
        assert one.status.status_code is StatusCode.UNSET

    run(scenario)


def test_a_failure_is_an_error_with_its_exception(run: Run, spans: Spans) -> None:
    async def scenario(app: App) -> None:
        app.task(Charge)(ends)
        await app.run(Charge("error"), Charge("terminal"), Charge("cancel"))
        found = {span.attributes["awa.job.outcome"]: span for span in spans.named("awa.job charge")}
        retried, exhausted, cancelled = found["retried"], found["exhausted"], found["cancelled"]
        assert (retried.status.status_code, retried.status.description) == (
            StatusCode.ERROR,
            "LookupError: no such card",
        )
        [event] = retried.events
        assert (event.name, event.attributes["exception.type"]) == ("exception", "LookupError")
        assert retried.attributes["error.type"] == "LookupError"
        assert exhausted.status.status_code is StatusCode.ERROR
        assert (cancelled.status.status_code, cancelled.events) == (StatusCode.UNSET, ())

    run(scenario)


def test_a_job_without_a_context_is_a_trace_of_its_own_wherever_its_worker_was_entered(run: Run, spans: Spans) -> None:
    async def scenario(app: App) -> None:
        app.task(Charge)(ends)
        await app.client.insert(Charge())
        await app.client.insert(Charge(), metadata={"awa:traceparent": "unreadable"})
        with spans.request():
            await app.work()
        for span in spans.named("awa.job charge"):
            assert (span.parent, span.links) == (None, ())
        assert len(spans.named("awa.job charge")) == 2

    run(scenario)


def test_the_span_is_current_while_the_handler_runs(run: Run, spans: Spans) -> None:
    async def scenario(app: App) -> None:
        seen: list[Any] = []

        @app.task(Charge)
        def charge(job: Any) -> None:
            seen.append(trace.get_current_span().get_span_context().span_id)
            trace.get_current_span().set_attribute("card", "visa")
            with spans.request():
                pass

        await app.run(*[Charge() for _ in range(5)])
        found = spans.named("awa.job charge")
        assert sorted(seen) == sorted(span.get_span_context().span_id for span in found)
        assert {span.attributes["card"] for span in found} == {"visa"}
        assert sorted(span.parent.span_id for span in spans.named("request")) == sorted(seen)
        assert not trace.get_current_span().get_span_context().is_valid

    run(scenario)


def test_what_a_handler_enqueues_and_stages_belongs_to_its_span(run: Run, spans: Spans) -> None:
    async def scenario(app: App) -> None:
        app.task(Receipt, queue="mail")(ends)

        def stages(job: Any) -> None:
            job.enqueue_on_completion(Receipt(1))
            job.enqueue_on_completion(awa.EnqueueRequest(Receipt(2)).priority(1))

        if app.is_async:

            async def charge(job: Any) -> None:
                stages(job)
                await job.client.insert(Receipt(3))

            app.client.task(Charge)(charge)
        else:

            def charge_plainly(job: Any) -> None:
                stages(job)
                job.client.insert(Receipt(3))

            app.client.task(Charge)(charge_plainly)
        with spans.request():
            await app.run(Charge())
        receipts = await app.client.list_jobs(kind="receipt")
        assert [job.metadata["awa:traceparent"] for job in receipts] == [of(spans.only("awa.job charge"))] * 3

    run(scenario)


def test_registered_follow_ups_belong_to_what_their_job_belongs_to(run: Run, spans: Spans) -> None:
    async def scenario(app: App) -> None:
        app.task(Charge)(ends)
        app.task(Receipt, queue="mail")(ends)
        app.on_completed_enqueue(Charge)(lambda _args, _job: Receipt())
        row = await app.client.insert(Charge())
        with spans.request():
            traced = await app.client.insert(Charge())
            await app.work()
        receipts = await app.client.list_jobs(kind="receipt")
        assert sorted(job.metadata.get("awa:traceparent", "") for job in receipts) == ["", of(spans.only("request"))]
        assert [(await app.client.get_job(each.id)).state for each in (row, traced)] == [awa.JobState.COMPLETED] * 2

    run(scenario)


def test_what_is_staged_outside_of_any_span_belongs_to_what_its_job_belongs_to(run: Run) -> None:
    text = tracing.write(tracing.SpanContext(5, 6, 1))

    async def scenario(app: App) -> None:
        app.task(Receipt, queue="mail")(ends)
        app.task(Charge)(lambda job: job.enqueue_on_completion(Receipt()))
        await app.run(Charge(), metadata={"awa:traceparent": text})
        [receipt] = await app.client.list_jobs(kind="receipt")
        assert receipt.metadata == {"awa:traceparent": text}

    run(scenario)


def test_a_trace_that_breaks_changes_nothing_of_a_job(run: Run, spans: Spans, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(SpanProcessor):
        broken_at = "start"

        @override
        def on_start(self, span: Any, parent_context: Any = None) -> None:
            if self.broken_at == "start":
                raise RuntimeError("no room for spans")

        @override
        def on_end(self, span: ReadableSpan) -> None:
            if self.broken_at == "end":
                raise RuntimeError("nobody takes spans")

    processor = Broken()
    spans.provider.add_span_processor(processor)

    async def scenario(app: App) -> None:
        app.task(Charge)(ends)
        caplog.clear()
        [row] = await app.run(Charge())
        processor.broken_at = "end"
        [other] = await app.run(Charge("error"))
        assert (row.state, other.state) == (awa.JobState.COMPLETED, awa.JobState.RETRYABLE)
        said = [record.message for record in caplog.records if record.levelno == logging.ERROR]
        assert said == [f"job {row.id} runs without a span", f"the span of job {other.id} could not be ended"]

    run(scenario)


# who does not use it


def test_there_is_no_tracer_without_a_provider() -> None:
    assert otel.tracer() is None
    assert otel.traceparent() is None


def test_nothing_of_opentelemetry_is_imported_for_those_who_do_not(database: str) -> None:
    program = f"""
import asyncio, sys
import awa_asyncio, awa_sync, awa_trio

async def main():
    async with awa_asyncio.Client({database!r}) as client:
        await client.migrate()

        @client.task(kind="x")
        async def x(job):
            job.enqueue_on_completion({{}}, kind="y")

        await client.insert({{}}, kind="x")
        async with client.worker({{"default": 1}}) as worker:
            await worker.drained()

asyncio.run(main())
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
