"""Lines of runs on their way to ClickHouse, in batches, by a thread of their own. Before: log_recorder.

Nobody waits for it: what ClickHouse does not take in time is dropped, the oldest first, and a mark says how much.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence

from .clickhouse import ClickHouseAway, Store
from .errors import MissingExtra
from .log_lines import OURS, LogLine, parse, read_records, write_mark
from .log_sink import About

log = logging.getLogger("aaiclick_queue.logs")

BATCH = 10_000
MOST = 100_000  # lines that wait here at most
SHIP_SECONDS = 1.0
AWAY_SECONDS = (1.0, 30.0)
CLOSE_SECONDS = 5.0
COLUMNS = ("task_id", "job_id", "attempt", "run_epoch", "worker", "number", "at", "level", "logger", "stream", "line")


class Shipper:
    """What goes from one process to ClickHouse."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: deque[tuple[About, int, bytes]] = deque()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._over = threading.Event()
        self._dropped: dict[About, tuple[int, int]] = {}  # the first line that was dropped, and how many
        self._is_away = False
        self.shipped = self.lost = 0
        self._thread = threading.Thread(target=self._run, name="aaiclick-queue log shipping", daemon=True)
        self._thread.start()

    def ship(self, about: About, number: int, records: Sequence[bytes]) -> None:
        """Send these, the first of which is line `number` of its run."""
        with self._lock:
            self._waiting.extend((about, number + at, record) for at, record in enumerate(records))
            while len(self._waiting) > MOST:
                self._drop(*self._waiting.popleft()[:2])
        self._wake.set()

    def close(self) -> None:
        """Send what waits, if ClickHouse takes it soon."""
        self._over.set()
        self._wake.set()
        self._thread.join(CLOSE_SECONDS)

    def _drop(self, about: About, number: int) -> None:
        first, count = self._dropped.get(about, (number, 0))
        self._dropped[about] = first, count + 1
        self.lost += 1
        if len(self._dropped) > BATCH:
            self._dropped.pop(next(iter(self._dropped)))

    def _run(self) -> None:
        pause = 0.0
        while not self._over.is_set() or self._waiting:
            self._wake.wait()
            self._over.wait(pause or SHIP_SECONDS)
            self._wake.clear()
            while self._waiting or self._dropped:
                if not self._send():
                    pause = min(AWAY_SECONDS[1], max(AWAY_SECONDS[0], 2 * pause))
                    self._wake.set()
                    break
                pause = 0.0
            if pause and self._over.is_set():
                return

    def _send(self) -> bool:
        with self._lock:
            batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
            dropped, self._dropped = self._dropped, {}
        marks = [
            (about, first, write_mark(f"… {count:,} lines were lost: ClickHouse did not take them …"))
            for about, (first, count) in dropped.items()
        ]
        try:
            self._store.insert("task_logs", COLUMNS, [_row(*one) for one in (*marks, *batch)])
        except (ClickHouseAway, MissingExtra) as error:
            self._keep(batch, dropped)
            if not self._is_away:
                self._is_away = True
                log.warning("logs of runs do not reach ClickHouse, the newest %s wait: %s", f"{MOST:,}", error)
            return False
        if self._is_away:
            self._is_away = False
            log.info("logs of runs reach ClickHouse again, %s lines were lost", f"{self.lost:,}")
        self.shipped += len(batch)
        return True

    def _keep(self, batch: list[tuple[About, int, bytes]], dropped: dict[About, tuple[int, int]]) -> None:
        with self._lock:
            for about, (first, count) in dropped.items():
                _, more = self._dropped.get(about, (0, 0))
                self._dropped[about] = first, count + more
            self._waiting.extendleft(reversed(batch))
            while len(self._waiting) > MOST:
                self._drop(*self._waiting.popleft()[:2])


def _row(about: About, number: int, record: bytes) -> list[object]:
    [(_, lines)] = read_records(record)
    line = parse(lines)
    assert isinstance(line, LogLine)
    said = (line.at, line.level, line.logger or OURS, line.stream, line.text)
    return [about.task_id, about.job_id, about.attempt, about.run_epoch, about.worker_id, number, *said]
