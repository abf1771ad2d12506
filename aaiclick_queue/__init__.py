"""A distributed task queue: Postgres is the truth, Redis wakes workers, nothing is lost when one dies.

application ──enqueue──► tasks + ready + outbox        flow/enqueue.py, in the caller's own transaction
                             │ relay                   flow/relay.py: outbox rows → stream entries
                             ▼
                        Redis stream (hints)           streams.py
                             │
                             ▼
worker ──claim──► ready → leases, run_epoch + 1        flow/claim.py
         │ heartbeat keeps the leases                  flow/heartbeat.py, pulse.py
         ├─execute──► outcome                          flow/execute.py, slots.py, strands.py
         └─complete──► lease deleted, result written   flow/complete.py, flow/settle.py
job ──submit──► tasks + waiting + gates                flow/graph.py, flow/submit.py
an end ──arrives──► resolver ──► gates open ──► ready  flow/arrive.py, flow/resolve.py
registered job ──scheduler──► a job for each tick      ticking.py, flow/scheduler.py, flow/firing.py
reaper: lost and overdue runs, due delays, expiries    flow/reaper.py
waiting: results, by a nudge when a task has ended     waiting.py, nudges.py, channel.py
prune: finished tasks and history beyond the policy    flow/prune.py, flow/days.py
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .backfilling import backfill, missing_ticks
    from .by_hand import add_task_to_job, apply, create_job, create_task
    from .canvas import chain, chord, group, signature
    from .client import Client, connect
    from .context import current
    from .errors import (
        BadJob,
        BadSchedule,
        Cancel,
        DuplicateTask,
        Fail,
        GroupClosed,
        JobCancelled,
        JobEnded,
        JobExists,
        JobFailed,
        LeaseLost,
        QueueError,
        QueueFull,
        Retry,
        Skip,
        Snooze,
        SpawnDiverged,
        TaskCancelled,
        TaskFailed,
        TaskSkipped,
        UnknownJob,
        UpstreamFailed,
    )
    from .fan import Mapped, fan_in, map  # noqa: A004
    from .flow.ending import EndedJob, EndedTask
    from .growing import TaskResult
    from .handles import Handle, handle
    from .injection import Inject, injected
    from .job_handles import JobHandle, job_handle
    from .jobs import Job, job
    from .limits import limit_key, limit_queue, limit_task, list_limits, pause_task, resume_task
    from .middleware import Enqueuing, Middleware, Proceed, Running, use
    from .nodes import Group, Node
    from .plan import Plan
    from .reading import (
        count_jobs,
        get_job,
        get_task,
        get_tasks_for_job,
        job_progress,
        job_stats,
        list_jobs,
        timeline,
    )
    from .recovery import (
        cancel_job,
        clear_task,
        pause_job,
        rerun,
        resume_job,
        retry_failed_tasks,
        retry_task,
    )
    from .redaction import Secret
    from .registered import (
        RegisteredJob,
        delete_registered_job,
        disable_job,
        enable_job,
        get_registered_job,
        list_registered_jobs,
        next_runs,
        register_job,
        reset_registered_job,
        tick_history,
        upsert_registered_job,
    )
    from .resources import on_shutdown, on_startup, resource
    from .results import as_completed, gather
    from .routing import branch, when
    from .settings import Settings
    from .starting import run_job
    from .status import JobStatus, Status
    from .tasks import Task, enqueue, task
    from .trying import ajob_test, job_test
    from .worker import Worker

# Imported when first asked for: the command line must not pay for what it does not use. No module may have the name
# of something here: importing it would put the module in the name's place.
_HOMES = {
    "backfilling": ("backfill", "missing_ticks"),
    "canvas": ("chain", "chord", "group", "signature"),
    "by_hand": ("add_task_to_job", "apply", "create_job", "create_task"),
    "client": ("Client", "connect"),
    "context": ("current",),
    "errors": (
        "BadJob",
        "BadSchedule",
        "Cancel",
        "DuplicateTask",
        "Fail",
        "GroupClosed",
        "JobCancelled",
        "JobEnded",
        "JobExists",
        "JobFailed",
        "LeaseLost",
        "QueueError",
        "QueueFull",
        "Retry",
        "Skip",
        "Snooze",
        "SpawnDiverged",
        "TaskCancelled",
        "TaskFailed",
        "TaskSkipped",
        "UnknownJob",
        "UpstreamFailed",
    ),
    "fan": ("Mapped", "fan_in", "map"),
    "flow.ending": ("EndedJob", "EndedTask"),
    "growing": ("TaskResult",),
    "handles": ("Handle", "handle"),
    "injection": ("Inject", "injected"),
    "job_handles": ("JobHandle", "job_handle"),
    "jobs": ("Job", "job"),
    "limits": ("limit_key", "limit_queue", "limit_task", "list_limits", "pause_task", "resume_task"),
    "middleware": ("Enqueuing", "Middleware", "Proceed", "Running", "use"),
    "nodes": ("Group", "Node"),
    "plan": ("Plan",),
    "reading": (
        "count_jobs",
        "get_job",
        "get_task",
        "get_tasks_for_job",
        "job_progress",
        "job_stats",
        "list_jobs",
        "timeline",
    ),
    "recovery": (
        "cancel_job",
        "clear_task",
        "pause_job",
        "rerun",
        "resume_job",
        "retry_failed_tasks",
        "retry_task",
    ),
    "redaction": ("Secret",),
    "registered": (
        "RegisteredJob",
        "delete_registered_job",
        "disable_job",
        "enable_job",
        "get_registered_job",
        "list_registered_jobs",
        "next_runs",
        "register_job",
        "reset_registered_job",
        "tick_history",
        "upsert_registered_job",
    ),
    "resources": ("on_shutdown", "on_startup", "resource"),
    "results": ("as_completed", "gather"),
    "routing": ("branch", "when"),
    "settings": ("Settings",),
    "starting": ("run_job",),
    "status": ("JobStatus", "Status"),
    "tasks": ("Task", "enqueue", "task"),
    "trying": ("ajob_test", "job_test"),
    "worker": ("Worker",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "BadJob",
    "BadSchedule",
    "Cancel",
    "Client",
    "DuplicateTask",
    "EndedJob",
    "EndedTask",
    "Enqueuing",
    "Fail",
    "Group",
    "GroupClosed",
    "Handle",
    "Inject",
    "Job",
    "JobCancelled",
    "JobEnded",
    "JobExists",
    "JobFailed",
    "JobHandle",
    "JobStatus",
    "LeaseLost",
    "Mapped",
    "Middleware",
    "Node",
    "Plan",
    "Proceed",
    "QueueError",
    "QueueFull",
    "RegisteredJob",
    "Retry",
    "Running",
    "Secret",
    "Settings",
    "Skip",
    "Snooze",
    "SpawnDiverged",
    "Status",
    "Task",
    "TaskCancelled",
    "TaskFailed",
    "TaskResult",
    "TaskSkipped",
    "UnknownJob",
    "UpstreamFailed",
    "Worker",
    "add_task_to_job",
    "ajob_test",
    "apply",
    "as_completed",
    "backfill",
    "branch",
    "cancel_job",
    "chain",
    "chord",
    "clear_task",
    "connect",
    "count_jobs",
    "create_job",
    "create_task",
    "current",
    "delete_registered_job",
    "disable_job",
    "enable_job",
    "enqueue",
    "fan_in",
    "gather",
    "get_job",
    "get_registered_job",
    "get_task",
    "get_tasks_for_job",
    "group",
    "handle",
    "injected",
    "job",
    "job_handle",
    "job_progress",
    "job_stats",
    "job_test",
    "limit_key",
    "limit_queue",
    "limit_task",
    "list_jobs",
    "list_limits",
    "list_registered_jobs",
    "map",
    "missing_ticks",
    "next_runs",
    "on_shutdown",
    "on_startup",
    "pause_job",
    "pause_task",
    "register_job",
    "rerun",
    "reset_registered_job",
    "resource",
    "resume_job",
    "resume_task",
    "retry_failed_tasks",
    "retry_task",
    "run_job",
    "signature",
    "task",
    "tick_history",
    "timeline",
    "upsert_registered_job",
    "use",
    "when",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME_OF[name]}", __name__), name)
    globals()[name] = value
    return value
