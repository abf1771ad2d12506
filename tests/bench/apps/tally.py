"""What the measured tasks do and write down, the same in every system: how many ran where, and how late they started.

Standard library alone, because it is imported in every peer's venv. A run costs 0.2 µs: one number in shared memory.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import threading
import time
from pathlib import Path
from typing import NamedTuple

FOLDER = "BENCH_FOLDER"
STEP_SECONDS = "BENCH_STEP_SECONDS"  # whoever hangs costs one figure and this
SLOTS = 4096  # threads of all workers; slot 0 counts those that are taken
_CELL = struct.Struct("=qq")  # pid, runs
_LATE = struct.Struct("=q")
SLEEP_SECONDS = 0.01  # of a task that waits for input or output
BURN_STEPS = 50_000  # of a task that computes: about 3 ms, and the interpreter is not let go of


class Seen(NamedTuple):
    """What the workers had run at one moment: the runs of each process that has had some."""

    by_process: dict[int, int] = {}  # noqa: RUF012 - never changed

    @property
    def runs(self) -> int:
        """Of all of them."""
        return sum(self.by_process.values())

    @property
    def processes(self) -> int:
        """How many have had some."""
        return len(self.by_process)

    def since(self, before: Seen) -> Seen:
        """What came after that moment."""
        more = {pid: runs - before.by_process.get(pid, 0) for pid, runs in self.by_process.items()}
        return Seen({pid: runs for pid, runs in more.items() if runs})


def prepare(folder: Path) -> None:
    """Make the files that workers will write to."""
    (folder / "tally").write_bytes(bytes(SLOTS * _CELL.size))
    (folder / "late").write_bytes(b"")


def ran(runs: int = 1) -> None:
    """Count runs of this thread."""
    try:
        at = _here.at
    except AttributeError:
        at = _here.at = _take_slot()
    cells = _cells[0]
    cells[at + 1] += runs


def clocked(sent_ns: int) -> None:
    """Write down the time since the enqueue was called."""
    late = time.time_ns() - sent_ns
    if not _files:
        _files.append(os.open(own_folder() / "late", os.O_WRONLY | os.O_APPEND))
    os.write(_files[0], _LATE.pack(late))


def burn() -> None:
    """Compute for a while, in Python."""
    total = 0
    for n in range(BURN_STEPS):
        total += n * n


def seen(folder: Path) -> Seen:
    """What has run so far."""
    text = (folder / "tally").read_bytes()
    by_process: dict[int, int] = {}
    for at in range(_CELL.size, _CELL.size * (1 + _CELL.unpack_from(text)[1]), _CELL.size):
        pid, runs = _CELL.unpack_from(text, at)
        if runs:
            by_process[pid] = by_process.get(pid, 0) + runs
    return Seen(by_process)


def lates(folder: Path) -> list[int]:
    """Nanoseconds from each enqueue call to the first line of its task, in the order of their start."""
    return [late for (late,) in _LATE.iter_unpack((folder / "late").read_bytes())]


def late_count(folder: Path) -> int:
    """How many have told how late they were."""
    return (folder / "late").stat().st_size // _LATE.size


def step_seconds() -> float:
    """How long a step of a measurement may take."""
    return float(os.environ.get(STEP_SECONDS, "90"))


def own_folder() -> Path:
    """The folder of the measurement that this process takes part in."""
    return Path(os.environ[FOLDER])


def _take_slot() -> int:
    with (own_folder() / "tally").open("r+b") as file:
        if not _cells:
            _cells.append(memoryview(mmap.mmap(file.fileno(), 0)).cast("q"))
        fcntl.flock(file, fcntl.LOCK_EX)
        _cells[0][1] += 1
        at: int = 2 * _cells[0][1]
        _cells[0][at] = os.getpid()
        fcntl.flock(file, fcntl.LOCK_UN)  # the map holds the file open
        return at


def _after_fork() -> None:
    global _here  # noqa: PLW0603 - the parent's slot is the parent's
    _here = threading.local()


_here = threading.local()
_cells: list[memoryview] = []
_files: list[int] = []
os.register_at_fork(after_in_child=_after_fork)
