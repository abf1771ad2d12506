"""Races of `current().transaction()`: the application's writes and the end of the task land together or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Literal

import psycopg
import pytest
import pytest_asyncio
from sqlalchemy import text

from aaiclick_queue import current, task
from aaiclick_queue.context import Services, enter
from aaiclick_queue.errors import LeaseLost
from aaiclick_queue.flow.claim import Claimed
from aaiclick_queue.flow.execute import Run
from aaiclick_queue.flow.reaper import TAKE_LOST_RUNS, Reaper
from aaiclick_queue.postgres import Database
from aaiclick_queue.settings import Settings
from aaiclick_queue.transaction import close_engines
from tests.races.props import Props

Driver = Literal["sqlalchemy", "asyncpg"]
EFFECTS = "CREATE TABLE effects (task_id bigint)"
ADD_EFFECT = "INSERT INTO effects VALUES (%d)"
# A commit that waits for an advisory lock: the moment between the completing statement and the end of COMMIT.
COMMIT_WAITS = """
CREATE FUNCTION wait_for_lock() RETURNS trigger LANGUAGE plpgsql
    AS 'BEGIN PERFORM pg_advisory_xact_lock(42); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER wait_at_commit AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION wait_for_lock();
"""
WAITS_AT_COMMIT = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = 42 AND NOT granted"


@task
async def add_effect() -> None:
    """Only its definition is used."""


class Scene:
    """A run of a worker that was given up, its application's table, and somebody at the console."""

    def __init__(self, props: Props, worker: int, claimed: Claimed, admin: psycopg.Connection) -> None:
        self.props = props
        self.worker = worker
        self.claimed = claimed
        self.admin = admin

    async def run(self, driver: Driver, *, inside: asyncio.Event | None = None) -> None:
        """What the task does; between its write and the end of the block it waits for `inside`."""
        settings = self.props.db.settings
        run = Run(self.claimed, add_effect, settings, self.worker)
        enter(run, Services(settings, self.props.db, settings.postgres_url or "", lambda _: None))
        async with current().transaction(driver) as session:
            statement = ADD_EFFECT % self.claimed.task_id
            await session.execute(statement if driver == "asyncpg" else text(statement))
            if inside is not None:
                await inside.wait()

    def effects(self) -> int:
        [count] = self.admin.execute("SELECT count(*) FROM effects").fetchone() or (0,)
        return int(count)

    async def until(self, sql: str) -> int:
        """Wait until the statement gives a row; its first column."""
        async with asyncio.timeout(20):
            while not (rows := await self.props.db.fetch(sql)):  # noqa: ASYNC110 - Postgres knows, nobody tells
                await asyncio.sleep(0.005)
        return int(rows[0][0])

    @contextmanager
    def commits_wait(self) -> Iterator[None]:
        """Commits of effects wait until the block ends."""
        self.admin.execute(COMMIT_WAITS)
        self.admin.execute("SELECT pg_advisory_lock(42)")
        try:
            yield
        finally:
            self.admin.execute("SELECT pg_advisory_unlock(42)")


@pytest_asyncio.fixture
async def scene(settings: Settings, props: Props) -> AsyncIterator[Scene]:
    worker = await props.worker()
    claimed = await props.leased(worker)
    await props.lose(worker)
    with psycopg.connect(settings.postgres_url or "", autocommit=True) as admin:
        admin.execute(EFFECTS)
        yield Scene(props, worker, claimed, admin)
    await close_engines()


@pytest.mark.parametrize("driver", ["sqlalchemy", "asyncpg"])
async def test_a_block_whose_lease_was_taken_meanwhile_writes_nothing(scene: Scene, driver: Driver) -> None:
    inside = asyncio.Event()
    running = asyncio.create_task(scene.run(driver, inside=inside))
    await scene.until("SELECT 1 FROM pg_locks WHERE relation = 'effects'::regclass")
    assert (await Reaper(scene.props.db).reap_once()).lost == 1
    inside.set()
    with pytest.raises(LeaseLost):
        await running
    assert scene.effects() == 0
    state = await scene.props.state(scene.claimed.task_id)
    assert (state["status"], state["delayed"], state["lost_count"]) == (None, 1, 1)


@pytest.mark.parametrize("driver", ["sqlalchemy", "asyncpg"])
@pytest.mark.parametrize("reaper_commits", [True, False])
async def test_a_block_that_ends_while_a_reaper_holds_its_lease_waits_for_the_reaper(
    settings: Settings, scene: Scene, driver: Driver, reaper_commits: bool
) -> None:
    async with Database(settings, size=1, flow=True) as reaping, reaping.connection() as connection:
        taking = connection.raw.transaction()
        await taking.start()
        assert len(await connection.fetch(TAKE_LOST_RUNS, 500, settings.lost_limit)) == 1
        running = asyncio.create_task(scene.run(driver))
        await scene.until("SELECT pid FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0")
        await (taking.commit() if reaper_commits else taking.rollback())
    if reaper_commits:
        with pytest.raises(LeaseLost):
            await running
    else:
        await running
    state = await scene.props.state(scene.claimed.task_id)
    assert scene.effects() == (state["status"] == "COMPLETED") == (not reaper_commits)


@pytest.mark.parametrize("driver", ["sqlalchemy", "asyncpg"])
async def test_a_reaper_leaves_a_run_that_is_committing_to_its_commit(scene: Scene, driver: Driver) -> None:
    with scene.commits_wait():
        running = asyncio.create_task(scene.run(driver))
        await scene.until(WAITS_AT_COMMIT)
        assert (await Reaper(scene.props.db).reap_once()).lost == 0
        assert scene.effects() == 0
    await running
    assert scene.effects() == 1
    assert (await scene.props.state(scene.claimed.task_id))["status"] == "COMPLETED"
    assert (await Reaper(scene.props.db).reap_once()).lost == 0


@pytest.mark.parametrize("driver", ["sqlalchemy", "asyncpg"])
async def test_a_commit_that_was_cut_off_has_written_nothing_and_says_so(scene: Scene, driver: Driver) -> None:
    with scene.commits_wait():
        running = asyncio.create_task(scene.run(driver))
        pid = await scene.until(WAITS_AT_COMMIT)
        scene.admin.execute("SELECT pg_terminate_backend(%s)", [pid])
        with pytest.raises(Exception, match=r"terminating connection|closed"):
            await running
    assert scene.effects() == 0
    state = await scene.props.state(scene.claimed.task_id)
    assert (state["status"], state["leased"]) == (None, 1)
