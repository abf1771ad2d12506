"""Errbacks: Celery's error callbacks as hooks of the tasks that may fail. Before: canvas."""

from __future__ import annotations

from typing import Any

import msgspec

from .errors import ArgumentsDoNotFit, BadTask
from .spec import Hook

ENDED = "ended"


def hook_of(errback: Any) -> Hook:
    """The signature of a task as a hook that is called with `ended` and then with its own arguments.

    One that is immutable is called with its own arguments alone.
    """
    from .signatures import Signature
    from .tasks import Task

    if isinstance(errback, Task):
        errback = Signature(errback)
    if not isinstance(errback, Signature):
        raise BadTask(f"link_error({errback!r:.100}): give the signature of one task; it can enqueue others itself")
    if errback.callbacks or errback.errbacks:
        raise BadTask(f"link_error({errback!r}): it has callbacks itself: give its task on_success= or on_failure=")
    if others := set(errback.given) - {"queue"}:
        raise BadTask(f"link_error({errback!r}): {min(others)} cannot be set for an error callback, only its queue")
    task = errback.task if isinstance(errback.task, Task) else None
    entrypoint = task.entrypoint if task is not None else str(errback.task)
    queue = errback.given.get("queue") or (task.defaults.queue if task is not None else None)
    return Hook(entrypoint, queue, _arguments(errback, task), tells=not errback.immutable)


def _arguments(errback: Any, task: Any) -> msgspec.Raw | None:
    if task is None:
        if errback.args:
            raise ArgumentsDoNotFit(f"link_error({errback!r}): of a task by name, arguments are given by name")
        return msgspec.Raw(msgspec.json.encode(errback.kwargs)) if errback.kwargs else None
    signature = task.signature
    if errback.immutable:
        return msgspec.Raw(signature.encode(errback.args, errback.kwargs).encode())
    if ENDED not in signature.parameters:
        raise BadTask(
            f"link_error({errback!r}): an error callback is called with one value, `ended` (an EndedTask with id, "
            f"error.type, error.message and error.traceback), which {task.node_name} does not take: "
            f"write def {task.node_name}(ended: EndedTask), or {task.node_name}.si(…) for a call without it"
        )
    if errback.args and signature.parameters[0] != ENDED:
        raise ArgumentsDoNotFit(f"link_error({errback!r}): make `ended` the first parameter, or give these by name")
    given = signature.bound((None, *errback.args) if errback.args else (), errback.kwargs)
    given.pop(ENDED, None)
    written = msgspec.json.decode(signature.encode_around(given, {ENDED: "null"}), type=dict[str, msgspec.Raw])
    del written[ENDED]
    return msgspec.Raw(msgspec.json.encode(written)) if written else None
