"""Jobs under rough use: data that looks like references, one group in many hands, nodes given twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aaiclick_queue import (
    BadJob,
    Client,
    Group,
    JobFailed,
    Settings,
    add_task_to_job,
    create_job,
    create_task,
    current,
    job,
    run_job,
    task,
)
from aaiclick_queue.postgres import Database
from tests.tools import PATIENCE, running_worker

LOOK_ALIKE = {"a": [{"$node": 5}]}


@task
def same(value: Any) -> Any:
    return value


@task
async def passes_a_look_alike_on() -> None:
    await current().enqueue(same, LOOK_ALIKE)


@job
def spawns() -> Any:
    return passes_a_look_alike_on()


@job
def taken_whole(value: Any) -> Any:
    return same(value)


@task
def looks_alike() -> list[Any]:
    return [1, LOOK_ALIKE]


@job
def maps_look_alikes() -> Any:
    return same.map(looks_alike()).collect()


async def test_items_that_look_like_references_are_refused_and_not_changed(client: Client, quick: Settings) -> None:
    async with running_worker(quick):
        run = await maps_look_alikes.enqueue(client=client)
        with pytest.raises(JobFailed, match=r"item 1 of the map holds a dict like \{'\$node': 1\}"):
            await run.result(PATIENCE)


async def test_a_child_with_what_looks_like_a_reference_is_refused(client: Client, quick: Settings) -> None:
    async with running_worker(quick):
        run = await spawns.enqueue(client=client)
        with pytest.raises(JobFailed, match="use another key"):
            await run.result(PATIENCE)


async def test_arguments_by_name_that_look_like_references_are_refused(client: Client) -> None:
    with pytest.raises(BadJob, match="use another key"):
        await run_job("taken_whole", {"value": LOOK_ALIKE}, client=client)
    with pytest.raises(BadJob, match="use another key"):
        await run_job("elsewhere.taken_whole", {"value": LOOK_ALIKE}, client=client)
    with pytest.raises(BadJob, match="use another key"):
        create_task("elsewhere.same", {"value": LOOK_ALIKE})


async def test_coroutines_of_one_body_may_be_in_one_group(client: Client, db: Database) -> None:
    @job(entrypoint="tests.dag.gathers")
    async def gathers() -> None:
        shared, turns = Group("shared"), [asyncio.Event() for _ in range(3)]

        async def part(turn: int) -> None:
            with shared:
                await turns[turn].wait()
                same(turn)
            if turn < 2:
                turns[turn + 1].set()
            same.options(name=f"outside {turn}")(turn)

        turns[0].set()
        await asyncio.gather(*(part(turn) for turn in range(3)))

    run = await gathers.enqueue(client=client)
    rows = await db.fetch("SELECT name, group_id FROM aaiclick_queue.tasks WHERE job_id = $1 ORDER BY id", run.id)
    assert {row["name"]: row["group_id"] is not None for row in rows} == {
        "same": True, "same#2": True, "same#3": True, "outside 0": False, "outside 1": False, "outside 2": False,
    }  # fmt: skip


async def test_a_node_is_added_once_and_in_its_group(client: Client, db: Database) -> None:
    run = await create_job("open", create_task(same, {"value": 1}), client=client)
    node = create_task(same, {"value": 2})
    group = Group("mine", [node])
    await add_task_to_job(run.id, node, client=client)
    assert await db.fetchval("SELECT group_id FROM aaiclick_queue.tasks WHERE id = $1", node.id) == group.id
    with pytest.raises(BadJob, match="it is written already"):
        await add_task_to_job(run.id, node, client=client)
