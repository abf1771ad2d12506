"""The Redis of a round: one server with a wire for each worker, or two with a Sentinel that fails them over."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from tests.chaos.wires import Wire, Wires
from tests.faults.fleet import ask, wait_for
from tests.wires.redis_server import OwnRedis

GROUP = "primary"
WATCH = """sentinel monitor {group} 127.0.0.1 {port} 1
sentinel down-after-milliseconds {group} 700
sentinel failover-timeout {group} 3000
"""


class Node:
    """One server that can lose its disk: it saves to a folder of its own."""

    def __init__(self, wires: Wires, primary: Wire | None = None) -> None:
        self.wire = wires.add(lambda: self.server.port)
        here = ("--replica-announce-ip", "127.0.0.1", "--replica-announce-port", str(self.wire.port))
        follows = ("--replicaof", "127.0.0.1", str(primary.port)) if primary else ()
        self.server = OwnRedis("--enable-protected-configs", "yes", *here, *follows)
        self._disk = self.server.folder / "disk"

    def start(self) -> None:
        """Start it, with a disk and a wish to save now and then: without one it would not mind the loss of its disk."""
        self.server.start()
        self._disk.mkdir(exist_ok=True)
        self.ask("CONFIG", "SET", "dir", str(self._disk))
        self.ask("CONFIG", "SET", "save", "86400 1000000")

    def heal(self) -> None:
        """Run, with memory and a disk, whatever a fault that was disturbed has left."""
        if not self.server.runs:
            self.start()
        self.server.thaw()
        self._disk.mkdir(exist_ok=True)
        for name, value in (("maxmemory", "0"), ("dir", str(self._disk)), ("stop-writes-on-bgsave-error", "no")):
            self.ask("CONFIG", "SET", name, value)

    def ask(self, *words: str) -> bytes:
        return ask(self.server, *words)

    def lose_disk(self) -> None:
        """Saving fails from now on, and so does every write: MISCONF."""
        shutil.rmtree(self._disk)
        self.ask("BGSAVE")
        wait_for(lambda: b"rdb_last_bgsave_status:err" in self.ask("INFO", "persistence"), self._log, 10)

    def find_disk(self) -> None:
        """Saving works again."""
        Path(self._disk).mkdir(exist_ok=True)
        self.ask("CONFIG", "SET", "dir", str(self._disk))
        self.ask("BGSAVE")
        wait_for(lambda: b"rdb_last_bgsave_status:ok" in self.ask("INFO", "persistence"), self._log, 10)

    def _log(self) -> str:
        return self.server.log.read_text()[-2000:]

    @property
    def is_primary(self) -> bool:
        try:
            return b"master" in self.ask("ROLE")
        except OSError:
            return False


class Redises:
    """What workers are given as their Redis."""

    def __init__(self, wires: Wires, *, with_sentinel: bool) -> None:
        self._wires = wires
        self._held = ExitStack()
        first = Node(wires)
        self.nodes = [first, Node(wires, first.wire)] if with_sentinel else [first]
        self.sentinel: OwnRedis | None = None
        if with_sentinel:
            self.sentinel = OwnRedis("--sentinel", config=WATCH.format(group=GROUP, port=first.wire.port))

    def __enter__(self) -> Self:
        for node in self.nodes:
            self._held.push(node.server.__exit__)
            node.start()
        if self.sentinel is not None:
            self._held.enter_context(self.sentinel)
            wait_for(self._sees_replica, lambda: "the Sentinel does not see the replica", 20)
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def _sees_replica(self) -> bool:
        assert self.sentinel is not None
        said = ask(self.sentinel, "SENTINEL", "REPLICAS", GROUP)
        return b"master-link-status\r\n$2\r\nok" in said

    def for_worker(self) -> tuple[str, list[Wire]]:
        """A URL for one worker, and the wires it goes through."""
        if self.sentinel is not None:
            return f"redis+sentinel://127.0.0.1:{self.sentinel.port}/{GROUP}/0", [node.wire for node in self.nodes]
        wire = self._wires.add(lambda: self.nodes[0].server.port)
        return f"redis://127.0.0.1:{wire.port}", [wire]

    def heal(self) -> None:
        for node in self.nodes:
            node.heal()

    def primary(self) -> Node:
        """The one that is written to at the moment; the first if none is there."""
        return next((node for node in self.nodes if node.is_primary), self.nodes[0])

    def wait_for_failover(self, old: Node) -> None:
        """Until the Sentinel has made the other one primary."""
        wait_for(lambda: any(node.is_primary for node in self.nodes if node is not old), str, 30)
