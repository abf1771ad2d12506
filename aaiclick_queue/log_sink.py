"""The sink of one run: its lines until they are written. Before: log_capture. After: log_recorder."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from .log_files import HEAD_LINES, LogFile
from .log_lines import LINE_BYTES, STREAM_LEVELS, Stream, second_text, write_line
from .redaction import hidden

if TYPE_CHECKING:
    from .flow.execute import Run

UNENDED = 16 * LINE_BYTES  # printed without a newline: then it is taken for a line


class About(NamedTuple):
    """Whose line it is."""

    task_id: int
    job_id: int | None
    attempt: int
    run_epoch: int
    worker_id: int

    @classmethod
    def of(cls, run: Run) -> About:
        """The run's."""
        claimed = run.claimed
        return cls(claimed.task_id, claimed.job_id, claimed.attempt, claimed.run_epoch, run.worker_id)


Ship = Callable[[About, int, Sequence[bytes]], None]  # the number is the first one's in its run


class Writing(Protocol):
    """Who writes what sinks have."""

    def queue(self, sink: Sink) -> None:
        """The sink has something to be written."""

    def hurry(self, sink: Sink) -> None:
        """The run of this sink is over."""


class Sink:
    """What one run says, without its secrets."""

    def __init__(self, recorder: Writing, run: Run) -> None:
        self.about, self.entrypoint = About.of(run), run.claimed.entrypoint
        self._secrets = run.secrets
        self.lost = 0
        self.is_queued = self.is_over = False
        self.sent = self.beyond = 0  # lines that went to ClickHouse, and those beyond them
        self.last: deque[bytes] = deque(maxlen=HEAD_LINES)  # that go there when the run is over
        self.file: LogFile | None = None
        self._lock = threading.Lock()
        self._head: list[bytes] = []
        self._tail: deque[bytes] = deque(maxlen=HEAD_LINES)
        self._skipped = 0
        self._said = 0
        self._partial: dict[Stream, str] = {}
        self._recorder = recorder

    def say(self, level: str, logger: str, text: str, stream: Stream = "log", at: float | None = None) -> None:
        """One line, or a message of several."""
        text = self.shown(text)
        record = write_line(time.time() if at is None else at, level, logger, text, stream)
        with self._lock:
            self._said += 1
            if self._said <= HEAD_LINES:
                self._head.append(record)
            else:
                self._skipped += len(self._tail) == HEAD_LINES
                self._tail.append(record)
        if not self.is_queued:
            self._recorder.queue(self)

    def shown(self, text: str) -> str:
        """The text without the run's secrets."""
        return hidden(text, self._secrets) if self._secrets else text

    def print(self, stream: Stream, text: str) -> None:
        """What was printed: whole lines are said, the rest is kept until its newline comes."""
        if self._partial and (before := self._partial.pop(stream, "")):
            text = before + text
        *lines, rest = text.split("\n")
        for line in lines:
            self.say(STREAM_LEVELS[stream], "", _overwritten(line), stream)
        if rest:
            rest = _overwritten(rest)
            if len(rest) > UNENDED:
                self.say(STREAM_LEVELS[stream], "", rest, stream)
            else:
                self._partial[stream] = rest

    def take(self) -> tuple[list[bytes], int, deque[bytes]]:
        """What was said since the last call: the first lines, how many then were too many, the last lines."""
        with self._lock:
            taken = self._head, self._skipped, self._tail
            self._head, self._skipped, self._tail = [], 0, deque(maxlen=HEAD_LINES)
        return taken

    def end(self) -> None:
        """The run is over: what it has said is written now; what its threads still say follows."""
        partial, self._partial = self._partial, {}
        for stream, text in partial.items():
            self.say(STREAM_LEVELS[stream], "", text, stream)
        self.is_over = True
        self._recorder.hurry(self)

    def remark(self, at: float) -> str:
        """Whose log it is."""
        about, name = self.about, "_".join(self.entrypoint.split())
        job = "" if about.job_id is None else f" job={about.job_id}"
        return (
            f"{second_text(int(at))}Z task={about.task_id}{job} attempt={about.attempt} epoch={about.run_epoch} "
            f"worker={about.worker_id} entrypoint={name}"
        )


def _overwritten(text: str) -> str:
    # A progress bar: what a terminal would show of it in the end.
    return text.rstrip("\r").rpartition("\r")[2] if "\r" in text else text
