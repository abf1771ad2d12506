"""ClickHouse, for what is kept longer than Postgres and files keep it: lines of runs, and pruned tasks and jobs.

Tables are made on first use. Everything here waits for an answer: on an event loop it belongs into a thread.
`chdb:///folder` is the embedded engine: one folder a process, and no other process may have it open.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote, urlsplit

from .errors import MissingExtra, QueueError
from .log_lines import LEVELS, LogLine, Stream
from .settings import FOREVER, Settings

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

CONNECT_SECONDS = 5
ANSWER_SECONDS = 30
EPOCH = 1 << 32  # of a cursor: run_epoch and line number in one

_TASK_LOGS = """
CREATE TABLE IF NOT EXISTS task_logs (
    task_id Int64, job_id Nullable(Int64), attempt Int16, run_epoch Int32, worker Int64, number UInt32,
    at DateTime64(3, 'UTC'), level LowCardinality(String), logger LowCardinality(String),
    stream LowCardinality(String), line String
) ENGINE = MergeTree PARTITION BY toDate(at) ORDER BY (task_id, attempt, run_epoch, number) {ttl}
"""
_TASK_HISTORY = """
CREATE TABLE IF NOT EXISTS task_history (
    id Int64, run_epoch Int32, job_id Nullable(Int64), name String, entrypoint LowCardinality(String),
    queue LowCardinality(String), status LowCardinality(String), attempt Int16, priority Int32,
    created_at DateTime64(3, 'UTC'), started_at Nullable(DateTime64(3, 'UTC')), finished_at DateTime64(3, 'UTC'),
    worker_id Nullable(Int64), correlation_id String, kwargs String, result String, error_type LowCardinality(String),
    error String, attempts String, kept_at DateTime64(3, 'UTC')
) ENGINE = ReplacingMergeTree(kept_at) PARTITION BY toYYYYMM(created_at) ORDER BY (id, run_epoch)
"""
_JOB_HISTORY = """
CREATE TABLE IF NOT EXISTS job_history (
    id Int64, name String, status LowCardinality(String), created_at DateTime64(3, 'UTC'),
    finished_at Nullable(DateTime64(3, 'UTC')), job String, kept_at DateTime64(3, 'UTC')
) ENGINE = ReplacingMergeTree(kept_at) PARTITION BY toYYYYMM(created_at) ORDER BY id
"""
# LIMIT 1 BY: lines whose insert was not answered were sent again.
_READ_LINES = """
SELECT run_epoch, number, at, level, logger, stream, line FROM task_logs
WHERE task_id = {task_id:Int64} AND attempt = {attempt:Int16} AND (run_epoch, number) > ({epoch:Int32}, {number:Int64})
  AND level IN {levels:Array(String)}
