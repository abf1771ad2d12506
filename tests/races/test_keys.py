"""Races for dedupe keys: never two living tasks with one key, never a key that nobody can have, nobody else waits."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from aaiclick_queue.client import connect
from aaiclick_queue.errors import DedupeKeyBusy, DuplicateTask
from aaiclick_queue.flow.cancel import cancel
from aaiclick_queue.flow.complete import complete
from aaiclick_queue.flow.dedupe import Key
from aaiclick_queue.flow.enqueue import NewTask
from aaiclick_queue.postgres import Database
from aaiclick_queue.settings import Settings
from aaiclick_queue.spec import DedupeMode
from tests.races.orders import Act, Play, Stage
from tests.races.props import Props, claim, ended, spec

ALIVE = """
SELECT t.id, coalesce(d.task_id = t.id, false) AS has_key
FROM aaiclick_queue.tasks t LEFT JOIN aaiclick_queue.dedupe d ON d.key = 'k'
WHERE t.status IS NULL ORDER BY t.id
"""


def enqueuing(props: Props, mode: DedupeMode, **options: Any) -> Act:
    async def act(db: Database) -> int:
        async with db.transaction() as tx:
            return await props.keyed(tx, Key("k", mode, debounce_max=600.0), **options)

    return act


async def _alive(props: Props) -> dict[int, bool]:
    return {row["id"]: row["has_key"] for row in await props.db.fetch(ALIVE)}


async def _clear(props: Props) -> None:
    await cancel(props.db, list(await _alive(props)))


@pytest.mark.parametrize("before", ["a free key", "a key of an ended task", "a key of a waiting task"])
@pytest.mark.parametrize(
    "modes", [("skip", "skip"), ("raise", "raise"), ("replace", "replace"), ("skip", "replace"), ("debounce",) * 2]
)
async def test_of_two_enqueues_with_a_key_one_task_has_it_and_is_alone(
    stage: Stage, props: Props, modes: tuple[DedupeMode, DedupeMode], before: str
) -> None:
    async def scene(play: Play) -> None:
        holder = 0
        if before != "a free key":
            async with props.db.transaction() as tx:
                holder = await props.keyed(tx, Key("k"), countdown=60.0)
        if before == "a key of an ended task":
            await cancel(props.db, [holder])
            await props.db.fetch(
                "INSERT INTO aaiclick_queue.dedupe (scope, key, task_id) VALUES ('shop.mail.send', 'k', $1)", holder
            )
        one, other = await play.run(
            one=enqueuing(props, modes[0], countdown=60.0), other=enqueuing(props, modes[1], countdown=60.0)
        )
        alive = await _alive(props)
        assert list(alive.values()) == [True], "one task is alive, and it has the key"
        [task_id] = alive
        got = {result for result in (one, other) if isinstance(result, int)}
        raised = [result for result in (one, other) if isinstance(result, Exception)]
        assert all(isinstance(error, DuplicateTask) and error.task_id == task_id for error in raised)
        assert task_id in got or raised
        if "replace" not in modes:
            assert got <= {task_id}
            assert (task_id == holder) == (before == "a key of a waiting task")
        await _clear(props)

    await stage.in_every_order(scene, preemptions=2)


async def test_replace_takes_a_waiting_task_away_or_leaves_a_claimed_one_to_run(stage: Stage, props: Props) -> None:
    worker = await props.worker()

    async def scene(play: Play) -> None:
        async with props.db.transaction() as tx:
            old = await props.keyed(tx, Key("k"))
        claimed, new = await play.run(
            claim=lambda db: claim(db, worker, limit=1), replace=enqueuing(props, "replace", countdown=60.0)
        )
        state = await props.state(old)
        alive = await _alive(props)
        assert alive[new]
        if claimed:
            assert ([one.task_id for one in claimed], state["leased"], alive[old]) == ([old], 1, False)
            assert await complete(props.db, [ended(claimed[0])], worker_id=worker) == {old}
            assert await _alive(props) == {new: True}, "the end of the old task has left the key to the new one"
        else:
            assert (state["status"], state["error"]) == ("CANCELLED", "Replaced")
            assert list(alive) == [new]
        await _clear(props)

    await stage.in_every_order(scene)


@pytest.mark.parametrize("waits_in", ["ready", "delayed"])
async def test_debounce_moves_a_waiting_task_or_makes_a_new_one_beside_a_claimed_one(
    stage: Stage, props: Props, waits_in: str
) -> None:
    worker = await props.worker()

    async def scene(play: Play) -> None:
        async with props.db.transaction() as tx:
            old = await props.keyed(tx, Key("k", "debounce", debounce_max=600), countdown=60.0)
        if waits_in == "ready":
            await props.db.fetch(
                """WITH due AS (DELETE FROM aaiclick_queue.delayed RETURNING queue, rank, order_key, task_id, flags)
                INSERT INTO aaiclick_queue.ready (queue, rank, order_key, task_id, flags) SELECT * FROM due"""
            )
        claimed, other = await play.run(
            claim=lambda db: claim(db, worker, limit=1), debounce=enqueuing(props, "debounce", countdown=60.0)
        )
        state = await props.state(old)
        alive = await _alive(props)
        assert alive[other]
        if claimed:
            assert other != old
            assert (state["leased"], state["delayed"], alive[old]) == (1, 0, False)
            assert (await props.state(other))["delayed"] == 1
        else:
            assert other == old
            assert (state["ready"], state["delayed"], list(alive)) == (0, 1, [old])
        await _clear(props)

    await stage.in_every_order(scene, at_least=2)


@pytest.mark.parametrize("mode", ["skip", "raise"])
async def test_an_enqueue_beside_the_end_of_the_holder_gets_the_holder_or_makes_a_new_task(
    stage: Stage, props: Props, mode: DedupeMode
) -> None:
    worker = await props.worker()

    async def scene(play: Play) -> None:
        async with props.db.transaction() as tx:
            old = await props.keyed(tx, Key("k"))
        [claimed] = await claim(props.db, worker)
        landed, got = await play.run(
            complete=lambda db: complete(db, [ended(claimed)], worker_id=worker),
            enqueue=enqueuing(props, mode, countdown=60.0),
        )
        assert landed == {old}
        alive = await _alive(props)
        if got == old or isinstance(got, DuplicateTask):
            assert alive == {}
        else:
            assert alive == {got: True}
        async with props.db.transaction() as tx:  # whether or not the key could be freed: it is free
            again = await props.keyed(tx, Key("k", "skip"), countdown=60.0)
        assert again != old
        await _clear(props)

    await stage.in_every_order(scene)


async def test_a_callers_open_transaction_with_a_key_stops_nobody_but_those_who_want_the_same_key(
    settings: Settings, props: Props
) -> None:
    async with Database(settings, size=1) as callers, connect(settings=settings) as client, callers.transaction() as tx:
        await props.keyed(tx, Key("k"))
        plain = [client.write(spec("default"), [NewTask("{}")]) for _ in range(50)]
        other_key = client.write(spec("default"), [NewTask("{}")], key=Key("other"))
        same_key = client.write(spec("default"), [NewTask("{}")], key=Key("k", "skip"))
        async with asyncio.timeout(30):
            assert len(await asyncio.gather(*plain, other_key)) == 51
        with pytest.raises(DedupeKeyBusy):
            await same_key


@pytest.mark.parametrize("dedupe", ["replace", "skip"])
async def test_a_flush_does_not_wait_for_an_application_that_holds_the_key_of_its_task(
    settings: Settings, props: Props, dedupe: DedupeMode
) -> None:
    worker = await props.worker()
    async with props.db.transaction() as tx:
        task_id = await props.keyed(tx, Key("k"))
    [claimed] = await claim(props.db, worker)
    async with Database(settings, size=1) as callers, callers.transaction() as tx:
        await props.keyed(tx, Key("k", dedupe), countdown=60.0)
        async with asyncio.timeout(10):
            assert await complete(props.db, [ended(claimed)], worker_id=worker) == {task_id}
    assert len(await _alive(props)) == (dedupe == "replace")


async def test_a_batch_whose_statement_waits_for_no_lock_of_an_application(settings: Settings, props: Props) -> None:
    """An application that has read-locked or updated nothing but its own tables and our key rows holds up nobody."""
    worker = await props.worker()
    async with props.db.transaction() as tx:
        await props.keyed(tx, Key("k"))
    [claimed] = await claim(props.db, worker)
    with psycopg.connect(settings.postgres_url or "") as application:
        application.execute("SELECT * FROM aaiclick_queue.dedupe FOR UPDATE")
        async with asyncio.timeout(10):
            assert await complete(props.db, [ended(claimed)], worker_id=worker) == {claimed.task_id}
