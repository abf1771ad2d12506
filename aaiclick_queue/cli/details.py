"""How `task get` shows one task to a person."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .output import STATUS_COLOURS, Right, one_json_line, table, when

if TYPE_CHECKING:
    from ..views import AttemptView, TaskView

VALUE_WIDTH = 2_000


def draw_task(task: TaskView) -> str:
    """Everything about one task, a paragraph a concern."""
    status = task.status or "?"
    name = click.style(_plain(task.name or task.entrypoint), bold=True)
    parts = [
        f"{name}  {task.id}  {click.style(status, fg=STATUS_COLOURS.get(status))}",
        _facts(task),
        _values(task),
        _attempts(task),
        _timeline(task),
        _error(task),
    ]
    return "\n\n".join(part for part in parts if part)


def _facts(task: TaskView) -> str:
    from ..views import handed_back

    back = handed_back(task)
    attempt = f"{task.attempt} of {task.max_attempts}" if task.max_attempts else str(task.attempt)
    facts: dict[str, Any] = {
        "entrypoint": task.entrypoint,
        "queue": f"{task.queue}, priority {task.priority}",
        "attempt": attempt,
        "lost runs": task.lost_count,
        "handed back": f"{back} of its runs, at no cost" if back else None,
        "snoozes": task.snoozes,
        "timeout": f"{task.timeout_seconds:g} s" if task.timeout_seconds else None,
        "retry": _json(task.retry) if task.retry else None,
        "expires": when(task.expires_at) if task.expires_at else None,
        "waits for": task.reason if task.held_at else None,
        "dedupe key": task.dedupe_key,
        "key": task.concurrency_key,
        "order": task.order_by,
        "keep": task.keep,
        "hooks": ", ".join(f"on_{name} {hook['entrypoint']}" for name, hook in (task.hooks or {}).items()),
        "stopping": "told to stop, and has not yet: its slots are taken" if task.stopping else None,
        "correlation": task.correlation_id,
        "parent": task.parent_id,
        "children": " ".join(task.children),
        "worker": task.worker_id,
    }
    return "\n".join(f"  {name:<12} {_plain(str(value))}" for name, value in facts.items() if value)


def _values(task: TaskView) -> str:
    values = {
        "kwargs": task.kwargs,
        "metadata": task.metadata,
        "progress": task.progress,
        "checkpoint": task.checkpoint,
        "result": task.result,
    }
    shown = [f"  {name:<12} {_json(value)}" for name, value in values.items() if value is not None]
    if task.status == "COMPLETED" and task.result is None:
        shown.append(f"  {'result':<12} null")
    return "\n".join(shown)


def _attempts(task: TaskView) -> str:
    if not task.attempts:
        return ""
    from ..views import UNKNOWN, tried

    headers = ["ATTEMPT", "OUTCOME", "STARTED", "TOOK", "WORKER", "ERROR"]
    tries = [one for one in task.attempts if one.outcome == UNKNOWN]
    rows = [_attempt(one) for one in task.attempts if one.outcome != UNKNOWN or one is tries[-1]]
    for row in rows:
        if row[1] == UNKNOWN and len(tries) > 1:
            row[5] = f"{tried(tries)} since {when(tries[0].started_at)}; {row[5]}"
    return table(headers, rows)


def _attempt(one: AttemptView) -> list[object]:
    from ..report import span

    took = "–"
    if one.started_at and one.finished_at:
        took = span((one.finished_at - one.started_at).total_seconds())
    error = f"{one.error.type}: {one.error.message}" if one.error else ""
    return [one.attempt, one.outcome, when(one.started_at), Right(took), one.worker_id or "–", error]


def _timeline(task: TaskView) -> str:
    from ..views import timeline

    return "\n".join(f"  {when(moment)}  {_plain(text)}" for moment, text in timeline(task))


def _error(task: TaskView) -> str:
    if task.error is None:
        return ""
    trace = task.error.traceback.rstrip() or f"{task.error.type}: {task.error.message}"
    # Its lines stay lines; what would steer the terminal does not get there.
    return "\n".join(_plain(line) for line in trace.splitlines())


def _json(value: Any) -> str:
    return _plain(one_json_line(value))


def _plain(text: str) -> str:
    from ..report import one_line

    return one_line(text, VALUE_WIDTH)
