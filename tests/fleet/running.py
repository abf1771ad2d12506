"""A real fleet from outside: its file, its supervisor, its processes, and what its tasks did."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import psutil

from aaiclick_queue import connect
from aaiclick_queue.fleet.address import Address
from aaiclick_queue.fleet.control import Show, View, ask
from aaiclick_queue.fleet.group import GroupView
from aaiclick_queue.fleet.supervisor import FleetView
from aaiclick_queue.settings import PREFIX, Settings
from tests.cli.running import PROJECT, Program, command
from tests.faults.fleet import wait_for
from tests.fleet import fleet_tasks
from tests.servers import new_folder

MODULE = "tests.fleet.fleet_tasks"
NAME = "trial"
LONGEST = 90.0  # a limit for machines that are busy, never a measure


class RunLine(NamedTuple):
    """One start of one run."""

    task_id: int
    run_epoch: int
    pid: int
    word: str


class Trial:
    """One fleet; whatever still runs at the test's end is ended."""

    def __init__(self, settings: Settings, text: str, **environment: str) -> None:
        self.settings = settings
        self.folder = new_folder()
        self.file = self.folder / "fleet.toml"
        self.home = self.folder / "home"
        self.runs_file = self.folder / "runs"
        self.runs_file.touch()
        self.open_gate = self.folder / "gate"
        given = {"POSTGRES_URL": settings.postgres_url or "", "LEASE_SECONDS": f"{settings.lease_seconds:g}"}
        given |= {"HOME": str(self.home), "GRACE_SECONDS": "60"} | environment
        self.env = {
            **os.environ,
            "PYTHONPATH": str(PROJECT),
            fleet_tasks.RUNS_FILE: str(self.runs_file),
            **{PREFIX + name: value for name, value in given.items()},
        }
        self.address = Address(self.home, NAME)
        self.programs: list[Program] = []
        self.write(text)

    def write(self, text: str) -> None:
        """Another file; `MODULE` in it is the one with the tasks."""
        self.file.write_text(f'name = "{NAME}"\n' + text.replace("MODULE", MODULE))

    def up(self, *arguments: str) -> Program:
        """Start the supervisor."""
        given = arguments or ("--log-format", "json")
        program = Program("fleet", "up", str(self.file), *given, env=self.env)
        self.programs.append(program)
        return program

    @property
    def program(self) -> Program:
        return self.programs[-1]

    def cli(self, *arguments: str) -> tuple[int, str, str]:
        """A command of the fleet to its end: exit code, stdout, stderr."""
        line = command("fleet", *arguments)
        ran = subprocess.run(line, env=self.env, cwd=PROJECT, capture_output=True, text=True, timeout=LONGEST)
        return ran.returncode, ran.stdout, ran.stderr

    def status(self) -> FleetView | None:
        """How it is, asked as the command line does; None while nobody answers."""
        return asyncio.run(self._status())

    async def _status(self) -> FleetView | None:
        try:
            async for answer in ask(self.address, Show()):
                assert isinstance(answer, View)
                return answer.fleet
        except Exception:  # noqa: BLE001, S110, RUF100 - not there yet
            pass
        return None

    def sizes(self) -> dict[str, tuple[str, int, int]]:
        """State, running and wanted by group."""
        view = self.status()
        return {group.name: (group.state, group.running, group.wanted) for group in view.groups} if view else {}

    def running(self, **counts: int) -> bool:
        """Whether the fleet runs with exactly these sizes."""
        return self.sizes() == {name: ("RUNNING", count, count) for name, count in counts.items()}

    def wait_until_running(self, **counts: int) -> None:
        self.wait_for(lambda: self.running(**counts))

    def pids(self, group: str) -> list[int]:
        """Of the processes that take tasks."""
        return [one.pid for one in self.group(group).processes if one.pid and one.state == "RUNNING"]

    def group(self, name: str) -> GroupView:
        """One group as it is."""
        view = self.status()
        assert view is not None
        [found] = [one for one in view.groups if one.name == name]
        return found

    def wait_for(self, condition: Any) -> None:
        def tell() -> str:
            return f"{self.sizes()}\n{self.program.stdout[-4000:]}\n{self.program.stderr[-4000:]}"

        wait_for(condition, tell, LONGEST)

    def events(self, event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.program.stdout.splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == event]

    def runs(self) -> list[RunLine]:
        """Every run that has started, in order."""
        lines = [line.split() for line in self.runs_file.read_text().splitlines()]
        return [RunLine(int(task_id), int(epoch), int(pid), word) for task_id, epoch, pid, word in lines]

    def enqueue_waiting(self, count: int) -> list[int]:
        """Tasks that run until the gate is opened."""
        return self.enqueue(fleet_tasks.wait_for, [{"path": str(self.open_gate)}] * count)

    def enqueue(self, task: Any, kwargs: list[dict[str, Any]]) -> list[int]:
        async def work() -> list[int]:
            async with connect(settings=self.settings) as client:
                ids: list[int] = await task.enqueue_many(kwargs, client=client)
                return ids

        return asyncio.run(work())

    def down(self, *, code: int = 0) -> None:
        """End it by SIGTERM."""
        self.program.process.send_signal(signal.SIGTERM)
        assert self.program.process.wait(LONGEST) == code, self.program.stdout[-4000:] + self.program.stderr[-4000:]

    def close(self) -> None:
        for program in self.programs:
            program.close()
        self.wait_until_nothing_is_left()
        shutil.rmtree(self.folder)

    @contextmanager
    def load(self, seconds: float = 0.02) -> Iterator[list[int]]:
        """Tasks that keep coming while the block lasts; gives their ids."""
        ids: list[int] = []
        over = threading.Event()

        async def send() -> None:
            async with connect(settings=self.settings) as client:
                while not over.is_set():
                    ids.extend(await fleet_tasks.tick.enqueue_many([{"seconds": seconds}] * 20, client=client))
                    await asyncio.sleep(0.05)

        sending = threading.Thread(target=asyncio.run, args=[send()])
        sending.start()
        try:
            yield ids
        finally:
            over.set()
            sending.join()

    def wait_until_nothing_is_left(self) -> None:
        wait_for(lambda: not self.left_over(), lambda: str(self.left_over()), LONGEST)

    def left_over(self) -> list[psutil.Process]:
        """Processes that belong to this fleet, whoever is their parent by now."""
        found = []
        for process in psutil.process_iter():
            try:
                ours = process.environ().get(fleet_tasks.RUNS_FILE) == str(self.runs_file)
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found


@contextmanager
def trial(settings: Settings, text: str, **environment: str) -> Iterator[Trial]:
    made = Trial(settings, text, **environment)
    try:
        yield made
    finally:
        made.close()
