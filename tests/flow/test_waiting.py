"""Waiting for results: quick by nudges, right without them, and never a storm of questions."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from aaiclick_queue import (
    Client,
    Handle,
    Settings,
    Status,
    TaskCancelled,
    TaskFailed,
    as_completed,
    connect,
    gather,
    handle,
    sync,
    task,
)
from aaiclick_queue.channel import Channel
from aaiclick_queue.errors import PostgresUnavailable, ResultExpired, StreamsDown, WrongContext
from aaiclick_queue.flow.kick import tell_ended
from aaiclick_queue.flow.reaper import Reaper
from aaiclick_queue.nudges import IDS_KEPT, Nudges
from aaiclick_queue.outcome import Error, Failed, Outcome, Succeeded
from aaiclick_queue.portal import portal_loop
from aaiclick_queue.postgres import Database, plain_dsn
from aaiclick_queue.waiting import FINISHED, Net
from tests.faults.fleet import Fleet
from tests.faults.tasks import tick
from tests.tools import (
    Proxy,
    age,
    changed,
    claim,
    end,
    environment,
    leased,
    put,
    register_worker,
    running_worker,
    until,
)
from tests.wires.redis_server import OwnRedis

LONG = 30.0


@task(entrypoint="tests.waiting.double")
async def double(n: int) -> int:
    if n < 0:
        raise ValueError("below zero")
    return 2 * n


@task(entrypoint="tests.waiting.unkept", keep="none")
async def unkept() -> int:
    return 1


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks without a reason: what is found was named by a nudge."""
    for name in ("FIRST", "LONGEST", "NUDGED"):
        monkeypatch.setattr(Net, name, 3600.0)


async def finish(db: Database, count: int, outcome: Callable[[int], Outcome]) -> None:
    """End the next tasks in line without a word to anybody."""
    runs = await claim(db, await register_worker(db), count)
    assert len(runs) == count
    for position, run in enumerate(runs):
        assert await end(db, run, outcome(position))


async def remove(db: Database, task_id: int) -> None:
    await db.fetch(
        """WITH place AS (DELETE FROM aaiclick_queue.ready WHERE task_id = $1)
           DELETE FROM aaiclick_queue.tasks WHERE id = $1""",
        task_id,
    )


async def statements(client: Client, monkeypatch: pytest.MonkeyPatch) -> list[Sequence[int]]:
    """The ids of every question for ended tasks that this client asks from now on."""
    asked: list[Sequence[int]] = []
    db = await client.database()
    fetch = db.fetch

    async def counting(sql: str, *args: Any) -> Any:
        asked.append(args[0] if sql == FINISHED else (-1,))
        return await fetch(sql, *args)

    monkeypatch.setattr(db, "fetch", counting)
    return asked


def nudged(client: Client) -> bool:
    return client.waiting._net.is_nudged


# One task.


@pytest.mark.parametrize("outcome", [Succeeded("4"), Failed(Error("ValueError", "no"))], ids=["succeeded", "failed"])
async def test_a_wait_ends_with_the_task_and_raises_nothing_for_a_failed_one(
    client: Client, db: Database, outcome: Outcome
) -> None:
    one = await double.enqueue(2, client=client)
    waiting = asyncio.create_task(one.wait(LONG))
    await finish(db, 1, lambda _: outcome)
    assert await waiting == (Status.COMPLETED if isinstance(outcome, Succeeded) else Status.FAILED)


