from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fakeredis import FakeAsyncRedis, FakeServer
from redis.asyncio import Redis

from aaiclick_queue import streams as wires
from aaiclick_queue.errors import SettingsError, StreamsDown
from aaiclick_queue.streams import Heard, Hint, Streams
from tests.wires.redis_server import OwnRedis, free_port

NOTHING = Heard((), rescan=False)
MISSED = Heard((), rescan=True)


class Place:
    """A Redis, real or fake, seen through any number of Streams under one prefix."""

    def __init__(self, url: str, prefix: str, fake: FakeServer | None = None, own: OwnRedis | None = None) -> None:
        self.url = url
        self.prefix = prefix
        self._fake = fake
        self._own = own
        self._opened: list[Streams] = []
        self.raw = self._client()

    def _client(self) -> Any:
        # RESP2, as on our own connections: in RESP3 fakeredis gives XINFO's names as text, Redis as bytes.
        return FakeAsyncRedis(server=self._fake, protocol=2) if self._fake else Redis.from_url(self.url)

    def streams(self, prefix: str | None = None) -> Streams:
        made = Streams(self.url, prefix=prefix or self.prefix, client=self._client() if self._fake else None)
        self._opened.append(made)
        return made

    async def joined(self, *queues: str, consumer: str = "one") -> Streams:
        """Streams whose consumer is in the groups and on a connection that is not new any more."""
        made = self.streams()
        while (await made.listen(queues, consumer=consumer, seconds=0)).rescan:
            pass
        return made

    async def entries(self, queue: str) -> list[dict[bytes, bytes]]:
        return [fields for _, fields in await self.raw.xrange(f"{{{self.prefix}}}:wake:{queue}")]

    async def consumers(self, queue: str) -> set[bytes]:
        told = await self.raw.xinfo_consumers(f"{{{self.prefix}}}:wake:{queue}", self.prefix)
        return {consumer["name"] for consumer in told}

    def stop(self) -> None:
        if self._fake:
            self._fake.connected = False
        elif self._own:
            self._own.stop()

    def start(self) -> None:
        if self._fake:
            self._fake.connected = True
        elif self._own:
            self._own.start()

    async def close(self) -> None:
        for streams in self._opened:
            await streams.close()
        async for key in self.raw.scan_iter(match=f"{{{self.prefix}*", count=1000):
            await self.raw.delete(key)
        await self.raw.aclose()


@pytest.fixture
def as_shipped() -> None:
    """For tests of the 250 ms themselves."""


