"""The lines of the runs of one process on their way to disk and ClickHouse, by a thread. Before: log_capture.

A run that says nothing has no sink. A line costs its run an append to a list; a thread writes five times a second and
when a run ends. A child process writes each line at once instead: whoever kills it loses none of what it said.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from .log_files import LogFile, day_of, files_of, find_file, records_of_run
from .log_lines import LEVELS, write_mark
from .log_sink import About, Ship, Sink
from .log_sweep import Sweep
from .settings import Settings

if TYPE_CHECKING:
    from .flow.execute import Run

log = logging.getLogger("aaiclick_queue.logs")

FLUSH_SECONDS = 0.2
GATHER_SECONDS = 0.02  # where many runs end in a second, not each wakes the thread
SWEEP_SECONDS = 600.0
CLOSE_SECONDS = 5.0


class Recorder:
    """What writes for the runs of this process."""

    def __init__(self, settings: Settings, *, writes_through: bool = False, ship: Ship | None = None) -> None:
        """`writes_through`: each line at once, by whoever says it; `ship` gets what is for ClickHouse."""
        self.settings = settings
        self.level = LEVELS[settings.log_level]
        self.written = self.lost = 0
        self._folder = settings.log_folder
        self._writes_through = writes_through
        self._files = settings.log_files or (writes_through and settings.clickhouse_url is not None)
        self._adopted: list[About] = []
        self._ship = ship
        self._queued: list[Sink] = []
        self._lock = threading.Lock()
        self._writing = threading.RLock()  # a warning about what cannot be written may be a line of the same run
        self._wake = threading.Event()
        self._hurry = threading.Event()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._warned = False
        self._sweep = Sweep(settings)

    def sink(self, run: Run) -> Sink:
        """For the first line of a run."""
        return Sink(self, run)

    def queue(self, sink: Sink) -> None:
        """The sink has something to be written."""
        if self._writes_through:
            with self._writing:
                self._write(sink)
            return
        with self._lock:
            sink.is_queued = True
            self._queued.append(sink)
            if self._thread is None and not self._closing:
                self.start()
        self._wake.set()

    def start(self) -> None:
        """Start the thread; it sweeps old days too."""
        self._thread = threading.Thread(target=self._run, name="aaiclick-queue logs", daemon=True)
        self._thread.start()

    def hurry(self, sink: Sink) -> None:
        """The run of this sink is over."""
        if self._writes_through:
            if sink.file is not None:
                sink.file.close()
            return
        if sink.last and not sink.is_queued:
            self.queue(sink)
        if sink.is_queued:
            self._hurry.set()

    def adopt(self, run: Run) -> None:
        """A child process has written the log of this run, and has ended it: for ClickHouse it is read from there."""
        if self._ship is not None:
            with self._lock:
                self._adopted.append(About.of(run))
            self._wake.set()

    def close(self) -> None:
        """Write all that was said, and end the thread."""
        self._closing = True
        self._hurry.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)
        self.flush()

    def flush(self) -> None:
        """Write what is queued."""
        with self._writing:
            with self._lock:  # not while anything is written: a run that says something waits for it
                queued, self._queued = self._queued, []
                adopted, self._adopted = self._adopted, []
            for sink in queued:
                sink.is_queued = False  # before its lines are taken: one that comes now queues it again
                self._write(sink)
            for about in adopted:
                self._ship_file(about)

    def _run(self) -> None:
        swept = time.monotonic() - SWEEP_SECONDS + 10
        while not self._closing:
            if self._wake.wait(max(0.0, swept + SWEEP_SECONDS - time.monotonic())):
                if self._hurry.wait(FLUSH_SECONDS) and not self._closing:
                    time.sleep(GATHER_SECONDS)
                self._wake.clear()
                self._hurry.clear()
                self.flush()
            if time.monotonic() - swept >= SWEEP_SECONDS:
                swept = time.monotonic()
                self._sweep.once()

    def _write(self, sink: Sink) -> None:
        is_over = sink.is_over  # asked first: else its last line may come between the two, and be a tail of its own
        records, skipped, tail = sink.take()
        if not (records or tail or (is_over and sink.last)):
            return
        try:
            if self._files:
                self._write_file(sink, records, tail, skipped)
            self.written += len(records) + len(tail)
        except OSError as error:
            sink.lost += len(records) + len(tail) + skipped
            self.lost += len(records) + len(tail) + skipped
            self._warn(error)
        if self._ship is not None:
            self._ship_lines(self._ship, sink, (records, skipped, tail), is_over=is_over)
            if sink.is_over and not is_over:  # meanwhile, when it had nothing left over to be queued for
                self._write(sink)

    @staticmethod
    def _ship_lines(ship: Ship, sink: Sink, taken: tuple[list[bytes], int, deque[bytes]], *, is_over: bool) -> None:
        records, skipped, tail = taken
        if records:
            ship(sink.about, sink.sent, records)
            sink.sent += len(records)
        sink.last += tail
        sink.beyond += len(tail) + skipped
        if is_over and sink.last:
            left_out = sink.beyond - len(sink.last)
            if left_out:
                ship(sink.about, sink.sent, [write_mark(f"… {left_out:,} lines left out …")])
            ship(sink.about, sink.sent + left_out + 1, list(sink.last))
            sink.sent += sink.beyond + 1
            sink.beyond = 0
            sink.last.clear()

    def _ship_file(self, about: About) -> None:
        assert self._ship is not None
        path = find_file(self._folder, about.task_id, about.attempt)
        if path is None:
            return
        try:
            records = records_of_run(path, about.run_epoch)
            if not self.settings.log_files:
                for file in files_of(path):
                    file.unlink(missing_ok=True)
        except OSError as error:
            self._warn(error)
        else:
            self._ship(about, 0, records)

    def _write_file(self, sink: Sink, records: list[bytes], tail: deque[bytes], skipped: int) -> None:
        if sink.file is None:
            now = time.time()
            path = f"{self._folder}/{day_of(now)}/{sink.about.task_id}.{sink.about.attempt}.log"
            sink.file = LogFile(path, sink.remark(now), stays_open=self._writes_through)
        if sink.lost:
            records = [write_mark(f"… {sink.lost:,} lines were lost: they could not be written …"), *records]
        if records:
            sink.file.append(records)
        if tail:
            sink.file.append(tail, skipped=skipped)
        sink.lost = 0
        self._warned = False

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "cannot write logs of runs to %s (%s): they are lost until that works; set AAICLICK_QUEUE_LOG_DIR to a "
                "folder that can be written, or AAICLICK_QUEUE_LOG_CAPTURE=false",
                self._folder,
                error.strerror or error,
            )
