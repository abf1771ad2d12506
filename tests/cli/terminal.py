"""The real program in a terminal of its own, whose screen can be read."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from typing import Any, Self

import pyte

from tests.cli.running import LONGEST, PROJECT, command

# Only the terminal that controls a process sends it signals.
TAKE_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)


class Terminal:
    """A command in a pseudo-terminal; `with Terminal("top", env=…, columns=80, lines=24) as screen`."""

    def __init__(self, *arguments: str, env: dict[str, str], columns: int = 80, lines: int = 24) -> None:
        # Not the size of the terminal that the tests were started from.
        env = {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES")}
        self._given = (arguments, {"TERM": "xterm-256color"} | env)
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self._lock = threading.Lock()
        self.raw = b""

    def __enter__(self) -> Self:
        self._ours, theirs = pty.openpty()
        self._set_size()
        self.modes_before = termios.tcgetattr(theirs)
        arguments, env = self._given
        self.process = subprocess.Popen(
            [sys.executable, "-c", TAKE_TERMINAL, *command(*arguments)],
            env=env, cwd=PROJECT, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        )  # fmt: skip
        self._theirs = theirs
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._theirs)
        self._reader.join(LONGEST)
        os.close(self._ours)

    @property
    def text(self) -> str:
        with self._lock:
            return "\n".join(line.rstrip() for line in self._screen.display)

    @property
    def modes(self) -> list[Any]:
        """The terminal's settings as they are now."""
        return termios.tcgetattr(self._theirs)

    def reversed_lines(self) -> list[str]:
        """Lines that are shown in reverse from their first character on."""
        with self._lock:
            return [
                line.rstrip()
                for number, line in enumerate(self._screen.display)
                if self._screen.buffer[number][0].reverse
            ]

    def colours(self) -> set[str]:
        """Colours that the screen has now."""
        with self._lock:
            return {cell.fg for line in self._screen.buffer.values() for cell in line.values()} - {"default"}

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        with self._lock:
            self._screen.resize(lines, columns)
        self._set_size()  # the kernel sends SIGWINCH

    def wait_for(self, condition: str | Callable[[], object]) -> None:
        """Until the screen has that text (a regular expression), or the condition holds."""
        holds = condition if callable(condition) else lambda: re.search(condition, self.text)
        until = time.monotonic() + LONGEST
        while not holds():
            assert time.monotonic() < until, f"waited in vain for {condition}; {self.process.poll()}:\n{self.text}"
            time.sleep(0.02)

    def ends(self) -> int:
        return self.process.wait(LONGEST)

    def interrupt(self) -> None:
        """Ctrl-C, by the terminal itself."""
        self.press("\x03")

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def _set_size(self) -> None:
        size = struct.pack("HHHH", self._screen.lines, self._screen.columns, 0, 0)
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, size)

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._ours, 1 << 16)
            except OSError:
                return
            if not data:
                return
            with self._lock:
                self.raw += data
                self._stream.feed(data)
