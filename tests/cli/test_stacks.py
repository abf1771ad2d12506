"""Stacks of a hung worker: by SIGUSR1 and by `workers stacks`, also while its event loop is blocked."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aaiclick_queue.settings import Settings
from tests.cli.conftest import Invoke
from tests.cli.running import PROJECT, Program, environment, program, run, wait_for, worker
from tests.cli.test_worker import enqueue, events

HANGING = """
import asyncio, threading, time
from aaiclick_queue import task

async def deep(seconds):
    await asyncio.sleep(seconds)

@task
async def nap(seconds: float) -> None:
    await deep(seconds)

@task
def block(seconds: float) -> None:
    threading.Event().wait(seconds)

@task
async def hog(seconds: float) -> None:
    print("here", flush=True)
    time.sleep(seconds)

@task(isolation="process")
def apart(seconds: float) -> None:
    print("here", flush=True)
    time.sleep(seconds)

@task
async def spin() -> None:
    print("here", flush=True)
    while True:
        pass

@task
async def match() -> None:
    import re
    print("here", flush=True)
    re.match("(a+)+b", "a" * 60)  # keeps the interpreter to itself for years

@task
async def query() -> None:
    import os, psycopg2
    cursor = psycopg2.connect(os.environ["AAICLICK_QUEUE_POSTGRES_URL"]).cursor()
    print("here", flush=True)
    cursor.execute("SELECT pg_sleep(3600)")  # sleeps through every signal
