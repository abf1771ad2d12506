"""Ids of spans that are known before or after their process: a run's by its task, a job's by what its submit stored."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import SpanContext, TraceFlags

_span: ContextVar[int] = ContextVar("aaiclick_queue_span_id", default=0)
_trace: ContextVar[int] = ContextVar("aaiclick_queue_trace_id", default=0)

SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class TaskIds(RandomIdGenerator):
    """Random ids, but for the next span of a block that has given them."""

    def generate_span_id(self) -> int:
        """The one given, once."""
        given = _span.get()
        _span.set(0)
        return given or super().generate_span_id()

    def generate_trace_id(self) -> int:
        """The one given, once."""
        given = _trace.get()
        _trace.set(0)
        return given or super().generate_trace_id()


@contextmanager
def next_ids(span_id: int, trace_id: int = 0) -> Iterator[None]:
    """The next span that begins here has these ids, where the provider's ids are ours."""
    tokens = _span.set(span_id), _trace.set(trace_id)
    try:
        yield
    finally:
        _span.reset(tokens[0])
        _trace.reset(tokens[1])


def run_span_id(task_id: int, run_epoch: int) -> int:
    """The span id of a run, the same in every process."""
    return int.from_bytes(hashlib.blake2b(f"{task_id}:{run_epoch}".encode(), digest_size=8).digest()) or 1


def run_trace_id(task_id: int, run_epoch: int) -> int:
    """The trace id of a run that begins its own trace."""
    return int.from_bytes(hashlib.blake2b(f"{task_id}:{run_epoch}".encode(), digest_size=16).digest()) or 1


def context_of(trace_id: int, span_id: int) -> SpanContext:
    """The context of a span in another process."""
    return SpanContext(trace_id, span_id, is_remote=True, trace_flags=SAMPLED)
