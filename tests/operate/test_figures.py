"""What ran is counted once, whoever ran it, and read as it was."""

from __future__ import annotations

from typing import Any

import pytest

from aaiclick_queue import Cancel, Client, Retry, Settings, Snooze, current, task
from aaiclick_queue.buckets import RUN_BUCKETS, WAIT_BUCKETS, percentile
from aaiclick_queue.errors import PostgresUnavailable
from aaiclick_queue.figures import (
    read_entrypoint_figures,
    read_queue_figures,
    read_queue_history,
    read_throughput,
)
from aaiclick_queue.flow import tally
from aaiclick_queue.flow.prune_operate import prune_operate
from aaiclick_queue.flow.reaper import Reaper
from aaiclick_queue.flow.tally import COMPLETED, COUNTS, FAILED, OTHER, Tallied, Tally
from aaiclick_queue.postgres import Database
from tests.tools import age, changed, leased, rows, running_worker, until

slept: list[int] = []


@task(name="tests.figures.well")
async def well(n: int) -> int:
    return n


@task(name="tests.figures.ill", max_attempts=1)
async def ill() -> None:
    raise ValueError("no")


@task(name="tests.figures.twice", max_attempts=2)
async def twice() -> None:
    if current().attempt == 1:
        raise Retry(0.01)


@task(name="tests.figures.sleepy")
async def sleepy() -> None:
    if not slept:
        slept.append(1)
        raise Snooze(0.01)


@task(name="tests.figures.given_up")
async def given_up() -> None:
    raise Cancel("not wanted")


@task(name="tests.figures.in_one")
async def in_one() -> None:
    async with current().transaction():
        pass


async def summed(db: Database) -> dict[str, int]:
    """All figures, added up."""
    [row] = await db.fetch(
        f"SELECT {', '.join(f'coalesce(sum({name}), 0)::int AS {name}' for name in COUNTS)} FROM aaiclick_queue.figures"
    )
    return dict(row)


async def statuses(db: Database) -> dict[str, int]:
    found = await db.fetch("SELECT status, count(*)::int AS n FROM aaiclick_queue.tasks GROUP BY status")
    return {row["status"] or "OPEN": row["n"] for row in found}


async def enqueue_all(client: Client) -> None:
    for n in range(50):
        await well.enqueue(n, client=client)
    for one in (ill, ill, twice, sleepy, given_up, in_one):
        await one.enqueue(client=client)


async def test_every_run_of_real_workers_is_counted_once(db: Database, client: Client, quick: Settings) -> None:
    await enqueue_all(client)
    async with running_worker(quick), running_worker(quick):
        await until(lambda: ended(db, 56))
    assert await statuses(db) == {"COMPLETED": 53, "FAILED": 2, "CANCELLED": 1}
    counted = await summed(db)
    assert counted == {"completed": 53, "failed": 2, "retried": 1, "lost": 0, "cancelled": 1, "snoozed": 1}
    for figure in await rows(db, "figures"):
        runs = sum(figure[name] for name in COUNTS)
        assert sum(figure["waits"]) == sum(figure["runs"]) == runs
        assert (len(figure["waits"]), len(figure["runs"])) == (len(WAIT_BUCKETS) + 1, len(RUN_BUCKETS) + 1)


async def ended(db: Database, n: int) -> bool:
    return (await statuses(db)).get("OPEN", 0) == 0 and sum((await statuses(db)).values()) == n


async def test_figures_come_with_a_heartbeat(db: Database, client: Client, quick: Settings) -> None:
    async with running_worker(quick):
        await well.enqueue(1, client=client)
        await until(lambda: completed(db, 1))


async def completed(db: Database, n: int) -> bool:
    return (await summed(db))["completed"] == n


class Unwilling:
    """A database that takes nothing."""

    async def fetch(self, sql: str, *args: Any) -> list[Any]:
        raise PostgresUnavailable("gone")


async def test_what_did_not_land_is_counted_with_the_next_flush(db: Database) -> None:
    figures = Tally()
    figures.count([run("a", COMPLETED), run("a", FAILED)])
    with pytest.raises(PostgresUnavailable):
        await figures.flush(Unwilling(), patience=1)
    figures.count([run("a", COMPLETED), run("b", COMPLETED)])
    assert await figures.flush(db, patience=1)
    assert not await figures.flush(db, patience=1)
    counted = await summed(db)
    assert (counted["completed"], counted["failed"]) == (3, 1)


def run(entrypoint: str, place: int, *, waited: float = 0.2, seconds: float = 0.02) -> Tallied:
    return Tallied("default", entrypoint, waited, seconds, place)


async def test_two_processes_add_up_place_by_place(db: Database) -> None:
    one, other = Tally(), Tally()
    one.count([run("a", COMPLETED, waited=0.001), run("a", COMPLETED, waited=4000)])
    other.count([run("a", COMPLETED, waited=0.001, seconds=5000)])
    for figures in (one, other):
        await figures.flush(db, patience=1)
    found = await rows(db, "figures")
    waits = [sum(row["waits"][place] for row in found) for place in range(len(WAIT_BUCKETS) + 1)]
    runs = [sum(row["runs"][place] for row in found) for place in range(len(RUN_BUCKETS) + 1)]
    assert (waits[0], waits[-1], sum(waits)) == (2, 1, 3)
    assert (runs[2], runs[-1], sum(runs)) == (2, 1, 3)


