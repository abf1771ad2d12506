"""Whole jobs by the public door, run by a worker: bodies in the caller and on a worker, maps, folds, continuations."""

from __future__ import annotations

from typing import Any

import pytest

from aaiclick_queue import Client, Settings, TaskResult, current, task
from aaiclick_queue.errors import JobFailed
from aaiclick_queue.fan import map as map_over
from aaiclick_queue.jobs import job
from aaiclick_queue.nodes import Group
from aaiclick_queue.routing import when
from aaiclick_queue.starting import run_job
from tests.tools import PATIENCE, running_worker


@task
async def files(count: int) -> list[str]:
    return [f"file-{number}" for number in range(count)]


@task
def size(name: str, factor: int = 1) -> dict[str, int]:
    return {"value": int(name.rpartition("-")[2]) * factor}


@task
async def is_big(value: Any) -> bool:
    return bool(value > 5)


@task(isolation="process")
def describe(value: Any, word: str) -> str:
    return f"{word} {value}"


@task
async def two() -> int:
    return 2


@job
async def measured(count: int) -> Any:
    sizes = map_over(size, files(count), factor=two(), max_parallel=3)
    total = sizes.sum()
    with Group("words"):
        big, small = describe(total, "big"), describe(total, "small")
    when(is_big(total), then=big, otherwise=small)
    return {"total": total, "sizes": sizes.collect(), "word": [big, small]}


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize(("count", "told"), [(4, (12, ["big 12", None])), (0, (0, [None, "small 0"]))])
async def test_a_job_is_built_where_it_is_called_or_by_a_worker(
    client: Client, quick: Settings, by_name: bool, count: int, told: tuple[int, list[Any]]
) -> None:
    async with running_worker(quick):
        if by_name:
            run = await run_job("measured", {"count": count}, client=client)
        else:
            run = await measured.enqueue(count, client=client)
        sizes = [{"value": number * 2} for number in range(count)]
        assert await run.result(timeout=PATIENCE) == {"total": told[0], "sizes": sizes, "word": told[1]}


@task
async def search(depth: int, place: str = "") -> Any:
    """Splits until there is nothing left to split: each part is searched by a task of its own."""
    if depth == 0:
        return [place]
    return joined([search(depth - 1, f"{place}{side}") for side in "ab"])


@task
async def joined(parts: list[list[str]]) -> list[str]:
    return [one for part in parts for one in part]


@job
async def searching(depth: int) -> Any:
    return search(depth)


async def test_tasks_that_are_continued_by_tasks_that_are_continued_come_together(
    client: Client, quick: Settings
) -> None:
    async with running_worker(quick):
        run = await searching.enqueue(3, client=client)
        assert await run.result(timeout=PATIENCE) == [a + b + c for a in "ab" for b in "ab" for c in "ab"]


@task
async def loads(rows: int) -> Any:
    here = current()
    child = await here.enqueue(size, "file-7")
    await here.enqueue(size, "file-8", after=[child])
    return TaskResult(data={"rows": rows}, tasks=[size("file-9")])


@job("loading")
def load_all() -> Any:
    with Group("load", max_parallel=1) as group:
        nodes = [loads(number) for number in range(3)]
    return {"rows": nodes, "all": group}


async def test_a_group_gives_the_results_of_what_joined_it(client: Client, quick: Settings) -> None:
    async with running_worker(quick):
        run = await load_all.enqueue(client=client)
        result = await run.result(timeout=PATIENCE)
    assert result["rows"] == [{"rows": number} for number in range(3)]
    assert sorted(map(str, result["all"])) == sorted(
        map(str, [*result["rows"], *({"value": number} for number in (7, 8, 9) for _ in range(3))])
    )


@job
async def with_a_body_that_fails() -> None:
    await two()
    raise RuntimeError("never here")


async def test_a_body_that_fails_on_a_worker_fails_its_job_and_adds_nothing(client: Client, quick: Settings) -> None:
    async with running_worker(quick):
        run = await run_job("with_a_body_that_fails", {}, client=client)
        with pytest.raises(JobFailed, match="await"):
            await run.result(timeout=PATIENCE)
