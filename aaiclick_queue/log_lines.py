"""A line of a run's log as it stands in its file: `2026-11-16T14:03:45.102Z INFO shop.mail sent 3`.

Further lines of the same message begin with a tab, remarks of ours with `#`; so it reads as text and parses exactly.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import lru_cache
from typing import Literal

import msgspec

Stream = Literal["log", "stdout", "stderr", "mark"]

LEVELS = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40, "CRITICAL": 50}
STREAM_LEVELS = {"stdout": "INFO", "stderr": "WARNING"}  # progress bars and warnings go there, errors are raised
LINE_BYTES = 4096
RECORD_LINES = 500  # of one message, the lines of its traceback included
CUT = " … cut at 4 KB"
SHORTENED = "… cut at 500 lines"
OURS = "aaiclick_queue"
_STREAMS: dict[str, Stream] = {"<stdout>": "stdout", "<stderr>": "stderr", "<mark>": "mark"}


class LogLine(msgspec.Struct, frozen=True):
    """What a run said: one message, or one line that it printed. `mark` is a remark of ours about what is missing."""

    at: datetime
    level: str
    logger: str
    text: str
    stream: Stream = "log"


def level_name(number: int) -> str:
    """The standard level at or below."""
    return next((name for name, least in reversed(LEVELS.items()) if number >= least), "DEBUG")


def write_line(at: float, level: str, logger: str, text: str, stream: Stream = "log") -> bytes:
    """The line with its newline; no part of it is longer than 4 KB."""
    name = logger if stream == "log" else f"<{stream}>"
    if " " in name or "\n" in name or not name:
        name = "_".join(name.split()) or "-"
    second, thousandth = divmod(round(at * 1000), 1000)
    whole = f"{second_text(second)}.{thousandth:03d}Z {level} {name} {text}"
    if "\n" not in whole and len(whole) * 4 <= LINE_BYTES:
        return f"{whole}\n".encode("utf-8", "backslashreplace")
    parts = whole.split("\n")
    if len(parts) > RECORD_LINES:
        parts[RECORD_LINES:] = [SHORTENED]
    return b"\n\t".join(_cut(part) for part in parts) + b"\n"


def write_mark(text: str, at: float | None = None) -> bytes:
    """A remark of ours among the lines."""
    return write_line(time.time() if at is None else at, "WARNING", "", text, "mark")


def _cut(part: str) -> bytes:
    data = part.encode("utf-8", "backslashreplace")
    if len(data) <= LINE_BYTES:
        return data
    cut = CUT.encode()
    return data[: LINE_BYTES - len(cut)].decode("utf-8", "ignore").encode() + cut


@lru_cache(4)
def second_text(at: int) -> str:
    """A moment in UTC without its zone."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at))


def read_records(data: bytes) -> Iterator[tuple[int, list[str]]]:
    """Each message or remark in the bytes, as its lines, with the position after it; an unfinished end is left."""
    position, end, found = 0, data.rfind(b"\n") + 1, list[str]()
    for raw in data[:end].splitlines(keepends=True) if b"\r" not in data else _lines(data[:end]):
        if found and not raw.startswith(b"\t"):
            yield position, found
            found = []
        found.append(raw[:-1].decode("utf-8", "replace"))
        position += len(raw)
    if found:
        yield position, found


def _lines(data: bytes) -> Iterable[bytes]:
    return (part + b"\n" for part in data.split(b"\n")[:-1])


def parse(record: list[str]) -> LogLine | None:
    """The record; None for a remark that says how the file is made."""
    first, *more = record
    if first.startswith("#"):
        return None
    try:
        moment, level, name, *text = first.split(" ", 3)
        at = datetime.fromisoformat(moment)
    except ValueError:
        return LogLine(datetime.fromtimestamp(0, UTC), "INFO", "-", "\n".join(_untabbed(record)), "mark")
    stream = _STREAMS.get(name, "log")
    said = "\n".join([*text, *_untabbed(more)])
    return LogLine(at, level, OURS if stream == "mark" else name.strip("<>") if stream != "log" else name, said, stream)


def _untabbed(lines: Iterable[str]) -> Iterator[str]:
    return (line.removeprefix("\t") for line in lines)


def facts_of(remark: str) -> dict[str, str]:
    """The `name=value` words of a remark."""
    return dict(word.split("=", 1) for word in remark.split() if "=" in word)
