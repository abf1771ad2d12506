"""How `task get` shows one task to a person."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from .output import STATUS_COLOURS, Right, one_json_line, table, when

if TYPE_CHECKING:
    from ..job_nodes import Neighbour, NodeView
    from ..timelines import Event
    from ..views import AttemptView, TaskView

VALUE_WIDTH = 2_000


def draw_task(task: TaskView, events: Sequence[Event] = ()) -> str:
    """Everything about one task, a paragraph a concern."""
    status = task.status or "?"
    name = click.style(_plain(task.name or task.entrypoint), bold=True)
    parts = [
        f"{name}  {task.id}  {click.style(status, fg=STATUS_COLOURS.get(status))}",
        _facts(task),
        _values(task),
        _attempts(task),
        _timeline(task, events),
        _error(task),
    ]
    return "\n\n".join(part for part in parts if part)


def _facts(task: TaskView) -> str:
    from ..views import handed_back

    back = handed_back(task)
    attempt = f"{task.attempt} of {task.max_attempts}" if task.max_attempts else str(task.attempt)
    facts: dict[str, Any] = {
        "entrypoint": task.entrypoint,
        **_in_job(task.job),
        "queue": f"{task.queue}, priority {task.priority}",
        "attempt": attempt,
        "lost runs": task.lost_count,
        "handed back": f"{back} of its runs, at no cost" if back else None,
        "snoozes": task.snoozes,
        "timeout": f"{task.timeout_seconds:g} s" if task.timeout_seconds else None,
        "retry": _json(task.retry) if task.retry else None,
        "expires": when(task.expires_at) if task.expires_at else None,
        "waits for": task.reason if task.held_at else _unmet(task.job),
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


def _in_job(node: NodeView | None) -> dict[str, Any]:
    """Its place in its job, and what it waits for there."""
    if node is None:
        return {}
    return {
        "job": f"{node.job_name} {node.job_id}, {node.job_status}",
        "group": " / ".join(node.groups),
        "item": None if node.map_index is None else f"{node.map_index:,} of its map",
        "rule": None if node.rule == "all_success" else node.rule,
        "critical": None if node.critical else "no: its failure counts as skipped",
        "because of": _names(node.failed),
        "continued by": _names(node.continued_by) + (", which goes on" if node.is_continued else ""),
    }


def _unmet(node: NodeView | None) -> str:
    if node is None:
        return ""
    more = node.unmet - len(node.waits_for)
    return _names(node.waits_for) + (f" and {more:,} more" if more > 0 and node.waits_for else "")


def _names(nodes: Sequence[Neighbour]) -> str:
    return ", ".join(f"{node.name} ({(node.status or '?').lower().replace('_', ' ')})" for node in nodes)


def _timeline(task: TaskView, events: Sequence[Event]) -> str:
    from ..timelines import last_line_of_unknown

    moments = [(event.at, event.message) for event in last_line_of_unknown(events)]
    if task.not_before:
        moments.append((task.not_before, f"due ({task.reason})"))
    if task.deadline_at:
        moments.append((task.deadline_at, "deadline of this run"))
    return "\n".join(f"  {when(moment)}  {_plain(text)}" for moment, text in moments)


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
