"""Runs in child processes: every way to die costs one run, whoever ends them, and nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from aaiclick_queue import Client, Settings, Task, TaskCancelled, TaskFailed, Worker, handle, task
from aaiclick_queue.errors import BadTask
from aaiclick_queue.flow import mark
from aaiclick_queue.flow.execute import Run
from aaiclick_queue.outcome import Outcome
from aaiclick_queue.postgres import Database
from tests.faults.fleet import PROJECT, Console, Fleet, console, wait_for
from tests.flow import children_tasks as tasks
from tests.tools import age, changed, count, make_due, place_of, row, rows, running_worker, until

MODULE = "tests.flow.children_tasks"
UNGUARDED = """
import asyncio, logging
from aaiclick_queue import Settings, Worker, connect, task

@task(isolation="process")
def apart() -> None: ...

async def main() -> None:
    logging.basicConfig()
    worker = Worker(Settings.load())
    running = asyncio.create_task(worker.run())
    started = asyncio.create_task(worker.started.wait())
    await asyncio.wait([running, started], return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        running.result()
    async with connect(settings=worker.settings) as client:
        await apart.enqueue(client=client)
        db = await client.database()
        while not await db.fetchval("SELECT count(*) FROM aaiclick_queue.attempts"):
            await asyncio.sleep(0.05)
    worker.stop()
    await running

asyncio.run(main())
"""


def children_of(pid: int | None = None) -> set[int]:
    """Child processes of a worker that are not just waiting to be buried."""
    found = set()
    for child in psutil.Process(pid).children():
        try:
            if "aaiclick_queue.child" in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE:
                found.add(child.pid)
        except psutil.Error:
            continue
    return found


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


class Notes:
    """What tasks wrote down, whatever became of them then."""

    def __init__(self, file: Path) -> None:
        self.file = str(file)
        file.touch()

    def lines(self) -> list[list[str]]:
        return [line.split() for line in Path(self.file).read_text().splitlines()]

    def pids(self, word: str) -> list[int]:
        return [int(line[-1]) for line in self.lines() if line[0] == word]


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "notes")


@asynccontextmanager
async def worker_with_children(settings: Settings, **plan: Any) -> AsyncIterator[Worker]:
    """A worker in this process; when the block ends, no child of it may be left."""
    async with running_worker(settings, **{"children": 1} | plan) as worker:
        yield worker
    assert children_of() == set()


@pytest.fixture
def look(settings: Settings) -> Iterator[Console]:
    assert settings.postgres_url
    with console(settings.postgres_url) as look:
        yield look


# What it takes.


@pytest.mark.parametrize("wrong", ["thread", "fork", True, 1, ""])
def test_isolation_is_process_or_nothing(wrong: Any) -> None:
    with pytest.raises(BadTask, match="give 'process'"):
        task(isolation=wrong)


def test_isolation_belongs_to_the_task_and_not_to_one_enqueue() -> None:
    with pytest.raises(BadTask, match="give it to @task"):
        tasks.pid.options(isolation="process")
    with pytest.raises(BadTask, match="give it to @task"):
        tasks.pid.apply_async(isolation=None)


# Runs.


async def test_functions_of_both_kinds_run_in_a_warm_child(quick: Settings, client: Client) -> None:
    async with worker_with_children(quick):
        assert children_of() == set()  # none before the first run: nothing is preloaded without modules
        first = await (await tasks.count_here.enqueue(client=client)).result(30)
        other = await (await tasks.pid_async.enqueue(client=client)).result(30)
        again = await (await tasks.count_here.enqueue(client=client)).result(30)
        assert first[0] == other == again[0] != os.getpid()
        assert (first[1], again[1]) == (1, 2)
        assert children_of() == {other}


async def test_children_are_there_before_the_first_run_when_the_modules_are_known(quick: Settings) -> None:
    async with worker_with_children(quick, children=2, modules=(MODULE,)):
        await until(lambda: len(children_of()) == 2)


async def test_arguments_and_results_of_a_megabyte_arrive(quick: Settings, client: Client) -> None:
    data = "ä" * 500_000
    async with worker_with_children(quick):
        for _ in range(3):
            assert await (await tasks.echo.enqueue(data, client=client)).result(30) == data


async def test_what_a_run_raises_is_decided_as_anywhere_else(quick: Settings, client: Client) -> None:
    async with worker_with_children(quick):
        assert await (await tasks.choosy.enqueue("Picky", client=client)).result(30) == 2
        with pytest.raises(TaskFailed, match="failed in attempt 1: KeyError") as failed:
            await (await tasks.choosy.enqueue("KeyError", client=client)).result(30)
        assert "in choosy" in failed.value.traceback
        assert "aaiclick_queue/child.py" not in failed.value.traceback
        for how in ("exit", "interrupt"):
            with pytest.raises(TaskFailed, match=r"SystemExit\(3\)|KeyboardInterrupt"):
                await (await tasks.leave.enqueue(how, client=client)).result(30)
        assert await (await tasks.steer.enqueue("retry", client=client)).result(30) == 2
        assert await (await tasks.steer.enqueue("snooze", client=client)).result(30) == 1
        with pytest.raises(TaskFailed, match="no"):
            await (await tasks.steer.enqueue("fail", client=client)).result(30)
        with pytest.raises(TaskCancelled, match="no"):
            await (await tasks.steer.enqueue("cancel", client=client)).result(30)
        assert len(children_of()) == 1


@pytest.mark.parametrize("asking", [tasks.ask, tasks.ask_sync])
async def test_current_works_in_a_child(
    quick: Settings, client: Client, db: Database, asking: Task[[int], dict[str, Any]]
) -> None:
    async with worker_with_children(quick):
        one = await asking.enqueue(5, client=client)
        told = await one.result(30)
        child = handle(int(told["child"]), client=client)
        assert await child.result(30) in children_of()
        assert (told["id"], told["attempt"], told["before"]) == (str(one.id), 2, {"n": 5})
        assert 50 < told.get("left", 99) <= 100
    assert (await row(db, "progress", one.id))["data"] == "0.5"
    assert [found["parent_id"] for found in await rows(db, "tasks") if found["id"] != one.id] == [one.id]


async def test_a_child_of_a_task_is_found_at_once_by_the_worker_of_its_parent(
    quick: Settings, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mark, "CHEAP_SECONDS", 60.0)  # a busy machine makes scans from the head rare
    slow = changed(quick, poll_min_seconds=60, poll_max_seconds=60)
    async with worker_with_children(slow):
        for _ in range(3):
            child = await (await tasks.spawn.enqueue(client=client)).result(30)
            await handle(int(child), client=client).result(30)


@pytest.mark.parametrize("paying", [tasks.pay, tasks.pay_sync])
async def test_a_transaction_in_a_child_completes_its_task(
    quick: Settings, client: Client, db: Database, paying: Task[[int], Any]
) -> None:
    await db.fetch("CREATE TABLE payments (order_id int)")
    async with worker_with_children(quick) as worker:
        one = await paying.enqueue(7, client=client)
        assert await one.result(30) == "order 7 is paid"
        await until(lambda: not worker.slots.held)
        assert await (await tasks.pid.enqueue(client=client)).result(30)
    assert await db.fetchval("SELECT count(*) FROM payments") == 1
    assert await count(db, "attempts") == 0


async def test_code_after_its_transaction_is_left_in_peace(
    quick: Settings, client: Client, db: Database, tmp_path: Path
) -> None:
    await db.fetch("CREATE TABLE payments (order_id int)")
    async with worker_with_children(quick) as worker:
        one = await tasks.pay.enqueue(7, str(tmp_path / "go_on"), client=client)
        assert await one.result(30) == "order 7 is paid"
        beats = set[Any]()

        async def beaten_on() -> bool:
            beats.add(await db.fetchval("SELECT last_heartbeat FROM aaiclick_queue.workers"))
            return len(beats) > 3

        await until(beaten_on)
        [run] = worker.slots.held.values()
        assert run.stop is None
        (tmp_path / "go_on").touch()
        await until(lambda: not worker.slots.held)
    # What follows the block was carried out to its end.
    assert await db.fetchval("SELECT count(*) FROM aaiclick_queue.tasks WHERE entrypoint LIKE '%.pid'") == 1


async def test_what_tasks_print_is_not_taken_for_an_answer(
    quick: Settings, client: Client, capfd: pytest.CaptureFixture[str]
) -> None:
    async with worker_with_children(quick):
        words = ["first", "second"]
        for word in words:
            assert await (await tasks.noise.enqueue(word, client=client)).result(30) == word
    out, err = capfd.readouterr()
    for word in words:
        for line in (f"{word} printed", f"{word} raw", f"{word} by a program"):
            assert line in out.splitlines()
        assert f"{word} to stderr" in err.splitlines()


# Recycling.


async def test_a_child_is_replaced_after_so_many_tasks(quick: Settings, client: Client) -> None:
    async with worker_with_children(quick, max_tasks_per_child=3):
        ran = [await (await tasks.count_here.enqueue(client=client)).result(30) for _ in range(7)]
        assert [n for _, n in ran] == [1, 2, 3, 1, 2, 3, 1]
        assert len({pid for pid, _ in ran}) == 3
        await until(lambda: len(children_of()) == 1)


async def test_a_child_that_has_grown_is_replaced(quick: Settings, client: Client) -> None:
    async with worker_with_children(quick, max_memory_per_child=250):
        first = await (await tasks.grow.enqueue(1, client=client)).result(30)
        assert await (await tasks.grow.enqueue(250, client=client)).result(30) == first
        assert await (await tasks.grow.enqueue(1, client=client)).result(30) != first
        await until(lambda: not is_alive(first))


async def test_a_limit_below_what_an_empty_child_takes_is_told(
    quick: Settings, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    async with worker_with_children(quick, max_memory_per_child=1):
        one, other = [await (await tasks.pid.enqueue(client=client)).result(30) for _ in range(2)]
        assert one != other
    assert len(re.findall("raise --max-memory-per-child", caplog.text)) == 1


# Death.


@pytest.mark.parametrize(
    "how",
    [
        "SIGKILL",
        "SIGSEGV",
        "SIGABRT",
        "exit code 7",
        "exit code 0",
        "exit code 5",
        "exit code 1",
        pytest.param(
            "wrote into the descriptor", marks=pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no /proc")
        ),
    ],
)
async def test_a_child_that_dies_costs_its_own_run_one_lost_attempt_with_the_cause(
    quick: Settings, client: Client, db: Database, notes: Notes, how: str
) -> None:
    async with worker_with_children(quick, children=2):
        beside = await tasks.wait_async.enqueue(notes.file, 1.5, client=client)
        await until(lambda: notes.pids("wait"))
        one = await tasks.die.enqueue(how, notes.file, client=client)
        await until(lambda: count(db, "attempts"))
        await age(db, "delayed", "not_before", -3600)
        assert await (await tasks.pid.enqueue(client=client)).result(30) not in notes.pids(how)
        assert await beside.result(30) == notes.pids("wait")[0]
    for left in notes.pids("left"):
        os.kill(left, signal.SIGKILL)
    [attempt] = await rows(db, "attempts")
    assert (attempt["task_id"], attempt["outcome"], attempt["attempt"]) == (one.id, "LOST", 1)
    assert how in attempt["error"]
    assert msgspec.json.decode(attempt["error"])["type"] == "WorkerLost"
    place = await row(db, "delayed", one.id)
    assert (place["attempt"], place["lost_count"], place["reason"]) == (0, 1, "lost")


async def test_a_run_that_is_lost_too_often_fails(quick: Settings, client: Client, db: Database, notes: Notes) -> None:
    async with worker_with_children(changed(quick, lost_limit=3)):
        one = await tasks.die.enqueue("exit code 7", notes.file, client=client)
        for lost in (1, 2):
            await until(lambda seen=lost: db.fetchval("SELECT lost_count = $1 FROM aaiclick_queue.delayed", seen))  # type: ignore[misc]
            await make_due(db)
        with pytest.raises(TaskFailed, match="WorkerLost: its own process ended with exit code 7"):
            await one.result(30)
    assert len(notes.pids("exit")) == 3
    assert (await row(db, "tasks", one.id))["attempt"] == 1


async def test_a_suspect_has_a_child_that_nobody_else_had_or_will_have(
    quick: Settings, client: Client, db: Database
) -> None:
    async with worker_with_children(quick):
        warm = await (await tasks.pid.enqueue(client=client)).result(30)
        suspect = await tasks.count_here.options(countdown=60).enqueue(client=client)
        await db.fetch("UPDATE aaiclick_queue.delayed SET lost_count = 2")
        await make_due(db)
        pid, runs = await suspect.result(30)
        assert (pid != warm, runs) == (True, 1)
        await until(lambda: not is_alive(pid))
        assert await (await tasks.pid.enqueue(client=client)).result(30) != pid


async def test_a_child_that_is_killed_while_it_waits_is_replaced(
    quick: Settings, client: Client, db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async with worker_with_children(quick, modules=(MODULE,)):
        for _ in range(3):
            [idle] = await until(children_of)
            await (await tasks.pid.enqueue(client=client)).result(30)
            os.kill(idle, signal.SIGKILL)
            one = await tasks.pid.enqueue(client=client)  # at once: the worker may not know yet
            assert await one.result(30) != idle
    assert await count(db, "attempts") == 0


async def test_killed_children_leave_one_lost_attempt_each_and_no_process(
    quick: Settings, client: Client, db: Database, notes: Notes
) -> None:
    async with worker_with_children(quick, children=2, modules=(MODULE,)):
        killed: dict[int, int] = {}
        for round_ in range(3):
            one = await tasks.wait.enqueue(notes.file, client=client)
            await until(lambda seen=round_: len(notes.pids("wait")) == seen + 1)  # type: ignore[misc]
            pid = notes.pids("wait")[-1]
            os.kill(pid, signal.SIGKILL)
            killed[one.id] = pid
            await until(lambda seen=round_: db.fetchval("SELECT count(*) = $1 FROM aaiclick_queue.attempts", seen + 1))  # type: ignore[misc]
            await age(db, "delayed", "not_before", -3600)
        assert await (await tasks.pid.enqueue(client=client)).result(30) not in killed.values()
        await until(lambda: not any(map(is_alive, killed.values())), patience=5)
        await until(lambda: len(children_of()) == 2)
    found = {attempt["task_id"]: attempt for attempt in await rows(db, "attempts")}
    assert set(found) == set(killed)
    assert {attempt["outcome"] for attempt in found.values()} == {"LOST"}
    assert all("SIGKILL" in attempt["error"] for attempt in found.values())


async def test_what_a_task_started_ends_with_its_child(
    quick: Settings, client: Client, db: Database, notes: Notes
) -> None:
    async with worker_with_children(quick):
        one = await tasks.start_program.enqueue(notes.file, client=client)
        await until(notes.lines)
        [[program, child]] = notes.lines()
        await one.cancel()
        await until(lambda: not is_alive(int(program)) and not is_alive(int(child)))


# Timeouts and cancellation.


@pytest.mark.parametrize("spinning", [tasks.spin, tasks.spin_async])
async def test_a_busy_loop_is_killed_at_its_timeout(
    quick: Settings, client: Client, notes: Notes, spinning: Task[[str], None]
) -> None:
    async with worker_with_children(quick):
        one = await spinning.options(timeout=1).enqueue(notes.file, client=client)
        with pytest.raises(TaskFailed, match=r"TimedOut: timeout of 1 s passed in attempt [12]") as failed:
            await one.result(30)
        spun = notes.pids("spin")
        assert len(spun) == failed.value.attempts == (2 if spinning is tasks.spin else 1)
        await until(lambda: not any(map(is_alive, spun)))
        assert await (await tasks.pid.enqueue(client=client)).result(30) not in spun


async def test_a_run_that_is_over_its_time_gets_none_to_leave(quick: Settings, client: Client, notes: Notes) -> None:
    async with worker_with_children(quick):
        one = await tasks.look_and_leave.options(timeout=1, max_attempts=1).enqueue(notes.file, client=client)
        with pytest.raises(TaskFailed, match="TimedOut"):
            await one.result(30)
        await until(lambda: not is_alive(notes.pids("wait")[0]))
    assert notes.pids("over") == []


@pytest.fixture
def slow_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    return "slow_to_import"


async def test_the_time_for_starting_a_child_is_not_the_runs(quick: Settings, client: Client, slow_module: str) -> None:
    async with worker_with_children(quick, modules=(slow_module,)):
        assert await (await tasks.pid.options(timeout=2, max_attempts=1).enqueue(client=client)).result(30)


async def test_the_reaper_gives_a_run_its_time_from_the_start_of_a_slow_child_on(
    quick: Settings, client: Client, db: Database, notes: Notes, slow_module: str
) -> None:
    async with worker_with_children(quick, modules=(slow_module,)):
        one = await tasks.wait_async.options(timeout=50).enqueue(notes.file, client=client)
        await until(notes.lines)
        given = "SELECT extract(epoch FROM deadline_at - claimed_at)::float8 FROM aaiclick_queue.leases"
        assert await db.fetchval(given) > 50 + quick.grace_seconds + 5 + 2
        await one.cancel()


async def test_a_silent_run_is_killed_and_signs_of_life_keep_it(quick: Settings, client: Client, notes: Notes) -> None:
    async with worker_with_children(quick):
        assert await (await tasks.silent.enqueue(notes.file, 6, client=client)).result(30) == 6
        with pytest.raises(TaskFailed, match=r"heartbeat_timeout of 2 s passed"):
            await (await tasks.silent.enqueue(notes.file, 0, client=client)).result(30)
        await until(lambda: not is_alive(notes.pids("silent")[0]))


async def test_a_run_can_give_itself_more_time(quick: Settings, client: Client) -> None:
    async with worker_with_children(quick):
        assert await (await tasks.extended.enqueue(client=client)).result(30) == "True"


@pytest.mark.parametrize("waiting", [tasks.wait, tasks.spin, tasks.spin_async])
async def test_a_cancelled_run_that_goes_on_is_killed(
    quick: Settings, client: Client, db: Database, notes: Notes, waiting: Task[[str], Any]
) -> None:
    async with worker_with_children(quick) as worker:
        one = await waiting.enqueue(notes.file, client=client)
        [[_, pid]] = await until(notes.lines)
        assert await one.cancel()
        await until(lambda: not is_alive(int(pid)))
        await until(lambda: not worker.slots.held)
    assert await place_of(db, one.id) == ["CANCELLED"]
    assert await count(db, "attempts") == 0


@pytest.mark.parametrize("waiting", [tasks.wait_async, tasks.look_and_leave])
async def test_a_cancelled_run_that_ends_by_itself_keeps_its_child(
    quick: Settings, client: Client, db: Database, notes: Notes, waiting: Task[[str], Any]
) -> None:
    async with worker_with_children(quick) as worker:
        one = await waiting.enqueue(notes.file, client=client)
        await until(notes.lines)
        assert await one.cancel()
        await until(lambda: notes.pids("over"))
        await until(lambda: not worker.slots.held)
        assert await (await tasks.pid.enqueue(client=client)).result(30) == notes.pids("over")[0]
    assert await place_of(db, one.id) == ["CANCELLED"]


async def test_what_a_run_returns_after_it_was_told_to_stop_is_not_its_result(
    quick: Settings, client: Client, db: Database, notes: Notes
) -> None:
    async with worker_with_children(changed(quick, grace_seconds=0.1)):
        one = await tasks.look_and_leave.enqueue(notes.file, client=client)
        await until(notes.lines)
    assert notes.pids("over")
    place = await row(db, "ready", one.id)
    assert (place["attempt"], place["lost_count"]) == (0, 0)
    assert await count(db, "attempts") == 0


async def test_a_run_is_stopped_while_its_child_starts(quick: Settings, client: Client, db: Database) -> None:
    async with worker_with_children(quick) as worker:
        one = await tasks.pid.enqueue(client=client)
        await until(lambda: worker.slots.held)
    assert await place_of(db, one.id) in (["ready"], ["COMPLETED"])
    assert await count(db, "attempts") == 0


# Children that cannot be started.


async def test_an_import_that_fails_in_children_is_told_and_tried_ever_later(
    quick: Settings, client: Client, db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async with worker_with_children(quick, modules=("there.is.no.such.module",)):
        ones = [await tasks.pid.enqueue(client=client) for _ in range(3)]
        await until(lambda: db.fetchval("SELECT count(*) = 3 FROM aaiclick_queue.attempts"))
        assert await (await tasks.on_loop.enqueue(4, client=client)).result(30) == 4
    for attempt in await rows(db, "attempts"):
        assert attempt["outcome"] == "UNKNOWN"
        assert "No module named 'there'" in attempt["error"]
    # In line again where the machine is so slow that the first cool-down is over.
    places = [*await rows(db, "delayed"), *await rows(db, "ready")]
    assert {place["task_id"] for place in places} == {one.id for one in ones}
    assert {(place["attempt"], place["lost_count"]) for place in places} == {(0, 0)}
    tried = re.findall(r"cannot start a child process .*No module named 'there'.* next try in (\d+) s", caplog.text)
    assert tried
    assert tried == [str(2**n) for n in range(len(tried))]


async def test_a_script_without_a_guard_does_not_start_workers_in_its_children(
    settings: Settings, tmp_path: Path
) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(UNGUARDED)
    environ = os.environ | {"AAICLICK_QUEUE_POSTGRES_URL": str(settings.postgres_url), "PYTHONPATH": str(PROJECT)}
    ran = await asyncio.create_subprocess_exec(
        sys.executable, str(script), env=environ, cwd=tmp_path, stderr=subprocess.PIPE
    )
    _, said = await asyncio.wait_for(ran.communicate(), 60)
    assert ran.returncode == 0, said.decode()
    assert '`if __name__ == "__main__":`' in said.decode()


async def test_a_module_that_one_task_alone_needs_does_not_break_the_others(
    quick: Settings, client: Client, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks.pid.function, "__module__", "there.is.no.such.module")
    async with worker_with_children(quick, modules=(MODULE,)):
        warm = await (await tasks.pid_async.enqueue(client=client)).result(30)
        await tasks.pid.enqueue(client=client)
        await until(lambda: count(db, "attempts"))
        assert await (await tasks.pid_async.enqueue(client=client)).result(30) == warm
    [attempt] = await rows(db, "attempts")
    assert attempt["outcome"] == "UNKNOWN"


# The worker's own end.


async def test_children_end_with_a_worker_that_is_killed(settings: Settings, look: Console, notes: Notes) -> None:
    with Fleet(settings, lost_limit=3) as fleet:
        worker = fleet.start("-A", MODULE, "--children", "3")
        wait_for(lambda: len(children_of(worker.pid)) == 3, worker.output)
        for name in ("spin", "spin_async"):
            look.rows(
                "SELECT aaiclick_queue.enqueue(%s, jsonb_build_object('file', %s::text))",
                f"{MODULE}.{name}",
                notes.file,
            )
        wait_for(lambda: len(notes.pids("spin")) == 2, worker.output)
        children = children_of(worker.pid)
        assert set(notes.pids("spin")) < children
        worker.kill()
        wait_for(lambda: not any(map(is_alive, children)), seconds=5)
        wait_for(lambda: look.worker_of(worker.pid) == [] or fleet.start("-A", MODULE), seconds=30)
        wait_for(lambda: len(notes.pids("spin")) == 4)


@pytest.mark.parametrize("to_all", [False, True])
async def test_a_worker_told_to_stop_lets_its_children_finish(
    settings: Settings, look: Console, notes: Notes, to_all: bool
) -> None:
    with Fleet(settings, grace_seconds=30) as fleet:
        worker = fleet.start("-A", MODULE, "--children", "2")
        for name in ("wait", "wait_async"):
            look.rows(
                "SELECT aaiclick_queue.enqueue(%s, jsonb_build_object('file', %s::text, 'seconds', 1.5))",
                f"{MODULE}.{name}",
                notes.file,
            )
        wait_for(lambda: len(notes.pids("wait")) == 2, worker.output)
        children = children_of(worker.pid)
        if to_all:  # as a service manager does
            for child in children:
                os.kill(child, signal.SIGTERM)
                os.kill(child, signal.SIGINT)
        assert worker.terminate() == 0, worker.output()
        assert look.statuses() == {"COMPLETED": 2}
        assert look.history() == {}
        assert not any(map(is_alive, children))


# Kinds.


class Scene:
    """What the tasks of a test that run in this process say and wait for."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.go_on = threading.Event()


scene = Scene()


@task(entrypoint="tests.children.stubborn_thread", max_attempts=1)
def stubborn_thread() -> None:
    scene.said.append("started")
    scene.go_on.wait(60)
    scene.said.append("ended")


@task(entrypoint="tests.children.slow_to_leave", max_attempts=1)
async def slow_to_leave() -> None:
    scene.said.append("started")
    try:
        await asyncio.sleep(60)
    finally:
        await until(scene.go_on.is_set)
        scene.said.append("ended")


@asynccontextmanager
async def watched_worker(settings: Settings) -> AsyncIterator[tuple[Worker, list[str]]]:
    """A worker, and what it says of runs: their ends and whether their code goes on, and that it has stopped."""
    global scene  # noqa: PLW0603 - tasks are found by name and have nothing else to share
    scene = Scene()
    async with worker_with_children(settings) as worker:
        slots, told = worker.slots, list[str]()
        record = slots._ended

        def ended(run: Run, outcome: Outcome | None) -> None:
            goes_on = slots.is_still_running(run)
            told.append(f"outcome {type(outcome).__name__}, {'goes on' if goes_on else 'over'}")
            record(run, outcome)

        slots._ended = ended
        slots._stopped = lambda run: told.append(f"stopped after {scene.said[-1:]}")
        try:
            yield worker, told
        finally:
            scene.go_on.set()


async def test_a_thread_that_was_given_up_is_known_to_go_on_until_it_has_ended(quick: Settings, client: Client) -> None:
    async with watched_worker(quick) as (worker, told):
        one = await stubborn_thread.options(timeout=0.05).enqueue(client=client)
        with pytest.raises(TaskFailed, match="TimedOut"):
            await one.result(30)
        assert told == ["outcome Failed, goes on"]
        scene.go_on.set()
        await until(lambda: len(told) == 2)
        await until(lambda: not worker.slots.busy)
    assert told == ["outcome Failed, goes on", "stopped after ['ended']"]


async def test_a_coroutine_that_was_told_to_stop_has_stopped_when_its_clean_up_has(
    quick: Settings, client: Client
) -> None:
    async with watched_worker(quick) as (worker, told):
        one = await slow_to_leave.enqueue(client=client)
        await until(lambda: scene.said)
        await one.cancel()
        [run] = worker.slots.held.values()
        await until(lambda: run.stop)
        assert told == []
        scene.go_on.set()
        await until(lambda: not worker.slots.busy)
    assert told == ["outcome NoneType, over", "stopped after ['ended']"]


async def test_a_run_in_a_child_has_stopped_when_the_child_is_gone(
    quick: Settings, client: Client, notes: Notes
) -> None:
    async with watched_worker(quick) as (worker, told):
        one = await tasks.spin_async.options(timeout=1).enqueue(notes.file, client=client)
        await until(lambda: worker.slots.held)
        worker.slots._stopped = lambda run: told.append(f"alive {is_alive(notes.pids('spin')[0])}")
        with pytest.raises(TaskFailed, match="TimedOut"):
            await one.result(30)
    assert told == ["outcome Failed, over", "alive False"]


async def test_runs_that_nobody_stopped_are_not_said_to_have_stopped(quick: Settings, client: Client) -> None:
    async with watched_worker(quick) as (worker, told):
        for one in (tasks.in_thread, tasks.on_loop, tasks.echo):
            await (await one.enqueue("7" if one is tasks.echo else 7, client=client)).result(30)
        await until(lambda: not worker.slots.busy)
    assert told == ["outcome Succeeded, over"] * 3


async def test_a_kind_that_is_full_does_not_keep_the_others_from_running(
    quick: Settings, client: Client, db: Database, notes: Notes
) -> None:
    queues = {"slow": 1, "default": 1}
    async with worker_with_children(quick, queues=queues, threads=2, slots=5) as worker:
        slow = [await tasks.wait.options(queue="slow").enqueue(notes.file, client=client) for _ in range(60)]
        await until(lambda: notes.pids("wait"))
        await until(lambda: worker.slots.crowded() == {"slow"})
        for n in range(40):
            assert await (await tasks.on_loop.enqueue(n, client=client)).result(30) == n
            assert await (await tasks.in_thread.enqueue(n, client=client)).result(30) == n
        assert len(worker.slots.held) < 30
        assert not any([(await one.status()).is_final for one in slow])


async def test_tasks_of_three_kinds_in_one_queue_all_come_to_an_end(
    quick: Settings, client: Client, db: Database
) -> None:
    kinds: list[Callable[..., Any]] = [tasks.on_loop.enqueue, tasks.in_thread.enqueue]
    async with worker_with_children(quick, slots=4, threads=2, children=2):
        handles = [await enqueue(n, client=client) for n in range(30) for enqueue in kinds]
        handles += [await tasks.pid.enqueue(client=client) for _ in range(30)]
        await asyncio.gather(*(one.result(60) for one in handles))
    assert {found["status"] for found in await rows(db, "tasks")} == {"COMPLETED"}
    assert {found["attempt"] for found in await rows(db, "tasks")} == {1}
