"""Prometheus: what this process enqueued and executed, in a registry of yours. Serving it is the application's part."""

from __future__ import annotations

import time
from collections.abc import Iterator

from ..buckets import RUN_BUCKETS, WAIT_BUCKETS
from ..errors import MissingExtra
from ..middleware import Enqueuing, Middleware, Proceed, Running, failures
from ..outcome import Failed, Outcome, Succeeded, word_of

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
    from prometheus_client.core import CounterMetricFamily
    from prometheus_client.registry import Collector
except ImportError as missing:
    raise MissingExtra("aaiclick_queue.integrations.prometheus", "metrics") from missing

PREFIX = "aaiclick_queue"
WHICH = ("queue", "entrypoint")


class Metrics(Middleware):
    """Counts and times; entrypoints and queues are the only labels, never an id."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        """One a registry: a second one would register the same names."""

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"{PREFIX}_{name}", text, (*WHICH, *labels), registry=registry)

        self._created = counter("tasks_created", "Tasks that this process enqueued, committed or not.")
        self._completed = counter("tasks_completed", "Tasks that ended well here.")
        self._failed = counter("tasks_failed", "Tasks that ended FAILED here: no attempt is left.")
        self._attempts = counter("attempts_finished", "Runs that ended here, by what they came to.", "outcome")
        self._running = Gauge(f"{PREFIX}_tasks_running", "Runs in this process.", WHICH, registry=registry)
        self._run_time = Histogram(
            f"{PREFIX}_task_duration_seconds", "Time of one run.", WHICH, registry=registry, buckets=RUN_BUCKETS
        )
        self._wait_time = Histogram(
            f"{PREFIX}_task_wait_seconds", "From ready to claimed.", ("queue",), registry=registry, buckets=WAIT_BUCKETS
        )
        registry.register(_Failures())

    async def enqueue(self, call: Enqueuing, proceed: Proceed[list[int]]) -> list[int]:
        """Count what was written."""
        ids = await proceed()
        self._created.labels(call.queue, call.entrypoint).inc(call.count)
        return ids

    async def execute(self, run: Running, proceed: Proceed[Outcome]) -> Outcome:
        """Count and time one run."""
        which = (run.queue, run.entrypoint)
        self._wait_time.labels(run.queue).observe(run.waited)
        began = time.perf_counter()
        with self._running.labels(*which).track_inprogress():
            outcome = await proceed()
        self._run_time.labels(*which).observe(time.perf_counter() - began)
        self._attempts.labels(*which, word_of(outcome)).inc()
        match outcome:
            case Succeeded():
                self._completed.labels(*which).inc()
            case Failed():
                self._failed.labels(*which).inc()
        return outcome


class _Failures(Collector):
    """How often middleware raised after a task was written or had run."""

    def collect(self) -> Iterator[CounterMetricFamily]:
        """The counts of this process."""
        family = CounterMetricFamily(f"{PREFIX}_middleware_errors", "Errors of middleware.", labels=["middleware"])
        for name, count in list(failures.items()):
            family.add_metric([name], count)
        yield family
