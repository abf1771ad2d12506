"""Tasks as a test sees them, and the sentence for what was enqueued instead of what was expected."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from ..codec import decode_json, encode_json
from ..middleware import metadata_of
from ..outcome import Error
from ..postgres import Record
from ..redaction import opened
from ..status import Status
from ..tasks import Task

SHOWN = 20
# A task that has ended is in no place, so its losses are counted where each run was noted.
SEEN_TASKS = """
SELECT t.id, t.entrypoint, t.kwargs, s.status, t.queue, t.priority,
       coalesce(t.attempt, l.attempt, d.attempt, h.attempt, r.attempt, 0) AS attempt,
       coalesce(t.run_epoch, l.run_epoch, d.run_epoch, h.run_epoch, r.run_epoch, 0) AS runs,
       (SELECT count(*) FROM aaiclick_queue.attempts a WHERE a.task_id = t.id AND a.outcome = 'LOST') AS lost_count,
       coalesce(d.not_before, t.eta) AS not_before, d.reason, t.name, t.correlation_id, t.metadata, t.parent_id,
       t.result, t.error
FROM aaiclick_queue.tasks t
JOIN aaiclick_queue.task_status s ON s.id = t.id
LEFT JOIN aaiclick_queue.leases l ON l.task_id = t.id
LEFT JOIN aaiclick_queue.delayed d ON d.task_id = t.id
LEFT JOIN aaiclick_queue.held h ON h.task_id = t.id
LEFT JOIN aaiclick_queue.ready r ON r.task_id = t.id
WHERE ($1::text IS NULL OR t.entrypoint = $1) AND ($2::text IS NULL OR s.status = $2)
ORDER BY t.id
"""


class SeenTask(msgspec.Struct, frozen=True, kw_only=True):
    """One task at the moment it was looked at; `kwargs` and `result` are plain JSON values."""

    id: int
    entrypoint: str
    kwargs: dict[str, Any]
    status: Status
    queue: str
    priority: int = 0
    attempt: int = 0
    runs: int = 0
    lost_count: int = 0
    not_before: datetime | None = None
    reason: str | None = None
    name: str | None = None
    correlation_id: str | None = None
    metadata: dict[str, Any] | None = None
    parent_id: int | None = None
    result: Any = None
    error: Error | None = None

    @classmethod
    def of(cls, row: Record) -> SeenTask:
        """The task of a row."""
        values = dict(row.items())
        values |= {"kwargs": decode_json(opened(row["kwargs"])), "result": decode_json(row["result"])}
        values["metadata"] = metadata_of(row["metadata"]) or None
        values["error"] = Error.read(row["error"]) if row["error"] else None
        values["status"] = Status(row["status"])
        return cls(**values)

    def __str__(self) -> str:
        error = f": {self.error.type}: {self.error.message}" if self.error else ""
        return f"{self.status:<9} {self.entrypoint}({shown(self.kwargs)}){error}"


def entrypoint_named(task: Task[Any, Any] | str | None) -> str | None:
    """The entrypoint of a task or of its name."""
    return task.entrypoint if isinstance(task, Task) else task


def matching(tasks: Sequence[SeenTask], task: Task[Any, Any] | str, kwargs: Mapping[str, Any]) -> list[SeenTask]:
    """Those calls of the task that were given these arguments, whatever else they were given."""
    same = [one for one in tasks if one.entrypoint == entrypoint_named(task)]
    return [one for one in same if not differing(one, task, kwargs)]


def differing(seen: SeenTask, task: Task[Any, Any] | str, kwargs: Mapping[str, Any]) -> list[str]:
    """Names of the arguments that are not as wanted, compared as the function would get them."""
    if isinstance(task, Task):
        found = _defaults(task) | task.signature.decode(encode_json(seen.kwargs))
        wanted = dict(kwargs)
    else:
        found, wanted = seen.kwargs, decode_json(encode_json(dict(kwargs)))
    return [name for name, value in wanted.items() if name not in found or found[name] != value]


def _defaults(task: Task[Any, Any]) -> dict[str, Any]:
    parameters = inspect.signature(task.function).parameters.values()
    return {one.name: one.default for one in parameters if one.default is not one.empty}


def require_enqueued(
    tasks: Sequence[SeenTask], task: Task[Any, Any] | str, kwargs: Mapping[str, Any]
) -> list[SeenTask]:
    """The calls that match; an AssertionError that shows what was enqueued instead when there is none."""
    if found := matching(tasks, task, kwargs):
        return found
    wanted = f"{entrypoint_named(task)}({shown(kwargs)}{', …' if kwargs else '…'})"
    raise AssertionError(f"{wanted} was not enqueued.\n{_instead(tasks, task, kwargs)}")


def require_not_enqueued(tasks: Sequence[SeenTask], task: Task[Any, Any] | str, kwargs: Mapping[str, Any]) -> None:
    """An AssertionError that shows the calls that match, when there are any."""
    if found := matching(tasks, task, kwargs):
        lines = "\n".join(f"  {one}" for one in found[:SHOWN])
        raise AssertionError(f"{entrypoint_named(task)} was enqueued {_times(len(found))}:\n{lines}")


def shown(kwargs: Mapping[str, Any]) -> str:
    """Arguments as a call shows them."""
    return ", ".join(f"{name}={value!r}" for name, value in kwargs.items())


def _instead(tasks: Sequence[SeenTask], task: Task[Any, Any] | str, kwargs: Mapping[str, Any]) -> str:
    same = [one for one in tasks if one.entrypoint == entrypoint_named(task)]
    lines = [f"With other arguments it was enqueued {_times(len(same))}:"] if same else ["Nothing of that name was."]
    for one in same[:SHOWN]:
        different = ", ".join(
            f"{name}={one.kwargs[name]!r} instead of {kwargs[name]!r}"
            if name in one.kwargs
            else f"{name} was not given, {kwargs[name]!r} is wanted"
            for name in differing(one, task, kwargs)
        )
        lines.append(f"  {one}\n    {different}")
    others = Counter(one.entrypoint for one in tasks if one not in same)
    if others:
        lines.append("Enqueued besides: " + ", ".join(f"{name} ×{n}" for name, n in others.most_common(SHOWN)))
    return "\n".join(lines)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
