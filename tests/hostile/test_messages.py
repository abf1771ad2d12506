"""Whatever somebody writes into Redis, workers go on with good work and whoever waits gets its result."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
import redis.asyncio

from aaiclick_queue import Settings, connect
from aaiclick_queue.streams import Streams
from tests.hostile.conftest import good
from tests.tools import running_worker

SEED = 8
NUMBERS = (b"", b"-1", b"x", b"9" * 40, b"1e9", b"nan", b"\xff\xfe\x00", b"0" * 100_000, b"1,2,x", b"\xd9\xa1")
FIELDS = (b"rank", b"order_key", b"n", b"task_ids", b"newer", b"\x00\xff")


async def _entries(client: Any, key: str) -> None:
    """Entries with missing, extra, huge and binary fields."""
    drawn = random.Random(SEED)
    for _ in range(60):
        fields = drawn.sample(FIELDS, drawn.randint(1, len(FIELDS)))
        await client.xadd(key, {field: drawn.choice(NUMBERS) for field in fields})


async def _is_text(client: Any, key: str) -> None:
    await client.set(key, b"rubbish")


async def _is_list(client: Any, key: str) -> None:
    async with client.pipeline(transaction=True) as both:  # in between, a worker would make its stream anew
        both.delete(key)
        both.lpush(key, b"rubbish")
        await both.execute()


async def _without_group(client: Any, key: str) -> None:
    await client.delete(key)
    await client.xadd(key, {b"rank": b"0"})


async def _expires(client: Any, key: str) -> None:
    await client.delete(key)
    await client.xadd(key, {b"rank": b"0"})
    await client.pexpire(key, 20)


async def _foreign_consumers(client: Any, key: str) -> None:
    for group in await client.xinfo_groups(key) if await client.exists(key) else ():
        for n in range(20):
            await client.xgroup_createconsumer(key, group["name"], b"\xff\x00%d" % n)


@pytest.mark.parametrize(
    "spoil", [_entries, _is_text, _is_list, _without_group, _expires, _foreign_consumers], ids=lambda one: one.__name__
)
async def test_no_message_in_redis_keeps_a_worker_from_good_work_or_a_waiter_from_its_result(
    quick: Settings, spoil: Any
) -> None:
    assert quick.redis_url
    key = Streams(quick.redis_url, prefix=quick.redis_prefix).key("default")
    other = redis.asyncio.from_url(quick.redis_url)
    async with other, connect(settings=quick) as client, running_worker(quick) as worker:
        for n in range(3):
            await spoil(other, key)
            for message in (b"", b"x", b"\xff" * 8, b"\x00" * 7, b"\x7f" * 80_000):
                await other.publish(f"{{{quick.redis_prefix}}}:ended", message)
            async with asyncio.timeout(60):
                assert await (await good.enqueue(n, client=client)).result() == n
        assert worker.vitals().started
