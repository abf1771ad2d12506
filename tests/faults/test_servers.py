"""Redis and Postgres that are emptied, stopped and restarted under a working fleet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import psutil
import pytest
import pytest_asyncio

from aaiclick_queue import Client, connect
from aaiclick_queue.errors import PostgresUnavailable
from aaiclick_queue.settings import Settings
from tests.faults import tasks
from tests.faults.fleet import Console, Fleet, ask, check_fence, wait_for
from tests.servers import OwnPostgres
from tests.wires.redis_server import OwnRedis

AWAY = "polled until it is back"
BACK = "Redis is back"
RENEWED = "SELECT last_heartbeat > pg_postmaster_start_time() FROM aaiclick_queue.workers WHERE pid = %s"


def _listens(server: OwnRedis) -> bool:
    """Whether a worker waits for wake-ups."""
    return b"consumers\r\n:0" not in (said := ask(server, "XINFO", "GROUPS", "{aaiq}:wake:default")) and b":" in said


class Stream:
    """Tasks that keep coming while a server goes away and returns."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.ids: list[int] = []

    async def send(self, count: int) -> None:
        """Enqueue one after the other, as a web application does."""
        for _ in range(count):
            self.ids.append((await tasks.tick.enqueue(0.0, client=self._client)).id)

    async def send_and_see(self, count: int, look: Console) -> None:
        """Enqueue, and wait until they have run."""
        await self.send(count)
        wait_for(lambda: not look.open_tasks())


@pytest_asyncio.fixture
async def with_redis(settings: Settings, own_redis: OwnRedis) -> Settings:
    return settings.model_copy(update={"redis_url": own_redis.url})


async def test_a_flushed_redis_costs_nothing_and_is_used_again(
    with_redis: Settings, own_redis: OwnRedis, look: Console
) -> None:
    with Fleet(with_redis) as fleet:
        workers = [fleet.start(), fleet.start()]
        wait_for(lambda: _listens(own_redis))
        async with connect(settings=with_redis) as client:
            stream = Stream(client)
            await stream.send_and_see(50, look)
            sending = asyncio.create_task(stream.send(300))
            await asyncio.to_thread(wait_for, lambda: len(stream.ids) > 150)
            assert ask(own_redis, "FLUSHALL") == b"+OK\r\n"
            await sending
            await asyncio.to_thread(look.wait_for_all, fleet)
            wait_for(lambda: _listens(own_redis))
            await stream.send_and_see(20, look)
        assert look.statuses() == {"COMPLETED": 370}
        assert not any(worker.errors() or worker.said(AWAY) for worker in workers)
        check_fence(fleet, look)


async def test_without_redis_workers_poll_and_say_so_once_and_return_to_it(
    with_redis: Settings, own_redis: OwnRedis, look: Console
) -> None:
    with Fleet(with_redis) as fleet:
        worker = fleet.start()
        wait_for(lambda: _listens(own_redis))
        async with connect(settings=with_redis) as client:
            stream = Stream(client)
            await stream.send_and_see(20, look)
            own_redis.stop()
            await stream.send_and_see(50, look)
            wait_for(lambda: worker.said(AWAY), worker.output)
            await stream.send_and_see(50, look)
            own_redis.start()
            wait_for(lambda: worker.said(BACK), worker.output)
            wait_for(lambda: _listens(own_redis))
            await stream.send_and_see(50, look)
        assert look.statuses() == {"COMPLETED": 170}
        assert (worker.said(AWAY), worker.said(BACK)) == (1, 1), worker.output()
        assert not worker.errors()
        check_fence(fleet, look)


@pytest_asyncio.fixture
async def own_settings(own_postgres: OwnPostgres) -> AsyncIterator[Settings]:
    yield Settings.load({}, postgres_url=own_postgres.url, lease_seconds=2)


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_a_restart_of_postgres_loses_no_task_and_costs_none_an_attempt(
    own_settings: Settings, own_postgres: OwnPostgres, own_look: Console, mode: str
) -> None:
    async with connect(settings=own_settings) as client:
        await tasks.tick.enqueue_many([{"seconds": 0.1}] * 6_000, client=client)
        await tasks.tick.enqueue_many([{"seconds": 1.5}] * 20, client=client)
    with Fleet(own_settings) as fleet:
        workers = [fleet.start(), fleet.start()]
        wait_for(lambda: fleet.runs_started() > 1_500)
        await asyncio.to_thread(own_postgres.restart, mode)
        answers_at = own_look.value("SELECT clock_timestamp()")
        own_look.wait_for_all(fleet)

        assert own_look.statuses() == {"COMPLETED": 6_020}
        assert own_look.history() == {}, "nobody was taken for lost"
        assert own_look.rows("SELECT DISTINCT attempt FROM aaiclick_queue.tasks") == [{"attempt": 1}]
        check_fence(fleet, own_look)
        assert all(worker.is_alive for worker in workers)
        assert not any(worker.errors() for worker in workers)
        first = "SELECT extract(epoch FROM min(started_at) - %s) FROM aaiclick_queue.tasks WHERE started_at > %s"
        print(f"worked {own_look.value(first, answers_at, answers_at):.2f} s after Postgres answered")  # noqa: T201


