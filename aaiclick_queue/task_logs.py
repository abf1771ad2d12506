"""What runs have said, for people: a page of an attempt's log, its end, the whole of it. From files, or ClickHouse.

Everything here reads files and may wait: on an event loop it belongs into a thread.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

from .log_files import Part, find_attempts, find_file, parts_of, read_part
from .log_lines import LEVELS, OURS, LogLine, facts_of, parse, read_records, write_mark
from .postgres import Database
from .settings import FOREVER, PREFIX, Settings

HAS_ENDED = "SELECT status IS NOT NULL FROM aaiclick_queue.tasks WHERE id = $1"
# Where it ran last, as far as that is known.
HOST_OF_TASK = """
SELECT w.hostname, w.id::text AS worker_id FROM (
    SELECT worker_id, 3 AS age FROM aaiclick_queue.leases WHERE task_id = $1
    UNION ALL SELECT worker_id, 2 FROM aaiclick_queue.tasks WHERE id = $1
    UNION ALL SELECT worker_id, 1 FROM aaiclick_queue.attempts WHERE task_id = $1) AS ran
JOIN aaiclick_queue.workers w ON w.id = ran.worker_id ORDER BY ran.age DESC, w.id LIMIT 1
"""
Source = Literal["file", "clickhouse", "none"]
MOST = 10_000


class LogPage(msgspec.Struct, frozen=True):
    """Lines of one attempt; `after` is where the next page begins, also when more is written later."""

    lines: list[LogLine]
    after: int
    is_end: bool  # nothing more is there now
    source: Source
    attempt: int | None


class LogAttempt(msgspec.Struct, frozen=True):
    """An attempt that has said something."""

    attempt: int
    size: int
    source: Source


def read_logs(  # noqa: PLR0913 - one parameter a choice
    settings: Settings,
    task_id: int,
    *,
    attempt: int | None = None,
    after: int = 0,
    limit: int = 1000,
    least: str | None = None,
) -> LogPage:
    """A page of the log of an attempt, the last one that said something unless given; `least` is a level."""
    path, found = _find(settings, task_id, attempt)
    if path is None:
        return _elsewhere(settings, task_id, attempt=attempt, after=after, limit=limit, least=least)
    lines: list[LogLine] = []
    for end, line in _walk(path, after):
        after = end
        if line is not None and _is_wanted(line, least):
            lines.append(line)
            if len(lines) >= limit:
                return LogPage(lines, after, after >= _size(path), "file", found)
    return LogPage(lines, after, True, "file", found)


def read_last_logs(
    settings: Settings, task_id: int, *, attempt: int | None = None, limit: int = 100, least: str | None = None
) -> LogPage:
    """The end of the log of an attempt: its newest lines; `after` is where a live tail goes on."""
    last: deque[LogLine] = deque(maxlen=limit)
    after = 0
    while True:
        page = read_logs(settings, task_id, attempt=attempt, after=after, limit=MOST, least=least)
        last += page.lines
        after, attempt = page.after, page.attempt
        if page.is_end:
            return msgspec.structs.replace(page, lines=list(last))


def list_log_attempts(settings: Settings, task_id: int) -> list[LogAttempt]:
    """The attempts of a task that have said something, in their order."""
    found = find_attempts(settings.log_folder, task_id)
    if not found and settings.clickhouse_url is not None:
        from .clickhouse import list_attempts

        return [LogAttempt(attempt, size, "clickhouse") for attempt, size in list_attempts(settings, task_id)]
    sizes = {attempt: sum(part.size for part in parts_of(path)) for attempt, path in found.items()}
    return [LogAttempt(attempt, size, "file") for attempt, size in sizes.items()]


def download_log(settings: Settings, task_id: int, *, attempt: int | None = None) -> Iterator[bytes] | None:
    """The log of an attempt as text in the form of its file, piece by piece; None where there is none."""
    path, _ = _find(settings, task_id, attempt)
    if path is not None:
        return _pieces(path)
    page = read_logs(settings, task_id, attempt=attempt, limit=MOST)
    if page.source == "none":
        return None
    return _written(settings, task_id, page)


async def explain_no_logs(db: Database, task_id: int) -> tuple[str, str]:
    """Why no log of a task is here, and what to do about it."""
    settings = db.settings
    found = await db.fetch(HOST_OF_TASK, task_id)
    if not found:
        return (
            f"task {task_id} has not started yet, or where it ran is not known any more",
            "task logs ID -f waits for it",
        )
    host = found[0]["hostname"]
    if host != socket.gethostname():
        return (
            f"task {task_id} ran on {host}, and its log is in the LOG_DIR there: {settings.log_folder} here has none",
            f"set {PREFIX}LOG_DIR to a folder that all hosts share, or {PREFIX}CLICKHOUSE_URL",
        )
    if not settings.log_capture:
        return f"task {task_id}: {PREFIX}LOG_CAPTURE is off, so nothing is kept", f"set {PREFIX}LOG_CAPTURE=true"
    days = settings.log_retention_days if settings.log_retention_days == FOREVER else f"{settings.log_retention_days:g}"
    kept = f"older than {PREFIX}LOG_RETENTION_DAYS ({days})"
    return (
        f"no log of task {task_id} is in {settings.log_folder}: it has said nothing, or that is {kept}",
        f"a worker with another {PREFIX}LOG_DIR or {PREFIX}HOME wrote it elsewhere",
    )


def _find(settings: Settings, task_id: int, attempt: int | None) -> tuple[Path | None, int | None]:
    if attempt is not None:
        return find_file(settings.log_folder, task_id, attempt), attempt
    found = find_attempts(settings.log_folder, task_id)
    last = max(found, default=None)
    return (None, None) if last is None else (found[last], last)


def _elsewhere(  # noqa: PLR0913 - as read_logs
    settings: Settings, task_id: int, *, attempt: int | None, after: int, limit: int, least: str | None
) -> LogPage:
    if settings.clickhouse_url is not None:
        from .clickhouse import list_attempts, read_lines

        if attempt is None:
            attempt = max((number for number, _ in list_attempts(settings, task_id)), default=None)
        if attempt is not None:
            lines, next_after = read_lines(settings, task_id, attempt, after=after, limit=limit, least=least)
            if lines or after:
                return LogPage(lines, next_after, len(lines) < limit, "clickhouse", attempt)
    return LogPage([], after, True, "none", attempt)


def _is_wanted(line: LogLine, least: str | None) -> bool:
    return least is None or LEVELS.get(line.level, 20) >= LEVELS[least]


def _size(path: Path) -> int:
    return max((part.end for part in parts_of(path)), default=0)


def _walk(path: Path, after: int) -> Iterator[tuple[int, LogLine | None]]:
    """Each line from this place of the whole on, with the place after it; None for what is no line."""
    parts = parts_of(path)
    for number, part in enumerate(parts):
        if part.end <= after:
            continue
        if part.start > after:
            yield part.start, _left_out(parts[0], part, after)
            after = part.start
        try:
            data = read_part(part, after)
        except OSError:
            data = None
        if data is None:  # written over: go on with what is there now
            if number:
                yield from _walk(path, after)
            return
        begin = after
        for size, record in read_records(data):
            line = parse(record)
            if line is None and after:
                line = _run_again(record[0])
            after = begin + size
            yield after, line


def _left_out(head: Part, part: Part, after: int) -> LogLine:
    at = datetime.now(UTC)
    lost = f"{part.start - after:,} bytes"
    if after == head.end:
        lines = part.line - (read_part(head, 0) or b"").count(b"\n")
        lost = f"{lines:,} lines"
    return LogLine(at, "WARNING", OURS, f"… {lost} left out: the first 5,000 lines and the last are kept …", "mark")


def _run_again(remark: str) -> LogLine | None:
    facts = facts_of(remark)
    if "epoch" not in facts:
        return None
    at = datetime.fromisoformat(remark.split()[1])
    return LogLine(at, "INFO", OURS, f"run again, epoch {facts['epoch']}", "mark")


def _pieces(path: Path) -> Iterator[bytes]:
    after, parts = 0, parts_of(path)
    for part in parts:
        if part.start > after:
            yield write_mark(_left_out(parts[0], part, after).text)
        yield read_part(part, part.start) or b""
        after = part.end


def _written(settings: Settings, task_id: int, page: LogPage) -> Iterator[bytes]:
    from .log_lines import write_line

    while True:
        for line in page.lines:
            yield write_line(line.at.timestamp(), line.level, line.logger, line.text, line.stream)
        if page.is_end:
            return
        page = read_logs(settings, task_id, attempt=page.attempt, after=page.after, limit=MOST)
