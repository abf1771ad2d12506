"""History: pruned tasks and jobs in ClickHouse, in `task_history` and `job_history`. Before: prune."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from .clickhouse import ClickHouseAway, Store, store_of
from .errors import MissingExtra
from .flow.archive import ArchiveAway
from .redaction import redacted
from .settings import Settings

TASK_COLUMNS = (
    "id", "run_epoch", "job_id", "name", "entrypoint", "queue", "status", "attempt", "priority", "created_at",
    "started_at", "finished_at", "worker_id", "correlation_id", "kwargs", "result", "error_type", "error", "attempts",
    "kept_at",
)  # fmt: skip
JOB_COLUMNS = ("id", "name", "status", "created_at", "finished_at", "job", "kept_at")


class History:
    """What the pruner gives its rows to."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self.patience_seconds = settings.history_patience_days * 86400
        self._names = settings.redact_names
        self._store = store

    async def keep_tasks(self, tasks: Sequence[tuple[dict[str, Any], list[Any]]]) -> None:
        """Keep tasks, each with its attempts."""
        now = datetime.now(UTC)
        await self._insert(
            "task_history",
            TASK_COLUMNS,
            [_task_row(redacted(task, self._names), attempts, now) for task, attempts in tasks],
        )

    async def keep_jobs(self, jobs: Sequence[dict[str, Any]]) -> None:
        """Keep jobs."""
        now = datetime.now(UTC)
        await self._insert("job_history", JOB_COLUMNS, [_job_row(redacted(job, self._names), now) for job in jobs])

    async def _insert(self, table: str, columns: Sequence[str], rows: list[list[Any]]) -> None:
        if not rows:
            return
        try:
            await asyncio.to_thread(self._store.insert, table, columns, rows)
        except (ClickHouseAway, MissingExtra) as error:
            raise ArchiveAway(str(error)) from error


def history_of(settings: Settings) -> History | None:
    """The history of these settings; None where nothing is kept beyond retention."""
    return None if settings.clickhouse_url is None else History(settings, store_of(settings))


def _task_row(task: dict[str, Any], attempts: list[Any], now: datetime) -> list[Any]:
    error = task["error"] or {}
    return [
        task["id"],
        task["run_epoch"] or 0,
        task["job_id"],
        task["name"] or "",
        task["entrypoint"],
        task["queue"],
        task["status"],
        task["attempt"] or 0,
        task["priority"],
        _moment(task["created_at"]),
        _moment(task["started_at"]),
        _moment(task["finished_at"]),
        task["worker_id"],
        task["correlation_id"] or "",
        _json(task["kwargs"]),
        _json(task["result"]),
        error.get("type", ""),
        _json(error or None),
        _json(attempts),
        now,
    ]


def _job_row(job: dict[str, Any], now: datetime) -> list[Any]:
    times = _moment(job["created_at"]), _moment(job["finished_at"])
    return [job["id"], job["name"] or "", job["status"], *times, _json(job), now]


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _json(value: Any) -> str:
    return "" if value is None else msgspec.json.encode(value).decode()
