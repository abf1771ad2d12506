"""The faults: each does its harm, waits, heals it, and says whom it has hit, so that recovery can be measured."""

from __future__ import annotations

import asyncio
import random
import subprocess
import time
from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec
import psutil
import redis

from tests.chaos.clock import HOUR
from tests.chaos.stage import LEASE_SECONDS, Place, Stage

Needs = Literal["", "sentinel", "clock"]
# How recovery is measured: until the victims' leases are taken back; by the longest wait of a probe; from when Postgres
# answers to the next claim; until what a lost claim had taken runs or is given back.
Measure = Literal["leases", "probes", "postgres", "claims"]
BOUNDS: dict[Measure, float] = {"leases": LEASE_SECONDS + 2, "probes": 1.5, "postgres": 5.0, "claims": 60.0}
WAKE = "{aaiq}:wake:default"


class Hurt(msgspec.Struct):
    """One fault that has happened."""

    name: str
    measure: Measure | None
    began: float
    ended: float = 0.0
    answered: float = 0.0  # when Postgres was back
    pids: list[int] = []
    run: tuple[int, int] | None = None  # task and epoch
    alone: bool = True
    recovery: float | None = None
    note: str = ""


Act = Callable[[Stage, random.Random, Hurt], Awaitable[None]]


class Fault(msgspec.Struct, frozen=True):
    """One kind of fault."""

    name: str
    act: Act
    measure: Measure | None
    party: str  # faults of different parties may happen at once
    needs: Needs = ""

    @property
    def bound(self) -> float | None:
        """Seconds within which recovery has to come; a probe is promised to be quick where only Redis is ill."""
        if self.measure is None:
            return None
        return BOUNDS["leases" if self.measure == "probes" and self.party != "redis" else self.measure]


FAULTS: dict[str, Fault] = {}


def fault(name: str, party: str, measure: Measure | None, needs: Needs = "") -> Callable[[Act], Act]:
    def add(act: Act) -> Act:
        FAULTS[name] = Fault(name, act, measure, party, needs)
        return act

    return add


def _victim(stage: Stage, chance: random.Random, hurt: Hurt) -> Place:
    place = chance.choice(stage.places)
    hurt.pids.append(place.process.pid)
    hurt.note = place.name
    return place


@fault("worker-killed", "worker", "leases")
async def worker_killed(stage: Stage, chance: random.Random, hurt: Hurt) -> None:
    _victim(stage, chance, hurt).process.kill()


@fault("background-killed", "worker", "probes")
async def background_killed(stage: Stage, chance: random.Random, hurt: Hurt) -> None:
    stage.background.process.kill()


@fault("worker-stopped", "worker", None)
async def worker_stopped(stage: Stage, chance: random.Random, hurt: Hurt) -> None:
    """SIGTERM, as of a deploy: what does not end in time is handed back."""
    victim = _victim(stage, chance, hurt).process
    try:
        hurt.note += f", exit {await asyncio.to_thread(victim.terminate)}"
    except subprocess.TimeoutExpired:  # what strikes beside it may hold it up, a supervisor's patience ends
        hurt.note += ", killed"
        victim.kill()


@fault("worker-frozen", "worker", "leases")
async def worker_frozen(stage: Stage, chance: random.Random, hurt: Hurt) -> None:
    victim = _victim(stage, chance, hurt).process
    victim.freeze()
    await asyncio.sleep(LEASE_SECONDS + chance.uniform(1, 3))
    victim.thaw()


@fault("child-killed", "worker", "leases")
async def child_killed(stage: Stage, chance: random.Random, hurt: Hurt) -> None:
    """As if a run had taken all memory: its child process is gone, its worker is not."""
    parents = {place.process.pid for place in stage.places}
    until = time.monotonic() + 10
    while time.monotonic() < until:
        lines = stage.journal()
        ended = {(line.task_id, line.run_epoch) for line in lines if line.kind == "end"}
        for line in reversed([line for line in lines if line.kind == "start" and line.pid not in parents]):
            if (line.task_id, line.run_epoch) in ended or not psutil.pid_exists(line.pid):
                continue
            try:
                process = psutil.Process(line.pid)
                if parents & {parent.pid for parent in process.parents()}:
                    process.kill()
                    hurt.run = line.task_id, line.run_epoch
                    hurt.note = f"{line.what} {line.task_id}"
                    return
            except psutil.NoSuchProcess:
                continue
        await asyncio.sleep(0.1)
    hurt.note = "nobody to kill"


