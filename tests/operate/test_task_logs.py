"""`task logs`: what a task said, what it says now, and why there is nothing to see."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from aaiclick_queue import Settings, connect
from aaiclick_queue.cli import main
from aaiclick_queue.settings import PREFIX
from tests.cli.running import environment, program, run
from tests.operate import log_tasks as tasks
from tests.tools import put_one, running_worker, until

MODULE = "tests.operate.log_tasks"


@pytest.fixture
def env(settings: Settings) -> dict[str, str]:
    return environment(settings)


async def test_the_log_is_shown_to_people_and_to_programs(settings: Settings, env: dict[str, str]) -> None:
    async with connect(settings=settings) as client, running_worker(settings):
        handle = await tasks.talk.enqueue(client=client)
        await handle.result(30)
    shown = run("task", "logs", str(handle.id), env=env)
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert lines[0].endswith(" INFO     stdout  hello ada")
    assert lines[1].endswith(" WARNING  shop.mail  careful")
    assert lines[2] == "    with ada"
    least = run("task", "logs", str(handle.id), "--level", "error", "--json", env=env)
    [line] = map(json.loads, least.stdout.splitlines())
    assert (line["attempt"], line["level"], line["logger"], line["stream"]) == (1, "ERROR", "shop.mail", "log")
    last = run("task", "logs", str(handle.id), "--tail", "1", env=env)
    assert last.stdout.rstrip().endswith("stdout  no newline")


async def test_following_ends_with_the_task_and_shows_every_attempt(
    settings: Settings, env: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "now"
    async with connect(settings=settings) as client, running_worker(settings):
        handle = await tasks.until_told.enqueue(file=str(file), client=client)
        with program("task", "logs", str(handle.id), "-f", env=env) as following:
            await until(lambda: "began" in following.stdout, patience=30)
            assert following.process.poll() is None
            file.touch()
            await until(lambda: following.process.poll() is not None, patience=30)
            assert following.ends() == 0
            assert following.stdout.splitlines()[-1].endswith("stdout  told")
        third = await tasks.third_time.enqueue(client=client)
        with program("task", "logs", str(third.id), "-f", env=env) as following:
            await until(lambda: following.process.poll() is not None, patience=30)
            said = [line.split("  ")[-1] for line in following.stdout.splitlines()]
            assert said in (["attempt 1", "attempt 2", "attempt 3"], ["attempt 2", "attempt 3"], ["attempt 3"])


async def test_ctrl_c_ends_following(settings: Settings, env: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "now"
    async with connect(settings=settings) as client, running_worker(settings):
        handle = await tasks.until_told.enqueue(file=str(file), client=client)
        with program("task", "logs", str(handle.id), "-f", env=env) as following:
            await until(lambda: "began" in following.stdout, patience=30)
            following.press_ctrl_c()
            await until(lambda: following.process.poll() is not None, patience=30)
            assert following.ends() == 128 + signal.SIGINT
        file.touch()
        await handle.result(30)


async def test_a_log_that_is_not_here_is_explained(settings: Settings, env: dict[str, str]) -> None:
    async with connect(settings=settings) as client:
        db = await client.database()
        async with running_worker(settings):
            quiet = await tasks.quiet.enqueue(client=client)
            await quiet.result(30)
        waiting = await put_one(db)
        nothing = run("task", "logs", str(quiet.id), env=env)
        assert (nothing.returncode, nothing.stdout) == (3, "")
        assert "has said nothing" in nothing.stderr
        assert "has not started" in run("task", "logs", str(waiting), env=env).stderr
        await db.fetch("UPDATE aaiclick_queue.workers SET hostname = 'web-7'")
        other = run("task", "logs", str(quiet.id), env=env)
        assert "ran on web-7" in other.stderr
        assert PREFIX + "LOG_DIR" in other.stderr
        assert PREFIX + "CLICKHOUSE_URL" in other.stderr


def test_an_unknown_task_is_not_found(settings: Settings, env: dict[str, str]) -> None:
    assert CliRunner(env=env).invoke(main, ["task", "logs", "999999999"]).exit_code == 4


async def test_lines_of_a_worker_say_task_job_attempt_and_epoch(settings: Settings, env: dict[str, str]) -> None:
    with program("worker", "-A", MODULE, "--log-format", "json", env=env) as worker:
        worker.wait_for(lambda: "worker started" in worker.stdout)
        async with connect(settings=settings) as client:
            handle = await tasks.talk.enqueue(client=client)
            await handle.result(30)
        worker.wait_for(lambda: "task succeeded" in worker.stdout)
        lines = worker.lines()
    said = next(line for line in lines if line.get("logger") == "shop.mail")
    end = next(line for line in lines if line["event"] == "task succeeded")
    for line in (said, end):
        assert line["task_id"] == str(handle.id)
        assert (line["attempt"], line["run_epoch"]) == (1, 1)
        assert line["worker_id"]
    assert (end["outcome"], end["duration_s"] >= 0) == ("succeeded", True)
