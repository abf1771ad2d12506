"""What is wrong is an alarm while it is so, and an event when it begins and ends."""

from __future__ import annotations

import pytest

from aaiclick_queue.alarms import Alarm, read_alarms
from aaiclick_queue.flow import detect
from aaiclick_queue.flow.detect import Detector
from aaiclick_queue.flow.lines import look_at_queues
from aaiclick_queue.flow.reaper import Reaper
from aaiclick_queue.postgres import Database
from aaiclick_queue.system_events import read_system_events
from tests.tools import age, leased, put, register_worker


class Watching:
    """Looks, as the background does."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._detector = Detector(db.settings)

    async def look(self) -> dict[str, Alarm]:
        """The alarms after one look, by kind."""
        await self._detector.detect_once(self._db, await look_at_queues(self._db))
        return {alarm.kind: alarm for alarm in await read_alarms(self._db)}


@pytest.fixture
def watching(db: Database) -> Watching:
    return Watching(db)


async def types(db: Database) -> list[str]:
    return [event.type for event in reversed(await read_system_events(db))]


async def test_nothing_is_wrong_with_an_empty_system(db: Database, watching: Watching) -> None:
    assert await watching.look() == {}
    assert await types(db) == []


async def test_a_queue_whose_oldest_task_waits_too_long_is_stuck_until_it_is_not(
    db: Database, watching: Watching
) -> None:
    await register_worker(db)
    await put(db)
    assert await watching.look() == {}
    await age(db, "ready", "ready_at", 1801)
    alarm = (await watching.look())["stuck"]
    assert (alarm.what, alarm.data["ready"]) == ("default", 1)
    assert "default" in alarm.text
    again = (await watching.look())["stuck"]
    assert again.since == alarm.since
    assert again.seen_at > alarm.seen_at
    await db.fetch("UPDATE aaiclick_queue.queues SET paused_at = now()")
    await db.fetch("UPDATE aaiclick_queue.ready SET ready_at = now()")
    assert await watching.look() == {}
    assert await types(db) == ["ORCHESTRATOR_STUCK", "ORCHESTRATOR_CLEARED"]
    [cleared] = await read_system_events(db, types=["ORCHESTRATOR_CLEARED"])
    assert (cleared.data["kind"], cleared.data["what"], cleared.by) == ("stuck", "default", "detection")


async def test_a_paused_queue_is_neither_stuck_nor_without_workers(db: Database, watching: Watching) -> None:
    await put(db)
    await age(db, "ready", "ready_at", 3600)
    await db.fetch("INSERT INTO aaiclick_queue.queues (name, paused_at) VALUES ('default', now())")
    assert await watching.look() == {}


async def test_work_that_no_worker_serves_is_told(db: Database, watching: Watching) -> None:
    await put(db, queue="mail")
    assert await watching.look() == {}
    await age(db, "ready", "ready_at", 61)
    assert (await watching.look())["without_workers"].what == "mail"
    assert await types(db) == ["QUEUE_WITHOUT_WORKERS"]


async def test_a_queue_at_its_greatest_depth_is_told(db: Database, watching: Watching) -> None:
    await register_worker(db)
    await set_depth(db, 3)
    await put(db, count=2)
    assert await watching.look() == {}
    await put(db, count=1)
    alarm = (await watching.look())["backpressure"]
    assert (alarm.data["depth"], alarm.data["max_depth"]) == (3, 3)
    await set_depth(db, 4)
    assert await watching.look() == {}


async def set_depth(db: Database, depth: int) -> None:
    await db.fetch(
        """INSERT INTO aaiclick_queue.queues (name, max_depth) VALUES ('default', $1)
        ON CONFLICT (name) DO UPDATE SET max_depth = excluded.max_depth""",
        depth,
    )


@pytest.mark.breaks_invariants
async def test_a_run_past_its_deadline_is_a_zombie_until_the_reaper_takes_it(db: Database, watching: Watching) -> None:
    run = await leased(db)
    assert await watching.look() == {}
    await age(db, "leases", "deadline_at", 7200)
    assert (await watching.look())["zombie"].what == str(run.task_id)
    assert (await Reaper(db).reap_once()).overdue == 1
    assert await watching.look() == {}
    assert await types(db) == ["ORCHESTRATOR_ZOMBIE", "ORCHESTRATOR_ZOMBIE", "ORCHESTRATOR_CLEARED"]


async def test_a_worker_whose_clock_is_off_is_told(db: Database, watching: Watching) -> None:
    worker_id = await register_worker(db)
    for skew, kinds in ((1.9, set()), (-2.5, {"clock_skew"}), (0.0, set())):
        await db.fetch("UPDATE aaiclick_queue.workers SET skew_seconds = $1", skew)
        alarms = await watching.look()
        assert set(alarms) == kinds
        if kinds:
            assert alarms["clock_skew"].what == str(worker_id)
            assert "2.5 s behind" in alarms["clock_skew"].text


async def test_a_worker_that_was_lost_is_told_for_ten_minutes(db: Database, watching: Watching) -> None:
    await register_worker(db, status="LOST")
    assert set(await watching.look()) == {"lost_worker"}
    await age(db, "workers", "stopped_at", 601)
    assert await watching.look() == {}


async def stalled_job(db: Database, job_id: int, *, tasks: int = 1) -> None:
    """A job whose tasks wait at a gate that nothing will open."""
    await db.fetch(
        """WITH job AS (
            INSERT INTO aaiclick_queue.jobs (id, name, status, created_at)
            VALUES ($1::bigint, 'nightly', 'RUNNING', now() - interval '1 hour')
        ), gate AS (
            INSERT INTO aaiclick_queue.gates (id, job_id, parent_id, total, remaining, kind, rule)
            VALUES ($1::bigint, $1, NULL, $2::int, $2, 'JOB', 'whole'),
                   ($1::bigint + 1, $1, NULL, 1, 1, 'WAIT', 'all_success')
        ), task AS (
            INSERT INTO aaiclick_queue.tasks (id, job_id, member_gate, wait_gate, queue, entrypoint, kwargs)
            SELECT $1::bigint + 1 + n, $1, $1, $1 + 1, 'default', 'a', '{}' FROM generate_series(1, $2::int) AS n
        )
        INSERT INTO aaiclick_queue.waiting (gate_id, task_id)
        SELECT $1::bigint + 1, $1 + 1 + n FROM generate_series(1, $2::int) AS n""",
        job_id,
        tasks,
    )


@pytest.mark.breaks_invariants
async def test_an_open_job_of_which_nothing_is_on_its_way_stalls(db: Database, watching: Watching) -> None:
    await stalled_job(db, 1000)
    alarm = (await watching.look())["stall"]
    assert (alarm.what, alarm.data["name"], alarm.data["open"]) == ("1000", "nightly", 1)
    await db.fetch(
        "INSERT INTO aaiclick_queue.delayed (task_id, not_before, order_key, rank, queue, reason) "
        "VALUES (1002, now() + interval '1 hour', 1000, 0, 'default', 'eta')"
    )
    assert await watching.look() == {}
    assert await types(db) == ["ORCHESTRATOR_STALL", "ORCHESTRATOR_CLEARED"]


@pytest.mark.breaks_invariants
async def test_a_job_that_changed_a_moment_ago_or_is_paused_does_not_stall(db: Database, watching: Watching) -> None:
    await stalled_job(db, 1000, tasks=2)
    await db.fetch("UPDATE aaiclick_queue.tasks SET status = 'COMPLETED', finished_at = now() WHERE id = 1002")
    assert await watching.look() == {}
    await age(db, "tasks", "finished_at", 3600)
    assert set(await watching.look()) == {"stall"}
    await db.fetch("UPDATE aaiclick_queue.jobs SET paused_at = now()")
    assert await watching.look() == {}


@pytest.mark.breaks_invariants
async def test_all_open_jobs_are_looked_at_page_by_page_and_alarms_stay_meanwhile(
    db: Database, watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detect, "JOBS", 2)
    for n in range(1, 6):
        await stalled_job(db, 1000 * n)
    seen: list[set[str]] = []
    for _ in range(4):
        await watching.look()
        seen.append({alarm.what for alarm in await read_alarms(db)})
    assert [len(some) for some in seen] == [2, 4, 5, 5]
