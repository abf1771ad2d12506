"""The embedded Postgres: shared by processes that come, go and are killed, and honest about what it cannot do."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import asyncpg
import psutil
import psycopg
import psycopg2
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from aaiclick_queue import embedded
from aaiclick_queue.embedded import Embedded, Postmaster
from aaiclick_queue.errors import MissingExtra, PostgresUnavailable, SettingsError

PROJECT = Path(__file__).parents[2]
APPLICATION = """
import sys
from pathlib import Path
from aaiclick_queue import embedded

server = embedded.start(Path(sys.argv[1]))
print(server.dsn, flush=True)
sys.stdin.readline()
"""
FORKED = """
import os, sys
from pathlib import Path
from aaiclick_queue import embedded

server = embedded.start(Path(sys.argv[1]))
one_leaves = os.fork()
if one_leaves == 0 and sys.argv[2] == "child":
    sys.exit()
if one_leaves != 0 and sys.argv[2] == "parent":
    server.stop()
os.write(1, server.dsn.encode() + bytes([10]))  # at once: both write to one pipe
sys.stdin.readline()
if one_leaves != 0:
    os.wait()
"""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root lends Postgres another account")


class Application:
    """A process of its own that uses the server until it is told to leave, or killed."""

    def __init__(self, home: Path, *arguments: str, script: str = APPLICATION, **environ: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", script, home, *arguments],
            cwd=PROJECT,
            env=os.environ | environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def says(self) -> str:
        """Its next line of output."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def leave(self) -> str:
        """Let it end by itself; what it wrote to stderr."""
        _, errors = self.process.communicate("\n", timeout=60)
        assert self.process.returncode == 0, errors
        return errors

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def using(home: Path) -> Iterator[Embedded]:
    server = embedded.start(home)
    try:
        yield server
    finally:
        server.stop()


def answer(dsn: str, question: str) -> object:
    with psycopg.connect(dsn) as connection:
        row = connection.execute(question).fetchone()
        return row and row[0]


def postmaster(home: Path) -> int | None:
    """The pid of the running server of this home."""
    data = home.resolve() / "data"
    server = Postmaster.read(data)
    return server.pid if server and server.lives(data) else None


