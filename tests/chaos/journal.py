"""What runs write down themselves: a line when one starts and one when its code is done, in a file that only grows.

Times are of CLOCK_MONOTONIC, which all processes of the machine share and no clock jump moves.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from aaiclick_queue.context import running

JOURNAL_FILE = "CHAOS_JOURNAL_FILE"


class Line(msgspec.Struct, frozen=True, array_like=True):
    """One line: `start`, `end`, `early` (a dependent that found something missing), or the answer of a fenced write."""

    kind: str
    what: str
    task_id: int
    run_epoch: int
    worker_id: int
    pid: int
    at: float
    note: str = ""


class Stamp(msgspec.Struct, frozen=True, array_like=True):
    """What a run returns: which run it was, and when its code was done."""

    task_id: int
    run_epoch: int
    ended: float


def write(kind: str, what: str, note: str = "") -> Line:
    """Append a line; one write of less than a page is never torn, whoever else appends."""
    run, _ = running()
    now = time.monotonic()
    line = Line(kind, what, run.claimed.task_id, run.claimed.run_epoch, run.worker_id, os.getpid(), now, note)
    file = os.open(os.environ[JOURNAL_FILE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, msgspec.json.encode(line) + b"\n")
    finally:
        os.close(file)
    return line


@contextmanager
def written(what: str) -> Iterator[Line]:
    """A line before and one after; the latter also when the code raises."""
    began = write("start", what)
    try:
        yield began
    finally:
        write("end", what)


def read(path: Path) -> list[Line]:
    """Every whole line."""
    decode = msgspec.json.Decoder(Line).decode
    return [decode(line) for line in path.read_bytes().split(b"\n")[:-1]]
