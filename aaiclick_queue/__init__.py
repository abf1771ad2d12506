"""A distributed task queue: Postgres is the truth, Redis wakes workers, nothing is lost when one dies.

application ──enqueue──► tasks + ready + outbox        flow/enqueue.py, in the caller's own transaction
                             │ relay                   flow/relay.py: outbox rows → stream entries
                             ▼
                        Redis stream (hints)           streams.py
                             │
                             ▼
worker ──claim──► ready → leases, run_epoch + 1        flow/claim.py
         │ heartbeat keeps the leases                  flow/heartbeat.py, pulse.py
         ├─execute──► outcome                          flow/execute.py, slots.py
         └─complete──► lease deleted, result written   flow/complete.py, flow/settle.py
reaper: lost and overdue runs, due delays, expiries    flow/reaper.py
waiting: results, by a nudge when a task has ended     waiting.py, nudges.py, channel.py
prune: finished tasks and history beyond the policy    flow/prune.py, flow/days.py
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .client import Client, connect
    from .context import current
    from .errors import (
        Cancel,
        DuplicateTask,
        Fail,
        LeaseLost,
        QueueError,
        QueueFull,
        Retry,
        Snooze,
        TaskCancelled,
        TaskFailed,
    )
    from .flow.ending import EndedTask
    from .handles import Handle, handle
    from .injection import Inject, injected
    from .limits import limit_key, limit_queue, limit_task, list_limits, pause_task, resume_task
    from .middleware import Enqueuing, Middleware, Proceed, Running, use
    from .plan import Plan
    from .resources import on_shutdown, on_startup, resource
    from .results import as_completed, gather
    from .settings import Settings
    from .status import Status
    from .tasks import Task, enqueue, task
    from .worker import Worker

# Imported when first asked for: the command line must not pay for what it does not use. No module may have the name
# of something here: importing it would put the module in the name's place.
_HOMES = {
    "client": ("Client", "connect"),
    "context": ("current",),
    "errors": (
        "Cancel",
        "DuplicateTask",
        "Fail",
        "LeaseLost",
        "QueueError",
        "QueueFull",
        "Retry",
        "Snooze",
        "TaskCancelled",
        "TaskFailed",
    ),
    "flow.ending": ("EndedTask",),
    "handles": ("Handle", "handle"),
    "limits": ("limit_key", "limit_queue", "limit_task", "list_limits", "pause_task", "resume_task"),
    "injection": ("Inject", "injected"),
    "middleware": ("Enqueuing", "Middleware", "Proceed", "Running", "use"),
    "plan": ("Plan",),
    "resources": ("on_shutdown", "on_startup", "resource"),
    "results": ("as_completed", "gather"),
    "settings": ("Settings",),
    "status": ("Status",),
    "tasks": ("Task", "enqueue", "task"),
    "worker": ("Worker",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Cancel",
    "Client",
    "DuplicateTask",
    "EndedTask",
    "Enqueuing",
    "Fail",
    "Handle",
    "Inject",
    "LeaseLost",
    "Middleware",
    "Plan",
    "Proceed",
    "QueueError",
    "QueueFull",
    "Retry",
    "Running",
    "Settings",
    "Snooze",
    "Status",
    "Task",
    "TaskCancelled",
    "TaskFailed",
    "Worker",
    "as_completed",
    "connect",
    "current",
    "enqueue",
    "gather",
    "handle",
    "injected",
    "limit_key",
    "limit_queue",
    "limit_task",
    "list_limits",
    "on_shutdown",
    "on_startup",
    "pause_task",
    "resource",
    "resume_task",
    "task",
    "use",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME_OF[name]}", __name__), name)
    globals()[name] = value
    return value
