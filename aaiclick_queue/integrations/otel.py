"""OpenTelemetry: a producer span at the enqueue, a consumer span at each execution, the W3C context between them.

Only the API is used: where spans go is set up by the application, or by the standard OTEL_* variables.
"""

from __future__ import annotations

from typing import Any, Literal

from ..context import current
from ..errors import MissingExtra, WrongContext
from ..middleware import Enqueuing, Middleware, Proceed, Running
from ..outcome import Error, Failed, Later, Lost, Outcome, kind_of

try:
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode, TracerProvider
except ImportError as missing:
    raise MissingExtra("aaiclick_queue.integrations.otel", "otel") from missing

SYSTEM = "aaiclick_queue"
OURS = f"messaging.{SYSTEM}."
FAR_SECONDS = 3600.0  # a trace that is open for hours is of no use: beyond this the spans are linked


class Tracing(Middleware):
    """Spans around enqueue and execute."""

    def __init__(
        self, tracer_provider: TracerProvider | None = None, *, propagation: Literal["parent", "link"] = "parent"
    ) -> None:
        """`propagation`: a run continues the trace of its enqueue, or begins its own and links to it."""
        # Of the global provider it is a proxy: an application may set that up later.
        self._tracer = trace.get_tracer("aaiclick_queue", tracer_provider=tracer_provider)
        self._links = propagation == "link"

    async def enqueue(self, call: Enqueuing, proceed: Proceed[list[int]]) -> list[int]:
        """A span of kind PRODUCER; its context travels in the headers."""
        attributes = _attributes("enqueue", "send", call.queue, call.entrypoint)
        with self._tracer.start_as_current_span(
            f"enqueue {call.queue}", context=_context_here(), kind=SpanKind.PRODUCER, attributes=attributes
        ) as span:
            propagate.inject(call.headers)
            ids = await proceed()
            if call.count == 1:
                span.set_attribute("messaging.message.id", str(ids[0]))
            else:
                span.set_attribute("messaging.batch.message_count", call.count)
            return ids

    async def execute(self, run: Running, proceed: Proceed[Outcome]) -> Outcome:
        """A span of kind CONSUMER, the current one while the task runs; an attempt that failed has status ERROR."""
        context, links = self._origin(run)
        attributes = _attributes("process", "process", run.queue, run.entrypoint) | {
            "messaging.message.id": str(run.task_id),
            "messaging.client.id": str(run.worker_id),
            f"{OURS}attempt": run.attempt,
            f"{OURS}max_attempts": run.max_attempts,
            f"{OURS}wait_seconds": run.waited,
        }
        with self._tracer.start_as_current_span(
            f"process {run.queue}", context=context, kind=SpanKind.CONSUMER, attributes=attributes, links=links
        ) as span:
            outcome = await proceed()
            span.set_attribute(f"{OURS}outcome", kind_of(outcome))
            if error := _error(outcome):
                span.set_attribute("error.type", error.type)
                span.set_status(Status(StatusCode.ERROR, f"{error.type}: {error.message}"))
                if run.error is not None:
                    span.record_exception(run.error)
            return outcome

    def _origin(self, run: Running) -> tuple[Context, list[Link]]:
        found = propagate.extract(run.headers, context=Context())
        made = trace.get_current_span(found).get_span_context()
        if not made.is_valid:
            return Context(), []
        if self._links or run.age > FAR_SECONDS:
            return Context(), [Link(made)]
        return found, []


def _context_here() -> Context | None:
    """None is the current context; in a run without a span, as in a process of its own, that of its enqueue."""
    if trace.get_current_span().get_span_context().is_valid:
        return None
    try:
        return propagate.extract(current().headers)
    except WrongContext:
        return None


def _attributes(name: str, kind: str, queue: str, entrypoint: str) -> dict[str, Any]:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": queue,
        f"{OURS}kind": entrypoint,
    }


def _error(outcome: Outcome) -> Error | None:
    match outcome:
        case Failed(error) | Lost(error) | Later("RETRYING", error):
            return error
    return None
