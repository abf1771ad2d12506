"""What the pages show is so: their Python runs beside a worker, their commands and settings exist.

As a program (`python tests/project/test_readme.py PAGE`) it runs the Python of one page: in a process of its own,
because pages enqueue from synchronous code too, and that client lives as long as its process.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import asyncpg
import click
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from aaiclick_queue import Plan, Settings, Worker
from aaiclick_queue.settings import PREFIX
from tests.project.commands import PROGRAM, found
from tests.project.deployables import COMPOSE, FILES

PROJECT = Path(__file__).parents[2]
README = PROJECT / "README.md"
PAGES = [README, *sorted((PROJECT / "docs").glob("*.md"))]
OPERATORS = [*PAGES, COMPOSE, *FILES]
# Pages on how it is tested: they also name statements, and variables that tests read.
INSIDE = {PROJECT / "docs" / name for name in ("benchmark.md", "chaos.md", "model.md")}
MODULE = "shop"  # the pages' tasks are called shop.…
OF_OTHERS = {
    "CLICKHOUSE_PASSWORD",
    "KEDA_POSTGRES_URL",
    "KEDA_TOKEN",
    "METRICS_TOKEN",
    "NO_COLOR",
    "OTEL_TRACES_EXPORTER",
    "POSTGRES_PASSWORD",
    "XDG_RUNTIME_DIR",
}


def shown(path: Path) -> str:
    return str(path.relative_to(PROJECT))


def fences(page: Path, language: str) -> list[tuple[int, str]]:
    """The page's code blocks in that language, each with the number of its first line."""
    text = page.read_text()
    found = re.finditer(rf"^```{language}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    return [(text.count("\n", 0, block.start(1)) + 1, block[1]) for block in found]


def commands(page: Path) -> list[list[str]]:
    """Every call of our program that the page shows, in console blocks and inline, as words."""
    text = page.read_text()
    lines = [line[2:] for _, block in fences(page, "console") for line in block.splitlines() if line.startswith("$ ")]
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE))
    calls = [part for line in [*lines, *spans] for part in re.split(r"&&|;|\|", line)]
    words = [shlex.split(call, comments=True) for call in calls if re.match(rf"\s*{PROGRAM}\b", call)]
    return [call[1:] for call in words]


@pytest.mark.parametrize("page", [page for page in PAGES if fences(page, "python")], ids=shown)
def test_the_python_of_a_page_runs(page: Path, postgres_url: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, __file__, page],
        cwd=PROJECT,
        env=os.environ
        | {PREFIX + "POSTGRES_URL": postgres_url, PREFIX + "LOG_DIR": str(tmp_path), "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_first_example_works_as_the_readme_says(tmp_path: Path, postgres_url: str) -> None:
    [hello] = [block for _, block in fences(README, "python") if block.startswith("# hello.py\n")]
    (tmp_path / "hello.py").write_text(hello)
    environ = os.environ | {PREFIX + "POSTGRES_URL": postgres_url, PREFIX + "LOG_DIR": str(tmp_path / "logs")}
    here = {"cwd": tmp_path, "env": environ, "text": True}
    with subprocess.Popen([sys.executable, "-m", "aaiclick_queue", "worker", "-A", "hello"], **here) as worker:  # type: ignore[call-overload]
        try:
            ran = subprocess.run([sys.executable, "hello.py"], **here, capture_output=True, timeout=60)  # type: ignore[call-overload]
        finally:
            worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
    assert ran.returncode == 0, ran.stderr
    answer = ran.stdout.strip()
    assert answer
    assert any(f"\n{answer}\n" in block for _, block in fences(README, "console"))


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_every_command_that_a_page_shows_exists(page: Path) -> None:
    from aaiclick_queue.cli import main

    for call in commands(page):
        command, names, words = found(call)
        options = {name for parameter in command.params for name in parameter.opts} | {"--help", "-h"}
        given = {word.split("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)}
        assert given <= options, f"{PROGRAM} {shlex.join(call)}: {given - options}"
        with pytest.raises(SystemExit) as ended:
            main.main([*names, "--help"])
        assert ended.value.code == 0


def test_the_readme_shows_every_command() -> None:
    from aaiclick_queue.cli import main

    told = {call[0] for page in PAGES for call in commands(page) if call}
    assert set(main.list_commands(click.Context(main))) - told == set()


def test_every_make_target_that_a_page_shows_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (PROJECT / "Makefile").read_text(), flags=re.MULTILINE))
    told = {name for page in PAGES for name in re.findall(r"(?:^\$ |`)make ([a-z]+)", page.read_text(), re.MULTILINE)}
    assert told
    assert told - targets == set()


def names_in_code() -> set[str]:
    """Constants that are set, and names in quotes: so are variables of the environment read."""
    files = (path for folder in ("aaiclick_queue", "tests") for path in (PROJECT / folder).rglob("*.py"))
    pattern = re.compile(r"^([A-Z]+(?:_[A-Z]+)+)(?:: .+?)? = |\"([A-Z]+(?:_[A-Z]+)+)\"", re.MULTILINE)
    return {name for path in files for match in pattern.findall(path.read_text()) for name in match if name}


@pytest.mark.parametrize("page", OPERATORS, ids=shown)
def test_every_setting_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    named = set(re.findall(rf"\b{PREFIX}([A-Z_]+[A-Z])\b", text))
    named |= set(re.findall(r"`([A-Z]+(?:_[A-Z]+)+)(?:=\S*)?`", text)) - OF_OTHERS
    known = {name.upper() for name in Settings.model_fields}
    if page in INSIDE:
        known |= names_in_code()
    assert {name.removeprefix(PREFIX) for name in named} - known == set()


class Model(DeclarativeBase):
    pass


class Order(Model):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]


OPEN_SOON = """
SELECT count(*) FROM aaiclick_queue.tasks t
WHERE t.status IS NULL
  AND NOT EXISTS (SELECT FROM aaiclick_queue.delayed d WHERE d.task_id = t.id AND d.not_before > now() + interval '5 s')
"""
FAILED = "SELECT entrypoint, error FROM aaiclick_queue.tasks WHERE status = 'FAILED'"


async def run_page(page: Path) -> None:
    """Run the page's blocks in order, as parts of one module, and every task they enqueue."""
    settings = Settings.load()
    assert settings.postgres_url is not None
    dsn = settings.postgres_url
    module = ModuleType(MODULE)
    sys.modules[MODULE] = module
    engine = create_async_engine(dsn.replace("postgresql://", "postgresql+asyncpg://", 1))
    sync_engine = create_engine(dsn.replace("postgresql://", "postgresql+psycopg://", 1))
    Model.metadata.create_all(sync_engine)
    connection = await asyncpg.connect(dsn)
    await connection.execute("CREATE TABLE payments (order_id int)")
    vars(module).update(engine=engine, sync_engine=sync_engine, connection=connection, dsn=dsn, Order=Order)
    async with asyncio.TaskGroup() as group:
        worker = Worker(settings, Plan(queues={"*": 1}))
        group.create_task(worker.run())
        for line, block in fences(page, "python"):
            code = compile("\n" * (line - 1) + block, page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
            running = eval(code, vars(module))
            if inspect.iscoroutine(running):
                await running
        while await connection.fetchval(OPEN_SOON):  # noqa: ASYNC110 - only the database knows
            await asyncio.sleep(0.05)
        worker.stop()
    failed = [tuple(row) for row in await connection.fetch(FAILED)]
    assert failed == [], failed
    await connection.close()
    await engine.dispose()
    sync_engine.dispose()


if __name__ == "__main__":
    asyncio.run(run_page(Path(sys.argv[1])))
