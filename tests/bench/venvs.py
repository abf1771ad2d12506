"""A venv for each peer, made once and kept in a cache folder; every version is pinned by a file of `locks`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from .peers import peers
from .places import last_line
from .systems import System

INSTALL_SECONDS = 300
LOCKS = Path(__file__).with_name("locks")


class CannotInstall(Exception):
    """The peer's packages are not to be had here."""


def cache_folder() -> Path:
    """Where venvs are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aaiclick-queue-bench"


def bin_folder(system: System) -> Path:
    """The folder of the system's executables: our own, or those of the peer's venv, which is made where needed."""
    if not system.is_peer:
        return Path(sys.executable).parent
    venv = cache_folder() / "venvs" / f"{system.app}-{sys.version_info.major}.{sys.version_info.minor}"
    marker, wanted = venv / "lock.txt", lock_of(system).read_text()
    if not marker.exists() or marker.read_text() != wanted:
        shutil.rmtree(venv, ignore_errors=True)
        venv.parent.mkdir(parents=True, exist_ok=True)
        for command in _commands(venv, lock_of(system)):
            _run(command)
        marker.write_text(wanted)
    return venv / "bin"


def lock_of(system: System) -> Path:
    """The file that pins what is in its venv."""
    return LOCKS / f"{system.app.removesuffix('_app')}.txt"


def version_of(system: System) -> str:
    """The version that runs, of a peer."""
    return system.wheels[0].split("==")[1]


def lock() -> None:
    """Choose the versions of every lock anew, below what `peers` pins (needs uv)."""
    LOCKS.mkdir(exist_ok=True)
    flags = ["--quiet", "--universal", "--python-version", "3.11", "--upgrade", "--no-annotate", "--no-emit-index-url"]
    flags += ["--custom-compile-command", "make bench-lock"]
    for system in peers():
        command = ["uv", "pip", "compile", *flags, "--output-file", str(lock_of(system)), "-"]
        subprocess.run(command, input="\n".join(system.wheels), text=True, check=True, stdout=subprocess.DEVNULL)


def _commands(venv: Path, pinned: Path) -> list[list[str]]:
    python = str(venv / "bin" / "python")
    if shutil.which("uv"):
        made = ["uv", "venv", "--quiet", "--python", sys.executable, str(venv)]
        return [made, ["uv", "pip", "install", "--quiet", "--python", python, "-r", str(pinned)]]
    return [[sys.executable, "-m", "venv", str(venv)], [python, "-m", "pip", "install", "--quiet", "-r", str(pinned)]]


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except subprocess.CalledProcessError as error:
        raise CannotInstall(f"{' '.join(command[:3])}: {last_line(str(error.stderr))}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotInstall(str(error)) from error


if __name__ == "__main__":
    lock()
