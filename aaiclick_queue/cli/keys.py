"""The keys of a terminal, one by one, and the terminal as it was afterwards."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

KNOWN = {"\x1b[A": "up", "\x1bOA": "up", "\x1b[B": "down", "\x1bOB": "down", "k": "up", "j": "down", "\x1b": "escape"}
SEQUENCE = re.compile(r"\x1b(?:\[[0-9;]*[A-Za-z~]|O[A-Za-z])|.", re.DOTALL)


@contextmanager
def pressed_keys(press: Callable[[str], None]) -> Iterator[None]:
    """Call `press` with each key while the block lasts; without a terminal, never."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    descriptor, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(descriptor)

    def read() -> None:
        try:
            text = os.read(descriptor, 1024).decode(errors="replace")
        except OSError:
            text = ""
        if not text:  # the terminal is gone
            loop.remove_reader(descriptor)
            press("q")
        for found in SEQUENCE.findall(text):
            press(KNOWN.get(found, found))

    tty.setcbreak(descriptor)
    changed = termios.tcgetattr(descriptor)
    changed[6][termios.VSUSP] = b"\x00"  # Ctrl-Z would leave the shell with our screen
    termios.tcsetattr(descriptor, termios.TCSANOW, changed)
    loop.add_reader(descriptor, read)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
