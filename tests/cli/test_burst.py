"""Workers that end by themselves: --burst, --max-tasks, --max-memory; as processes of their own."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from aaiclick_queue import connect
from aaiclick_queue.leaving import memory_megabytes
from aaiclick_queue.limits import limit_queue, pause_task
from aaiclick_queue.settings import Settings
from tests.cli.conftest import Invoke
from tests.cli.running import MODULE, environment, program, run, worker
from tests.cli.test_worker import enqueue, events
from tests.wires.redis_server import OwnRedis


@pytest.fixture
def db_limits(settings: Settings) -> Callable[..., None]:
    """Limits a queue, or pauses an entrypoint."""

    def change(queue: str, *, max_running: int | None = None, pause: str | None = None) -> None:
        async def work() -> None:
            async with connect(settings=settings) as client:
                if pause:
                    await pause_task(pause, client=client)
                else:
                    await limit_queue(queue, max_running=max_running, client=client)

        asyncio.run(work())

    return change


def statuses(invoke: Invoke) -> Counter[str]:
    return Counter(row["status"] for row in json.loads(invoke("task", "list", "--json", "--limit", "1000").stdout))


def add_many(invoke: Invoke, count: int, *arguments: str) -> list[str]:
    return [enqueue(invoke, "add", "--kwargs", '{"a": 1, "b": 1}', *arguments) for _ in range(count)]


def test_a_burst_runs_what_waits_and_ends_with_0_and_a_summary(settings: Settings, invoke: Invoke) -> None:
    add_many(invoke, 12)
    failing = enqueue(invoke, "fail", "--max-attempts", "1")
    later = enqueue(invoke, "add", "--countdown", "3600")
    elsewhere = enqueue(invoke, "add", "--queue", "other")
    enqueue(invoke, "snooze_once")
    ran = run("worker", "-A", MODULE, "--burst", env=environment(settings))
    assert ran.returncode == 0, ran.stderr
    assert "burst is over: " in ran.stdout
    [summary] = re.findall(r"burst is over: (.*)", ran.stdout)
    assert "1 failed" in summary
    assert re.search(r"1[23] succeeded", summary)
    assert re.search(r"; [12] wait for their time", summary)
    left = {row["id"]: row["status"] for row in json.loads(invoke("task", "list", "--json").stdout)}
    assert (left[failing], left[later], left[elsewhere]) == ("FAILED", "SCHEDULED", "QUEUED")
    [gone] = json.loads(invoke("workers", "list", "--json").stdout)
    assert gone["status"] == "STOPPED"


def test_a_burst_with_nothing_to_do_ends_at_once(settings: Settings) -> None:
    ran = run("worker", "-A", MODULE, "-Q", "*", "--burst", env=environment(settings))
    assert ran.returncode == 0
    assert "burst is over: there was nothing to run" in ran.stdout


def test_a_burst_waits_for_what_is_due_and_for_what_its_tasks_enqueue(
    settings: Settings, invoke: Invoke, tmp_path: Path
) -> None:
    (tmp_path / "chain.py").write_text(
        "from aaiclick_queue import task\n@task\nasync def step(left: int) -> None:\n"
        "    if left:\n        await step.enqueue(left=left - 1)\n"
    )
    ran = invoke("task", "enqueue", "chain.step", "--kwargs", '{"left": 5}', "--countdown", "0.01")
    assert ran.exit_code == 0
    burst = run("worker", "-A", "chain", "--burst", env=environment(settings), cwd=tmp_path)
    assert burst.returncode == 0, burst.stderr
    assert "burst is over: 6 succeeded\n" in burst.stdout


def test_a_burst_leaves_what_it_can_never_run(settings: Settings, invoke: Invoke) -> None:
    invoke("queue", "pause", "mail")
    paused = enqueue(invoke, "add", "--queue", "mail")
    unknown = invoke("task", "enqueue", "nowhere.to_be_found").stdout.strip()
    ran = run("worker", "-A", MODULE, "-Q", "*", "--burst", env=environment(settings))
    assert ran.returncode == 0
    assert json.loads(invoke("task", "get", paused, "--json").stdout)["status"] == "QUEUED"
    assert json.loads(invoke("task", "get", unknown, "--json").stdout)["status"] == "SCHEDULED"


def test_a_burst_runs_what_a_limit_holds_and_leaves_what_it_never_lets_in(
    settings: Settings, invoke: Invoke, db_limits: Callable[..., None]
) -> None:
    db_limits("mail", max_running=1)
    db_limits("", pause=f"{MODULE}.talk")
    held = add_many(invoke, 5, "--queue", "mail")
    stays = enqueue(invoke, "talk")
    ran = run("worker", "-A", MODULE, "-Q", "mail,default", "--burst", env=environment(settings))
    assert ran.returncode == 0, ran.stderr
    assert "burst is over: 5 succeeded" in ran.stdout
    assert {json.loads(invoke("task", "get", one, "--json").stdout)["status"] for one in held} == {"COMPLETED"}
    assert json.loads(invoke("task", "get", stays, "--json").stdout)["status"] == "PENDING"


@pytest.mark.parametrize("with_redis", [False, True], ids=["without Redis", "with Redis"])
def test_several_bursts_side_by_side_all_end_when_all_is_done(
    settings: Settings, invoke: Invoke, with_redis: bool
) -> None:
    add_many(invoke, 30)
    enqueue(invoke, "nap", "--kwargs", '{"seconds": 1}')
    with OwnRedis() as redis:
        env = environment(settings, **({"REDIS_URL": redis.url} if with_redis else {}))
        given = ("worker", "-A", MODULE, "--burst", "-c", "2")
        with program(*given, env=env) as one, program(*given, env=env) as other:
            assert [one.ends(), other.ends()] == [0, 0]
    assert statuses(invoke) == {"COMPLETED": 31}


def test_processes_that_burst_are_not_started_again(settings: Settings, invoke: Invoke) -> None:
    add_many(invoke, 10)
    ran = run("worker", "-A", MODULE, "--burst", "--processes", "2", env=environment(settings))
    assert ran.returncode == 0
    assert ran.stdout.count("burst is over") == 2
    assert statuses(invoke) == {"COMPLETED": 10}


def test_a_worker_ends_after_so_many_runs_and_leaves_the_rest(settings: Settings, invoke: Invoke) -> None:
    add_many(invoke, 20)
    ran = run("worker", "-A", MODULE, "--max-tasks", "7", env=environment(settings))
    assert ran.returncode == 0
    assert "7 runs ended here, as --max-tasks asks: leaving" in ran.stdout
    assert statuses(invoke) == {"COMPLETED": 7, "QUEUED": 13}


def test_a_process_that_has_run_enough_is_followed_by_a_new_one(settings: Settings, invoke: Invoke) -> None:
    add_many(invoke, 20)
    with worker(settings, "--processes", "2", "--max-tasks", "4") as started:
        started.wait_for(lambda: len(events(started, "task succeeded")) == 20)
        assert "starting it again" not in started.stderr
        started.wait_for(lambda: len(events(started, "worker started")) >= 6)
        started.press_ctrl_c()
        assert started.ends() == 0
    assert statuses(invoke) == {"COMPLETED": 20}


def test_a_worker_that_has_grown_too_large_finishes_what_runs_and_ends(
    settings: Settings, invoke: Invoke, tmp_path: Path
) -> None:
    (tmp_path / "growing.py").write_text(
        "from aaiclick_queue import task\nkept = []\n@task\ndef grow() -> None:\n"
        "    kept.append(bytearray(b'x' * (200 << 20)))\n@task\ndef stay() -> None: ...\n"
    )
    given = ("worker", "-A", "growing", "--max-memory", "200", "--log-format", "json")
    with program(*given, env=environment(settings), cwd=tmp_path) as started:
        assert invoke("task", "enqueue", "growing.stay", "--wait").exit_code == 0
        started.wait_for(lambda: events(started, "task succeeded"))
        assert started.process.poll() is None
        assert invoke("task", "enqueue", "growing.grow", "--wait").exit_code == 0
        assert started.ends() == 0
        assert "more than --max-memory 200: leaving" in started.stdout
        assert not events(started, "run handed back")


def test_memory_is_told_in_megabytes() -> None:
    import psutil

    assert memory_megabytes() == pytest.approx(psutil.Process().memory_info().rss / 2**20, rel=0.2)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--burst", "--reload"], "give one of them"),
        (["--max-tasks", "0"], "--max-tasks"),
        (["--max-memory", "much"], "--max-memory"),
        (["--limit", "mail"], "'mail' is no cap\nfix: QUEUE=N"),
        (["--limit", "default=x"], "'default=x' is no cap"),
        (["--limit", "default=٣"], "is no cap"),
        (["--limit", "default=-1"], "is no cap"),
        (["--limit", "default=0"], "queue pause"),
        (["--limit", "default=99999"], "1 to 10,000"),
        (["--limit", "default=2,default=3"], "two caps, 2 and 3"),
        (["--limit", "mail=2"], "does not serve the queue 'mail'\nfix: -Q default,mail"),
        (["--limit", "*=2", "-Q", "*"], "is no cap"),
    ],
    ids=str,
)
def test_switches_that_cannot_work_are_refused(invoke: Invoke, arguments: list[str], part: str) -> None:
    ran = invoke("worker", "-A", "shop", *arguments)
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert part in ran.stderr