async def test_names_beyond_two_hundred_a_minute_are_one(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "ENTRYPOINTS_A_QUEUE", 3)
    figures = Tally()
    figures.count([run(f"task {n}", COMPLETED) for n in range(10)])
    figures.give_back(figures.take())
    await figures.flush(db, patience=1)
    figures.count([run("task 9", COMPLETED)])
    await figures.flush(db, patience=1)
    counted = {row.entrypoint: row.completed for row in await read_entrypoint_figures(db, hours=1)}
    assert set(counted) >= {"task 0", "task 1", "task 2", OTHER}
    assert sum(counted.values()) == 11


async def test_runs_of_a_lost_worker_are_counted_by_whoever_takes_them(db: Database, settings: Settings) -> None:
    claimed = await leased(db)
    await age(db, "workers", "lease_expires_at", 3600)
    figures = Tally()
    async with Database(changed(settings, lease_seconds=1), size=1, flow=True) as flow:
        reaper = Reaper(flow, figures)
        await until(lambda: reaped(reaper))
    await figures.flush(db, patience=1)
    [row] = await rows(db, "figures")
    assert (row["lost"], row["queue"], row["entrypoint"]) == (1, claimed.queue, claimed.entrypoint)


async def reaped(reaper: Reaper) -> bool:
    return (await reaper.reap_once()).lost == 1


async def test_throughput_has_a_point_a_minute_and_beyond_six_hours_one_an_hour(db: Database) -> None:
    figures = Tally()
    figures.count([run("a", COMPLETED, waited=1, seconds=4), run("a", FAILED, waited=2, seconds=8)])
    await figures.flush(db, patience=1)
    for hours, points in ((1, 60), (6, 360), (24, 24), (1000, 168)):
        found = await read_throughput(db, hours=hours)
        assert len(found) == points
        assert (sum(one.completed for one in found), sum(one.failed for one in found)) == (1, 1)
        assert [one.start for one in found] == sorted(one.start for one in found)
        averages = [(one.average_wait_seconds, one.average_run_seconds) for one in found]
        assert [one for one in averages if one != (None, None)] == [(1.5, 6.0)]


async def test_a_queue_shows_rates_percentiles_and_the_time_until_it_is_empty(db: Database) -> None:
    figures = Tally()
    figures.count([run("a", COMPLETED, waited=0.3, seconds=2)] * 100)
    await figures.flush(db, patience=1)
    await age(db, "figures", "minute", 120)
    await db.fetch(
        """INSERT INTO aaiclick_queue.samples (minute, queue, ready, running, delayed, held, created, oldest_seconds)
        VALUES (date_trunc('minute', now()), 'default', 60, 3, 2, 1, 10, 12.5)"""
    )
    found = (await read_queue_figures(db))["default"]
    assert (found.done_per_minute, found.created_per_minute, sum(found.spark), len(found.spark)) == (20, 10, 100, 60)
    assert found.drain_seconds == 360
    assert found.wait_p50 is not None
    assert 0.25 < found.wait_p50 <= 0.5
    assert found.run_p95 is not None
    assert 1 < found.run_p95 <= 2.5
    history = await read_queue_history(db, "default", hours=1)
    assert [one.ready for one in history if one.ready is not None] == [60]
    assert sum(one.done for one in history) == 100
    assert len(await read_queue_history(db, "default", hours=48)) in (48, 49)


def test_a_percentile_lies_in_its_bucket() -> None:
    assert percentile((1.0, 2.0), (0, 0, 0), 0.5) is None
    assert percentile((1.0, 2.0), (10, 0, 0), 0.5) == 0.5
    assert percentile((1.0, 2.0), (5, 5, 0), 0.95) == 1.9
    assert percentile((1.0, 2.0), (0, 0, 7), 0.5) == 2.0


async def test_minutes_of_the_past_become_hours_and_every_figure_stays(db: Database) -> None:
    """Up to six hours are shown by the minute; a chart by the hour does not change."""
    await db.fetch(
        """INSERT INTO aaiclick_queue.figures
            (minute, queue, entrypoint, completed, failed, wait_seconds, run_seconds, waits, runs)
        SELECT date_trunc('minute', now()) - make_interval(mins => n), queue, 'shop.work', n % 7, 1, 0.5, n,
               array_fill(n % 3, ARRAY[$1::int]), array_fill(n % 5, ARRAY[$2::int])
        FROM generate_series(1, 12 * 60) AS n CROSS JOIN unnest(ARRAY['mail', 'reports']) AS queue""",
        len(WAIT_BUCKETS) + 1, len(RUN_BUCKETS) + 1,
    )  # fmt: skip

    async def told() -> Any:
        week = await read_throughput(db, hours=168)
        figures = await read_entrypoint_figures(db, hours=24)
        return week, figures, await read_queue_history(db, "mail", hours=24), await read_throughput(db, hours=6)

    before = await told()
    while await prune_operate(db, rows=300):  # parts of an hour are added to what is there of it
        pass
    assert await told() == before
    counted = "SELECT count(*) AS n, count(DISTINCT date_trunc('hour', minute)) AS hours FROM aaiclick_queue.figures"
    [old] = await db.fetch(f"{counted} WHERE minute < date_trunc('hour', now()) - interval '7 hours'")
    assert old["n"] == 2 * old["hours"] > 0
    [new] = await db.fetch(f"{counted} WHERE minute >= date_trunc('hour', now()) - interval '7 hours'")
    assert new["n"] >= 2 * 7 * 60
