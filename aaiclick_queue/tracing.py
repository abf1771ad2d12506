"""Tracing as a switch: TRACING=on sets up OpenTelemetry's SDK by its own OTEL_* variables, in workers and loops."""

from __future__ import annotations

from .settings import Settings
from .spans import TOLD


def trace_if_wanted(settings: Settings) -> None:
    """Have this process make spans, where the settings say so; else nothing of OpenTelemetry is imported."""
    if settings.tracing == "on":
        from .integrations.otel_setup import turn_on

        turn_on(settings)


def flush_traces() -> None:
    """Send what was not sent yet."""
    if TOLD.tracer is not None:
        from .integrations.otel_setup import flush

        flush()
