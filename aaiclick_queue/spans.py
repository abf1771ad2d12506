"""Spans: where the flow tells a tracer what it did, if there is one. Nothing of OpenTelemetry is imported here.

`tracing` puts one here; without it each place pays for one look. Enqueue and execute are told through middleware.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from .outcome import Outcome


class Tracer(Protocol):
    """What is told; `began` is the monotonic clock."""

    def relayed(self, queues: Sequence[str], parents: Iterable[str | None], began: float, *, own: bool) -> None:
        """Wake-ups were published, for tasks that were enqueued in these contexts."""

    def claimed(self, runs: Sequence[Any], worker_id: int, began: float) -> None:
        """Tasks were leased."""

    def completed(self, run: Any, outcome: Outcome) -> None:
        """What a run came to is written."""

    def gone(self, task_id: int, run_epoch: int) -> None:
        """What a run came to was not written: its lease was lost."""

    def job_ended(self, row: Any) -> None:
        """A job is over."""

    def worked(self, what: str, count: int, began: float) -> None:
        """A background loop has done something."""


class Told:
    """Who is told."""

    tracer: Tracer | None = None


TOLD = Told()
