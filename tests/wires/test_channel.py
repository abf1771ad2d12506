"""The channel of ended tasks on real servers: alone, in a cluster, behind sentinels, with a user of few rights."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from aaiclick_queue import channel as wires
from aaiclick_queue.channel import IDS_A_MESSAGE, Channel, packed, unpacked
from aaiclick_queue.errors import StreamsDown
from tests.tools import until
from tests.wires.redis_server import OwnRedis, free_port
from tests.wires.test_streams import cluster_of, has_a_replica

BIG = 2**63 - 1


class Ear:
    """What one listener was told."""

    def __init__(self) -> None:
        self.live = 0
        self.messages: list[Sequence[int] | None] = []
        self.task: asyncio.Task[None] | None = None

    def ready(self) -> None:
        self.live += 1

    @property
    def ids(self) -> list[int]:
        return [one for message in self.messages if message is not None for one in message]


@asynccontextmanager
async def listening(url: str, prefix: str = "aaiq") -> AsyncIterator[Ear]:
    channel, ear = Channel(url, prefix=prefix), Ear()
    ear.task = asyncio.create_task(channel.listen(ear.ready, ear.messages.append))
    try:
        await until(lambda: ear.live or (ear.task and ear.task.done()))
        yield ear
    finally:
        ear.task.cancel()
        await asyncio.wait([ear.task])
        await channel.close()


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer than 250 ms."""
    monkeypatch.setattr(wires, "CALL_SECONDS", 10)


async def published(url: str, ids: Sequence[int], *, prefix: str = "aaiq", look_at_all: bool = False) -> int:
    channel = Channel(url, prefix=prefix)
    try:
        return await channel.publish(ids, look_at_all=look_at_all)
    finally:
        await channel.close()


def test_a_message_carries_every_id_there_is() -> None:
    ids = (0, 1, -1, BIG, -BIG - 1, 7527985790454863557)
    assert unpacked(packed(ids)) == ids


@pytest.mark.parametrize("garbage", [b"", b"1", b"123456789", b"\x00" * 15])
def test_a_message_that_names_no_task_has_all_looked_at(garbage: bytes) -> None:
    assert unpacked(garbage) is None


async def test_every_listener_is_told_and_the_publisher_knows_whether_there_is_one(redis_url: str) -> None:
    assert await published(redis_url, [1], prefix="nobody") == 0
    async with listening(redis_url, "both") as one, listening(redis_url, "both") as other, listening(redis_url, "else"):
        assert await published(redis_url, [1, BIG], prefix="both") == 2
        await until(lambda: one.messages and other.messages)
        assert one.messages == other.messages == [(1, BIG)]
        assert await published(redis_url, [], prefix="both", look_at_all=True) == 2
        await until(lambda: one.messages[1:] == [None])


async def test_many_ids_are_told_in_several_messages(redis_url: str) -> None:
    ids = list(range(2 * IDS_A_MESSAGE + 3))
    async with listening(redis_url, "many") as ear:
        await published(redis_url, ids, prefix="many")
        await until(lambda: ear.ids == ids)
        assert [len(message or ()) for message in ear.messages] == [IDS_A_MESSAGE, IDS_A_MESSAGE, 3]


async def test_a_quiet_listener_hears_on_after_its_pings(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wires, "PING_SECONDS", 0.2)
    client = Redis.from_url(redis_url)
    async with listening(redis_url, "quiet") as ear:

        async def pinged() -> bool:
            return int((await client.info("commandstats")).get("cmdstat_ping", {"calls": 0})["calls"]) >= 3

        await until(pinged)
        assert await published(redis_url, [5], prefix="quiet") == 1
        await until(lambda: ear.ids == [5])
    await client.aclose()


@pytest.mark.parametrize("hurt", ["kill", "freeze"])
async def test_a_server_that_ends_or_hangs_is_noticed(hurt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wires, "PING_SECONDS", 0.2)
    with OwnRedis() as own:
        async with listening(own.url) as ear:
            getattr(own, hurt)()
            assert ear.task is not None
            with pytest.raises(StreamsDown, match="Results are looked for in Postgres meanwhile"):
                await ear.task


