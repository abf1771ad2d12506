"""A venv for each peer, made once and kept in a cache folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from .places import last_line
from .systems import System

INSTALL_SECONDS = 300


class CannotInstall(Exception):
    """The peer's packages are not to be had here."""


def cache_folder() -> Path:
    """Where venvs and results are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aaiclick-queue-bench"


def bin_folder(system: System) -> Path:
    """The folder of the system's executables: our own, or those of the peer's venv, which is made where needed."""
    if not system.is_peer:
        return Path(sys.executable).parent
    venv = cache_folder() / "venvs" / f"{system.app}-{sys.version_info.major}.{sys.version_info.minor}"
    marker, wanted = venv / "wheels.txt", "\n".join(system.wheels)
    if not marker.exists() or marker.read_text() != wanted:
        shutil.rmtree(venv, ignore_errors=True)
        venv.parent.mkdir(parents=True, exist_ok=True)
        for command in _commands(venv, system.wheels):
            _run(command)
        marker.write_text(wanted)
    return venv / "bin"


def version_of(system: System) -> str:
    """The version that runs, of a peer."""
    package = system.wheels[0].split("[")[0].split("=")[0]
    ask = f"import importlib.metadata as m; print(m.version({package!r}))"
    asked = subprocess.run([bin_folder(system) / "python", "-c", ask], check=True, capture_output=True, text=True)
    return asked.stdout.strip()


def _commands(venv: Path, wheels: tuple[str, ...]) -> list[list[str]]:
    python = str(venv / "bin" / "python")
    if shutil.which("uv"):
        made = ["uv", "venv", "--quiet", "--python", sys.executable, str(venv)]
        return [made, ["uv", "pip", "install", "--quiet", "--python", python, *wheels]]
    return [[sys.executable, "-m", "venv", str(venv)], [python, "-m", "pip", "install", "--quiet", *wheels]]


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except subprocess.CalledProcessError as error:
        raise CannotInstall(f"{' '.join(command[:3])}: {last_line(str(error.stderr))}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotInstall(str(error)) from error
