"""What eager keeps of a task instead of its row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from ..codec import decode_json
from ..flow.claim import Claimed
from ..flow.ending import EndedTask
from ..flow.enqueue import NewTask, Spec
from ..middleware import metadata_of
from ..outcome import Error
from ..redaction import opened
from ..status import Status
from .seen import SeenTask


@dataclass
class Record:
    """One task that runs, or ran, in line."""

    id: int
    spec: Spec
    task: NewTask
    status: Status = Status.QUEUED
    attempt: int = 0
    runs: int = 0
    snoozes: int = 0
    result: str | None = None
    error: Error | None = None
    progress: Any = None
    checkpoint: str | None = None

    def __post_init__(self) -> None:
        now = datetime.now(UTC)
        task = self.task
        self.not_before = task.eta if task.countdown is None else now + timedelta(seconds=task.countdown)
        expires = task.expires
        ends = now + timedelta(seconds=expires) if isinstance(expires, int | float) else expires
        self._expired = ends is not None and ends <= max(now, self.not_before or now)

    def claimed(self) -> Claimed:
        """The next run, as a claim would give it."""
        self.attempt += 1
        self.runs += 1
        self.status = Status.RUNNING
        spec = self.spec
        return Claimed(
            task_id=self.id,
            run_epoch=self.runs,
            attempt=self.attempt,
            lost_count=0,
            snoozes=self.snoozes,
            queue=spec.queue,
            entrypoint=spec.entrypoint,
            kwargs=self.task.kwargs,
            name=spec.name,
            timeout_seconds=spec.timeout,
            max_attempts=spec.max_attempts,
            correlation_id=self.task.correlation_id,
            priority=spec.priority,
            waited=0.0,
            expired=self._expired,
            concurrency_key=self.task.concurrency_key,
            order_by=self.task.order_by,
            metadata=self.task.metadata,
        )

    def ended(self, status: Status, *, result: str | None = None, error: Error | None = None) -> None:
        """It has come to its end."""
        self.status, self.result, self.error = status, result, error

    def hook(self, record: Callable[[Spec, NewTask], Record], hook: Mapping[str, Any]) -> Record:
        """The task that a hook of this one enqueues, told what it came to."""
        spec = self.spec
        status = "RETRYING" if self.status is Status.SCHEDULED else str(self.status)
        told = EndedTask(
            str(self.id), spec.entrypoint, spec.name, spec.queue, status, self.attempt, decode_json(self.task.kwargs),
            decode_json(self.result), self.error,
        )  # fmt: skip
        ended = {"ended": told} if hook.get("tells", True) else {}
        kwargs = msgspec.json.encode({**ended, **hook.get("kwargs", {})}).decode()
        following = Spec(hook["entrypoint"], hook.get("queue") or spec.queue, spec.priority, parent_id=self.id)
        return record(following, NewTask(kwargs, correlation_id=self.task.correlation_id))

    def row(self) -> dict[str, Any]:
        """The columns that a handle reads."""
        error = self.error.text() if self.error else None
        return {
            "id": self.id,
            "status": self.status,
            "result": self.result,
            "error": error,
            "attempt": self.attempt,
            "after_gate": None,
        }

    def seen(self) -> SeenTask:
        """As a test sees it."""
        return SeenTask(
            id=self.id,
            entrypoint=self.spec.entrypoint,
            kwargs=decode_json(opened(self.task.kwargs)),
            status=self.status,
            queue=self.spec.queue,
            priority=self.spec.priority,
            attempt=self.attempt,
            runs=self.runs,
            not_before=self.not_before,
            name=self.spec.name,
            correlation_id=self.task.correlation_id,
            metadata=metadata_of(self.task.metadata) or None,
            parent_id=self.spec.parent_id,
            result=decode_json(self.result),
            error=self.error,
        )
