"""OpenTelemetry: a producer span at the enqueue, a consumer span at each execution, the W3C context between them.

Only the API is used: where spans go is set up by the application, or by `otel_setup` and the standard OTEL_* variables.
`otel_flow` adds what happens in between.
"""

from __future__ import annotations

import random
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from ..context import current
from ..errors import MissingExtra, WrongContext
from ..middleware import Enqueuing, Middleware, Proceed, Running
from ..outcome import Error, Failed, Later, Lost, Outcome, word_of
from ..spans import TOLD

try:
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import (
        Link,
        NonRecordingSpan,
        SpanContext,
        SpanKind,
        Status,
        StatusCode,
        TraceFlags,
        TracerProvider,
    )
except ImportError as missing:
    raise MissingExtra("aaiclick_queue.integrations.otel", "otel") from missing

SYSTEM = "aaiclick_queue"
OURS = f"messaging.{SYSTEM}."
PARENT = "aaiclick-queue-job-parent"  # beside a job's own context: what it was submitted in
BATCH = "enqueue_batch"
KEPT = 10_000
FAR_SECONDS = 3600.0  # a trace that is open for hours is of no use: beyond this the spans are linked


# Of runs that have ended: their span, when that was, and their queue, for the span of their completion.
ran_in: OrderedDict[tuple[int, int], tuple[SpanContext, int, str]] = OrderedDict()
# The last attempt of tasks that are tried again here.
tried_in: OrderedDict[int, SpanContext] = OrderedDict()


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
        name = "enqueue" if call.count == 1 else BATCH
        attributes = attributes_of(name, "send", call.queue, call.entrypoint)
        with self._tracer.start_as_current_span(
            f"{name} {call.queue}", context=_context_here(), kind=SpanKind.PRODUCER, attributes=attributes
        ) as span:
            propagate.inject(call.headers)
            ids = await proceed()
            if call.count == 1 and ids:
                span.set_attribute("messaging.message.id", str(ids[0]))
            else:
                span.set_attribute("messaging.batch.message_count", call.count)
            return ids

    async def execute(self, run: Running, proceed: Proceed[Outcome]) -> Outcome:
        """A span of kind CONSUMER, the current one while the task runs; an attempt that failed has status ERROR."""
        context, links = self._origin(run)
        attributes = attributes_of("process", "process", run.queue, run.entrypoint) | {
            "messaging.message.id": str(run.task_id),
            "messaging.client.id": str(run.worker_id),
            f"{OURS}attempt": run.attempt,
            f"{OURS}max_attempts": run.max_attempts,
            f"{OURS}wait_seconds": run.waited,
        }
        if run.job_id is not None:
            attributes["messaging.message.conversation_id"] = str(run.job_id)
        if run.group_id is not None:
            attributes[f"{OURS}group"] = str(run.group_id)
        with _ids_of(run):
            span = self._tracer.start_span(
                f"process {run.queue}", context=context, kind=SpanKind.CONSUMER, attributes=attributes, links=links
            )
        with trace.use_span(span, end_on_exit=True):
            outcome = await proceed()
            span.set_attribute(f"{OURS}outcome", word_of(outcome))
            _remember(run, span.get_span_context(), outcome)
            if error := error_of(outcome):
                span.set_attribute("error.type", error.type)
                span.set_status(Status(StatusCode.ERROR, f"{error.type}: {error.message}"))
                if run.error is not None:
                    # What the exception itself says may hold secrets; the error is without them.
                    told = {"exception.message": error.message, "exception.stacktrace": error.traceback}
                    span.record_exception(run.error, told if run.secrets else None)
            return outcome

    @contextmanager
    def submitting(self, name: str, headers: dict[str, str]) -> Iterator[None]:  # noqa: ARG002 - told at the job's end
        """The span of the job, which begins now and is made when the job ends: its context is stored with the job."""
        around = trace.get_current_span(_context_here()).get_span_context()
        trace_id = around.trace_id if around.is_valid else random.getrandbits(128) or 1
        flags = around.trace_flags if around.is_valid else TraceFlags(TraceFlags.SAMPLED)
        job = SpanContext(trace_id, random.getrandbits(64) or 1, is_remote=False, trace_flags=flags)
        if around.is_valid:
            headers[PARENT] = f"00-{trace_id:032x}-{around.span_id:016x}-{flags:02x}"
        with trace.use_span(NonRecordingSpan(job), end_on_exit=False):
            propagate.inject(headers)
            yield

    def _origin(self, run: Running) -> tuple[Context, list[Link]]:
        found = propagate.extract(run.headers, context=Context())
        made = trace.get_current_span(found).get_span_context()
        far = not made.is_valid or self._links or run.age > FAR_SECONDS
        links = [Link(made)] if made.is_valid and far else []
        return Context() if far else found, links + _tried_before(run, made, far=far)


def _tried_before(run: Running, made: SpanContext, *, far: bool) -> list[Link]:
    """The attempt before this one, as far as its ids are known: here, or by a provider whose ids are ours."""
    before = tried_in.pop(run.task_id, None)
    if before is not None:
        return [Link(before)]
    if run.attempt < 2 or TOLD.tracer is None:
        return []
    from .otel_ids import context_of, run_span_id, run_trace_id

    epoch = run.run_epoch - 1
    trace_id = run_trace_id(run.task_id, epoch) if far else made.trace_id
    return [Link(context_of(trace_id, run_span_id(run.task_id, epoch)))]


@contextmanager
def _ids_of(run: Running) -> Iterator[None]:
    if TOLD.tracer is None:
        yield
        return
    from .otel_ids import next_ids, run_span_id, run_trace_id

    with next_ids(run_span_id(run.task_id, run.run_epoch), run_trace_id(run.task_id, run.run_epoch)):
        yield


def _remember(run: Running, span: SpanContext, outcome: Outcome) -> None:
    if isinstance(outcome, Later):
        tried_in[run.task_id] = span
    if TOLD.tracer is not None:
        ran_in[run.task_id, run.run_epoch] = (span, time.time_ns(), run.queue)
    for kept in (tried_in, ran_in):
        while len(kept) > KEPT:
            kept.popitem(last=False)


def _context_here() -> Context | None:
    """None is the current context; in a run without a span, as in a process of its own, that of its enqueue."""
    if trace.get_current_span().get_span_context().is_valid:
        return None
    try:
        return propagate.extract(current().headers)
    except WrongContext:
        return None


def attributes_of(name: str, kind: str, queue: str, entrypoint: str | None = None) -> dict[str, Any]:
    """Those that every span of a queue has."""
    found = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": queue,
    }
    return found if entrypoint is None else found | {f"{OURS}kind": entrypoint}


def error_of(outcome: Outcome) -> Error | None:
    """The error of a run that failed, for good or not."""
    match outcome:
        case Failed(error) | Lost(error) | Later("RETRYING", error):
            return error
    return None