ORDER BY run_epoch, number LIMIT 1 BY run_epoch, number LIMIT {limit:UInt32}
"""
_LIST_ATTEMPTS = """
SELECT attempt, sum(length(line)) FROM task_logs WHERE task_id = {task_id:Int64} GROUP BY attempt ORDER BY attempt
"""


class ClickHouseAway(QueueError):
    """ClickHouse does not answer, or refuses."""


class Store:
    """One connection, used by one thread at a time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._tables: set[str] = set()

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Add rows; raises ClickHouseAway."""
        with self._lock:
            self._do(lambda client: client.insert(table, rows, column_names=columns), table)

    def read(self, statement: str, given: Mapping[str, Any], *, table: str) -> Sequence[Sequence[Any]]:
        """The rows of a query; raises ClickHouseAway."""
        with self._lock:
            found = self._do(lambda client: client.query(statement, parameters=dict(given)), table)
            return cast("Sequence[Sequence[Any]]", found.result_rows)

    def close(self) -> None:
        """Give the connection back."""
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None

    def _do(self, act: Any, table: str) -> Any:
        try:
            if self._client is None:
                self._client = _connect(self._settings.clickhouse_url or "")
            if table not in self._tables:
                self._client.command(self._definition(table))
                self._tables.add(table)
            return act(self._client)
        except MissingExtra:
            raise
        except Exception as error:
            self._tables.clear()
            client, self._client = self._client, None
            if client is not None:
                client.close()
            first = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
            raise ClickHouseAway(
                f"ClickHouse at {self._settings.clickhouse_shown} does not do this ({first})"
            ) from error

    def _definition(self, table: str) -> str:
        days = self._settings.log_retention_days
        ttl = "" if days == FOREVER else f"TTL toDateTime(at) + INTERVAL {max(1, round(float(days)))} DAY"
        return {"task_logs": _TASK_LOGS.format(ttl=ttl), "task_history": _TASK_HISTORY, "job_history": _JOB_HISTORY}[
            table
        ]


_stores: dict[str, Store] = {}


def store_of(settings: Settings) -> Store:
    """The store of this process for these settings: the embedded engine is opened once a process."""
    return _stores.setdefault(settings.clickhouse_url or "", Store(settings))


def is_answering(url: str, seconds: float) -> bool | None:
    """Whether a server answers in time; None for the embedded engine, which only one process may open."""
    parts = urlsplit(url)
    if parts.scheme == "chdb":
        return None
    is_secure = parts.scheme in ("https", "clickhouses")
    kind = http.client.HTTPSConnection if is_secure else http.client.HTTPConnection
    asking = kind(parts.hostname or "localhost", parts.port or (8443 if is_secure else 8123), timeout=seconds)
    try:
        asking.request("GET", "/ping")
        return asking.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        asking.close()


def _connect(url: str) -> Client:
    try:
        import clickhouse_connect
    except ImportError as missing:
        raise MissingExtra("AAICLICK_QUEUE_CLICKHOUSE_URL", "clickhouse") from missing
    parts = urlsplit(url)
    if parts.scheme == "chdb":
        return clickhouse_connect.get_client(interface="chdb", path=unquote(parts.path))
    is_secure = parts.scheme in ("https", "clickhouses")
    return clickhouse_connect.get_client(
        host=parts.hostname or "localhost",
        port=parts.port or (8443 if is_secure else 8123),
        username=unquote(parts.username or "default"),
        password=unquote(parts.password or ""),
        database=unquote(parts.path.strip("/")) or "default",
        secure=is_secure,
        connect_timeout=CONNECT_SECONDS,
        send_receive_timeout=ANSWER_SECONDS,
        autogenerate_session_id=False,
    )


def read_lines(  # noqa: PLR0913 - one parameter a choice
    settings: Settings, task_id: int, attempt: int, *, after: int, limit: int, least: str | None
) -> tuple[list[LogLine], int]:
    """Lines of an attempt after the cursor, and the next cursor; raises ClickHouseAway."""
    epoch, number = divmod(after, EPOCH)
    given = {
        "task_id": task_id,
        "attempt": attempt,
        "epoch": epoch,
        "number": number if after else -1,
        "levels": [name for name, level in LEVELS.items() if least is None or level >= LEVELS[least]],
        "limit": limit,
    }
    lines: list[LogLine] = []
    for run_epoch, line_number, at, level, logger, stream, text in store_of(settings).read(
        _READ_LINES, given, table="task_logs"
    ):
        moment = at.replace(tzinfo=UTC) if at.tzinfo is None else at
        lines.append(LogLine(moment, level, logger, text, cast("Stream", stream)))
        after = run_epoch * EPOCH + line_number
    return lines, after


def list_attempts(settings: Settings, task_id: int) -> list[tuple[int, int]]:
    """Attempts of a task that have lines, with their bytes; raises ClickHouseAway."""
    rows = store_of(settings).read(_LIST_ATTEMPTS, {"task_id": task_id}, table="task_logs")
    return [(int(attempt), int(size)) for attempt, size in rows]
