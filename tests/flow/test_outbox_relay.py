"""Outbox and relay: what becomes ready is told to workers once or twice, never not at all, and never piles up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from aaiclick_queue.errors import StreamsDown
from aaiclick_queue.flow.enqueue import NewTask, Spec, enqueue, id_source
from aaiclick_queue.flow.outbox import append_from
from aaiclick_queue.flow.reaper import Reaper
from aaiclick_queue.flow.relay import STALE_SECONDS, Relay, forget, publish_own
from aaiclick_queue.outcome import Released
from aaiclick_queue.postgres import Database
from aaiclick_queue.settings import Settings
from aaiclick_queue.streams import Hint, Streams
from tests.tools import age, count, end, leased, make_due, put, put_one, rows, until
from tests.wires.redis_server import OwnRedis

OLD = 1.0  # seconds: beyond what is left to the writer of a row


@pytest.fixture
async def streams(redis_settings: Settings) -> AsyncIterator[Streams]:
    assert redis_settings.redis_url
    streams = Streams(redis_settings.redis_url, prefix=redis_settings.redis_prefix)
    await streams.listen(["default", "mail"], consumer="test", seconds=0.01)  # so that hints wait in a group
    yield streams
    await streams.close()


async def heard(streams: Streams) -> list[Hint]:
    """Every hint that waits."""
    found: list[Hint] = []
    while hints := (await streams.listen(["default", "mail"], consumer="test", seconds=0.05)).hints:
        found += hints
    return found


async def test_the_relay_publishes_what_was_committed_and_deletes_it(db: Database, streams: Streams) -> None:
    [mail] = await put(db, queue="mail", priority=4)
    ids = await put(db, count=3)
    await age(db, "outbox", "created_at", OLD)
    assert await Relay(db, streams).relay_once() == 2
    assert await count(db, "outbox") == 0
    hints = {hint.queue: hint for hint in await heard(streams)}
    assert (hints["mail"].rank, hints["mail"].order_key, hints["mail"].n) == (-4, mail, 1)
    assert (hints["default"].n, set(hints["default"].task_ids)) == (3, set(ids))
    assert await Relay(db, streams).relay_once() == 0


async def test_rows_of_the_last_moment_are_left_to_their_writer(db: Database, streams: Streams) -> None:
    await put(db)
    await db.fetch("UPDATE aaiclick_queue.outbox SET created_at = clock_timestamp() + interval '1 minute'")
    assert await Relay(db, streams).relay_once() == 0
    assert await count(db, "outbox") == 1
    assert await Relay(db, streams).relay_once(older=-120) == 1


async def test_a_writer_publishes_its_own_rows_and_forgets_them(db: Database, streams: Streams) -> None:
    spec = Spec(entrypoint="tests.nowhere", queue="default")
    written = await enqueue(db, spec, [NewTask("{}")], (await id_source(db)).take)
    await publish_own(streams, written.told)
    await forget(db, written.told)
    assert await count(db, "outbox") == 0
    assert [hint.task_ids for hint in await heard(streams)] == [tuple(written.ids)]


async def test_a_writer_that_died_before_publishing_is_relayed(db: Database, streams: Streams) -> None:
    [task_id] = await put(db)
    relay = Relay(db, streams)
    await until(relay.relay_once)
    assert [hint.task_ids for hint in await heard(streams)] == [(task_id,)]


async def test_a_pass_is_bounded(db: Database, streams: Streams) -> None:
    for _ in range(5):
        await put(db)
    await age(db, "outbox", "created_at", OLD)
    relay = Relay(db, streams)
    assert [await relay.relay_once(2) for _ in range(3)] == [2, 2, 1]


async def test_two_relays_share_the_rows_and_none_waits_for_the_other(db: Database, streams: Streams) -> None:
    for _ in range(4):
        await put(db)
    await age(db, "outbox", "created_at", OLD)
    async with db.transaction() as other:
        await other.fetch("SELECT id FROM aaiclick_queue.outbox ORDER BY id LIMIT 3 FOR UPDATE")
        async with asyncio.timeout(10):
            assert await Relay(db, streams).relay_once() == 1
    assert await Relay(db, streams).relay_once() == 3
    assert sum(hint.n for hint in await heard(streams)) == 4


async def test_a_row_that_was_committed_late_is_found_behind_the_mark(db: Database, streams: Streams) -> None:
    relay = Relay(db, streams)
    async with db.transaction() as late:
        [early] = await put(late)
        for _ in range(3):
            await put(db)
        await db.fetch("UPDATE aaiclick_queue.outbox SET created_at = created_at - interval '1 s'")
        assert await relay.relay_once(3) == 3
    await age(db, "outbox", "created_at", OLD)
    await until(relay.relay_once)
    assert early in [task_id for hint in await heard(streams) for task_id in hint.task_ids]


async def test_while_redis_is_away_fresh_rows_wait_and_stale_ones_are_dropped(settings: Settings, db: Database) -> None:
    with OwnRedis() as server:
        streams = Streams(server.url)
    try:
        await put(db)
        await age(db, "outbox", "created_at", STALE_SECONDS + OLD)
        [fresh] = await put(db)
        await db.fetch(
            "UPDATE aaiclick_queue.outbox SET created_at = created_at - interval '1 s' WHERE $1 = ANY(task_ids)", fresh
        )
        with pytest.raises(StreamsDown):
            await Relay(db, streams).relay_once()
        assert [row["task_ids"] for row in await rows(db, "outbox")] == [[fresh]]
    finally:
        await streams.close()


async def test_without_redis_the_outbox_is_emptied_unread(db: Database) -> None:
    await put(db)
    relay = Relay(db, None)
    assert await relay.relay_once() == 0  # others may have a Redis
    await age(db, "outbox", "created_at", STALE_SECONDS + OLD)
    await until(relay.relay_once)
    assert await count(db, "outbox") == 0


async def test_whatever_becomes_ready_again_is_told_too(db: Database) -> None:
    run = await leased(db)
    delayed = await put_one(db, task={"countdown": 60.0}, queue="mail")
    await db.fetch("DELETE FROM aaiclick_queue.outbox")
    assert await end(db, run, Released())
    await make_due(db)
    await Reaper(db).due_once()
    told = {row["queue"]: (row["n"], row["task_ids"]) for row in await rows(db, "outbox")}
    assert told == {"default": (1, [run.task_id]), "mail": (1, [delayed])}


async def test_a_commit_that_makes_nothing_ready_tells_nobody(db: Database) -> None:
    await put_one(db, task={"countdown": 60.0})
    await Reaper(db).due_once()
    assert await count(db, "outbox") == 0


async def test_tasks_of_several_queues_are_one_row_a_queue(db: Database) -> None:
    rows_of = (
        "(VALUES ('a', 0, 7::bigint, 7::bigint), ('a', -1, 8, 8), ('b', 5, 9, 9)) AS r(queue, rank, order_key, task_id)"
    )
    told = await db.fetch(append_from(rows_of))
    assert sorted((row["queue"], row["rank"], row["order_key"], row["n"]) for row in told) == [
        ("a", -1, 7, 2),
        ("b", 5, 9, 1),
    ]