async def test_an_outage_longer_than_the_lease_charges_nobody(
    own_settings: Settings, own_postgres: OwnPostgres, own_look: Console
) -> None:
    """Every worker stops its runs by its own clock, and one that is slow to come back is not taken for lost."""
    settings = own_settings.model_copy(update={"lease_seconds": 4.0})
    async with connect(settings=settings) as client:
        await tasks.tick.enqueue_many([{"seconds": 3.0}] * 50, client=client)
    with Fleet(settings) as fleet:
        slow, quick = workers = [fleet.start("-c", "30"), fleet.start("-c", "30")]
        wait_for(lambda: fleet.runs_started() >= 50)
        await asyncio.to_thread(own_postgres.stop, "immediate")
        for worker in workers:
            wait_for(lambda worker=worker: worker.said("could not renew the lease"), worker.output)  # type: ignore[misc]
        slow.freeze()
        await asyncio.to_thread(own_postgres.start)
        wait_for(lambda: own_look.value("SELECT now() > pg_postmaster_start_time() + interval '1 s'"))
        wait_for(lambda: own_look.value(RENEWED, quick.pid), quick.output)
        slow.thaw()
        own_look.wait_for_all(fleet)

        assert own_look.statuses() == {"COMPLETED": 50}
        assert own_look.history() == {}, "nobody was taken for lost"
        assert own_look.rows("SELECT DISTINCT attempt FROM aaiclick_queue.tasks") == [{"attempt": 1}]
        assert own_look.rows("SELECT DISTINCT status FROM aaiclick_queue.workers") == [{"status": "ACTIVE"}]
        check_fence(fleet, own_look)


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_enqueues_during_a_restart_of_postgres_wait_and_write_each_task_once(
    own_settings: Settings, own_postgres: OwnPostgres, own_look: Console, mode: str
) -> None:
    settings = own_settings.model_copy(update={"enqueue_timeout_seconds": 20.0})
    async with connect(settings=settings) as client:
        sent: list[int] = []

        async def send(number: int) -> None:
            while not stopped:
                await tasks.tick.enqueue(float(len(sent)), client=client)
                sent.append(number)

        stopped = False
        senders = [asyncio.create_task(send(number)) for number in range(20)]
        await asyncio.to_thread(wait_for, lambda: len(sent) > 500)
        await asyncio.to_thread(own_postgres.restart, mode)
        before = len(sent)
        await asyncio.to_thread(wait_for, lambda: len(sent) > before + 500)
        stopped = True
        await asyncio.gather(*senders)  # each came through: none was refused, the restart took less than their patience
    assert own_look.value("SELECT count(*) FROM aaiclick_queue.tasks") == len(sent)
    assert own_look.value("SELECT count(*) FROM aaiclick_queue.ready") == len(sent)


async def test_an_enqueue_without_postgres_is_refused_in_bounded_time_and_works_when_it_is_back(
    own_settings: Settings, own_postgres: OwnPostgres, own_look: Console
) -> None:
    settings = own_settings.model_copy(update={"enqueue_timeout_seconds": 1.0})
    async with connect(settings=settings) as client:
        await tasks.tick.enqueue(1.0, client=client)
        await asyncio.to_thread(own_postgres.stop)
        began = time.monotonic()
        with pytest.raises(PostgresUnavailable):
            await tasks.tick.enqueue(2.0, client=client)
        assert time.monotonic() - began < 15, "bounded: a second of patience, not a minute"
        await asyncio.to_thread(own_postgres.start)
        await tasks.tick.enqueue(3.0, client=client)
    rows = own_look.rows("SELECT kwargs->'seconds' AS number FROM aaiclick_queue.tasks ORDER BY id")
    assert [row["number"] for row in rows] == [1.0, 3.0]


async def test_an_enqueue_to_a_frozen_postgres_is_refused_in_bounded_time(
    own_settings: Settings, own_postgres: OwnPostgres
) -> None:
    settings = own_settings.model_copy(update={"enqueue_timeout_seconds": 1.0})
    async with connect(settings=settings) as client:
        await tasks.tick.enqueue(1.0, client=client)
        postmaster = psutil.Process(own_postgres.pid)
        family = [postmaster, *postmaster.children(recursive=True)]
        for process in family:
            process.suspend()
        try:
            began = time.monotonic()
            with pytest.raises(PostgresUnavailable):
                await tasks.tick.enqueue(2.0, client=client)
            assert time.monotonic() - began < 15, "bounded: a second of patience, not a minute"
        finally:
            for process in family:
                process.resume()
