"""Tracebacks for people: the reader's own frames as they are, those of libraries folded away."""

from __future__ import annotations

import re
import sysconfig

import msgspec

FRAME = re.compile(r'^[ |+-]*File "(?P<file>[^"\n]+)", line \d+, in ')
LIBRARY = (sysconfig.get_path("stdlib") + "/", "<")


class Part(msgspec.Struct, frozen=True):
    """Lines of a traceback: `head` and `end`, `own` frames, or so many frames of libraries."""

    kind: str
    text: str
    frames: int = 0


def parts_of(trace: str) -> list[Part]:
    """The traceback cut where frames of the reader's and of libraries meet."""
    found: list[Part] = []
    kind, lines, frames = "head", list[str](), 0

    def close() -> None:
        if lines:
            found.append(Part(kind, "\n".join(lines), frames))

    for line in trace.splitlines():
        match = FRAME.match(line)
        if match:
            new = "theirs" if _is_library(match["file"]) else "own"
        elif kind in ("own", "theirs") and not line.startswith((" ", "|")):
            new = "end"
        else:
            new = kind
        if new != kind:
            close()
            kind, lines, frames = new, [], 0
        lines.append(line)
        frames += bool(match)
    close()
    return found


def _is_library(file: str) -> bool:
    return file.startswith(LIBRARY) or "-packages/" in file or "/lib/python" in file
