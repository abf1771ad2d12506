"""One round: a stage, a workload, a plan of faults by a seed, and what the checker finds in the end."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Sequence

import msgspec
import redis

from aaiclick_queue import connect, disable_job, doctor
from aaiclick_queue.postgres import Database
from tests.chaos.checks import Wrong, check_calls, check_journal, check_rows, left_behind
from tests.chaos.faults import FAULTS, Fault, Hurt
from tests.chaos.recoveries import measure
from tests.chaos.stage import Stage
from tests.chaos.workload import BEAT, Workload

GAP = (0.5, 2.5)  # seconds between two faults
TOGETHER = 0.35  # how often two strike at once
PATIENCE = 180.0  # seconds in which nothing at all ends: what is left is stuck
LONGEST_DRAIN = 600.0


class Played(msgspec.Struct):
    """What a round came to."""

    seed: int
    with_sentinel: bool
    wanted_seconds: float
    together: float
    load: int = 1
    hurts: list[Hurt] = []
    wrong: list[Wrong] = []
    left_out: list[str] = []
    tasks: int = 0
    statuses: dict[str, int] = {}
    outcomes: dict[str, int] = {}
    errors: dict[str, int] = {}
    seconds: float = 0.0
    told: str = ""


def play(
    seed: int, seconds: float, names: Sequence[str] = tuple(FAULTS), *, together: float = TOGETHER, load: int = 1
) -> Played:
    """Play one round of so many seconds of faults; everything random comes from the seed."""
    with_sentinel = bool(seed % 2) and "redis-failed-over" in names
    played = Played(seed, with_sentinel, seconds, together, load)
    began = time.monotonic()
    with Stage(with_sentinel=with_sentinel) as stage:
        kinds = _possible(stage, names, played)
        asyncio.run(_play(stage, played, kinds, seconds, together))
        if played.wrong:
            played.told = stage.told()
    played.seconds = time.monotonic() - began
    return played


def _possible(stage: Stage, names: Sequence[str], played: Played) -> list[Fault]:
    there = {"": True, "sentinel": played.with_sentinel, "clock": stage.clock_library is not None}
    why = {"sentinel": "this round has no Sentinel", "clock": "no C compiler for the clock"}
    played.left_out = [f"{name}: {why[FAULTS[name].needs]}" for name in names if not there[FAULTS[name].needs]]
    return [FAULTS[name] for name in names if there[FAULTS[name].needs]]


async def _play(stage: Stage, played: Played, kinds: Sequence[Fault], seconds: float, together: float) -> None:
    async with connect(settings=stage.producer_settings) as client, connect(settings=stage.settings) as steady:
        workload = Workload(client, steady, played.seed, load=played.load)
        await workload.prepare()
        around = [asyncio.create_task(loop) for loop in (stage.keep_alive(), workload.probe())]
        producing = asyncio.create_task(workload.run(seconds))
        await _strike(stage, played, kinds, seconds, together)
        workload.stopped = True
        await asyncio.to_thread(stage.heal)
        await producing
        around.pop().cancel()
        await disable_job(BEAT, client=steady)
        stuck = await asyncio.to_thread(_drain, stage)
        await asyncio.to_thread(_judge, stage, played, workload, stuck)
        async with Database(stage.settings, size=1) as db:
            broken = [finding for finding in await doctor.check(db) if not finding.ok]
        played.wrong += [
            Wrong("the doctor found", finding.count, f"{finding.name}: {finding.detail}") for finding in broken
        ]
        for one in around:
            one.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*around)


async def _strike(stage: Stage, played: Played, kinds: Sequence[Fault], seconds: float, together: float) -> None:
    """One fault after the other, each kind as often as the others; some of different parties at once."""
    chance = random.Random(f"{played.seed}-plan")
    until = time.monotonic() + seconds
    deck: list[Fault] = []
    await asyncio.sleep(1)
    while time.monotonic() < until:
        if not deck:
            deck = chance.sample(kinds, len(kinds))
        step = [deck.pop()]
        others = [kind for kind in deck if kind.party != step[0].party]
        if others and chance.random() < together:
            step.append(chance.choice(others))
            deck.remove(step[1])
        seeds = [chance.getrandbits(32) for _ in step]
        await asyncio.gather(
            *(_hurt(stage, played, one, s, alone=len(step) == 1) for one, s in zip(step, seeds, strict=True))
        )
        await asyncio.sleep(chance.uniform(*GAP))


async def _hurt(stage: Stage, played: Played, kind: Fault, seed: int, *, alone: bool) -> None:
    hurt = Hurt(kind.name, kind.measure, time.time(), alone=alone)
    played.hurts.append(hurt)
    try:
        await kind.act(stage, random.Random(seed), hurt)
    except (OSError, redis.RedisError, AssertionError) as error:
        hurt.note += f" not to the end: {error}"[:200]  # what strikes at the same time may be in its way
    hurt.ended = time.time()


def _drain(stage: Stage) -> list[str]:
    """Wait until nothing is left anywhere; what is left when nothing has ended for a long time."""
    began = moved = time.monotonic()
    before = ""
    while True:
        open_jobs = stage.look.value("SELECT count(*) FROM aaiclick_queue.jobs WHERE finished_at IS NULL")
        open_tasks = stage.look.open_tasks()
        left = [f"{open_tasks} tasks open"] * bool(open_tasks) + [f"{open_jobs} jobs open"] * bool(open_jobs)
        left += left_behind(stage.look)
        if not left:
            return []
        now = time.monotonic()
        if str(left) != before:
            before, moved = str(left), now
        if now - moved > PATIENCE or now - began > LONGEST_DRAIN:
            return left
        time.sleep(0.3)


def _judge(stage: Stage, played: Played, workload: Workload, stuck: list[str]) -> None:
    lines = stage.journal()
    look = stage.look
    if stuck:
        played.wrong.append(Wrong("stuck or left behind", len(stuck), "; ".join(stuck)))
    played.wrong += check_rows(look)
    played.wrong += check_calls(look, workload.calls)
    crashed = any(hurt.name == "postgres-crashed" for hurt in played.hurts)
    played.wrong += check_journal(look, lines, crashed=crashed)
    measure(look, played.hurts, workload.probes, lines)
    played.statuses = {str(status): n for status, n in look.statuses().items()}
    played.tasks = sum(played.statuses.values())
    played.outcomes = dict(look.history())
    played.errors = dict(workload.errors)
