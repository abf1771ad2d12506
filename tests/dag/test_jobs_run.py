"""Jobs from their bodies to their results, run by a worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from aaiclick_queue import (
    Client,
    EndedJob,
    Group,
    JobFailed,
    JobHandle,
    JobStatus,
    Settings,
    Skip,
    TaskFailed,
    TaskSkipped,
    UpstreamFailed,
    add_task_to_job,
    branch,
    create_job,
    create_task,
    fan_in,
    job,
    run_job,
    sync,
    task,
    when,
)
from tests.tools import PATIENCE, running_worker, until

told: list[EndedJob] = []


@task
def numbers(count: int) -> list[int]:
    return list(range(count))


@task
async def double(x: int, times: int = 2) -> int:
    if x < 0:
        raise ValueError("negative")
    return x * times


@task
def total(rows: list[int], more: int = 0) -> int:
    return sum(rows) + more


@task
def same(value: Any) -> Any:
    return value


@task
def hear(ended: EndedJob) -> None:
    told.append(ended)


@pytest.fixture
async def worker(quick: Settings) -> AsyncIterator[None]:
    """A worker that runs everything here."""
    async with running_worker(quick):
        yield


pytestmark = pytest.mark.usefixtures("worker")


@job
def mapped(count: int, factor: int = 2) -> dict[str, Any]:
    items = numbers(count)
    parts = double.map(items, max_parallel=3, times=same(factor))
    lists = numbers.map([1, 2])
    return {
        "all": parts,
        "sum": parts.sum(),
        "last": parts.last(),
        "reduced": parts.reduce(total),
        "joined": lists.concat(),
        "again": double.map(parts).collect(),
        "listed": fan_in([same(1), same(None)], "first"),
    }


async def test_a_map_at_run_time_folds_to_the_jobs_result(client: Client) -> None:
    run = await mapped.enqueue(4, factor=3, client=client)
    assert await run.result(PATIENCE) == {
        "all": [0, 3, 6, 9],
        "sum": 18,
        "last": 9,
        "reduced": 18,
        "joined": [0, 0, 1],
        "again": [0, 6, 12, 18],
        "listed": 1,
    }


async def test_a_map_over_nothing_folds_to_nothing(client: Client) -> None:
    run = await mapped.enqueue(0, client=client)
    assert await run.result(PATIENCE) == {
        "all": [], "sum": 0, "last": None, "reduced": 0, "joined": [0, 0, 1], "again": [], "listed": 1,
    }  # fmt: skip


async def test_the_body_of_a_job_that_is_started_by_name_runs_on_a_worker(client: Client) -> None:
    run = await run_job("mapped", {"count": 2}, client=client)
    assert (await run.result(PATIENCE))["sum"] == 2
    again = await run_job(mapped.entrypoint, {"count": 3}, client=client)
    assert (await again.result(PATIENCE))["all"] == [0, 2, 4]


async def test_a_failed_item_fails_the_fold_unless_its_rule_takes_what_completed(client: Client) -> None:
    @job
    def some_fail() -> None:
        parts = double.options(max_attempts=1).map([1, -1, 3])
        nodes.extend([parts.sum(), parts.collect(rule="all_done"), fan_in(parts.nodes, "sum", rule="all_done")])

    nodes: list[Any] = []
    run = await some_fail.enqueue(client=client)
    assert await run.wait(PATIENCE) is JobStatus.FAILED
    strict, lenient, listed = (run.task(node) for node in nodes)
    with pytest.raises(UpstreamFailed):
        await strict.result(PATIENCE)
    assert await lenient.result(PATIENCE) == [2, 6]
    assert await listed.result(PATIENCE) == 8


async def test_one_side_of_a_branch_runs_and_the_join_behind_it_too(client: Client) -> None:
    @job
    def routed(size: int, name: str) -> Any:
        big, small = double(size), same(size)
        sides = when(same(size > 10), then=big, otherwise=small)
        picked = branch(same(name), {"a": same("A"), "b": [same("B")]}, default=lambda: same("else"))
        return [fan_in(sides, "first"), picked, same([big, small])]

    run = await routed.enqueue(20, "b", client=client)
    assert await run.result(PATIENCE) == [40, [None, "B", None], [40, None]]
    run = await routed.enqueue(3, "z", client=client)
    assert await run.result(PATIENCE) == [3, [None, None, "else"], [None, 3]]


async def test_groups_wait_and_are_waited_for(client: Client) -> None:
    @job
    def grouped() -> Any:
        first = same("first")
        with Group("outer", max_parallel=1) as outer:
            a = same(1)
            with Group("inner") as inner:
                b, c = same(2), same(3)
        empty = Group("empty")
        _ = first >> outer
        _ = [outer, empty] >> (last := same("last"))
        return {"outer": outer, "inner": inner, "last": last, "all": [a, b, c], "none": empty}

    run = await grouped.enqueue(client=client)
    result: Any = await run.result(PATIENCE)
    assert result == {"outer": [1, 2, 3], "inner": [2, 3], "last": "last", "all": [1, 2, 3], "none": []}


@task
def goes_on(depth: int) -> Any:
    return goes_on(depth - 1) if depth else "end"


@task
def goes_on_with_many(count: int, x: int) -> Any:
    return {"parts": double.options(max_attempts=1).map([x] * count), "one": same("one")}


@task
def leaves() -> Any:
    raise Skip("nothing to do")


@task
def skips_on() -> Any:
    return leaves()


@task
def breaks() -> Any:
    return double.options(max_attempts=1)(-1)


async def test_the_result_of_a_task_that_returned_others_is_theirs(client: Client) -> None:
    @job
    def continued() -> Any:
        nodes.extend([goes_on(3), goes_on_with_many(2, 4), breaks(), goes_on_with_many(1, -4), skips_on()])
        return same(nodes[0])

    nodes: list[Any] = []
    run = await continued.enqueue(client=client)
    deep, many, broken, broken_in_map, skipped = (run.task(node) for node in nodes)
    assert await deep.result(PATIENCE) == "end"
    assert await many.result(PATIENCE) == {"parts": [8, 8], "one": "one"}
    with pytest.raises(TaskFailed, match="ValueError: negative"):
        await broken.result(PATIENCE)
    with pytest.raises(TaskFailed, match="ValueError: negative"):
        await broken_in_map.result(PATIENCE)
    with pytest.raises(TaskSkipped, match="what continues"):
        await skipped.result(PATIENCE)
    with pytest.raises(JobFailed, match="ValueError: negative"):
        await run.result(PATIENCE)


async def test_the_hooks_of_a_job_hear_of_its_end(client: Client) -> None:
    @job(on_success=hear, on_failure=hear)
    def with_hooks(x: int) -> Any:
        return double.options(max_attempts=1)(x)

    well = await with_hooks.enqueue(1, client=client)
    badly = await with_hooks.enqueue(-1, client=client)
    await until(lambda: len(told) == 2)
    assert {(one.id, one.name, one.status) for one in told} == {
        (str(well.id), "with_hooks", "COMPLETED"),
        (str(badly.id), "with_hooks", "FAILED"),
    }
    assert all(one.kwargs["x"] in (1, -1) for one in told)


async def test_a_key_is_free_again_when_its_job_has_ended(client: Client) -> None:
    keyed = mapped.options(dedupe_key="k", dedupe="skip", client=client)
    run = await keyed.enqueue(1)
    await run.result(PATIENCE)
    assert (await keyed.enqueue(1)).id != run.id


async def test_tasks_are_added_to_a_job_while_it_waits(client: Client) -> None:
    held = asyncio.Event()

    @task
    async def holds() -> str:
        await held.wait()
        return "held"

    first = create_task(holds)
    run = await create_job("grows", first, client=client)
    after = await add_task_to_job(run.id, same.node(first), client=client)
    late = await add_task_to_job(run.id, total, {"rows": [1, 2]}, depends_on=[after], client=client)
    held.set()
    assert await after.result(PATIENCE) == "held"
    assert await late.result(PATIENCE) == 3
    assert await run.result(PATIENCE) == "held"


@pytest.mark.usefixtures("as_default")
async def test_synchronous_code_runs_jobs(client: Client) -> None:
    def blocking() -> Any:
        run = mapped.delay(2)
        first = run.get(PATIENCE)
        by_name = sync.run_job("mapped", {"count": 1}).get(PATIENCE)
        made = sync.create_job("by hand", create_task(same, {"value": 5}))
        return first["sum"], by_name["sum"], made.get(PATIENCE), run.ready()

    assert await asyncio.to_thread(blocking) == (2, 0, 5, True)


async def test_a_node_that_was_skipped_says_so(client: Client) -> None:
    @job
    def skips() -> Any:
        nodes.extend(when(same(0), then=same("never")))
        return None

    nodes: list[Any] = []
    run = await skips.enqueue(client=client)
    assert await run.result(PATIENCE) is None
    with pytest.raises(TaskSkipped, match="its branch was not taken"):
        await run.task(nodes[0]).result(PATIENCE)
    assert isinstance(run, JobHandle)
