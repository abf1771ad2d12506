"""Tracing as a switch: TRACING=on sets up OpenTelemetry's SDK by its own OTEL_* variables, in each of our processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from .settings import Settings
from .spans import TOLD


def trace_if_wanted(settings: Settings) -> None:
    """Have this process make spans, where the settings say so; else nothing of OpenTelemetry is imported."""
    if settings.tracing == "on":
        from .integrations.otel_setup import turn_on

        turn_on(settings)


@contextmanager
def in_trace_of(headers: Mapping[str, str]) -> Iterator[None]:
    """What is enqueued inside belongs to the trace that a request's headers name, where this process makes spans."""
    if TOLD.tracer is None:
        yield
        return
    from .integrations.otel_setup import continued

    with continued(headers):
        yield


def flush_traces() -> None:
    """Send what was not sent yet."""
    if TOLD.tracer is not None:
        from .integrations.otel_setup import flush

        flush()
