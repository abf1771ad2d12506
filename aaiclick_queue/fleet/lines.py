"""What processes say, on its way to our own stdout and stderr: whole lines, each with the name of who said it.

Nobody waits for anybody: we read a process at once whatever becomes of its lines, and a thread writes them. What a slow
terminal does not take in time is dropped and counted. Before: member.py. After: whoever reads us.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import msgspec

ROOM_BYTES = 4 << 20
LINE_BYTES = 1 << 16
TAIL_LINES = 20
CLOSE_SECONDS = 2.0


class Sink:
    """One of our own streams, written to by a thread."""

    def __init__(self, descriptor: int, dropped: Callable[[int], bytes]) -> None:
        """`dropped` makes the line that tells how many were not written."""
        self._descriptor = descriptor
        self._told_as = dropped
        self._waiting: deque[bytes] = deque()
        self._bytes = self._dropped = 0
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._write_all, name=f"lines to {descriptor}", daemon=True)
        self._thread.start()

    def write(self, lines: bytes) -> None:
        """Whole lines, written soon, or counted where there is no room for them."""
        with self._changed:
            if self._bytes + len(lines) > ROOM_BYTES:
                self._dropped += lines.count(b"\n")
                return
            self._waiting.append(lines)
            self._bytes += len(lines)
            self._changed.notify()

    def close(self) -> None:
        """Write what waits, unless nobody takes it."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(CLOSE_SECONDS)

    def _write_all(self) -> None:
        while batch := self._next():
            view = memoryview(batch)
            try:
                while view:
                    view = view[os.write(self._descriptor, view) :]
            except OSError:  # nobody reads it any more; the fleet goes on
                continue

    def _next(self) -> bytes:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._dropped or self._closed)
            batch = b"".join(self._waiting)
            self._waiting.clear()
            self._bytes = 0
            if self._dropped:
                batch += self._told_as(self._dropped)
                self._dropped = 0
            return batch


class Screen:
    """Our stdout and stderr, shared by all processes."""

    def __init__(self, *, as_json: bool = False, colour: bool = False) -> None:
        self._as_json = as_json
        self._colour = colour
        self.width = 0
        self.stdout, self.stderr = Sink(1, self._dropped), Sink(2, self._dropped)

    def close(self) -> None:
        """Write what waits."""
        self.stdout.close()
        self.stderr.close()

    def prefix(self, name: str, paint: int) -> bytes:
        """What stands before each line of that process; nothing before JSON."""
        if self._as_json:
            return b""
        text = f"{name:<{self.width}} │"
        return (f"\x1b[{paint}m{text}\x1b[0m " if self._colour else f"{text} ").encode()

    def _dropped(self, count: int) -> bytes:
        what = "lines dropped"
        if self._as_json:
            return msgspec.json.encode({"level": "warning", "event": what, "count": count}) + b"\n"
        return f"! {count:,} {what}: whoever reads them is too slow\n".encode()


class Speech(asyncio.Protocol):
    """One stream of one process."""

    def __init__(self, sink: Sink, prefix: bytes) -> None:
        self._sink = sink
        self._prefix = prefix
        self._rest = b""
        self.tail: deque[bytes] = deque(maxlen=TAIL_LINES)
        self.over = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        """Hand on what are whole lines by now."""
        data = self._rest + data
        end = data.rfind(b"\n") + 1
        if not end and len(data) >= LINE_BYTES:
            data, end = data + b"\n", len(data) + 1
        whole, self._rest = data[:end], data[end:]
        if whole:
            self._say(whole)

    def connection_lost(self, _: Exception | None) -> None:
        """The last words may lack the end of their line."""
        if self._rest:
            self._say(self._rest + b"\n")
            self._rest = b""
        if not self.over.done():
            self.over.set_result(None)

    def _say(self, whole: bytes) -> None:
        lines = whole.split(b"\n")[:-1]
        self.tail.extend(lines[-TAIL_LINES:])
        prefix = self._prefix
        self._sink.write(b"".join(b"%b%b\n" % (prefix, line) for line in lines) if prefix else whole)

    def told_error(self) -> str:
        """The error that the process ended with, in our own two lines or in its last one."""
        lines = [line.decode(errors="replace").strip() for line in self.tail]
        for number, line in enumerate(lines):
            if line.startswith("error: "):
                fix = [after for after in lines[number + 1 :] if after.startswith("fix: ")]
                return ": ".join([line.removeprefix("error: "), *(one.removeprefix("fix: ") for one in fix[:1])])
        with suppress(StopIteration):
            return next(line for line in reversed(lines) if line)
        return ""
