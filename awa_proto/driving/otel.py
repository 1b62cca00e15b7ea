"""Tracing by OpenTelemetry, where the application uses it.

Nothing of OpenTelemetry is imported before the application has done so itself: until then there can be no span to be
inside of, and nobody who would take one. So who does not use it pays a look into a dictionary for each call that
enqueues, and a look at None for each job that runs.

A failure in here (a processor or an exporter of the application's that raises) is logged, and changes nothing of a job.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from awa_proto import tracing
from awa_proto.error_text import type_name
from awa_proto.outcome import Raised, Returned
from awa_proto.tracing import Execution, SpanContext, Traced, Tracer
from awa_proto.version import VERSION
from awa_proto.worker.events import StartJob
from awa_proto.worker.report import about

if TYPE_CHECKING:
    from opentelemetry import trace

T = TypeVar("T")

_log = logging.getLogger("awa")
_API = "opentelemetry.trace"


def traceparent() -> str | None:
    """The context of the current span, as W3C Trace Context; None outside of one."""
    if _API not in sys.modules:
        return None
    from opentelemetry import trace  # noqa: PLC0415  see above

    try:
        context = trace.get_current_span().get_span_context()
        if context.is_valid:
            return tracing.write(SpanContext(context.trace_id, context.span_id, context.trace_flags))
    except Exception:  # noqa: BLE001  see above
        _log.exception("the trace context of a call could not be read; its jobs have none")
    return None


def tracer() -> Tracer | None:
    """What makes the spans of a worker; None while the application has set no tracer provider."""
    if _API not in sys.modules:
        return None
    from opentelemetry import trace  # noqa: PLC0415  see above

    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return _Tracer(provider.get_tracer("awa", VERSION))


def traced(tracer: Tracer, start: StartJob, job: Any) -> object:
    """What a plain handler returns, inside of the span of its attempt. In a context of its own."""
    with tracer.attempt(start, job) as execution:
        value = start.task.handler(job)
        execution.returned(value)
    return value


async def traced_awaited(tracer: Tracer, start: StartJob, job: Any) -> object:
    """What an `async def` handler returns, inside of the span of its attempt. In a task of its own."""
    with tracer.attempt(start, job) as execution:
        handler: Awaitable[object] = start.task.handler(job)
        value = await handler
        execution.returned(value)
    return value


def handler_call(start: StartJob, job: Any) -> Callable[[], Any]:
    """The call of a handler, inside of a span where there is a tracer: for one job, outside of a worker."""
    found = tracer()
    if found is None:
        return partial(start.task.handler, job)
    return partial(traced_awaited if start.task.is_async else traced, found, start, job)


class _Tracer:
    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    def attempt(self, start: StartJob, job: Traced) -> Execution:
        return _Execution(self._tracer, start, job)


class _Execution:
    """A span of OpenTelemetry. It is never detached: the context it is current in ends with the handler."""

    __slots__ = ("_job", "_returned", "_span", "_start", "_tracer")

    def __init__(self, tracer: trace.Tracer, start: StartJob, job: Traced) -> None:
        self._tracer = tracer
        self._start = start
        self._job = job
        self._span: trace.Span | None = None
        self._returned: Returned | None = None

    def __enter__(self) -> Self:
        try:
            self._begin()
        except Exception:  # noqa: BLE001  see above
            _log.exception(
                "job %d runs without a span", self._start.attempt.id, extra={"awa": about(self._start.attempt)}
            )
        return self

    def returned(self, value: object) -> None:
        self._returned = Returned(value)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._span is None:
            return
        try:
            self._end(self._span, error)
        except Exception:  # noqa: BLE001  see above
            attempt = self._start.attempt
            _log.exception("the span of job %d could not be ended", attempt.id, extra={"awa": about(attempt)})

    def _begin(self) -> None:
        from opentelemetry import context, trace  # noqa: PLC0415  see above

        attempt = self._start.attempt
        origin, is_first = tracing.origin(attempt)
        within, links = context.Context(), []
        if origin is not None:
            enqueued_in = trace.SpanContext(
                origin.trace_id, origin.span_id, is_remote=True, trace_flags=trace.TraceFlags(origin.flags)
            )
            if is_first:
                within = trace.set_span_in_context(trace.NonRecordingSpan(enqueued_in), within)
            else:
                links.append(trace.Link(enqueued_in))
        span = self._tracer.start_span(
            f"awa.job {attempt.kind}",
            within,
            kind=trace.SpanKind.CONSUMER,
            attributes=tracing.attributes(attempt),
            links=links,
        )
        context.attach(trace.set_span_in_context(span))
        self._span = span

    def _end(self, span: trace.Span, error: BaseException | None) -> None:
        from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415  see above

        if span.is_recording():
            attempt = self._start.attempt
            ended = Raised(error) if error is not None else self._returned or Returned(None)
            recording = self._start.recordings.get((attempt.id, attempt.run_lease))
            told = tracing.told(attempt, ended, self._job.cancel_reason, recording)
            span.set_attribute("awa.job.outcome", told.outcome)
            if told.error is not None:
                span.set_attribute("error.type", "_OTHER" if told.exception is None else type_name(told.exception))
                if told.exception is not None:
                    span.record_exception(told.exception)
                span.set_status(Status(StatusCode.ERROR, told.error))
        span.end()
