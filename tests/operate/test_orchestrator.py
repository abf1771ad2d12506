"""The loops tell what they do, who runs them, and what they raised."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from aaiclick_queue import Settings, task
from aaiclick_queue.flow import background as loops
from aaiclick_queue.flow.background import Background
from aaiclick_queue.flow.enqueue import NewTask
from aaiclick_queue.orchestrator import Orchestrator, read_activity, read_orchestrator
from aaiclick_queue.postgres import Database
from aaiclick_queue.queue_views import WorkerView, list_workers
from aaiclick_queue.system_events import read_system_events
from tests.tools import age, count, put, running_worker, until


@task(name="tests.orchestrator.known")
async def known() -> None:
    pass


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are written without the usual wait."""
    monkeypatch.setattr(loops, "BOOKS_SECONDS", 0.05)


@asynccontextmanager
async def running(background: Background) -> AsyncIterator[None]:
    """The loops, until the block ends."""
    run = asyncio.create_task(background.run())
    try:
        yield
    finally:
        run.cancel()
        with suppress(asyncio.CancelledError):
            await run


async def test_without_a_process_there_is_no_orchestrator(db: Database) -> None:
    assert await read_orchestrator(db) is None
    assert await read_activity(db) == []


async def test_a_process_tells_what_its_loops_did_and_leaves_nothing_behind(db: Database) -> None:
    await put(db, *[NewTask("{}", countdown=0.01)] * 3)
    async with running(Background(db, None, holder=7, version="1.2")):
        found = await until(lambda: dispatched(db))
        assert found.is_running
        assert found.cycles_completed > 0
        assert found.errors == 0
        assert found.last_cycle_at is not None
        assert [(one.id, one.version) for one in found.processes] == [("7", "1.2")]
        names = {loop.name for loop in found.loops}
        assert names >= {"relay", "due", "scheduler", "admission", "resolver", "reaper", "sweep", "prune", "watch"}
        activity = {one.loop: one.did for one in await read_activity(db)}
        assert activity["due"] == "made 3 tasks ready whose time had come"
        await until(lambda: holds(db))
    assert await count(db, "orchestrators") == 0


async def dispatched(db: Database) -> Orchestrator | None:
    found = await read_orchestrator(db)
    return found if found is not None and found.tasks_dispatched == 3 else None


async def holds(db: Database) -> bool:
    found = await read_orchestrator(db)
    return found is not None and found.processes[0].is_holder


async def test_two_processes_are_summed_up(db: Database) -> None:
    async with running(Background(db, None, holder=7)), running(Background(db, None, holder=8)):
        await until(lambda: processes(db, 2))


async def processes(db: Database, n: int) -> bool:
    found = await read_orchestrator(db)
    return found is not None and len(found.processes) == n


async def test_a_process_that_is_silent_counts_no_more(db: Database) -> None:
    await db.fetch("INSERT INTO aaiclick_queue.orchestrators (id, pid, hostname, version) VALUES (1, 2, 'here', '0')")
    assert await read_orchestrator(db) is not None
    await age(db, "orchestrators", "seen_at", 60)
    assert await read_orchestrator(db) is None


async def test_a_loop_that_raises_is_told_once_a_minute(db: Database) -> None:
    background = Background(db, None, holder=7)

    async def broken() -> float:
        raise ValueError("x" * 1000)

    background.due._once = broken
    async with running(background):
        found = await until(lambda: failed(db))
        assert found.last_error is not None
        assert found.last_error.startswith("ValueError: xxx")
        assert len(found.last_error) == 500
    [event] = await read_system_events(db, types=["ORCHESTRATOR_ERROR"])
    assert (event.data["loop"], len(event.data["error"]), event.by) == ("due", 500, "7")


async def failed(db: Database) -> Orchestrator | None:
    found = await read_orchestrator(db)
    return found if found is not None and found.errors >= 3 else None


async def test_a_worker_tells_its_code_its_memory_its_lag_and_its_clock(db: Database, quick: Settings) -> None:
    async def told() -> WorkerView | None:
        [worker] = await list_workers(db)
        return worker if worker.rss_bytes else None

    async with running_worker(quick):
        worker = await until(told)
        assert known.entrypoint in worker.entrypoints
        assert worker.rss_bytes > 1 << 20
        assert worker.lag_seconds is not None
        assert abs(worker.skew_seconds) < 1
        assert await processes(db, 1)
