"""Spans of what happens around enqueue and execute: relay, claim, complete, the end of a job, the background loops."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TracerProvider

from ..middleware import headers_of
from ..outcome import Outcome, word_of
from ..settings import Settings
from .otel import OURS, PARENT, attributes_of, ran_in
from .otel_ids import next_ids

LINKS_LIMIT = 128


class FlowSpans:
    """Told by the flow through `spans.TOLD`."""

    def __init__(self, provider: TracerProvider | None, settings: Settings) -> None:
        self._tracer = trace.get_tracer("aaiclick_queue", tracer_provider=provider)
        self._server = _server(settings)

    def relayed(self, queues: Sequence[str], parents: Iterable[str | None], began: float, *, own: bool) -> None:
        """One span a round; that of an enqueue's own process is in its trace."""
        context, links = (None, []) if own else _origin(parents)
        name = queues[0] if len(set(queues)) == 1 else "(several)"
        self._span(
            f"relay {name}", attributes_of("relay", "send", name) | {"messaging.batch.message_count": len(queues)},
            began, context, links,
        )  # fmt: skip

    def claimed(self, runs: Sequence[Any], worker_id: int, began: float) -> None:
        """One span for each queue that something was claimed of."""
        by_queue: dict[str, list[Any]] = {}
        for run in runs:
            by_queue.setdefault(run.queue, []).append(run)
        for queue, some in by_queue.items():
            context, links = _origin(headers_of(run.metadata).get("traceparent") for run in some)
            more = {"messaging.batch.message_count": len(some), "messaging.client.id": str(worker_id)}
            self._span(f"claim {queue}", attributes_of("claim", "receive", queue) | more, began, context, links)

    def completed(self, run: Any, outcome: Outcome) -> None:
        """A child of the run's span."""
        self._settled(run.task_id, run.run_epoch, run.queue, {f"{OURS}outcome": word_of(outcome)})

    def gone(self, task_id: int, run_epoch: int) -> None:
        """The same, with status ERROR."""
        self._settled(task_id, run_epoch, None, {f"{OURS}lease_lost": True, "error.type": "LeaseLost"})

    def job_ended(self, row: Any) -> None:
        """The span that all of the job's are below, with the ids that the submit stored."""
        headers = headers_of(row["metadata"])
        found = trace.get_current_span(propagate.extract(headers, context=Context())).get_span_context()
        attributes = {
            "messaging.system": "aaiclick_queue",
            "messaging.message.conversation_id": str(row["id"]),
            f"{OURS}outcome": row["status"].lower(),
        }
        parent = _context_of(headers.get(PARENT))
        with next_ids(found.span_id, found.trace_id):
            span = self._tracer.start_span(
                f"job {row['name']}", context=parent, attributes=attributes, start_time=int(row["created"] * 1e9)
            )
        if row["status"] == "FAILED":
            span.set_attribute("error.type", row["error_type"] or "JobFailed")
            span.set_status(Status(StatusCode.ERROR))
        span.end()

    def worked(self, what: str, count: int, began: float) -> None:
        """A span of its own, of kind INTERNAL."""
        self._span(what, {f"{OURS}count": count}, began, Context(), [], kind=SpanKind.INTERNAL)

    def _settled(self, task_id: int, run_epoch: int, queue: str | None, more: dict[str, Any]) -> None:
        found = ran_in.pop((task_id, run_epoch), None)
        if found is None:
            return
        ran, ended, of_queue = found
        context = trace.set_span_in_context(trace.NonRecordingSpan(ran), Context())
        attributes = attributes_of("complete", "settle", queue or of_queue) | more
        span = self._tracer.start_span(
            f"complete {queue or of_queue}", context=context, kind=SpanKind.CLIENT, start_time=ended,
            attributes=attributes | self._server | {"messaging.message.id": str(task_id)},
        )  # fmt: skip
        if "error.type" in more:
            span.set_status(Status(StatusCode.ERROR, "the run had lost its lease: nothing of it was recorded"))
        span.end()

    def _span(  # noqa: PLR0913, PLR0917 - one value a fact
        self,
        name: str,
        attributes: dict[str, Any],
        began: float,
        context: Context | None,
        links: Sequence[Link],
        kind: SpanKind = SpanKind.CLIENT,
    ) -> None:
        start = time.time_ns() - int((time.monotonic() - began) * 1e9)
        given = attributes | (self._server if kind is SpanKind.CLIENT else {})
        self._tracer.start_span(name, context=context, kind=kind, attributes=given, links=links, start_time=start).end()


def _origin(parents: Iterable[str | None]) -> tuple[Context, list[Link]]:
    """A child of the one context that there is, else linked to the first of them."""
    contexts = [_span_context(parent) for parent in dict.fromkeys(parents) if parent]
    found = [context for context in contexts if context.is_valid]
    if len(found) == 1:
        return trace.set_span_in_context(trace.NonRecordingSpan(found[0]), Context()), [Link(found[0])]
    return Context(), [Link(context) for context in found[:LINKS_LIMIT]]


def _span_context(parent: str) -> SpanContext:
    return trace.get_current_span(propagate.extract({"traceparent": parent}, context=Context())).get_span_context()


def _context_of(parent: str | None) -> Context:
    return propagate.extract({"traceparent": parent}, context=Context()) if parent else Context()


def _server(settings: Settings) -> dict[str, Any]:
    if settings.postgres_url is None:
        return {}
    parts = urlsplit(settings.postgres_url)
    host = (parts.netloc.rpartition("@")[2].split(",")[0].rpartition(":")[0] or parts.hostname or "").strip("[]")
    try:
        port = parts.port
    except ValueError:  # several hosts
        port = None
    return ({"server.address": host} if host else {}) | {"server.port": port or 5432}
