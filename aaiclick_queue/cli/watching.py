"""What `--reload` watches: the Python files around the modules of `-A`, looked at again and again."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

LOOK_SECONDS = 0.25
STILL_SECONDS = 0.1  # editors write, rename and touch within a moment: the change is over when two looks agree
LONGEST_SECONDS = 3.0
DEAR = 20  # at most a twentieth of the time goes into looking
FILES_LIMIT = 20_000
NOT_OURS = frozenset({"__pycache__", "node_modules", "site-packages"})

Seen = dict[str, tuple[int, int, int]]


def folders(modules: Sequence[str]) -> list[Path]:
    """Where the code of these modules lives, found without importing it: its folder on the path, or its package."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    found = dict.fromkeys(_folder(text) for text in modules)
    return [one for one in found if not any(other in one.parents for other in found)]


def _folder(text: str) -> Path:
    if text.endswith(".py") or "/" in text:
        folder = Path(text).resolve().parent
        while (folder / "__init__.py").exists():
            folder = folder.parent
        return folder
    top = text.split(".", 1)[0]
    here = Path.cwd()
    if (here / top).is_dir() or (here / f"{top}.py").exists():
        return here  # what lies beside the module is likely to be imported by it
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return here
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve()
    return Path(spec.origin).resolve() if spec.origin else here


class Watch:
    """Says which files have changed since the last look that was taken for good."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = list(roots)
        self._seen: Seen = {}
        self._cost = 0.0

    async def start(self) -> None:
        """Take the files as they are."""
        self._seen = await self._look()

    async def changed(self) -> list[str]:
        """Wait until files are other than they were, and still; names them, and takes them as they are now."""
        while True:
            await asyncio.sleep(max(LOOK_SECONDS, DEAR * self._cost))
            if await self._look() == self._seen:
                continue
            now = await self._when_still()
            names = [name for name in {**self._seen, **now} if now.get(name) != self._seen.get(name)]
            self._seen = now
            if names:
                return names

    async def _when_still(self) -> Seen:
        until = time.monotonic() + LONGEST_SECONDS
        before = await self._look()
        while True:
            await asyncio.sleep(STILL_SECONDS)
            now = await self._look()
            if now == before or time.monotonic() > until:
                return now
            before = now

    async def _look(self) -> Seen:
        began = time.monotonic()
        seen = await asyncio.to_thread(lambda: dict(self._stats()))
        self._cost = time.monotonic() - began
        return seen

    def _stats(self) -> Iterator[tuple[str, tuple[int, int, int]]]:
        left = FILES_LIMIT
        for root in self.roots:
            for file in [str(root)] if root.is_file() else python_files(root):
                left -= 1
                if left < 0:
                    return
                try:
                    stat = os.stat(file)  # noqa: PTH116 - ten times as quick as a Path for each
                except OSError:
                    continue
                yield file, (stat.st_mtime_ns, stat.st_size, stat.st_ino)


def python_files(root: Path) -> Iterator[str]:
    """Python files below a folder; hidden folders, virtual environments and what is installed are left out."""
    waiting = [str(root)]
    while waiting:
        try:
            entries = list(os.scandir(waiting.pop()))
        except OSError:
            continue
        if any(entry.name == "pyvenv.cfg" for entry in entries):
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if not entry.name.startswith(".") and entry.name not in NOT_OURS:
                    waiting.append(entry.path)
            elif entry.name.endswith(".py"):
                yield entry.path
