"""The file of one attempt: its first 5,000 lines, then a ring of five parts with the last ones. Before: log_recorder.

`{LOG_DIR}/{yyyy-mm-dd}/{task_id}.{attempt}.log` is the head; `.log.0` to `.log.4` are the ring. A part begins with a
remark that says where it stands in the whole, so that nothing has to be moved at the end and a crash loses nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from .log_lines import facts_of, read_records, second_text

PARTS = 5
NEW, MODE = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640
HEAD_LINES, HEAD_BYTES = 5_000, 5 << 20
PART_LINES, PART_BYTES = HEAD_LINES // PARTS, HEAD_BYTES // PARTS
SILENT_ATTEMPTS = 32  # attempts in a row that may have said nothing, when one looks for the last that did


class Part(NamedTuple):
    """A piece of a log on disk: which bytes and lines of the whole it holds."""

    path: Path
    start: int  # in the whole
    line: int
    skip: int  # bytes of the remark before them
    size: int

    @property
    def end(self) -> int:
        """Where in the whole it ends."""
        return self.start + self.size


def file_of(folder: Path, day: str, task_id: int, attempt: int) -> Path:
    """Where the log of an attempt begins."""
    return folder / day / f"{task_id}.{attempt}.log"


def day_of(at: float) -> str:
    """The UTC day of a moment."""
    return second_text(int(at))[:10]


def days_in(folder: Path) -> list[str]:
    """The days that have logs, the newest first."""
    try:
        names = [entry.name for entry in os.scandir(folder)]
    except OSError:
        return []
    return sorted((name for name in names if is_day(name)), reverse=True)


def is_day(name: str) -> bool:
    """Whether a folder's name is a day."""
    try:
        return len(name) == 10 and bool(datetime.strptime(name, "%Y-%m-%d").replace(tzinfo=UTC))
    except ValueError:
        return False


def find_file(folder: Path, task_id: int, attempt: int) -> Path | None:
    """The newest log of an attempt."""
    paths = (file_of(folder, day, task_id, attempt) for day in days_in(folder))
    return next((path for path in paths if path.exists()), None)


def find_attempts(folder: Path, task_id: int) -> dict[int, Path]:
    """The newest log of each attempt that has one."""
    found: dict[int, Path] = {}
    for day in days_in(folder):
        attempt, last = 0, 0
        while attempt <= last + SILENT_ATTEMPTS:
            path = file_of(folder, day, task_id, attempt)
            if path.exists():
                found.setdefault(attempt, path)
                last = attempt
            attempt += 1
            last = max(last, *found, 0)
    return dict(sorted(found.items()))


def parts_of(path: Path) -> list[Part]:
    """What there is of a log, in its order."""
    try:
        parts = [Part(path, 0, 0, 0, path.stat().st_size)]
    except OSError:
        return []
    for number in range(PARTS):
        with suppress(OSError, ValueError, KeyError), _ring_path(path, number).open("rb") as file:
            remark = file.readline(200)
            if remark.endswith(b"\n"):
                facts = facts_of(remark.decode())
                size = os.fstat(file.fileno()).st_size - len(remark)
                parts.append(Part(Path(file.name), int(facts["byte"]), int(facts["line"]), len(remark), size))
    return sorted(parts, key=lambda part: part.start)


def read_part(part: Part, start: int) -> bytes | None:
    """The bytes of a part from this place of the whole on; None when it has been written over meanwhile."""
    with part.path.open("rb") as file:
        if part.skip:
            remark = file.readline(200)
            file.seek(part.skip + start - part.start)
            data = file.read()
            file.seek(0)
            is_same = file.readline(200) == remark and b"byte=%d " % part.start in remark
            return data if is_same else None
        file.seek(start)
        return file.read()


def records_of_run(path: Path, run_epoch: int) -> list[bytes]:
    """What one run of an attempt has said."""
    records: list[bytes] = []
    is_wanted = False
    for part in parts_of(path):
        data, begin = read_part(part, part.start) or b"", 0
        for end, lines in read_records(data):
            if lines[0].startswith("#"):
                is_wanted = facts_of(lines[0]).get("epoch") == str(run_epoch)
            elif is_wanted:
                records.append(data[begin:end])
            begin = end
    return records


def files_of(path: Path) -> Iterator[Path]:
    """Every file that a log may consist of."""
    yield path
    yield from (_ring_path(path, number) for number in range(PARTS))


def _ring_path(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number % PARTS}")


class LogFile:
    """Writes the log of one attempt; a file that an earlier run of the same attempt has left is gone on with."""

    def __init__(self, path: str | Path, remark: str, *, stays_open: bool = False) -> None:
        """`remark` says whose log it is, and stands before the first line of this run."""
        self._path = path  # a text for most: making a Path takes as long as making the file
        self._remark = f"# {remark}\n".encode()
        self._stays_open = stays_open
        self._descriptor: int | None = None
        self._begun = False
        self._part = -1  # of the ring, -1: the head
        self._lines = self._bytes = 0  # in this part
        self._line = self._at = 0  # in the whole

    @property
    def path(self) -> Path:
        """Where its head is."""
        return Path(self._path)

    def append(self, records: Sequence[bytes], *, skipped: int = 0) -> None:
        """Write them, `skipped` lines after what was written last; raises OSError."""
        if not self._begun:
            self._begin()
            records = [self._remark, *records]
            self._begun = True
        if skipped:
            self._line += skipped
            self._at += skipped
            self._next_part()
        batch: list[bytes] = []
        for record in records:
            lines = record.count(b"\n")
            most_lines, most_bytes = (HEAD_LINES, HEAD_BYTES) if self._part < 0 else (PART_LINES, PART_BYTES)
            if self._lines + lines > most_lines or self._bytes + len(record) > most_bytes:
                self._write(batch)
                batch = []
                self._next_part()
            batch.append(record)
            self._count(record, lines)
        self._write(batch)
        if not self._stays_open:
            self.close()

    def close(self) -> None:
        """Give the descriptor back; the next line opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _count(self, record: bytes, lines: int) -> None:
        self._lines += lines
        self._line += lines
        self._bytes += len(record)
        self._at += len(record)

    def _begin(self) -> None:
        try:
            self._descriptor = os.open(self._path, NEW | os.O_EXCL, MODE)
        except FileNotFoundError:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            self._go_on()

    def _go_on(self) -> None:
        if parts := parts_of(self.path):
            last = parts[-1]
            data = read_part(last, last.start) or b""
            self._lines, self._bytes = data.count(b"\n"), len(data)
            self._line, self._at = last.line + self._lines, last.start + len(data)
            self._part = -1 if len(parts) == 1 else int(last.path.suffix[1:])

    def _next_part(self) -> None:
        self.close()
        self._part += 1
        self._lines = self._bytes = 0
        path = _ring_path(self.path, self._part)
        descriptor = os.open(path, NEW | os.O_TRUNC, MODE)
        try:
            os.write(descriptor, f"# byte={self._at} line={self._line} part={self._part}\n".encode())
        finally:
            os.close(descriptor)

    def _write(self, records: Sequence[bytes]) -> None:
        if not records:
            return
        if self._descriptor is None:
            path = self._path if self._part < 0 else _ring_path(self.path, self._part)
            self._descriptor = os.open(path, NEW, MODE)
        data = b"".join(records)
        while data:
            data = data[os.write(self._descriptor, data) :]
