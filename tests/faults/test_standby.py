"""The primary is lost under a working fleet and its standby takes over: one URL names both."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from aaiclick_queue import Client, connect, migrate
from aaiclick_queue.flow.heartbeat import Identity, register
from aaiclick_queue.flow.reaper import Reaper
from aaiclick_queue.postgres import Database
from aaiclick_queue.settings import Settings
from tests.chaos.checks import WRONG_ROWS
from tests.chaos.witness import WITNESS
from tests.faults import tasks
from tests.faults.conftest import invariants_hold
from tests.faults.fleet import Console, Fleet, WorkerProcess, check_fence, console, wait_for
from tests.faults.pipeline import chain
from tests.servers import OwnCopy, OwnPostgres, OwnStandby

APP = ("-A", "tests.faults.pipeline", "-c", "20")
PAYMENTS = "CREATE TABLE payments (task_id bigint NOT NULL, xid xid8 NOT NULL DEFAULT pg_current_xact_id())"
STREAMS = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"
IN_STEP = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
TASKS = "SELECT id FROM aaiclick_queue.tasks"
COMPLETED = "SELECT id FROM aaiclick_queue.tasks WHERE status = 'COMPLETED'"
OPEN_JOBS = "SELECT count(*) FROM aaiclick_queue.jobs WHERE finished_at IS NULL"
SILENT = "SELECT bool_and(lease_expires_at < now()) FROM aaiclick_queue.workers"
UP_FOR_LONG = "SELECT pg_postmaster_start_time() < now() - interval '3 s'"  # longer than a lease
# What the chaos rounds hold against a witness that knows nothing of fences; it was replicated like everything else.
WITNESSED = (
    "a job has not ended",
    "a task ended twice",
    "one epoch was leased twice",
    "a lease was given up twice, or never",
    "an end without its lease in the same commit",
    "what ended is not what is recorded",
    "a run wrote without its lease",
    "a job's gate differs from its tasks",
    "a job's status is not what its tasks say",
    "a dependent started before what it depends on had ended",
    "a run that did not end its task left no trace",
    "a job lacks the event of its end, or has several",
    "a job's start has no event, or several",
)
WRONG = {name: WRONG_ROWS[name] for name in WITNESSED} | {
    "an effect is doubled, missing or not in the commit of its end": """
        SELECT t.id, t.status, count(p.task_id) AS effects FROM aaiclick_queue.tasks t
        LEFT JOIN payments p ON p.task_id = t.id
        LEFT JOIN chaos.ends e ON e.task_id = p.task_id AND e.xid = p.xid
        WHERE t.entrypoint LIKE 'tests.faults.tasks.pay%%'
        GROUP BY t.id HAVING count(p.task_id) <> 1 OR count(e.task_id) <> 1""",
    "an effect of nobody": "SELECT task_id FROM payments WHERE task_id NOT IN (SELECT id FROM aaiclick_queue.tasks)",
}


class Pair:
    """A primary and its standby."""

    def __init__(self, primary: OwnPostgres, standby: OwnStandby) -> None:
        self.primary = primary
        self.standby = standby
        hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
        self.settings = Settings.load(
            {},
            postgres_url=f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write",
            lease_seconds=3,
            enqueue_timeout_seconds=20,
            transaction_pool_size=20,
        )

    def replicate_in_step(self) -> None:
        """No commit that waits at all is answered before the standby has it."""
        with console(self.primary.url) as look:
            look.rows("ALTER SYSTEM SET synchronous_standby_names = '*'")
            look.rows("SELECT pg_reload_conf()")
            wait_for(lambda: look.value(IN_STEP))

    def cut(self) -> None:
        """Nothing reaches the standby any more, and nobody notices."""
        with console(self.standby.url) as look:
            look.rows("ALTER SYSTEM SET primary_conninfo = ''")
            look.rows("SELECT pg_reload_conf()")
            wait_for(lambda: not look.value("SELECT count(*) FROM pg_stat_wal_receiver"))

    def fail_over(self) -> None:
        """The primary is gone for good, the standby takes its place."""
        self.primary.stop("immediate")
        self.standby.promote()


@pytest.fixture(scope="module")
def migrated() -> Iterator[OwnPostgres]:
    """Migrated, with the witness, and stopped: to be copied."""
    with OwnPostgres() as server:
        asyncio.run(migrate.upgrade(Settings.load({}, postgres_url=server.url)))
        with console(server.url) as look:
            for statement in (PAYMENTS, WITNESS):
                look.rows(statement)
        server.stop()
        yield server


@pytest.fixture
def pair(migrated: OwnPostgres) -> Iterator[Pair]:
    """A copy and its standby; the doctor looks at the one that is left."""
    with OwnCopy(migrated) as primary, OwnStandby(primary) as standby:
        with console(primary.url) as look:
            wait_for(lambda: look.value(STREAMS))
        yield Pair(primary, standby)
        asyncio.run(invariants_hold(Settings.load({}, postgres_url=standby.url)))


class Producers:
    """Applications that enqueue whatever happens, and remember what was accepted."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.accepted: list[int] = []
        self.is_over = False

    async def send(self) -> None:
        while not self.is_over:
            for kind in (tasks.tick, tasks.pay, tasks.pay_from_thread):
                task_id = (await kind.enqueue(0.05, client=self._client)).id
                self.accepted.append(task_id)
            await asyncio.sleep(0.06)  # what the workers can do, else all wait behind a backlog

    async def send_jobs(self) -> None:
        while not self.is_over:
            await chain.enqueue(client=self._client)
            await self.more(10)

    async def send_slow(self, count: int) -> set[int]:
        """Some that still run when the next thing happens."""
        return {*await tasks.pay.enqueue_many([{"seconds": 1.5}] * count, client=self._client)}

    async def more(self, count: int) -> None:
        """Until so many more were accepted."""
        until = len(self.accepted) + count
        await seen(lambda: self.is_over or len(self.accepted) >= until)


