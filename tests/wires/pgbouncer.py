"""A pgbouncer in transaction mode, for tests and figures."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Self

import psycopg

from tests.servers import find_tool, new_folder


class PgBouncer:
    """A pgbouncer of the test's own in front of a Postgres."""

    def __init__(self, postgres_url: str, *, pool_size: int = 5) -> None:
        info = psycopg.conninfo.conninfo_to_dict(postgres_url)
        self._folder = new_folder()
        with closing(socket.socket()) as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._config = self._folder / "pgbouncer.ini"
        self._config.write_text(
            f"""[databases]
* = host={info["host"]} port={info["port"]} user={info["user"]}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self._port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {pool_size}
logfile = {self._folder / "log"}
"""
        )
        self.url = f"postgresql://{info['user']}@127.0.0.1:{self._port}/{info['dbname']}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        command = [find_tool("pgbouncer") or "pgbouncer", "-q", str(self._config)]
        user = None
        if os.geteuid() == 0:  # pgbouncer refuses to run as root
            user = pwd.getpwnam("nobody").pw_uid
            for path in (self._folder, self._config):
                os.chown(path, user, -1)
        self._process = subprocess.Popen(command, user=user, cwd="/")
        for _ in range(200):
            try:
                with psycopg.connect(self.url, connect_timeout=1):
                    return self
            except psycopg.OperationalError:
                assert self._process.poll() is None, Path(self._folder / "log").read_text()
        raise AssertionError("pgbouncer did not start")

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(10)
        shutil.rmtree(self._folder)
