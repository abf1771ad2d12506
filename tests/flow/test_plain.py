"""Plain: the everyday enqueue writes what the full one writes, or nothing where limits have to be asked."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from aaiclick_queue import Client, connect, task
from aaiclick_queue.errors import QueueFull
from aaiclick_queue.flow.enqueue import NewTask, Spec, Written, enqueue, id_source
from aaiclick_queue.flow.limits import NewLimit, set_limit, set_max_depth
from aaiclick_queue.flow.plain import ENQUEUE_PLAIN, insert_plain, is_plain
from aaiclick_queue.ids import IdSource
from aaiclick_queue.postgres import Database
from aaiclick_queue.settings import Settings
from tests.tools import ENTRYPOINT, count, place_of, rows

PLACES = ("tasks", "ready", "held", "delayed", "timers", "outbox")
OWN = {"id", "task_id", "order_key", "task_ids", "created_at", "ready_at"}
SPEC = Spec(
    ENTRYPOINT, "mail", 7, name="greet", max_attempts=5, retry='{"delay": 2}', timeout=9.0, flags=1, keep="failed",
    hooks='{"on_success": ["shop.done"]}',
)  # fmt: skip
TASKS = [NewTask(f'{{"n": {n}}}', correlation_id="c" if n else None, metadata='{"by": "ada"}') for n in range(150)]


@task(entrypoint="tests.greet", queue="mail")
async def greet(n: int) -> None: ...


async def _kept(db: Database, ids: list[int]) -> dict[str, list[dict[str, Any]]]:
    """What every place has of them, and how many; ids as their number in the list."""
    found: dict[str, list[dict[str, Any]]] = {}
    for table in PLACES:
        whole = [dict(one) for one in await rows(db, table)]
        mine = [one for one in whole if {one.get("id"), one.get("task_id"), *one.get("task_ids", ())} & set(ids)]
        found[table] = [
            {name: value for name, value in one.items() if name not in OWN}
            | {"ids": [ids.index(i) for i in one.get("task_ids", [one.get("order_key", one.get("id"))])]}
            for one in sorted(mine, key=lambda one: one.get("task_id", one.get("id", 0)))
        ]
    return found


async def _insert(db: Database, spec: Spec, tasks: list[NewTask], ids: list[int] | None = None) -> Written | None:
    return await insert_plain(db, spec, tasks, ids or (await id_source(db)).take(len(tasks)))


async def test_it_writes_what_the_full_statement_writes(db: Database) -> None:
    plain = await _insert(db, SPEC, TASKS)
    assert plain is not None
    full = await enqueue(db, SPEC, TASKS, (await id_source(db)).take)
    assert await _kept(db, plain.ids) == await _kept(db, full.ids)
    assert [(told.queue, told.rank, told.n, told.order_key, len(told.task_ids)) for told in plain.told] == [
        ("mail", -7, 150, plain.ids[0], 100)
    ]


@pytest.mark.parametrize(
    "limit",
    [NewLimit("queue", "mail", "running", 1), NewLimit("task", ENTRYPOINT, "running", 1)],
    ids=["queue", "task"],
)
async def test_beside_a_limit_nothing_is_written(db: Database, limit: NewLimit) -> None:
    await set_limit(db, limit, by="a test")
    assert await _insert(db, SPEC, TASKS) is None
    assert await _insert(db, Spec("tests.other", "default"), TASKS) is not None
    assert [await count(db, table) for table in PLACES] == [150, 150, 0, 0, 0, 1]


async def test_beside_a_greatest_depth_nothing_is_written(db: Database) -> None:
    await set_max_depth(db, "mail", 1000, by="a test")
    assert await _insert(db, SPEC, TASKS) is None
    assert [await count(db, table) for table in PLACES] == [0] * 6


async def test_an_id_that_is_taken_is_an_error_and_nothing_is_written(db: Database) -> None:
    written = await _insert(db, SPEC, TASKS[:1])
    assert written is not None
    ids = (await id_source(db)).take(2)
    with pytest.raises(asyncpg.UniqueViolationError):
        await _insert(db, SPEC, TASKS[:3], [*ids, written.ids[0]])
    assert [await count(db, table) for table in ("tasks", "ready", "outbox")] == [1, 1, 1]


@pytest.mark.parametrize(
    "special",
    [
        {"countdown": 0.0}, {"expires": 1.0}, {"spawn_key": "k"}, {"concurrency_key": "k"}, {"order_by": "k"},
    ],
    ids=lambda special: next(iter(special)),
)  # fmt: skip
def test_what_has_a_time_or_a_key_is_not_plain(special: dict[str, Any]) -> None:
    assert is_plain(SPEC, TASKS)
    assert not is_plain(SPEC, [*TASKS, NewTask("{}", **special)])


def test_a_child_is_not_plain() -> None:
    assert not is_plain(Spec(ENTRYPOINT, "mail", parent_id=1), TASKS)


class Drawn(IdSource):
    """Draws these first, as a process with the same node id did."""

    def __init__(self, others: list[int], after: IdSource) -> None:
        self._others, self._after = others, after

    def take(self, count: int) -> list[int]:
        some, self._others = self._others[:count], self._others[count:]
        return some + self._after.take(count - len(some))


async def _clashing(client: Client, db: Database) -> list[int]:
    """Make the client draw ids that others have; gives them."""
    spec = Spec("tests.greet", "mail")  # the same entrypoint: only its arguments tell them apart
    others = (await enqueue(db, spec, [NewTask('{"n": -1}')] * 3, (await id_source(db)).take)).ids
    writer = client._writer
    writer._ids = Drawn(others, await id_source(db))
    return others


async def test_ids_that_others_have_are_drawn_again_for_many_and_for_single_ones(
    db: Database, settings: Settings
) -> None:
    async with connect(settings=settings) as client:
        others = await _clashing(client, db)
        ids = await greet.enqueue_many([{"n": n} for n in range(1500)], client=client)
        others += await _clashing(client, db)
        handles = await asyncio.gather(*(greet.enqueue(n, client=client) for n in range(1500, 1510)))
    ids += [handle.id for handle in handles]
    assert not set(ids) & set(others)
    arguments = {one["id"]: one["kwargs"] for one in await rows(db, "tasks")}
    assert [arguments[task_id] for task_id in ids] == [f'{{"n": {n}}}' for n in range(1510)]
    assert {arguments[task_id] for task_id in others} == {'{"n": -1}'}
    assert len(arguments) == 1516 == await count(db, "ready")


async def test_a_client_uses_it_and_asks_limits_where_there_are_any(
    db: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[bool] = []
    fetch = asyncpg.Connection.fetch

    async def seen(self: Any, sql: str, *args: Any, **more: Any) -> Any:
        ran.append(sql == ENQUEUE_PLAIN) if "INTO aaiclick_queue.tasks" in sql else None
        return await fetch(self, sql, *args, **more)

    monkeypatch.setattr(asyncpg.Connection, "fetch", seen)
    async with connect(settings=settings) as client:
        await greet.enqueue(1, client=client)
        await greet.enqueue_many([{"n": 1}, {"n": 2}], client=client)
        assert ran == [True, True]
        await set_limit(db, NewLimit("queue", "mail", "running", 1), by="a test")
        held = await greet.enqueue(2, client=client)
        assert await place_of(db, held.id) == ["held"]
        later = await greet.options(countdown=60, queue="free").enqueue(2, client=client)
        assert await place_of(db, later.id) == ["delayed"]
        await set_max_depth(db, "small", 1, by="a test")
        with pytest.raises(QueueFull):
            await greet.options(queue="small").enqueue_many([{"n": 1}, {"n": 2}], client=client)
    assert ran == [True, True, True, False, False, True, False]


async def test_a_part_of_many_is_one_statement_and_all_or_nothing_where_it_cannot_be(
    db: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    fetch, execute = asyncpg.Connection.fetch, asyncpg.Connection.execute

    async def seen(self: Any, sql: str, *args: Any, **more: Any) -> Any:
        ran.append("fetch")
        return await fetch(self, sql, *args, **more)

    async def executed(self: Any, sql: str, *args: Any, **more: Any) -> Any:
        ran.append(sql.split(maxsplit=1)[0].strip(";"))
        return await execute(self, sql, *args, **more)

    async with connect(settings=settings) as client:
        monkeypatch.setattr(asyncpg.Connection, "fetch", seen)
        monkeypatch.setattr(asyncpg.Connection, "execute", executed)
        await greet.enqueue_many([{"n": n} for n in range(1000)], client=client)
        assert ran == ["fetch"]
        ran.clear()
        await greet.enqueue_many([{"n": n} for n in range(1001)], client=client)
        assert ran == ["BEGIN", "fetch", "fetch", "COMMIT"]
        ran.clear()
        await set_limit(db, NewLimit("queue", "mail", "running", 1), by="a test")
        ran.clear()
        await greet.enqueue_many([{"n": 1}, {"n": 2}], client=client)
        assert ran == ["fetch", "BEGIN", "fetch", "COMMIT"]
    assert await count(db, "tasks") == 2003
