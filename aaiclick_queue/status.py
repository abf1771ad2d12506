"""The words for where a task is. Only final ones are stored; the others are the table the task is in."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """Status of a task as people see it."""

    PENDING = "PENDING"
    SCHEDULED = "SCHEDULED"
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    UPSTREAM_FAILED = "UPSTREAM_FAILED"
    SKIPPED = "SKIPPED"

    @property
    def is_final(self) -> bool:
        """Whether nothing more will happen to the task by itself."""
        return self in FINAL


FINAL = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.UPSTREAM_FAILED, Status.SKIPPED})


class JobStatus(StrEnum):
    """Status of a job."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_final(self) -> bool:
        """Whether nothing more will happen to the job by itself."""
        return self not in (JobStatus.PENDING, JobStatus.RUNNING)


class WorkerStatus(StrEnum):
    """Status of a worker incarnation; LOST and STOPPED never go back."""

    ACTIVE = "ACTIVE"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"
    LOST = "LOST"
