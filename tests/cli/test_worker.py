"""`worker`, `background` and `workers` as processes of their own: tasks run, signals end them, lines can be read."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from aaiclick_queue import migrate
from aaiclick_queue.cli.service import parse_queues
from aaiclick_queue.settings import Settings
from tests.cli.conftest import Invoke
from tests.cli.running import MODULE, Program, environment, program, run, wait_for, worker

KEYS = {"ts", "level", "event", "task_id", "entrypoint", "queue", "attempt", "worker_id", "duration_s", "wait_s"}


def events(started: Program, event: str) -> list[dict[str, object]]:
    return [line for line in started.lines() if line["event"] == event]


def enqueue(invoke: Invoke, name: str, *arguments: str) -> str:
    ran = invoke("task", "enqueue", f"{MODULE}.{name}", *arguments)
    assert ran.exit_code == 0, ran.output
    return str(ran.stdout.strip())


def test_a_worker_runs_what_the_command_line_enqueues_and_ends_with_0_at_sigterm(
    settings: Settings, invoke: Invoke
) -> None:
    env = environment(settings)
    with program("worker", "-A", MODULE, env=env) as started:
        ran = run("task", "enqueue", f"{MODULE}.add", "--kwargs", '{"a": 2, "b": 3}', "--wait", env=env)
        assert (ran.returncode, ran.stdout) == (0, "5\n")
        failed = run("task", "enqueue", f"{MODULE}.fail", "--wait", env=env)
        assert (failed.returncode, failed.stdout) == (1, "")
        assert "failed in attempt 2: ValueError: no luck" in failed.stderr
        [alive] = json.loads(invoke("workers", "list", "--json").stdout)
        assert (alive["status"], alive["pid"], alive["queues"]) == ("ACTIVE", started.process.pid, ["default"])
        assert " ACTIVE " in invoke("workers", "list").stdout
        started.process.send_signal(signal.SIGTERM)
        assert started.ends() == 0
        lines = [line.split() for line in started.stdout.splitlines()]
        assert [(line[1], line[2]) for line in lines if line[2] in ("add", "fail")] == [
            ("←", "add"),
            ("↻", "fail"),
            ("!", "fail"),
        ]
        for part in (
            "aaiclick-queue 0",
            "queues",
            "default",
            "100 async",
            "postgresql://",
            f"{MODULE}.add",
            migrate.HEAD,
        ):
            assert part in started.stderr
    [stopped] = json.loads(invoke("workers", "list", "--json").stdout)
    assert (stopped["status"], stopped["completed"], stopped["failed"]) == ("STOPPED", 1, 1)


def test_waiting_with_json_tells_the_end_as_one_object(settings: Settings, invoke: Invoke) -> None:
    with worker(settings):
        good = invoke("task", "enqueue", f"{MODULE}.add", "--kwargs", '{"a": 2, "b": 3}', "--wait", "--json")
        assert json.loads(good.stdout) | {"status": "COMPLETED", "result": 5} == json.loads(good.stdout)
        bad = invoke("task", "enqueue", f"{MODULE}.fail", "--wait", "--json")
        assert bad.exit_code == 1
        assert json.loads(bad.stdout)["error"] == {"type": "ValueError", "message": "no luck"}


def test_json_lines_have_stdout_for_themselves_and_name_the_task(settings: Settings, invoke: Invoke) -> None:
    with worker(settings) as started:
        talking, failing = enqueue(invoke, "talk"), enqueue(invoke, "fail")
        snoozing = enqueue(invoke, "snooze_once")
        started.wait_for(lambda: len(events(started, "task succeeded")) == 2 and events(started, "task failed"))
        by_task = {line["task_id"]: line for line in events(started, "task succeeded")}
        assert set(by_task) == {talking, snoozing}
        assert set(by_task[talking]) >= KEYS
        [said] = events(started, "logged by a task")
        assert said | {"task_id": talking, "logger": "shop", "order": 7, "level": "info"} == said
        [failed], [retried] = events(started, "task failed"), events(started, "attempt retried")
        assert (failed["task_id"], failed["attempt"], failed["error_type"]) == (failing, 2, "ValueError")
        assert (retried["attempt"], retried["error"]) == (1, "no luck")
        assert len(events(started, "task snoozed")) == 1
        assert started.stderr == "printed by a task\n"
    text = invoke("task", "get", failing).stdout
    assert [row.split()[:2] for row in text.splitlines() if row.split()[:1] in (["1"], ["2"])] == [
        ["1", "RETRYING"],
        ["2", "FAILED"],
    ]
    assert "raise ValueError(message)" in text
    snoozed = json.loads(invoke("task", "get", snoozing, "--json").stdout)
    assert [attempt["outcome"] for attempt in snoozed["attempts"]] == ["SNOOZED", "COMPLETED"]
    assert (snoozed["result"], snoozed["checkpoint"]) == ("done", {"snoozed": True})


def test_what_runs_is_finished_at_the_first_signal_and_handed_back_at_the_second(
    settings: Settings, invoke: Invoke
) -> None:
    with worker(settings) as started:
        short, long = (
            enqueue(invoke, "nap", "--kwargs", '{"seconds": 1}'),
            enqueue(invoke, "nap", "--kwargs", '{"seconds": 90}'),
        )
        thread = enqueue(invoke, "block", "--kwargs", '{"seconds": 90}')
        wait_for(lambda: len(json.loads(invoke("task", "list", "--status", "RUNNING", "--json").stdout)) == 3)
        running = json.loads(invoke("task", "get", long, "--json").stdout)
        assert [attempt["outcome"] for attempt in running["attempts"]] == ["RUNNING"]
        started.process.send_signal(signal.SIGTERM)
        started.wait_for(lambda: events(started, "task succeeded"))
        assert [line["task_id"] for line in events(started, "task succeeded")] == [short]
        started.process.send_signal(signal.SIGINT)
        assert started.ends() == 0
        assert {line["task_id"] for line in events(started, "run handed back")} == {long, thread}
    rows = json.loads(invoke("task", "list", "--status", "QUEUED", "--json").stdout)
    assert {(row["id"], row["attempt"]) for row in rows} == {(long, 0), (thread, 0)}


def test_the_third_signal_ends_a_worker_even_when_user_code_blocks_its_loop(settings: Settings, invoke: Invoke) -> None:
    with worker(settings) as started:
        enqueue(invoke, "hog", "--kwargs", '{"seconds": 90}')
        wait_for(lambda: json.loads(invoke("task", "list", "--status", "RUNNING", "--json").stdout))
        for _ in range(100):
            started.process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                started.process.wait(0.1)
                break
        assert started.ends() == 143


def test_a_worker_can_be_stopped_from_afar(settings: Settings, invoke: Invoke) -> None:
    with worker(settings) as started:
        [alive] = json.loads(invoke("workers", "list", "--json").stdout)
        assert "would stop" in invoke("workers", "stop", alive["id"], "--dry-run").stdout
        assert started.process.poll() is None
        assert invoke("workers", "stop", alive["id"]).stdout.startswith(f"stopping worker {alive['id']}")
        assert started.ends() == 0
    assert invoke("workers", "stop", alive["id"]).exit_code == 3
    assert invoke("workers", "stop", "123456").exit_code == 4
    assert invoke("workers", "stop", "first").exit_code == 2


def test_a_paused_queue_is_left_alone_until_it_is_resumed(settings: Settings, invoke: Invoke) -> None:
    with worker(settings, "-Q", "mail,default") as started:
        invoke("queue", "pause", "mail")
        held = enqueue(invoke, "add", "--kwargs", '{"a": 1, "b": 1}', "--queue", "mail")
        free = enqueue(invoke, "add", "--kwargs", '{"a": 1, "b": 1}')
        started.wait_for(lambda: [line["task_id"] for line in events(started, "task succeeded")] == [free])
        assert json.loads(invoke("task", "get", held, "--json").stdout)["status"] == "QUEUED"
        invoke("queue", "resume", "mail")
        started.wait_for(lambda: len(events(started, "task succeeded")) == 2)


def test_the_loops_may_live_in_a_process_without_user_code(settings: Settings, invoke: Invoke) -> None:
    env = environment(settings)
    with worker(settings, "--no-background"), program("background", "--log-format", "json", env=env) as loops:
        later = enqueue(invoke, "add", "--kwargs", '{"a": 1, "b": 1}', "--countdown", "0.1")
        wait_for(lambda: json.loads(invoke("task", "get", later, "--json").stdout)["status"] == "COMPLETED")
        assert [one["status"] for one in json.loads(invoke("workers", "list", "--json").stdout)] == ["ACTIVE"]
        loops.process.send_signal(signal.SIGTERM)
        assert loops.ends() == 0


def gone(pids: Sequence[int]) -> bool:
    return not any(psutil.pid_exists(pid) for pid in pids)


def test_processes_are_started_again_when_they_crash_and_end_together(settings: Settings, invoke: Invoke) -> None:
    with worker(settings, "--processes", "2") as started:
        started.wait_for(lambda: len(events(started, "worker started")) == 2)
        first = started.children()
        os.kill(first[0], signal.SIGKILL)
        started.wait_for(lambda: len(events(started, "worker started")) == 3)
        [ended] = events(started, "process ended")
        assert (ended["process_name"] in ("worker-1", "worker-2"), ended["exit"]) == (True, "SIGKILL")
        last = started.children()
        napping = enqueue(invoke, "nap", "--kwargs", '{"seconds": 1}')
        wait_for(lambda: json.loads(invoke("task", "list", "--status", "RUNNING", "--json").stdout))
        started.press_ctrl_c()
        assert started.ends() == 0
        assert [line["task_id"] for line in events(started, "task succeeded")] == [napping]
        assert len(events(started, "worker stopped")) == 2
        assert gone([*first, *last])


def test_the_lines_of_processes_name_them(settings: Settings, invoke: Invoke) -> None:
    with worker(settings, "--processes", "2", "--log-format", "pretty") as started:
        started.wait_for(lambda: started.stdout.count("takes tasks") == 2)
        enqueue(invoke, "talk")
        started.wait_for(lambda: "talk" in started.stdout and "logged by a task" in started.stdout)
        names = {line.split(" │ ", 1)[0] for line in started.stdout.splitlines()}
        assert names == {"worker-1", "worker-2"}
        [banner] = [line for line in started.stderr.splitlines() if "in each of 2 processes" in line]
        assert banner.startswith("worker-1 │ ")


def test_processes_end_when_their_parent_is_killed(settings: Settings) -> None:
    with worker(settings, "--processes", "2") as started:
        started.wait_for(lambda: len(events(started, "worker started")) == 2)
        children = started.children()
        started.process.kill()
        started.ends()
        wait_for(lambda: gone(children))


def test_processes_that_can_never_start_are_not_started_again(settings: Settings) -> None:
    ran = run("worker", "-A", "nosuch", "--processes", "2", env=environment(settings))
    assert ran.returncode == 2
    assert "starting it again" not in ran.stdout
    assert " is given up: exit code 2 (there is no module 'nosuch'" in ran.stdout


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("import nosuch_module", "ModuleNotFoundError: No module named 'nosuch_module'"),
        ("x = = 1", "SyntaxError: invalid syntax"),
        ("raise RuntimeError('boom')", "RuntimeError: boom"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("x = 1", "registers no task"),
        ("from aaiclick_queue import task\ntask(keep='some')", "shop.py line 2)"),
    ],
)
def test_a_module_that_cannot_be_used_is_named_with_the_reason(tmp_path: Path, source: str, part: str) -> None:
    (tmp_path / "shop.py").write_text(source)
    ran = run("worker", "-A", "shop", env=environment(), cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("error: ")
    assert part in ran.stderr
    assert "fix: " in ran.stderr
    assert "Traceback" not in ran.stderr


def test_the_traceback_of_a_broken_module_is_shown_when_asked_for(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("raise RuntimeError('boom')")
    ran = run("worker", "-v", "-A", "shop", env=environment(), cwd=tmp_path)
    assert ran.returncode == 2
    assert "Traceback" in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["-A", "shpo"], "did you mean -A shop?"),
        (["-A", "shop:app"], "fix: -A shop"),
        (["-A", "nosuch.py"], "no such file"),
    ],
    ids=str,
)
def test_modules_that_cannot_be_found_are_refused_with_a_hint(tmp_path: Path, arguments: list[str], part: str) -> None:
    (tmp_path / "shop.py").write_text("from aaiclick_queue import task\n@task\ndef buy() -> None: ...\n")
    ran = run("worker", *arguments, env=environment(), cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert part in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([], "no module is given"),
        (["-A", "shop", "-Q", "mail:0"], "'mail:0' is no queue"),
        (["-A", "shop", "-Q", "a:x"], "'a:x' is no queue\nfix: NAME or NAME:WEIGHT"),
        (["-A", "shop", "-Q", "mail,,other"], "'' is no queue"),
        (["-A", "shop", "-Q", "*,mail"], "give '*' alone"),
        (["-A", "shop", "-c", "0"], "-c"),
    ],
    ids=str,
)
def test_options_that_cannot_work_are_refused(invoke: Invoke, arguments: list[str], part: str) -> None:
    ran = invoke("worker", *arguments)
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert part in ran.stderr


def test_queues_are_names_with_weights() -> None:
    assert parse_queues(()) == {"default": 1}
    assert parse_queues(("mail:3,default", "tenant:acme:1")) == {"mail": 3, "default": 1, "tenant:acme": 1}
    assert parse_queues(("*",)) == {"*": 1}


def test_the_banner_notes_tasks_of_queues_that_are_not_served(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from aaiclick_queue import task\n@task(queue='a')\ndef on_a(): ...\n@task\ndef usual(): ...\n"
    )
    with program("worker", "-A", str(tmp_path / "shop.py"), env=environment(settings)) as started:
        started.wait_for(lambda: "takes tasks" in started.stdout)
        assert "note: shop.on_a goes to queue a, not served here: add -Q a,default\n" in started.stderr
    with program("worker", "-A", str(tmp_path / "shop.py"), "-Q", "*", env=environment(settings)) as started:
        started.wait_for(lambda: "takes tasks" in started.stdout)
        assert "note:" not in started.stderr


APART = """
import logging, os, time
from aaiclick_queue import task

