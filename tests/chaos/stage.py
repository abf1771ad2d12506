"""The stage of a round: own servers, workers with a wire to each of them, and somebody who restarts the dead."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from aaiclick_queue import migrate
from aaiclick_queue.settings import PREFIX, Settings
from tests.chaos.clock import Clock, build_clock
from tests.chaos.journal import JOURNAL_FILE, Line, read
from tests.chaos.redises import Redises
from tests.chaos.tasks import QUEUES
from tests.chaos.wires import Wire, Wires
from tests.chaos.witness import WITNESS
from tests.faults.fleet import PROJECT, Console, WorkerProcess, wait_for
from tests.servers import OwnPostgres

LEASE_SECONDS = 3.0
WORKERS = 3
ACTIVE = "SELECT count(DISTINCT pid) FROM aaiclick_queue.workers WHERE status = 'ACTIVE' AND pid = ANY(%s)"
WORKER = ("worker", "-A", "tests.chaos.tasks", "-Q", ",".join(QUEUES), "-c", "25", "--threads", "4", "--children", "2")


class Look(Console):
    """A console that several threads may use."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._lock = threading.Lock()

    def rows(self, sql: str, *args: object) -> list[dict[str, Any]]:
        with self._lock:
            return super().rows(sql, *args)


class Place:
    """Where a worker lives: its wires, its clock, and the process that is there now."""

    def __init__(self, stage: Stage, name: str, command: tuple[str, ...]) -> None:
        self.name = name
        self._stage = stage
        self._command = command
        self.postgres = stage.wires.add(lambda: stage.postgres.port, is_postgres=True)
        redis_url, self.redis = stage.redises.for_worker()
        self.clock = Clock(stage.folder / f"{name}.clock", stage.clock_library)
        given = {
            "postgres_url": stage.postgres.url.replace(f":{stage.postgres.port}/", f":{self.postgres.port}/"),
            "redis_url": redis_url,
            "lease_seconds": LEASE_SECONDS,
            "lost_limit": 1000,
            "grace_seconds": 3,
            "transaction_pool_size": 8,
            "home": stage.folder / "home",
            "log_level": "WARNING",
        }
        ours = {PREFIX + key.upper(): str(value) for key, value in given.items()}
        shared = {"PYTHONPATH": str(PROJECT), JOURNAL_FILE: str(stage.journal_file)}
        self._environment = {**os.environ, **ours, **shared, **self.clock.environment}
        self.starts = 0
        self.process = self.start()

    def start(self) -> WorkerProcess:
        """A new process; its output follows that of those before it."""
        output = self._stage.folder / f"{self.name}.log"
        command = [sys.executable, "-m", "aaiclick_queue", *self._command, "--log-format", "json"]
        with output.open("ab") as file:
            process = subprocess.Popen(command, env=self._environment, cwd=PROJECT, stdout=file, stderr=file)
        self.starts += 1
        self.process = WorkerProcess(process, output)
        self._stage.processes.append(self.process)
        return self.process


class Stage:
    """Everything that a round plays on; it goes with the round."""

    def __init__(self, *, with_sentinel: bool) -> None:
        self._held = ExitStack()
        self._with_sentinel = with_sentinel
        self.processes: list[WorkerProcess] = []
        self.crashes: list[str] = []

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as held:
            self.folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
            self.journal_file = self.folder / "journal"
            self.journal_file.touch()
            self.clock_library = build_clock(self.folder)
            self.wires = held.enter_context(Wires())
            self.postgres = held.enter_context(OwnPostgres(max_connections="300", synchronous_commit="on"))
            self.redises = held.enter_context(Redises(self.wires, with_sentinel=self._with_sentinel))
            self.look = held.enter_context(contextlib.closing(Look(self.postgres.url)))
            self.settings = Settings.load({}, postgres_url=self.postgres.url, lease_seconds=LEASE_SECONDS)
            asyncio.run(migrate.upgrade(self.settings))
            self.look.rows(WITNESS)
            self.producer_wire = self.wires.add(lambda: self.postgres.port, is_postgres=True)
            held.callback(self._end_processes)
            self.places = [Place(self, f"worker-{number}", WORKER) for number in range(WORKERS)]
            self.background = Place(self, "background", ("background",))
            wait_for(lambda: self.active() == WORKERS, self.told, 120)
            self._held = held.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def _end_processes(self) -> None:
        for process in self.processes:
            process.close()

    def active(self) -> int:
        """How many of the places have a worker that claims."""
        pids = [place.process.pid for place in self.places]
        return int(self.look.value(ACTIVE, pids))

    @property
    def producer_settings(self) -> Settings:
        """Settings for those who enqueue: their own wire, and no Redis, so that hints go by way of the relays."""
        url = self.postgres.url.replace(f":{self.postgres.port}/", f":{self.producer_wire.port}/")
        return self.settings.model_copy(update={"postgres_url": url, "enqueue_timeout_seconds": 4.0})

    def journal(self) -> list[Line]:
        return read(self.journal_file)

    def told(self) -> str:
        """The last words of each worker."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-1500:]}" for log in logs)

    def all_wires(self) -> list[Wire]:
        wires = {id(wire): wire for place in [*self.places, self.background] for wire in (place.postgres, *place.redis)}
        return [*wires.values(), self.producer_wire]

    def heal(self) -> None:
        """Whatever a fault has left behind is over: every wire whole, every clock right, every server up."""
        for wire in self.all_wires():
            wire.heal()
        for place in [*self.places, self.background]:
            place.clock.jump(0)
            if place.process.is_alive:
                place.process.thaw()
        self.redises.heal()
        if self.postgres.pid is None:
            self.postgres.start()

    async def keep_alive(self) -> None:
        """Start anew whoever has died, as any supervisor does."""
        while True:
            for place in [*self.places, self.background]:
                if not place.process.is_alive:
                    await asyncio.to_thread(place.start)
            await asyncio.sleep(0.3)

    def restart_postgres(self, mode: str, away: float) -> float:
        """Stop it, wait, and start it; when it was back."""
        self.postgres.stop(mode)
        time.sleep(away)
        self.postgres.start()
        self.look.value("SELECT 1")
        return time.time()
