"""An embedded Postgres: the real one, from the binaries of a wheel, shared by the processes of one machine.

Every user of the server holds a shared flock, which the kernel takes back however the process ends; who leaves and
finds no other holder stops the server. Before: postgres_install.py runs the binaries. After: postgres.py connects
to `Embedded.dsn`.
"""

from __future__ import annotations

import atexit
import importlib.util
import logging
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from .errors import MissingExtra, PostgresUnavailable, QueueError, SettingsError
from .postgres_install import START_SECONDS, WHEEL, Install, closed_to, copy_into, lent_account

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    import pwd

__all__ = ["SOCKET", "SOCKET_BYTES", "Embedded", "Postmaster", "find_install", "lent_account", "start"]

log = logging.getLogger(__name__)

FORBIDDEN = set('"$`\\,\n')  # pg_ctl hands paths to a shell in double quotes; a comma separates socket folders
SOCKET = ".s.PGSQL.5432"
SOCKET_BYTES = 103  # macOS takes no longer path


class Embedded:
    """One use of the embedded server; it runs as long as anybody uses it."""

    def __init__(self, home: Path, install: Install, sockets: Path) -> None:
        self.home = home
        self.dsn = f"postgresql://postgres@/postgres?host={quote(str(sockets))}&port=5432"
        self._install = install
        self._use: int | None = _open(home / "users", install.account)
        fcntl.flock(self._use, fcntl.LOCK_SH)
        atexit.register(self.stop)

    def stop(self) -> None:
        """Leave; the last one to leave stops the server. After a fork parent and child are two users."""
        if self._use is None:
            return
        atexit.unregister(self.stop)
        use, self._use = self._use, None
        os.close(use)  # not LOCK_UN, which would take the lock from parent or child as well
        with suppress(FileNotFoundError), _locked(self.home, self._install.account):
            if _nobody_uses(self.home, self._install.account):
                _shut_down(self.home / "data", self._install)


class Postmaster(NamedTuple):
    """What postmaster.pid tells of a server, running or not."""

    pid: int
    sockets: Path
    status: str

    @classmethod
    def read(cls, data: Path) -> Postmaster | None:
        """The server that wrote postmaster.pid last, if it did not remove it."""
        try:
            lines = (data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return None
        lines += [""] * (8 - len(lines))  # half-written by one that is starting, or crashed while it did
        return cls(int(lines[0]) if lines[0].isdigit() else 0, Path(lines[4]), lines[7].strip())

    def answers(self) -> bool:
        """Whether it takes connections. Asked at the socket, as its pid may be another container's."""
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(5)
            return self.status == "ready" and probe.connect_ex(str(self.sockets / SOCKET)) == 0

    def lives(self, data: Path) -> bool:
        """Whether its process is there; after a crash the pid may be somebody else's."""
        import psutil  # comes with the wheel

        try:
            process = psutil.Process(self.pid)
            return process.name() == "postgres" and str(data) in process.cmdline()
        except psutil.Error:
            return False


def start(home: Path) -> Embedded:
    """Use the embedded server of this home folder; it is made and started where needed (blocks, 2 s the first time)."""
    if sys.platform == "win32":
        raise SettingsError("the embedded Postgres runs on Linux and macOS: set AAICLICK_QUEUE_POSTGRES_URL")
    home = home.expanduser().resolve()
    if importlib.util.find_spec(WHEEL) is None:
        raise MissingExtra("the embedded Postgres", "local")
    if FORBIDDEN & set(str(home)):
        raise _bad_home(home, f"has one of the characters {' '.join(sorted(FORBIDDEN))!r}, which pg_ctl cannot take")
    try:
        account = lent_account(home / "data")
        _make_home(home, account)
        with _locked(home, account):
            install = find_install(home, account)
            server = _running(home / "data") or _launch(home, install)
            return Embedded(home, install, server.sockets)
    except QueueError:
        raise
    except subprocess.CalledProcessError as error:
        tool = Path(error.cmd[0]).name
        raise PostgresUnavailable(f"the embedded Postgres in {home}: {tool} says {error.output.strip()!r}") from error
    except OSError as error:
        raise _bad_home(home, f"cannot be used ({error})") from error


def find_install(home: Path, account: pwd.struct_passwd | None) -> Install:
    """The wheel's binaries for the data in this home: those of its version, the newest for a new one."""
    spec = importlib.util.find_spec(WHEEL)
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    majors = {_major(folder): folder for folder in package.glob("pginstall*")}
    try:
        major = int((home / "data" / "PG_VERSION").read_text())
    except FileNotFoundError:
        major = max(majors)
    except ValueError:
        major = 0
    if major not in majors:
        shipped = " and ".join(str(number) for number in sorted(majors))
        raise _bad_home(home, f"holds the data of Postgres {major or 'unknown'}, the installed wheel runs {shipped}")
    folder = majors[major]
    if account and closed_to(account, folder / "bin"):
        folder = copy_into(home, folder)
    return Install(folder, major, account)


def _major(folder: Path) -> int:
    with (folder / "share/postgresql/postgres.bki").open() as file:
        return int(file.readline().removeprefix("# PostgreSQL "))


def _make_home(home: Path, account: pwd.struct_passwd | None) -> None:
    if not home.exists():
        home.mkdir(parents=True, exist_ok=True)
        home.chmod(0o755 if account else 0o700)
    if account and (closed := closed_to(account, home)):
        raise _bad_home(
            home,
            f"lies behind {closed}, which the account {account.pw_name!r} cannot enter; Postgres runs as that account, "
            "because it refuses to run as root",
        )


def _bad_home(home: Path, why: str) -> SettingsError:
    return SettingsError(
        f"AAICLICK_QUEUE_HOME = {str(home)!r} {why}: name another folder, or set AAICLICK_QUEUE_POSTGRES_URL"
    )


def _open(path: Path, account: pwd.struct_passwd | None) -> int:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    if account:
        os.fchown(file, account.pw_uid, account.pw_gid)
    return file


@contextmanager
def _locked(home: Path, account: pwd.struct_passwd | None) -> Iterator[None]:
    """One process at a time starts or stops the server."""
    file = _open(home / "lock", account)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)  # close alone would leave it with a child forked meanwhile
        os.close(file)