@task(isolation="process")
def talk() -> int:
    print("printed by a task")
    os.system("echo said by a program")
    logging.getLogger("shop").info("logged by a task", extra={"order": 7})
    return os.getpid()

@task(isolation="process")
def nap(seconds: float) -> None:
    time.sleep(seconds)
"""


def _grandchildren(pid: int) -> list[int]:
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.Error):
            if "aaiclick_queue.child" in child.cmdline():
                found.append(child.pid)
    return found


@pytest.mark.parametrize("log_format", ["pretty", "json"])
def test_what_a_task_in_a_child_says_comes_out_as_if_the_worker_had_run_it(
    settings: Settings, tmp_path: Path, invoke: Invoke, log_format: str
) -> None:
    (tmp_path / "apart.py").write_text(APART)
    given = ("worker", "-A", str(tmp_path / "apart.py"), "--children", "1", "--log-format", log_format)
    with program(*given, env=environment(settings)) as started:
        ran = invoke("task", "enqueue", "apart.talk", "--wait")
        assert int(ran.stdout) in _grandchildren(started.process.pid)
        started.wait_for(lambda: "succeeded" in started.stdout or "←" in started.stdout)
        if log_format == "json":
            [said] = events(started, "logged by a task")
            assert said | {"logger": "shop", "order": 7, "level": "info", "entrypoint": "apart.talk"} == said
            assert started.stderr == "printed by a task\nsaid by a program\n"
        else:
            assert "1 children" in started.stderr
            assert "printed by a task\nsaid by a program\n" in started.stdout
            assert re.search(r"\d\d:\d\d:\d\d · shop …\d{8}  logged by a task\n", started.stdout)


def test_processes_pass_on_how_many_children_they_have_and_take_them_along(
    settings: Settings, tmp_path: Path, invoke: Invoke
) -> None:
    (tmp_path / "apart.py").write_text(APART)
    given = ("worker", "-A", str(tmp_path / "apart.py"), "--processes", "2", "--children", "1")
    more = ("--max-tasks-per-child", "7", "--max-memory-per-child", "500")
    with program(*given, *more, env=environment(settings)) as started:
        started.wait_for(lambda: len(_grandchildren(started.process.pid)) == 2)
        for worker_pid in started.children():
            words = psutil.Process(worker_pid).cmdline()
            for option in ("--children 1", "--max-tasks-per-child 7", "--max-memory-per-child 500"):
                assert option in " ".join(words)
        started.wait_for(lambda: "in each of 2 processes" in started.stderr)
        assert "1 children" in started.stderr
        invoke("task", "enqueue", "apart.nap", "--kwargs", '{"seconds": 60}')
        wait_for(lambda: json.loads(invoke("task", "list", "--status", "RUNNING", "--json").stdout))
        children = _grandchildren(started.process.pid)
        workers = started.children()
        started.process.kill()
        wait_for(lambda: not any(psutil.pid_exists(pid) for pid in [*children, *workers]))


STARTS_PROGRAMS = """
import subprocess, sys, time
from aaiclick_queue import task