@fault("redis-killed", "redis", "probes")
async def redis_killed(stage: Stage, chance: random.Random, hurt: Hurt) -> None:
    node = stage.redises.primary()
    node.server.kill()
    await asyncio.sleep(chance.uniform(0.5, 3))
    await asyncio.to_thread(node.start)


@fault("redis-failed-over", "redis", "probes", "sentinel")
async def redis_failed_over(stage: Stage, chance: random.Random, hurt: Hurt) -> None:
    node = stage.redises.primary()
    node.server.kill()
    await asyncio.to_thread(stage.redises.wait_for_failover, node)
    await asyncio.sleep(chance.uniform(0, 2))
    await asyncio.to_thread(node.start)


@fault("redis-flushed", "redis", "probes")
async def redis_flushed(stage: Stage, chance: random.Random, hurt: Hurt) -> None:
    stage.redises.primary().ask("FLUSHALL")


@fault("redis-paused", "redis", "probes")
async def redis_paused(stage: Stage, chance: random.Random, hurt: Hurt) -> None:
    seconds = chance.uniform(1, 3)
    stage.redises.primary().ask("CLIENT", "PAUSE", str(int(seconds * 1000)), "ALL")
    await asyncio.sleep(seconds)


@fault("redis-frozen", "redis", "probes")
async def redis_frozen(stage: Stage, chance: random.Random, hurt: Hurt) -> None:
    server = stage.redises.primary().server
    server.freeze()
    await asyncio.sleep(chance.uniform(1, 3))
    server.thaw()


@fault("redis-slow", "redis", "probes")
async def redis_slow(stage: Stage, chance: random.Random, hurt: Hurt) -> None:
    wires = [wire for place in stage.places for wire in place.redis]
    for wire in wires:
        wire.delay = chance.uniform(0.1, 0.5)
    await asyncio.sleep(chance.uniform(2, 4))
    for wire in wires:
        wire.delay = 0.0


@fault("redis-out-of-memory", "redis", "probes")
async def redis_out_of_memory(stage: Stage, chance: random.Random, hurt: Hurt) -> None:
    node = stage.redises.primary()
    node.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
    node.ask("CONFIG", "SET", "maxmemory", "1")
    await asyncio.sleep(chance.uniform(1, 3))
    node.ask("CONFIG", "SET", "maxmemory", "0")


@fault("redis-disk-full", "redis", "probes")
async def redis_disk_full(stage: Stage, chance: random.Random, hurt: Hurt) -> None:
    """Redis cannot save and so refuses every write: what a full disk looks like to its clients."""
    node = stage.redises.primary()
    await asyncio.to_thread(node.lose_disk)
    await asyncio.sleep(chance.uniform(1, 3))
    await asyncio.to_thread(node.find_disk)


@fault("wakeups-lost", "redis", "probes")
async def wakeups_lost(stage: Stage, chance: random.Random, hurt: Hurt) -> None:
    node = stage.redises.primary()
    until = time.monotonic() + chance.uniform(1, 3)
    while time.monotonic() < until:
        for queue in ("default", "probe"):
            node.ask("XTRIM", WAKE.replace("default", queue), "MAXLEN", "0")
        await asyncio.sleep(0.01)


@fault("wakeups-repeated", "redis", "probes")
async def wakeups_repeated(stage: Stage, chance: random.Random, hurt: Hurt) -> None:
    """Every hint of the stream once more, and in the wrong order."""
    await asyncio.to_thread(_repeat_wakeups, stage, chance, hurt)


def _repeat_wakeups(stage: Stage, chance: random.Random, hurt: Hurt) -> None:
    with redis.Redis(port=stage.redises.primary().server.port, socket_timeout=5) as client:
        for _ in range(5):
            entries = [fields for _, fields in client.xrange(WAKE)][-300:]
            chance.shuffle(entries)
            for fields in [*entries, *reversed(entries)]:
                client.xadd(WAKE, fields)
        hurt.note = f"{len(entries)} hints"


@fault("postgres-crashed", "postgres", "postgres")
async def postgres_crashed(stage: Stage, chance: random.Random, hurt: Hurt) -> None:
    hurt.answered = await asyncio.to_thread(stage.restart_postgres, "immediate", chance.uniform(0, 2))


@fault("postgres-away", "postgres", "postgres")
async def postgres_away(stage: Stage, chance: random.Random, hurt: Hurt) -> None:
    """For longer than the lease: every worker stops its runs by its own clock."""
    away = LEASE_SECONDS + chance.uniform(0, 2)
    hurt.answered = await asyncio.to_thread(stage.restart_postgres, "fast", away)


