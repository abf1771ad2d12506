"""Early wake-ups: a worker hears of a task while it is being committed, and nothing depends on its having heard."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest
import redis.asyncio

from aaiclick_queue import Client, Settings, Worker, connect, task
from aaiclick_queue import claimer as claimer_module
from aaiclick_queue import client as client_module
from aaiclick_queue.claimer import Expected
from aaiclick_queue.flow.enqueue import NewTask, Spec, id_source
from aaiclick_queue.flow.plain import insert_plain
from aaiclick_queue.postgres import Database
from aaiclick_queue.streams import Hint, Streams
from tests.tools import changed, count, leased, running_worker, until

ran: list[int] = []


@task(entrypoint="tests.early.note")
async def note(n: int) -> None:
    ran.append(n)


@pytest.fixture
def with_redis(settings: Settings, redis_url: str) -> Settings:
    return changed(settings, redis_url=redis_url)


async def sent(settings: Settings, *ids: int) -> list[dict[bytes, bytes]]:
    """What the stream of the queue holds of these tasks."""
    assert settings.redis_url
    async with redis.asyncio.Redis.from_url(settings.redis_url) as server:
        entries: Any = await server.xrange(f"{{{settings.redis_prefix}}}:wake:default")
        return [fields for _, fields in entries if {*map(int, fields[b"task_ids"].split(b","))} & {*ids}]


async def enqueued(client: Client, n: int) -> int:
    return int((await note.enqueue(n, client=client)).id)


def let_wake_ups_go_first(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the first commit of the client begin when the wake-up beside it has arrived."""
    assert client._streams is not None
    arrived, publish, commit = asyncio.Event(), client._streams.publish, client._writer._commit

    async def published(hints: Sequence[Hint]) -> None:
        await publish(hints)
        arrived.set()

    async def committed(*args: Any, **options: Any) -> Any:
        await arrived.wait()
        return await commit(*args, **options)

    monkeypatch.setattr(client._streams, "publish", published)
    monkeypatch.setattr(client._writer, "_commit", committed)


async def test_a_task_that_is_committed_after_its_wake_up_is_found_without_another(
    with_redis: Settings, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claimer_module, "RESCAN_SECONDS", 600.0)
    monkeypatch.setattr(claimer_module, "EXPECTED_SECONDS", 20.0)
    ran.clear()
    spec, [task_id] = Spec(entrypoint="tests.early.note", queue="default"), (await id_source(db)).take(1)
    streams = Streams(with_redis.redis_url or "", prefix=with_redis.redis_prefix)
    async with running_worker(with_redis, background=False) as worker:
        await until(lambda: _announced(streams, worker, task_id))
        await insert_plain(db, spec, [NewTask('{"n": 7}')], [task_id])
        await until(lambda: ran == [7])
        await until(lambda: not worker._claimer._expected)
    await streams.close()


async def test_a_commit_in_time_is_told_once_and_its_outbox_row_is_forgotten(
    with_redis: Settings, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "TRUSTED_SECONDS", 60.0)
    async with connect(settings=with_redis) as client:
        let_wake_ups_go_first(client, monkeypatch)
        task_id = await enqueued(client, 1)
        await until(lambda: _is_empty(db))
    [only] = await sent(with_redis, task_id)
    assert only[b"early"] == b"1"


async def test_a_commit_that_takes_longer_than_workers_look_is_told_again(
    with_redis: Settings, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "TRUSTED_SECONDS", 0.0)
    async with connect(settings=with_redis) as client:
        let_wake_ups_go_first(client, monkeypatch)
        task_id = await enqueued(client, 1)
        await until(lambda: _is_empty(db))
    early, late = await sent(with_redis, task_id)
    assert early[b"early"] == b"1"
    assert b"early" not in late
    assert early[b"task_ids"] == late[b"task_ids"]


async def test_who_enqueues_one_after_another_or_many_at_once_announces_nothing(
    with_redis: Settings, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "QUIET_SECONDS", 600.0)
    monkeypatch.setattr(client_module, "TRUSTED_SECONDS", 60.0)
    async with connect(settings=with_redis) as client:
        client._announced_at = time.monotonic() - 1000  # as of one that has been quiet
        first, *ids = [await enqueued(client, n) for n in range(3)]
        client._announced_at = time.monotonic() - 1000
        ids += await note.options(client=client).enqueue_many([{"n": 1}, {"n": 2}])
        ids += await asyncio.gather(*(enqueued(client, n) for n in range(5)))
        await until(lambda: _is_empty(db))
    assert any(b"early" in one for one in await sent(with_redis, first))
    told = await sent(with_redis, *ids)
    assert told
    assert not any(b"early" in one for one in told)


async def test_an_announced_task_that_never_comes_is_not_looked_for_for_ever(
    with_redis: Settings, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claimer_module, "EXPECTED_SECONDS", 0.5)
    streams = Streams(with_redis.redis_url or "", prefix=with_redis.redis_prefix)
    async with running_worker(with_redis, background=False) as worker:
        await until(lambda: _announced(streams, worker, 5))
        await until(lambda: not worker._claimer._expected)
    assert await count(db, "leases") == 0
    await streams.close()


async def test_what_is_expected_is_looked_for_until_it_is_there_or_the_time_is_over(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed = [await leased(db), await leased(db)]
    first, second = (one.task_id for one in claimed)
    expected, began = Expected(), time.monotonic()
    monkeypatch.setattr(claimer_module, "EXPECTED_SECONDS", 100.0)
    expected.add("default", [first, second])
    expected.looked(began, [one for one in claimed if one.task_id == first])
    assert expected
    expected.looked(began + 1, [])
    assert expected
    expected.looked(began + 1, [one for one in claimed if one.task_id == second])
    assert not expected
    expected.add("default", [first])
    expected.looked(began + 200, [])  # one that began after the time is the last
    assert not expected
    expected.add("default", [first])
    expected.none_any_more()
    assert not expected
    expected.add("default", [first])
    expected.add("other", [second])
    expected.keep(lambda queue: queue == "default")
    assert expected
    expected.looked(began, [one for one in claimed if one.task_id == first])
    assert not expected


async def _announced(streams: Streams, worker: Worker, task_id: int) -> bool:
    """Whether the worker has heard of it; again and again, for it may not listen yet."""
    await streams.publish([Hint("default", 0, task_id, 1, (task_id,), early=True)])
    return bool(worker._claimer._expected)


async def _is_empty(db: Database) -> bool:
    return await count(db, "outbox") == 0
