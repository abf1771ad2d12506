"""Eight schedulers, killed and started again while time passes over changes of the clock: each tick exactly once."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from aaiclick_queue import Settings
from aaiclick_queue.flow.enqueue import id_source
from aaiclick_queue.flow.register import Registrar
from aaiclick_queue.postgres import Database
from aaiclick_queue.registered import registration
from aaiclick_queue.testing.ageing import Clock
from tests.schedules import scheduler_process
from tests.schedules.acting import assert_whole, drop_wakeups, fire, note
from tests.schedules.expected import BEFORE, BY_HAND, CASES, EVERY_SECOND, ZONES, beats, change_of, cut, fires
from tests.tools import until

SCHEDULERS, SCHEDULES, KILLS = 8, 1000, 30
SECOND = timedelta(seconds=1)
STEPS = (
    30 * SECOND, 95 * SECOND, timedelta(minutes=40), timedelta(hours=6), timedelta(hours=13), timedelta(minutes=17),
    timedelta(minutes=14), timedelta(minutes=50), timedelta(hours=12),
)  # fmt: skip
# Each schedule has a clock of its own: the name of its next tick, and the moment at which that is due.
SET_CLOCKS = """
UPDATE aaiclick_queue.registered_jobs r SET fire_at = given.start, next_run_at = now(), anchor_at = given.start
FROM unnest($1::text[], $2::timestamp[]) AS given(name, start) WHERE r.name = given.name
RETURNING now() AS now
"""
FOUND = """
SELECT r.name, t.fire_at, t.outcome FROM aaiclick_queue.ticks t
JOIN aaiclick_queue.registered_jobs r ON r.id = t.registered_job_id ORDER BY r.name, t.fire_at
"""
DUE = "SELECT count(*) FROM aaiclick_queue.registered_jobs WHERE next_run_at <= now()"


class Planned(NamedTuple):
    """One schedule, where its clock begins, and what it should do up to a moment."""

    name: str
    options: dict[str, Any]
    start: datetime
    until: Callable[[datetime], list[datetime]]


def plan() -> Iterator[Planned]:
    """Schedules of all kinds in all zones, each a second apart from the one before."""
    known = {(case.words, zone): fires(case, zone) for case in (*CASES, EVERY_SECOND) for zone in ZONES}
    kinds: list[Callable[[str, datetime], tuple[dict[str, Any], Callable[[datetime], list[datetime]]]]] = []

    def of_cron(words: str) -> None:
        def make(zone: str, start: datetime) -> tuple[dict[str, Any], Callable[[datetime], list[datetime]]]:
            return {"schedule": words}, lambda end: cut(known[words, zone], start, end)

        kinds.append(make)

    def of_interval(seconds: float) -> None:
        def make(_: str, start: datetime) -> tuple[dict[str, Any], Callable[[datetime], list[datetime]]]:
            return {"interval": seconds}, lambda end: beats(start, round(seconds * 1_000_000), end)

        kinds.append(make)

    def within(zone: str, start: datetime) -> tuple[dict[str, Any], Callable[[datetime], list[datetime]]]:
        first, last = change_of(zone) - 40 * SECOND, change_of(zone) + 20 * SECOND  # without the last itself
        bounds = {"starts_at": first, "ends_at": last}
        return {"schedule": "* * * * * *", **bounds}, lambda end: cut(
            known["* * * * * *", zone], first - SECOND, min(end, last - SECOND)
        )

    def both(zone: str, start: datetime) -> tuple[dict[str, Any], Callable[[datetime], list[datetime]]]:
        words = ["0 * * * *", "15 */3 * * *", "30 2 * * *"]
        return {"schedule": words}, lambda end: sorted(
            {one for some in words for one in cut(known[some, zone], start, end)}
        )

    for case in CASES:
        of_cron(case.words)
    of_interval(5400)
    of_interval(2700.5)
    kinds += [within, both]
    for n, (zone, words, moments) in enumerate(BY_HAND):
        start = change_of(zone) - BEFORE - n * SECOND
        yield Planned(
            f"by hand {n}",
            {"schedule": words, "timezone": zone},
            start,
            lambda end, moments=moments, start=start: cut(moments, start, end),  # type: ignore[misc]
        )
    for n in range(SCHEDULES - len(BY_HAND)):
        zone = [*ZONES][n % len(ZONES)]
        start = change_of(zone) - BEFORE - n * SECOND + timedelta(microseconds=500_000)
        options, expected = kinds[n // len(ZONES) % len(kinds)](zone, start)
        yield Planned(f"{zone} {n}", {"timezone": zone, **options}, start, expected)


class Schedulers:
    """Processes that are ended without a word, and started again."""

    def __init__(self, url: str) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([scheduler_process.__name__])
        self._url = url
        self._random = random.Random(5)
        self.kills = 0
        self.processes: list[BaseProcess] = [self._start() for _ in range(SCHEDULERS)]

    def _start(self) -> BaseProcess:
        process = self._context.Process(target=scheduler_process.run, args=(self._url,), daemon=True)
        process.start()
        return process

    async def hurt(self) -> None:
        """End one after the other, also in the middle of its step."""
        while self.kills < KILLS:
            await asyncio.sleep(self._random.uniform(0.05, 0.8))
            at = self._random.randrange(SCHEDULERS)
            assert self.processes[at].is_alive(), "a scheduler died by itself"
            self._end(self.processes[at])
            self.processes[at] = self._start()
            self.kills += 1

    def _end(self, process: BaseProcess) -> None:
        process.kill()
        process.join()

    def end(self) -> None:
        for process in self.processes:
            self._end(process)


@contextmanager
def schedulers(url: str) -> Iterator[Schedulers]:
    made = Schedulers(url)
    try:
        yield made
    finally:
        made.end()


async def test_eight_schedulers_that_are_killed_fire_each_tick_of_a_thousand_schedules_once(
    settings: Settings, db: Database
) -> None:
    planned = [*plan()]
    assert len(planned) == SCHEDULES
    async with db.transaction() as tx:
        registrar = Registrar(tx, (await id_source(tx)).take, by="me", seconds=1_000_000)
        for one in planned:
            given = {"misfire": "catch_up", "misfire_limit": 1000, **one.options}
            await registrar.write(registration(one.name, note, given))
    names, starts = [one.name for one in planned], [one.start.replace(tzinfo=None) for one in planned]
    set_at = (await db.fetch(SET_CLOCKS, names, starts))[0]["now"]
    clock, waits = Clock(settings), random.Random(7)
    assert settings.postgres_url
    with schedulers(settings.postgres_url) as fleet:
        hurting = asyncio.create_task(fleet.hurt())
        for by in STEPS:
            await clock.advance(by)
            if waits.random() < 0.5:
                await until(lambda: _nothing_is_due(db), patience=60)
        await until(lambda: _nothing_is_due(db), patience=60)
        await hurting
    await until(lambda: db.fetchval("SELECT count(*) = 0 FROM pg_locks WHERE mode = 'RowExclusiveLock'"))
    least = await db.fetchval("SELECT now()")
    await fire(db)
    most = await db.fetchval("SELECT now()")
    passed = sum(STEPS, timedelta(0))
    found: dict[str, list[datetime]] = {one.name: [] for one in planned}
    for row in await db.fetch(FOUND):
        assert row["outcome"] == "FIRED"
        found[row["name"]].append(row["fire_at"].replace(tzinfo=UTC))
    wrong = [
        f"{one.name} {one.options}: {[str(fire) for fire in sorted({*found[one.name]} ^ {*least_of})][:5]}"
        for one in planned
        for least_of in [one.until(one.start + passed + (least - set_at))]
        if found[one.name] != least_of and found[one.name] != one.until(one.start + passed + (most - set_at))
    ]
    assert not wrong, "\n".join(wrong[:20])
    assert sum(map(len, found.values())) > 10 * SCHEDULES
    await assert_whole(db)
    await drop_wakeups(db)


async def _nothing_is_due(db: Database) -> bool:
    await asyncio.sleep(0.05)
    return not await db.fetchval(DUE)
