"""Meters: what this process counts of itself, in plain dicts and lists; nothing of Prometheus is imported here.

Off, each place that counts pays for one look at a flag. `exposition` turns the counts into families when it is asked.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from .metric_families import FAMILIES
from .outcome import Failed, Outcome, Succeeded, word_of

if TYPE_CHECKING:
    from collections.abc import Iterator

Labels = tuple[str, ...]

LABELS_LIMIT = 200
OTHER = "other"
STATEMENTS = frozenset(
    {"admission", "claim", "complete", "due", "enqueue", "operations", "prune", "reaper", "relay", "renew"}
    | {"resolver", "scheduler"}
)
COUNTED_FROM_ZERO: dict[str, list[Labels]] = {
    "lease_renewals_total": [("ok",), ("lost",), ("error",)],
    "stale_completions_total": [()],
    "rescued_tasks_total": [("lease",), ("notice",)],
    "outbox_published_total": [("ok",), ("error",)],
    "notices_received_total": [("claimed",), ("taken",), ("passed_on",)],
}
LAPSES = ("worker_lost", "overrun")
TICKS = ("fired", "skipped", "missed", "queued", "error")
ENDS = ("jobs_completed_total", "jobs_failed_total")
BUCKETS = {family.name: family.buckets for family in FAMILIES.values()}
METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})
AT_ONCE_SECONDS = 1.0  # in line within this time of its enqueue: nothing delayed it


class Taken(Protocol):
    """What is counted of a claimed task."""

    @property
    def task_id(self) -> int:
        """Its id, which begins with the time of its enqueue."""

    @property
    def queue(self) -> str:
        """Its queue."""

    @property
    def entrypoint(self) -> str:
        """Its entrypoint."""

    @property
    def attempt(self) -> int:
        """Which attempt."""

    @property
    def waited(self) -> float:
        """Seconds in line."""

    @property
    def kwargs(self) -> str:
        """Its arguments."""


class Meters:
    """The counts of one process."""

    def __init__(self) -> None:
        self.on = False
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.counts: dict[str, dict[Labels, float]] = {}
        self.histograms: dict[str, dict[Labels, list[float]]] = {}
        for family in FAMILIES.values():
            if family.kind == "counter":
                self.counts[family.name] = dict.fromkeys(COUNTED_FROM_ZERO.get(family.name, []), 0.0)
            elif family.kind == "histogram":
                self.histograms[family.name] = {}
        self.gauges: dict[str, Callable[[], Mapping[Labels, float]]] = {}
        self._registered: Container[str] | None = None
        self._seen: dict[str, set[str]] = {}
        self._pairs: dict[tuple[str, str], tuple[str, str]] = {}
        self._notices = 0

    def turn_on(
        self, *, registered: Mapping[str, str] | None = None, queues: Iterable[str] = (), count: bool = True
    ) -> None:
        """Count from now on; `registered` are the entrypoints that have names of their own, with their queues."""
        queues = list(queues)
        self.on = count
        self._pairs.clear()
        if registered is not None:
            self._registered = frozenset(sorted(registered)[:LABELS_LIMIT])
        for queue in queues:
            self.add("tasks_claimed_total", (self.bounded("queue", queue),), 0)
        for entrypoint, queue in (registered or {}).items():
            which = (self.bounded("queue", queue), self.entrypoint(entrypoint))
            for name in ("tasks_created_total", "tasks_completed_total", "tasks_failed_total"):
                self.add(name, which, 0)
            for outcome in ("succeeded", "failed", "retried"):
                self.add("attempts_finished_total", (*which, outcome), 0)
        self.know(queues=[*queues, *(registered or {}).values()])

    def know(self, *, queues: Iterable[str] = (), schedules: Iterable[str] = ()) -> None:
        """Begin their counters at 0: of a series that is born at 10 Prometheus sees no increase."""
        for queue in queues:
            for reason in LAPSES:
                self.add("leases_lapsed_total", (self.bounded("queue", queue), reason), 0)
        for schedule in schedules:
            for result in TICKS:
                self.add("schedule_ticks_total", (self.bounded("schedule", schedule), result), 0)
            self.job_created(schedule, 0)

    def add(self, name: str, labels: Labels = (), n: float = 1) -> None:
        """Count."""
        counts = self.counts[name]
        counts[labels] = counts.get(labels, 0) + n

    def observe(self, name: str, value: float, labels: Labels = ()) -> None:
        """Count a value into its bucket; the row's last number is the sum."""
        buckets, rows = BUCKETS[name], self.histograms[name]
        row = rows.get(labels)
        if row is None:
            row = rows[labels] = [0.0] * (len(buckets) + 2)
        row[bisect_left(buckets, value)] += 1
        row[-1] += value

    def bounded(self, label: str, name: str) -> str:
        """The name itself for the first of its label, `other` for those beyond."""
        seen = self._seen.setdefault(label, set())
        if name in seen:
            return name
        if len(seen) >= LABELS_LIMIT:
            return OTHER
        seen.add(name)
        return name

    def entrypoint(self, name: str) -> str:
        """The label of an entrypoint."""
        if self._registered is None:
            return self.bounded("entrypoint", name)
        return name if name in self._registered else OTHER

    def _which(self, queue: str, entrypoint: str) -> tuple[str, str]:
        found = self._pairs.get((queue, entrypoint))
        if found is None:
            found = (self.bounded("queue", queue), self.entrypoint(entrypoint))
            if len(self._pairs) < LABELS_LIMIT**2:
                self._pairs[queue, entrypoint] = found
        return found

    # The places that count; each asks `on` before it calls.

    def created(self, queue: str, entrypoint: str, n: int) -> None:
        """Tasks were written."""
        self.add("tasks_created_total", self._which(queue, entrypoint), n)

    def claimed(self, claimed: Sequence[Taken], seconds: float, *, unasked: bool) -> None:
        """A claim was answered; `unasked`: no wake-up had told of it, though Redis is up."""
        self.observe("db_statement_seconds", seconds, ("claim",))
        if self._notices:
            self.add("notices_received_total", ("claimed" if claimed else "taken",), self._notices)
            self._notices = 0
        if unasked and claimed:
            self.add("rescued_tasks_total", ("notice",), len(claimed))
        for one in claimed:
            queue = (self.bounded("queue", one.queue),)
            self.add("tasks_claimed_total", queue)
            self.observe("task_wait_seconds", max(0.0, one.waited), queue)
            self.observe("payload_bytes", len(one.kwargs), ("in",))

    def ended(self, run: Taken, outcome: Outcome, seconds: float) -> None:
        """A run is over, and that is recorded."""
        which = self._which(run.queue, run.entrypoint)
        self.add("attempts_finished_total", (*which, word_of(outcome)))
        self.observe("task_duration_seconds", seconds, which)
        if isinstance(outcome, Succeeded):
            self.add("tasks_completed_total", which)
            if outcome.result is not None:
                self.observe("payload_bytes", len(outcome.result), ("out",))
        elif isinstance(outcome, Failed):
            self.add("tasks_failed_total", which)
        else:
            return
        age = time.time() - (run.task_id >> 22) / 1000
        if run.attempt > 1 or age - seconds - run.waited < AT_ONCE_SECONDS:
            self.observe("task_end_to_end_seconds", max(0.0, age), which[:1])

    def noticed(self, sent: Iterable[float]) -> None:
        """Wake-ups were read that had been published at these moments."""
        now = time.time()
        for at in sent:
            self._notices += 1
            if at:
                self.observe("notice_delay_seconds", max(0.0, now - at))

    def passed_on(self) -> None:
        """The wake-ups that were read found no room here."""
        self.add("notices_received_total", ("passed_on",), self._notices)
        self._notices = 0

    def relayed(self, rows: int, seconds: float) -> None:
        """Outbox rows became wake-ups."""
        self.add("outbox_published_total", ("ok",), rows)
        self.observe("relay_batch_seconds", seconds)

    def lapsed(self, runs: Iterable[tuple[str, str, bool]], reason: str) -> None:
        """The reaper took back runs: of which queue and entrypoint each, and whether its task ended FAILED by that."""
        for queue, entrypoint, failed in runs:
            which = self._which(queue, entrypoint)
            self.add("leases_lapsed_total", (which[0], reason))
            self.add("rescued_tasks_total", ("lease",))
            self.add("attempts_finished_total", (*which, "timed_out" if reason == "overrun" else "lost"))
            if failed:
                self.add("tasks_failed_total", which)

    def job_ended(self, name: str, status: str, seconds: float) -> None:
        """The resolver closed a job."""
        job = (self.bounded("job", name),)
        self.add("jobs_completed_total" if status == "COMPLETED" else "jobs_failed_total", job)
        self.observe("job_duration_seconds", seconds, job)

    def job_created(self, name: str, n: int = 1) -> None:
        """A job was submitted, or fired by its schedule."""
        job = (self.bounded("job", name),)
        self.add("jobs_created_total", job, n)
        for end in ENDS:
            self.add(end, job, 0)

    def ticked(self, schedule: str, result: str, n: int = 1) -> None:
        """A schedule's moment has come."""
        self.add("schedule_ticks_total", (self.bounded("schedule", schedule), result), n)

    def statement(self, name: str, seconds: float) -> None:
        """A named statement, or a pass of a background loop."""
        if name in STATEMENTS:
            self.observe("db_statement_seconds", seconds, (name,))

    @contextmanager
    def renewing(self) -> Iterator[None]:
        """Around a heartbeat."""
        began = time.monotonic()
        try:
            yield
        except BaseException:
            self.add("lease_renewals_total", ("error",))
            raise
        self.statement("renew", time.monotonic() - began)

    def requested(self, route: str, method: str, status: int, seconds: float) -> None:
        """The server has answered a request."""
        # Whoever is not known yet may send any word as a method.
        which = (self.bounded("route", route), method if method in METHODS else OTHER)
        self.add("http_requests_total", (*which, str(status)))
        self.observe("http_request_seconds", seconds, which)

    def gauge(self, name: str, read: Callable[[], Mapping[Labels, Any]]) -> None:
        """A gauge that is read when it is asked for."""
        self.gauges[name] = read


METERS = Meters()