@task(isolation="process")
def convert(file: str) -> None:
    program = subprocess.Popen(["sleep", "600"])
    with open(file, "a") as told:
        print(program.pid, file=told)
    time.sleep(600)
"""


def test_a_killed_worker_leaves_nothing_of_what_the_tasks_in_its_children_had_started(
    settings: Settings, tmp_path: Path, invoke: Invoke
) -> None:
    (tmp_path / "media.py").write_text(STARTS_PROGRAMS)
    told = tmp_path / "told"
    with program("worker", "-A", str(tmp_path / "media.py"), "--children", "2", env=environment(settings)) as started:
        for _ in range(2):
            invoke("task", "enqueue", "media.convert", "--kwargs", json.dumps({"file": str(told)}))
        started.wait_for(lambda: told.exists() and len(told.read_text().split()) == 2)
        family = [one.pid for one in psutil.Process(started.process.pid).children(recursive=True)]
        assert set(map(int, told.read_text().split())) < set(family)
        started.process.kill()
        wait_for(lambda: not any(map(_lives, family)))


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_worker_without_tasks_for_children_has_none(settings: Settings, invoke: Invoke) -> None:
    with worker(settings, "--log-format", "pretty") as started:
        enqueue(invoke, "add", "--kwargs", '{"a": 1, "b": 2}')
        started.wait_for(lambda: "←" in started.stdout)
        assert "children" not in started.stderr
        assert _grandchildren(started.process.pid) == []


def test_the_second_signal_hands_back_what_runs_in_children_and_ends_them(
    settings: Settings, tmp_path: Path, invoke: Invoke
) -> None:
    (tmp_path / "apart.py").write_text(APART)
    given = ("worker", "-A", str(tmp_path / "apart.py"), "--children", "1")
    with program(*given, env=environment(settings)) as started:
        started.wait_for(lambda: _grandchildren(started.process.pid))
        invoke("task", "enqueue", "apart.nap", "--kwargs", '{"seconds": 60}')
        wait_for(lambda: json.loads(invoke("task", "list", "--status", "RUNNING", "--json").stdout))
        [child] = _grandchildren(started.process.pid)
        started.press_ctrl_c()
        started.wait_for(lambda: "stopping: 1 to finish" in started.stdout)
        started.press_ctrl_c()
        assert started.ends() == 0
        assert not psutil.pid_exists(child)
    [waiting] = json.loads(invoke("task", "list", "--status", "QUEUED", "--json").stdout)
    assert waiting["attempt"] == 0


def test_redis_that_is_away_is_one_warning(settings: Settings, invoke: Invoke) -> None:
    url = "redis://127.0.0.1:1"
    away = f"! Redis at {url} is away (connection refused): nothing is lost, Postgres is polled until it is back\n"
    env = environment(settings, REDIS_URL=url, LOG_LEVEL="DEBUG")
    with program("worker", "-A", MODULE, env=env) as started:
        started.wait_for(lambda: away in started.stdout)
        enqueue(invoke, "add", "--kwargs", '{"a": 1, "b": 2}')
        started.wait_for(lambda: re.search(r"relay: Redis at .*\n", started.stdout))
        assert len(re.findall(r" ! .*Redis", started.stdout)) == 1


def test_a_failure_leaves_its_traceback_on_demand(settings: Settings, invoke: Invoke) -> None:
    with worker(settings, "-v", "--log-format", "pretty") as started:
        enqueue(invoke, "fail", "--max-attempts", "1")
        started.wait_for(lambda: "Traceback" in started.stdout)
        assert re.search(r"ValueError: no luck  cli_tasks.py:\d+ in fail\n    Traceback", started.stdout)
        [frame] = re.findall(r"File .*", started.stdout)
        assert "cli_tasks.py" in frame


def test_a_file_stands_for_its_module(settings: Settings, tmp_path: Path, invoke: Invoke) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    source = "from aaiclick_queue import task\n@task\ndef buy() -> int:\n    return 1\n"
    (tmp_path / "shop" / "buying.py").write_text(source)
    (tmp_path / "script.py").write_text(source)
    files = f"{tmp_path / 'shop' / 'buying.py'},{tmp_path / 'script.py'}"
    with worker(settings, "-A", files):
        assert invoke("task", "enqueue", "shop.buying.buy", "--wait").stdout == "1\n"
        assert invoke("task", "enqueue", "script.buy", "--wait").stdout == "1\n"