async def test_a_server_that_is_not_there_is_told_with_the_way_out() -> None:
    url = f"redis://127.0.0.1:{free_port()}"
    with pytest.raises(StreamsDown, match="AAICLICK_QUEUE_REDIS_URL"):
        await published(url, [1])
    with pytest.raises(StreamsDown, match="AAICLICK_QUEUE_REDIS_URL"):
        await Channel(url).listen(lambda: None, lambda _: None)


async def test_a_closed_channel_says_so(redis_url: str) -> None:
    channel = Channel(redis_url)
    await channel.publish([1])
    await channel.close()
    with pytest.raises(StreamsDown, match="closed"):
        await channel.publish([1])


async def test_a_user_without_the_right_is_told_which_one() -> None:
    with OwnRedis() as own:
        admin: Any = Redis.from_url(own.url)
        await admin.execute_command("ACL", "SETUSER", "few", "on", ">pw", "+@all", "~*", "resetchannels")
        url = f"redis://few:pw@127.0.0.1:{own.port}"
        for call in (lambda: published(url, [1]), lambda: Channel(url).listen(lambda: None, lambda _: None)):
            with pytest.raises(StreamsDown, match=r"\+publish \+subscribe.*channels &"):
                await call()
        await admin.execute_command("ACL", "SETUSER", "few", "&{aaiq}:*")
        async with listening(url) as ear:
            assert await published(url, [1]) == 1
            await until(lambda: ear.ids == [1])
        await admin.aclose()


async def test_in_a_cluster_all_meet_at_one_node_and_hear_each_other_from_any() -> None:
    with OwnRedis(cluster=True) as first, OwnRedis(cluster=True) as second:
        clients = await cluster_of(first, second)
        urls = [f"redis+cluster://127.0.0.1:{node.port}" for node in (first, second)]
        async with listening(urls[0]) as one, listening(urls[1]) as other:
            for url in urls:
                assert await published(url, [1]) == 2  # both listen where it is published, so both are counted
            await until(lambda: one.ids == other.ids == [1, 1])
            # The slot moves: a publisher goes to the heir, whose messages the cluster carries to the listeners.
            slot = await clients[0].execute_command("CLUSTER", "KEYSLOT", "{aaiq}:ended")
            owner = 0 if slot < 16384 // 2 else 1
            heir = await clients[1 - owner].execute_command("CLUSTER", "MYID")
            for client in clients:
                await client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", heir)
            await published(urls[owner], [2])
            await until(lambda: one.ids == other.ids == [1, 1, 2])
        for client in clients:
            await client.aclose()


async def test_behind_sentinels_the_primary_is_found_and_after_a_failover_the_next_one() -> None:
    with OwnRedis() as first:
        replica = ("--replicaof", "127.0.0.1", str(first.port))
        watch = f"sentinel monitor mymaster 127.0.0.1 {first.port} 1\n"
        watch += "sentinel down-after-milliseconds mymaster 500\nsentinel failover-timeout mymaster 3000\n"
        with OwnRedis(*replica), OwnRedis("--sentinel", config=watch) as sentinel:
            url = f"redis+sentinel://127.0.0.1:{sentinel.port}/mymaster/0"
            watcher: Any = Redis.from_url(sentinel.url)
            await until(lambda: has_a_replica(watcher))
            async with listening(url) as ear:
                assert await published(url, [1]) == 1
                await until(lambda: ear.ids == [1])
                first.kill()
                assert ear.task is not None
                with pytest.raises(StreamsDown):
                    await ear.task

            async def heard() -> bool:
                async with listening(url) as ear:
                    try:
                        await published(url, [2])
                    except StreamsDown:
                        return False
                    await until(lambda: ear.ids or (ear.task and ear.task.done()))
                    return ear.ids == [2]

            await until(heard)
            await watcher.aclose()
