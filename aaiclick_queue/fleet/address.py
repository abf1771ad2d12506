"""Where the supervisor of a fleet is found on this machine: a lock that ends with it, and a socket beside it."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import BadFleet, FleetBusy, SettingsError
from .keys import NAME

if sys.platform != "win32":
    import fcntl

SOCKET_BYTES = 103  # macOS takes no longer path
LONGEST_NAME = "n" * 32


class Address:
    """The files of one fleet name."""

    def __init__(self, home: Path, name: str) -> None:
        if not re.fullmatch(NAME, name):
            raise BadFleet(f"{name!r} is no name of a fleet: give up to 32 letters, digits, - and _")
        self.name = name
        self._folder = folder_for(home)
        self.socket = self._folder / f"{name}.sock"
        self._lock = self._folder / f"{name}.lock"

    @contextmanager
    def taken(self) -> Iterator[socket.socket]:
        """Be the only supervisor of that name; gives the socket that others connect to."""
        _make(self._folder)
        # The kernel gives the lock back however we end; the socket of one that was killed stays, and is replaced.
        lock = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise FleetBusy(self.name, self.pid or 0) from None
            os.truncate(lock, 0)
            os.write(lock, str(os.getpid()).encode())
            with self._listening() as listening:
                yield listening
        finally:
            os.close(lock)

    @property
    def pid(self) -> int | None:
        """The supervisor's pid while there is one."""
        try:
            lock = os.open(self._lock, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(os.read(lock, 32) or b"0")
        else:
            return None
        finally:
            os.close(lock)

    @contextmanager
    def _listening(self) -> Iterator[socket.socket]:
        with suppress(FileNotFoundError):
            self.socket.unlink()
        listening = socket.socket(socket.AF_UNIX)
        before = os.umask(0o177)
        try:
            listening.bind(str(self.socket))
        finally:
            os.umask(before)
        try:
            listening.listen()
            yield listening
        finally:
            listening.close()
            with suppress(FileNotFoundError):
                self.socket.unlink()


def running(home: Path) -> list[str]:
    """Names of the fleets that run here."""
    locks = sorted(folder_for(home).glob("*.lock"))
    return [lock.stem for lock in locks if Address(home, lock.stem).pid is not None]


def folder_for(home: Path) -> Path:
    """The folder of all fleets of a home. Not its `run`: the embedded Postgres empties that one."""
    home = home.expanduser().absolute()
    folder = home / "fleets"
    if len(os.fsencode(folder / f"{LONGEST_NAME}.sock")) <= SOCKET_BYTES:
        return folder
    short = hashlib.sha256(os.fsencode(home)).hexdigest()[:12]
    return Path("/tmp", f"aaiq-fleets-{os.geteuid()}-{short}")  # noqa: S108 - refused below unless it is ours alone


def _make(folder: Path) -> None:
    try:
        if not folder.parent.exists():
            # As root an embedded Postgres may come to live there later, under another account.
            folder.parent.mkdir(mode=0o755 if os.geteuid() == 0 else 0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise SettingsError(
            f"{folder} cannot be made ({error.strerror}), where fleets are told what to do: set AAICLICK_QUEUE_HOME "
            "to a folder that this account may write to"
        ) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise SettingsError(
            f"{folder} is open to others, or somebody else's: remove it, or set AAICLICK_QUEUE_HOME to another folder"
        )
