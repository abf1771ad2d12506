"""Real servers for the tests: those the environment names, else ones from wheels that end with the tests."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import psycopg
import pytest

from aaiclick_queue import embedded
from aaiclick_queue.postgres import plain_dsn
from tests.wires.redis_server import free_port


def new_folder() -> Path:
    """A folder with a short path that every account may enter, as Postgres needs it when the tests run as root."""
    memory = Path("/dev/shm")  # a new cluster is a thousand small files: 0.8 s there, 1.8 s on a disk
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 4 << 30
    folder = Path(tempfile.mkdtemp(prefix="aaiq-test-", dir=memory if roomy else "/tmp"))
    folder.chmod(0o755)
    return folder


def find_tool(name: str) -> str | None:
    """The executable of that name; Debian keeps servers where an ordinary user's PATH does not look."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin"]))


class Databases:
    """Fresh databases on one server, made as copies of a template."""

    def __init__(self, url: str) -> None:
        self._server = urlsplit(plain_dsn(url))
        self._admin = psycopg.connect(self._server.geturl(), autocommit=True)

    def close(self) -> None:
        self._admin.close()

    def url(self, name: str) -> str:
        return self._server._replace(path=f"/{name}").geturl()

    @contextmanager
    def new(self, template: str = "template0") -> Iterator[str]:
        """A database of that block's own; gives its name."""
        name = f"aaiq_test_{uuid.uuid4().hex[:12]}"
        try:
            self._admin.execute(f"CREATE DATABASE {name} TEMPLATE {template} ENCODING 'UTF8'")
        except psycopg.errors.InsufficientPrivilege:
            pytest.exit(
                f"the tests make a database each, which {self._server.username!r} may not on the server of "
                "AAICLICK_QUEUE_POSTGRES_URL: ALTER ROLE … CREATEDB, or unset it to use a Postgres from a wheel",
                returncode=2,
            )
        try:
            yield name
        finally:
            self._admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


class OwnPostgres:
    """A throw-away server on a TCP port of its own, to be stopped, killed and restarted by a test."""

    def __init__(self, **parameters: str) -> None:
        self._folder = new_folder()
        self._data = self._folder / "data"
        self._install = embedded.find_install(self._folder, embedded.lent_account(self._data))
        self._install.initdb(self._data)
        self.port = free_port()
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        # Without fsync: the tests end servers and processes, they do not cut the machine's power.
        given = {"listen_addresses": "127.0.0.1", "port": str(self.port), "unix_socket_directories": "", "fsync": "off"}
        self._parameters = given | parameters

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
