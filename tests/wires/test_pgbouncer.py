"""Behind pgbouncer in transaction mode: nothing of a session is relied on, told to it or found out."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Self

import psycopg
import pytest

from aaiclick_queue import Plan, Worker, connect, current, handle, migrate, task
from aaiclick_queue.settings import Settings
from tests.servers import OwnPostgres, find_tool, new_folder

pytestmark = pytest.mark.needs_tool("pgbouncer")


@task(entrypoint="test_pgbouncer.double", retry_delay=0.01)
async def double(n: int) -> int:
    if n % 10 == 0 and current().attempt == 1:
        raise ValueError("the first attempt of each tenth")
    await current().progress(0.5)
    return 2 * n


class PgBouncer:
    """A pgbouncer of the test's own in front of a Postgres."""

    def __init__(self, postgres_url: str) -> None:
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
default_pool_size = 5
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


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[OwnPostgres]:
    with OwnPostgres() as server:
        yield server


@pytest.mark.parametrize("pooler", ["transaction", "none"], ids=["told", "found out"])
async def test_the_whole_flow_works_through_pgbouncer_in_transaction_mode(
    own_postgres: OwnPostgres, pooler: str
) -> None:
    with PgBouncer(own_postgres.url) as bouncer:
        settings = Settings.load({}, postgres_url=bouncer.url, postgres_pooler=pooler, lease_seconds=2)
        direct = settings.model_copy(update={"postgres_url": own_postgres.url})
        await migrate.upgrade(settings if pooler == "transaction" else direct)
        worker = Worker(settings, Plan(slots=20))
        running = asyncio.create_task(worker.run())
        async with connect(settings=settings) as client:
            ids = await double.enqueue_many([{"n": n} for n in range(200)], client=client)
            handles = [await double.enqueue(n, client=client) for n in range(20)]
            assert [await handle.result(30) for handle in handles] == [2 * n for n in range(20)]
            results = await asyncio.gather(*(handle(task_id, client=client).result(30) for task_id in ids))
            assert results == [2 * n for n in range(200)]
        worker.stop()
        await running
