"""Claims do not wait for the disk: a crash of Postgres forgets the last ones, and no run is the worse for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from aaiclick_queue import connect, migrate
from aaiclick_queue.flow.admit import Admission
from aaiclick_queue.postgres import Database
from aaiclick_queue.settings import Settings
from tests.faults import tasks
from tests.faults.conftest import invariants_hold
from tests.faults.fleet import Console, Fleet, check_fence, console, wait_for
from tests.flow.test_admit import make
from tests.servers import OwnPostgres
from tests.tools import claim, count, put, register_worker

TASKS = 50


@pytest.fixture
def lazy_postgres() -> Iterator[OwnPostgres]:
    """One that writes nothing by itself for 10 s: what no commit has waited for is gone with a crash."""
    with OwnPostgres(wal_writer_delay="10s", bgwriter_lru_maxpages="0", autovacuum="off") as server:
        settings = Settings.load({}, postgres_url=server.url)
        asyncio.run(migrate.upgrade(settings))
        yield server
        asyncio.run(invariants_hold(settings))


@pytest.fixture
def lazy_look(lazy_postgres: OwnPostgres) -> Iterator[Console]:
    """A look at it."""
    with console(lazy_postgres.url) as opened:
        yield opened


@pytest.mark.parametrize("limited", [False, True])
async def test_a_crash_forgets_claims_unless_a_limit_counts_on_them(lazy_postgres: OwnPostgres, limited: bool) -> None:
    settings = Settings.load({}, postgres_url=lazy_postgres.url)
    async with Database(settings, size=1, flow=True) as db:
        worker_id = await register_worker(db)
        if limited:
            await make(db, name="narrow", n=10)
        await put(db, count=10, queue="narrow")
        await Admission(db).admit_once()
        assert len(await claim(db, worker_id, limit=10, queues=["narrow"])) == 10
    await asyncio.to_thread(lazy_postgres.restart, "immediate")
    async with Database(settings, size=1, flow=True) as db:
        assert (await count(db, "ready"), await count(db, "leases")) == ((0, 10) if limited else (10, 0))


async def test_runs_whose_claims_were_forgotten_end_well_and_no_worker_runs_one_fence_twice(
    lazy_postgres: OwnPostgres, lazy_look: Console
) -> None:
    settings = Settings.load({}, postgres_url=lazy_postgres.url, lease_seconds=60.0)
    async with connect(settings=settings) as client:
        await tasks.tick.enqueue_many([{"seconds": 1.0}] * TASKS, client=client)
    with Fleet(settings) as fleet:
        worker = fleet.start("--no-background", "-c", str(TASKS))  # whose commits would make the claims durable
        wait_for(lambda: fleet.runs_started() >= TASKS)
        worker.freeze()
        await asyncio.to_thread(lazy_postgres.restart, "immediate")
        assert lazy_look.value("SELECT count(*) FROM aaiclick_queue.ready") == TASKS, "the crash came too late"
        worker.thaw()
        second = fleet.start("-c", str(TASKS))
        lazy_look.wait_for_all(fleet)

        assert lazy_look.statuses() == {"COMPLETED": TASKS}
        assert lazy_look.history() == {}, "nobody was taken for lost"
        assert lazy_look.rows("SELECT DISTINCT attempt FROM aaiclick_queue.tasks") == [{"attempt": 1}]
        check_fence(fleet, lazy_look)
        assert not any(one.errors() for one in (worker, second))