@fault("backends-terminated", "postgres", "probes")
async def backends_terminated(stage: Stage, chance: random.Random, hurt: Hurt) -> None:
    """Connections of workers and producers are cut by the server, those in the middle of a statement first."""
    for _ in range(5):
        rows = await asyncio.to_thread(
            stage.look.rows,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND (state <> 'idle' OR random() < 0.3)",
        )
        hurt.note = f"{len(rows)} the last time"
        await asyncio.sleep(chance.uniform(0.05, 0.4))


async def _lose_answers(stage: Stage, chance: random.Random, hurt: Hurt, kind: str) -> None:
    wire = _victim(stage, chance, hurt).postgres
    before = len(wire.lost)
    wire.lose_answers(kind, chance.randint(1, 3))
    until = time.monotonic() + 6
    while wire.doomed and time.monotonic() < until:  # noqa: ASYNC110 - the wire is of another thread
        await asyncio.sleep(0.05)
    wire.doomed = []
    hurt.note += f", {len(wire.lost) - before} answers"


@fault("claim-answer-lost", "wire", "claims")
async def claim_answer_lost(stage: Stage, chance: random.Random, hurt: Hurt) -> None:
    await _lose_answers(stage, chance, hurt, "claim")


@fault("end-answer-lost", "wire", None)
async def end_answer_lost(stage: Stage, chance: random.Random, hurt: Hurt) -> None:
    await _lose_answers(stage, chance, hurt, "end")


@fault("commit-answer-lost", "wire", None)
async def commit_answer_lost(stage: Stage, chance: random.Random, hurt: Hurt) -> None:
    """Of a task's own transaction, and of whatever else a worker commits."""
    await _lose_answers(stage, chance, hurt, "commit")


@fault("enqueue-answer-lost", "wire", None)
async def enqueue_answer_lost(stage: Stage, chance: random.Random, hurt: Hurt) -> None:
    """Of producers: written, and they do not know."""
    wire = stage.producer_wire
    before = len(wire.lost)
    wire.lose_answers(chance.choice(["enqueue", "commit"]), chance.randint(2, 5))
    await asyncio.sleep(2)
    wire.doomed = []
    hurt.note = f"{len(wire.lost) - before} answers"


@fault("worker-cut-off", "wire", "leases")
async def worker_cut_off(stage: Stage, chance: random.Random, hurt: Hurt) -> None:
    """From Postgres, without a word, past its lease."""
    wire = _victim(stage, chance, hurt).postgres
    wire.freeze()
    await asyncio.sleep(LEASE_SECONDS + chance.uniform(1, 3))
    wire.heal()


@fault("worker-reset", "wire", "probes")
async def worker_reset(stage: Stage, chance: random.Random, hurt: Hurt) -> None:
    """Its connections to Postgres are reset, again and again, and for a moment refused."""
    wire = _victim(stage, chance, hurt).postgres
    for _ in range(chance.randint(2, 6)):
        wire.cut()
        await asyncio.sleep(chance.uniform(0.02, 0.4))
    wire.refuse()
    await asyncio.sleep(chance.uniform(0.2, 1))
    wire.heal()


@fault("worker-slow", "wire", "probes")
async def worker_slow(stage: Stage, chance: random.Random, hurt: Hurt) -> None:
    wire = _victim(stage, chance, hurt).postgres
    wire.delay = chance.uniform(0.05, 0.3)
    await asyncio.sleep(chance.uniform(2, 5))
    wire.delay = 0.0


@fault("worker-without-redis", "wire", "probes")
async def worker_without_redis(stage: Stage, chance: random.Random, hurt: Hurt) -> None:
    wires = _victim(stage, chance, hurt).redis
    for wire in wires:
        wire.freeze()
    await asyncio.sleep(chance.uniform(1, 4))
    for wire in wires:
        wire.heal()


@fault("producer-cut-off", "wire", None)
async def producer_cut_off(stage: Stage, chance: random.Random, hurt: Hurt) -> None:
    harm = chance.choice([stage.producer_wire.freeze, stage.producer_wire.refuse, stage.producer_wire.cut])
    harm()
    await asyncio.sleep(chance.uniform(0.5, 3))
    stage.producer_wire.heal()


@fault("clock-jumped", "worker", "probes", "clock")
async def clock_jumped(stage: Stage, chance: random.Random, hurt: Hurt) -> None:
    place = _victim(stage, chance, hurt)
    for _ in range(chance.randint(1, 3)):
        jump = chance.choice([-1, 1]) * chance.choice([2, 60, HOUR, 400 * 24 * HOUR])
        place.clock.jump(jump)
        hurt.note += f" {jump:+} s"
        await asyncio.sleep(chance.uniform(0.5, 2))
    place.clock.jump(0)