def at_work(pid: int) -> bool:
    """Whether the process is there and not merely waiting to be buried."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_data_is_there_again_after_the_last_user_left(home: Path) -> None:
    with using(home) as server, psycopg.connect(server.dsn) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS number")
    assert postmaster(home) is None
    with using(home) as server:
        assert answer(server.dsn, "SELECT number FROM kept") == 42


async def test_every_driver_takes_the_dsn(home: Path) -> None:
    with using(home.with_name("a home")) as server:
        connection = await asyncpg.connect(server.dsn)
        assert await connection.fetchval("SHOW fsync") == "on"
        await connection.close()
        assert answer(server.dsn, "SHOW max_connections") == "200"
        old = psycopg2.connect(server.dsn)
        old.close()
        sync_engine = sa.create_engine(server.dsn)
        with sync_engine.connect() as sync:
            assert sync.scalar(sa.text("SELECT lower('ÄRGER')")) == "ärger"
        sync_engine.dispose()
        engine = create_async_engine(server.dsn.replace("postgresql://", "postgresql+asyncpg://"))
        async with engine.connect() as session:
            assert await session.scalar(sa.text("SELECT current_user")) == "postgres"
        await engine.dispose()


def test_processes_that_start_at_once_share_one_server(home: Path) -> None:
    applications = [Application(home) for _ in range(3)]
    started = {answer(application.says(), "SELECT pg_postmaster_start_time()") for application in applications}
    assert len(started) == 1
    assert [application.leave() for application in applications] == ["", "", ""]
    assert postmaster(home) is None


def test_a_killed_process_does_not_take_the_server_along_and_the_last_one_stops_it(home: Path) -> None:
    first, second, third = (Application(home) for _ in range(3))
    dsns = [application.says() for application in (first, second, third)]
    first.kill()
    second.leave()
    assert answer(dsns[2], "SELECT 1") == 1
    third.leave()
    assert postmaster(home) is None


def test_a_server_whose_users_were_all_killed_is_taken_over_and_stopped(home: Path) -> None:
    application = Application(home)
    application.says()
    application.kill()
    left = postmaster(home)
    assert left is not None
    with using(home) as server:
        assert postmaster(home) == left
        assert answer(server.dsn, "SELECT 1") == 1
    assert postmaster(home) is None


def test_a_crashed_server_heals_even_while_an_old_backend_is_still_at_work(home: Path) -> None:
    with using(home) as server, closing(psycopg.connect(server.dsn, autocommit=True)) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS number")
        connection.pgconn.send_query(b"SELECT count(*) FROM generate_series(1, 20000000)")
        crashing = psutil.Process(postmaster(home))
        crashing.kill()
        crashing.wait(10)
        with using(home) as healed:
            assert not at_work(connection.info.backend_pid), "two servers wrote to the same data"
            assert answer(healed.dsn, "SELECT number FROM kept") == 42
    assert postmaster(home) is None


@pytest.mark.parametrize("text", ["", "{pid}\n", "{pid}\n{data}\n1700000000\n5432\n{home}/run\n\n  1 1\nready\n"])
def test_a_pid_file_left_by_a_crash_heals_even_when_another_process_has_the_pid(home: Path, text: str) -> None:
    with using(home):
        pass
    owner = (home / "data").stat().st_uid
    with subprocess.Popen(["sleep", "100"], user=owner if os.geteuid() == 0 else None) as stranger:
        file = home / "data" / "postmaster.pid"
        file.write_text(text.format(pid=stranger.pid, data=home.resolve() / "data", home=home.resolve()))
        shutil.chown(file, owner)
        with using(home) as server:
            assert answer(server.dsn, "SELECT 1") == 1
            assert stranger.poll() is None
        assert stranger.poll() is None
        stranger.kill()


def test_stopping_never_signals_a_stranger(home: Path) -> None:
    server = embedded.start(home)
    file = home / "data" / "postmaster.pid"
    true = file.read_text()
    owner = file.stat().st_uid
    with subprocess.Popen(["sleep", "100"], user=owner if os.geteuid() == 0 else None) as stranger:
        file.write_text(true.replace(true.split()[0], str(stranger.pid), 1))
        server.stop()
        assert stranger.poll() is None
        stranger.kill()
    file.write_text(true)
    with using(home):
        pass
    assert postmaster(home) is None


def test_an_interrupted_first_start_is_begun_anew(home: Path) -> None:
    (home / "data.new" / "base").mkdir(parents=True)
    home.chmod(0o755)
    with using(home) as server:
        assert answer(server.dsn, "SELECT 1") == 1


@pytest.mark.parametrize("leaver", ["child", "parent"])
def test_after_a_fork_neither_parent_nor_child_takes_the_server_from_the_other(home: Path, leaver: str) -> None:
    application = Application(home, leaver, script=FORKED)
    dsns = {application.says() for _ in range(1 if leaver == "child" else 2)}
    assert answer(dsns.pop(), "SELECT 1") == 1
    application.leave()
    assert postmaster(home) is None


def test_a_long_home_gets_its_socket_elsewhere(home: Path) -> None:
    deep = home / ("long" * 30)
    with using(deep) as server:
        assert answer(server.dsn, "SELECT 1") == 1
        running = Postmaster.read(deep.resolve() / "data")
        assert running is not None
        assert len(os.fsencode(running.sockets / embedded.SOCKET)) <= embedded.SOCKET_BYTES
    assert not running.sockets.exists()


def test_nobody_else_may_enter_the_folders_of_data_and_socket(home: Path) -> None:
    with using(home):
        assert [(home / name).stat().st_mode & 0o777 for name in ("data", "run")] == [0o700, 0o700]


def test_the_shell_does_not_leak_into_the_server_and_the_wheel_not_into_stderr(home: Path) -> None:
    application = Application(home, PGPORT="1", PGDATA="/nowhere", PGUSER="nobody", LC_ALL="xx_XX", XDG_RUNTIME_DIR="")
    assert answer(application.says(), "SHOW port") == "5432"
    assert application.leave() == ""


def test_the_start_is_announced_and_joining_is_not(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aaiclick_queue.embedded")
    with using(home), using(home):
        assert caplog.messages[-1:] == [f"starting an embedded Postgres in {home.resolve()}"]
        assert len([text for text in caplog.messages if "starting" in text]) == 1


def test_data_of_another_major_version_is_explained(home: Path) -> None:
    with using(home):
        pass
    (home / "data" / "PG_VERSION").write_text("9\n")
    with pytest.raises(SettingsError, match=r"holds the data of Postgres 9, the installed wheel runs .*POSTGRES_URL"):
        embedded.start(home)


def test_data_of_an_older_version_that_the_wheel_has_is_served(home: Path) -> None:
    newest = embedded.find_install(home, embedded.lent_account(home / "data"))
    older = next(folder for folder in newest.folder.parent.glob("pginstall*") if folder != newest.folder)
    home.mkdir()
    newest._replace(folder=older, major=0).initdb(home / "data")
    with using(home) as server:
        assert f"PostgreSQL {embedded._major(older)}." in str(answer(server.dsn, "SELECT version()"))


def test_a_folder_that_is_not_postgres_data_is_left_alone(home: Path) -> None:
    (home / "data").mkdir(parents=True)
    home.chmod(0o755)
    (home / "data" / "thesis.txt").write_text("ten years of work")
    with pytest.raises(SettingsError, match="has a folder 'data' that is not a Postgres data folder"):
        embedded.start(home)
    assert (home / "data" / "thesis.txt").read_text() == "ten years of work"


def test_broken_data_is_explained_with_the_words_of_the_server(home: Path) -> None:
    with using(home):
        pass
    (home / "data" / "global" / "pg_control").unlink()
    with pytest.raises(
        PostgresUnavailable, match=r"(?s)move that folder away to begin anew.*could not find the database system"
    ):
        embedded.start(home)


def test_a_home_that_cannot_be_a_folder_is_explained(home: Path) -> None:
    home.write_text("a file")
    with pytest.raises(SettingsError, match="AAICLICK_QUEUE_HOME"):
        embedded.start(home)


def test_a_home_that_a_shell_would_misread_is_refused(home: Path) -> None:
    with pytest.raises(SettingsError, match="which pg_ctl cannot take"):
        embedded.start(home / "$HOME")


def test_a_missing_wheel_names_the_extra(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "WHEEL", "a_wheel_that_is_not_installed")
    with pytest.raises(MissingExtra, match=r"pip install 'aaiclick-queue\[local\]'"):
        embedded.start(home)


@as_root
def test_root_is_told_of_a_folder_that_postgres_cannot_enter(home: Path) -> None:
    home.mkdir(mode=0o700)
    with pytest.raises(SettingsError, match=rf"lies behind {home.resolve()}, which the account .* cannot enter"):
        embedded.start(home / "inside")
    assert home.stat().st_mode & 0o777 == 0o700


@as_root
def test_root_may_have_the_virtual_environment_where_postgres_cannot_enter(home: Path) -> None:
    install = embedded.find_install(home, embedded.lent_account(home / "data"))
    package, closed = install.folder.parent, home.with_name("closed")
    for part in (install.folder, package / "__init__.py", package.with_suffix(".libs")):
        (closed / part.relative_to(package.parent)).parent.mkdir(exist_ok=True, parents=True)
        subprocess.run(["cp", "-r", part, closed / part.relative_to(package.parent)], check=True)
    subprocess.run(["chmod", "-R", "go=", closed], check=True)
    application = Application(home, PYTHONPATH=str(closed))
    assert answer(application.says(), "SELECT 1") == 1
    application.leave()
    assert closed.stat().st_mode & 0o777 == 0o700
    assert (home / "data").is_dir()