"""


def start(invoke: Invoke, name: str, **kwargs: float) -> str:
    ran = invoke("task", "enqueue", f"hanging.{name}", "--kwargs", json.dumps(kwargs))
    assert ran.exit_code == 0, ran.output
    return str(ran.stdout.strip())


def running(invoke: Invoke) -> set[str]:
    return {row["id"] for row in json.loads(invoke("task", "list", "--status", "RUNNING", "--json").stdout)}


def asked(started: Program) -> bool:
    started.process.send_signal(signal.SIGUSR1)
    return True


@pytest.fixture
def hanging(tmp_path: Path) -> Path:
    (tmp_path / "hanging.py").write_text(HANGING)
    return tmp_path / "hanging.py"


def test_sigusr1_prints_where_everything_is_and_the_worker_goes_on(
    settings: Settings, invoke: Invoke, hanging: Path
) -> None:
    with worker(settings, "-A", str(hanging)) as started:
        napping, blocking = start(invoke, "nap", seconds=90), start(invoke, "block", seconds=90)
        wait_for(lambda: running(invoke) == {napping, blocking})
        # Leased is not yet running: asked until both have come to their lines.
        started.wait_for(lambda: asked(started) and re.search(r"in deep(.|\n)*threading.Event", started.stderr))
        text = started.stderr
        assert re.search(rf"worker \d+ \(pid {started.process.pid}\) at [\d:]+: 2 runs\n", text)
        assert "BLOCKED" not in text
        assert re.search(rf"run of \d+\.\d s: hanging.nap  task {napping}  attempt 1  waits\n  File .*in nap\n", text)
        assert "in deep\n    await asyncio.sleep(seconds)" in text
        assert re.search(rf"hanging.block  task {blocking}  attempt 1  in thread aaiclick-queue task_\d", text)
        assert "thread aaiclick-queue heartbeat" in text
        assert "asyncio task Claimer.run" in text
        enqueue(invoke, "add", "--kwargs", '{"a": 1, "b": 1}')
        started.wait_for(lambda: events(started, "task succeeded"))


@pytest.mark.parametrize(
    ("name", "line"),
    [("hog", "time.sleep(seconds)"), ("spin", "in spin"), ("match", "re.match"), ("query", "pg_sleep")],
)
def test_a_blocked_event_loop_is_seen_from_outside(
    settings: Settings, invoke: Invoke, hanging: Path, name: str, line: str
) -> None:
    with worker(settings, "-A", str(hanging)) as started:
        task_id = start(invoke, name, **({"seconds": 3600} if name == "hog" else {}))
        wait_for(lambda: running(invoke) == {task_id})
        started.wait_for(lambda: "here\n" in started.stderr)
        started.wait_for(lambda: asked(started) and line in started.stderr)
        assert f"task {task_id}  attempt 1  ON THE EVENT LOOP NOW" in started.stderr
        assert f"in {name}\n" in started.stderr
        assert started.process.poll() is None


def test_many_signals_do_no_harm_and_the_end_still_comes(settings: Settings) -> None:
    with worker(settings) as started:
        for _ in range(300):
            started.process.send_signal(signal.SIGUSR1)
            time.sleep(0.001)
        started.wait_for(lambda: ": 0 runs" in started.stderr)
        started.process.send_signal(signal.SIGTERM)
        while started.process.poll() is None:
            started.process.send_signal(signal.SIGUSR1)
            time.sleep(0.001)
        assert started.ends() == 0


def test_workers_stacks_are_told_through_the_row_also_by_a_blocked_worker(
    settings: Settings, invoke: Invoke, hanging: Path
) -> None:
    with worker(settings, "-A", str(hanging)) as started:
        task_id = start(invoke, "hog", seconds=3600)
        wait_for(lambda: running(invoke) == {task_id})
        started.wait_for(lambda: "here\n" in started.stderr)
        [alive] = json.loads(invoke("workers", "list", "--json").stdout)
        ran = invoke("workers", "stacks", alive["id"][-8:])
        assert ran.exit_code == 0, ran.output
        assert ran.stdout.startswith(f"worker {alive['id']} (pid {started.process.pid})")
        assert f"hanging.hog  task {task_id}" in ran.stdout
        told = json.loads(invoke("workers", "stacks", alive["id"], "--json").stdout)
        assert told["id"] == alive["id"]
        assert "time.sleep(seconds)" in told["stacks"]
        assert started.stderr.count(": 1 run") == 0  # that is for the signal


def test_a_child_process_tells_where_its_run_is_when_its_worker_is_asked(
    settings: Settings, invoke: Invoke, hanging: Path
) -> None:
    with worker(settings, "-A", str(hanging)) as started:
        task_id = start(invoke, "apart", seconds=3600)
        started.wait_for(lambda: "here\n" in started.stdout + started.stderr)
        [alive] = json.loads(invoke("workers", "list", "--json").stdout)
        told = invoke("workers", "stacks", alive["id"]).stdout
        [child] = re.findall(rf"hanging.apart  task {task_id}  attempt 1  in child process (\d+), which prints", told)
        assert "children.py" not in told.split("\n\n")[1]
        started.wait_for(lambda: f"child of worker {alive['id']} (pid {child})" in started.stderr)
        started.wait_for(lambda: "in apart\n    time.sleep(seconds)" in started.stderr)
        before = started.stderr.count("child of worker")
        started.wait_for(lambda: asked(started) and started.stderr.count("child of worker") > before)
        assert running(invoke) == {task_id}


def test_a_worker_that_cannot_answer_is_told_apart(settings: Settings, invoke: Invoke) -> None:
    with worker(settings, "--no-background") as started:
        [alive] = json.loads(invoke("workers", "list", "--json").stdout)
        started.process.send_signal(signal.SIGSTOP)
        silent = invoke("workers", "stacks", alive["id"], "--timeout", "0.5")
        assert silent.exit_code == 69
        assert "did not answer within 0.5 s; its last heartbeat was" in silent.stderr
        assert f"fix: kill -USR1 {started.process.pid} on {alive['hostname']}" in silent.stderr
        started.process.send_signal(signal.SIGCONT)
        started.process.send_signal(signal.SIGTERM)
        assert started.ends() == 0
    stopped = invoke("workers", "stacks", alive["id"])
    assert (stopped.exit_code, stopped.stdout) == (3, "")
    assert "is STOPPED: it cannot answer" in stopped.stderr
    assert invoke("workers", "stacks", "123456").exit_code == 4


def test_a_worker_that_ends_while_it_is_asked_is_not_waited_for(settings: Settings, invoke: Invoke) -> None:
    env = environment(settings)
    with worker(settings, "--no-background") as started:
        [alive] = json.loads(invoke("workers", "list", "--json").stdout)
        started.process.send_signal(signal.SIGSTOP)
        with program("workers", "stacks", alive["id"], env=env) as asking:
            asking.wait_for(lambda: "it answers with its next heartbeat" in asking.stderr)
            with program("background", env=env):  # its reaper gives the silent worker up
                assert asking.ends() == 1
            assert "is LOST now: it ended without an answer" in asking.stderr
        started.process.kill()


def test_parents_pass_the_question_on(settings: Settings) -> None:
    with worker(settings, "--processes", "2") as started:
        started.wait_for(lambda: len(events(started, "worker started")) == 2)
        started.wait_for(lambda: asked(started) and len(set(re.findall(r"worker \d+ \(pid", started.stderr))) == 2)
        assert len(started.children()) == 2


def test_background_loops_tell_theirs_too(settings: Settings) -> None:
    with program("background", "--log-format", "json", env=environment(settings)) as loops:
        loops.wait_for(lambda: "background loops run" in loops.stdout)
        loops.wait_for(lambda: asked(loops) and "asyncio task Loop.run" in loops.stderr)
        assert "background loops (pid" in loops.stderr


def test_a_worker_survives_the_signal_while_it_starts_and_while_it_ends(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGUSR1)\nprint('imported', flush=True)\n"
    )
    ran = run("worker", "-A", "slow", env=environment(), cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (2, "imported\n")  # it registers no task; but it got so far


def test_what_is_drawn_is_bounded() -> None:
    code = """
import asyncio
from aaiclick_queue.stacks import LONGEST, Shown, draw

async def deep(n):
    await (deep(n - 1) if n else asyncio.sleep(3600))

async def main():
    tasks = [asyncio.create_task(deep(n)) for n in range(900)]
    await asyncio.sleep(0)
    text = draw(Shown(1, [], asyncio.get_running_loop(), 0, 0.0))
    assert len(text.encode()) <= LONGEST, len(text)
    assert text.endswith("cut at 64 KB")
    assert "frames" in text
    for task in tasks:
        task.cancel()

asyncio.run(main())
"""
    env = {**os.environ, "PYTHONPATH": str(PROJECT)}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=60)