async def seen(condition: Callable[[], object]) -> None:
    """Until the condition holds, while everything else goes on."""
    await asyncio.to_thread(wait_for, condition)


@asynccontextmanager
async def producing(settings: Settings) -> AsyncIterator[Producers]:
    async with connect(settings=settings) as client:
        producers = Producers(client)
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(producers.send())
            group.create_task(producers.send_jobs())
            try:
                yield producers
            finally:
                producers.is_over = True


async def ended(fleet: Fleet, look: Console) -> None:
    """Until every task and every job has."""
    await asyncio.to_thread(look.wait_for_all, fleet)
    await seen(lambda: not look.value(OPEN_JOBS))


def _nothing_is_wrong(look: Console) -> None:
    wrong = {name: rows for name, sql in WRONG.items() if (rows := look.rows(sql))}
    assert not wrong, wrong


def _nobody_is_the_worse(workers: list[WorkerProcess], look: Console) -> None:
    # A payment whose connection broke has failed, as any task does whose own statement fails.
    assert look.history().keys() <= {"RETRYING"}, "somebody was taken for lost"
    assert look.rows("SELECT DISTINCT status FROM aaiclick_queue.workers") == [{"status": "ACTIVE"}]
    assert all(worker.is_alive for worker in workers)
    # A pool tells of each connection that it could not close in order.
    errors = [line for worker in workers for line in worker.errors() if not line["logger"].startswith("sqlalchemy.")]
    assert not errors, errors


def _ids(look: Console, sql: str) -> set[int]:
    return {row["id"] for row in look.rows(sql)}


@pytest.mark.timeout(120)
async def test_a_promoted_standby_in_step_has_all_that_was_accepted_and_each_effect_once(pair: Pair) -> None:
    pair.replicate_in_step()
    with Fleet(pair.settings) as fleet, console(pair.standby.url) as look:
        workers = fleet.start_all(2, *APP)
        async with producing(pair.settings) as producers:
            await producers.more(150)
            await asyncio.to_thread(pair.fail_over)
            await producers.more(150)
        await ended(fleet, look)

        assert set(producers.accepted) <= _ids(look, COMPLETED), "accepted, and lost or failed"
        assert look.statuses().keys() == {"COMPLETED"}
        check_fence(fleet, look)
        _nothing_is_wrong(look)
        _nobody_is_the_worse(workers, look)


@pytest.mark.timeout(120)
async def test_what_a_promoted_standby_behind_its_primary_has_is_whole_and_work_goes_on(pair: Pair) -> None:
    with Fleet(pair.settings) as fleet, console(pair.standby.url) as look, console(pair.primary.url) as old:
        workers = fleet.start_all(2, *APP)
        async with producing(pair.settings) as producers:
            await producers.more(150)
            slow = await producers.send_slow(20)
            await seen(lambda: slow <= _ids(look, TASKS))
            await asyncio.to_thread(pair.cut)
            assert slow - _ids(look, COMPLETED), "the standby was cut off too late"
            had = _ids(look, TASKS)
            await seen(lambda: slow <= _ids(old, COMPLETED))
            await seen(lambda: look.value(SILENT))
            await asyncio.to_thread(pair.fail_over)
            await producers.more(150)
        await ended(fleet, look)

        assert had <= _ids(look, COMPLETED)
        assert set(producers.accepted) - _ids(look, TASKS), "nothing was lost: there was nothing to prove"
        assert look.statuses().keys() == {"COMPLETED"}
        _nothing_is_wrong(look)
        _nobody_is_the_worse(workers, look)


async def _silent_worker(db: Database, worker_id: int) -> None:
    """One that beats no more."""
    await register(db, Identity(worker_id, 1, 1, "gone", "0", ("default",)), lease_seconds=0.1)


@pytest.mark.timeout(120)
async def test_a_reaper_that_starts_after_a_promotion_takes_nobody_for_lost_for_a_lease_period(pair: Pair) -> None:
    async with Database(pair.settings, size=2) as db:
        await Reaper(db).reap_once()
        await _silent_worker(db, 1)
    with console(pair.standby.url) as look:
        await seen(lambda: look.value(SILENT) and look.value(UP_FOR_LONG))
        await asyncio.to_thread(pair.fail_over)
    async with Database(pair.settings, size=2) as db:
        began = time.monotonic()
        for _ in range(2):
            assert (await Reaper(db).reap_once()).workers == 0, "it may live, and have had no time to say so here"
        while not (await Reaper(db).reap_once()).workers:
            assert time.monotonic() - began < 2 * pair.settings.lease_seconds
            await asyncio.sleep(0.05)
        assert time.monotonic() - began > pair.settings.lease_seconds - 0.5

        await _silent_worker(db, 2)
        again = time.monotonic()
        while not (await Reaper(db).reap_once()).workers:
            assert time.monotonic() - again < 2, "the promotion is over, whoever starts"
            await asyncio.sleep(0.05)


async def test_of_several_hosts_the_one_that_takes_writes_is_found_though_another_says_nothing(pair: Pair) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ports = (silent.getsockname()[1], pair.standby.port, pair.primary.port)
        url = f"postgresql://postgres@{','.join(f'127.0.0.1:{port}' for port in ports)}/postgres"
        settings = Settings.load({}, postgres_url=url)
        async with Database(settings, size=2) as db, db.connection() as first:
            assert not (await first.fetch("SELECT pg_is_in_recovery()"))[0][0]
            began = time.monotonic()
            assert not await db.fetchval("SELECT pg_is_in_recovery()")
            assert time.monotonic() - began < 1, "the one that says nothing was asked again"
