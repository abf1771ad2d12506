"""The crew of the demo: an embedded Postgres in a throw-away home and real worker processes, gone without a trace."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import QueueError
from ..local import stop_embedded
from ..settings import PREFIX, Settings

STOP_SECONDS = 5.0
MEMORY = Path("/dev/shm")  # noqa: S108 - a new cluster is a thousand small files: twice as fast there
ROOM_BYTES = 2 << 30


class Crew:
    """The workers, and the settings they share with the application."""

    def __init__(self, home: Path, hear: Callable[[dict[str, Any]], None]) -> None:
        """`hear` gets the log lines of the workers, from threads."""
        # A short lease, so that a killed worker is noticed while one looks.
        self.settings = Settings.load({}, home=home / "home", lease_seconds=1.5, grace_seconds=2, log_level="INFO")
        self._hear = hear
        self._journal = (home / "workers.log").open("w+")
        self._reading, self._writing = os.pipe()
        self.workers: list[subprocess.Popen[str]] = []

    def start_worker(self) -> None:
        """Start one, as a person would, and listen to it."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        given = {
            "HOME": str(self.settings.home),
            "LEASE_SECONDS": str(self.settings.lease_seconds),
            "GRACE_SECONDS": str(self.settings.grace_seconds),
        }
        worker = subprocess.Popen(
            [
                *(sys.executable, "-m", "aaiclick_queue", "worker", "-A", "aaiclick_queue.demo.tasks", "-Q", "*"),
                *("--log-format", "json", "--parent-fd", str(self._reading)),
            ],
            env=inherited | {PREFIX + name: value for name, value in given.items()},
            stdout=subprocess.PIPE,
            stderr=self._journal,
            text=True,
            pass_fds=[self._reading],
            process_group=0,  # Ctrl-C is ours
        )
        self.workers.append(worker)
        threading.Thread(target=self._listen, args=[worker], daemon=True).start()

    def kill(self, pid: int) -> None:
        """End a worker as a power cut would."""
        os.kill(pid, signal.SIGKILL)
        for worker in self.workers:
            if worker.pid == pid:
                worker.wait()

    def check(self) -> None:
        """Refuse to go on without workers."""
        if all(worker.poll() is not None for worker in self.workers):
            self._journal.seek(0)
            raise QueueError(f"the workers of the demo did not start: {self._journal.read().strip() or 'no word'}")

    def dismiss(self) -> None:
        """End every worker, kindly first."""
        for worker in self.workers:
            with suppress(ProcessLookupError):
                worker.terminate()
        for worker in self.workers:
            with suppress(subprocess.TimeoutExpired):
                worker.wait(STOP_SECONDS)
            worker.kill()
            worker.wait()
        os.close(self._writing)
        os.close(self._reading)
        self._journal.close()

    def _listen(self, worker: subprocess.Popen[str]) -> None:
        assert worker.stdout is not None
        for line in worker.stdout:
            with suppress(ValueError):  # cut off by a kill
                self._hear(json.loads(line) | {"pid": worker.pid})


@contextmanager
def crew(hear: Callable[[dict[str, Any]], None]) -> Iterator[Crew]:
    """A crew in a home of its own; whatever happens, nothing of it is left."""
    roomy = MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM_BYTES
    home = Path(tempfile.mkdtemp(prefix=f"aaiq-demo-{os.getpid()}-", dir=MEMORY if roomy else None))
    home.chmod(0o755)  # as root Postgres runs under another account, which has to get in
    made = Crew(home, hear)
    try:
        yield made
    finally:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # an impatient second Ctrl-C would leave things behind
        try:
            made.dismiss()
            stop_embedded()
        finally:
            shutil.rmtree(home, ignore_errors=True)
            signal.signal(signal.SIGINT, before)
