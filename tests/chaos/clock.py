"""Clock jumps: a shared object that is preloaded into workers, built where there is a C compiler."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from pathlib import Path

CLOCK_FILE = "CHAOS_CLOCK_FILE"
SOURCE = Path(__file__).with_name("clock.c")
HOUR = 3600


def build_clock(folder: Path) -> Path | None:
    """The shared object; None where it cannot be built, so that clocks do not jump."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        return None
    library = folder / "clock.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"], check=True)
    return library


class Clock:
    """The wall clock of one worker."""

    def __init__(self, file: Path, library: Path | None) -> None:
        self._file = file
        self._library = library
        self.jump(0)

    @property
    def environment(self) -> dict[str, str]:
        """What a worker with this clock is started with."""
        if self._library is None:
            return {}
        return {"LD_PRELOAD": str(self._library), CLOCK_FILE: str(self._file)}

    def jump(self, seconds: int) -> None:
        """From now on it is so many seconds ahead, or behind."""
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("l", seconds))
