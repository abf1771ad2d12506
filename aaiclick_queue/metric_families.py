"""Every metric that we serve: name, kind, labels, meaning. docs/metrics.md is made from this, and a test compares.

`scope` says who serves it: `process` each worker and server for itself, `state` the server alone, out of Postgres.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from .buckets import RUN_BUCKETS, WAIT_BUCKETS

PREFIX = "aaiclick_queue_"
JOB_BUCKETS = (0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 86400)
QUICK_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
SIZE_BUCKETS = (64, 256, 1024, 4096, 16384, 65536, 262144, 1048576)

Kind = Literal["counter", "gauge", "histogram"]
Scope = Literal["process", "state"]


class Family(msgspec.Struct, frozen=True):
    """One metric."""

    name: str  # without the prefix
    kind: Kind
    scope: Scope
    labels: tuple[str, ...]
    text: str
    buckets: tuple[float, ...] = ()


FAMILIES: dict[str, Family] = {}


def _add(  # noqa: PLR0913, PLR0917 - one value a fact
    kind: Kind, scope: Scope, name: str, labels: str, text: str, buckets: tuple[float, ...] = ()
) -> None:
    FAMILIES[name] = Family(name, kind, scope, tuple(labels.split()), text, buckets)


def _counter(name: str, labels: str, text: str) -> None:
    _add("counter", "process", name, labels, text)


def _histogram(name: str, labels: str, buckets: tuple[float, ...], text: str) -> None:
    _add("histogram", "process", name, labels, text, buckets)


def _gauge(name: str, labels: str, text: str, scope: Scope = "state") -> None:
    _add("gauge", scope, name, labels, text)


# What a process is.
_gauge("build_info", "version python schema", "What runs here; the value is 1.", "process")
_gauge("running_tasks", "queue", "Runs in this process.", "process")
_gauge("leader", "component", "Whether this process polls for the background loops of all.", "process")
_gauge(
    "db_pool_connections", "state", "Connections to Postgres: used, idle; waiting are those who want one.", "process"
)

# What it did.
_counter("tasks_created_total", "queue entrypoint", "Tasks that this process enqueued, committed or not.")
_counter("tasks_claimed_total", "queue", "Leases that this process took.")
_counter("tasks_completed_total", "queue entrypoint", "Tasks that ended well here.")
_counter("tasks_failed_total", "queue entrypoint", "Tasks that ended FAILED here: no attempt is left.")
_counter(
    "attempts_finished_total",
    "queue entrypoint outcome",
    "Runs that ended here or were taken back here, by what they came to.",
)
_histogram("task_wait_seconds", "queue", WAIT_BUCKETS, "From ready to claimed; a delay that was asked for is none.")
_histogram("task_duration_seconds", "queue entrypoint", RUN_BUCKETS, "Time of one run.")
_histogram("worker_task_execution_time_seconds", "", RUN_BUCKETS, "Time of one run, over all that this worker ran.")
_histogram("task_end_to_end_seconds", "queue", WAIT_BUCKETS, "From enqueued to final, of tasks that nothing delayed.")
_histogram("payload_bytes", "direction", SIZE_BUCKETS, "Size of arguments (in) and results (out).")
_counter("jobs_created_total", "job", "Jobs that this process submitted or fired.")
_counter("jobs_completed_total", "job", "Jobs whose end this process saw: COMPLETED.")
_counter("jobs_failed_total", "job", "Jobs whose end this process saw: FAILED.")
_histogram("job_duration_seconds", "job", JOB_BUCKETS, "From a job's start to its end.")

# Leases.
_counter("leases_lapsed_total", "queue reason", "Runs that were taken back: worker_lost, or overrun (past timeout).")
_counter("lease_renewals_total", "result", "Heartbeats: ok, lost (this worker was given up), error.")
_counter("stale_completions_total", "", "Outcomes that came too late and were not recorded.")
_counter("rescued_tasks_total", "reason", "Tasks taken back from a lapsed lease, or found without any notice.")

# Wake-ups.
_counter("outbox_published_total", "result", "Outbox rows that became wake-ups, or could not.")
_histogram("relay_batch_seconds", "", QUICK_BUCKETS, "One round of the relay that found something.")
_histogram("notice_delay_seconds", "", QUICK_BUCKETS, "From a wake-up's publishing, by Redis' clock, to its reading.")
_counter("notices_received_total", "result", "Wake-ups: claimed, taken (by others, or held), passed_on (no room here).")
_counter("schedule_ticks_total", "schedule result", "Ticks of schedules: fired, skipped, missed, queued, error.")

# Plumbing.
_histogram("db_statement_seconds", "statement", QUICK_BUCKETS, "Statements by name, and passes of background loops.")
_histogram("event_loop_lag_seconds", "", QUICK_BUCKETS, "How late the event loop's timer came.")
_counter("middleware_errors_total", "middleware", "Errors of middleware after a task was written or had run.")
_counter("http_requests_total", "route method status", "Requests that the server answered.")
_histogram("http_request_seconds", "route method", QUICK_BUCKETS, "Time of a request; of a stream, until it began.")

# State of the system.
_gauge("up", "component", "1: the component did its work within its deadline.")
_gauge("tasks", "queue state", "Open tasks now, by status; counts end at a limit (see docs/metrics.md).")
_gauge("task_queue_depth", "queue", "Tasks that a worker could claim now.")
_gauge("oldest_ready_age_seconds", "queue", "How long the oldest claimable task has waited; 0 if none.")
_gauge("oldest_running_age_seconds", "queue", "How long ago the oldest lease was taken; 0 if none.")
_gauge("overdue_scheduled_tasks", "queue", "Delayed tasks that are due and not in line yet.")
_gauge("jobs", "state", "Open jobs, by status.")
_gauge("oldest_job_progress_age_seconds", "", "Longest time since an open job last changed; 0 if none is open.")
_gauge(
    "failed_tasks",
    "queue",
    "Tasks that FAILED in the last 24 hours and are not acknowledged, among the newest 500 of all queues together.",
)
_gauge("queue_paused", "queue", "Whether the queue is paused.")
_gauge("queue_latency_objective_seconds", "queue", "The objective of a queue; 300 where none is set.")
_gauge("queue_consumers", "queue", "Living workers that serve the queue.")
_gauge("workers", "state", "Workers, by status.")
_gauge("workers_active", "", "Workers that are ACTIVE and have renewed their lease.")
_gauge("worker_heartbeat_age_seconds", "", "Age of the oldest heartbeat of an ACTIVE worker; 0 if there is none.")
_gauge("worker_slots", "queue state", "Slots of the workers that serve the queue: used, free.")
_gauge("outbox_entries", "", "Outbox rows that are not published yet.")
_gauge("outbox_oldest_age_seconds", "", "Age of the oldest outbox row; 0 if none.")
_gauge("stream_length", "queue", "Entries of the queue's wake-up stream; absent while Redis does not answer.")
_gauge("stream_pending", "queue", "Entries that were read and not acknowledged: none, since none are asked for.")
_gauge("schedules", "state", "Schedules: enabled, disabled.")
_gauge("schedule_lag_seconds", "", "How long the most overdue schedule is due; 0 if none is.")
_gauge("schedule_next_fire_timestamp_seconds", "schedule", "Next fire of an enabled schedule, of the first 200.")
_gauge("schedule_last_fire_timestamp_seconds", "schedule", "Last fire of a schedule, of the first 200.")
_gauge("db_table_bytes", "table", "Size of a table with its indexes, partitions together.")
_gauge("db_dead_tuples", "table", "Dead rows of a table, by Postgres' own estimate.")
_gauge("prune_backlog_rows", "", "Estimate of rows past retention that are not deleted yet.")
_gauge("invariant_violations", "check", "What the doctor found when it last looked; must be 0.")
_gauge(
    "alarms",
    "kind",
    "Alarms raised now: stall, zombie, stuck, backpressure, clock_skew, without_workers, lost_worker, invariant.",
)