@pytest.fixture(autouse=True)
def unhurried(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer than 250 ms where that is not the point."""
    if "as_shipped" not in request.fixturenames:
        monkeypatch.setattr(wires, "CALL_SECONDS", 10)


@pytest.fixture(params=["real", "fake"])
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    prefix = f"test-{uuid.uuid4().hex}"
    if request.param == "fake":
        place = Place("", prefix, FakeServer())
    else:
        place = Place(request.getfixturevalue("redis_url"), prefix)
    yield place
    await place.close()


@pytest.fixture(params=["real", "fake"])
async def private(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    """A Redis that nobody else uses, to be emptied and stopped."""
    if request.param == "fake":
        async with at("", fake=FakeServer()) as place:
            yield place
        return
    with OwnRedis() as own:
        async with at(own.url, own=own) as place:
            yield place


def only_real(why: str) -> pytest.MarkDecorator:
    assert why
    return pytest.mark.parametrize("place", ["real"], indirect=True)


@pytest.fixture
def own() -> Iterator[OwnRedis]:
    with OwnRedis() as redis:
        yield redis


@asynccontextmanager
async def at(url: str, *, own: OwnRedis | None = None, fake: FakeServer | None = None) -> AsyncIterator[Place]:
    """A server of the test's own, left as it is at the end: it may be gone by then."""
    place = Place(url, "aaiq", fake, own)
    try:
        yield place
    finally:
        for streams in place._opened:
            await streams.close()
        await place.raw.aclose()


async def until(true: Callable[[], Awaitable[Any]]) -> Any:
    """What the condition gives once it holds."""
    async with asyncio.timeout(30):
        while True:
            if given := await true():
                return given
            await asyncio.sleep(0.01)


async def blocked(redis: Any) -> bool:
    return bool((await redis.info("clients"))["blocked_clients"])


async def published(streams: Streams, *hints: Hint) -> bool:
    try:
        await streams.publish(hints)
    except StreamsDown:
        return False
    return True


# Publishing


async def test_a_published_hint_is_heard_with_everything_it_said(place: Place) -> None:
    streams = await place.joined("mail")
    await streams.publish([Hint("mail", -3, 17, 2, (17, 18))])
    heard = await streams.listen(["mail"], consumer="one", seconds=5)
    assert heard == Heard((Hint("mail", -3, 17, 2, (17, 18)),), rescan=False)


async def test_hints_of_a_queue_become_one_entry_at_the_first_place_in_line(place: Place) -> None:
    streams = await place.joined("mail", "other")
    await streams.publish([Hint("mail", 0, 4, 1, (4,)), Hint("other", 5, 5, 1), Hint("mail", -1, 9, 2, (9, 10))])
    heard = await streams.listen(["mail", "other"], consumer="one", seconds=5)
    assert set(heard.hints) == {Hint("mail", -1, 9, 3, (4, 9, 10)), Hint("other", 5, 5, 1)}


@pytest.mark.parametrize(("n", "entries"), [(0, 1), (1, 1), (100, 1), (101, 2), (3_100, 31), (3_200, 32), (10**6, 32)])
async def test_a_burst_is_split_so_that_one_worker_wakes_for_each_hundred(place: Place, n: int, entries: int) -> None:
    await place.streams().publish([Hint("mail", 0, 1, n, tuple(range(1, min(n, 5_000) + 1)))])
    written = await place.entries("mail")
    assert len(written) == entries
    assert sum(int(entry[b"n"]) for entry in written) == max(n, 1)
    ids = [entry[b"task_ids"].split(b",") for entry in written if b"task_ids" in entry]
    assert max(map(len, ids), default=0) <= 100
    together = [task_id for some in ids for task_id in some]
    assert len(together) == len(set(together)) == min(n, 3_200)


async def test_publishing_nothing_writes_nothing(place: Place) -> None:
    await place.streams().publish([])
    assert not [key async for key in place.raw.scan_iter(match=f"{{{place.prefix}*")]


async def test_a_stream_nobody_reads_stops_growing(place: Place) -> None:
    streams = place.streams()
    filling = place.raw.pipeline(transaction=False)
    for _ in range(10_500):
        filling.xadd(streams.key("mail"), {"rank": 0})
    await filling.execute()
    await streams.publish([Hint("mail", 0, 1, 3_200)])
    assert await place.raw.xlen(streams.key("mail")) < 10_200


async def test_two_prefixes_in_one_redis_do_not_hear_each_other(place: Place) -> None:
    streams = await place.joined("mail")
    other = place.streams(prefix=place.prefix + "-2")
    await other.publish([Hint("mail", 0, 1, 1)])
    assert await streams.listen(["mail"], consumer="one", seconds=0) == NOTHING


@pytest.mark.parametrize("queue", ["a b", "träge-schlange-队列", "{x}", "}{", "a:b\n\x00'\"", "*", "x" * 500])
async def test_a_queue_may_have_any_name(place: Place, queue: str) -> None:
    streams = await place.joined(queue)
    assert streams.key(queue).startswith(f"{{{place.prefix}}}:wake:")
    await streams.publish([Hint(queue, 0, 1, 1)])
    assert (await streams.listen([queue], consumer="one", seconds=5)).hints == (Hint(queue, 0, 1, 1),)


async def test_many_publish_at_once_over_one_connection(place: Place) -> None:
    streams = place.streams()
    await asyncio.gather(*(streams.publish([Hint("mail", 0, i, 1)]) for i in range(50)))
    assert sorted(int(entry[b"order_key"]) for entry in await place.entries("mail")) == list(range(50))


# Listening


async def test_the_first_listen_makes_the_groups_and_asks_for_a_look_at_postgres(place: Place) -> None:
    streams = place.streams()
    await streams.publish([Hint("mail", 0, 1, 1)])
    assert await streams.listen(["mail", "new"], consumer="one", seconds=600) == MISSED
    await streams.publish([Hint("new", 0, 2, 1)])
    heard = await streams.listen(["mail", "new"], consumer="one", seconds=5)
    assert heard.hints == (Hint("new", 0, 2, 1),)


async def test_a_queue_that_comes_later_gets_its_group(place: Place) -> None:
    streams = await place.joined("mail")
    assert await streams.listen(["mail", "later"], consumer="one", seconds=600) == MISSED
    await streams.publish([Hint("later", 0, 1, 1)])
    assert (await streams.listen(["mail", "later"], consumer="one", seconds=5)).hints == (Hint("later", 0, 1, 1),)


async def test_hints_wait_in_the_group_while_nobody_listens(place: Place) -> None:
    streams = await place.joined("mail")
    await place.streams().publish([Hint("mail", 0, 1, 1)])
    await place.streams().publish([Hint("mail", 0, 2, 1)])
    heard = await streams.listen(["mail"], consumer="one", seconds=5)
    assert heard == Heard((Hint("mail", 0, 1, 1), Hint("mail", 0, 2, 1)), rescan=False)


async def test_nothing_waits_to_be_acknowledged(place: Place) -> None:
    streams = await place.joined("mail")
    await streams.publish([Hint("mail", 0, 1, 300)])
    assert len((await streams.listen(["mail"], consumer="one", seconds=5)).hints) == 3
    assert (await place.raw.xpending(streams.key("mail"), place.prefix))["pending"] == 0


async def test_a_new_connection_gets_what_waited_and_asks_for_a_look_at_postgres(place: Place) -> None:
    streams = await place.joined("mail")
    await streams.publish([Hint("mail", 0, 1, 1)])
    heard = await place.streams().listen(["mail"], consumer="two", seconds=600)
    assert heard == Heard((Hint("mail", 0, 1, 1),), rescan=True)


async def test_a_hint_wakes_one_worker_and_not_all(place: Place) -> None:
    one, two = await place.joined("mail"), await place.joined("mail", consumer="two")
    await one.publish([Hint("mail", 0, 1, 1)])
    heard = [
        await one.listen(["mail"], consumer="one", seconds=0),
        await two.listen(["mail"], consumer="two", seconds=0),
    ]
    assert [len(each.hints) for each in heard] == [1, 0]


async def test_a_worker_leaves_most_of_a_burst_to_others(place: Place) -> None:
    streams = await place.joined("mail")
    await streams.publish([Hint("mail", 0, 1, 3_200)])
    heard = [await streams.listen(["mail"], consumer="one", seconds=5) for _ in range(4)]
    assert [len(each.hints) for each in heard] == [8, 8, 8, 8]


async def test_consumers_in_one_process_listen_side_by_side(place: Place) -> None:
    streams = await place.joined("mail")
    assert (await streams.listen(["mail"], consumer="two", seconds=0)).rescan
    await streams.publish([Hint("mail", 0, 1, 1_600)])
    heard = await asyncio.gather(
        streams.listen(["mail"], consumer="one", seconds=5), streams.listen(["mail"], consumer="two", seconds=5)
    )
    assert [len(each.hints) for each in heard] == [8, 8]


async def test_one_worker_serves_a_thousand_queues(place: Place) -> None:
    queues = [f"queue {i}" for i in range(1_000)]
    streams = await place.joined(*queues)
    await streams.publish([Hint("queue 7", 0, 1, 1), Hint("queue 999", 0, 2, 1)])
    heard = await streams.listen(queues, consumer="one", seconds=5)
    assert set(heard.hints) == {Hint("queue 7", 0, 1, 1), Hint("queue 999", 0, 2, 1)}


async def test_listening_to_no_queue_hears_nothing(place: Place) -> None:
    assert await place.streams().listen([], consumer="one", seconds=0) == NOTHING


@only_real("fakeredis does not block a read that has a COUNT")
async def test_a_hint_wakes_a_worker_that_waits(place: Place) -> None:
    streams = await place.joined("mail")
    listening = asyncio.create_task(streams.listen(["mail"], consumer="one", seconds=60))
    await asyncio.sleep(0)
    await place.streams().publish([Hint("mail", 0, 1, 1)])
    assert (await listening).hints == (Hint("mail", 0, 1, 1),)


async def test_a_listen_without_hints_ends_with_nothing(place: Place) -> None:
    streams = await place.joined("mail")
    assert await streams.listen(["mail"], consumer="one", seconds=0.01) == NOTHING


GOOD: dict[Any, Any] = {"rank": "-2", "order_key": "7", "n": "3", "task_ids": "7,8"}
HOSTILE: dict[str, tuple[dict[Any, Any], Heard]] = {
    "foreign": ({"hello": "world"}, MISSED),
    "place missing": ({"n": "3"}, MISSED),
    "not a number": (GOOD | {"rank": "high"}, MISSED),
    "half a number": (GOOD | {"order_key": "7.5"}, MISSED),
    "negative key": (GOOD | {"order_key": "-7"}, MISSED),
    "digits of another script": (GOOD | {"order_key": "١٢"}, MISSED),
    "thousands of digits": (GOOD | {"order_key": "9" * 5_000}, MISSED),
    "beyond bigint": (GOOD | {"order_key": str(2**63)}, MISSED),
    "beyond integer": (GOOD | {"rank": str(2**31)}, MISSED),
    "binary": (GOOD | {"rank": b"\xff\x00\xfe"}, MISSED),
    "empty": (GOOD | {"rank": ""}, MISSED),
    "huge": ({"rank": "x" * 1_000_000}, MISSED),
    "newer": (GOOD | {"zone": "eu", b"\xff": b"\x00"}, Heard((Hint("mail", -2, 7, 3, (7, 8)),), rescan=False)),
    "n missing": ({"rank": "-2", "order_key": "7"}, Heard((Hint("mail", -2, 7, 1),), rescan=False)),
    "n absurd": (GOOD | {"n": "-5"}, Heard((Hint("mail", -2, 7, 1, (7, 8)),), rescan=False)),
    "ids absurd": (GOOD | {"task_ids": "7,,eight"}, Heard((Hint("mail", -2, 7, 3),), rescan=False)),
    "ids endless": (GOOD | {"task_ids": "7," * 100_000 + "8"}, Heard((Hint("mail", -2, 7, 3),), rescan=False)),
}


@pytest.mark.parametrize(("fields", "expected"), HOSTILE.values(), ids=HOSTILE.keys())
async def test_an_entry_that_cannot_be_read_is_a_missed_hint_at_worst(
    place: Place, fields: dict[Any, Any], expected: Heard
) -> None:
    streams = await place.joined("mail")
    await place.raw.xadd(streams.key("mail"), fields)
    assert await streams.listen(["mail"], consumer="one", seconds=5) == expected


async def test_a_key_that_is_no_stream_is_named_and_the_other_queues_get_their_hints(place: Place) -> None:
    streams = await place.joined("mail", "other")
    await place.raw.delete(streams.key("mail"))
    await place.raw.set(streams.key("mail"), "mine")
    with pytest.raises(StreamsDown, match=f"{{{place.prefix}}}:wake:mail.*delete or rename"):
        await streams.publish([Hint("mail", 0, 1, 1), Hint("other", 0, 1, 1)])
    assert len(await place.entries("other")) == 1


@only_real("fakeredis reads a text as if it were a stream, and breaks inside")
async def test_a_listen_on_a_key_that_is_no_stream_names_it(place: Place) -> None:
    streams = await place.joined("mail", "other")
    await place.raw.delete(streams.key("mail"))
    await place.raw.set(streams.key("mail"), "mine")
    for _ in range(2):
        with pytest.raises(StreamsDown, match=f"{{{place.prefix}}}:wake:mail.*delete or rename"):
            await streams.listen(["other", "mail"], consumer="one", seconds=5)


# Consumers


async def reader(place: Place, *queues: str, consumer: str) -> Streams:
    """Streams whose consumer had a hint of each queue: Redis before 7.2 does not know it earlier."""
    streams = await place.joined(*queues, consumer=consumer)
    await streams.publish([Hint(queue, 0, 1, 1) for queue in queues])
    assert len((await streams.listen(queues, consumer=consumer, seconds=5)).hints) == len(queues)
    return streams


async def test_a_consumer_that_leaves_is_gone_from_every_group(place: Place) -> None:
    streams = await reader(place, "mail", "other", consumer="one")
    await reader(place, "mail", consumer="two")
    assert await place.consumers("mail") == {b"one", b"two"}
    await streams.leave(["mail", "other", "never seen"], "one")
    assert await place.consumers("mail") == {b"two"}
    assert await place.consumers("other") == set()


async def test_a_sweep_removes_the_consumers_of_dead_workers_only(place: Place) -> None:
    await reader(place, "mail", "other", consumer="dead")

    async def dead_for_a_second() -> bool:
        told = await place.raw.xinfo_consumers(f"{{{place.prefix}}}:wake:mail", place.prefix)
        return bool(told[0]["idle"] > 1_000)

    await until(dead_for_a_second)
    streams = await reader(place, "mail", consumer="alive")
    assert await streams.sweep(["mail", "other", "never seen"], idle_seconds=0.9) == 2
    assert await place.consumers("mail") == {b"alive"}
    assert await place.consumers("other") == set()
    assert await streams.sweep(["mail", "other"], idle_seconds=0.9) == 0


async def test_a_swept_consumer_goes_on_hearing(place: Place) -> None:
    streams = await reader(place, "mail", consumer="one")
    await until(lambda: streams.sweep(["mail"], idle_seconds=0))
    await streams.publish([Hint("mail", 0, 2, 1)])
    assert await streams.listen(["mail"], consumer="one", seconds=5) == Heard((Hint("mail", 0, 2, 1),), rescan=False)


@only_real("this is about the clients of a real one")
@pytest.mark.parametrize("options", [{"protocol": 3}, {"decode_responses": True}])
async def test_a_given_client_may_speak_as_it_likes(place: Place, options: dict[str, Any]) -> None:
    client = Redis.from_url(place.url, **options)
    streams = Streams("", prefix=place.prefix, client=client)
    assert await streams.listen(["mail"], consumer="one", seconds=5) == MISSED
    await streams.publish([Hint("mail", 0, 1, 1, (1,))])
    heard = await streams.listen(["mail"], consumer="one", seconds=5)
    assert heard.hints == (Hint("mail", 0, 1, 1, (1,)),)
    assert await until(lambda: streams.sweep(["mail"], idle_seconds=0)) == 1
    await streams.close()
    await client.ping()
    await client.aclose()


async def test_closed_streams_say_so(place: Place) -> None:
    streams = await place.joined("mail")
    await streams.publish([Hint("mail", 0, 1, 1)])
    await streams.close()
    with pytest.raises(StreamsDown, match="closed"):
        await streams.publish([Hint("mail", 0, 1, 1)])
    with pytest.raises(StreamsDown, match="closed"):
        await streams.listen(["mail"], consumer="one", seconds=5)


# Faults, each on a server of its own


async def test_a_flush_during_a_listen_ends_it_with_a_look_at_postgres(own: OwnRedis) -> None:
    async with at(own.url) as place:
        streams = await place.joined("mail", "other")
        listening = asyncio.create_task(streams.listen(["mail", "other"], consumer="one", seconds=60))
        await until(lambda: blocked(place.raw))
        await place.raw.flushall()
        assert await listening == MISSED
        await streams.publish([Hint("mail", 0, 1, 1)])
        assert (await streams.listen(["mail", "other"], consumer="one", seconds=5)).hints == (Hint("mail", 0, 1, 1),)


async def test_a_flush_between_two_listens_costs_a_look_at_postgres_and_no_more(private: Place) -> None:
    streams = await private.joined("mail")
    await private.raw.flushall()
    await streams.publish([Hint("mail", 0, 1, 1)])
    assert await streams.listen(["mail"], consumer="one", seconds=60) == MISSED
    await streams.publish([Hint("mail", 0, 2, 1)])
    assert await streams.listen(["mail"], consumer="one", seconds=60) == Heard((Hint("mail", 0, 2, 1),), rescan=False)


async def test_a_redis_that_was_away_is_found_again(private: Place) -> None:
    streams = await private.joined("mail")
    await streams.publish([Hint("mail", 0, 1, 1)])
    private.stop()
    for _ in range(2):
        with pytest.raises(StreamsDown):
            await streams.publish([Hint("mail", 0, 2, 1)])
        with pytest.raises(StreamsDown):
            await streams.listen(["mail"], consumer="one", seconds=60)
    private.start()
    assert (await streams.listen(["mail"], consumer="one", seconds=60)).rescan
    await streams.publish([Hint("mail", 0, 3, 1)])
    assert (await streams.listen(["mail"], consumer="one", seconds=60)).hints[-1] == Hint("mail", 0, 3, 1)


async def test_a_cancelled_listen_leaves_no_connection_and_the_next_one_starts_clean(own: OwnRedis) -> None:
    async with at(own.url) as place:
        streams = await place.joined("mail")
        before = len(await place.raw.client_list())
        for i in range(5):
            listening = asyncio.create_task(streams.listen(["mail"], consumer="one", seconds=60))
            await until(lambda: blocked(place.raw))
            listening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await listening
            await until(lambda: not_blocked(place.raw))
            await streams.publish([Hint("mail", 0, i, 1)])
            heard = await streams.listen(["mail"], consumer="one", seconds=60)
            assert heard == Heard((Hint("mail", 0, i, 1),), rescan=True)
        # The pen was opened meanwhile.
        assert len(await place.raw.client_list()) == before + 1


async def not_blocked(redis: Any) -> bool:
    return not await blocked(redis)


async def test_a_listener_whose_answer_was_cut_off_looks_at_postgres(own: OwnRedis) -> None:
    async with at(own.url) as place:
        streams = await place.joined("mail")
        listening = asyncio.create_task(streams.listen(["mail"], consumer="one", seconds=60))
        await until(lambda: blocked(place.raw))
        await place.raw.client_kill_filter(_type="normal", skipme=True)
        with pytest.raises(StreamsDown):
            await listening
        assert (await streams.listen(["mail"], consumer="one", seconds=60)).rescan


async def test_a_killed_redis_is_reported_and_found_again_when_it_is_back(own: OwnRedis) -> None:
    async with at(own.url) as place:
        streams = await place.joined("mail")
        listening = asyncio.create_task(streams.listen(["mail"], consumer="one", seconds=60))
        await until(lambda: blocked(place.raw))
        own.kill()
        with pytest.raises(StreamsDown):
            await listening
        with pytest.raises(StreamsDown, match=f"127.0.0.1:{own.port}.*check that it runs.*poll Postgres"):
            await streams.publish([Hint("mail", 0, 1, 1)])
        with pytest.raises(StreamsDown):
            await streams.listen(["mail"], consumer="one", seconds=60)
        own.start()
        assert await streams.listen(["mail"], consumer="one", seconds=60) == MISSED
        await streams.publish([Hint("mail", 0, 2, 1)])
        assert (await streams.listen(["mail"], consumer="one", seconds=60)).hints == (Hint("mail", 0, 2, 1),)


async def test_a_frozen_redis_holds_nobody_up_and_answers_nobody_else_later(own: OwnRedis, as_shipped: None) -> None:
    async with at(own.url) as place:
        streams = await place.joined("mail", "other")
        await streams.publish([Hint("other", 0, 1, 1)])
        await streams.listen(["mail", "other"], consumer="one", seconds=5)
        own.freeze()
        # Far above the 250 ms, far below the 15 s of redis-py's own retries.
        async with asyncio.timeout(8):
            with pytest.raises(StreamsDown, match=r"no answer within 0\.25 s"):
                await streams.publish([Hint("mail", 0, 1, 1)])
            with pytest.raises(StreamsDown, match="no answer within"):
                await streams.listen(["mail", "other"], consumer="one", seconds=0.1)
            await streams.leave(["mail"], "two")
            assert await streams.sweep(["mail"], idle_seconds=0) == 0
        own.thaw()
        await until(lambda: published(streams, Hint("mail", 0, 2, 1)))
        keys: set[int] = set()

        async def heard() -> bool:
            keys.update(hint.order_key for hint in (await streams.listen(["mail"], consumer="one", seconds=1)).hints)
            return 2 in keys

        await until(heard)


async def test_a_cancelled_publish_does_not_answer_the_next_one(own: OwnRedis) -> None:
    async with at(own.url) as place:
        streams = await place.joined("mail")
        await streams.publish([Hint("mail", 0, 1, 1)])
        own.freeze()
        publishing = asyncio.create_task(streams.publish([Hint("mail", 0, 2, 1)]))
        await asyncio.sleep(0.05)
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing
        own.thaw()
        await until(lambda: published(streams, Hint("other", 0, 3, 1)))
        assert [entry[b"order_key"] for entry in await place.entries("other")][-1] == b"3"


async def test_a_redis_out_of_memory_is_down_and_says_why(own: OwnRedis) -> None:
    async with at(own.url) as place:
        streams = await place.joined("mail")
        await place.raw.config_set("maxmemory-policy", "noeviction")
        await place.raw.config_set("maxmemory", "1")
        with pytest.raises(StreamsDown, match="raise its maxmemory"):
            await streams.publish([Hint("mail", 0, 1, 1)])
        await place.raw.config_set("maxmemory", "0")
        await streams.publish([Hint("mail", 0, 1, 1)])


async def test_a_replica_is_down_until_it_is_the_primary(own: OwnRedis) -> None:
    async with at(own.url) as place:
        streams = await place.joined("mail")
        listening = asyncio.create_task(streams.listen(["mail"], consumer="one", seconds=60))
        await until(lambda: blocked(place.raw))
        await place.raw.replicaof("127.0.0.1", free_port())
        with pytest.raises(StreamsDown):
            await listening
        with pytest.raises(StreamsDown, match="failing over"):
            await streams.publish([Hint("mail", 0, 1, 1)])
        with pytest.raises(StreamsDown, match="failing over"):
            await streams.listen(["mail"], consumer="one", seconds=60)
        await place.raw.replicaof("NO", "ONE")
        assert (await streams.listen(["mail"], consumer="one", seconds=60)).rescan
        await streams.publish([Hint("mail", 0, 1, 1)])
        assert (await streams.listen(["mail"], consumer="one", seconds=60)).hints == (Hint("mail", 0, 1, 1),)


async def test_with_nothing_there_leaving_and_sweeping_are_quiet() -> None:
    streams = Streams(f"redis://127.0.0.1:{free_port()}")
    await streams.leave(["mail"], "one")
    assert await streams.sweep(["mail"], idle_seconds=1) == 0
    with pytest.raises(StreamsDown):
        await streams.listen(["mail"], consumer="one", seconds=60)


@pytest.mark.parametrize(
    "says", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\xff garbage", b"", b"$5\r\nab", b"-\xff\xfe\r\n", b"*9\r\n"]
)
async def test_something_that_is_no_redis_is_down(says: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(says)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    streams = Streams(f"redis://127.0.0.1:{port}")
    async with server:
        with pytest.raises(StreamsDown):
            await streams.publish([Hint("mail", 0, 1, 1)])
        with pytest.raises(StreamsDown):
            await streams.listen(["mail"], consumer="one", seconds=0.1)
    await streams.close()


# Where Redis is


async def test_a_user_with_rights_to_streams_alone_is_enough(own: OwnRedis) -> None:
    async with at(own.url) as admin:
        rights = "~{aaiq}:* -@all +xadd +xreadgroup +xgroup +xinfo"
        await admin.raw.execute_command("ACL", "SETUSER", "queue", "on", ">p@ss/w:rd", *rights.split())
        async with at(f"redis://queue:p%40ss%2Fw%3Ard@127.0.0.1:{own.port}/0") as place:
            streams = await place.joined("mail")
            await streams.publish([Hint("mail", 0, 1, 1)])
            assert (await streams.listen(["mail"], consumer="one", seconds=5)).hints == (Hint("mail", 0, 1, 1),)
            assert await until(lambda: streams.sweep(["mail"], idle_seconds=0)) == 1
            await streams.leave(["mail"], "one")


async def test_a_refused_login_is_down_and_the_password_is_not_told(own: OwnRedis) -> None:
    async with at(own.url) as admin:
        await admin.raw.config_set("requirepass", "right")
        streams = Streams(f"redis://:s3cret@127.0.0.1:{own.port}")
        with pytest.raises(StreamsDown, match="check user and password") as refused:
            await streams.publish([Hint("mail", 0, 1, 1)])
        assert "s3cret" not in str(refused.value)
        without = Streams(own.url)
        with pytest.raises(StreamsDown, match="check user and password"):
            await without.listen(["mail"], consumer="one", seconds=60)


async def test_a_missing_right_is_named(own: OwnRedis) -> None:
    async with at(own.url) as admin:
        await admin.raw.execute_command("ACL", "SETUSER", "poor", "on", ">pw", "~*", "-@all", "+xadd")
        streams = Streams(f"redis://poor:pw@127.0.0.1:{own.port}")
        await streams.publish([Hint("mail", 0, 1, 1)])
        with pytest.raises(StreamsDown, match=r"\+xreadgroup"):
            await streams.listen(["mail"], consumer="one", seconds=60)
        await streams.close()


async def test_a_unix_socket_and_a_database_number_work(own: OwnRedis) -> None:
    async with at(f"unix://{own.socket}?db=3") as place:
        streams = await place.joined("mail")
        await streams.publish([Hint("mail", 0, 1, 1)])
        assert (await streams.listen(["mail"], consumer="one", seconds=5)).hints == (Hint("mail", 0, 1, 1),)
    async with at(f"{own.url}/3") as third, at(own.url) as first:
        assert len(await third.entries("mail")) == 1
        assert await first.entries("mail") == []


@pytest.mark.needs_tool("openssl")
async def test_tls_checks_the_certificate_and_the_host(own: OwnRedis) -> None:
    certificate, key = own.folder / "cert.pem", own.folder / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    made += ["-subj", "/CN=redis.test"]
    made += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True)  # noqa: ASYNC221 - takes a moment and nothing else runs
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    async with tls_before(own, context) as port:
        trusted = f"rediss://localhost:{port}?ssl_ca_certs={certificate}"
        async with at(trusted) as place:
            streams = await place.joined("mail")
            await until(lambda: published(streams, Hint("mail", 0, 1, 1)))
            assert (await streams.listen(["mail"], consumer="one", seconds=5)).hints
        for url in (f"rediss://localhost:{port}", trusted.replace("localhost", "127.0.0.1")):
            streams = Streams(url)
            with pytest.raises(StreamsDown, match=r"(?i)certificate"):
                await streams.listen(["mail"], consumer="one", seconds=5)
        unchecked = Streams(f"rediss://127.0.0.1:{port}?ssl_cert_reqs=none")
        assert (await unchecked.listen(["mail"], consumer="two", seconds=5)).rescan
        await unchecked.close()


@asynccontextmanager
async def tls_before(redis: OwnRedis, context: ssl.SSLContext) -> AsyncIterator[int]:
    """A TLS port in front of a server that has none."""
    tasks: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_connection("127.0.0.1", redis.port)
        tasks.update({asyncio.create_task(copy(reader, outer)), asyncio.create_task(copy(inner, writer))})

    server = await asyncio.start_server(connect, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.gather(*tasks, return_exceptions=True)


async def cluster_of(*nodes: OwnRedis) -> list[Any]:
    """Clients of the nodes, each with its share of the slots, once all of them see the whole."""
    clients: list[Any] = [Redis(port=node.port, protocol=2) for node in nodes]
    share = 16384 // len(nodes)
    for i, client in enumerate(clients):
        last = 16383 if i == len(nodes) - 1 else (i + 1) * share - 1
        await client.execute_command("CLUSTER", "ADDSLOTSRANGE", i * share, last)
        await client.execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[0].port, nodes[0].bus_port)

    async def whole() -> bool:
        told = [await client.execute_command("CLUSTER", "SLOTS") for client in clients]
        states = [await client.execute_command("CLUSTER", "INFO") for client in clients]
        return all(len(slots) == len(nodes) for slots in told) and all(b"cluster_state:ok" in s for s in states)

    await until(whole)
    return clients


async def test_in_a_cluster_all_queues_are_in_one_slot() -> None:
    with OwnRedis(cluster=True) as node:
        async with at(node.url) as plain:
            streams = plain.streams()
            with pytest.raises(StreamsDown, match="failing over"):
                await streams.publish([Hint("mail", 0, 1, 1)])
        [client] = await cluster_of(node)
        streams = Streams(f"redis+cluster://127.0.0.1:{free_port()},127.0.0.1:{node.port}")
        queues = ["mail", "other", "{brace}", "träge"]
        assert await streams.listen(queues, consumer="one", seconds=60) == MISSED
        await streams.publish([Hint(queue, 0, 1, 1) for queue in queues])
        assert {hint.queue for hint in (await streams.listen(queues, consumer="one", seconds=5)).hints} == set(queues)
        await until(lambda: streams.sweep(queues, idle_seconds=0))
        await streams.leave(queues, "one")
        await streams.close()
        await client.aclose()


async def test_in_a_cluster_the_owner_of_the_slot_is_found_also_after_it_moved() -> None:
    with OwnRedis(cluster=True) as first, OwnRedis(cluster=True) as second:
        clients = await cluster_of(first, second)
        slot = await clients[0].execute_command("CLUSTER", "KEYSLOT", "{aaiq}:wake:")
        owner, other = clients if slot < 8192 else clients[::-1]
        asked = second if owner is clients[0] else first
        streams = Streams(f"redis+cluster://127.0.0.1:{asked.port}")
        await streams.publish([Hint("mail", 0, 1, 1)])
        await streams.listen(["mail"], consumer="one", seconds=60)
        await owner.delete(streams.key("mail"))
        heir = await other.execute_command("CLUSTER", "MYID")
        for client in (other, owner):
            await client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", heir)
        with pytest.raises(StreamsDown, match="failing over"):
            await streams.publish([Hint("mail", 0, 2, 1)])
        await until(lambda: published(streams, Hint("mail", 0, 3, 1)))
        with pytest.raises(StreamsDown):
            await streams.listen(["mail"], consumer="one", seconds=60)
        assert await streams.listen(["mail"], consumer="one", seconds=60) == MISSED
        await streams.close()
        for client in clients:
            await client.aclose()


async def test_sentinels_name_the_primary_and_after_a_failover_the_next_one() -> None:
    with OwnRedis("--requirepass", "pw", "--masterauth", "pw") as first:
        replica = ("--replicaof", "127.0.0.1", str(first.port), "--requirepass", "pw", "--masterauth", "pw")
        watch = f"sentinel monitor mymaster 127.0.0.1 {first.port} 1\nsentinel auth-pass mymaster pw\n"
        watch += "sentinel down-after-milliseconds mymaster 500\nsentinel failover-timeout mymaster 3000\n"
        with OwnRedis(*replica) as second, OwnRedis("--sentinel", config=watch) as sentinel:
            hosts = f"127.0.0.1:{free_port()},127.0.0.1:{sentinel.port}"
            streams = Streams(f"redis+sentinel://:pw@{hosts}/mymaster/0")
            assert await streams.listen(["mail"], consumer="one", seconds=60) == MISSED
            await streams.publish([Hint("mail", 0, 1, 1)])
            assert (await streams.listen(["mail"], consumer="one", seconds=5)).hints == (Hint("mail", 0, 1, 1),)
            async with at(sentinel.url) as watcher:
                await until(lambda: has_a_replica(watcher.raw))
            first.kill()
            await until(lambda: published(streams, Hint("mail", 0, 2, 1)))
            async with at(f"redis://:pw@127.0.0.1:{second.port}") as now:
                assert [entry[b"order_key"] for entry in await now.entries("mail")][-1] == b"2"
            wrong = Streams(f"redis+sentinel://{hosts}/another")
            with pytest.raises(StreamsDown, match="another"):
                await wrong.listen(["mail"], consumer="one", seconds=60)
            await streams.close()


async def has_a_replica(sentinel: Any) -> bool:
    replicas = await sentinel.sentinel_slaves("mymaster")
    return any(replica["master-link-status"] == "ok" for replica in replicas)


async def test_a_sentinel_that_wants_the_login_gets_it(own: OwnRedis) -> None:
    async with at(own.url) as admin:
        await admin.raw.config_set("requirepass", "pw")
        watch = f"requirepass pw\nsentinel monitor mymaster 127.0.0.1 {own.port} 1\nsentinel auth-pass mymaster pw\n"
        with OwnRedis("--sentinel", config=watch) as sentinel:
            streams = Streams(f"redis+sentinel://:pw@127.0.0.1:{sentinel.port}/mymaster")
            assert await streams.listen(["mail"], consumer="one", seconds=60) == MISSED
            await streams.close()
            stranger = Streams(f"redis+sentinel://:wrong@127.0.0.1:{sentinel.port}/mymaster")
            with pytest.raises(StreamsDown, match="check user and password"):
                await stranger.listen(["mail"], consumer="one", seconds=60)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "s3cret",
        "http://:s3cret@host",
        "redis:s3cret",
        "redis://",
        "redis://:s3cret@",
        "redis://:s3cret@host:port",
        "redis://:s3cret@host:0",
        "redis://:s3cret@host:70000",
        "redis://:s3cret@host/one",
        "redis://:s3cret@host/1/2",
        "redis://:s3cret@host/1?db=2",
        "redis://:s3cret@one,two",
        "redis://:s3cret@[::1",
        "redis://:a/s3cret@host",
        "redis://:a#s3cret@host",
        "redis://:1?s3cret@host",
        "redis://host?password=s3cret",
        "redis://:s3cret@host?socket_timeout=5",
        "redis://:s3cret@host?ssl_cert_reqs=none",
        "rediss://:s3cret@host?ssl_cert_reqs=maybe",
        "rediss://:s3cret@host?ssl_check_hostname=maybe",
        "rediss://:s3cret@host?ssl_ca_certs=/not/there",
        "unix://",
        "unix://:s3cret@host/path",
        "redis+sentinel://:s3cret@host",
        "redis+sentinel://:s3cret@host/mymaster/one",
        "redis+cluster://:s3cret@host/1",
        "redis+proxy://:s3cret@host",
    ],
)
def test_a_url_that_cannot_work_is_refused_with_the_forms_that_can_and_without_its_secrets(url: str) -> None:
    with pytest.raises(SettingsError, match=r"AAICLICK_QUEUE_REDIS_URL: .*redis\+sentinel://") as refused:
        Streams(url)
    assert "s3cret" not in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://host", "redis://host:6379"),
        ("redis://u:s3cret@[::1]:7000/2", "redis://[::1]:7000"),
        ("rediss://:s3cret@host?ssl_cert_reqs=none", "rediss://host:6379"),
        ("unix://:s3cret@/run/redis.sock?db=1", "unix:///run/redis.sock"),
        ("redis+sentinel://u:s3cret@a,b:7/prime/3", "redis+sentinel://a:26379,b:7/prime"),
        ("rediss+cluster://u:s3cret@a,b:7", "rediss+cluster://a:6379,b:7"),
    ],
)
async def test_errors_name_the_server_without_its_login(url: str, shown: str) -> None:
    streams = Streams(url)
    await streams.close()
    assert streams._shown == shown


@pytest.mark.parametrize("prefix", ["", "{a}", "a}b", "a b", "x" * 65])
def test_a_prefix_that_would_break_the_hash_tag_is_refused(prefix: str) -> None:
    with pytest.raises(SettingsError, match="REDIS_PREFIX"):
        Streams("redis://host", prefix=prefix)


def test_importing_the_module_does_not_import_redis() -> None:
    program = "import sys, aaiclick_queue.streams; sys.exit('redis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
