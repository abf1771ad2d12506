"""What runs print and log is told from what the process says itself by the context of the run. After: log_recorder.

stdout and stderr are looked through on their way, and go where they went before; logging has one more handler.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TextIO

from .context import here
from .log_lines import Stream, level_name
from .log_recorder import Recorder
from .log_sink import Sink
from .settings import Settings

OWN_LINES = "aaiclick_queue.task"  # about runs, not of them


def sink_here() -> Sink | None:
    """Where the run of this context says things; None outside of one."""
    found = here()
    if found is None:
        return None
    run, services = found
    sink: Sink | None = run.log
    if sink is None and services.recorder is not None:
        run.log = sink = services.recorder.sink(run)
    return sink


class Seen:
    """A stream through which runs print; everything but what is written is the stream's own business."""

    def __init__(self, stream: TextIO, name: Stream) -> None:
        self.stream = stream
        self._name: Stream = name

    def write(self, text: str) -> int:
        """Write it, and keep it for the run that this is part of."""
        sink = sink_here()
        self.stream.write(text if sink is None else sink.shown(text))
        if sink is not None:
            sink.print(self._name, text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each of them."""
        for line in lines:
            self.write(line)

    def __iter__(self) -> Iterator[str]:
        return iter(self.stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class Handler(logging.Handler):
    """Keeps the records of runs."""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it, if it comes from a run."""
        if (
            record.name != OWN_LINES
            and (sink := sink_here()) is not None
            and (found := here()) is not None
            and (recorder := found[1].recorder) is not None
            and record.levelno >= recorder.level
        ):
            try:
                sink.say(level_name(record.levelno), record.name, _format(record), at=record.created)
            except Exception:
                self.handleError(record)
        if record.levelno >= logging.WARNING and not _has_others(record.name, self):
            self._last_resort(record)

    def _last_resort(self, record: logging.LogRecord) -> None:
        # As without us: a program that has not set up logging sees its warnings on stderr.
        stderr = sys.stderr.stream if isinstance(sys.stderr, Seen) else sys.stderr
        if stderr is not None:
            stderr.write(f"{_format(record)}\n")


_format = logging.Formatter().format


def _has_others(name: str, handler: logging.Handler) -> bool:
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None:
        if any(one is not handler for one in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


@asynccontextmanager
async def recording(settings: Settings) -> AsyncIterator[Recorder | None]:
    """While this lasts the lines of this worker's runs are kept; None where the settings say otherwise."""
    if not settings.log_capture:
        yield None
        return
    shipper = None
    if settings.clickhouse_url is not None:
        from .clickhouse import store_of
        from .log_shipping import Shipper

        shipper = Shipper(store_of(settings))
    recorder = Recorder(settings, ship=None if shipper is None else shipper.ship)
    recorder.start()
    try:
        with capturing(settings.log_level):
            yield recorder
    finally:
        await asyncio.to_thread(recorder.close)
        if shipper is not None:
            await asyncio.to_thread(shipper.close)


_lock = threading.Lock()
_installed = 0
_handler = Handler()


@contextmanager
def capturing(level: str) -> Iterator[None]:
    """While this lasts what runs print and log is kept, in the whole process."""
    global _installed  # noqa: PLW0603 - as sys.stdout is
    root = logging.getLogger()
    before = root.level
    with _lock:
        _installed += 1
        if _installed == 1:
            _look_through()
            if not root.handlers:  # nobody has set up logging, so nobody chose its level
                root.setLevel(min(before, logging.getLevelName(level)))
            root.addHandler(_handler)
    try:
        yield
    finally:
        with _lock:
            _installed -= 1
            if not _installed:
                root.removeHandler(_handler)
                if not root.handlers:
                    root.setLevel(before)
                for name in ("stdout", "stderr"):
                    if isinstance(stream := getattr(sys, name), Seen):
                        setattr(sys, name, stream.stream)


def _look_through() -> None:
    names: tuple[Stream, Stream] = ("stdout", "stderr")
    for name in names:
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, Seen):
            setattr(sys, name, Seen(stream, name))
