"""`--limit`: no more runs of a queue at once than its cap, and the other queues as ever."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from aaiclick_queue import Settings, claimer, task
from aaiclick_queue.caps import Lines
from aaiclick_queue.flow.cancel import cancel
from aaiclick_queue.flow.claim import Claimed, Wanted
from aaiclick_queue.flow.enqueue import NewTask
from aaiclick_queue.postgres import Database
from tests.tools import changed, place_of, put, register_worker, row, running_worker, until


class Scene:
    """What runs, by queue, and how much of it at most."""

    def __init__(self) -> None:
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.go_on = asyncio.Event()
        self.thread_may_end = threading.Event()
        self.lock = threading.Lock()

    def enter(self, queue: str) -> None:
        with self.lock:
            self.running[queue] += 1
            self.most[queue] = max(self.most[queue], self.running[queue])

    def leave(self, queue: str) -> None:
        with self.lock:
            self.running[queue] -= 1
            self.done[queue] += 1


scene: Scene


@pytest.fixture(autouse=True)
async def _scene() -> AsyncIterator[None]:
    global scene  # noqa: PLW0603 - tasks are found by name and have nothing else to share
    scene = Scene()
    yield
    scene.thread_may_end.set()


@task
async def step(queue: str) -> None:
    scene.enter(queue)
    await asyncio.sleep(0.001)
    scene.leave(queue)


@task
async def wait(queue: str) -> None:
    scene.enter(queue)
    await scene.go_on.wait()
    scene.leave(queue)


@task
def stay(queue: str) -> None:
    scene.enter(queue)
    scene.thread_may_end.wait()
    scene.leave(queue)


async def fill(db: Database, what: Any, counts: Mapping[str, int]) -> None:
    for queue, count in counts.items():
        tasks = [NewTask(json.dumps({"queue": queue}))] * count
        await put(db, *tasks, entrypoint=what.entrypoint, queue=queue)


async def test_no_more_than_the_cap_run_at_once_and_all_get_done(quick: Settings, db: Database) -> None:
    await fill(db, step, {"reports": 120, "mail": 60, "default": 200})
    plan: dict[str, Any] = {"queues": {"reports": 1, "mail": 1, "default": 1}, "limits": {"reports": 2, "mail": 5}}
    async with running_worker(quick, slots=50, **plan):
        await until(lambda: scene.done.total() == 380)
    assert scene.most["reports"] == 2
    assert scene.most["mail"] == 5
    assert scene.most["default"] > 5


async def test_a_queue_at_its_cap_keeps_no_other_waiting(quick: Settings, db: Database) -> None:
    await fill(db, wait, {"reports": 30})
    async with running_worker(quick, slots=10, queues={"reports": 9, "default": 1}, limits={"reports": 2}):
        await until(lambda: scene.running["reports"] == 2)
        await fill(db, step, {"default": 50})
        await until(lambda: scene.done["default"] == 50)
        assert scene.running["reports"] == scene.most["reports"] == 2
        leases = await db.fetchval("SELECT count(*) FROM aaiclick_queue.leases WHERE queue = 'reports'")
        assert leases == 2  # the others wait in line, for any worker
        scene.go_on.set()
        await until(lambda: scene.done["reports"] == 30)


async def test_a_capped_queue_has_its_turn_beside_a_long_line(quick: Settings, db: Database) -> None:
    await fill(db, step, {"default": 3000})
    async with running_worker(quick, slots=4, queues={"default": 1, "reports": 1}, limits={"reports": 1}):
        await until(lambda: scene.done["default"] > 100)
        await fill(db, step, {"reports": 5})
        await until(lambda: scene.done["reports"] == 5)
        assert scene.done["default"] < 3000


async def test_with_every_queue_served_a_cap_holds_too(quick: Settings, db: Database) -> None:
    await fill(db, step, {"reports": 40, "a": 20, "b": 20})
    async with running_worker(quick, queues={"*": 1}, limits={"reports": 3, "never": 1}):
        await until(lambda: scene.done.total() == 80)
    assert scene.most["reports"] == 3


async def test_hints_of_a_capped_queue_are_heard(redis_settings: Settings, db: Database) -> None:
    settings = changed(redis_settings, heartbeat_seconds=0.1, poll_max_seconds=0.05)
    async with running_worker(settings, queues={"reports": 1, "default": 1}, limits={"reports": 2}) as worker:
        await fill(db, step, {"reports": 80, "default": 5})
        await until(lambda: scene.done.total() == 85)  # a look a second would take longer than anybody waits here
    assert scene.most["reports"] <= 2
    assert set(worker._line.queues) == {"reports", "default"}


async def test_nothing_is_expected_of_a_queue_at_its_cap(
    quick: Settings, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claimer, "EXPECTED_SECONDS", 3.0)
    in_vain: list[Wanted] = []
    claim = Lines.claim

    async def seen(lines: Lines, tx: Any, want: Wanted) -> list[Claimed]:
        if worker._claimer._expected and not lines.leaves_room("reports"):
            in_vain.append(want)
        return await claim(lines, tx, want)

    async with running_worker(quick, queues={"reports": 1}, limits={"reports": 2}) as worker:
        monkeypatch.setattr(Lines, "claim", seen)
        worker._claimer.expect("reports", [1])
        assert worker._claimer._expected
        await fill(db, wait, {"reports": 2})
        await until(lambda: scene.running["reports"] == 2)
        # Full since: no line would be asked, and nobody else would have a turn of the event loop.
        await until(lambda: not worker._claimer._expected)
        worker._claimer.expect("reports", [1])
        assert not worker._claimer._expected
        scene.go_on.set()
        await until(lambda: not worker.slots.held)
        worker._claimer.expect("reports", [1])
        assert worker._claimer._expected
    assert in_vain == []


async def test_a_thread_that_cannot_be_stopped_still_counts(quick: Settings, db: Database) -> None:
    await fill(db, stay, {"reports": 3})
    async with running_worker(quick, queues={"reports": 1, "default": 1}, threads=4, limits={"reports": 1}) as worker:
        await until(lambda: scene.running["reports"] == 1)
        [running] = [run.claimed.task_id for run in worker.slots.held.values()]
        await cancel(db, [running])
        await until(lambda: not worker.slots.held)
        assert worker.slots.taken("reports") == 1
        await fill(db, step, {"default": 1})
        await until(lambda: scene.done["default"] == 1)  # so there have been claims since
        assert scene.running["reports"] == scene.most["reports"] == 1
        scene.thread_may_end.set()
        await until(lambda: scene.done["reports"] == 3)
    assert scene.most["reports"] == 1


async def test_lines_give_no_more_than_a_cap_leaves(db: Database) -> None:
    await put(db, queue="reports", count=10)
    await put(db, queue="default", count=10)
    running: Counter[str] = Counter()
    lines = Lines({"reports": 1, "default": 1}, {"reports": 3}, lambda queue: running[queue])
    worker_id = await register_worker(db)

    async def claim(limit: int, resting: frozenset[str] = frozenset()) -> Counter[str]:
        got = Counter(run.queue for run in await lines.claim(db, Wanted(limit, worker_id, 60, 30, resting)))
        running.update(got)
        return got

    assert await claim(6) == {"reports": 3, "default": 3}
    assert await claim(4) == {"default": 4}
    running["reports"] -= 1
    assert await claim(4, frozenset({"reports"})) == {"default": 3}
    assert await claim(4) == {"reports": 1}
    assert await claim(4) == {}


class Once:
    """A connection that breaks after one statement."""

    def __init__(self, db: Database) -> None:
        self._db: Database | None = db

    async def fetch(self, sql: str, *values: Any) -> Any:
        if self._db is None:
            raise ConnectionError("gone")
        db, self._db = self._db, None
        return await db.fetch(sql, *values)


async def test_what_one_line_gave_is_kept_when_the_next_cannot_be_asked(db: Database) -> None:
    await put(db, queue="reports", count=1)
    [other] = await put(db, queue="default", count=1)
    worker_id = await register_worker(db)
    lines = Lines({"reports": 1, "default": 1}, {"reports": 1}, lambda _: 0)
    claimed = await lines.claim(Once(db), Wanted(5, worker_id, 60, 30))
    assert [run.queue for run in claimed] == ["reports"]
    assert await place_of(db, other) == ["ready"]
    assert (await row(db, "leases", claimed[0].task_id))["worker_id"] == worker_id
