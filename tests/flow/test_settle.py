"""Settle: what becomes of a run that did not succeed, and what it costs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from aaiclick_queue.flow.reaper import Reaper
from aaiclick_queue.outcome import Cancelled, Error, Failed, Later, Lost, Outcome, Released
from aaiclick_queue.postgres import Database
from aaiclick_queue.retry import Retry
from tests.tools import claim, count, end, holder_of, leased, make_due, place_of, register_worker, row, rows

BOOM = Error("Boom", "it went wrong", "line 1")


async def settled(db: Database, outcome: Outcome, **spec: Any) -> int:
    """A task whose first run came to that."""
    run = await leased(db, **spec)
    await db.fetch("DELETE FROM aaiclick_queue.outbox")
    assert await end(db, run, outcome)
    return run.task_id


async def waits(db: Database, task_id: int) -> float:
    """Seconds from its last run until it is due."""
    [found] = await db.fetch(
        """SELECT extract(epoch FROM d.not_before - a.finished_at)::float8 AS seconds FROM aaiclick_queue.delayed d
           JOIN aaiclick_queue.attempts a USING (task_id) WHERE task_id = $1""",
        task_id,
    )
    return float(found["seconds"])


async def event(db: Database, task_id: int) -> dict[str, Any]:
    return await row(db, "events", task_id)


async def test_a_retry_spends_the_attempt_and_waits_for_its_time(db: Database) -> None:
    task_id = await settled(db, Later("RETRYING", BOOM, 5), priority=3, queue="mail")
    place = await row(db, "delayed", task_id)
    assert (place["attempt"], place["run_epoch"], place["lost_count"], place["snoozes"]) == (1, 1, 0, 0)
    assert (place["queue"], place["rank"], place["order_key"], place["reason"]) == ("mail", -3, task_id, "retry")
    assert await waits(db, task_id) == pytest.approx(5)
    attempt = await row(db, "attempts", task_id)
    assert (attempt["outcome"], attempt["attempt"], attempt["run_epoch"]) == ("RETRYING", 1, 1)
    assert msgspec.json.decode(attempt["error"], type=Error) == BOOM
    noted = await event(db, task_id)
    assert noted["type"] == "TASK_RETRYING"
    assert msgspec.json.decode(noted["data"])["error"] == "Boom"
    assert "not_before" in msgspec.json.decode(noted["data"])
    assert (await row(db, "tasks", task_id))["status"] is None


async def test_a_snooze_spends_no_attempt_and_is_counted(db: Database) -> None:
    task_id = await settled(db, Later("SNOOZED", BOOM, 5))
    place = await row(db, "delayed", task_id)
    assert (place["attempt"], place["run_epoch"], place["snoozes"], place["reason"]) == (0, 1, 1, "snooze")
    assert await waits(db, task_id) == pytest.approx(5)
    assert (await row(db, "attempts", task_id))["outcome"] == "SNOOZED"
    assert await count(db, "events") == 0


async def test_an_unknown_entrypoint_spends_no_attempt_and_shows_why(db: Database) -> None:
    task_id = await settled(db, Later("UNKNOWN", BOOM, 5))
    place = await row(db, "delayed", task_id)
    assert (place["attempt"], place["lost_count"], place["reason"]) == (0, 0, "unknown entrypoint")
    assert (await row(db, "attempts", task_id))["outcome"] == "UNKNOWN"
    assert (await event(db, task_id))["type"] == "TASK_UNKNOWN"


async def test_a_run_whose_own_process_died_is_charged_a_loss_and_no_attempt(db: Database) -> None:
    task_id = await settled(db, Lost(BOOM))
    place = await row(db, "delayed", task_id)
    assert (place["attempt"], place["lost_count"], place["reason"]) == (0, 1, "lost")
    assert 0 < await waits(db, task_id) <= 1
    assert (await event(db, task_id))["type"] == "TASK_LOST"


async def test_a_released_run_is_in_line_again_at_once_and_at_no_cost(db: Database) -> None:
    task_id = await settled(db, Released(), priority=3, queue="mail")
    place = await row(db, "ready", task_id)
    assert (place["attempt"], place["run_epoch"], place["lost_count"], place["snoozes"]) == (0, 1, 0, 0)
    assert (place["queue"], place["rank"], place["order_key"]) == ("mail", -3, task_id)
    assert [(told["queue"], told["task_ids"]) for told in await rows(db, "outbox")] == [("mail", [task_id])]
    assert await count(db, "attempts") == 0
    assert await count(db, "events") == 0


@pytest.mark.parametrize("outcome", [Failed(BOOM), Cancelled(BOOM)])
async def test_an_end_is_written_on_the_task_itself(db: Database, outcome: Failed | Cancelled) -> None:
    run = await leased(db)
    worker_id = await holder_of(db, run.task_id)
    assert await end(db, run, outcome)
    task = await row(db, "tasks", run.task_id)
    assert task["status"] == type(outcome).__name__.upper()
    assert (task["attempt"], task["run_epoch"], task["worker_id"]) == (1, 1, worker_id)
    assert msgspec.json.decode(task["error"], type=Error) == BOOM
    assert task["finished_at"] >= task["started_at"]
    assert await count(db, "attempts") == 0
    assert [noted["type"] for noted in await rows(db, "events")] == (
        ["TASK_CANCELLED"] if isinstance(outcome, Cancelled) else []
    )


async def test_all_counts_travel_through_every_place(db: Database) -> None:
    run = await leased(db)
    worker_id = await register_worker(db)
    expected = []
    for outcome in (
        Later("RETRYING", BOOM, 0),
        Later("SNOOZED", BOOM, 0),
        Lost(BOOM),
        Released(),
        Later("UNKNOWN", BOOM, 0),
    ):
        assert await end(db, run, outcome)
        await make_due(db)
        await Reaper(db).due_once()
        [run] = await claim(db, worker_id)
        expected.append((run.run_epoch, run.attempt, run.snoozes, run.lost_count))
    assert expected == [(2, 2, 0, 0), (3, 2, 1, 0), (4, 2, 1, 1), (5, 2, 1, 1), (6, 2, 1, 1)]


async def test_a_priority_or_queue_that_changed_during_the_run_holds_for_the_next_one(db: Database) -> None:
    for outcome, place in ((Later("RETRYING", BOOM, 5), "delayed"), (Released(), "ready")):
        run = await leased(db)
        await db.fetch("UPDATE aaiclick_queue.tasks SET priority = 8, queue = 'mail' WHERE id = $1", run.task_id)
        assert await end(db, run, outcome)
        found = await row(db, place, run.task_id)
        assert (found["queue"], found["rank"]) == ("mail", -8)


# Backoff.


@pytest.mark.parametrize(
    ("retry", "attempt", "seconds"),
    [
        (Retry(jitter=False), 1, 1),
        (Retry(jitter=False), 4, 8),
        (Retry(jitter=False), 1000, 600),
        (Retry(delay=3, factor=1, jitter=False), 9, 3),
        (Retry(delay=0, jitter=False), 5, 0),
        (Retry(delay=2, factor=10, max_delay=50, jitter=False), 2, 20),
        (Retry(delay=2, factor=10, max_delay=50, jitter=False), 3, 50),
    ],
)
async def test_the_backoff_grows_by_its_factor_up_to_its_longest(
    db: Database, retry: Retry, attempt: int, seconds: float
) -> None:
    found = await db.fetchval(
        "SELECT extract(epoch FROM aaiclick_queue.backoff($1::text::jsonb, $2))::float8", retry.text(), attempt
    )
    assert found == pytest.approx(seconds)


async def test_the_default_backoff_is_a_second_doubled_with_jitter(db: Database) -> None:
    found = await db.fetch(
        "SELECT extract(epoch FROM aaiclick_queue.backoff(NULL, 3))::float8 AS s FROM generate_series(1, 200)"
    )
    seconds = [row["s"] for row in found]
    assert 2 <= min(seconds) < 3
    assert 5 < max(seconds) <= 6


async def test_a_retry_without_a_time_of_its_own_waits_as_the_task_says(db: Database) -> None:
    policy = Retry(delay=30, factor=2, jitter=False).text()
    task_id = await settled(db, Later("RETRYING", BOOM), retry=policy)
    assert await waits(db, task_id) == pytest.approx(30)
    assert await place_of(db, task_id) == ["delayed"]
