"""max_depth: a queue that is full refuses tasks, all of a call or none, and takes them again when there is room."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from aaiclick_queue import Client, QueueFull, Settings, current, enqueue, limit_queue, task
from aaiclick_queue.errors import WrongContext
from aaiclick_queue.flow.reaper import Reaper
from aaiclick_queue.postgres import Database
from tests.tools import claim, count, put, register_worker, rows, running_worker, until


@task(queue="mail")
async def send(to: str = "") -> str:
    return to


@task(queue="work")
async def fan_out(n: int) -> int:
    for number in range(n):
        await current().enqueue(send, to=str(number))
    return n


async def test_a_full_queue_refuses_and_others_do_not(db: Database, client: Client) -> None:
    await limit_queue("mail", max_depth=2, client=client)
    await send.enqueue(client=client)
    await send.enqueue(client=client)
    with pytest.raises(QueueFull, match="max_depth 2") as refused:
        await send.enqueue(client=client)
    assert (refused.value.queue, refused.value.max_depth) == ("mail", 2)
    await send.options(queue="other").enqueue(client=client)
    assert await count(db, "tasks") == 3
    [queue] = await rows(db, "queues")
    assert queue["full_at"] is not None
    assert [one["type"] for one in await rows(db, "events")].count("QUEUE_FULL") == 1
    await claim(db, await register_worker(db), limit=1, queues=["mail"])
    await send.enqueue(client=client)


async def test_held_tasks_count_and_those_that_wait_for_their_time_do_not(db: Database, client: Client) -> None:
    await limit_queue("mail", max_depth=2, max_running=1, client=client)
    await send.enqueue(client=client)
    await send.options(countdown=60).enqueue(client=client)
    await send.enqueue(client=client)
    assert await count(db, "held") == 2
    with pytest.raises(QueueFull):
        await send.enqueue(client=client)


async def test_many_are_written_all_or_none(db: Database, client: Client) -> None:
    await limit_queue("mail", max_depth=1500, client=client)
    with pytest.raises(QueueFull, match="no room for 1,501 more"):
        await send.enqueue_many([{} for _ in range(1501)], client=client)
    assert await count(db, "tasks") == 0
    assert len(await send.enqueue_many([{} for _ in range(1500)], client=client)) == 1500
    with pytest.raises(QueueFull):
        await send.enqueue_many([{}], client=client)


async def test_calls_that_share_a_commit_are_refused_one_by_one(db: Database, client: Client) -> None:
    await limit_queue("mail", max_depth=3, client=client)
    ended = await asyncio.gather(*(send.enqueue(client=client) for _ in range(10)), return_exceptions=True)
    assert sum(isinstance(one, QueueFull) for one in ended) == 7
    assert await count(db, "ready") == 3


@pytest.mark.parametrize("by_name", [False, True])
async def test_who_asks_to_wait_is_let_in_when_there_is_room(db: Database, client: Client, by_name: bool) -> None:
    await limit_queue("mail", max_depth=1, client=client)
    await send.enqueue(client=client)
    if by_name:
        coming = asyncio.create_task(enqueue("shop.send", queue="mail", on_full="wait", client=client))
    else:
        coming = asyncio.create_task(send.options(on_full="wait").enqueue(client=client))
    await until(lambda: _was_refused(db))
    assert not coming.done()
    await claim(db, await register_worker(db), queues=["mail"])
    assert (await coming).id
    assert await count(db, "ready") == 1


async def _was_refused(db: Database) -> bool:
    return any(one["full_at"] for one in await rows(db, "queues"))


async def test_what_can_never_fit_does_not_wait(client: Client) -> None:
    await limit_queue("mail", max_depth=2, client=client)
    with pytest.raises(QueueFull):
        await send.options(on_full="wait").enqueue_many([{} for _ in range(3)], client=client)


async def test_in_the_caller_s_transaction_it_is_refused_and_waiting_is_not_offered(
    db: Database, client: Client, settings: Settings
) -> None:
    await limit_queue("mail", max_depth=1, client=client)
    connection = await asyncpg.connect(settings.postgres_url)
    try:
        async with connection.transaction():
            await send.enqueue(client=client, connection=connection)
            with pytest.raises(QueueFull):
                await send.enqueue(client=client, connection=connection)
            with pytest.raises(WrongContext, match="would keep it open"):
                await send.options(on_full="wait").enqueue(client=client, connection=connection)
            with pytest.raises(WrongContext, match="would keep it open"):
                await enqueue("shop.send", queue="mail", on_full="wait", client=client, connection=connection)
            await connection.execute("SELECT 1")  # the transaction is whole
    finally:
        await connection.close()
    assert await count(db, "tasks") == 1


async def test_the_sql_function_refuses_too(db: Database, client: Client, settings: Settings) -> None:
    await limit_queue("mail", max_depth=1, client=client)
    sql = "SELECT aaiclick_queue.enqueue('shop.send', queue => 'mail')"
    connection = await asyncpg.connect(settings.postgres_url)
    try:
        assert await connection.fetchval(sql)
        with pytest.raises(asyncpg.PostgresError, match=r"queue mail is full \(max_depth 1\)") as refused:
            await connection.fetchval(sql)
        assert refused.value.sqlstate == "53400"
    finally:
        await connection.close()
    assert await count(db, "tasks") == 1


async def test_children_are_let_in(db: Database, client: Client, quick: Settings) -> None:
    await limit_queue("mail", max_depth=1, client=client)
    async with running_worker(quick, queues={"work": 1}):
        assert await (await fan_out.enqueue(3, client=client)).result(timeout=30) == 3
    assert await count(db, "ready") == 3


async def test_a_deep_queue_is_counted_by_the_background(db: Database, client: Client) -> None:
    await limit_queue("mail", max_depth=10_001, client=client)
    await put(db, count=10_001, queue="mail")
    await send.enqueue(client=client)  # nobody has counted yet
    await until(lambda: _is_counted(db))
    with pytest.raises(QueueFull):
        await send.enqueue(client=client)
    await limit_queue("mail", max_depth=None, client=client)
    await send.enqueue(client=client)


async def _is_counted(db: Database) -> bool:
    await Reaper(db).reap_once()
    return any(one["depth"] for one in await rows(db, "queues"))
