"""How events are told: the level that follows from a type, and a sentence for each. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from .report import span

SUCCESS, FAILURE, WARNING, INFO = "SUCCESS", "FAILURE", "WARNING", "INFO"
LEVELS = {
    "JOB_CREATED": INFO, "JOB_STARTED": INFO, "JOB_COMPLETED": SUCCESS, "JOB_FAILED": FAILURE, "JOB_CANCELLED": WARNING,
    "JOB_PAUSED": WARNING, "JOB_RESUMED": INFO, "JOB_REOPENED": INFO, "JOB_STALLED": WARNING,
    "TASK_READY": INFO, "TASK_QUEUED": INFO, "TASK_RUNNING": INFO, "TASK_COMPLETED": SUCCESS, "TASK_FAILED": FAILURE,
    "TASK_RETRYING": WARNING, "TASK_SNOOZED": INFO, "TASK_SKIPPED": INFO, "TASK_LOST": WARNING, "TASK_CHECKPOINT": INFO,
    "TASK_CLEARED": INFO, "TASK_RETRIED": INFO, "TASK_EXPIRED": WARNING, "TASK_CANCELLED": WARNING,
    "TASK_UPSTREAM_FAILED": FAILURE, "TASK_UNKNOWN": WARNING, "TASK_MOVED": INFO, "TASK_UNBLOCKED": INFO,
    "TASK_QUARANTINED": FAILURE,
}  # fmt: skip
TYPES = tuple(LEVELS)
Data = Mapping[str, Any]


def level_of(kind: str) -> str:
    """SUCCESS, FAILURE, WARNING or INFO."""
    return LEVELS.get(kind, INFO)


def sentence(kind: str, data: Data) -> str:
    """What happened, as a person would say it; whom it happened to stands beside it."""
    told = _SENTENCES.get(kind)
    return told(data) if told else kind.partition("_")[2].lower().replace("_", " ") + _by(data)


def _ready(data: Data) -> str:
    names = list(data.get("previous") or ())
    more = int(data.get("previous_count", len(names))) - len(names)
    if names:
        return f"ready: {', '.join(names)}{f' and {more:,} more' if more > 0 else ''} ended"
    if data.get("added_by"):
        return f"ready: added by {data['added_by']}"
    return "ready: there was nothing to wait for" if "previous" in data else "enqueued"


def _running(data: Data) -> str:
    worker = f" on worker {data['worker_id']}" if data.get("worker_id") else ""
    return f"attempt {data['attempt']} started{worker}" if data.get("attempt") else f"started{worker}"


def _completed(data: Data) -> str:
    took = f" in {span(data['duration'])}" if data.get("duration") is not None else ""
    return f"completed{took}" + (f", attempt {data['attempt']}" if (data.get("attempt") or 1) > 1 else "")


def _failed(data: Data) -> str:
    attempt = f"attempt {data['attempt']} " if data.get("attempt") else ""
    error = f": {data['error']}" if data.get("error") else ""
    return f"{attempt}failed{error}{'; it will be tried again' if data.get('will_retry') else ''}"


def _retrying(data: Data) -> str:
    attempt = f"attempt {data['attempt']}" if data.get("attempt") else "next attempt"
    return f"{attempt} is due {_when(data.get('not_before'))}".rstrip()


def _lost(data: Data) -> str:
    again = f"; again {_when(data['not_before'])}" if data.get("not_before") else ""
    return f"lost with its worker{_reason(data)}{again}"


def _job_completed(data: Data) -> str:
    skipped = f", {data['skipped']:,} skipped" if data.get("skipped") else ""
    return f"completed{_after(data, ' in ')}: {_tasks(data.get('tasks'))}{skipped}"


def _job_failed(data: Data) -> str:
    names = list(data.get("failed_tasks") or ())
    more = int(data.get("failed") or len(names)) - len(names)
    failed = ", ".join(names[:5]) + (" …" if len(names) > 5 or (names and more > 0) else "")
    count = f"{int(data.get('failed') or len(names)):,} of {_tasks(data.get('tasks'))} did not complete"
    return f"failed{_after(data, ' after ')}: {count}" + (f" ({failed})" if failed else "")


def _after(data: Data, word: str) -> str:
    return f"{word}{span(data['duration'])}" if data.get("duration") is not None else ""


def _tasks(count: Any) -> str:
    return "1 task" if count == 1 else f"{int(count or 0):,} tasks"


def _reason(data: Data) -> str:
    reason = data.get("reason") or data.get("error")
    return f": {reason}" if reason else ""


def _by(data: Data) -> str:
    return f" by {data['by']}" if data.get("by") else ""


def _when(text: Any) -> str:
    """A moment of event data, local, to the second."""
    if not text:
        return ""
    moment = text if isinstance(text, datetime) else datetime.fromisoformat(str(text))
    return f"at {moment.astimezone():%H:%M:%S}"


_SENTENCES: dict[str, Callable[[Data], str]] = {
    "JOB_CREATED": lambda data: f"job {data['name']} was created" if data.get("name") else "created",
    "JOB_STARTED": lambda _: "started: a worker has its first task",
    "JOB_COMPLETED": _job_completed,
    "JOB_FAILED": _job_failed,
    "JOB_CANCELLED": lambda data: f"cancelled{_by(data)}{_reason(data)}",
    "JOB_PAUSED": lambda data: f"paused{_by(data)}{_reason(data)}",
    "JOB_RESUMED": lambda data: f"goes on{_by(data)}",
    "JOB_REOPENED": lambda data: f"opened again{_by(data)}{_reason(data)}",
    "JOB_STALLED": lambda data: f"stands still{_reason(data)}",
    "TASK_READY": _ready,
    "TASK_QUEUED": lambda data: f"in line in {data['queue']}" if data.get("queue") else "in line",
    "TASK_RUNNING": _running,
    "TASK_COMPLETED": _completed,
    "TASK_FAILED": _failed,
    "TASK_RETRYING": _retrying,
    "TASK_SNOOZED": lambda data: f"asked to run again {_when(data.get('not_before'))}{_reason(data)}",
    "TASK_SKIPPED": lambda data: f"skipped{_reason(data)}",
    "TASK_UPSTREAM_FAILED": lambda data: f"will not run{_reason(data)}",
    "TASK_LOST": _lost,
    "TASK_CHECKPOINT": lambda data: f"checkpoint {data['phase']}" if data.get("phase") else "checkpoint",
    "TASK_CLEARED": lambda data: f"cleared{_by(data)}: it runs again from the start",
    "TASK_RETRIED": lambda data: f"put back in line{_by(data)}",
    "TASK_EXPIRED": lambda _: "expired before it started",
    "TASK_CANCELLED": lambda data: f"cancelled{_reason(data)}",
    "TASK_UNKNOWN": lambda data: f"a worker without its code had it{_reason(data)}",
    "TASK_QUARANTINED": lambda data: f"was set aside, for Postgres cannot work on its row{_reason(data)}",
}
