"""Old logs go: whole days past their retention, and the oldest days where all together take too much room."""

from __future__ import annotations

import logging
import os
import re
import time
from contextlib import suppress
from pathlib import Path

from .log_files import day_of, days_in
from .settings import FOREVER, Settings

log = logging.getLogger("aaiclick_queue.logs")

OURS = re.compile(r"[0-9]+\.[0-9]+\.log(\.[0-9])?")
LOW = 0.9  # of the most bytes: down to here, so that not every sweep has to delete


class Sweep:
    """The sweeps of one process; what it once counted of a day that is over it does not count again."""

    def __init__(self, settings: Settings) -> None:
        self._folder = settings.log_folder
        self._days = None if settings.log_retention_days == FOREVER else float(settings.log_retention_days)
        self._most = settings.log_max_bytes
        self._sizes: dict[str, tuple[float, int]] = {}

    def once(self, now: float | None = None) -> int:
        """Delete what is too old or too much; gives the bytes that went."""
        try:
            return self._once(time.time() if now is None else now)
        except OSError as error:
            log.warning("cannot sweep old logs in %s: %s", self._folder, error.strerror or error)
            return 0

    def _once(self, now: float) -> int:
        days = days_in(self._folder)  # the newest first
        gone = 0
        if self._days is not None:
            first_kept = day_of(now - self._days * 86400)
            for day in [day for day in days if day < first_kept]:
                gone += self._delete(day)
                days.remove(day)
        sizes = {day: self._size(day) for day in days}
        total = sum(sizes.values())
        if total <= self._most:
            return gone
        low = int(self._most * LOW)
        for day in reversed(days):
            if total <= low:
                break
            took = self._delete(day) if day != days[0] else self._delete_oldest(day, total - low)
            total -= took
            gone += took
        log.warning("logs took more than AAICLICK_QUEUE_LOG_MAX_BYTES: deleted the oldest %s bytes", f"{gone:,}")
        return gone

    def _size(self, day: str) -> int:
        with suppress(FileNotFoundError):
            changed = (self._folder / day).stat().st_mtime
            known = self._sizes.get(day)
            if known is None or known[0] != changed or day == day_of(time.time()):
                size = sum(size for _, size, _ in _files(self._folder / day))
                self._sizes[day] = known = (changed, size)
            return known[1]
        return 0

    def _delete(self, day: str) -> int:
        gone = _unlink(_files(self._folder / day))
        with suppress(OSError):
            (self._folder / day).rmdir()
        self._sizes.pop(day, None)
        return gone

    def _delete_oldest(self, day: str, wanted: int) -> int:
        oldest, found = [], 0
        for one in sorted(_files(self._folder / day)):
            if found >= wanted:
                break
            oldest.append(one)
            found += one[1]
        return _unlink(oldest)


def _files(folder: Path) -> list[tuple[float, int, str]]:
    """When each log was written last, its size, its path."""
    found = []
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if OURS.fullmatch(entry.name):
                with suppress(FileNotFoundError):
                    facts = entry.stat(follow_symlinks=False)
                    found.append((facts.st_mtime, facts.st_size, entry.path))
    return found


def _unlink(files: list[tuple[float, int, str]]) -> int:
    gone = 0
    for _, size, path in files:
        with suppress(FileNotFoundError):
            Path(path).unlink()
            gone += size
    return gone
