"""`worker --reload`: the newest code runs, whatever an editor does and however broken it is in between."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from aaiclick_queue.cli.watching import Watch, folders, python_files
from aaiclick_queue.settings import Settings
from tests.cli.conftest import Invoke
from tests.cli.running import Program, environment, program, wait_for
from tests.cli.test_worker import events, gone

SHOP = """
import asyncio, time
from aaiclick_queue import task
{more}
@task
def number() -> int:
    return {number}

@task
async def nap(seconds: float) -> None:
    await asyncio.sleep(seconds)

@task
async def hog(seconds: float) -> None:
    time.sleep(seconds)
"""

SECOND = int(time.time()) * 1_000_000_000


def save(folder: Path, number: str, more: str = "") -> None:
    """As editors do: written beside it, then renamed over it."""
    file = folder / "shop.py~"
    file.write_text(SHOP.format(number=number, more=more))
    # All in one second, as quick saves are: a .pyc does not tell them apart.
    os.utime(file, ns=(SECOND, SECOND + time.monotonic_ns() % 1_000_000_000))
    file.replace(folder / "shop.py")


@contextmanager
def reloading(settings: Settings, folder: Path, *arguments: str) -> Iterator[Program]:
    given = ("worker", "-A", "shop", "--reload", "--log-format", "json", *arguments)
    env = environment(settings) | {"PYTHONDONTWRITEBYTECODE": ""}
    with program(*given, env=env, cwd=folder) as started:
        try:
            started.wait_for(lambda: starts(started) >= 1)
            yield started
        finally:
            children = started.children() if started.process.poll() is None else []
            started.close()
            wait_for(lambda: gone(children))


def starts(started: Program) -> int:
    return len(events(started, "worker started"))


def answer(invoke: Invoke) -> str:
    ran = invoke("task", "enqueue", "shop.number", "--wait")
    assert ran.exit_code == 0, ran.output
    return str(ran.stdout.strip())


def running(invoke: Invoke) -> list[str]:
    return [row["id"] for row in json.loads(invoke("task", "list", "--status", "RUNNING", "--json").stdout)]


def test_each_save_runs_the_new_code(settings: Settings, invoke: Invoke, tmp_path: Path) -> None:
    save(tmp_path, "1")
    with reloading(settings, tmp_path) as started:
        assert answer(invoke) == "1"
        for number in (2, 3, 4):  # of the same size
            before = starts(started)
            save(tmp_path, str(number))
            started.wait_for(lambda before=before: starts(started) > before)  # type: ignore[misc]
            assert answer(invoke) == str(number)
        assert started.stderr.count("shop.py changed: starting anew") == 3
        assert len(started.children()) == 1
        started.press_ctrl_c()
        assert started.ends() == 0
    assert [one["status"] for one in json.loads(invoke("workers", "list", "--json").stdout)] == ["STOPPED"] * 4


def test_code_that_cannot_be_imported_is_shown_and_the_next_change_awaited(
    settings: Settings, invoke: Invoke, tmp_path: Path
) -> None:
    save(tmp_path, "1")
    with reloading(settings, tmp_path) as started:
        save(tmp_path, "= 2")
        started.wait_for(lambda: "waiting for a change" in started.stderr)
        assert "SyntaxError: invalid syntax" in started.stderr
        assert "Traceback" not in started.stderr
        assert psutil.Process(started.process.pid).children() == []  # no zombie either
        save(tmp_path, "2", more="import nosuch_module")
        started.wait_for(lambda: started.stderr.count("waiting for a change") == 2)
        assert "No module named 'nosuch_module'" in started.stderr
        (tmp_path / "nosuch_module.py").touch()  # the mending may be in another file
        started.wait_for(lambda: starts(started) == 2)
        assert answer(invoke) == "2"
        started.process.send_signal(signal.SIGTERM)
        assert started.ends() == 0


def test_a_worker_that_waits_for_a_change_ends_at_ctrl_c(settings: Settings, tmp_path: Path) -> None:
    save(tmp_path, "= 1")
    given = ("worker", "-A", "shop", "--reload")
    with program(*given, env=environment(settings), cwd=tmp_path) as started:
        started.wait_for(lambda: "waiting for a change" in started.stderr)
        started.press_ctrl_c()
        assert started.ends() == 0


def test_what_runs_is_handed_back_at_no_cost(settings: Settings, invoke: Invoke, tmp_path: Path) -> None:
    save(tmp_path, "1")
    with reloading(settings, tmp_path) as started:
        long = invoke("task", "enqueue", "shop.nap", "--kwargs", '{"seconds": 90}').stdout.strip()
        wait_for(lambda: running(invoke) == [long])
        save(tmp_path, "2")
        started.wait_for(lambda: starts(started) == 2)
        assert [line["task_id"] for line in events(started, "run handed back")] == [long]
        wait_for(lambda: running(invoke) == [long])
        assert json.loads(invoke("task", "get", long, "--json").stdout)["attempt"] == 1
        before = len(events(started, "worker draining"))
        started.press_ctrl_c()
        started.wait_for(lambda: len(events(started, "worker draining")) > before)
        started.press_ctrl_c()
        assert started.ends() == 0


def test_a_worker_whose_loop_is_blocked_is_ended_too(settings: Settings, invoke: Invoke, tmp_path: Path) -> None:
    save(tmp_path, "1")
    with reloading(settings, tmp_path) as started:
        hog = invoke("task", "enqueue", "shop.hog", "--kwargs", '{"seconds": 3600}').stdout.strip()
        wait_for(lambda: running(invoke) == [hog])
        [blocked] = started.children()
        save(tmp_path, "2")
        started.wait_for(lambda: starts(started) == 2)
        assert gone([blocked])
        invoke("task", "cancel", hog, "--yes")
        assert answer(invoke) == "2"


def test_a_killed_worker_is_started_again_and_a_killed_parent_leaves_none(
    settings: Settings, invoke: Invoke, tmp_path: Path
) -> None:
    save(tmp_path, "1")
    with reloading(settings, tmp_path, "--processes", "2") as started:
        started.wait_for(lambda: starts(started) == 2)
        [supervisor] = psutil.Process(started.process.pid).children()
        supervisor.kill()
        started.wait_for(lambda: starts(started) == 4)
        assert "the worker was ended by SIGKILL: again in 1 s, or after a change" in started.stderr
        everyone = [one.pid for one in psutil.Process(started.process.pid).children(recursive=True)]
        assert len(everyone) == 3
        started.process.kill()
        started.ends()
        wait_for(lambda: gone(everyone))


def test_the_folder_of_a_module_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    for file in ("shop/__init__.py", "shop/deep/__init__.py", "shop/deep/mail.py", "tasks.py", "apart/alone.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("raise RuntimeError")
    assert folders(["shop.deep.mail", "tasks", "nosuch"]) == [tmp_path]
    assert folders(["apart/alone.py"]) == [tmp_path / "apart"]
    assert folders(["shop/deep/mail.py", "apart/alone.py"]) == [tmp_path]
    assert folders(["aaiclick_queue.demo.tasks"]) == [Path(__file__).parents[2] / "aaiclick_queue"]


def test_files_that_nobody_edits_are_not_watched(tmp_path: Path) -> None:
    for file in ("a.py", "b/c.py", "b/d.txt", ".git/e.py", "venv/pyvenv.cfg", "venv/lib/f.py", "b/__pycache__/g.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    assert sorted(python_files(tmp_path)) == [str(tmp_path / "a.py"), str(tmp_path / "b" / "c.py")]


@pytest.mark.parametrize("how", ["written", "renamed over", "touched", "new", "removed"])
async def test_every_way_to_change_a_file_is_seen(tmp_path: Path, how: str) -> None:
    file, other = tmp_path / "a.py", tmp_path / "b.py"
    file.write_text("1")
    stat = file.stat()
    watch = Watch([tmp_path])
    await watch.start()
    waiting = asyncio.create_task(watch.changed())
    match how:
        case "written":
            file.write_text("22")
        case "renamed over":  # even by one of the same age and size
            (tmp_path / "c").write_text("2")
            os.utime(tmp_path / "c", ns=(stat.st_atime_ns, stat.st_mtime_ns))
            (tmp_path / "c").replace(file)
        case "touched":
            os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000))
        case "new":
            other.touch()
        case "removed":
            file.unlink()
    async with asyncio.timeout(30):
        assert await waiting == [str(other if how == "new" else file)]


async def test_a_change_that_is_undone_before_all_is_still_is_none(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("1")
    watch = Watch([tmp_path])
    await watch.start()
    looks = 0
    look = watch._look

    async def looked() -> dict[str, tuple[int, int, int]]:
        nonlocal looks
        looks += 1
        if looks == 2:  # after the look that saw a change
            file.rename(tmp_path / "a.py.bak")
        if looks == 3:
            (tmp_path / "a.py.bak").rename(file)
        return await look()

    watch._look = looked  # type: ignore[method-assign]
    (tmp_path / "b.py").touch()
    async with asyncio.timeout(30):
        assert await watch.changed() == [str(tmp_path / "b.py")]