def _nobody_uses(home: Path, account: pwd.struct_passwd | None) -> bool:
    file = _open(home / "users", account)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(file)
    return True


def _running(data: Path) -> Postmaster | None:
    """The server of this data folder, ready; one that is on its way up or down is waited for."""
    give_up_at = time.monotonic() + START_SECONDS
    while server := Postmaster.read(data):
        if server.answers():
            return server
        if not server.lives(data):
            return None
        if time.monotonic() > give_up_at:
            raise PostgresUnavailable(
                f"the embedded Postgres in {data} (pid {server.pid}) has been {server.status} for {START_SECONDS} s: "
                f"see {data / 'postgres.log'}, or end it with kill -QUIT {server.pid}"
            )
        time.sleep(0.02)
    return None


def _launch(home: Path, install: Install) -> Postmaster:
    log.info("starting an embedded Postgres in %s", home)
    data = home / "data"
    if not (data / "PG_VERSION").exists():
        _make_data(data, install)
    sockets = home / "run"
    shutil.rmtree(sockets, ignore_errors=True)
    if len(os.fsencode(sockets / SOCKET)) > SOCKET_BYTES:
        sockets = Path("/tmp", f"aaiq-{secrets.token_hex(8)}")  # noqa: S108 - refused if it exists
    install.new_folder(sockets)
    give_up_at = time.monotonic() + START_SECONDS
    while says := install.try_to_start(data, sockets):
        # Backends of a crashed server finish their statement before they notice.
        if "still in use" not in says or time.monotonic() > give_up_at:
            raise PostgresUnavailable(
                f"the embedded Postgres did not start with the data in {data}: mend what it says, or move that folder "
                f"away to begin anew\n{says}"
            )
        time.sleep(0.1)
    server = Postmaster.read(data)
    assert server is not None
    return server


def _make_data(data: Path, install: Install) -> None:
    """Make the data folder under another name first: one that was interrupted is never taken for a whole one."""
    if data.exists() and any(data.iterdir()):
        raise _bad_home(data.parent, f"has a folder {data.name!r} that is not a Postgres data folder")
    draft = data.with_suffix(".new")
    shutil.rmtree(draft, ignore_errors=True)
    install.initdb(draft)
    draft.rename(data)


def _shut_down(data: Path, install: Install) -> None:
    server = Postmaster.read(data)
    if server is None or not server.lives(data):  # pg_ctl would signal whoever has that pid
        return
    try:
        install.stop(data)
    except subprocess.CalledProcessError as error:
        log.warning("the embedded Postgres in %s did not stop: %s", data, error.output.strip())
    if server.sockets.parent != data.parent:
        with suppress(OSError):
            server.sockets.rmdir()
