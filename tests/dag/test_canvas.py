"""Chains, groups and chords on workers: what comes out, what a failure does, callbacks, options, transactions."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from aaiclick_queue import (
    Client,
    DuplicateTask,
    EndedTask,
    Fail,
    Handle,
    Settings,
    TaskFailed,
    chain,
    chord,
    current,
    enqueue,
    group,
    signature,
    task,
)
from aaiclick_queue.canvas import Many
from aaiclick_queue.errors import ArgumentsDoNotFit, BadJob, JobFailed, WrongContext
from aaiclick_queue.flow.ending import EndedJob
from aaiclick_queue.job_handles import JobHandle
from aaiclick_queue.jobs import job
from aaiclick_queue.postgres import Database
from aaiclick_queue.status import JobStatus
from tests.tools import count, rows, running_worker, until

heard: list[Any] = []
order: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_heard() -> None:
    heard.clear()
    order.clear()


@task
async def add(x: int, y: int = 0) -> int:
    return x + y


@task
def mul(x: int, y: int = 1) -> int:
    return x * y


@task
async def total(numbers: list[int | None]) -> int:
    return sum(number or 0 for number in numbers)


@task
async def say(word: str) -> str:
    order.append(word)
    return word


@task(max_attempts=1)
async def fail(x: Any = None) -> None:
    raise ValueError(f"no {x}")


@task
async def hear(what: Any) -> None:
    heard.append(what)


@task
async def alert(ended: EndedTask, channel: str = "ops") -> None:
    heard.append((ended, channel))


@task
async def job_alert(ended: EndedJob) -> None:
    heard.append(ended)


@task
def next_day(day: date) -> date:
    return date.fromordinal(day.toordinal() + 1)


async def run(canvas: Any, client: Client) -> Any:
    handle = await canvas.enqueue(client=client)
    return await handle.result(timeout=30)


@pytest.mark.parametrize(
    ("canvas", "result"),
    [
        (add.s(2, 2), 4),
        (add.s(2, 2) | mul.s(8) | mul.s(10), 320),
        (chain(add.s(1)), 1),
        (add.si(2, 2) | add.si(4, 4), 8),
        (group(add.s(i, i) for i in range(5)), [0, 2, 4, 6, 8]),
        (group(add.s(1)), [1]),
        (group([]), []),
        (chord([add.s(i, i) for i in range(10)], total.s()), 90),
        (chord([add.s(i) for i in range(300)], total.s()), 44850),
        (chord([], total.s()), 0),
        (group(add.s(1), mul.s(5, 5)) | total.s() | add.s(100), 126),
        (add.s(1) | group(add.s(10), mul.s(10)) | group(total.s(), total.s() | add.s(1)), [21, 22]),
        (group(add.s(1) | mul.s(2), chord([add.s(3), add.s(4)], total.s()), add.s(5) | group(mul.s(6))), [2, 7, [30]]),
        (add.s(1) | group([]) | total.s(), 0),
        (next_day.s(date(2026, 12, 31)) | next_day.s(), date(2027, 1, 2)),
        (group(next_day.s(date(2026, 12, 31)), add.s(1)), [date(2027, 1, 1), 1]),
        (add.starmap([(1, 2), (3, 4)]) | total.s(), 10),
        (add.chunks(zip(range(5), range(5), strict=True), 2), [[0, 2], [4, 6], [8]]),
        (chain(group(add.s(1), add.s(2)), total.s()).set(max_parallel=1, fail_fast=True), 3),
    ],
    ids=repr,
)
async def test_results(client: Client, quick: Settings, canvas: Any, result: Any) -> None:
    async with running_worker(quick):
        assert await run(canvas, client) == result


@task
def pairs(n: int) -> list[tuple[int, int]]:
    return [(i, i) for i in range(n)]


async def test_a_starmap_takes_what_the_step_before_gives(client: Client, quick: Settings) -> None:
    async with running_worker(quick):
        assert await run(pairs.s(3) | add.starmap() | total.s(), client) == 6
        with pytest.raises(JobFailed, match="no list of arguments"):
            await run(add.s(3) | add.options(max_attempts=1).starmap(), client)


async def test_everything_is_one_job_in_one_transaction_and_a_lone_signature_a_task(
    client: Client, db: Database
) -> None:
    handle = await (group(add.s(1), add.s(2)) | total.s()).enqueue(client=client)
    assert isinstance(handle, JobHandle)
    [made] = await rows(db, "jobs")
    assert (made["id"], made["name"], made["status"]) == (handle.id, "chain: (2 × add) | total", "PENDING")
    tasks = await rows(db, "tasks")
    assert {one["job_id"] for one in tasks} == {handle.id}
    assert len({one["created_at"] for one in tasks}) == 1
    alone = await add.s(1).set(queue="mine", priority=3).enqueue(2, client=client)
    assert isinstance(alone, Handle)
    [one] = [one for one in await rows(db, "tasks") if one["job_id"] is None]
    assert (one["id"], one["queue"], one["priority"]) == (alone.id, "mine", 3)
    assert await count(db, "jobs") == 1


async def test_a_failed_step_ends_the_chain_and_a_failed_header_the_chord(client: Client, quick: Settings) -> None:
    async with running_worker(quick):
        handle = await (add.s(1) | fail.s() | hear.s()).enqueue(client=client)
        with pytest.raises(JobFailed, match="fail: ValueError: no 1") as failed:
            await handle.result(timeout=30)
        assert failed.value.failed == [("fail", "ValueError: no 1")]
        assert await handle.status() is JobStatus.FAILED
        with pytest.raises(JobFailed):
            await run(chord([say.s("one"), fail.s(), say.s("two")], hear.s()), client)
    assert heard == []
    assert sorted(order) == ["one", "two"]


async def test_a_callback_gets_the_result_and_its_failure_is_not_the_job_s(client: Client, quick: Settings) -> None:
    async with running_worker(quick):
        step = add.s(2, 2)
        step.link(hear.s())
        step.link(fail.s() | hear.s())
        assert await run(step | mul.s(10), client) == 40
        assert heard == [4]
        assert await run(group(add.s(1), add.s(2)).set(link=hear.s()), client) == [1, 2]
        assert heard == [4, [1, 2]]
        alone = add.s(5)
        alone.link(hear.s())
        assert await run(alone, client) == 5
        assert heard[2:] == [5]
        with pytest.raises(JobFailed):
            await run(add.s(1).set(link=fail.s().set(critical=True)), client)


async def test_a_callback_that_is_linked_by_apply_async(as_default: None, quick: Settings) -> None:
    async with running_worker(quick):
        run = await asyncio.to_thread(add.apply_async, (2, 2), link=[hear.s(), mul.s(3)], link_error=alert.s())
        assert await asyncio.to_thread(run.get, 30) == 4
    assert heard == [4]


async def test_an_error_callback_is_told_what_failed_and_once(client: Client, quick: Settings) -> None:
    async with running_worker(quick):
        handle = await (add.s(1) | fail.s() | add.s(1)).on_error(alert.s("#ops")).enqueue(client=client)
        assert await handle.wait(timeout=30) is JobStatus.FAILED
        await until(lambda: heard)
        [(ended, channel)] = heard
        assert (ended.name, ended.status, ended.attempt, channel) == ("fail", "FAILED", 1, "#ops")
        assert ended.error.type == "ValueError"
        assert "raise ValueError" in ended.error.traceback
        heard.clear()
        both = group(fail.s(1).on_error(alert.s("own")), fail.s(2), add.s(3)).on_error(alert.s("all"))
        await (await both.enqueue(client=client)).wait(timeout=30)
        await until(lambda: len(heard) == 3)
        assert sorted(channel for _, channel in heard) == ["all", "all", "own"]
        heard.clear()
        alone = await fail.s(1).on_error(hear.si("without")).enqueue(client=client)
        with pytest.raises(TaskFailed):
            await alone.result(timeout=30)
        await until(lambda: heard)
        assert heard == ["without"]


async def test_one_hook_for_the_whole_of_it(client: Client, quick: Settings) -> None:
    async with running_worker(quick):
        whole = group(fail.s(1), fail.s(2)).set(on_failure=job_alert, name="two that fail")
        await (await whole.enqueue(client=client)).wait(timeout=30)
        await until(lambda: heard)
    [ended] = heard
    assert (ended.name, ended.status) == ("two that fail", "FAILED")


async def test_steps_go_to_their_queues_and_wait_for_their_time(client: Client, db: Database, quick: Settings) -> None:
    whole = chain(add.s(1).set(queue="one"), add.s(2).set(countdown=0.05), group(add.s(3), add.s(4)))
    handle = await whole.set(queue="rest", priority=7).enqueue(client=client)
    found = [(one["queue"], one["priority"]) for one in sorted(await rows(db, "tasks"), key=lambda one: int(one["id"]))]
    assert found == [("one", 7), ("rest", 7), ("rest", 7), ("rest", 7)]
    async with running_worker(quick, queues={"one": 1, "rest": 1}):
        assert await handle.result(timeout=30) == [6, 7]


async def test_options_of_the_job(client: Client, db: Database) -> None:
    whole = (add.s(1) | add.s(2)).set(dedupe_key="once", metadata={"a": 1}, correlation_id="c")
    first = await whole.enqueue(client=client)
    [made] = await rows(db, "jobs")
    assert (made["correlation_id"], made["metadata"]) == ("c", '{"a": 1}')
    with pytest.raises(DuplicateTask):
        await whole.enqueue(client=client)
    assert (await whole.options(dedupe="skip").enqueue(client=client)).id == first.id
    with pytest.raises(BadJob, match="can raise or skip"):
        whole.options(dedupe="replace")


async def test_a_canvas_is_written_in_the_caller_s_transaction(
    client: Client, db: Database, settings: Settings
) -> None:
    assert settings.postgres_url is not None
    engine = create_async_engine(settings.postgres_url.replace("postgresql://", "postgresql+asyncpg://", 1))
    async with AsyncSession(engine) as session:
        handle = await (add.s(1) | add.s(2)).enqueue(client=client, connection=session)
        await add.s(1).options(connection=session).enqueue(client=client)
        with pytest.raises(WrongContext, match="not committed"):
            await handle.result(timeout=30)
        await session.rollback()
    assert (await count(db, "jobs"), await count(db, "tasks")) == (0, 0)
    async with AsyncSession(engine) as session, session.begin():
        await group(add.s(1), add.s(2)).options(connection=session).enqueue(client=client)
    assert (await count(db, "jobs"), await count(db, "tasks")) == (1, 2)
    await engine.dispose()


async def test_synchronous_code(as_default: None, quick: Settings) -> None:
    def work() -> None:
        assert add.s(2).delay(4).get(timeout=30) == 6
        assert (add.s(4) | mul.s(8))(16).get(timeout=30) == 160
        assert chain(add.s(4), mul.s(8)).delay(16).get(timeout=30) == 160
        assert group(add.s(1), add.s(2)).apply_async((3,), queue="default").get(timeout=30) == [4, 5]
        handle = chord([add.s(i) for i in range(3)])(total.s())
        assert handle.get(timeout=30) == 3
        assert handle.ready()
        assert signature(add.entrypoint, (1,)).delay(1).get(timeout=30) == 2

    async with running_worker(quick):
        await asyncio.to_thread(work)


async def test_a_canvas_in_the_body_of_a_job(client: Client, quick: Settings) -> None:
    @job
    def whole(n: int) -> Any:
        first = (add.s(n) | mul.s(2))(1)
        parts = group(add.s(i) for i in range(3))(first)
        return {"first": first, "parts": parts, "sum": chord([add.s(1), add.s(2)])(total.s()), "all": total(parts)}

    async with running_worker(quick):
        handle = await whole.enqueue(4, client=client)
        assert await handle.result(timeout=30) == {"first": 10, "parts": [10, 11, 12], "sum": 3, "all": 33}


@task
async def spread(n: int) -> Any:
    return chord([mul.s(i, 2) for i in range(n)])(total.s())


@task
async def spread_apart(n: int) -> list[int]:
    return await (await group(mul.s(i, 2) for i in range(n)).enqueue()).result(timeout=30)  # type: ignore[no-any-return]


async def test_a_task_goes_on_as_a_canvas_or_starts_one(as_default: None, client: Client, quick: Settings) -> None:
    async with running_worker(quick):
        assert await run(spread.s(4) | add.s(100), client) == 112
        assert await run(spread_apart.s(3), client) == [0, 2, 4]


@task
async def twice(x: int) -> Any:
    return mul(x, 2)


async def test_a_starmap_goes_on_with_what_its_calls_return(client: Client, quick: Settings) -> None:
    async with running_worker(quick):
        assert await run(chain(twice.starmap([(1,), (2,)]), total.s()), client) == 6


async def test_a_task_that_only_workers_know(client: Client, quick: Settings) -> None:
    async with running_worker(quick):
        named = signature("elsewhere.unknown", kwargs={"x": 1}, immutable=True)
        handle = await (add.s(1) | named).enqueue(client=client)
        assert await handle.status() in (JobStatus.PENDING, JobStatus.RUNNING)
        alone = await signature("elsewhere.unknown").enqueue(client=client)
        assert isinstance(alone, Handle)
        with pytest.raises(ArgumentsDoNotFit, match="import its module"):
            await (add.s(1) | signature("elsewhere.unknown")).enqueue(client=client)


@pytest.mark.parametrize("wrong", [add.s(1), group(add.s(1)), chain(add.s(1), add.s(2))])
async def test_a_signature_is_no_argument(client: Client, wrong: Any) -> None:
    for refuse in (
        lambda: hear.enqueue(wrong, client=client),
        lambda: hear.enqueue([wrong], client=client),
        lambda: enqueue(hear.entrypoint, {"what": wrong}, client=client),
        lambda: hear.s(wrong).enqueue(client=client),
        lambda: (add.s(1) | hear.si(wrong)).enqueue(client=client),
    ):
        with pytest.raises(ArgumentsDoNotFit, match="a signature is a call and no value"):
            await refuse()
    with pytest.raises(ArgumentsDoNotFit, match=f"got `{type(wrong).__name__}`"):
        await add.enqueue(wrong, client=client)


@task
async def fold(value: Any = 0, plus: int = 0) -> int:
    return flat_sum(value) + plus


def flat_sum(value: Any) -> int:
    return sum(map(flat_sum, value)) if isinstance(value, list) else int(value)


def random_canvas(chance: random.Random, depth: int) -> tuple[Any, Callable[[Any], Any]]:
    """A canvas, and what it is in plain Python: a function of what comes before it (None: nothing does)."""
    kind = chance.choice(("task", "task", "chain", "group", "chord")) if depth else "task"
    if kind == "task":
        plus = chance.randrange(10)
        if chance.random() < 0.3:
            return fold.si(plus), lambda before: plus
        return fold.s(plus), lambda before: plus if before is None else flat_sum(before) + plus
    parts = [random_canvas(chance, depth - 1) for _ in range(chance.randrange(kind == "chain", 4))]
    canvases, models = [one for one, _ in parts], [one for _, one in parts]
    if kind == "chain":
        return chain(canvases), lambda before: functools.reduce(lambda value, model: model(value), models, before)
    # A plain group in a group is not a list in the list.
    flat = [isinstance(one, Many) for one in canvases]

    def beside(before: Any) -> list[Any]:
        values = [model(before) for model in models]
        return [item for value, is_flat in zip(values, flat, strict=True) for item in (value if is_flat else [value])]

    if kind == "group":
        return group(canvases), beside
    body, then = random_canvas(chance, 0)
    return chord(canvases, body), lambda before: then(beside(before))


async def test_random_canvases_give_what_plain_python_gives(client: Client, quick: Settings) -> None:
    chance = random.Random(7)
    made = [random_canvas(chance, 3) for _ in range(40)]
    async with running_worker(quick):
        handles = [await canvas.enqueue(client=client) for canvas, _ in made]
        for (canvas, model), handle in zip(made, handles, strict=True):
            assert await handle.result(timeout=60) == model(None), repr(canvas)


async def test_a_retried_step_passes_its_result_on(client: Client, quick: Settings) -> None:
    async with running_worker(quick):
        assert await run(flaky.s(3) | add.s(1), client) == 4


@task(max_attempts=2, retry_delay=0)
async def flaky(x: int) -> int:
    if current().attempt == 1:
        raise ConnectionError("not now")
    if x < 0:
        raise Fail("below zero")
    return x
