"""OpenTelemetry's SDK for a process of ours: exporter, sampler and resource by the standard OTEL_* variables alone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ..errors import MissingExtra
from ..middleware import installed
from ..settings import Settings
from ..spans import TOLD

try:
    from opentelemetry import context, trace
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as missing:
    raise MissingExtra("AAICLICK_QUEUE_TRACING=on", "otel") from missing

from .otel import Tracing
from .otel_flow import FlowSpans
from .otel_ids import TaskIds

NAME = "aaiclick-queue"
CONTEXT = ("traceparent", "tracestate")


def turn_on(settings: Settings) -> None:
    """Make spans from now on; an application that has set up a provider of its own keeps it."""
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider):
        provider = _provider()
        trace.set_tracer_provider(provider)
    if not any(isinstance(one, Tracing) for one in installed):
        installed.insert(0, Tracing(provider))
    TOLD.tracer = FlowSpans(provider, settings)


def turn_off() -> None:
    """Make no more spans."""
    TOLD.tracer = None
    installed[:] = [one for one in installed if not isinstance(one, Tracing)]


@contextmanager
def continued(headers: Mapping[str, str]) -> Iterator[None]:
    """Inside, the span of the caller is the current one, unless the application has made one of its own."""
    if trace.get_current_span().get_span_context().is_valid:
        yield
        return
    # Not its baggage: that would be kept with every task, whatever somebody has put into it.
    found = TraceContextTextMapPropagator().extract({name: headers[name] for name in CONTEXT if name in headers})
    token = context.attach(found)
    try:
        yield
    finally:
        context.detach(token)


def flush() -> None:
    """Send what was not sent yet, in bounded time."""
    provider = trace.get_tracer_provider()
    if isinstance(provider, TracerProvider):
        provider.force_flush(5000)


def _provider() -> TracerProvider:
    named = {} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": NAME}
    provider = TracerProvider(id_generator=TaskIds(), resource=Resource.create(named))
    exporter = _exporter(os.environ.get("OTEL_TRACES_EXPORTER", "otlp"))
    if exporter is not None:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _exporter(name: str) -> SpanExporter | None:
    if name == "none":
        return None
    if name == "console":
        return ConsoleSpanExporter()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()