async def test_a_result_after_a_wait_asks_nobody_again(
    client: Client, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await double.enqueue(2, client=client)
    await finish(db, 1, lambda _: Succeeded("4"))
    assert await one.wait(LONG) == await one.wait(LONG) == Status.COMPLETED
    asked = await statements(client, monkeypatch)
    assert await one.result(LONG) == 4
    assert asked == []
    assert await one.result(LONG) == 4  # a look of its own
    assert asked == [[one.id]]


async def test_a_wait_for_a_cancelled_task_gives_its_status(client: Client) -> None:
    one = await double.enqueue(2, client=client)
    waiting = asyncio.create_task(one.wait(LONG))
    assert await one.cancel()
    assert await waiting == Status.CANCELLED


async def test_with_no_time_at_all_it_only_looks(client: Client, db: Database) -> None:
    one = await double.enqueue(2, client=client)
    with pytest.raises(TimeoutError, match="it goes on"):
        await one.result(0)
    with pytest.raises(TimeoutError, match="it goes on"):
        await one.wait(-1)
    await finish(db, 1, lambda _: Succeeded("4"))
    assert await one.result(0) == 4
    assert await handle(one.id, client=client).wait(0) == Status.COMPLETED


async def test_a_task_that_vanishes_while_somebody_waits_is_told_as_expired(client: Client, db: Database) -> None:
    one = await double.enqueue(2, client=client)
    waiting = asyncio.create_task(one.result(LONG))
    await until(lambda: client.waiting._awaited and client.waiting._awaited[one.id].was_there)
    await remove(db, one.id)
    with pytest.raises(ResultExpired, match="was removed meanwhile"):
        await waiting


async def test_a_task_that_was_removed_before_is_told_at_once(client: Client, db: Database) -> None:
    one = await double.enqueue(2, client=client)
    await remove(db, one.id)
    for ask in (one.result, one.wait):
        with pytest.raises(ResultExpired, match="pruned"):
            await ask(LONG)


async def test_a_task_in_a_transaction_that_is_not_committed_cannot_be_waited_for(
    client: Client, settings: Settings
) -> None:
    connection = await asyncpg.connect(plain_dsn(settings.postgres_url or ""))
    try:
        async with connection.transaction():
            one = await double.enqueue(2, client=client, connection=connection)
            for ask in (one.result, one.wait):
                with pytest.raises(WrongContext, match="not committed"):
                    await ask(LONG)
        with pytest.raises(TimeoutError):
            await one.result(0.01)
    finally:
        await connection.close()


async def test_a_wait_outlasts_postgres_and_one_that_begins_meanwhile_is_told(client: Client, db: Database) -> None:
    one = await double.enqueue(2, client=client)
    waiting = asyncio.create_task(one.result(LONG))
    await until(lambda: client.waiting._awaited and client.waiting._awaited[one.id].was_there)
    ours = await client.database()
    fetch, failed = ours.fetch, 0

    async def away(*_: Any) -> Any:
        nonlocal failed
        failed += 1
        raise PostgresUnavailable("no answer")

    ours.fetch = away  # type: ignore[assignment,method-assign]
    with pytest.raises(PostgresUnavailable):
        await handle(4711, client=client).result(LONG)
    await finish(db, 1, lambda _: Succeeded("4"))
    await until(lambda: failed > 2)
    assert not waiting.done()
    ours.fetch = fetch  # type: ignore[method-assign]
    assert await waiting == 4


async def test_who_gives_up_is_forgotten(client: Client) -> None:
    one = await double.enqueue(2, client=client)
    waits = [asyncio.create_task(one.result(LONG)) for _ in range(3)]
    await until(lambda: client.waiting._awaited and len(client.waiting._awaited[one.id].futures) == 3)
    for wait in waits[:2]:
        wait.cancel()
    await until(lambda: len(client.waiting._awaited[one.id].futures) == 1)
    waits[2].cancel()
    await until(lambda: not client.waiting._awaited)


async def test_a_wait_goes_on_over_a_connection_that_is_cut(settings: Settings, db: Database) -> None:
    async with (
        Proxy(settings.postgres_url or "") as proxy,
        connect(settings=changed(settings, postgres_url=proxy.url)) as client,
    ):
        one = await double.enqueue(2, client=client)
        waiting = asyncio.create_task(one.result(LONG))
        await until(lambda: client.waiting._awaited and client.waiting._awaited[one.id].was_there)
        proxy.cut()
        await finish(db, 1, lambda _: Succeeded("4"))
        assert await waiting == 4


# Many.


async def test_gather_gives_results_in_the_order_of_its_handles(client: Client, db: Database) -> None:
    handles = [await double.enqueue(n, client=client) for n in range(5)]
    waiting = asyncio.create_task(gather(*reversed(handles), handles[0], timeout=LONG))
    await finish(db, 5, lambda n: Succeeded(str(2 * n)))
    assert await waiting == [8, 6, 4, 2, 0, 0]
    assert await gather() == []
    assert await gather(*handles, timeout=0) == [0, 2, 4, 6, 8]


async def test_one_that_fails_raises_and_the_others_go_on(client: Client, db: Database) -> None:
    bad, good = await double.enqueue(-1, client=client), await double.enqueue(1, client=client)
    waiting = asyncio.create_task(gather(good, bad, timeout=LONG))
    await finish(db, 1, lambda _: Failed(Error("ValueError", "below zero")))
    with pytest.raises(TaskFailed, match="below zero"):
        await waiting
    assert await good.status() == Status.QUEUED
    assert not client.waiting._awaited


async def test_errors_stand_in_their_places_where_that_is_asked_for(client: Client, db: Database) -> None:
    good, bad, slow, gone = [await double.enqueue(n, client=client) for n in (1, -1, 3, 4)]
    cancelled = await double.enqueue(5, client=client)
    await cancelled.cancel()
    await remove(db, gone.id)
    await finish(db, 2, lambda n: Failed(Error("ValueError", "no")) if n else Succeeded("2"))
    for timeout in (0.05, 0):
        found = await gather(good, bad, slow, gone, cancelled, return_exceptions=True, timeout=timeout)
        assert [2, TaskFailed, TimeoutError, ResultExpired, TaskCancelled] == [found[0], *map(type, found[1:])]


async def test_a_gather_ends_at_its_time_and_the_tasks_go_on(client: Client, db: Database) -> None:
    handles = [await double.enqueue(n, client=client) for n in range(3)]
    await finish(db, 1, lambda _: Succeeded("0"))
    with pytest.raises(TimeoutError, match=r"2 of 3 tasks have not ended within 0\.05 s; they go on"):
        await gather(*handles, timeout=0.05)
    assert not client.waiting._awaited


async def test_a_cancelled_gather_leaves_nothing_behind(client: Client) -> None:
    handles = [await double.enqueue(n, client=client) for n in range(3)]
    waiting = asyncio.create_task(gather(*handles))
    await until(lambda: len(client.waiting._awaited) == 3)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not client.waiting._awaited


async def test_handles_come_as_their_tasks_end_well_or_not(
    client: Client, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    handles = [await double.enqueue(n, client=client) for n in range(4)]
    runs = await claim(db, await register_worker(db), 4)
    iterator = as_completed(handles, timeout=LONG)
    for position in (2, 0, 3):
        outcome = Failed(Error("ValueError", "no")) if position == 0 else Succeeded(str(position))
        assert await end(db, runs[position], outcome)
        assert await anext(iterator) is handles[position]
    asked = await statements(client, monkeypatch)
    assert await handles[2].result() == 2
    with pytest.raises(TaskFailed):
        await handles[0].result()
    assert not [ids for ids in asked if handles[2].id in ids]
    await db.fetch("DELETE FROM aaiclick_queue.leases WHERE task_id = $1", handles[1].id)
    await remove(db, handles[1].id)
    assert await anext(iterator) is handles[1]
    with pytest.raises(ResultExpired):
        await handles[1].result()
    assert [one async for one in iterator] == []


async def test_as_completed_ends_at_its_time_or_when_its_loop_is_left(client: Client, db: Database) -> None:
    handles = [await double.enqueue(n, client=client) for n in range(2)]
    await finish(db, 1, lambda _: Succeeded("0"))
    seen = []
    with pytest.raises(TimeoutError, match="1 of 2 tasks"):
        async for one in as_completed(handles, timeout=0.2):
            seen.append(one)  # noqa: PERF401 - what came before the error counts
    assert seen == handles[:1]
    iterator = as_completed(handles)
    assert await anext(iterator) is handles[0]
    await iterator.aclose()
    assert not client.waiting._awaited
    nothing: list[Handle[int]] = []
    assert [one async for one in as_completed(nothing)] == []


# Synchronous code.


@pytest.fixture
def as_default(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> Iterator[None]:
    from aaiclick_queue import client as client_module

    async def close() -> None:
        for _, guard in list(client_module._clients.get(asyncio.get_running_loop(), {}).values()):
            await guard.aclose()

    with environment(monkeypatch, settings):
        yield
        asyncio.run_coroutine_threadsafe(close(), portal_loop()).result()


def test_the_synchronous_twins_wait_as_well(as_default: None, settings: Settings) -> None:
    handles = [double.delay(n) for n in (1, 2, -3)]
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(asyncio.run, work_off(settings, [one.id for one in handles]))
        assert sync.wait(handles[0].id, LONG) == Status.COMPLETED
        assert sync.gather(*handles[:2], timeout=LONG) == [2, 4]
        with pytest.raises(TaskFailed):
            sync.gather(*handles, timeout=LONG)
        assert {one.id for one in sync.as_completed(handles, timeout=LONG)} == {one.id for one in handles}
        assert isinstance(next(sync.as_completed(handles)), Handle)
        working.result()


async def work_off(settings: Settings, ids: Sequence[int]) -> None:
    async with running_worker(settings), connect(settings=settings) as client:
        await gather(*(handle(one, client=client) for one in ids), return_exceptions=True, timeout=LONG)


async def test_the_synchronous_twins_are_refused_on_a_running_loop(as_default: None) -> None:
    one = await double.enqueue(1)
    for call in (lambda: sync.wait(one.id), lambda: sync.gather(one), lambda: next(sync.as_completed([one]))):
        with pytest.raises(WrongContext, match=r"await|async for"):
            call()


INTERRUPTED = """
import signal, threading, os, time
from aaiclick_queue import sync, client, portal, enqueue
from aaiclick_queue.portal import submit
one = sync.enqueue("tests.nowhere")
threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    sync.wait(one.id)
except KeyboardInterrupt:
    pass
async def awaited():
    return len((await client.default_client()).waiting._awaited)
until = time.monotonic() + 20
while submit(awaited()):
    assert time.monotonic() < until
"""


def test_ctrl_c_ends_a_blocking_wait_and_leaves_nothing_behind(as_default: None) -> None:
    ran = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr


# No storm.


def test_the_net_never_looks_more_often_than_its_budget_whatever_comes() -> None:
    now = 0.0
    net = Net(lambda: now)
    looks = []
    for _ in range(100_000):
        now += 0.001
        if int(now * 1000) % 7 == 0:
            net.restart()
        if int(now * 1000) % 11 == 0:
            net.hurry()
        if net.seconds() <= 0:
            net.looked()
            looks.append(now)
    assert len(looks) <= 100 * 4 + Net.QUICK_LOOKS
    assert len([at for at in looks if 50 <= at < 60]) <= 41


def test_the_net_begins_quickly_grows_and_rests_while_nudges_come() -> None:
    now = 0.0
    net = Net(lambda: now)
    pauses = []
    for _ in range(10):
        pauses.append(net.seconds())
        now += pauses[-1]
        net.looked()
    assert pauses[0] == pytest.approx(Net.FIRST)
    assert pauses == sorted(pauses)
    assert pauses[-1] == pytest.approx(Net.LONGEST)
    net.is_nudged = True
    assert net.seconds() == pytest.approx(Net.NUDGED)
    net.hurry()
    assert net.seconds() <= 0


@pytest.mark.parametrize("with_redis", [False, True], ids=["postgres alone", "with Redis"])
async def test_a_thousand_waiters_cost_at_most_four_statements_a_second(
    request: pytest.FixtureRequest, settings: Settings, monkeypatch: pytest.MonkeyPatch, with_redis: bool
) -> None:
    given = request.getfixturevalue("redis_settings") if with_redis else settings
    async with connect(settings=given) as client:
        ids = await double.enqueue_many([{"n": n} for n in range(1000)], client=client)
        asked = await statements(client, monkeypatch)
        waits = [asyncio.create_task(handle(one, client=client).result()) for one in ids]
        await until(lambda: len(client.waiting._awaited) == 1000 and len(asked) >= 2)
        assert len(asked) < 10  # they came together and were asked for together
        await until(lambda: nudged(client) or not with_redis)
        await until(lambda: len(asked[-1]) == 1000)
        await asyncio.sleep(1)  # the quick looks at the beginning
        begun, before = time.monotonic(), len(asked)
        await asyncio.sleep(3)
        stretch, cost = time.monotonic() - begun, len(asked) - before
        assert cost <= (1 if with_redis else 4) * stretch + 1
        await until(lambda: len(asked) > before)
        for wait in waits:
            wait.cancel()
        await asyncio.wait(waits)


async def test_garbage_on_the_channel_makes_no_storm(redis_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    channel = Channel(redis_settings.redis_url or "", prefix=redis_settings.redis_prefix)
    async with connect(settings=redis_settings) as client, subscribed(client):
        asked = await statements(client, monkeypatch)
        begun = time.monotonic()
        for n in range(300):
            assert await channel.publish([n], look_at_all=True) == 1
        await until(lambda: asked)
        assert len(asked) <= 4 * (time.monotonic() - begun) + Net.QUICK_LOOKS + 1
    await channel.close()


async def test_a_look_that_takes_long_is_repeated_seldom() -> None:
    now = 0.0
    net = Net(lambda: now)
    net.looked(took=1.0)
    assert net.seconds() >= 4


# Nudges.


@pytest.mark.usefixtures("blind")
async def test_in_one_process_a_worker_tells_who_waits_without_redis(client: Client, quick: Settings) -> None:
    async with running_worker(quick):
        good, bad = (
            await double.enqueue(1, client=client),
            await double.options(max_attempts=1).enqueue(-1, client=client),
        )
        assert await good.result(LONG) == 2
        assert await bad.wait(LONG) == Status.FAILED
    assert not client.waiting._looking or client.waiting._looking.done()


@pytest.mark.usefixtures("blind")
async def test_a_task_that_keeps_nothing_ends_a_wait_as_expired(client: Client, quick: Settings) -> None:
    one = await unkept.enqueue(client=client)
    waiting = asyncio.create_task(one.result(LONG))
    await until(lambda: client.waiting._awaited and client.waiting._awaited[one.id].was_there)
    async with running_worker(quick):
        with pytest.raises(ResultExpired, match="was removed meanwhile"):
            await waiting


@pytest.mark.usefixtures("blind")
async def test_over_redis_a_worker_tells_who_waits_in_another_process(redis_settings: Settings) -> None:
    # Blind, it finds an end by its first look, by the one when the subscription is live, or by a nudge.
    with Fleet(redis_settings) as fleet:
        fleet.start()
        async with connect(settings=redis_settings) as client, subscribed(client):
            for _ in range(20):
                assert await (await tick.enqueue(0.01, client=client)).result(LONG) == 1
            many = await tick.enqueue_many([{"seconds": 0.2}] * 300, client=client)
            assert await gather(*(handle(one, client=client) for one in many), timeout=LONG) == [1] * 300


@asynccontextmanager
async def subscribed(client: Client) -> AsyncIterator[None]:
    """The client hears nudges, because somebody waits for a task that does not end."""
    waiting = asyncio.create_task((await double.options(countdown=3600).enqueue(0, client=client)).result())
    try:
        await until(lambda: nudged(client))
        yield
    finally:
        waiting.cancel()
        await asyncio.wait([waiting])


@pytest.mark.usefixtures("blind")
async def test_what_a_client_cancels_is_told_to_others(redis_settings: Settings) -> None:
    async with connect(settings=redis_settings) as here, connect(settings=redis_settings) as there, subscribed(here):
        one = await double.enqueue(1, client=here)
        waiting = asyncio.create_task(one.wait(LONG))
        await until(lambda: one.id in here.waiting._awaited and here.waiting._awaited[one.id].was_there)
        # As if in another process: only Redis carries it.
        channel = there._nudges()
        assert channel is not None
        from aaiclick_queue.flow import cancel

        assert await cancel.cancel(await there.database(), [one.id]) == {one.id}
        assert not waiting.done()
        there._tell_ended([one.id])
        assert await waiting == Status.CANCELLED


@pytest.mark.usefixtures("blind")
async def test_a_cancel_tells_who_waits_in_the_same_process(client: Client, settings: Settings) -> None:
    async with connect(settings=settings) as other:
        one = await double.enqueue(1, client=client)
        waiting = asyncio.create_task(one.wait(LONG))
        await until(lambda: client.waiting._awaited and client.waiting._awaited[one.id].was_there)
        assert await other.cancel([one.id]) == {one.id}
        assert await waiting == Status.CANCELLED


@pytest.mark.usefixtures("blind")
async def test_what_the_reaper_ends_is_told(client: Client, db: Database, settings: Settings) -> None:
    expiring = await double.options(expires=0.001).enqueue(1, client=client)
    run = await leased(db, entrypoint="tests.waiting.double", queue="other")
    overdue = await leased(db, entrypoint="tests.waiting.double", queue="third", max_attempts=1)
    waits = [
        asyncio.create_task(handle(one, client=client).wait(LONG))
        for one in (expiring.id, run.task_id, overdue.task_id)
    ]
    await until(lambda: sum(one.was_there for one in client.waiting._awaited.values()) == 3)
    await db.fetch("UPDATE aaiclick_queue.leases SET lost_count = 50 WHERE task_id = $1", run.task_id)
    await db.fetch(
        """UPDATE aaiclick_queue.workers SET status = 'LOST', stopped_at = now()
           WHERE id = (SELECT worker_id FROM aaiclick_queue.leases WHERE task_id = $1)""",
        run.task_id,
    )
    await db.fetch(
        "UPDATE aaiclick_queue.leases SET deadline_at = now() - interval '1 s' WHERE task_id = $1", overdue.task_id
    )
    await age(db, "timers", "due_at", 60)
    reaper = Reaper(db)
    await reaper.reap_once()
    assert await asyncio.gather(*waits) == [Status.CANCELLED, Status.FAILED, Status.FAILED]


async def test_a_nudge_that_is_lost_costs_a_second_and_no_result(redis_settings: Settings, db: Database) -> None:
    async with connect(settings=redis_settings) as client, subscribed(client):
        one = await double.enqueue(1, client=client)
        waiting = asyncio.create_task(one.result(LONG))
        await until(lambda: one.id in client.waiting._awaited and client.waiting._awaited[one.id].was_there)
        await finish(db, 1, lambda _: Succeeded("2"))  # nobody tells
        assert await waiting == 2
        assert nudged(client)


@pytest.mark.usefixtures("blind")
async def test_what_ends_before_the_subscription_is_live_is_not_missed(
    redis_settings: Settings, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = asyncio.Event()
    listen = Channel.listen

    async def late(self: Channel, live: Callable[[], None], told: Callable[[Sequence[int] | None], None]) -> None:
        await finish(db, 1, lambda _: Succeeded("2"))
        ended.set()
        await listen(self, live, told)

    monkeypatch.setattr(Channel, "listen", late)
    async with connect(settings=redis_settings) as client:
        one = await double.enqueue(1, client=client)
        assert await one.result(LONG) == 2
        assert ended.is_set()


async def test_a_redis_that_goes_away_and_comes_back_while_somebody_waits(settings: Settings, db: Database) -> None:
    with OwnRedis() as redis:
        given = changed(settings, redis_url=redis.url)
        async with connect(settings=given) as client, subscribed(client):
            for hurt, heal in ((redis.kill, redis.start), (redis.freeze, redis.thaw)):
                one = await double.enqueue(1, client=client)
                waiting = asyncio.create_task(one.result(LONG))
                await asyncio.to_thread(hurt)
                await until(lambda: not nudged(client))
                await finish(db, 1, lambda _: Succeeded("2"))
                assert await waiting == 2
                await asyncio.to_thread(heal)
                await until(lambda: nudged(client))


@pytest.mark.usefixtures("blind")
async def test_a_worker_goes_on_telling_after_redis_was_away(settings: Settings) -> None:
    with OwnRedis() as redis:
        given = changed(settings, redis_url=redis.url)
        channel = Channel(redis.url)
        nudges = Nudges(channel)
        running = asyncio.create_task(nudges.run())
        redis.kill()
        async with connect(settings=given) as client:
            nudges.ended([1, 2, 3])
            await until(lambda: nudges._missed)
            assert nudges._pending == []
            redis.start()
            async with subscribed(client):
                hurried: list[bool] = []
                client.waiting._net.hurry = lambda: hurried.append(True)  # type: ignore[method-assign]
                nudges.ended([4])
                await until(lambda: hurried)
        running.cancel()
        await asyncio.wait([running])


async def test_what_ended_last_is_told_before_a_worker_ends() -> None:
    deaf = Deaf()
    deaf.receivers = 1
    async with nudging(deaf):
        tell_ended([1])
        await until(lambda: deaf.published)
        tell_ended([2])
    assert deaf.published == [([1], False), ([2], False)]


class Deaf:
    """A channel that nobody listens to, or that is down."""

    def __init__(self, *, down: bool = False) -> None:
        self.down = down
        self.published: list[tuple[list[int], bool]] = []
        self.receivers = 0

    async def publish(self, ids: Sequence[int], *, look_at_all: bool = False) -> int:
        if self.down:
            raise StreamsDown("away")
        self.published.append((list(ids), look_at_all))
        return self.receivers

    async def close(self) -> None:
        pass


@asynccontextmanager
async def nudging(deaf: Deaf) -> AsyncIterator[Nudges]:
    nudges = Nudges(deaf)  # type: ignore[arg-type]
    running = asyncio.create_task(nudges.run())
    await asyncio.sleep(0)
    try:
        yield nudges
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_where_nobody_listens_ends_are_told_together_at_most_20_times_a_second() -> None:
    deaf = Deaf()
    async with nudging(deaf):
        begun, told = time.monotonic(), 0
        while time.monotonic() - begun < 0.5:
            tell_ended([told])
            told += 1
            await asyncio.sleep(0)
        await until(lambda: sum(len(ids) for ids, _ in deaf.published) == told)
        assert len(deaf.published) <= 20 * (time.monotonic() - begun) + 2
        assert [one for ids, _ in deaf.published for one in ids] == list(range(told))
    before = len(deaf.published)
    tell_ended([1])
    await asyncio.sleep(0.01)
    assert len(deaf.published) == before  # one that ended is told nothing more


async def test_while_somebody_listens_each_end_is_told_at_once() -> None:
    deaf = Deaf()
    deaf.receivers = 1
    async with nudging(deaf):
        for n in range(10):
            tell_ended([n])
            await until(lambda n=n: len(deaf.published) == n + 1)  # type: ignore[misc]


async def test_a_redis_that_is_down_makes_nothing_grow_and_all_look_when_it_is_back() -> None:
    deaf = Deaf(down=True)
    async with nudging(deaf) as nudges:
        for start in range(0, 5 * IDS_KEPT, 1000):
            tell_ended(range(start, start + 1000))
            await asyncio.sleep(0)
        assert len(nudges._pending) <= IDS_KEPT
        await until(lambda: nudges._missed)
        deaf.down = False
        tell_ended([7])
        await until(lambda: deaf.published)
        assert deaf.published[0][1]


@pytest.mark.usefixtures("blind")
async def test_more_results_than_one_answer_holds_are_all_delivered(client: Client, db: Database) -> None:
    ids = await put(db, count=2500)
    await db.fetch(
        """WITH taken AS (DELETE FROM aaiclick_queue.ready)
           UPDATE aaiclick_queue.tasks SET status = 'COMPLETED', result = to_jsonb(id::text), finished_at = now()"""
    )
    assert await gather(*(handle(one, client=client) for one in ids), timeout=LONG) == [str(one) for one in ids]


async def test_a_listener_leaves_some_time_after_the_last_wait(
    redis_settings: Settings, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aaiclick_queue.waiting.LISTENS_ON_SECONDS", 0.2)
    async with connect(settings=redis_settings) as client:
        async with subscribed(client):
            pass
        await until(lambda: client.waiting._listening and client.waiting._listening.done())
        assert not nudged(client)
        async with subscribed(client):  # and comes back
            pass


async def test_a_client_that_closes_while_it_listens_leaves_no_task(redis_settings: Settings) -> None:
    async with connect(settings=redis_settings) as client, subscribed(client):
        pass
    names = {task.get_name() for task in asyncio.all_tasks()}
    assert not {name for name in names if name.startswith("aaiclick-queue")}
