"""Sentry: tells of failed tasks with their id, attempt and place. `sentry_sdk.init(…)` is the application's part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import MissingExtra
from ..middleware import Middleware, Proceed, Running
from ..outcome import Error, Failed, Later, Lost, Outcome
from ..redaction import hidden_in

try:
    import sentry_sdk
    from sentry_sdk.integrations.logging import ignore_logger
    from sentry_sdk.utils import event_from_exception
except ImportError as missing:
    raise MissingExtra("aaiclick_queue.integrations.sentry", "sentry") from missing


class Sentry(Middleware):
    """One event for each task that failed for good; with `every_attempt` also for those that will be retried."""

    def __init__(self, *, every_attempt: bool = False) -> None:
        self._every_attempt = every_attempt
        ignore_logger("aaiclick_queue.task")  # the worker's own line about the same error would be a second event

    async def execute(self, run: Running, proceed: Proceed[Outcome]) -> Outcome:
        """A scope of its own around the run; what the task itself sends to Sentry carries the same tags."""
        with sentry_sdk.isolation_scope() as scope:
            scope.set_transaction_name(run.entrypoint)
            scope.set_tag("aaiclick_queue.task_id", str(run.task_id))
            scope.set_tag("aaiclick_queue.queue", run.queue)
            scope.set_tag("aaiclick_queue.entrypoint", run.entrypoint)
            scope.set_tag("aaiclick_queue.attempt", str(run.attempt))
            scope.set_context("aaiclick_queue", _facts(run))
            # Here and not when an event is made: breadcrumbs come to it later, and the task sends events of its own.
            scope.add_event_processor(lambda event, _: without_secrets(event, run.secrets) if run.secrets else event)
            outcome = await proceed()
            error = self._worth_telling(outcome)
            if error is not None:
                _tell(scope, run, error)
            return outcome

    def _worth_telling(self, outcome: Outcome) -> Error | None:
        match outcome:
            case Failed(error):
                return error
            case Later("RETRYING", error) | Lost(error) if self._every_attempt:
                return error
        return None


def _facts(run: Running) -> dict[str, Any]:
    return {
        "task_id": str(run.task_id),
        "attempt": run.attempt,
        "max_attempts": run.max_attempts,
        "run_epoch": run.run_epoch,
        "worker_id": str(run.worker_id),
        "correlation_id": run.correlation_id,
    }


def _tell(scope: sentry_sdk.Scope, run: Running, error: Error) -> None:
    # By Sentry's own rules, and apart for each task: the same line of a shared library fails for many reasons.
    scope.fingerprint = ["{{ default }}", run.entrypoint]
    if run.error is None:  # a timeout, or a run in a process of its own: only its text is here
        values = [
            {"type": error.type, "value": error.message, "mechanism": {"type": "aaiclick_queue", "handled": True}}
        ]
        scope.set_extra("traceback", error.traceback)
        sentry_sdk.capture_event({"level": "error", "exception": {"values": values}})
        return
    event, hint = event_from_exception(
        run.error,
        client_options=sentry_sdk.get_client().options,
        mechanism={"type": "aaiclick_queue", "handled": False},
    )
    sentry_sdk.capture_event(event, hint={} if run.secrets else hint)  # the hint has the exception itself


def without_secrets(event: Any, secrets: Sequence[str]) -> Any:
    """The event without these texts, and without the variables of its frames: those may hold them in any form."""
    for value in event.get("exception", {}).get("values", ()):
        for frame in (value.get("stacktrace") or {}).get("frames", ()):
            frame.pop("vars", None)
    return hidden_in(event, secrets)
