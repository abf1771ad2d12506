"""Real servers for the tests: those the environment names, else ones from wheels that end with the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Self

from aaiclick_queue import embedded
from aaiclick_queue.postgres_install import START_SECONDS, Install
from aaiclick_queue.testing.redis_server import free_port
from aaiclick_queue.testing.servers import Databases, new_folder

__all__ = ["Databases", "OwnCopy", "OwnPostgres", "OwnStandby", "find_tool", "new_folder"]


def find_tool(name: str) -> str | None:
    """The executable of that name; Debian keeps servers where an ordinary user's PATH does not look."""
    folders = [
        os.environ.get("PATH", ""),
        "/usr/local/sbin",
        "/usr/sbin",
        *map(str, Path("/usr/lib/postgresql").glob("*/bin")),
    ]
    return shutil.which(name, path=os.pathsep.join(folders))


class OwnPostgres:
    """A throw-away server on a TCP port of its own, to be stopped, killed and restarted by a test."""

    def __init__(self, *, hba: str | None = None, install: Install | None = None, **parameters: str) -> None:
        """`hba`: the lines of its pg_hba.conf; unless given everybody on this machine is trusted."""
        self._folder = new_folder()
        self._data = self._folder / "data"
        self._install = install or embedded.find_install(self._folder, embedded.lent_account(self._data))
        self._fill()
        if hba is not None:
            (self._data / "pg_hba.conf").write_text(hba)
        self.port = free_port()
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        # Without fsync: the tests end servers and processes, they do not cut the machine's power.
        given = {"listen_addresses": "127.0.0.1", "port": str(self.port), "unix_socket_directories": "", "fsync": "off"}
        self._parameters = given | parameters

    def _fill(self) -> None:
        self._install.initdb(self._data)

    def start(self) -> None:
        self._install.start(self._data, self._parameters)

    def stop(self, mode: str = "fast") -> None:
        """Stop it: `fast` ends connections in order, `immediate` is a crash."""
        self._install.stop(self._data, mode)

    def restart(self, mode: str = "fast") -> None:
        self.stop(mode)
        self.start()

    @property
    def pid(self) -> int | None:
        """The postmaster's pid while it runs."""
        server = embedded.Postmaster.read(self._data)
        return server.pid if server and server.lives(self._data) else None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.pid is not None:
            self.stop("immediate")
        shutil.rmtree(self._folder)


class OwnCopy(OwnPostgres):
    """A server with the data of another, which is stopped: a tenth of what making them takes."""

    def __init__(self, other: OwnPostgres) -> None:
        self._other = other
        super().__init__()

    def _fill(self) -> None:
        subprocess.run(["cp", "-a", self._other._data, self._data], check=True)


class OwnStandby(OwnPostgres):
    """A streaming replica of a server that runs, to be promoted by a test."""

    def __init__(self, primary: OwnPostgres) -> None:
        self._primary = primary
        super().__init__()

    def _fill(self) -> None:
        self._install.new_folder(self._data)
        source = ("-h", "127.0.0.1", "-p", str(self._primary.port), "-U", "postgres")
        self._install.run("pg_basebackup", "-D", self._data, *source, "-R", "-X", "stream", "-c", "fast", "-N")

    def promote(self) -> None:
        """Make it a primary; returns when it takes writes."""
        self._install.run("pg_ctl", "promote", "-w", f"--timeout={START_SECONDS}", "-s", "-D", self._data)
