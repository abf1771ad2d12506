"""Servers for tests: a folder for an embedded Postgres, and databases that live as long as a test."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from ..embedded import Embedded, Postmaster, start
from ..errors import NotAllowed, QueueError
from ..migrate import upgrade
from ..portal import submit
from ..postgres import POOLS, Database, plain_dsn
from ..settings import Settings

T = TypeVar("T")

INSUFFICIENT_PRIVILEGE = "42501"
ROOMY_BYTES = 4 << 30


def new_folder(name: str | None = None) -> Path:
    """A folder with a short path that every account may enter, as Postgres needs it when the tests run as root."""
    memory = Path("/dev/shm")  # noqa: S108 - a new cluster is a thousand small files: 0.8 s there, 1.8 s on a disk
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > ROOMY_BYTES
    parent = memory if roomy else Path("/tmp")  # noqa: S108 - short, and mkdtemp makes the name
    if name is None:
        folder = Path(tempfile.mkdtemp(prefix="aaiq-test-", dir=parent))
    else:
        folder = parent / f"aaiq-test-{name}"
        folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    return folder


def start_embedded(folder: Path) -> Embedded:
    """Use the embedded Postgres of the folder, which need not survive the machine."""
    server = start(folder)
    in_thread(_without_fsync, server.dsn)
    return server


def remove_folder(folder: Path) -> None:
    """Remove the folder of an embedded server, which is stopped first if a crashed process has left it running."""
    if Postmaster.read(folder / "data") is not None:
        start(folder).stop()
    shutil.rmtree(folder, ignore_errors=True)


def in_thread(function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
    """What the coroutine function gives, awaited on a loop of its own: the caller may have a running one, or none."""
    result: list[T] = []
    failed: list[BaseException] = []

    def call() -> None:
        try:
            result.append(asyncio.run(function(*args)))
        except BaseException as error:  # handed over to the thread that waits
            failed.append(error)

    thread = threading.Thread(target=call, name="aaiclick-queue testing")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return result[0]


class Databases:
    """Fresh databases on one server, made as copies of a template; nothing else on the server is touched."""

    def __init__(self, url: str, *, is_throwaway: bool = False) -> None:
        """`is_throwaway`: the server need not survive the machine, so that a copy may be one of files."""
        self._server = urlsplit(plain_dsn(url))
        self._how = " STRATEGY FILE_COPY" if is_throwaway else ""  # 22 ms instead of 77; with fsync it is slower
        # Kept open: a connection for each statement was a third of what a database of a test cost.
        self._db = Database(Settings.load({}, postgres_url=self._server.geturl()), size=1)
        POOLS.discard(self._db)  # it is no pool of what is tested

    def url(self, name: str) -> str:
        """How to connect to the database of that name."""
        return self._server._replace(path=f"/{name}").geturl()

    @contextmanager
    def new(self, template: str = "template0") -> Iterator[str]:
        """A database of that block's own; gives its name."""
        name = f"aaiq_test_{uuid.uuid4().hex[:12]}"
        try:
            self._execute(f"CREATE DATABASE {name} TEMPLATE {template} ENCODING 'UTF8'{self._how}")
        except Exception as error:
            if not isinstance(error, NotAllowed) and getattr(error, "sqlstate", None) != INSUFFICIENT_PRIVILEGE:
                raise
            raise QueueError(
                f"the tests make a database each, which {self._server.username!r} may not on the server of "
                "AAICLICK_QUEUE_POSTGRES_URL: ALTER ROLE … CREATEDB, or unset it to use a Postgres from a wheel"
            ) from error
        try:
            yield name
        finally:
            self._execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    @contextmanager
    def migrated(self, *, schema: str = "aaiclick_queue") -> Iterator[str]:
        """A database with our tables, to copy others from; gives its name."""
        with self.new() as name:
            in_thread(upgrade, Settings.load({}, postgres_url=self.url(name), postgres_schema=schema))
            yield name

    def close(self) -> None:
        """Let go of the connection on which databases are made; with the next one it is made anew."""
        submit(self._db.close())

    def _execute(self, sql: str) -> None:
        submit(self._db.fetch(sql))


async def _without_fsync(url: str) -> None:
    async with Database(Settings.load({}, postgres_url=url), size=1) as db:
        await db.fetch("ALTER SYSTEM SET fsync = off")
        await db.fetch("SELECT pg_reload_conf()")
