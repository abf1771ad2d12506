"""Log lines of the command line: for people, or one JSON object a line. After: whatever reads stdout."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import msgspec

from .context import current, hidden_here
from .errors import WrongContext
from .orders import LogsOf
from .report import one_line, short

LogFormat = Literal["pretty", "json"]

OURS = "aaiclick_queue"
TASK_LINES = "aaiclick_queue.task"  # their message brings its mark along
TRACE_WIDTH = 2_000
COLOURS = {"←": 32, "→": 36, "↻": 33, "!": 31}
# What every record has; the rest of its attributes was given as `extra`.
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"event", "message", "asctime", "taskName"}
_encode = msgspec.json.Encoder(enc_hook=str).encode


class PrettyLines(logging.Formatter):
    """`HH:MM:SS mark message`, local time; a line logged inside a task ends with its short id."""

    def __init__(self, *, colour: bool, tracebacks: bool = False) -> None:
        """`tracebacks`: those of tasks that failed follow their line."""
        super().__init__()
        self._colour = colour
        self._tracebacks = tracebacks

    def format(self, record: logging.LogRecord) -> str:
        """The record as a person reads it."""
        message = record.getMessage()
        if record.name == TASK_LINES:
            mark, message = message[:1], message[2:]
        else:
            mark = "!" if record.levelno >= logging.WARNING else "·"
            if not record.name.startswith(OURS):
                task = _task_here()
                where = f"{record.name} {short(int(task['task_id']))}" if task else record.name
                message = f"{where}  {message}"
        if self._colour and mark in COLOURS:
            mark = f"\x1b[{COLOURS[mark]}m{mark}\x1b[0m"
        line = f"{time.strftime('%H:%M:%S', time.localtime(record.created))} {mark} {message}"
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        if self._tracebacks and record.name == TASK_LINES and (trace := getattr(record, "traceback", "")):
            line = "\n".join([line, *(f"    {one_line(part, TRACE_WIDTH)}" for part in trace.splitlines())])
        return hidden_here(line)


class JsonLines(logging.Formatter):
    """One JSON object a line: ts, level, event, then the fields of the event."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a machine reads it."""
        given = vars(record)
        line: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": given.get("event") or record.getMessage(),
        }
        if record.name != TASK_LINES:
            line |= {"logger": record.name, **_task_here()}
        line |= {name: value for name, value in given.items() if name not in _OWN}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        try:
            return hidden_here(_encode(line).decode())
        except (TypeError, ValueError, RecursionError):  # a lone surrogate, a dict with strange keys
            return hidden_here(json.dumps({str(key): repr(value) for key, value in line.items()}))


_shared: LogsOf | None = None


def shared() -> LogsOf | None:
    """How this process writes its lines, for child processes that are to do the same."""
    return _shared


def set_up_as(worker: LogsOf) -> None:
    """Write lines as the worker does, among its own."""
    stream = sys.stdout
    if worker.descriptor != stream.fileno():
        os.set_inheritable(worker.descriptor, False)
        stream = os.fdopen(worker.descriptor, "w", encoding="utf-8", errors="replace", buffering=1)
    set_up(worker.log_format, worker.level, colour=worker.colour, tracebacks=worker.tracebacks, stream=stream)


def set_up(
    log_format: LogFormat,
    level: str,
    *,
    colour: bool = False,
    tracebacks: bool = False,
    stream: TextIO | None = None,
) -> None:
    """Send every log line of this process to stdout in the format given; with JSON nothing else goes there."""
    global _shared  # noqa: PLW0603 - as the root logger is
    if stream is None:
        stream = _stdout_for_lines_alone() if log_format == "json" else sys.stdout
        _shared = LogsOf(log_format, level, colour, tracebacks, stream.fileno())
    handler = logging.StreamHandler(stream)
    pretty = PrettyLines(colour=colour, tracebacks=tracebacks or level == "DEBUG")
    handler.setFormatter(JsonLines() if log_format == "json" else pretty)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # What these say below that is about themselves.
    logging.getLogger("asyncio").setLevel(max(root.level, logging.INFO))
    for name in ("alembic", "uvicorn.error"):
        logging.getLogger(name).setLevel(max(root.level, logging.WARNING))
    logging.raiseExceptions = False  # a reader of our lines that is gone must not stop the worker


def _stdout_for_lines_alone() -> TextIO:
    """The real stdout; whoever prints, a child process of a task too, writes to stderr from now on."""
    sys.stdout.flush()
    real = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace", buffering=1)
    os.dup2(2, 1)
    return real


def _task_here() -> dict[str, Any]:
    try:
        run = current()
    except WrongContext:
        return {}
    fields: dict[str, Any] = {
        "task_id": str(run.id),
        "entrypoint": run.entrypoint,
        "queue": run.queue,
        "attempt": run.attempt,
        "run_epoch": run.run_epoch,
        "worker_id": str(run.fence.worker_id),
    }
    if run.job_id is not None:
        fields["job_id"] = str(run.job_id)
    return fields | _span_here()


def _span_here() -> dict[str, str]:
    """The trace that a line belongs to, where there is one."""
    trace = sys.modules.get("opentelemetry.trace")  # imported by whoever traces
    if trace is None:
        return {}
    span = trace.get_current_span().get_span_context()
    if not span.is_valid:
        return {}
    return {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}
