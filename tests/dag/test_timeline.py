"""Timelines: every event of a job and of a task is there, in order, told, and paged."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest

from aaiclick_queue import Client, timelines
from aaiclick_queue.errors import BadTask, UnknownTask
from aaiclick_queue.event_words import LEVELS, sentence
from aaiclick_queue.flow.cancel import cancel
from aaiclick_queue.flow.complete import complete
from aaiclick_queue.flow.fenced import keep_checkpoint
from aaiclick_queue.flow.graph import Previous
from aaiclick_queue.flow.reaper import Reaper
from aaiclick_queue.outcome import Cancelled, Ended, Error, Later, Lost, Skipped
from aaiclick_queue.postgres import Database
from aaiclick_queue.reading import timeline
from aaiclick_queue.timeline_rows import RANKS
from aaiclick_queue.timelines import Event, Timeline, read_events_of_name, read_last_events
from tests.dag.hands import FAILS, Hands, settle
from tests.dag.written import planned
from tests.planned import Job, group_before
from tests.tools import make_due, put_one, register_worker

SEEDS = {
    "JOB_CREATED", "JOB_STARTED", "JOB_COMPLETED", "JOB_FAILED", "JOB_CANCELLED", "TASK_READY", "TASK_QUEUED",
    "TASK_RUNNING", "TASK_COMPLETED", "TASK_FAILED", "TASK_RETRYING", "TASK_SKIPPED", "TASK_LOST", "TASK_CHECKPOINT",
    "TASK_CLEARED", "TASK_EXPIRED",
}  # fmt: skip
RETRIED = Later("RETRYING", Error("ValueError", "not yet"), 0.0)


def types(found: Timeline, name: str | None = None) -> list[str]:
    return [event.type for event in found.events if name is None or event.name == name]


def the(found: Timeline, kind: str, name: str | None = None) -> Event:
    [event] = [one for one in found.events if one.type == kind and (name is None or one.name == name)]
    return event


async def eventful(db: Database) -> Job:
    """A job to which all that can happen by itself has happened."""
    job = Job(name="etl", kwargs='{"day":"monday"}')
    a = job.task(name="a", max_attempts=3)
    group = job.group(Previous(a), name="group")
    job.task(group=group, name="b")
    job.task(group_before(group), name="c")
    bad = job.task(a, name="bad")
    job.task(bad, name="behind")
    skips = job.task(a, name="skips")
    job.task(skips, name="beyond")
    lost = job.task(a, name="lost")
    expires = job.task(a, name="expires", countdown=60)
    snoozes = job.task(a, name="snoozes")
    taken = job.task(a, name="taken")
    await job.submit(db)
    hands = await Hands.register(db)
    began = time.monotonic()
    await hands.take()
    await keep_checkpoint(db, hands.fence(job[a]), '{"at": 1}', job_id=job.id, phase="half")
    run = hands.held.pop(job[a])
    ended = Ended(run.task_id, run.run_epoch, RETRIED, began, time.monotonic(), flags=run.flags)
    assert await complete(db, [ended], worker_id=hands.worker_id)
    await make_due(db)
    await Reaper(db).due_once()
    await hands.take()
    await hands.end(job[a])
    await settle(db)
    await hands.take()
    await hands.end(job[bad], outcome=FAILS)
    await hands.end(job[skips], outcome=Skipped(Error("Skipped", "not today")))
    await hands.end(job[lost], outcome=Lost(Error("WorkerLost", "its process died")))
    await hands.end(job[snoozes], outcome=Later("SNOOZED", Error("Snooze", "later"), 0.0))
    await hands.end(job[taken], outcome=Cancelled(Error("Cancel", "no need")))
    await cancel(db, [job[expires]], error=Error("Expired", "its expiry passed before it started"))
    await settle(db)
    await make_due(db)
    await Reaper(db).due_once()
    await hands.run()
    return job


async def test_a_job_shows_everything_that_happened_in_order(db: Database, client: Client) -> None:
    job = await eventful(db)
    found = await timeline(job.id, client=client)
    assert types(found)[:3] == ["JOB_CREATED", "TASK_READY", "TASK_QUEUED"]
    assert "JOB_STARTED" in types(found)
    assert types(found)[-1] == "JOB_FAILED"
    assert types(found, "a") == [
        "TASK_READY", "TASK_QUEUED", "TASK_RUNNING", "TASK_CHECKPOINT", "TASK_FAILED", "TASK_RETRYING", "TASK_QUEUED",
        "TASK_RUNNING", "TASK_COMPLETED",
    ]  # fmt: skip
    ran = ["TASK_READY", "TASK_QUEUED", "TASK_RUNNING"]
    assert types(found, "b") == [*ran, "TASK_COMPLETED"]
    assert types(found, "bad") == [*ran, "TASK_FAILED"]
    assert types(found, "behind") == ["TASK_UPSTREAM_FAILED"]
    assert types(found, "skips") == [*ran, "TASK_SKIPPED"]
    assert types(found, "beyond") == ["TASK_SKIPPED"]
    assert types(found, "lost") == [*ran, "TASK_LOST", "TASK_QUEUED", "TASK_RUNNING", "TASK_COMPLETED"]
    assert types(found, "snoozes") == [*ran, "TASK_SNOOZED", "TASK_QUEUED", "TASK_RUNNING", "TASK_COMPLETED"]
    assert types(found, "taken") == [*ran, "TASK_CANCELLED"]
    assert types(found, "expires") == ["TASK_READY", "TASK_EXPIRED"]
    assert [event.at for event in found.events] == sorted(event.at for event in found.events)
    assert {event.job_id for event in found.events} == {str(job.id)}


async def test_events_carry_what_they_are_about(db: Database, client: Client) -> None:
    found = await timeline(await eventful(db), client=client)
    assert the(found, "JOB_CREATED").data == {"name": "etl", "kwargs": {"day": "monday"}}
    ended = the(found, "JOB_FAILED").data
    assert (ended["tasks"], ended["failed"], ended["skipped"]) == (11, 4, 2)
    assert ended["failed_tasks"] == ["bad"]
    assert "duration" in ended
    ready = the(found, "TASK_READY", "c")
    assert (ready.data["previous"], ready.message) == (["group"], "ready: group ended")
    assert the(found, "TASK_READY", "b").data["previous"] == ["a"]  # what its group waits for
    assert the(found, "TASK_READY", "a").message == "ready: there was nothing to wait for"
    failed = the(found, "TASK_FAILED", "a")
    assert (failed.data["error"], failed.data["will_retry"]) == ("ValueError: not yet", True)
    assert not the(found, "TASK_FAILED", "bad").data["will_retry"]
    again = the(found, "TASK_RETRYING", "a")
    assert again.data["attempt"] == 2
    assert again.message.startswith("attempt 2 is due at ")
    assert the(found, "TASK_SKIPPED", "skips").data["reason"] == "not today"
    assert the(found, "TASK_SKIPPED", "beyond").data["reason"] == "all that it waits for was skipped"
    assert the(found, "TASK_CHECKPOINT").message == "checkpoint half"
    assert "its process died" in the(found, "TASK_LOST").message
    assert the(found, "TASK_EXPIRED").message == "expired before it started"
    [first, second] = [one for one in found.events if one.type == "TASK_RUNNING" and one.name == "a"]
    assert (first.data["attempt"], second.data["attempt"]) == (1, 2)
    assert (first.run_epoch, second.run_epoch) == (1, 2)


async def test_a_task_has_a_timeline_of_its_own(db: Database, client: Client) -> None:
    job = await eventful(db)
    whole = await timeline(job.id, client=client)
    for number, task_id in job.ids.items():
        if any(task.number == number for task in job.plan.tasks):
            own = await timeline(task_id, client=client)
            expected = [event for event in whole.events if event.task_id == str(task_id)]
            assert own.events == expected
            assert own.summary is not None
            assert own.summary.events == len(own.events)


async def test_pages_and_the_summary_are_the_same_as_the_whole(db: Database, client: Client) -> None:
    job = await eventful(db)
    whole = await timeline(job.id, client=client)
    assert whole.more is None
    pages, mark = [], None
    while True:
        page = await timeline(job.id, limit=4, after=mark, client=client)
        pages += page.events
        assert (page.summary is None) == (mark is not None)
        mark = page.more
        if mark is None:
            break
    assert pages == whole.events
    backward: list[Event] = []
    while True:
        page = await timeline(job.id, limit=5, after=mark, newest=True, client=client)
        backward = [*page.events, *backward]
        mark = page.more
        if mark is None:
            break
    assert backward == whole.events
    assert whole.summary is not None
    assert whole.summary.counts == {kind: types(whole).count(kind) for kind in types(whole)}
    assert whole.summary.events == len(whole.events)
    assert (whole.summary.first, whole.summary.last) == (whole.events[0].at, whole.events[-1].at)
    assert whole.summary.duration == whole.events[-1].at - whole.events[0].at
    assert whole.summary.with_retries == ["a"]


async def test_only_the_types_that_are_asked_for_are_shown(db: Database, client: Client) -> None:
    job = await eventful(db)
    found = await timeline(job.id, types=["TASK_FAILED", "TASK_EXPIRED"], client=client)
    assert sorted(types(found)) == ["TASK_EXPIRED", "TASK_FAILED", "TASK_FAILED"]
    assert found.summary is not None
    assert found.summary.counts == {"TASK_FAILED": 2, "TASK_EXPIRED": 1}
    assert types(await timeline(job.id, types="TASK_CANCELLED", client=client)) == ["TASK_CANCELLED"]


async def test_a_job_that_completed_says_so(db: Database, client: Client) -> None:
    job = Job(name="etl")
    job.task()
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.run()
    found = await timeline("etl", client=client)
    end = the(found, "JOB_COMPLETED")
    assert (end.level, end.data["tasks"], end.data["failed"]) == ("SUCCESS", 1, 0)
    assert end.message.startswith("completed in ")
    assert end.message.endswith(": 1 task")


async def test_what_a_task_has_added_says_by_whom(db: Database, client: Client) -> None:
    job = Job()
    a = job.task(name="a")
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take()
    [child] = await hands.spawn(job[a], job.id, planned(10_004))
    found = await timeline(child, client=client)
    assert found.events[0].message == "ready: added by a"


async def test_a_task_without_a_job_has_a_timeline_too(db: Database, client: Client) -> None:
    task_id = await put_one(db)
    hands = await Hands.register(db)
    await hands.take()
    found = await timeline(task_id, client=client)
    assert types(found) == ["TASK_READY", "TASK_QUEUED", "TASK_RUNNING"]
    assert found.events[0].message == "enqueued"
    assert {event.job_id for event in found.events} == {None}
    await hands.end(task_id, outcome=RETRIED)
    found = await timeline(task_id, client=client)
    assert types(found)[-2:] == ["TASK_FAILED", "TASK_RETRYING"]


async def test_a_run_that_was_lost_with_its_worker_shows_both_starts(db: Database, client: Client) -> None:
    job = Job()
    a = job.task(name="a")
    await job.submit(db)
    first = await Hands.register(db)
    await first.take()
    await db.fetch("UPDATE aaiclick_queue.workers SET status = 'LOST'")
    await Reaper(db).reap_once()
    await make_due(db)
    await Reaper(db).due_once()
    second = Hands(db, await register_worker(db))
    await second.run()
    found = await timeline(job[a], client=client)
    assert types(found).count("TASK_RUNNING") == 2
    assert "did not renew its lease" in the(found, "TASK_LOST").message


async def test_a_job_older_than_the_history_still_says_when_it_was_made(db: Database, client: Client) -> None:
    job = await eventful(db)
    await db.fetch("DELETE FROM aaiclick_queue.events")
    found = await timeline(job.id, client=client)
    assert types(found)[0] == "JOB_CREATED"
    assert "JOB_STARTED" in types(found)
    assert types(found, "b")[-1] == "TASK_COMPLETED"


async def test_what_somebody_does_who_is_cancelled_after_a_gate_opened_is_no_start(
    db: Database, client: Client
) -> None:
    job = Job()
    a = job.task(name="a")
    b = job.task(a, name="b")
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take()
    await cancel(db, [job[b]])
    await hands.end(job[a])
    await settle(db)
    assert types(await timeline(job[b], client=client)) == ["TASK_CANCELLED"]


async def test_tasks_beyond_the_limit_are_left_out_and_counted(
    db: Database, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job()
    job.tasks(5)
    await job.submit(db)
    monkeypatch.setattr(timelines, "TASKS_LIMIT", 3)
    found = await timeline(job.id, client=client)
    assert types(found).count("TASK_READY") == 3
    assert found.tasks_left_out == 2
    found = await timelines.read_timeline(db, "job", job.id, timelines.Asked(tasks=1))
    assert (types(found).count("TASK_READY"), found.tasks_left_out) == (1, 4)


@pytest.mark.parametrize(
    "given",
    [
        {"types": ["TASK_DONE"]}, {"limit": 0}, {"limit": 10_001}, {"after": "yesterday"}, {"after": "1/2/3/4"},
        {"after": ""}, {"after": "2026-01-01T00:00:00+00:00/x/1/1"},
    ],
)  # fmt: skip
async def test_a_page_that_makes_no_sense_is_refused(db: Database, client: Client, given: dict[str, Any]) -> None:
    job = await Job().submit(db)
    if given.get("after") == "":
        assert (await timeline(job.id, **given, client=client)).events  # as if it were not given
        return
    with pytest.raises(BadTask):
        await timeline(job.id, **given, client=client)


@pytest.mark.parametrize("given", [None, 1.5, True])
async def test_what_has_no_timeline_is_refused(client: Client, given: Any) -> None:
    with pytest.raises(BadTask):
        await timeline(given, client=client)
    with pytest.raises(UnknownTask):
        await timeline(12345, client=client)


def test_every_type_of_the_seeds_has_a_level_and_a_sentence() -> None:
    assert set(LEVELS) >= SEEDS
    assert set(RANKS) <= set(LEVELS)
    assert set(LEVELS.values()) == {"SUCCESS", "FAILURE", "WARNING", "INFO"}
    for kind in LEVELS:
        assert sentence(kind, {})
        assert sentence(kind, {"by": "ada", "reason": "because", "attempt": 2, "duration": 1.5, "error": "E: e"})


def test_an_event_that_nobody_foresaw_is_told_by_its_name() -> None:
    assert sentence("TASK_TURNED_BLUE", {"by": "ada"}) == "turned blue by ada"


async def test_a_timeline_is_read_as_of_one_moment(db: Database, client: Client) -> None:
    job = await eventful(db)
    first, second = [await timeline(job.id, client=client) for _ in range(2)]
    assert first == second
    assert all(event.at.utcoffset() == timedelta(0) for event in first.events)


async def test_the_last_events_of_a_large_job_are_those_that_were_written_as_such(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await eventful(db)
    number = job.id
    every = await read_last_events(db, number, total=2, limit=1000)
    assert every == sorted(every, key=lambda event: event.at, reverse=True)
    monkeypatch.setattr(timelines, "WHOLE_LIMIT", 1)
    noted = await read_last_events(db, number, total=2, limit=1000)
    assert {"JOB_CREATED", "TASK_RETRYING", "TASK_LOST"} <= {event.type for event in noted}
    assert not {"TASK_RUNNING", "TASK_COMPLETED"} & {event.type for event in noted}
    assert [one for one in every if one in noted] == noted
    assert await read_last_events(db, number, total=2, limit=3) == noted[:3]


async def test_the_events_of_one_name_are_those_of_its_tasks(db: Database) -> None:
    job = await eventful(db)
    found = await read_events_of_name(db, job.id, "b", limit=100)
    assert [event.type for event in found][-1] == "TASK_COMPLETED"
    assert {event.name for event in found} == {"b"}
    assert await read_events_of_name(db, job.id, "nobody", limit=100) == []
